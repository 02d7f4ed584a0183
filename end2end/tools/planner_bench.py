"""The benchmark of the planner's full read: the program `planner_read` of berth-server, and its result as rows.

It measures SQLite. BENCH_QUEUED (100000) is the number of queued jobs, BENCH_SUBMISSION_BYTES (4096) the size of the
script, the environment and the files of each.
"""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
QUEUED = os.environ.get("BENCH_QUEUED", "100000")
SUBMISSION_BYTES = os.environ.get("BENCH_SUBMISSION_BYTES", "4096")
Row = dict[str, Any]
MakeRow = Callable[..., Row]


def measured() -> dict[str, Any]:
    """The report of the program, without its table."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "berth-server", "--example", "planner_read"]
    subprocess.run(build, cwd=ROOT, check=True)
    # Beside the build, because a temporary directory may be in memory.
    disk = tempfile.mkdtemp(prefix="planner-", dir=ROOT / "target")
    argv = [str(ROOT / "target/release/examples/planner_read"), "--disk", disk,
            "--jobs", QUEUED, "--submission-bytes", SUBMISSION_BYTES]
    # With this variable the program would measure Postgres.
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    try:
        out = subprocess.run(argv, env=env, check=True, text=True, stdout=subprocess.PIPE).stdout
    finally:
        shutil.rmtree(disk, ignore_errors=True)
    report: dict[str, Any] = json.loads(out.splitlines()[0])
    return report


def full_read(row: MakeRow) -> list[Row]:
    """Time and peak of memory with the submissions in the jobs' rows, divided by those with a table of their own."""
    report = measured()
    separate, same_row = report["separate"], report["same_row"]
    queue = f"{report['jobs']:,} queued jobs of {report['submission_bytes']:,} bytes"
    rows = []
    for name, ratio, figure, unit in (("planner-read", "time_ratio", "median_ms", "ms"),
                                      ("planner-read-memory", "memory_ratio", "peak_mb", "MB")):
        ours, theirs = separate[figure], same_row[figure]
        note = f"{queue}: {ours:.0f} {unit}, and {theirs:.0f} {unit} with submissions in the same rows"
        times = round(report[ratio], 2)
        one = row(name, times, "times", 1, least=True, note=note)
        rows.append(one | {"value": times, "peer": round(theirs, 1), "ratio": times})
    return rows


BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {
    "planner-read planner-read-memory": full_read,
}
