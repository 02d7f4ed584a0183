"""The benchmark of the cluster page with 1,000 boards and 100,000 jobs: a browser on the example `large` of berth-server."""
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


def measured() -> dict[str, float]:
    """The figures of the page."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "berth-server", "--example", "large"]
    subprocess.run(build, cwd=ROOT, check=True)
    argv = ["node", str(ROOT / "end2end/tools/screens_bench.mjs"), str(ROOT / "target/release/examples/large")]
    out = subprocess.run(argv, cwd=ROOT, env=os.environ, check=True, text=True, stdout=subprocess.PIPE).stdout
    figures: dict[str, float] = json.loads(out.splitlines()[-1])
    return figures


def cluster(row: MakeRow) -> list[Row]:
    """Elements, time until the controls work, longest task, lower edge of the map, and bytes of its answer."""
    figures = measured()
    note = f"during the load {figures['load_task_ms']:.0f} ms"
    return [
        row("screens-elements", figures["elements"], "elements", 3_000, note="cluster, 1,000 boards"),
        row("screens-usable", figures["usable_ms"], "ms", 2_000, note="from the request of a cached page"),
        row("screens-task", figures["longest_task_ms"], "ms", 100, note=note),
        row("screens-bottom", figures["map_bottom_px"], "px", 900, note="lower edge of the map at 1,440 px"),
        row("screens-map", figures["map_bytes"] / 1_000, "kB", 150, note="not compressed"),
    ]


BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {
    "screens-elements screens-usable screens-task screens-bottom screens-map": cluster,
}
