#!/usr/bin/env python3
"""Requests to a service while its parts are replaced and killed: a rollout, a change of the number of replicas, and
`kill -9` of a replica, of a gateway and of the portal.

usage: service_chaos.py [--requests 20000] [--per-second 250] [--clients 24]

Prints its steps, then its counts as JSON, and exits with 1 if one of them is not what it must be. Takes DIST
(target/dist) and DATA (an empty directory, which stays) from the environment.

Each request has an id. A client sends a request again, with the number of the try, after a refusal, after a named error,
and at the other gateway after the kill of its own. Every replica logs each try that it begins and each one that it
answers. So these counts are exact:

- lost: tries without any answer from a gateway that nobody killed, and ids that never got their answer;
- doubled: tries that replicas began twice;
- begun: tries that a gateway refused as not begun, but a replica began;
- unaccounted: the requests and tokens by which the accounted use differs from the logs of the replicas. A try that was
  under way at a killed replica or gateway may count or not.
"""
from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import adopt_orphans
from rest import Failed
from service_site import NODE, ServiceSite, obstacle
from worker_bench import ENDED, ROOT, MakeRow, Row, started, wait_for

MODEL, PORT = "echo", 8000
GATEWAYS = ("gateway-1", "gateway-2")
PROMPT_TOKENS, COMPLETION_TOKENS = 7, 3
# The longest time for one request with all of its tries.
PATIENCE_S = 60.0
TIMEOUT_S = 20.0
# A replica: it logs each try before its work and after its answer. The work has a time by chance, so requests overlap
# with every event.
REPLICA = """
import http.server, json, os, random, sys, threading, time

PIECES = ("one", "two", "three")
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def say(self, word, text):
        os.write(1, f"{word} {text}\\n".encode())

    def do_GET(self):
        self.whole({"status": "ready"})

    def whole(self, answer):
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.say("begun", asked["user"])
        time.sleep(random.random() * 0.04)
        head = {"id": "c", "created": 0, "model": asked["model"]}
        if asked.get("stream"):
            self.stream(head, (asked.get("stream_options") or {}).get("include_usage"))
        else:
            message = {"role": "assistant", "content": " ".join(PIECES)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self.whole(head | {"object": "chat.completion", "choices": [choice], "usage": USAGE})
        self.say("answered", asked["user"])

    def stream(self, head, with_usage):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        head = head | {"object": "chat.completion.chunk"}
        for piece in PIECES:
            self.event(head | {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
            time.sleep(0.005)
        self.event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if with_usage:
            self.event(head | {"choices": [], "usage": USAGE})
        self.chunk(b"data: [DONE]\\n\\n")
        self.wfile.write(b"0\\r\\n\\r\\n")

    def event(self, value):
        self.chunk(b"data: " + json.dumps(value).encode() + b"\\n\\n")

    def chunk(self, text):
        self.wfile.write(f"{len(text):x}\\r\\n".encode() + text + b"\\r\\n")


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    # A traceback comes in pieces without ends of lines, and would stand in one line with the logged word of a request.
    def handle_error(self, *_):
        pass


Server(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


@dataclass
class Gateway:
    """A gateway for the clients. `changes` rises before each kill and after each return, so a client knows why a
    connection broke."""

    name: str
    port: int
    changes: int = 0

    def is_up(self) -> bool:
        return self.changes % 2 == 0


@dataclass
class Counts:
    """What all clients saw. Each list has tries."""

    answered: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)


class Link(http.client.HTTPConnection):
    """A connection of a client to a gateway, with the changes of the gateway until then."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__("127.0.0.1", gateway.port, timeout=TIMEOUT_S)
        self.changes = gateway.changes


class Clients:
    """Clients that send all requests at a rate, in threads."""

    def __init__(self, gateways: list[Gateway], key: str, count: int, per_second: float, clients: int) -> None:
        self.gateways, self.key, self.count, self.per_second = gateways, key, count, per_second
        self.counts, self.lock, self.next, self.began = Counts(), threading.Lock(), 0, time.monotonic()
        self.failures: list[str] = []
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def until(self, share: float, check: Callable[[], None]) -> None:
        """Waits until so large a share of the requests has begun."""
        while self.next < share * self.count:
            check()
            if self.failures:
                raise Failed(self.failures[0])
            time.sleep(0.02)

    def end(self) -> Counts:
        for thread in self.threads:
            thread.join()
        if self.failures:
            raise Failed(self.failures[0])
        return self.counts

    def take_number(self) -> int | None:
        with self.lock:
            number = self.next
            self.next += number < self.count
            return number if number < self.count else None

    def run(self, client: int) -> None:
        chance, links = random.Random(client), dict[str, Link]()
        try:
            while (number := self.take_number()) is not None:
                time.sleep(max(0.0, self.began + number / self.per_second - time.monotonic()))
                self.one(number, chance, links)
        except Exception as error:  # A thread has nobody else who would see it.
            self.failures.append(repr(error))
        finally:
            for link in links.values():
                link.close()

    def one(self, number: int, chance: random.Random, links: dict[str, Link]) -> None:
        """One request with all of its tries."""
        which, deadline, tries = chance.randrange(len(self.gateways)), time.monotonic() + PATIENCE_S, 0
        stream = chance.random() < 0.3
        while time.monotonic() < deadline:
            gateway, name = self.gateways[which % len(self.gateways)], f"{number}.{tries}"
            tries += 1
            link = links.get(gateway.name)
            # A connection from before a kill is broken for certain.
            if link is None or link.changes != gateway.changes:
                link = links[gateway.name] = Link(gateway)
            try:
                end, pause_s = self.exchange(link, name, stream)
            except (OSError, http.client.HTTPException):
                links.pop(gateway.name).close()
                was_killed = link.changes != gateway.changes or not gateway.is_up()
                end, pause_s = (self.counts.cut if was_killed else self.counts.lost), 0.05
                which += 1
            end.append(name)
            if end is self.counts.answered:
                return
            time.sleep(pause_s)
        self.counts.given_up.append(str(number))

    def exchange(self, link: Link, name: str, stream: bool) -> tuple[list[str], float]:
        """The list for the end of a try, and the pause before the next one."""
        messages = [{"role": "user", "content": "Say one, two, three."}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, "user": name} | ({"stream": True} if stream else {})
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        link.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = link.getresponse()
        text = answer.read().decode()
        if answer.status == 200:
            whole = "data: [DONE]" in text if stream else "one two three" in text
            # A stream that breaks after its first token ends with a named error.
            return (self.counts.answered if whole else self.counts.broken), 0.05
        if answer.status in (429, 503):
            return self.counts.refused, min(1.0, float(answer.getheader("retry-after") or 1))
        if answer.status in (500, 502, 504):
            return self.counts.broken, 0.05
        raise Failed(f"the gateway on port {link.port} answered {answer.status}: {text[:300]}")


class Chaos:
    """The service, its gateways and the events."""

    def __init__(self, data: Path | None) -> None:
        self.site = ServiceSite("2xH100-80GB", data)
        self.jobs: set[str] = set()
        # Lines of logs that no replica wrote.
        self.strange: list[str] = []
        try:
            self.service = self.site.create(MODEL, self.revision(), scaling=self.scaling(3))
            self.site.price_tokens(self.service, 1_000_000, 2_000_000)
            self.until_ready(3)
            self.key = self.site.key("chaos")
            self.gateways = [Gateway(name, self.site.gateway(name)) for name in GATEWAYS]
            for gateway in self.gateways:
                wait_for(f"{gateway.name} to know the service", lambda: self.lists_model(gateway))
        except BaseException:
            self.site.close()
            raise

    def revision(self) -> dict[str, Any]:
        job = {"files": {"replica.py": REPLICA}}
        return self.site.revision("exec python3 -u replica.py", PORT, job=job, concurrency=32)

    @staticmethod
    def scaling(replicas: int) -> dict[str, Any]:
        return {"min_replicas": replicas, "max_replicas": replicas, "target_requests": 32, "down_delay_s": 0, "idle_s": 600}

    def lists_model(self, gateway: Gateway) -> bool:
        link = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=TIMEOUT_S)
        try:
            link.request("GET", "/v1/models", headers={"Authorization": f"Bearer {self.key}"})
            answer = link.getresponse()
            return answer.status == 200 and MODEL in answer.read().decode()
        finally:
            link.close()

    def until_ready(self, replicas: int) -> Any:
        """The service with so many replicas; keeps the jobs of all replicas that there ever were."""
        seen = self.site.until_ready(self.service, replicas)
        self.jobs |= {one["job"] for one in seen["replicas"]}
        return seen

    def check(self) -> None:
        for process in list(self.site.services):
            process.check()

    def roll_out(self) -> str:
        number = self.site.api("POST", f"{self.service}/revisions", self.revision())["number"]

        def is_live() -> bool:
            seen = self.site.api("GET", self.service)
            self.jobs.update(one["job"] for one in seen["replicas"])
            return any(one["number"] == number and one["state"] == "live" for one in seen["revisions"])

        wait_for(f"revision {number} to be live", is_live)
        self.until_ready(3)
        return f"revision {number} is live with 3 replicas, and the former one has none"

    def scale(self, replicas: int) -> str:
        self.site.api("PATCH", self.service, {"scaling": self.scaling(replicas)})
        self.until_ready(replicas)
        return f"{replicas} replicas"

    def kill_replica(self) -> str:
        seen = self.site.api("GET", self.service)
        job = seen["replicas"][0]["job"]
        attempt = self.site.job(job)["attempt"]
        os.kill(started(self.site.data / NODE / f"attempts/{job}-{attempt}"), signal.SIGKILL)
        wait_for("the end of the killed replica", lambda: self.site.job(job)["state"] in ENDED)
        self.until_ready(len(seen["replicas"]))
        return f"{job} was killed, and another replica is in its place"

    def kill_gateway(self) -> str:
        gateway = self.gateways[0]
        gateway.changes += 1
        self.site.kill(self.site.gateways[gateway.name][1])
        time.sleep(1)
        self.site.gateway(gateway.name)
        gateway.changes += 1
        return f"{gateway.name} was away for more than a second and is back with its data"

    def kill_portal(self) -> str:
        self.site.kill(self.site.portal)
        time.sleep(2)
        self.site.restart_portal()
        self.until_ready(2)
        return "the portal was away for more than two seconds"

    def run(self, count: int, per_second: float, clients: int) -> dict[str, Any]:
        load = Clients(self.gateways, self.key, count, per_second, clients)
        events: list[tuple[float, str, Callable[[], str]]] = [
            (0.05, "rollout", self.roll_out), (0.25, "scale down", lambda: self.scale(2)),
            (0.40, "kill of a replica", self.kill_replica), (0.55, "kill of a gateway", self.kill_gateway),
            (0.70, "kill of the portal", self.kill_portal), (0.85, "scale up", lambda: self.scale(3))]
        try:
            for share, name, event in events:
                load.until(share, self.check)
                began, first = time.monotonic(), load.next
                text = event()
                print(f"{name} ({time.monotonic() - began:.1f} s, {load.next - first} requests meanwhile): {text}", flush=True)
        except BaseException:
            load.count = 0  # The clients end after their present request.
            raise
        finally:
            counts = load.end()
        return self.judged(counts)

    def logged(self) -> tuple[Counter[str], Counter[str]]:
        """The tries that replicas began, and those that they answered, by their logs."""
        self.site.api("PATCH", self.service, {"stopped": True})
        wait_for("the end of all replicas", lambda: not self.site.api("GET", self.service)["replicas"])
        wait_for("the worker to be clean", lambda: not list(self.site.data.glob("*/attempts/job_*")))
        begun, done = Counter[str](), Counter[str]()
        for job in self.jobs:
            for attempt in range(1, self.site.job(job)["attempt"] + 1):
                for line in self.site.log(job, attempt).splitlines():
                    word, _, name = line.partition(" ")
                    if word in ("begun", "answered"):
                        (begun if word == "begun" else done)[name] += 1
                    else:
                        self.strange.append(f"{job} attempt {attempt}: {line[:200]}")
        return begun, done

    def accounted(self, least: int) -> dict[str, int]:
        """The accounted use once the gateways have reported it: not less than the answers, and no more than before."""
        last: dict[str, int] = {}

        def stands() -> bool:
            nonlocal last
            before, last = last, self.site.used(self.service)
            return last == before and last["requests"] + last["errors"] >= least

        try:
            wait_for("the reports of the gateways", stands, poll_s=2, deadline_s=60)
        except Failed:
            pass  # The comparison has the figures.
        return last

    def judged(self, counts: Counts) -> dict[str, Any]:
        begun, done = self.logged()
        answered, tries = len(counts.answered), sum(begun.values())
        used = self.accounted(answered)
        # An answer of a replica with a fault may be in both numbers.
        requests = (used["requests"], used["requests"] + used["errors"])
        short = max(0, answered - requests[1]) + max(0, answered * COMPLETION_TOKENS - used["completion_tokens"])
        over = max(0, requests[0] - tries) + max(0, used["completion_tokens"] - tries * COMPLETION_TOKENS)
        over += max(0, used["prompt_tokens"] - tries * PROMPT_TOKENS)
        unlogged = [name for name in counts.answered if name not in begun]
        for name in unlogged[:10]:
            print(f"not in a log: begun {name}; answered {done[name]} times", flush=True)
        for line in self.strange[:10]:
            print(f"a strange line in a log: {line}", flush=True)
        return {
            "answered": answered, "refused": len(counts.refused), "broken": len(counts.broken), "cut": len(counts.cut),
            "lost": len(counts.lost) + len(counts.given_up), "doubled": sum(times > 1 for times in begun.values()),
            "begun": sum(name in begun for name in counts.refused), "unaccounted": short + over,
            "unlogged": len(unlogged),
            "replicas_began": tries, "replicas_answered": sum(done.values()), "used": used,
        }


WRONG = ("lost", "doubled", "begun", "unaccounted", "unlogged")


def chaos(requests: int, per_second: float, clients: int) -> dict[str, Any]:
    named = os.environ.get("DATA")
    data = Path(named).resolve() if named else None
    if data is not None:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(data.iterdir()):
            raise Failed(f"{data} is not empty; choose other data: DATA=…")
    scene = Chaos(data)
    try:
        return scene.run(requests, per_second, clients)
    finally:
        scene.site.close()


def chaos_rows(row: MakeRow) -> list[Row]:
    if why := obstacle():
        raise Failed(why)
    done = subprocess.run([sys.executable, __file__], text=True, stdout=subprocess.PIPE, cwd=ROOT)
    lines = done.stdout.splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise Failed(f"service_chaos.py ended with {done.returncode}")
    said = json.loads(lines[-1])
    note = (f"{said['answered']} requests over a rollout, two changes of scale, and kills of a replica, a gateway and the "
            f"portal; sent again: {said['refused']} refused, {said['broken']} broken, {said['cut']} cut off")
    return [row(f"service-{name}", said[name], unit, 0, note=note)
            for name, unit in (("lost", "requests"), ("doubled", "requests"), ("unaccounted", "units"))]


BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {"service-lost service-doubled service-unaccounted": chaos_rows}


def main() -> int:
    options = argparse.ArgumentParser(description="Requests to a service while its parts are replaced and killed.")
    options.add_argument("--requests", type=int, default=20_000)
    options.add_argument("--per-second", type=float, default=250)
    options.add_argument("--clients", type=int, default=24)
    chosen = options.parse_args()
    if why := obstacle():
        print(f"left out of services: {why}")
        return 0
    adopt_orphans()
    try:
        counts = chaos(chosen.requests, chosen.per_second, chosen.clients)
    except Failed as error:
        print(f"service_chaos: {error}", file=sys.stderr)
        return 1
    print(json.dumps(counts), flush=True)
    wrong = [name for name in WRONG if counts[name]]
    if wrong or counts["answered"] != chosen.requests:
        print(f"service_chaos: of {chosen.requests} requests {counts['answered']} were answered; not 0: {', '.join(wrong)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
