"""The benchmark of idle inference capacity: the program `troughs` of berth-engine, and its answer as rows.

TROUGHS_TRACE names a trace of requests (the columns of BurstGPT_1.csv), TROUGHS_DAY the number of its day (1). Without
a trace the program generates the day.
"""
from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
MakeRow = Callable[..., Row]


def answer() -> dict[str, Any]:
    """The object that the program prints."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "berth-engine", "--example", "troughs"]
    subprocess.run(build, cwd=ROOT, check=True)
    argv = [str(ROOT / "target/release/examples/troughs")]
    if trace := os.environ.get("TROUGHS_TRACE"):
        argv += [str(Path(trace).resolve()), os.environ.get("TROUGHS_DAY", "1")]
    out = subprocess.run(argv, check=True, text=True, stdout=subprocess.PIPE).stdout
    found: dict[str, Any] = json.loads(out)
    return found


def troughs(row: MakeRow) -> list[Row]:
    said = answer()
    day = (f"a {said['source']} day of {said['requests']} requests, {said['boards']} boards, {said['peak_boards']} of them "
           f"in the busiest minute; {said['idle_percent']} % of their time is idle")
    late = f"{said['late_alone']} without jobs"
    lost = f"{said['preempted']} preemptions; with saves every ten minutes only {said['lost_unsaved_percent']} %"
    rows = [
        row("troughs-used", said["used_percent"], "% of idle", 80, least=True, note=day),
        row("troughs-misses", said["misses"], "", 0, note=f"together {said['missed_s']} s longer"),
        row("troughs-late", said["late"], "", 0, note=late),
        row("troughs-lost", said["lost_percent"], "%", None, note=lost) | {"value": round(said["lost_percent"], 2)},
    ]
    for part in ("p50", "p99"):
        value, peer = said[f"delay_{part}_s"], said[f"alone_{part}_s"]
        rows.append(row(f"troughs-delay-{part}", value, "s", None, note=f"{peer} s without jobs") | {"peer": peer})
    return rows


BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {
    "troughs-used troughs-misses troughs-late troughs-lost troughs-delay-p50 troughs-delay-p99": troughs,
}
