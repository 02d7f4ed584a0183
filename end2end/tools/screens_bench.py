"""The benchmark of the pages with boards and jobs at 1,000 boards and 100,000 jobs: a browser on the example `large` of
berth-server, on two cores."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("home", "jobs", "reservations", "cluster", "overview", "nodes", "all-jobs")
Row = dict[str, Any]
MakeRow = Callable[..., Row]
Figures = dict[str, dict[str, float]]


def two_cores() -> list[str]:
    """The begin of a command that runs on two of the cores, where the machine has more."""
    taskset = shutil.which("taskset")
    cores = sorted(os.sched_getaffinity(0))
    return [taskset, "-c", ",".join(map(str, cores[:2]))] if taskset and len(cores) > 2 else []


def measured() -> Figures:
    """The figures of each page."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "berth-server", "--example", "large"]
    subprocess.run(build, cwd=ROOT, check=True)
    argv = ["node", str(ROOT / "end2end/tools/screens_bench.mjs"), str(ROOT / "target/release/examples/large")]
    done = subprocess.run(two_cores() + argv, cwd=ROOT, env=os.environ, check=True, text=True, stdout=subprocess.PIPE)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def page_rows(row: MakeRow, name: str, one: dict[str, float]) -> list[Row]:
    """The rows of one page; the first page of a person adds nothing to itself."""
    note = f"in 20 s of changes; during the load {one['load_task_ms']:.0f} ms"
    rows = [
        row(f"screens-{name}-usable", one["usable_ms"], "ms", 2_000, note="from the request of a cached page"),
        row(f"screens-{name}-elements", one["elements"], "elements", 3_000),
        row(f"screens-{name}-task", one["task_ms"], "ms", 100, note=note),
        row(f"screens-{name}-memory", one["memory_bytes"] / 1e6, "MB", 100, note="scripts, elements and buffers"),
        row(f"screens-{name}-first", one["first_bytes"] / 1_000, "kB", 200, note="first visit, with its data"),
    ]
    if "added_bytes" in one:
        added = one["added_bytes"] / 1_000
        rows.append(row(f"screens-{name}-added", added, "kB", 60, note="after the first page, with its data"))
    return rows


def pages(row: MakeRow) -> list[Row]:
    """All pages, and the map of boards."""
    figures = measured()
    rows = [one for name in PAGES for one in page_rows(row, name, figures[name])]
    cluster = figures["cluster"]
    return rows + [
        row("screens-map-task", cluster["use_task_ms"], "ms", 100, note="colour, filter, walk, panel"),
        row("screens-map-bottom", cluster["bottom_px"], "px", 900, note="lower edge at 1,440 px"),
        row("screens-map-bytes", cluster["map_bytes"] / 1_000, "kB", 150, note="not compressed"),
    ]


BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {
    " ".join(f"screens-{name}" for name in (*PAGES, "map")): pages,
}
