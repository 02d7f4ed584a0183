#!/usr/bin/env python3
"""Checks docs/asvs.md and docs/security.md, and counts the requirements of OWASP ASVS 5.0 by level, chapter and state.

- Each requirement of levels 1 and 2 has one row, with its level.
- Each name in backticks of the last column is a test, or a file with the heading or text after its `#`. In
  docs/security.md this holds for the last two columns of the tables of promises.
- A row that is `met` names a test, a document, or a rule of a configuration. Program text alone is no proof.
- The counts in docs/asvs.md are current; `--write` writes them.
"""
from __future__ import annotations

import os
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
STATES = ("met", "met, without a test", "not applicable", "missing")
# The level of each requirement of ASVS 5.0.0, in the order of its section.
LEVELS = dict(
    part.split(":")
    for part in """
    1.1:22 1.2:1111122223 1.3:112222222223 1.4:222 1.5:123 2.1:122 2.2:112 2.3:12223 2.4:23 3.1:3 3.2:113 3.3:12223
    3.4:11222233 3.5:11122333 3.6:3 3.7:22333 4.1:12233 4.2:23333 4.3:22 4.4:1222 5.1:2 5.2:112333 5.3:113 5.4:222
    6.1:122 6.2:111111112222 6.3:11223333 6.4:112233 6.5:22222333 6.6:2223 6.7:33 6.8:2222 7.1:222 7.2:1111 7.3:22
    7.4:11222 7.5:223 7.6:22 8.1:1233 8.2:1123 8.3:133 8.4:23 9.1:111 9.2:1222 10.1:22 10.2:223 10.3:22223
    10.4:1111122222233333 10.5:22222 10.6:22 10.7:222 11.1:2233 11.2:22233 11.3:11233 11.4:1222 11.5:23 11.6:23
    11.7:33 12.1:12233 12.2:11 12.3:22223 13.1:2333 13.2:222223 13.3:2233 13.4:1222233 14.1:22 14.2:12223333 14.3:122
    15.1:12233 15.2:12233 15.3:1222222 15.4:3333 16.1:2 16.2:22222 16.3:2222 16.4:222 16.5:2223 17.1:23 17.2:22223333
    17.3:22
    """.split()
)
COUNTS = re.compile(r"(<!-- counts -->\n).*?(<!-- end of counts -->)", re.S)
RUST_TEST = re.compile(r"#\[(?:\w+::)?test\b[^\n]*\n(?:\s*(?:#\[|//)[^\n]*\n)*\s*(?:pub )?(?:async )?fn (\w+)")


class Row(NamedTuple):
    """A requirement with its state."""

    id: str
    level: str
    text: str
    state: str
    proof: str


def required() -> dict[str, str]:
    """The ids of the requirements of levels 1 and 2, with their levels."""
    numbered = ((f"V{section}.{n}", level) for section, levels in LEVELS.items() for n, level in enumerate(levels, 1))
    return {key: level for key, level in numbered if level in "12"}


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(page: str) -> list[Row]:
    """The rows of requirements in a page."""
    out = []
    for line in page.splitlines():
        if re.match(r"\| V\d+\.", line):
            found = cells(line)
            out.append(Row(*(found + [""] * 5)[:5]))
    return out


def test_names() -> set[str]:
    """The names of all tests in Rust, JavaScript and Python."""
    out: set[str] = set()
    for top in ("app", "server", "worker", "end2end", "examples"):
        for folder, folders, files in os.walk(ROOT / top):
            folders[:] = [name for name in folders if name not in ("target", "node_modules", "__pycache__")]
            for name in files:
                if name.endswith(".rs"):
                    out.update(RUST_TEST.findall(Path(folder, name).read_text()))
                elif name.endswith(".mjs"):
                    out.update(re.findall(r"\btest\('([^']+)'", Path(folder, name).read_text()))
                elif name.startswith("test_") and name.endswith(".py"):
                    out.update(re.findall(r"\bdef (test_\w+)", Path(folder, name).read_text()))
    return out


def heading_id(title: str) -> str:
    """The id of a heading, as in server/web/src/docs.rs."""
    return "".join("-" if c == " " else c for c in title.lower() if c.isalnum() or c in " -_")


@cache
def find_file(token: str) -> str | None:
    """`rule` for a heading of a document or a text of a configuration, `source` for a program text; None without it."""
    name, _, part = token.partition("#")
    path = ROOT / name
    if not path.is_file():
        return None
    text = path.read_text()
    if path.suffix == ".md":
        ids = {heading_id(title) for title in re.findall(r"^#+ (.+)$", text, re.M)}
        return "rule" if part in ids else None
    if part and part not in text:
        return None
    return "rule" if part and path.suffix in (".toml", ".sh", ".sql") else "source"


def kind(token: str, tests: set[str]) -> str | None:
    """`test`, `rule` or `source`; None for a name without its object."""
    return "test" if token in tests else find_file(token)


def named(text: str) -> list[str]:
    """The texts in backticks."""
    return re.findall(r"`([^`]+)`", text)


def row_faults(row: Row, tests: set[str]) -> list[str]:
    """The faults of one row."""
    out = []
    if row.state not in STATES:
        out.append(f"{row.id}: the state {row.state!r} is none of {', '.join(STATES)}")
    if not row.text or not row.proof:
        out.append(f"{row.id}: a cell is empty")
    kinds = {token: kind(token, tests) for token in named(row.proof)}
    out += [f"{row.id}: there is no test and no file {token}" for token, found in kinds.items() if not found]
    if row.state == "met" and not {"test", "rule"} & set(kinds.values()):
        out.append(f"{row.id}: is met, and names no test, document or rule")
    return out


def faults(page: str, tests: set[str]) -> list[str]:
    """The faults of docs/asvs.md, but for its counts."""
    found, wanted = rows(page), required()
    times = Counter(row.id for row in found)
    out = [f"{key}: no row" for key in wanted if key not in times]
    out += [f"{key}: {n} rows" for key, n in times.items() if n > 1]
    out += [f"{key}: no requirement of level 1 or 2" for key in times if key not in wanted]
    out += [f"{row.id}: is of level {wanted[row.id]}" for row in found if wanted.get(row.id, row.level) != row.level]
    return out + [fault for row in found for fault in row_faults(row, tests)]


def promise_faults(page: str, tests: set[str]) -> list[str]:
    """The faults of the tables of promises: each row has an existing file and an existing test."""
    out, inside = [], False
    for line in page.splitlines():
        if not line.startswith("|"):
            inside = False
        elif cells(line) == ["promise", "by", "test"]:
            inside = True
        elif inside and not line.startswith("|---"):
            promise, by, test = (cells(line) + ["", ""])[:3]
            if not named(by) or not named(test):
                out.append(f"{promise}: no file or no test")
            out += [f"{promise}: there is no file {token}" for token in named(by) if not find_file(token)]
            out += [f"{promise}: there is no test {token}" for token in named(test) if token not in tests]
    return out


def counts(page: str) -> str:
    """The tables of the numbers of requirements by level and by chapter, each with the states."""
    chapters = dict(re.findall(r"^## (V\d+) (.+)$", page, re.M))
    found = rows(page)
    by_level = Counter((f"level {row.level}", row.state) for row in found)
    by_chapter = Counter((row.id.split(".")[0], row.state) for row in found)
    lines = []
    for first, numbers, groups in (
        ("level", by_level, {"level 1": "1", "level 2": "2"}),
        ("chapter", by_chapter, {key: f"{key} {title}" for key, title in chapters.items()}),
    ):
        lines += [f"| {first} | {' | '.join(STATES)} | all |", f"|---{'|---:' * (len(STATES) + 1)}|"]
        for group, title in groups.items():
            states = [numbers[group, state] for state in STATES]
            lines.append(f"| {title} | {' | '.join(map(str, states))} | {sum(states)} |")
        lines.append("")
    return "\n".join(lines)


def with_counts(page: str) -> str:
    """The page with its present counts."""
    return COUNTS.sub(lambda match: f"{match[1]}\n{counts(page)}\n{match[2]}", page)


def main() -> int:
    file = ROOT / "docs" / "asvs.md"
    page, tests = file.read_text(), test_names()
    current = with_counts(page)
    if sys.argv[1:] == ["--write"]:
        file.write_text(current)
        page = current
    complaints = [f"docs/asvs.md: {fault}" for fault in faults(page, tests)]
    complaints += [f"docs/security.md: {fault}" for fault in promise_faults((ROOT / "docs" / "security.md").read_text(), tests)]
    if page != current:
        complaints.append("docs/asvs.md: the counts are not current (end2end/tools/asvs.py --write)")
    states = Counter(row.state for row in rows(page))
    print("\n".join(complaints) or "asvs: " + ", ".join(f"{states[state]} {state}" for state in STATES))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
