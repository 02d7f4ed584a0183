#!/usr/bin/env python3
"""Checks the structure of the Rust code: length of files, functions and crates, methods of a type, and import cycles of
the modules of each folder. Between crates cargo allows no cycle. Checks too that the tests exist that the pages of the
architecture name for their rules, and that pages make the content of a `Suspense` in one way.

A list has each exception with its size, so that only a change of the list lets one grow. An entry that is within its
limit by now is a complaint too.
"""
from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES = 500
FUNCTION_LINES = 80
# Views are long because pages are.
VIEWS = ("app/src/pages/", "app/src/ui/", "app/src/session.rs", "app/src/lib.rs")
CRATE_LINES = 8_000
METHODS = 25

# Files over the limit, with their lines.
LONG_FILES: dict[str, int] = {
}
# Crates over the limit, with the lines of their sources.
LONG_CRATES: dict[str, int] = {
    "app": 67_000,
}
# Types over the limit, with their methods.
WIDE_TYPES: dict[str, int] = {
}
# Functions over the limit, with their lines.
LONG_FUNCTIONS: dict[str, int] = {
    "server/engine/src/tests/history.rs step": 137,
    "server/tests/portal/money.rs months_are_billed_once_numbered_without_gaps_and_final": 87,
    "server/tests/portal/store_files.rs a_volume_version_is_kept_while_an_attempt_uses_it": 115,
    "worker/nvml-sim/tests/faults.rs boards_fail_as_they_are_told_and_recover_by_a_reset": 102,
    "worker/nvml-sim/tests/nvml.rs a_slice_is_made_used_and_given_back": 90,
    "worker/tests/worker/gpu.rs slices_are_made_adopted_read_and_given_back": 135,
    "worker/tests/worker/health.rs boards_that_fail_take_nothing_with_them": 127,
    "worker/tests/worker/stage/mod.rs start": 93,
}
# The files that make a `Suspend`: the common way, and a part that is loaded by a click.
SUSPENDS = ("app/src/ui/suspended.rs", "app/src/ui/palette.rs")
# Crates with modules that import each other in a circle, with the number of modules in the largest circle.
CYCLES: dict[str, int] = {
}

FUNCTION = re.compile(r"^( *)(?:pub(?:\([^)]*\))? )?(?:default )?(?:const )?(?:async )?(?:unsafe )?(?:extern \"C\" )?fn (\w+)")
IMPL = re.compile(r"^impl(?:<[^>]*>)? (\w+)(?:<[^>]*>)? \{")
METHOD = re.compile(r"^    (?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?fn \w+")


def sources() -> list[Path]:
    """All Rust files of the project."""
    found = [path for top in ("app", "server", "worker") for path in (ROOT / top).rglob("*.rs")]
    return sorted(path for path in found if "target" not in path.parts)


def functions(lines: list[str]) -> list[tuple[str, int, int]]:
    """Name, first line and length of each function, as rustfmt lays it out."""
    out = []
    for start, line in enumerate(lines):
        match = FUNCTION.match(line)
        if not match or line.rstrip().endswith((";", "}")):
            continue
        indent, name = match.groups()
        for end in range(start + 1, len(lines)):
            if lines[end].rstrip() in (f"{indent}}}", f"{indent});"):
                out.append((name, start + 1, end - start + 1))
                break
    return out


def beyond(sizes: dict[str, int], limit: int, known: dict[str, int], unit: str) -> list[str]:
    """Complaints about what is larger than its limit, or than its entry in a list, and about entries without need."""
    out = []
    for name, size in sizes.items():
        allowed = known.get(name, limit)
        if size > allowed:
            out.append(f"{name}: {size} {unit}, {allowed} are allowed")
    out += [
        f"{name}: is within its limit and stands in a list of end2end/tools/structure.py"
        for name in known
        if sizes.get(name, 0) <= limit
    ]
    return out


def too_long() -> list[str]:
    """Complaints about files and functions."""
    files: dict[str, int] = {}
    named: dict[str, int] = {}
    for path in sources():
        name = str(path.relative_to(ROOT))
        lines = path.read_text().splitlines()
        files[name] = len(lines)
        if not name.startswith(VIEWS):
            for function, _, length in functions(lines):
                key = f"{name} {function}"
                named[key] = max(length, named.get(key, 0))
    return beyond(files, FILE_LINES, LONG_FILES, "lines") + beyond(
        named, FUNCTION_LINES, LONG_FUNCTIONS, "lines"
    )


def crates() -> list[Path]:
    """The directories of all crates."""
    found = [ROOT / top for top in ("app", "server", "worker")]
    found += [path.parent for top in found for path in top.rglob("*/Cargo.toml") if "target" not in path.parts]
    return sorted(path for path in found if (path / "src").is_dir())


def sizes_of_crates() -> dict[str, int]:
    """The lines of each crate's sources."""
    lines = lambda crate: sum(len(path.read_text().splitlines()) for path in (crate / "src").rglob("*.rs"))
    return {str(crate.relative_to(ROOT)): lines(crate) for crate in crates()}


def methods() -> dict[str, int]:
    """The methods of each type, those of traits left out."""
    out: dict[str, int] = defaultdict(int)
    for crate in crates():
        for path in (crate / "src").rglob("*.rs"):
            current = None
            for line in path.read_text().splitlines():
                if match := IMPL.match(line):
                    current = f"{crate.relative_to(ROOT)} {match.group(1)}"
                elif line == "}":
                    current = None
                elif current and METHOD.match(line):
                    out[current] += 1
    return out


def module_of(path: Path, src: Path) -> tuple[str, ...]:
    """The path of a file's module below its crate."""
    parts = path.relative_to(src).with_suffix("").parts
    return parts[:-1] if parts[-1] == "mod" else parts


def named_modules(text: str, module: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The paths below the crate that the imports and paths of a module's text name."""
    out: list[tuple[str, ...]] = []
    for root, path, many in re.findall(r"\b(crate|(?:super::)*super)::((?:\w+::)*)(\{[^;]*?\}|\w+)", text):
        ups = 0 if root == "crate" else root.count("super")
        base = () if root == "crate" else module[: max(len(module) - ups, 0)]
        base += tuple(part for part in path.split("::") if part)
        ends = re.findall(r"(?:[{,])\s*(\w+)", many) if many.startswith("{") else [many]
        out += [base + (end,) for end in ends]
    return out


def imports(crate: Path) -> dict[str, dict[str, set[str]]]:
    """For each folder of a crate: its modules, each with those beside it that it names."""
    src = crate / "src"
    modules = {module_of(path, src): path for path in src.rglob("*.rs")}
    out: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, path in modules.items():
        if module in (("lib",), ("main",)):
            continue
        for named in named_modules(path.read_text(), module):
            common = 0
            while common < min(len(module), len(named)) and module[common] == named[common]:
                common += 1
            if common < min(len(module), len(named)) and named[: common + 1] in modules:
                out["/".join(named[:common])][module[common]].add(named[common])
    return out


def largest_cycle(graph: dict[str, set[str]]) -> list[str]:
    """The largest set of modules that all reach each other."""
    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        edge = [start]
        while edge:
            for following in graph.get(edge.pop(), ()):
                if following not in seen:
                    seen.add(following)
                    edge.append(following)
        return seen

    reach = {module: reached(module) for module in graph}
    circles = [[b for b in reach if b in reach[a] and a in reach[b]] for a in reach]
    return sorted(max(circles, key=len, default=[]))


def circles_by_folder() -> dict[str, int]:
    """The size of the largest circle of modules in each folder that has one."""
    out: dict[str, int] = {}
    for crate in crates():
        for folder, graph in imports(crate).items():
            name = "/".join(part for part in (str(crate.relative_to(ROOT)), folder) if part)
            out[name] = len(largest_cycle(graph))
    return out


def untested_rules() -> list[str]:
    """Complaints about tests that a page of the architecture names and that do not exist."""
    names: set[str] = set()
    for path in sources():
        names.update(name for name, _, _ in functions(path.read_text().splitlines()))
    for path in (ROOT / "end2end").rglob("*.*js"):
        if "node_modules" not in path.parts:
            names.update(re.findall(r"test\('([^']+)'", path.read_text()))
    out = []
    for page in sorted((ROOT / "docs" / "architecture").glob("*.md")):
        for line in page.read_text().splitlines():
            if match := re.match(r"- .*\((`.*`)\)\s*$", line):
                named = re.findall(r"`(?:[^`]*[:. ])?(\w+)`", match.group(1))
                out += [f"{page.relative_to(ROOT)}: there is no test {name}" for name in named if name not in names]
    return out


def other_suspends() -> list[str]:
    """Complaints about content of a `Suspense` that the portal would make several times, with other data each time. A
    file with a call of `suspended` may have other content beside it, which this check does not find."""
    out = []
    for path in sources():
        name, text = str(path.relative_to(ROOT)), path.read_text()
        if "Suspend::new(" in text and name not in SUSPENDS:
            out.append(f"{name}: makes a `Suspend`; the function `suspended` does that")
        if re.search(r"<Await\b", text):
            out.append(f"{name}: has an `Await`; a `Suspense` with the function `suspended` does that")
        if re.search(r"<(Suspense|Transition)\b", text) and "suspended(" not in text and name not in SUSPENDS:
            out.append(f"{name}: has a `Suspense` or a `Transition` without the function `suspended`")
    return out


def main() -> int:
    circles = circles_by_folder()
    complaints = (
        too_long()
        + beyond(circles, 0, CYCLES, "modules import each other in a circle")
        + beyond(sizes_of_crates(), CRATE_LINES, LONG_CRATES, "lines")
        + beyond(methods(), METHODS, WIDE_TYPES, "methods")
        + untested_rules()
        + other_suspends()
    )
    print("\n".join(complaints) or "structure: every file, function, type, crate and import is within its limit")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
