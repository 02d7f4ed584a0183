#!/usr/bin/env python3
"""The benchmarks: a table, and target/bench.json. ONLY=name[,name] runs some.

Everything is measured on a demo of its own, with the load on the same machine. The calibration of the
machine stands above the table, for the goals that are a time or a rate.
"""
from __future__ import annotations

import asyncio
import base64
import calendar
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attack
import books_bench
import calibration
import fuzz
import gateway_bench
import metrics_bench
import network_bench
import oracle_live
import pace_bench
import placement_bench
import planner_bench
import screens_bench
import service_budget
import service_chaos
import worker_bench
import terminal_bench
import troughs_bench
from processes import free_port
from rest import Api, Failed, find_json, put_json
from sse import Splitter, events, request

ROOT = Path(__file__).resolve().parents[2]
TOOLS, DIST = ROOT / "end2end/tools", Path(os.environ.get("DIST") or ROOT / "target/dist").resolve()
SLICE = "h100-80gb.1g.10gb"
Row = dict[str, Any]


def row(name: str, value: float | None, unit: str, goal: float | None, *, least: bool = False, note: str = "") -> Row:
    """`least`: the goal is a least, not a most."""
    met = None if value is None or goal is None else value >= goal if least else value <= goal
    value = None if value is None else round(value, 1)
    return {"name": name, "value": value, "unit": unit, "goal": goal, "met": met} | ({"note": note} if note else {})


class Stack:
    """A demo on data of its own."""

    def __init__(self, fleet: str = "") -> None:
        self.data, self.port = Path(tempfile.mkdtemp(prefix="berth-bench-")), free_port()
        env = os.environ | {"DATA": str(self.data), "PORT": str(self.port), "WORKER_PORT": str(free_port()), "FLEET": fleet,
                            "INFERENCE_PORT": str(free_port()), "GATEWAY_PORT": str(free_port()),
                            "BERTH_CALLER_REQUESTS_PER_S": "0"}
        argv = [sys.executable, str(TOOLS / "demo.py")]
        self.demo = subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE)
        assert self.demo.stdout
        for line in self.demo.stdout:
            if line.startswith("Ctrl-C stops"):
                break
        else:
            self.stop()
            raise Failed("the demo did not start")
        tenant = find_json(self.data / "demo.json")["tenant"]
        self.token, self.org = tenant["token"], f"/orgs/{tenant['organization']}"
        self.api = Api.with_token(self.port, self.token)

    def pid(self, program: str) -> int:
        listing = (stat.parent for stat in Path("/proc").glob("[0-9]*/stat"))
        for folder in listing:
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if parent == str(self.demo.pid) and program in (folder / "cmdline").read_text().replace("\0", " "):
                    return int(folder.name)
            except OSError:
                pass  # It has ended meanwhile.
        raise Failed(f"no process of the demo runs {program}")

    def rss_mb(self, program: str) -> float:
        time.sleep(5)  # Idle means that nothing is left of the start.
        status = Path(f"/proc/{self.pid(program)}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024 / 1e6

    def submit(self, name: str, script: str, limit_s: int = 600) -> str:
        """The path of a new job."""
        job = {"name": name, "offering": SLICE, "command": ["sh", "-c", script], "max_duration_s": limit_s}
        return f"{self.org}/jobs/{self.api('POST', f'{self.org}/jobs', job)['id']}"

    def until(self, job: str, *states: str) -> float:
        """When the job's stream told of one of the states."""
        for event in events(self.port, f"{job}/events?after=0", self.token):
            if event.name == "change":
                change = json.loads(event.data)
                if ((change.get("event") or change["job"])["state"]) in states:
                    return time.perf_counter()
        raise Failed(f"{job} ended its stream without being {states}")

    def stop(self) -> None:
        self.demo.terminate()
        self.demo.wait()
        shutil.rmtree(self.data, ignore_errors=True)


_stack: list[Stack] = []


def stack() -> Stack:
    """One for all rows, started when the first needs it."""
    if not _stack:
        _stack.append(Stack())
    return _stack[0]


ENDED = ("succeeded", "failed", "cancelled", "timed_out")


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def page_sizes() -> list[Row]:
    """The load of a browser before the first page is live, and the further load of each page after Home. The charts
    and the terminal come later."""
    pkg = DIST / "web/pkg"
    loader = (pkg / "__wasm_split.js").read_text()
    parts: dict[str, set[str]] = {}
    for part, listed in re.findall(r"__wasm_split_load_(\w+) = .*?\[([^\[\]]*)\]\)\);", loader, re.DOTALL):
        shared = {f"{name.strip().removeprefix('__')}.wasm" for name in listed.split(",") if name.strip()}
        parts[part] = shared | {f"split_{part}.wasm"}
        if absent := sorted(name for name in parts[part] if not (pkg / name).exists()):
            raise Failed(f"the part {part} has no file {', '.join(absent)}")
    if not {"start", "home"} <= parts.keys():
        raise Failed("the loader does not name the parts of the start page and of Home")

    def kilobytes(names: set[str]) -> float:
        return sum((pkg / f"{name}.br").stat().st_size for name in names) / 1000

    always = {"berth_app_bg.wasm", "berth_app.js", "__wasm_split.js", "berth.css"}
    added = {part: kilobytes(files - parts["home"]) for part, files in parts.items() if part not in ("start", "entry", "home")}
    worst = max(added, key=lambda part: added[part])
    each = ", ".join(f"{part} {added[part]:.0f}" for part in sorted(added, key=lambda part: -added[part]))
    return [row("first-page", kilobytes(always | parts["start"]), "kB brotli", 200, note="the page of a visitor at /"),
            row("home-page", kilobytes(always | parts["home"]), "kB brotli", 200, note=f"{len(parts['home'])} files of parts"),
            row("further-page", added[worst], "kB brotli", 60, note=f"{worst}; after Home: {each}")]


def idle_memory() -> list[Row]:
    portal, worker = stack().rss_mb("/berth-portal serve"), stack().rss_mb("/berth-worker run")
    return [row("portal-rss", portal, "MB", 80), row("worker-rss", worker, "MB", 40)]


def busy_memory() -> list[Row]:
    """The worker with 50 jobs at once, on boards of their own demo."""
    busy = Stack("8xH100-80GB")
    try:
        jobs = [busy.submit(f"bench-many-{number}", "exec sleep 300") for number in range(50)]
        for job in jobs:
            busy.until(job, "running", *ENDED)
        states = {busy.api("GET", job)["state"] for job in jobs}
        if states != {"running"}:
            raise Failed(f"not all of 50 jobs run: {', '.join(sorted(states))}")
        return [row("worker-rss-50-jobs", busy.rss_mb("/berth-worker run"), "MB", 60)]
    finally:
        busy.stop()


def submit_to_running() -> list[Row]:
    """From sending a submission to hearing that it runs, one job after the other."""
    took = []
    for number in range(200):
        began = time.perf_counter()
        job = stack().submit(f"bench-{number}", "true", 60)
        took.append((stack().until(job, "running", *ENDED) - began) * 1000)
        stack().until(job, *ENDED)
    return [row("submit-to-running-p50", percentile(took, 0.5), "ms", 150),
            row("submit-to-running-p99", percentile(took, 0.99), "ms", 400)]


def metering_drift() -> list[Row]:
    """What jobs of many lengths are billed for, beside how long their processes lived by the shim's record."""
    jobs = [stack().submit(f"bench-meter-{n}", f"sleep {0.2 + n * 0.37:.2f}", 60) for n in range(24)]
    late, over = [], []
    for path in jobs:
        stack().until(path, *ENDED)
        job = stack().api("GET", path)
        lived = max(evidence["process_ms"] for evidence in job["evidence"])
        late.append(lived - job["metered_ms"])
        over.append(job["metered_ms"] - lived)
    return [row("metering-drift", max(late), "ms", 1_000, note=f"the worst of {len(jobs)} jobs"),
            row("metering-over", max(0, *over), "ms", 0, note="billed beyond the process's life")]


def log_throughput() -> list[Row]:
    """A job's 500 MB through worker and portal to one reader, complete to the byte."""
    script = "head -c 500M /dev/zero | tr '\\0' 'x' | fold -w 100"
    wanted = hashlib.sha256()
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as local:
        assert local.stdout
        while block := local.stdout.read(1 << 20):
            wanted.update(block)
    job = stack().submit("bench-log", script)
    got, position, began = hashlib.sha256(), 0, 0.0
    for event in events(stack().port, f"{job}/logs?rank=0&from=0", stack().token, 120):
        if event.name == "end":
            break
        if event.name == "log":
            began = began or time.perf_counter()
            chunk = json.loads(event.data)
            if chunk["from"] != position:
                raise Failed(f"the log jumps from byte {position} to {chunk['from']}")
            text = chunk.get("text")
            raw = base64.b64decode(chunk["base64"]) if text is None else text.encode()
            got.update(raw)
            position += len(raw)
    if got.digest() != wanted.digest():
        raise Failed(f"the log's {position} bytes are not what the job printed")
    return [row("log-throughput", position / 1e6 / (time.perf_counter() - began), "MB/s", 50, least=True)]


def micros(text: str) -> int:
    """Microseconds since the epoch of an RFC 3339 time in UTC, of any number of decimals."""
    whole, _, part = text.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) * 1_000_000 + int(f"{part:0<6}"[:6])


async def watch(path: str, since: asyncio.Future[int], late_ms: list[float]) -> None:
    """One viewer of a job's charts. Samples from before everyone was connected do not count."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack().port)
    writer.write(request(path, stack().token))
    await reader.readuntil(b"\r\n\r\n")
    splitter = Splitter()
    while size := int(await reader.readline(), 16):
        piece = await reader.readexactly(size + 2)
        now = time.time_ns() // 1000
        for event in splitter.feed(piece[:-2]):
            if event.name == "sample" and since.done():
                at = [micros(sample["at"]) for sample in json.loads(event.data)]
                late_ms.extend((now - t) / 1000 for t in at if t >= since.result())


def sample_to_event() -> list[Row]:
    """From the worker's reading of a device to each of 200 viewers."""
    job = stack().submit("bench-charts", "sleep 300")
    stack().until(job, "running")
    late_ms: list[float] = []

    async def all_viewers() -> None:
        since: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        viewers = [asyncio.create_task(watch(f"{job}/metrics", since, late_ms)) for _ in range(200)]
        await asyncio.sleep(3)
        since.set_result(time.time_ns() // 1000)
        await asyncio.wait(viewers, timeout=20, return_when=asyncio.FIRST_EXCEPTION)
        for viewer in viewers:
            viewer.cancel()
        for failure in await asyncio.gather(*viewers, return_exceptions=True):
            if isinstance(failure, Exception):
                raise failure

    asyncio.run(all_viewers())
    stack().api("POST", f"{job}/cancel")
    if len(late_ms) < 200 * 10:
        raise Failed(f"only {len(late_ms)} samples came to 200 viewers in 20 s")
    return [row("sample-to-event-p99", percentile(late_ms, 0.99), "ms", 100)]


def durable_submissions() -> list[Row]:
    """Submissions that are on disk when they are answered, from 32 clients at once, beside what the
    same disk does with one transaction a commit. Python would be what is measured, so the load is a
    program of its own."""
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "berth-server", "--example", "load"], check=True, cwd=ROOT)
    # What is submitted stays in the queue: it is the portal that is measured, not the worker.
    operator = Api.with_token(stack().port, find_json(stack().data / "demo.json")["operator"]["token"])
    for node in operator.items("/operator/nodes"):
        operator("PATCH", f"/operator/nodes/{node['id']}", {"cordoned": True})
    argv = [str(ROOT / "target/release/examples/load"), "--portal", f"http://127.0.0.1:{stack().port}",
            "--token", stack().token, "--org", stack().org.rpartition("/")[2], "--disk", str(stack().data)]
    answer = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    one = row("durable-submissions", answer["per_second"], "jobs/s", 2_000, least=True)
    one |= {"peer": answer["solo_per_second"], "ratio": round(answer["per_second"] / answer["solo_per_second"], 2)}
    return [one]


def terminal_echo() -> list[Row]:
    """A key through a terminal to a program in a job's sandbox and back."""
    job = stack().submit("bench-terminal", "exec sleep 300", 300)
    stack().until(job, "running", *ENDED)
    opened = stack().api("POST", f"{job}/terminals", {})
    took = terminal_bench.echoes(stack().port, stack().token, f"{job}/terminals", opened, 500)
    stack().api("POST", f"{job}/cancel")
    return [row("terminal-echo-p99", percentile(took, 0.99), "ms", 30)]


# The names that a function's rows begin with, and the function. Memory first: idle is idle only once.
BENCHES: dict[str, Callable[[], list[Row]]] = {
    "first-page home-page further-page": page_sizes,
    "portal-rss worker-rss": idle_memory,
    "worker-rss-50-jobs": busy_memory,
    "submit-to-running": submit_to_running,
    "metering-drift metering-over": metering_drift,
    "log-throughput": log_throughput,
    "sample-to-event": sample_to_event,
    "terminal-echo": terminal_echo,
    "durable-submissions": durable_submissions,
} | {names: partial(bench, row) for names, bench in (placement_bench.BENCHES | books_bench.BENCHES | worker_bench.BENCHES
    | metrics_bench.BENCHES | planner_bench.BENCHES | screens_bench.BENCHES | pace_bench.BENCHES | oracle_live.BENCHES
    | fuzz.BENCHES | attack.BENCHES | network_bench.BENCHES | gateway_bench.BENCHES | service_budget.BENCHES | service_chaos.BENCHES
    | troughs_bench.BENCHES).items()}


def show(machine: dict[str, float], rows: list[Row]) -> None:
    print(f"\nthis machine, for goals of time and rate: {calibration.described(machine)}")
    print(f"{'':30} {'value':>10} {'goal':>8}  {'unit':10} met")
    for r in rows:
        value, goal = ("-" if r[key] is None else f"{r[key]:g}" for key in ("value", "goal"))
        met = {True: "yes", False: "no", None: ""}[r["met"]]
        print(f"{r['name']:30} {value:>10} {goal:>8}  {r['unit']:10} {met}  {r.get('note', '')}".rstrip())


def main() -> int:
    only = [name for name in re.split(r"[,\s]+", os.environ.get("ONLY", "")) if name]
    known = " ".join(BENCHES).split()

    def is_meant(name: str) -> bool:
        # Who names a row means no other whose name begins or ends like that.
        return any(o == name if o in known else o.startswith(name) or name.startswith(o) for o in only)

    chosen = {
        names: bench for names, bench in BENCHES.items() if not only or any(is_meant(n) for n in names.split())}
    if not chosen:
        print(f"bench: ONLY names no row; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    machine = calibration.calibration()
    rows: list[Row] = []
    failed = False
    try:
        for names, bench in chosen.items():
            print(f">> {names}", file=sys.stderr, flush=True)
            try:
                rows += bench()
            except Exception as error:  # One row that cannot be measured takes no other with it.
                failed = True
                note = f"failed: {error}" if isinstance(error, Failed) else f"failed: {error!r}"
                rows += [row(name, None, "", None, note=note) for name in names.split()]
    finally:
        for running in _stack:
            running.stop()
    (ROOT / "target").mkdir(exist_ok=True)
    put_json(ROOT / "target/bench.json", {"machine": machine, "rows": rows})
    show(machine, rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
