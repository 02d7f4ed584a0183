"""Processes of the demo: starting, watching and surely ending them. Linux only."""
from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from rest import Failed

STOP_S, POLL_S = 8.0, 0.05
# A job has 10 s between being told and being killed, and its end is then still to be written down.
ORPHANS_STOP_S = 12.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
libc = ctypes.CDLL(None, use_errno=True)


# The ports that `free_port` gave.
given_ports: set[int] = set()


def free_port() -> int:
    """Another free port each time, below those of outgoing connections, so that none of them gets it meanwhile."""
    while True:
        with socket.socket() as probe:
            port = random.randrange(20_000, 32_000)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in given_ports:
                given_ports.add(port)
                return port


class Service:
    """A process of the demo, with its output in a log of its own."""

    def __init__(self, name: str, log: Path, *argv: str, stdin: int = subprocess.DEVNULL,
                 env: dict[str, str] | None = None) -> None:
        self.name, self.log = name, log
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.began_at = self.log.stat().st_size
        # In a session of its own, so that Ctrl-C reaches this program only and it can keep the
        # order; and never outliving this program, whatever happens to it.
        self.process = subprocess.Popen(
            argv, stdin=stdin, stdout=descriptor, stderr=descriptor, env=env,
            start_new_session=True, preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM))
        os.close(descriptor)

    def output(self) -> str:
        """What it has printed since this start."""
        with self.log.open("rb") as log:
            log.seek(self.began_at)
            return log.read().decode(errors="replace")

    def check(self) -> None:
        code = self.process.poll()
        if code is not None:
            tail = "\n".join(f"    {line}" for line in self.output().splitlines()[-20:])
            raise Failed(f"The {self.name} ended by itself ({code}). The end of {self.log}:\n{tail}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                print(f"The {self.name} did not stop within {STOP_S:.0f} s and was killed.", flush=True)
                self.process.kill()
                self.process.wait()


def adopt_orphans() -> None:
    """From now on a process whose parent has gone becomes a child of this program."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The parent is the second field after the name, which may hold blanks and brackets.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
        except OSError:
            pass  # It has ended meanwhile.
    return found


def stop_orphans(services: Iterable[Service]) -> None:
    """Ends every child of this program that is none of the services.

    A job's shim outlives its worker by design; in a demo it would be a stray process. Told to stop,
    a shim ends its job and records that, so the next start knows what became of it.
    """
    mine = {service.process.pid for service in services}
    told: set[int] = set()
    deadline = time.monotonic() + ORPHANS_STOP_S
    while (left := children() - mine) and (late := time.monotonic() - deadline) < STOP_S:
        for pid in left if late > 0 else left - told:
            os.kill(pid, signal.SIGKILL if late > 0 else signal.SIGTERM)
        told |= left
        time.sleep(POLL_S)
        for pid in left:
            os.waitpid(pid, os.WNOHANG)
