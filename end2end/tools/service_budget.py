#!/usr/bin/env python3
"""1,000 racing requests on a budget for ten, through three gateways: once with a portal, once without.

The budget is a key's. Every answer uses all of its tokens, so the budget is for exactly ten answers. Before the kill of
the portal each gateway answers once, and so has its part of the budget. Without the portal the gateways spend their
parts and no more; after its return the rest is spent.

Prints its steps, then its counts as JSON, and exits with 1 after a failed step. Takes DIST (target/dist) from the
environment.
"""
from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from processes import adopt_orphans
from rest import Failed
from service_site import ServiceSite, obstacle, step
from worker_bench import ROOT, MakeRow, Row, wait_for

MODEL, PORT, GATEWAYS = "echo", 8000, 3
ANSWERS, TOKENS, RACING, CLIENTS, TIMEOUT_S = 10, 10, 1_000, 60, 60.0
# Micro-units of the currency: one for each token of an answer.
BUDGET = ANSWERS * TOKENS
REPLICA = f"""
import http.server, json, os


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer({{}})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        os.write(1, b"begun\\n")
        self.answer({{"choices": [], "usage": {{"prompt_tokens": 0, "completion_tokens": {TOKENS}, "total_tokens": {TOKENS}}}}})

    def answer(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


Server(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


class Scene:
    """The service with its three gateways."""

    def __init__(self) -> None:
        self.site = ServiceSite("1xH100-80GB")
        self.counts: dict[str, Any] = {}
        self.spent = 0
        try:
            scaling = {"min_replicas": 1, "max_replicas": 1, "target_requests": 32}
            revision = self.site.revision("exec python3 -u replica.py", PORT, job={"files": {"replica.py": REPLICA}}, concurrency=32)
            self.service = self.site.create(MODEL, revision, scaling=scaling)
            self.site.price_tokens(self.service, 0, 1_000_000)
            self.site.until_ready(self.service, 1)
            self.ports = [self.site.gateway(f"gateway-{number}") for number in range(1, GATEWAYS + 1)]
        except BaseException:
            self.site.close()
            raise

    def ask(self, port: int, key: str) -> tuple[int, str]:
        """The status of one request, and the code of its refusal."""
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            body = {"model": MODEL, "messages": [], "max_tokens": TOKENS}
            link.request("POST", "/v1/chat/completions", json.dumps(body),
                         {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
            answer = link.getresponse()
            said = json.loads(answer.read())
            return answer.status, "" if answer.status == 200 else str(said["error"]["code"])
        finally:
            link.close()

    def key(self, name: str) -> str:
        """A key with the budget that every gateway knows."""
        key = self.site.key(name, total_budget_micros=BUDGET)

        def is_known(port: int) -> bool:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
            try:
                link.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
                answer = link.getresponse()
                return MODEL in answer.read().decode() and answer.status == 200
            finally:
                link.close()

        for port in self.ports:
            wait_for(f"the gateway on port {port} to know the key", lambda port=port: is_known(port))
        return key

    def race(self, key: str, count: int) -> Counter[str]:
        """The statuses of requests that clients send to all gateways at once."""
        seen, failures, lock, numbers = Counter[str](), list[str](), threading.Lock(), iter(range(count))
        together = threading.Barrier(CLIENTS)

        def client() -> None:
            together.wait()
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    status, code = self.ask(self.ports[number % GATEWAYS], key)
                except (OSError, ValueError, http.client.HTTPException) as error:
                    failures.append(repr(error))
                    return
                with lock:
                    seen[f"{status} {code}".strip()] += 1

        clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        if failures:
            raise Failed(failures[0])
        return seen

    def expect(self, seen: Counter[str], answers: int, refusals: set[str]) -> None:
        strange = set(seen) - {"200"} - refusals
        if seen["200"] != answers or strange:
            raise Failed(f"{seen['200']} answers and not {answers}: {dict(seen)}")

    def expect_charge(self, answers: int) -> None:
        """The charges of the portal are those of all answers, once the gateways have reported them."""
        last: dict[str, int] = {}

        def stands() -> bool:
            nonlocal last
            last = self.site.used(self.service)
            return last["requests"] == answers and last["completion_tokens"] == answers * TOKENS

        try:
            wait_for("the reports of the gateways", stands, poll_s=0.5, deadline_s=60)
        except Failed as error:
            raise Failed(f"{error}; {answers} answers, and accounted are {last}") from error

    def with_portal(self) -> str:
        seen = self.race(self.key("near"), RACING)
        self.counts["with_portal"] = dict(seen)
        # A gateway that asks the portal at the same time as another one may hear later that nothing is left.
        self.expect(seen, ANSWERS, {"403 budget.exceeded", "503 budget.unknown"})
        self.expect_charge(ANSWERS)
        return f"{RACING} requests, {dict(seen)}"

    def without_portal(self) -> str:
        key = self.key("far")
        first = [self.ask(port, key) for port in self.ports]
        if any(status != 200 for status, _ in first):
            raise Failed(f"a first request was refused: {first}")
        self.site.kill(self.site.portal)
        alone = self.race(key, RACING)
        if strange := set(alone) - {"200", "403 budget.exceeded", "503 budget.unknown"}:
            raise Failed(f"refusals without the portal: {sorted(strange)}")
        self.site.restart_portal()
        wait_for("the rest of the budget", lambda: self.is_spent(key, len(first) + alone["200"]))
        self.counts["answers"] = self.spent
        self.counts["without_portal"] = {"before": len(first)} | dict(alone)
        self.expect_charge(2 * ANSWERS)
        # A gateway that has not reached the portal yet does not know that the budget is spent.
        exceeded = [(403, "budget.exceeded")] * GATEWAYS
        wait_for("each gateway to know that the budget is spent", lambda: [self.ask(port, key) for port in self.ports] == exceeded)
        after = self.race(key, CLIENTS)
        self.expect(after, 0, {"403 budget.exceeded"})
        return f"{len(first)} answers before, {dict(alone)} without the portal, {ANSWERS} in all after its return"

    def is_spent(self, key: str, answers: int) -> bool:
        """Spends the rest of a budget by single requests through all gateways. True once it is spent exactly."""
        self.spent = max(self.spent, answers)
        for port in self.ports:
            status, _ = self.ask(port, key)
            self.spent += status == 200
        if self.spent > ANSWERS:
            raise Failed(f"{self.spent} answers on a budget for {ANSWERS}")
        return self.spent == ANSWERS

    def run(self) -> bool:
        steps: list[tuple[str, Callable[[], str]]] = [
            ("a budget for ten with the portal", self.with_portal), ("a budget for ten without the portal", self.without_portal)]
        return all([step(name, check) for name, check in steps])


def budget_rows(row: MakeRow) -> list[Row]:
    if why := obstacle():
        raise Failed(why)
    done = subprocess.run([sys.executable, __file__], text=True, stdout=subprocess.PIPE, cwd=ROOT)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines or not lines[-1].startswith("{"):
        raise Failed(f"service_budget.py ended with {done.returncode}: {done.stdout[-500:]}")
    said = json.loads(lines[-1])
    note = f"answers to {RACING} racing requests on a budget for {ANSWERS}, {GATEWAYS} gateways, {said['without_portal']} without the portal"
    return [row("service-budget", said["answers"], "answers", ANSWERS, note=note)]


BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {"service-budget": budget_rows}


def main() -> int:
    if why := obstacle():
        print(f"left out of services: {why}")
        return 0
    adopt_orphans()
    try:
        scene = Scene()
    except Failed as error:
        print(f"service_budget: {error}", file=sys.stderr)
        return 1
    try:
        well = scene.run()
    finally:
        scene.site.close()
    print(json.dumps(scene.counts), flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
