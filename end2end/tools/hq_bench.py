#!/usr/bin/env python3
"""The benchmark of short jobs with HyperQueue: how many of /bin/true its program `hq` runs a second on this machine.

A server and one worker run an array of tasks twice: without output files, and with two files for each task. The
time is the time of `hq submit --wait`. Run as `hq_bench.py COUNT` it prints what it found as JSON; the other
benchmarks run it so, because what it starts has to end with it. The commands are commands of hq 0.20 to 0.26.
"""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import Service, adopt_orphans, stop_orphans
from rest import Failed
from worker_bench import wait_for

# How long a command may take, how long an array, and how often the server and the worker are looked at meanwhile.
COMMAND_LIMIT_S, ARRAY_LIMIT_S, CHECK_S = 30.0, 300.0, 1.0
ERROR_CHARS = 300
WITHOUT_FILES = ("--stdout=none", "--stderr=none")


def program() -> str | None:
    return shutil.which("hq")


class HyperQueue:
    """A server of hq and one worker with the defaults of hq. Both write into one directory only."""

    def __init__(self, hq: str) -> None:
        self.data = Path(tempfile.mkdtemp(prefix="berth-hq-bench-"))
        self.hq, self.services = [hq, f"--server-dir={self.data / 'server'}"], list[Service]()
        # The worker leaves a temporary directory behind.
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("HQ_")}
        self.env["TMPDIR"] = str(self.data)

    def start(self) -> None:
        # The host's name may have no address.
        self.service("hq server", "server", "start", "--host=127.0.0.1")
        wait_for("the server of hq", self.is_ready)
        # A batch system around the benchmark sets no limits for the worker.
        self.service("hq worker", "worker", "start", "--manager=none")
        self.answer(COMMAND_LIMIT_S, "worker", "wait", "1")

    def service(self, name: str, *words: str) -> None:
        self.services.append(Service(name, self.data / f"{name}.log", *self.hq, *words, env=self.env))

    def check(self) -> None:
        for service in self.services:
            service.check()

    def is_ready(self) -> bool:
        # `hq server wait` came with 0.24, and it asks every five seconds.
        self.check()
        return self.ended(COMMAND_LIMIT_S, "server", "info")[0] == 0

    def ended(self, limit_s: float, *words: str) -> tuple[int, str, str]:
        """A command's exit status and outputs; `Failed` after the limit, and once the server or the worker has ended."""
        deadline = time.monotonic() + limit_s
        with subprocess.Popen([*self.hq, *words], cwd=self.data, env=self.env, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                while True:
                    try:
                        out, errors = process.communicate(timeout=CHECK_S)
                        return process.returncode, out, errors
                    except subprocess.TimeoutExpired:
                        self.check()
                    if time.monotonic() > deadline:
                        raise Failed(f"hq {' '.join(words)} did not end within {limit_s:.0f} s")
            finally:
                process.kill()

    def answer(self, limit_s: float, *words: str) -> str:
        """What a command prints; `Failed` where it fails."""
        status, out, errors = self.ended(limit_s, *words)
        if status != 0:
            raise Failed(f"hq {' '.join(words)} ended with {status}: {(errors or out).strip()[-ERROR_CHARS:]}")
        return out

    def per_second(self, count: int, *options: str) -> float:
        """Tasks a second of one array, from its submission to the end of its last task."""
        began = time.monotonic()
        self.answer(ARRAY_LIMIT_S, "submit", f"--array=1-{count}", "--wait", *options, "/bin/true")
        took = time.monotonic() - began
        # From 0.25 on the command succeeds although tasks failed.
        if (finished := self.finished()) != count:
            raise Failed(f"hq finished {finished} of {count} tasks")
        return count / took

    def finished(self) -> int:
        """The tasks of the last array that succeeded."""
        text = self.answer(COMMAND_LIMIT_S, "--output-mode=json", "job", "list", "--all")
        try:
            return int(max(json.loads(text), key=lambda job: job["id"])["task_stats"]["finished"])
        except (LookupError, TypeError, ValueError) as error:
            raise Failed(f"hq lists its jobs in an unknown form: {error!r}") from error

    def close(self) -> None:
        # The worker ends first, while its server still listens.
        while self.services:
            self.services.pop().stop()
        stop_orphans(self.services)
        shutil.rmtree(self.data, ignore_errors=True)


def measured(hq: str, count: int) -> dict[str, Any]:
    peer = HyperQueue(hq)
    try:
        version = peer.answer(COMMAND_LIMIT_S, "--version").strip().rpartition(" ")[2]
        peer.start()
        without = peer.per_second(count, *WITHOUT_FILES)
        return {"version": version, "without_files": without, "with_files": peer.per_second(count)}
    finally:
        peer.close()


def found(count: int) -> dict[str, Any]:
    """What a process of its own measured; `Failed` with its reason."""
    argv = [sys.executable, __file__, str(count)]
    out = subprocess.run(argv, check=True, text=True, stdout=subprocess.PIPE).stdout
    said = dict(json.loads(out.splitlines()[-1]))
    if "failed" in said:
        raise Failed(said["failed"])
    return said


def main() -> int:
    hq = program()
    if len(sys.argv) != 2 or not sys.argv[1].isdigit() or hq is None:
        print("hq_bench: say how many tasks, and have hq on the PATH", file=sys.stderr)
        return 2
    adopt_orphans()
    try:
        said = measured(hq, int(sys.argv[1]))
    except (Failed, OSError) as failure:
        print(failure, file=sys.stderr, flush=True)
        said = {"failed": str(failure).splitlines()[0]}
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
