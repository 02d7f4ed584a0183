"""The benchmarks of placement: the program `placement` of berth-engine, and its answers as rows.

TRACES names a directory with openb_node_list_gpu_node.csv and openb_pod_list_*.csv (Alibaba's
cluster-trace-gpu-v2023, as published with the Kubernetes Scheduler Simulator). Without it the rows
that need a trace are left empty.
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
# What the best published rule reaches on these traces (Weng et al., ATC 2023), in percent.
PUBLISHED = {"default": 95.23, "gpuspec25": 93.91}
GOALS = {"default": 95.3, "gpuspec25": 94.6}


def answers(*args: str) -> list[dict[str, Any]]:
    """The lines that the program prints."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "berth-engine", "--example", "placement"]
    subprocess.run(build, cwd=ROOT, check=True)
    program = ROOT / "target/release/examples/placement"
    out = subprocess.run([str(program), *args], check=True, text=True, stdout=subprocess.PIPE)
    return [json.loads(line) for line in out.stdout.splitlines()]


def trace(name: str) -> tuple[str, str] | None:
    place = os.environ.get("TRACES")
    if not place:
        return None
    nodes, tasks = Path(place) / "openb_node_list_gpu_node.csv", Path(place) / f"openb_pod_list_{name}.csv"
    return (str(nodes), str(tasks)) if nodes.is_file() and tasks.is_file() else None


def inflation(row: MakeRow) -> list[Row]:
    rows = []
    for name, goal in GOALS.items():
        files = trace(name)
        if not files:
            rows.append(row(f"placement-{name}", None, "% allocated", goal, note="TRACES names no such trace"))
            continue
        said = {a["policy"]: a["mean"] for a in answers("inflate", *files)}
        ours, bound = said.pop("reach"), said.pop("bound")
        others = ", ".join(f"{policy} {mean:.2f}" for policy, mean in said.items())
        note = f"no rule exceeds {bound:.2f}; {others}"
        one = row(f"placement-{name}", ours, "% allocated", goal, least=True, note=note)
        rows.append(one | {"value": round(ours, 2), "peer": PUBLISHED[name], "ratio": round(ours / PUBLISHED[name], 4),
                           "bound": round(bound, 2), "below_bound": round(bound - ours, 2)})
    return rows


def decisions(row: MakeRow) -> list[Row]:
    files = trace("default")
    if not files:
        return [row("placement-rate", None, "/s", 100_000, note="TRACES names no such trace")]
    said = answers("rate", *files)[0]
    return [row("placement-rate", said["per_second"], "/s", 100_000, least=True)]


def mig(row: MakeRow) -> list[Row]:
    rows = []
    for said in answers("mig"):
        rival = max(said["first_fit"], said["completions"])
        note = f"first fit {said['first_fit']}, completions {said['completions']}"
        one = row(f"placement-mig-{said['mix']}", said["reach"], "% accepted", rival, least=True, note=note)
        rows.append(one | {"value": said["reach"], "peer": rival, "ratio": round(said["reach"] / rival, 4)})
    return rows


def replay(row: MakeRow) -> list[Row]:
    said = answers("replay")[0]
    half = round(said["fcfs_mean_wait_s"] / 2, 1)
    kept = f"{said['violated']} of {said['reservations']} reservations violated"
    mean = row("placement-replay-mean", said["mean_wait_s"], "s", half, note=f"first come first served {said['fcfs_mean_wait_s']} s; {kept}")
    return [
        mean | {"peer": said["fcfs_mean_wait_s"], "ratio": said["ratio"]},
        row("placement-replay-p99", said["p99_wait_s"], "s", said["fcfs_p99_wait_s"], note="the goal is first come first served"),
        row("placement-replay-violated", said["violated"], "", 0),
    ]


def passes(row: MakeRow) -> list[Row]:
    said = answers("passes")[0]
    ms = {key: said[key] for key in ("idle_p50_ms", "idle_p99_ms", "one_p50_ms", "one_p99_ms")}
    note = ", ".join(f"{key} {value:.3f}" for key, value in ms.items())
    one = row("placement-pass", said["one_p50_ms"], "ms", 1, note=note)
    return [one | {"value": round(said["one_p50_ms"], 3)}, row("placement-memory", said["resident_mb"], "MB", 500)]


def quotes(row: MakeRow) -> list[Row]:
    said = answers("quotes")[0]
    note = f"{said['bookings']} bookings on {said['boards']} boards; refused with alternatives: {said['refused_p99_ms']:.2f} ms"
    one = row("placement-quote", said["p99_ms"], "ms", 5, note=note)
    return [one | {"value": round(said["p99_ms"], 3)}]


def oracle(row: MakeRow) -> list[Row]:
    """Small worlds before a judge that knows the documented order of the queue (ORACLE_WORLDS of them)."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "berth-engine", "--example", "oracle"]
    subprocess.run(build, cwd=ROOT, check=True)
    program, worlds = ROOT / "target/release/examples/oracle", os.environ.get("ORACLE_WORLDS", "1000000")
    out = subprocess.run([str(program), worlds], check=False, text=True, stdout=subprocess.PIPE).stdout.splitlines()
    for line in out[:-2]:
        print(line)
    tried, enumerated, steps, faults, seconds = (int(n) for n in out[-1].split())
    note = f"{tried} worlds, {enumerated} of them enumerated, {steps} steps, {seconds} s"
    return [row("oracle-faults", faults, "", 0, note=note)]


BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {
    "placement-default placement-gpuspec25": inflation,
    "placement-rate": decisions,
    "placement-mig": mig,
    "placement-replay": replay,
    "placement-pass placement-memory": passes,
    "placement-quote": quotes,
    "oracle": oracle,
}
