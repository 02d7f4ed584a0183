#!/usr/bin/env python3
"""Takes a bare host to a serving node, as docs/workers.md tells an operator, and then takes it down.

The host is a virtual machine of Debian with systemd, cgroups of version 2 and podman: what a container or a host with
version 1 cannot show. On it run the line of the Nodes page, jobs, a restart and an upgrade of the worker under them, a
reboot and a power cut, and last the worker's own tests. Needs root, a build (`make build`), and the programs below.

Then two hosts with a network between them run jobs of several organizations (two_hosts.py).

HOST_SUITE (bookworm) is the release, HOST_ACCELERATOR (tcg) what QEMU runs it with: kvm where that works. HOST_ONLY is
one of node, tests (the worker's) and network (two hosts): the others are left out. The systems are made once, in
target/host; remove that folder for new ones.
"""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import two_hosts
from rest import Failed
from virtual_host import OUTSIDE, ROOT, SUITE, Machine, System, check, check_programs, join_line, say
from worker_bench import ENDED, Site, wait_for

ONLY = os.environ.get("HOST_ONLY") or ""
FLEET, NODE = "2xH100-80GB,1xA30", "bare"
SYSTEM = System(SUITE, "linux-image-cloud-amd64,podman,crun,catatonit,netavark,uidmap", [NODE])
COUNT = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.2; done"


class Trial:
    """A portal on this machine and the node to be."""

    def __init__(self, site: Site, machine: Machine) -> None:
        self.site, self.machine = site, machine

    def node(self) -> Any:
        nodes = self.site.operator.items("/operator/nodes")
        return next((node for node in nodes if node["state"] == "ready" and node["gpus"]), None)

    def jobs(self, count: int, script: str = COUNT, **more: Any) -> list[str]:
        made = [self.site.submit(script, **more) for _ in range(count)]
        self.until(made, "running")
        return made

    def until(self, jobs: list[str], *states: str) -> list[Any]:
        wait_for(f"jobs to be {states}", lambda: all(self.site.job(job)["state"] in states for job in jobs), 0.5)
        return [self.site.job(job) for job in jobs]

    def lines(self, job: str, attempt: int = 1) -> list[int]:
        return [int(n) for n in re.findall(r"line (\d+)\n", self.site.log(job, attempt))]

    def whole(self, job: str) -> bool:
        lines = self.lines(job)
        return bool(lines) and lines == list(range(1, len(lines) + 1))

    def processes(self) -> set[str]:
        """The jobs' processes that stay, by number and start. The pattern is not in the look itself."""
        look = "for pid in $(pgrep -f 'line [$]i'); do cut -d ' ' -f 1,22 /proc/$pid/stat; done"
        first, second = (set(self.machine.ask(look, quiet=True).stdout.splitlines()) for _ in range(2))
        return first & second

    def joins(self) -> None:
        said = self.machine.ask(join_line(self.site))
        check("a host without a driver is told what is missing",
              said.returncode != 0 and "Install the driver of NVIDIA" in said.stdout, said.stdout)
        said = self.machine.ask(join_line(self.site, FLEET))
        check("one line makes it a node", said.returncode == 0 and f"{NODE} is node_" in said.stdout, said.stdout)
        isolation = wait_for("the node", self.node)["isolation"]
        limits = {name: isolation[name] for name in ("memory", "cpu", "pids")}
        check("its limits are cgroups of version 2", set(limits.values()) == {"cgroup v2"}, isolation)
        check("a filter keeps device nodes apart", isolation["devices"] == "mount namespace, cgroup v2 (BPF)", isolation)
        check("it runs images", isolation["images"].startswith("podman "), isolation)
        self.site.price()

    def limits(self) -> None:
        bomb = self.site.submit("exec python3 -c 'bytearray(400 << 20)'", memory_mib=128)
        forks = self.site.submit("f() { f | f & }; f; sleep 5; exit 3")
        beside = self.site.submit("echo fine")
        bombed, forked, fine = self.until([bomb, forks, beside], *ENDED)
        check("too much memory ends a job, and says so", bombed["failure"]["code"] == "memory.exceeded", bombed)
        check("who forks without end is held", forked["state"] == "failed", forked)
        check("a neighbour is whole", fine["state"] == "succeeded", fine)

    def daemon_dies(self) -> None:
        jobs = self.jobs(10)
        before = self.processes()
        check("ten jobs have a process each", len(before) >= 10, before)
        for what in ("systemctl restart berth-worker", "systemctl kill --signal=KILL --kill-who=main berth-worker",
                     "systemctl stop berth-worker; systemctl daemon-reexec; systemctl start berth-worker", join_line(self.site)):
            stopped = {job: len(self.lines(job)) for job in jobs}
            self.machine.ask(what)
            wait_for("the node", self.node)
            wait_for("more of the logs", lambda: all(len(self.lines(job)) > n for job, n in stopped.items()), 0.5)
            same = self.processes()
            name = "the line again" if "install" in what else what.split(";")[0]
            check(f"{name}: the same processes, and no line is missing",
                  same == before and all(self.whole(job) for job in jobs), same)
        self.site.end(jobs)

    def goes_down(self, how: str, go: Callable[[], None], code: str, *, told: bool) -> None:
        """`told`: jobs are, in time to save their state."""
        lost = self.jobs(3)
        again = self.jobs(3, f"trap 'echo saved; exit 0' USR1; {COUNT}", retry={"max": 1, "on": ["node_lost"]},
                          checkpoint={"signal": "SIGUSR1", "grace_s": 30})
        wait_for("some of their logs", lambda: all(len(self.lines(job)) > 9 for job in lost + again), 0.5)
        go()
        ended = self.until(lost, *ENDED)
        codes = {job["failure"]["code"] for job in ended}
        check(f"{how}: jobs end as {code}", codes == {code}, ended)
        # The meter and what bears it out are read one after the other, at most a second apart.
        seen_ms = {job["id"]: max((proof["process_ms"] for proof in job.get("evidence", [])), default=0) for job in ended}
        over = [job for job in ended if job["metered_ms"] > seen_ms[job["id"]] + 1_000]
        check(f"{how}: nothing is charged beyond what was seen", not over, over)
        check(f"{how}: what was written is kept", all(self.whole(job) for job in lost), [self.lines(j)[-3:] for j in lost])
        saved = [self.site.log(job, 1).endswith("saved\n") for job in again]
        check(f"{how}: {'every' if told else 'no'} job had its time to save its state", saved == [told] * 3, saved)
        wait_for("the second attempts", lambda: all(self.lines(job, 2) for job in again), 0.5)
        check(f"{how}: jobs that ask for it are tried again", True)
        self.site.end(again)
        # The end of a job is known before the proof that its devices are clean.
        wait_for("every board to be free", lambda: not any(gpu["tiles"] for gpu in self.node()["gpus"]), 0.5)
        check(f"{how}: every board is free after it", True)

    def run(self) -> None:
        self.joins()
        self.limits()
        self.daemon_dies()
        self.goes_down("a reboot", self.machine.reboot, "node.drained", told=True)
        self.goes_down("a power cut", self.machine.cut, "attempt.unknown_outcome", told=False)


def workers_tests(machine: Machine) -> None:
    """The worker's own tests, one after the other: a machine that is emulated is slow."""
    packages = [word for name in ("worker", "nvml-sim", "cuda-sim") for word in ("-p", f"berth-{name}")]
    subprocess.run(["cargo", "build", "--quiet", *packages], cwd=ROOT, check=True)
    built = subprocess.run(["cargo", "test", "--quiet", "-p", "berth-worker", "--no-run", "--message-format=json"],
                           cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    made = [message for message in map(json.loads, built.splitlines()) if message.get("executable")]
    tests = [Path(message["executable"]) for message in made if message["profile"]["test"]]
    archive = machine.folder / "tests.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("berth-worker", "libberth_nvml_sim.so", "libberth_cuda_sim.so"):
            tar.add(ROOT / "target/debug" / name)
        for test in tests:
            tar.add(test)
    with archive.open("rb") as feed:
        check("the tests are there", machine.ask("tar xf - -C /", feed).returncode == 0)
    archive.unlink()
    passed, failed = 0, []
    for test in tests:
        said = machine.ask(f"mkdir -p {ROOT}/worker && cd {ROOT}/worker && {test} --test-threads=1").stdout
        result = re.search(r"^test result: ok\. (\d+) passed", said, re.MULTILINE)
        for line in re.findall(r"left out of .*", said):
            say(f"      {line}")
        name = test.name.rpartition("-")[0]
        if result:
            say(f"ok    {name}: {result[1]} passed")
            passed += int(result[1])
        else:
            say(f"{said}\nFAILED  {name}")
            failed.append(name)
    check(f"{passed} of the worker's tests passed there", not failed, failed)


def main() -> None:
    if ONLY not in ("", "node", "tests", "network"):
        raise Failed(f"HOST_ONLY is node, tests or network, not {ONLY!r}.")
    check_programs()
    # A machine for each part: nothing is left on the second of what was done to the first.
    if ONLY in ("", "node"):
        with closing(Site(seen_from=OUTSIDE)) as site, closing(Machine(SYSTEM, NODE)) as machine:
            Trial(site, machine).run()
    if ONLY in ("", "tests"):
        with closing(Machine(SYSTEM, NODE)) as machine:
            workers_tests(machine)
    if ONLY in ("", "network"):
        two_hosts.run()


if __name__ == "__main__":
    # The copies of disks are removed then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("FAILED  a signal ended the test"))
    try:
        main()
    except Failed as error:
        sys.exit(f"FAILED  {error}")
