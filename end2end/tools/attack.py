#!/usr/bin/env python3
"""Attacks a portal of its own and judges each answer.

The requests come from /api/openapi.json: each route, as each caller without the right to it, with a body, a header or an
address that is spoiled in one way. A fault is an answer of the 5xx kind, a status, media type or form that is not
described, a text of the attacked organization, text of the inside of the portal, a success without a right, or a change
that the owner of the organization sees afterwards. The portal has to answer at the end, without a panic in its log, and
with at most 20 MB more memory than before. A fault is printed with a line that repeats the request.
    attack.py [COUNT [SEED]]   sends so many requests (10,000; seed 1); ATTACK_KEEP=1 keeps a portal with faults running
    attack.py slow             starts jobs while 1,000 connections send their heads slowly
    attack.py flood            signs in after 400 abandoned sign-ins
"""
from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import attack_load
from attack_cases import Case, Cases, Route
from attack_victim import NARROW, READERS, STRANGERS, Description, Victim, changed_paths
from attack_wire import Answer, curl, exchange
from fuzz import SCHEMATHESIS, demo, end_demo, wait_for_demo
from processes import Service, free_port
from rest import Api, Failed
from worker_bench import ROOT, MakeRow, Row

REPLAYS = ROOT / "target/attack"
SETTLE_S, POLL_S, MEMORY_MB = 60.0, 0.5, 20.0
# Answers of HTTP itself, which have no id, to a head or a body that is no request.
OF_HTTP = {"giant header": {431}, "many headers": {431}, "cut off": {0}, "media type": {400}}
INSIDE = re.compile(rb"panicked|RUST_BACKTRACE|[a-z_]+\.rs:\d+|/\.cargo/|\bsqlx?\b.{0,20}error|\bSQLSTATE"
                    rb"|no such (?:table|column)|syntax error at|\bSELECT\b.{1,200}\bFROM\b|\bINSERT INTO\b"
                    rb"|UNIQUE constraint", re.IGNORECASE | re.DOTALL)
# The scopes of the routes that a viewer may read. Money is not for viewers.
READ_SCOPES = {"any", "jobs:read", "storage:read", "reservations:read", "services:read", "fleet:read", "members:read",
               "scim"}
# Their other reads are for those who may run jobs or manage the organization.
BEYOND_VIEWERS = re.compile(r"/(submission|secrets|uploads/\{path\}|audit-events|invitations|tokens|webhooks|deliveries"
                            r"|inference-keys|sso-provider|Users|Users/\{user\}|Groups|Groups/\{group\})$")


def may_read(route: Route, kind: str) -> bool:
    """Whether a caller with few rights in the organization may have a success on this route."""
    scopes = {"any", NARROW} if kind == "narrow token" else READ_SCOPES
    own = route.method == "GET" and "/operator/" not in route.path and not BEYOND_VIEWERS.search(route.path)
    return own and route.operation["x-scope"] in scopes


class Found(NamedTuple):
    """The requests of a run, its faults, and the memory of the portal before and after."""

    cases: int
    faults: int
    before_mb: float
    after_mb: float

    def memory(self) -> str:
        return f"memory {self.before_mb:.1f} MB before, {self.after_mb:.1f} MB after"


class Judge:
    """Compares answers with the description and with the rights of their callers."""

    def __init__(self, description: Description, victim: Victim, inside: list[str]) -> None:
        self.description, self.victim = description, victim
        self.inside = [text.encode() for text in inside]
        self.private = [text.encode() for text in victim.private]
        self.hidden = [text.encode() for text in victim.hidden]
        self.validators: dict[str, Any] = {}

    def faults(self, case: Case, answer: Answer) -> list[str]:
        """A text for each fault."""
        found = [*self.leaks(case, answer)]
        if answer.status >= 500:
            found.append(f"server error {answer.status}")
        else:
            found += self.against_description(case, answer)
        if fault := self.unearned(case, answer.status):
            found.append(fault)
        return found

    def against_description(self, case: Case, answer: Answer) -> list[str]:
        described = case.route.operation["responses"].get(str(answer.status))
        if "x-request-id" not in answer.headers and answer.status in OF_HTTP.get(case.spoiler, ()):
            return []
        if described is None:
            return [f"status {answer.status} is not described" if answer.status else "no answer"]
        if "$ref" in described:
            described = self.description["components"]["responses"][described["$ref"].rpartition("/")[2]]
        content = described.get("content", {})
        media = answer.headers.get("content-type", "").partition(";")[0]
        if not content:
            return ["a body that is not described"] if answer.body else []
        if media not in content:
            return [f"media type {media or 'absent'} is not described"]
        if not media.endswith("json") or not answer.complete:
            return []
        try:
            value = json.loads(answer.body)
        except ValueError:
            return ["no JSON"]
        key = json.dumps(content[media].get("schema", {}), sort_keys=True)
        if key not in self.validators:
            self.validators[key] = validator(self.description, json.loads(key))
        error = self.validators[key](value)
        return [f"form: {error}"] if error else []

    def unearned(self, case: Case, status: int) -> str | None:
        """A success that the caller has no right to."""
        route, kind = case.route, case.caller.kind
        if not 200 <= status < 400 or route.is_public():
            return None
        if kind == "cross-site":
            return None if route.method == "GET" else "a request of another site has an effect"
        if kind == "foreign":
            named = [name for name in re.findall(r"\{(\w+)\}", route.path) if name != "org"]
            # A list, a new object, or an object with a name of its own choice in its own organization. Boards are
            # common to all.
            own = not case.aim or (case.aim == "foreign" and set(named) <= {"name", "gpu"})
            return None if own and "/operator/" not in route.path else "success of a stranger"
        if kind in READERS and not may_read(route, kind):
            return f"success of a {kind} without the right"
        return "success of a stranger" if kind in STRANGERS else None

    def leaks(self, case: Case, answer: Answer) -> list[str]:
        text = answer.body + repr(answer.headers).encode()
        sent = case.request.target.encode() + (case.request.body or b"")
        markers = self.hidden + (self.private if case.caller.kind in STRANGERS else [])
        # The stranger sent these names, which may be those of own objects now.
        own = {name.encode() for name in self.victim.ids.values()} if case.aim == "foreign" else set()
        leaked = [marker.decode() for marker in markers if marker in text and marker not in sent and marker not in own]
        found = [f"the answer has a planted text: {leaked[0]}"] if leaked else []
        if match := INSIDE.search(text):
            found.append(f"the answer has text of the inside: {match[0][:80]!r}")
        return found + [f"the answer has the path {path.decode()}" for path in self.inside if path in text]


def validator(description: Description, schema: Any) -> Any:
    """A function that returns the first error of a value, or None."""
    if not SCHEMATHESIS.exists():
        return lambda _value: None
    if str(SCHEMATHESIS) not in sys.path:
        sys.path.append(str(SCHEMATHESIS))
    import jsonschema_rs

    compiled = jsonschema_rs.Draft202012Validator({"components": description["components"], "allOf": [schema]})

    def first_error(value: Any) -> str | None:
        error = next(compiled.iter_errors(value), None)
        return None if error is None else f"{error.message[:200]} at {list(error.instance_path)}"

    return first_error


def portal_pid(service: Service) -> int:
    """The portal of a demo."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
            command = (stat.parent / "cmdline").read_text().split("\0")
            if parent == str(service.process.pid) and command[0].endswith("/berth-portal"):
                return int(stat.parent.name)
        except OSError:
            pass  # It has ended meanwhile.
    raise Failed("the demo has no portal")


def rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024 / 1e6


def settled_mb(pid: int, most_mb: float) -> float:
    """The memory as soon as it is at most this, or at the end of the time for it."""
    deadline = time.monotonic() + SETTLE_S
    while (now_mb := rss_mb(pid)) > most_mb and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return now_mb


class Attack:
    """One run against one demo."""

    def __init__(self, port: int, data: Path, service: Service, seed: int) -> None:
        self.port, self.data, self.service = port, data, service
        self.chance = random.Random(seed)
        self.faults: dict[str, int] = {}
        self.description: Description = Api(port).exchange("GET", "/api/openapi.json")[1]

    def fault(self, key: str, text: str) -> None:
        """Counts a fault, and prints the first of its kind."""
        self.faults[key] = self.faults.get(key, 0) + 1
        if self.faults[key] == 1:
            print(f"fault: {text}", flush=True)

    def send(self, cases: Cases, judge: Judge, count: int) -> None:
        for number in range(count):
            case = cases.next()
            try:
                answer = exchange(self.port, case.request)
            except TimeoutError:
                answer = Answer(0, {}, b"", False)
            for fault in judge.faults(case, answer):
                key = f"{fault} {case.route.method} {case.route.path} {case.caller.kind}"
                self.fault(key, f"{fault}: {case.route.method} {case.route.path} as {case.caller.kind}, {case.spoiler}\n"
                                f"  {answer.status} {answer.body[:300]!r}\n"
                                f"  {curl(self.port, case.request, REPLAYS, number)}")
            if number % 500 == 0:
                self.service.check()

    def run(self, count: int) -> Found:
        facts = json.loads((self.data / "demo.json").read_text(encoding="utf-8"))
        victim = Victim(self.port, facts, self.chance)
        before = victim.snapshot(self.description)
        # A search for texts that nobody ever sees would find nothing and prove nothing.
        seen = json.dumps(before)
        if (absent := [text for text in victim.private if text not in seen]) and len(absent) > len(victim.private) // 3:
            raise Failed(f"the owner does not see {len(absent)} of {len(victim.private)} planted texts")
        pid = portal_pid(self.service)
        judge = Judge(self.description, victim, [str(self.data), str(ROOT)])
        before_mb = rss_mb(pid)
        self.send(Cases(self.description, victim, self.chance), judge, count)
        for line in changed_paths(before, victim.snapshot(self.description)):
            self.fault(line, f"changed by the attack: {line}")
        after_mb = settled_mb(pid, before_mb + MEMORY_MB)
        if after_mb > before_mb + MEMORY_MB:
            self.fault("memory", f"the portal has {before_mb:.1f} MB before and {after_mb:.1f} MB {SETTLE_S:.0f} s after")
        if Api(self.port).exchange("GET", "/readyz")[0] != 200:
            self.fault("ready", "the portal is not ready after the attack")
        log = (self.data / "portal.log").read_text(encoding="utf-8", errors="replace")
        for line in [line for line in log.splitlines() if "panicked" in line]:
            self.fault(line, f"panic: {line}")
        return Found(count, sum(self.faults.values()), before_mb, after_mb)


def attack(count: int, seed: int) -> Found:
    with tempfile.TemporaryDirectory(prefix="berth-attack-") as name:
        data, port = Path(name) / "data", free_port()
        service = demo(data, port)
        try:
            wait_for_demo(service, data)
            found = Attack(port, data, service, seed).run(count)
            if found.faults and os.environ.get("ATTACK_KEEP"):
                print(f"the portal stays on port {port} until Ctrl-C", flush=True)
                service.process.wait()
            service.check()
        except KeyboardInterrupt:
            raise Failed("stopped by Ctrl-C") from None
        finally:
            end_demo(service)
    return found


def bench(row: MakeRow) -> list[Row]:
    """Spoiled requests of callers without rights."""
    found = attack(10_000, int(os.environ.get("BENCH_SEED") or 1))
    return [row("attack", found.faults, "", 0, note=f"{found.cases} requests; {found.memory()}")]


BENCHES = {"attack": bench} | attack_load.BENCHES


def main() -> int:
    if sys.argv[1:2] in (["slow"], ["flood"]):
        print(attack_load.slow() if sys.argv[1] == "slow" else attack_load.flood())
        return 0
    if not SCHEMATHESIS.exists():
        print("left out of attack: the form of answers, because Schemathesis is not installed")
    count, seed = (int(text) for text in (*sys.argv[1:3], *("10000", "1")[len(sys.argv) - 1:]))
    began = time.monotonic()
    found = attack(count, seed)
    print(f"{found.cases} attacks in {time.monotonic() - began:.0f} s, {found.faults} faults, {found.memory()}")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
