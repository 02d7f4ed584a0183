"""The benchmarks of readings: what a kept value takes on the disk, and what reading a host costs."""
from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
MakeRow = Callable[..., Row]


def answer(example: str, *packages: str) -> dict[str, Any]:
    """What an example of the first package prints."""
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", packages[0], "--example", example], cwd=ROOT, check=True)
    for package in packages[1:]:
        subprocess.run(["cargo", "build", "--release", "--quiet", "-p", package], cwd=ROOT, check=True)
    program = ROOT / "target/release/examples" / example
    out = subprocess.run([str(program)], check=True, text=True, stdout=subprocess.PIPE)
    said: dict[str, Any] = json.loads(out.stdout)
    return said


def stored_sample(row: MakeRow) -> list[Row]:
    said = answer("readings", "berth-server")
    one = row("stored-sample", said["bytes_per_value"], "bytes", 2, note=f"{said['values']:,} values of a day of 8 boards")
    # A tenth of a byte is a tenth of the goal.
    return [one | {"value": round(said["bytes_per_value"], 2)}]


def sampling_cost(row: MakeRow) -> list[Row]:
    said = answer("sampling", "berth-worker", "berth-nvml-sim")
    note = f"{said['devices']} devices at 1 Hz, the simulated driver included"
    return [row("sampling-cost", said["percent"], "% of a core", 1, note=note) | {"value": round(said["percent"], 2)}]


BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {
    "stored-sample": stored_sample,
    "sampling-cost": sampling_cost,
}
