#!/usr/bin/env python3
"""Small worlds on running portals: each step is asked for by REST, and compared with what follows from it in process.

`oracle_script` of berth-engine writes the scripts: what is done, and what is true after each step in the world whose
decisions the judge of the queue has confirmed. Each world has a portal of its own (`clocked`, whose clock stands and
is moved by the script) and a real worker for each host, on simulated boards. Jobs are real processes, which end when
the script says so.

Run as `oracle_live.py play` it prints each difference and a table; its status is 1 when there is a difference. A
world is left at its first step with one, because what follows is another world. BERTH_CLOCKED, BERTH_ORACLE_SCRIPT
and BERTH_WORKER name other programs than those in target/release and target/dist.
"""
from __future__ import annotations

import argparse
import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pace_bench import seconds, without_sandbox
from processes import Service, adopt_orphans
from rest import Api, Failed
from worker_bench import DIST, ENDED, ROOT, MakeRow, Row, Site, wait_for

EXAMPLES = ROOT / "target/release/examples"
CLOCKED = Path(os.environ.get("BERTH_CLOCKED") or EXAMPLES / "clocked")
SCRIPT = Path(os.environ.get("BERTH_ORACLE_SCRIPT") or EXAMPLES / "oracle_script")
WORKER = Path(os.environ.get("BERTH_WORKER") or DIST / "berth-worker")
# A job of these worlds: it heeds no SIGTERM, and ends with the code that is written to the pipe of its rank.
UNTIL_TOLD = 'trap "" TERM; read -r code < "$1-$NODE_RANK" && exit "$code"'
# How soon a worker has carried out what was decided, and how often that is looked for.
SOON_S, LOOK_S = 20.0, 0.02
# A lane that is told to stop ends what it has started first.
LANE_STOP_S = 60.0
STATES = {"waits": "queued", "runs": "running", "stopping": "stopping"}
Step = dict[str, Any]


class Clocked(Service):
    """A portal whose clock stands until a line moves it."""

    def __init__(self, log: Path, *argv: str) -> None:
        super().__init__("portal", log, *argv, stdin=subprocess.PIPE)

    def ask(self, line: str, answer: str) -> None:
        """Says a line and waits for the answer that begins so."""
        begins = self.log.stat().st_size
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

        def answered() -> bool:
            self.check()
            with self.log.open("rb") as log:
                log.seek(begins)
                said = log.read().decode(errors="replace").splitlines()
            failed = next((text for text in said if text.startswith("failed: ")), None)
            if failed:
                raise Failed(f"{line}: {failed}")
            return any(text == answer or text.startswith(f"{answer} ") for text in said)

        wait_for(f"the portal's answer to {line}", answered, 0.002)


class Job(NamedTuple):
    id: str
    api: Api
    path: str
    # One for each rank: its number follows.
    pipe: str
    nodes: int

    def end(self, code: int) -> None:
        for rank in range(self.nodes):
            pipe = f"{self.pipe}-{rank}"
            wait_for(f"rank {rank} of {self.id} to listen", lambda pipe=pipe: write(pipe, f"{code}\n"), 0.005)


def write(pipe: str, text: str) -> bool:
    """Whether somebody listened to it."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    return True


class World(Site):
    """A world of a script as it really is. Times are seconds since its portal's start."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.script, self.now = script, 0
        self.jobs: list[Job] = []
        self.bookings: dict[int, str] = {}
        try:
            super().__init__()
            stands = re.search(r"^stands at (\S+)$", self.portal.output(), re.MULTILINE)
            if stands is None:
                raise Failed("the portal does not say when its clock stands")
            self.began = round(seconds(stands[1]))
            # Sessions of people end while the clock moves; tokens do not.
            secret = self.operator("POST", "/operator/tokens", {"name": "live"})["secret"]
            self.operator = Api.with_token(self.port, secret)
            self.orgs = {0: (self.api, self.org)}
            for org in sorted({step.get("org", 0) for step in script["steps"]} - {0}):
                api, name = self.tenant(f"lab-{org}@example.org", f"Lab {org}")
                self.orgs[org] = (api, f"/orgs/{name}")
            self.start_workers()
            self.set_prices()
        except BaseException:
            self.close()
            raise

    def start_portal(self, *settings: str, seen_from: str) -> Service:
        argv = ["--still", "--data", str(self.data), "--listen", f"{seen_from}:{self.port}",
                "--worker-listen", f"{seen_from}:{self.worker_port}", *settings]
        self.clocked = Clocked(self.data / "portal.log", str(CLOCKED), *argv)
        self.services.append(self.clocked)
        return self.clocked

    def start_workers(self) -> None:
        for number, host in enumerate(self.script["hosts"]):
            name = f"host-{number}"
            argv = [*self.worker_argv(name, f"{host['boards']}x{host['model']}"), "--label", f"rack={host['rack']}",
                    "--stop-grace-s", "1", "--no-images"]
            argv[0] = str(WORKER)
            # Without a sandbox jobs see their pipes.
            worker = self.service(name, *without_sandbox(argv))

            def joined(worker: Service = worker) -> bool:
                worker.check()
                return "is node_" in worker.output()

            # One after the other: the order of equal hosts is that of the script.
            wait_for(f"{name} to join", joined, LOOK_S)
        self.ready(len(self.script["hosts"]))
        self.nodes = {node["name"]: node["id"] for node in self.operator.items("/operator/nodes")}

    def set_prices(self) -> None:
        models = {host["model"].lower() for host in self.script["hosts"]}

        def offered() -> set[str]:
            return {offering["slug"] for offering in self.operator.items("/offerings")}

        wait_for("the offerings", lambda: models <= offered(), LOOK_S)
        steps = self.script["steps"]
        asked = {(step.get("body") or step.get("quote") or {}).get("offering") for step in steps}
        for offering in sorted(offered() & asked):
            self.operator("POST", "/operator/prices", {"offering": offering, "per_hour_micros": 3_600_000})

    def stamp(self, at: int) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began + at))

    # What a script does, by name. The answer: what is odd about it.

    def do_submit(self, step: Step) -> str | None:
        api, org = self.orgs[step["org"]]
        pipe = str(self.data / f"job-{step['job']}")
        for rank in range(step["body"]["nodes"]):
            os.mkfifo(f"{pipe}-{rank}", 0o600)
        body = step["body"] | {"name": f"job {step['job']}", "command": ["sh", "-c", UNTIL_TOLD, "sh", pipe]}
        if step["after"] is not None:
            body["depends_on"] = [{"job": self.jobs[step["after"]].id}]
        if step["inside"] is not None:
            body["reservation"] = self.bookings[step["inside"]]
        made = api("POST", f"{org}/jobs", body)["id"]
        self.jobs.append(Job(made, api, f"{org}/jobs/{made}", pipe, step["body"]["nodes"]))
        return None

    def do_book(self, step: Step) -> str | None:
        api, org = self.orgs[step["org"]]
        ask = step["quote"] | {"starts_at": self.stamp(step["from"]), "ends_at": self.stamp(step["until"])}
        status, quote, _ = api.exchange("POST", f"/api/v1{org}/quotes", ask)
        # What no cloud could give is refused, and not quoted.
        feasible = status == 201 and quote["feasible"]
        if feasible == step["refused"]:
            return f"booking {step['booking']}: expected {'no' if step['refused'] else 'a'} place, got {quote}"
        if feasible:
            name = f"booking {step['booking']}"
            made = api("POST", f"{org}/reservations", {"quote": quote["id"], "name": name})
            self.bookings[step["booking"]] = made["items"][0]["id"]
        return None

    def do_unbook(self, step: Step) -> str | None:
        self.do_end(step)
        api, org = self.orgs[step["org"]]
        api("POST", f"{org}/reservations/{self.bookings[step['booking']]}/cancel")
        return None

    def do_end(self, step: Step) -> str | None:
        ended = [(self.jobs[each["job"]], each["succeeded"]) for each in step["ended"]]
        for job, succeeded in ended:
            job.end(0 if succeeded else 1)
        for job, _ in ended:
            # Its worker forgets an attempt when the portal has heard of its end and of its clean devices.
            wait_for(f"the end of {job.id}", lambda job=job: not list(self.data.glob(f"*/attempts/{job.id}-*")), LOOK_S)
        return None

    def do_move(self, step: Step) -> str | None:
        self.do_end(step)
        if step["now"] > self.now:
            self.clocked.ask(f"forward {step['now'] - self.now}", f"moved {step['now']}")
        self.now = step["now"]
        return None

    def do_cancel(self, step: Step) -> str | None:
        job = self.jobs[step["job"]]
        job.api("POST", f"{job.path}/cancel")
        return None

    def do_extend(self, step: Step) -> str | None:
        job = self.jobs[step["job"]]
        job.api("POST", f"{job.path}/extend", {"max_duration_s": step["max_duration_s"]})
        return None

    def do_open(self, step: Step) -> str | None:
        node = self.nodes[f"host-{step['host']}"]
        self.operator("PATCH", f"/operator/nodes/{node}", {"cordoned": not step["open"]})
        return None

    def do_quota(self, step: Step) -> str | None:
        _, org = self.orgs[step["org"]]
        self.operator("PUT", f"/operator{org}/quota", step["limits"])
        return None

    def do_budget(self, step: Step) -> str | None:
        for rack, watts in step["racks"].items():
            path = f"/operator/racks/{rack}"
            if watts is None:
                self.operator("DELETE", path)
            else:
                self.operator("PUT", path, {"budget_watts": watts})
        return None

    def step(self, step: Step) -> list[str]:
        """Does it, lets the scheduler decide, and says what is otherwise than in process."""
        # The scheduler sees all of a step at once.
        self.clocked.ask("hold", "held")
        deed: Callable[[Step], str | None] = getattr(self, f"do_{step['do']}")
        odd = deed(step)
        if odd:
            return [odd]
        self.clocked.ask("settle", "settled")
        deadline = time.monotonic() + SOON_S
        while (found := self.differences(step)) and time.monotonic() < deadline:
            for service in self.services:
                service.check()
            time.sleep(LOOK_S)
        return found

    def differences(self, step: Step) -> list[str]:
        lists = [api("GET", f"{org}/jobs?limit=200")["items"] for api, org in self.orgs.values()]
        there = {job["id"]: job for jobs in lists for job in jobs}
        found = []
        for number, (job, expected) in enumerate(zip(self.jobs, step["jobs"], strict=True)):
            difference = self.difference(job, there[job.id], expected)
            if difference:
                found.append(f"job {number}: {difference}")
        return found

    def difference(self, job: Job, got: dict[str, Any], expected: dict[str, Any]) -> str | None:
        state = got["state"]
        if expected["is"] == "over":
            same = state in ENDED and (state == "succeeded") == expected["succeeded"]
            return None if same else f"expected {expected}, got {state}"
        if state != STATES[expected["is"]]:
            return f"expected {expected}, got {state} ({' '.join(got['reasons'])})"
        if expected["is"] == "runs":
            there = Counter(device["node_name"] for device in got["devices"])
            wanted = Counter({f"host-{rank['host']}": len(rank["boards"]) for rank in expected["ranks"]})
            return None if there == wanted else f"expected {dict(wanted)}, got {dict(there)}"
        return self.told_otherwise(job, expected) if expected["is"] == "waits" else None

    def told_otherwise(self, job: Job, expected: dict[str, Any]) -> str | None:
        told = job.api("GET", f"{job.path}/explanation")
        stamp = told.get("earliest_start")
        at = None if stamp is None else round(seconds(stamp) - self.began)
        codes = sorted({blocker["code"] for blocker in told["blockers"]})
        # Between the two where the script does not know how much of a job's time was metered.
        ends = [expected["earliest"], expected["or_earliest"] if "or_earliest" in expected else expected["earliest"]]
        same = at in ends if at is None or None in ends else min(ends) <= at <= max(ends)
        if same and codes and expected["blockers"] in (None, codes):
            return None
        return f"expected {expected}, told it starts at {at} and waits for {codes}"

    def close(self) -> None:
        # Who reads to the end of a pipe that nobody wrote to ends.
        for pipe in self.data.glob("job-*"):
            write(str(pipe), "")
        super().close()


def play(script: dict[str, Any]) -> dict[str, Any]:
    """Lives through a script, up to the first step with a difference."""
    steps = compared = 0
    found: list[str] = []
    began = time.monotonic()
    try:
        world = World(script)
        try:
            for number, step in enumerate(script["steps"]):
                try:
                    differences = world.step(step)
                except (Failed, LookupError, ValueError) as error:
                    differences = [repr(error)]
                steps += 1
                compared += len(step["jobs"])
                what = {key: value for key, value in step.items() if key != "jobs"}
                found += [f"step {number} {json.dumps(what)}: {difference}" for difference in differences]
                if found:
                    break
        finally:
            world.close()
    except Exception as error:  # noqa: BLE001 (one world ends no others)
        found.append(f"it could not be played: {error!r}")
    took = time.monotonic() - began
    return {"world": script["world"], "steps": steps, "compared": compared, "found": found, "seconds": took}


def lane(scripts: Path, first: int, of: int) -> None:
    """Plays every so many-th script, one after the other; a line of JSON for each."""
    def stopped(number: int, _frame: Any) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # The end may not be interrupted by a second signal.
        sys.exit(1)

    signal.signal(signal.SIGTERM, stopped)
    # What a worker leaves behind is this process's to end, so that worlds beside it are not touched.
    adopt_orphans()
    for number, line in enumerate(scripts.read_text(encoding="utf-8").splitlines()):
        if number % of == first:
            print(json.dumps(play(json.loads(line)) | {"number": number}), flush=True)


def played(lanes: list[Service]) -> list[dict[str, Any]]:
    """What the lanes found, when all of them have ended."""
    while any(each.process.poll() is None for each in lanes):
        for each in lanes:
            if each.process.poll():
                each.check()
        time.sleep(0.2)
    lines = [line for each in lanes for line in each.output().splitlines() if line.startswith("{")]
    return sorted((json.loads(line) for line in lines), key=lambda said: int(said["number"]))


def stop(lanes: list[Service]) -> None:
    for each in lanes:
        if each.process.poll() is None:
            each.process.terminate()
    for each in lanes:
        try:
            each.process.wait(LANE_STOP_S)
        except subprocess.TimeoutExpired:
            each.stop()


def play_all(worlds: int, seed: int, at_once: int, only: int | None) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="berth-oracle-live-") as folder:
        scripts, lanes = Path(folder) / "scripts", list[Service]()
        made = subprocess.run([str(SCRIPT), str(worlds), str(seed)], check=True, text=True, stdout=subprocess.PIPE)
        lines = made.stdout.splitlines()
        if only is not None and only >= len(lines):
            raise Failed(f"there are {len(lines)} worlds, so no world {only}")
        scripts.write_text("\n".join(lines if only is None else [lines[only]]), encoding="utf-8")
        try:
            for number in range(at_once):
                argv = [sys.executable, __file__, "lane", str(scripts), str(number), str(at_once)]
                lanes.append(Service(f"lane {number}", Path(folder) / f"lane-{number}", *argv))
            results = played(lanes)
        finally:
            stop(lanes)
    for result in results:
        for difference in result["found"]:
            print(f"world {result['number'] if only is None else only} ({result['world']}): {difference}")
    steps, compared, found = (sum(counts) for counts in (
        [r["steps"] for r in results], [r["compared"] for r in results], [len(r["found"]) for r in results]))
    took = time.monotonic() - began
    print(f"{'worlds':>10} {'steps':>10} {'compared':>10} {'different':>10} {'seconds':>10}")
    print(f"{len(results):>10} {steps:>10} {compared:>10} {found:>10} {took:>10.0f}", flush=True)
    return 1 if found else 0


def oracle_live(row: MakeRow) -> list[Row]:
    """A sample of the judge's worlds on running portals (ORACLE_LIVE_WORLDS of them)."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "berth-engine", "-p", "berth-server",
             "--example", "oracle_script", "--example", "clocked"]
    subprocess.run(build, cwd=ROOT, check=True)
    # Beside the other benchmarks it is a process of its own, because what it starts has to end with it.
    argv = [sys.executable, __file__, "play", "--worlds", os.environ.get("ORACLE_LIVE_WORLDS") or "200"]
    done = subprocess.run(argv, check=False, text=True, stdout=subprocess.PIPE)
    out = done.stdout.splitlines()
    if done.returncode not in (0, 1) or len(out) < 2:
        raise Failed(f"the worlds were not played ({done.returncode})")
    for line in out[:-2]:
        print(line)
    worlds, steps, compared, found, took = (int(n) for n in out[-1].split())
    note = f"{worlds} worlds, {steps} steps, {compared} states of jobs compared, {took} s"
    return [row("oracle-live", found, "", 0, note=note)]


BENCHES = {"oracle-live": oracle_live}


def main() -> int:
    parser = argparse.ArgumentParser(description="Small worlds of the judge of the queue, on running portals.")
    commands = parser.add_subparsers(dest="command", required=True)
    all_of = commands.add_parser("play", help="play so many worlds")
    all_of.add_argument("--worlds", type=int, default=200)
    all_of.add_argument("--seed", type=int, default=1)
    all_of.add_argument("--at-once", type=int, default=2, help="worlds at the same time")
    all_of.add_argument("--only", type=int, help="the number of one world among them")
    some = commands.add_parser("lane", help="play some of the scripts in a file; started by play")
    some.add_argument("scripts", type=Path)
    some.add_argument("first", type=int)
    some.add_argument("of", type=int)
    args = parser.parse_args()
    if args.command == "lane":
        lane(args.scripts, args.first, args.of)
        return 0
    try:
        return play_all(args.worlds, args.seed, args.at_once, args.only)
    except Failed as error:
        print(f"oracle_live: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
