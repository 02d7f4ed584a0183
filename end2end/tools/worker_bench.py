#!/usr/bin/env python3
"""The benchmarks of workers that die and are cut off: on a portal and workers of their own.

Run as `worker_bench.py adoption|partitions` it prints what it found as JSON; beside the other benchmarks
it is run so by each row, because what it starts has to end with it. BENCH_KILLS (100) and BENCH_PARTITIONS
(40) say how often; BENCH_SEED chooses among histories.
"""
from __future__ import annotations

import json
import os
import random
import re
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import POLL_S, Service, adopt_orphans, free_port, stop_orphans
from rest import Api, Failed, find_json

ROOT = Path(__file__).resolve().parents[2]
DIST = Path(os.environ.get("DIST") or ROOT / "target/dist").resolve()
SLICE, ENDED, DEADLINE_S = "h100-80gb.1g.10gb", ("succeeded", "failed", "cancelled", "timed_out"), 90.0
Row = dict[str, Any]
MakeRow = Callable[..., Row]


def boottime_ms() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


def wait_for(what: str, found: Callable[[], Any], poll_s: float = POLL_S, deadline_s: float = DEADLINE_S) -> Any:
    deadline = time.monotonic() + deadline_s
    while not (value := found()):
        if time.monotonic() > deadline:
            raise Failed(f"after {deadline_s:.0f} s still waiting for {what}")
        time.sleep(poll_s)
    return value


def started(attempt: Path) -> int:
    """The process that the shim of this directory started."""
    lines = [json.loads(line) for line in (attempt / "shim.lock").read_text().splitlines() if line]
    return next(line["start"]["pid"] for line in lines if "start" in line)


class Site:
    """A portal with one tenant, and any number of workers. `seen_from`: the address by which others reach it. `data`: an
    empty directory that stays; otherwise a new one that is removed."""

    def __init__(self, *settings: str, seen_from: str = "127.0.0.1", data: Path | None = None) -> None:
        self.data, self.keeps_data = data or Path(tempfile.mkdtemp(prefix="berth-worker-bench-")), data is not None
        self.port, self.worker_port, self.services = free_port(), free_port(), []
        self.offering = SLICE
        self.portal = self.start_portal(*settings, seen_from=seen_from)
        line = re.compile(r"until the next start: (\S+)")
        token = wait_for("the setup token", lambda: line.search(self.portal.output())).group(1)
        self.password = secrets.token_urlsafe(18)
        person = {"email": "operator@example.org", "password": self.password, "name": "Operator"}
        Api(self.port)("POST", "/setup", {"token": token} | person)
        self.operator = self.signed_in("operator@example.org", self.password)
        self.api, self.org_id = self.tenant("ada@example.org", "Lab")
        self.org = f"/orgs/{self.org_id}"

    def start_portal(self, *settings: str, seen_from: str) -> Service:
        return self.service(
            "portal", str(DIST / "berth-portal"), "serve", "--data", str(self.data), "--listen", f"127.0.0.1:{self.port}",
            "--worker-listen", f"127.0.0.1:{self.worker_port}", "--public-url", f"http://{seen_from}:{self.port}",
            "--worker-url", f"https://{seen_from}:{self.worker_port}", *settings)

    def tenant(self, email: str, organization: str) -> tuple[Api, str]:
        """Who acts for a new organization, which has credit, and its id."""
        person = {"email": email, "password": self.password, "name": "Tenant", "organization": organization}
        Api(self.port)("POST", "/sign-up", person)
        tenant = self.signed_in(email, self.password)
        org = str(tenant("GET", "/me")["memberships"][0]["org"]["id"])
        self.operator("POST", f"/operator/orgs/{org}/credits", {"amount_micros": 10**12, "memo": "For the bench"})
        secret = tenant("POST", f"/orgs/{org}/tokens", {"name": "bench", "role": "owner"})["secret"]
        return Api.with_token(self.port, secret), org

    def signed_in(self, email: str, password: str) -> Api:
        api = Api(self.port).sign_in(email, password)
        if api is None:
            raise Failed(f"{email} cannot sign in")
        return api

    def service(self, name: str, *argv: str) -> Service:
        service = Service(name, self.data / f"{name}.log", *argv)
        self.services.append(service)
        return service

    def argv(self, name: str, portal_port: int | None = None) -> list[str]:
        """The command of a worker with the boards of this host."""
        ticket = self.operator("POST", "/operator/join-tokens", {"approve": True, "adopt_labels": True})["secret"]
        return [str(DIST / "berth-worker"), "run", "--portal", f"https://127.0.0.1:{portal_port or self.worker_port}",
                "--data", str(self.data / name), "--name", name, "--join-token", ticket]

    def worker_argv(self, name: str, fleet: str, portal_port: int | None = None) -> list[str]:
        """The command of a worker with simulated boards."""
        return [*self.argv(name, portal_port), "--simulate", fleet, "--allow-unisolated", "--job-network", "host"]

    def ready(self, count: int) -> None:
        def all_ready() -> bool:
            nodes = self.operator.items("/operator/nodes")
            return sum(node["state"] == "ready" and bool(node["gpus"]) for node in nodes) == count

        wait_for("the workers", all_ready)

    def price(self) -> None:
        self.operator("POST", "/operator/prices", {"offering": self.offering, "per_hour_micros": 3_600_000})

    def submit(self, script: str, **more: Any) -> str:
        job = {"name": "bench", "offering": self.offering, "command": ["sh", "-c", script], "max_duration_s": 86_400} | more
        return str(self.api("POST", f"{self.org}/jobs", job)["id"])

    def job(self, job: str) -> Any:
        return self.api("GET", f"{self.org}/jobs/{job}")

    def end(self, jobs: list[str]) -> list[Any]:
        """Cancels what still goes on; the jobs when all have ended and no worker keeps anything of them."""
        for job in jobs:
            if self.job(job)["state"] not in ENDED:
                self.api("POST", f"{self.org}/jobs/{job}/cancel")
        wait_for("the jobs' end", lambda: all(self.job(job)["state"] in ENDED for job in jobs))
        wait_for("the workers to be clean", lambda: not list(self.data.glob("*/attempts/job_*")))
        return [self.job(job) for job in jobs]

    def charged(self) -> dict[str, int]:
        """What was posted for the use of each job."""
        sums: dict[str, int] = {}
        cursor = ""
        while True:
            page = self.api("GET", f"{self.org}/transfers?limit=200{cursor}")
            for transfer in page["items"]:
                if transfer["kind"] == "usage":
                    sums[transfer["source_id"]] = sums.get(transfer["source_id"], 0) - transfer["amount_micros"]
            if not page.get("next_cursor"):
                return sums
            cursor = f"&cursor={page['next_cursor']}"

    def log(self, job: str, attempt: int, rank: int = 0) -> str:
        file = self.data / "logs" / job / f"{attempt}-{rank}.log"
        return file.read_text() if file.exists() else ""

    def close(self) -> None:
        # Workers first, while the portal still takes their last word.
        while self.services:
            self.services.pop().stop()
            stop_orphans(self.services)
        if not self.keeps_data:
            shutil.rmtree(self.data, ignore_errors=True)


def adoption() -> dict[str, Any]:
    """A worker with 20 jobs, killed without warning and started again, over and over."""
    kills, chance = int(os.environ.get("BENCH_KILLS") or 100), random.Random(os.environ.get("BENCH_SEED") or 1)
    site = Site()
    try:
        argv = site.worker_argv("quay", "3xH100-80GB")
        worker = site.service("quay", *argv)
        site.ready(1)
        site.price()
        # A shell tells on its standard error of a child that a signal ended; that is none of the bytes counted.
        count = "exec 2> /dev/null; trap 'echo end; exit 0' TERM; i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"
        jobs = [site.submit(count) for _ in range(20)]
        wait_for("20 running jobs", lambda: all(site.job(job)["state"] == "running" for job in jobs))
        attempts = site.data / "quay/attempts"
        pids = {job: started(attempts / f"{job}-1") for job in jobs}
        took = []
        for _ in range(kills):
            time.sleep(chance.random() * 0.3)
            worker.process.kill()
            worker.process.wait()
            site.services.remove(worker)
            began = boottime_ms()
            worker = site.service("quay", *argv)

            # A daemon takes up what runs before it says anything, so the first answer comes after that.
            def answered() -> bool:
                worker.check()
                renewal = find_json(site.data / "quay/lease.json")
                return bool(renewal and renewal["sent_ms"] > began)

            wait_for("the daemon", answered, 0.002)
            took.append(boottime_ms() - began)
        running = [job for job in jobs if site.job(job)["state"] == "running"]
        restarted = sum(
            job not in running or site.job(job)["attempt"] != 1
            or started(attempts / f"{job}-1") != pids[job] for job in jobs)
        site.end(jobs)
        lost = 0
        for job in jobs:
            lines = site.log(job, 1).splitlines()
            numbers = [line for line in lines if line.isdigit()]
            whole = [str(number) for number in range(int(numbers[-1]) + 1)] + ["end"]
            if lines != whole:
                lost += max(1, abs(sum(map(len, whole)) - sum(map(len, lines))))
        return {"kills": kills, "took_ms": took, "restarted": restarted, "bytes_lost": lost}
    finally:
        site.close()


class Way:
    """A way from a worker to the portal that can be cut: at once, or so that nobody is told."""

    def __init__(self, portal_port: int, listener: socket.socket | None = None) -> None:
        self.listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.portal_port, self.pairs, self.state = portal_port, list[tuple[socket.socket, socket.socket]](), "open"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            pairs = list(self.pairs)
            # What nobody reads stays where it is: that is what a silent network looks like from both ends.
            ends = [end for pair in pairs for end in pair] if self.state == "open" else []
            readable, _, _ = select.select([self.listener, *ends], [], [], 0.02)
            if self.listener in readable:
                near, _ = self.listener.accept()
                if self.state == "closed":
                    near.close()
                else:
                    try:
                        self.pairs.append((near, socket.create_connection(("127.0.0.1", self.portal_port))))
                    except OSError:
                        near.close()
            for pair in pairs:
                if self.state == "closed" or any(end in readable and not self.passed(end, pair) for end in pair):
                    for end in pair:
                        end.close()
                    self.pairs.remove(pair)

    @staticmethod
    def passed(end: socket.socket, pair: tuple[socket.socket, socket.socket]) -> bool:
        try:
            block = end.recv(1 << 16)
            pair[end is pair[0]].sendall(block)
            return bool(block)
        except OSError:
            return False


def cut_off(way: Way, times: int, chance: random.Random) -> None:
    for _ in range(times):
        way.state = chance.choice(("closed", "silent"))
        # From what nobody notices to what loses the node; the lease is 3 s.
        time.sleep(chance.choice((chance.uniform(0.1, 3), chance.uniform(3, 8), chance.uniform(8, 16))))
        way.state = "open"
        time.sleep(chance.uniform(0.5, 6))


def partitions() -> dict[str, Any]:
    """Four workers under short leases, cut off at random while their jobs run."""
    times, seed = int(os.environ.get("BENCH_PARTITIONS") or 40), int(os.environ.get("BENCH_SEED") or 1)
    site = Site("--lease-s", "3")
    try:
        ways = [Way(site.worker_port) for _ in range(4)]
        for number, way in enumerate(ways):
            site.service(f"quay-{number}", *site.worker_argv(f"quay-{number}", "1xH100-80GB", way.port))
        site.ready(len(ways))
        site.price()
        # Says when it runs, by a clock that all hosts of this machine share, and heeds no SIGTERM.
        script = "trap '' TERM; while read up rest < /proc/uptime; do echo $up; sleep 0.1; done"
        retry = {"max": 100, "on": ["node_lost"]}
        jobs = [site.submit(script, retry=retry) for _ in range(12)]
        cutters = [
            threading.Thread(target=cut_off, args=(way, len(range(number, times, len(ways))), random.Random(seed * 8 + number)))
            for number, way in enumerate(ways)]
        for cutter in cutters:
            cutter.start()
        while any(cutter.is_alive() for cutter in cutters):
            for service in site.services:
                service.check()
            # What has used up its tries is followed by another.
            going = sum(site.job(job)["state"] not in ENDED for job in jobs)
            jobs += [site.submit(script, retry=retry) for _ in range(12 - going)]
            time.sleep(0.5)
        site.ready(len(ways))
        done = site.end(jobs)
        charged = site.charged()
        overlaps = doubles = attempts = 0
        for job in done:
            spans = []
            for attempt in range(1, job["attempt"] + 1):
                stamps = [float(line) for line in site.log(job["id"], attempt).split()]
                if stamps:
                    spans.append((stamps[0], stamps[-1]))
            attempts += len(spans)
            overlaps += sum(former[1] >= later[0] for former, later in zip(spans, spans[1:]))
            worth = job["nano_per_second"] * job["metered_ms"] // 1_000_000
            # A process lives a little longer than it speaks.
            lived_ms = sum((last - first) * 1000 for first, last in spans) + 1_500 * job["attempt"]
            doubles += charged.get(job["id"], 0) != worth or job["metered_ms"] > lived_ms
        return {"partitions": times, "jobs": len(done), "attempts": attempts, "overlaps": overlaps, "doubles": doubles}
    finally:
        site.close()


def found(what: str) -> dict[str, Any]:
    argv = [sys.executable, __file__, what]
    out = subprocess.run(argv, check=True, text=True, stdout=subprocess.PIPE).stdout
    return dict(json.loads(out.splitlines()[-1]))


def adoption_rows(row: MakeRow) -> list[Row]:
    said = found("adoption")
    note = f"{said['kills']} kills under 20 jobs"
    took = sorted(said["took_ms"])
    p99 = took[min(len(took) - 1, int(0.99 * len(took)))]
    return [row("adoption-p99", p99, "ms", 1_000, note=note),
            row("adoption-restarted", said["restarted"], "jobs", 0, note=note),
            row("adoption-lost", said["bytes_lost"], "bytes", 0, note=note)]


def partition_rows(row: MakeRow) -> list[Row]:
    said = found("partitions")
    note = f"{said['partitions']} partitions, {said['attempts']} attempts of {said['jobs']} jobs"
    return [row("partition-overlaps", said["overlaps"], "attempts", 0, note=note),
            row("partition-doubles", said["doubles"], "jobs", 0, note=note)]


BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {
    "adoption-p99 adoption-restarted adoption-lost": adoption_rows,
    "partition-overlaps partition-doubles": partition_rows,
}


def main() -> int:
    whats = {"adoption": adoption, "partitions": partitions}
    if len(sys.argv) != 2 or sys.argv[1] not in whats:
        print(f"worker_bench: say one of {', '.join(whats)}", file=sys.stderr)
        return 2
    adopt_orphans()
    print(json.dumps(whats[sys.argv[1]]()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
