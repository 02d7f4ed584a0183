"""The benchmarks of connections that only take up places: slow heads beside starts of jobs, and abandoned sign-ins."""
from __future__ import annotations

import json
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fuzz import demo, end_demo, wait_for_demo
from processes import free_port
from rest import Api, Failed
from sse import events
from worker_bench import ENDED, SLICE, MakeRow, Row

CONNECTIONS, SIGN_INS, JOBS, JOB_LIMIT_S = 1_000, 400, 60, 60
# A sender of its own for each hundred: one network alone has a share of the connections.
PER_SENDER, DRIP_S = 100, 2.0
DRIP = b"X-A: a\r\n"


class Slow(NamedTuple):
    """Milliseconds from submissions to running jobs, and numbers at the end."""

    quiet_p50_ms: float
    quiet_p99_ms: float
    p50_ms: float
    p99_ms: float
    connections: int
    workers: int

    def ratio(self) -> float:
        return self.p50_ms / self.quiet_p50_ms

    def __str__(self) -> str:
        return (f"submit to running: p50 {self.quiet_p50_ms:.0f} ms, p99 {self.quiet_p99_ms:.0f} ms; "
                f"with {self.connections} slow connections p50 {self.p50_ms:.0f} ms, p99 {self.p99_ms:.0f} ms, "
                f"ratio {self.ratio():.2f}; {self.workers} workers")


@contextmanager
def own_demo() -> Iterator[tuple[int, dict[str, Any]]]:
    """The port of a demo, and its accounts."""
    with tempfile.TemporaryDirectory(prefix="berth-load-") as name:
        data, port = Path(name) / "data", free_port()
        service = demo(data, port)
        try:
            wait_for_demo(service, data)
            yield port, json.loads((data / "demo.json").read_text(encoding="utf-8"))
            service.check()
        finally:
            end_demo(service)


class SlowHeads:
    """Connections that send a line of a head now and then. A connection that the portal ends is opened again."""

    def __init__(self, port: int) -> None:
        self.port, self.ended = port, threading.Event()
        self.selector, self.senders = selectors.DefaultSelector(), dict[socket.socket, str]()
        for number in range(CONNECTIONS):
            self.open(f"127.77.{number // PER_SENDER}.1")
        self.thread = threading.Thread(target=self.drip, daemon=True)
        self.thread.start()

    def open(self, sender: str) -> None:
        wire = socket.create_connection(("127.0.0.1", self.port), timeout=10, source_address=(sender, 0))
        wire.sendall(b"GET /api/v1/info HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        self.selector.register(wire, selectors.EVENT_READ)
        self.senders[wire] = sender

    def drop(self, wire: socket.socket) -> str:
        self.selector.unregister(wire)
        wire.close()
        return self.senders.pop(wire)

    def drip(self) -> None:
        while not self.ended.wait(DRIP_S):
            # What can be read is an answer or the end: nothing else makes the portal write.
            over = {key.fileobj for key, _ in self.selector.select(0)}
            for wire in list(self.senders):
                try:
                    if wire in over:
                        raise ConnectionResetError
                    wire.sendall(DRIP)
                except OSError:
                    self.open(self.drop(wire))

    def close(self) -> int:
        """Ends all, and returns the number of connections that were open."""
        self.ended.set()
        self.thread.join()
        still_open = len(self.senders) - len(self.selector.select(0))
        for wire in list(self.senders):
            self.drop(wire)
        return still_open


def starts_ms(port: int, tenant: dict[str, str]) -> list[float]:
    """The times from sending a submission to the news of its start, one job after the other, in order of size."""
    api, took = Api.with_token(port, tenant["token"]), []
    jobs = f"/orgs/{tenant['organization']}/jobs"
    for number in range(JOBS):
        body = {"name": f"load-{number}", "offering": SLICE, "command": ["true"], "max_duration_s": JOB_LIMIT_S}
        began = time.perf_counter()
        job = f"{jobs}/{api('POST', jobs, body)['id']}"
        running = None
        for event in events(port, f"{job}/events?after=0", tenant["token"]):
            change = json.loads(event.data) if event.name == "change" else {}
            state = (change.get("event") or change.get("job") or {}).get("state")
            if running is None and state in ("running", *ENDED):
                running = time.perf_counter()
            if state in ENDED:
                break
        if running is None:
            raise Failed(f"{job} did not run")
        took.append((running - began) * 1000)
    return sorted(took)


def slow() -> Slow:
    """Starts of jobs alone, and beside the slow connections."""
    with own_demo() as (port, facts):
        quiet = starts_ms(port, facts["tenant"])
        heads = SlowHeads(port)
        try:
            under = starts_ms(port, facts["tenant"])
        finally:
            connections = heads.close()
        nodes = Api.with_token(port, facts["operator"]["token"]).items("/operator/nodes")
        workers = sum(node["state"] == "ready" for node in nodes)
    middle, last = JOBS // 2, int(0.99 * JOBS)
    return Slow(quiet[middle], quiet[last], under[middle], under[last], connections, workers)


def flood() -> str:
    return f"sign-in after {SIGN_INS} abandoned ones: {sign_in_ms():.0f} ms"


def sign_in_ms() -> float:
    """The time of a right sign-in right after the abandoned ones, each with a wrong password of another address."""
    with own_demo() as (port, facts):
        tenant = facts["tenant"]
        for number in range(SIGN_INS):
            body = json.dumps({"email": f"nobody-{number}@example.org", "password": "a wrong password of somebody"}).encode()
            head = ("POST /api/v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}")
            sender = (f"127.78.{number // 200}.{number % 200 + 1}", 0)
            with socket.create_connection(("127.0.0.1", port), timeout=10, source_address=sender) as wire:
                wire.sendall(head.encode() + b"\r\n\r\n" + body)
        began = time.perf_counter()
        if Api(port).sign_in(tenant["email"], tenant["password"]) is None:
            raise Failed("the right password was refused")
        return (time.perf_counter() - began) * 1000


def slow_rows(row: MakeRow) -> list[Row]:
    found = slow()
    note = f"without slow connections p50 {found.quiet_p50_ms:.0f} ms, p99 {found.quiet_p99_ms:.0f} ms"
    return [row("slow-connections-p50", found.p50_ms, "ms", 150, note=note),
            row("slow-connections-p99", found.p99_ms, "ms", 400, note=note),
            row("slow-connections-ratio", found.ratio(), "", 2, note="p50 beside p50 without them"),
            row("slow-connections-open", found.connections, "", 0.9 * CONNECTIONS, least=True),
            row("slow-connections-workers", found.workers, "workers", 1, least=True)]


def flood_rows(row: MakeRow) -> list[Row]:
    return [row("abandoned-sign-ins", sign_in_ms(), "ms", 3_000, note=f"one sign-in after {SIGN_INS} abandoned ones")]


BENCHES = {
    " ".join(f"slow-connections-{part}" for part in ("p50", "p99", "ratio", "open", "workers")): slow_rows,
    "abandoned-sign-ins": flood_rows,
}
