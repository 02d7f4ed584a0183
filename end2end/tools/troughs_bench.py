"""The benchmark of idle inference capacity: the program `troughs` of berth-engine, and its answer as rows.

TROUGHS_TRACE names a trace of requests (the columns of BurstGPT_1.csv or of lora_request_trace.csv of GenTD26),
TROUGHS_DAY the number of its day (1). Without a trace the program generates the day. TROUGHS_RESERVE is the reserve
for bursts in boards (0); the program reads it.
"""
from __future__ import annotations

import csv
import datetime
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
MakeRow = Callable[..., Row]
# The time of a replica for each token of an answer (TOKEN_MS of the program).
TOKEN_S = 0.03


def with_tokens(trace: Path, folder: str) -> Path:
    """The trace with the columns of the program. The other kind has the times of its requests and of their answers."""
    with trace.open(newline="") as source:
        rows = csv.DictReader(source)
        if "gmt_create" not in (rows.fieldnames or ()):
            return trace
        answered = [row for row in rows if row["predict_status"] == "SUCCEED" and row["exec_time_seconds"]]
    times = [datetime.datetime.fromisoformat(row["gmt_create"]) for row in answered]
    first_day = datetime.datetime.combine(min(times).date(), datetime.time())
    converted = Path(folder) / "trace.csv"
    with converted.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["Timestamp", "Request tokens", "Response tokens"])
        for time, row in zip(times, answered):
            writer.writerow([(time - first_day).total_seconds(), 0, float(row["exec_time_seconds"]) / TOKEN_S])
    return converted


def answer() -> dict[str, Any]:
    """The object that the program prints."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "berth-engine", "--example", "troughs"]
    subprocess.run(build, cwd=ROOT, check=True)
    argv = [str(ROOT / "target/release/examples/troughs")]
    with tempfile.TemporaryDirectory() as folder:
        if trace := os.environ.get("TROUGHS_TRACE"):
            argv += [str(with_tokens(Path(trace).resolve(), folder)), os.environ.get("TROUGHS_DAY", "1")]
        out = subprocess.run(argv, check=True, text=True, stdout=subprocess.PIPE).stdout
    found: dict[str, Any] = json.loads(out)
    return found


def troughs(row: MakeRow) -> list[Row]:
    said = answer()
    day = (f"a {said['source']} day of {said['requests']} requests, {said['boards']} boards, {said['peak_boards']} of them "
           f"in the busiest minute; {said['idle_percent']} % of their time is idle; reserve for bursts: {said['reserve']}")
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
