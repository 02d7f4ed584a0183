#!/usr/bin/env python3
"""Takes a bare host to a serving node, as docs/workers.md tells an operator, and then takes it down.

The host is a virtual machine of Debian with systemd, cgroups of version 2 and podman: what a container or a host with
version 1 cannot show. On it run the line of the Nodes page, jobs, a restart and an upgrade of the worker under them, a
reboot and a power cut, and last the worker's own tests. Needs root, a build (`make build`), and the programs below.

HOST_SUITE (bookworm) is the release, HOST_ACCELERATOR (tcg) what QEMU runs it with: kvm where that works. HOST_ONLY=node
leaves the worker's tests out, HOST_ONLY=tests everything else. The system is made once, in target/host; remove that
folder for a new one.
"""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from processes import Service
from rest import Failed
from worker_bench import ENDED, Site, free_port, wait_for

ROOT = Path(__file__).resolve().parents[2]
SUITE = os.environ.get("HOST_SUITE") or "bookworm"
ACCELERATOR = os.environ.get("HOST_ACCELERATOR") or "tcg,thread=multi"
ONLY = os.environ.get("HOST_ONLY") or ""
HOME = ROOT / "target/host"
PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "debootstrap": "debootstrap", "mke2fs": "e2fsprogs",
            "ssh": "openssh-client"}
PACKAGES = ("systemd,systemd-sysv,dbus,udev,kmod,iproute2,openssh-server,procps,curl,ca-certificates,python3,sudo,"
            "linux-image-cloud-amd64,bubblewrap,podman,crun,catatonit,netavark,uidmap")
# As the machine sees this one.
OUTSIDE = "10.0.2.2"
FLEET, NODE = "2xH100-80GB,1xA30", "bare"
COUNT = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.2; done"


def say(text: str) -> None:
    print(text, flush=True)


def check(what: str, good: bool, seen: Any = "") -> None:
    if not good:
        raise Failed(f"{what}: {seen}")
    say(f"ok    {what}")


class Machine:
    """The virtual machine, with its disk on this one."""

    def __init__(self) -> None:
        self.folder, self.port = Path(tempfile.mkdtemp(prefix="berth-host-")), free_port()
        made = HOME / SUITE
        self.disk, self.kernel, self.initrd = self.folder / "disk", made / "vmlinuz", made / "initrd.img"
        self.key = self.folder / "key"
        try:
            if not (made / "disk").exists():
                self.make(made)
            # Nothing that is done to it is there the next time.
            subprocess.run(["cp", "--sparse=always", "--reflink=auto", made / "disk", self.disk], check=True)
            shutil.copy(made / "key", self.key)
            self.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def make(self, made: Path) -> None:
        say(f"making a system of Debian {SUITE} in {made}")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        root = self.folder / "root"
        with (made / "debootstrap.log").open("w") as log:
            subprocess.run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root], check=True,
                           stdout=log, stderr=log)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", made / "key"], check=True)
        for file, text in {
            "etc/hostname": f"{NODE}\n", "etc/hosts": f"127.0.0.1 localhost {NODE}\n", "etc/machine-id": "",
            "etc/fstab": "/dev/vda / ext4 defaults 0 1\n",
            "etc/systemd/network/host.network": "[Match]\nName=e*\n[Network]\nDHCP=yes\n",
            "root/.ssh/authorized_keys": (made / "key.pub").read_text(),
        }.items():
            (root / file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (root / file).write_text(text)
        subprocess.run(["chroot", root, "systemctl", "--quiet", "enable", "systemd-networkd", "ssh"], check=True)
        for name in ("vmlinuz", "initrd.img"):
            shutil.copy(next((root / "boot").glob(f"{name}-*")), made / name)
        disk = made / "disk.part"
        subprocess.run(["truncate", "-s", "8G", disk], check=True)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, disk], check=True)
        disk.rename(made / "disk")
        shutil.rmtree(root)

    def start(self) -> None:
        self.qemu = Service(
            "virtual machine", self.folder / "qemu.log", "qemu-system-x86_64", "-accel", ACCELERATOR, "-cpu", "max",
            "-m", "4096", "-smp", "2", "-kernel", str(self.kernel), "-initrd", str(self.initrd),
            "-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0", "-display", "none", "-no-reboot",
            "-drive", f"file={self.disk},if=virtio,format=raw", "-serial", f"file:{self.folder / 'console'}",
            "-nic", f"user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{self.port}-:22")
        try:
            wait_for("the machine", lambda: self.ask("true", quiet=True).returncode == 0, 1)
        except Failed as error:
            console = (self.folder / "console").read_text(errors="replace").splitlines()
            raise Failed("\n".join([f"{error}. The end of what its console showed:", *console[-30:]])) from error

    def ask(self, command: str, feed: Any = subprocess.DEVNULL, *, quiet: bool = False) -> subprocess.CompletedProcess[str]:
        """What a command said on the machine, both outputs in one."""
        self.qemu.check()
        ssh = ["ssh", "-q", "-i", str(self.key), "-p", str(self.port), "-o", "StrictHostKeyChecking=no",
               "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=5", "-o", "BatchMode=yes"]
        errors = subprocess.DEVNULL if quiet else subprocess.STDOUT
        return subprocess.run([*ssh, "root@127.0.0.1", command], stdin=feed, stdout=subprocess.PIPE, stderr=errors,
                              text=True, errors="replace", check=False)

    def reboot(self) -> None:
        """As an operator does it; the machine ends with it and is started again."""
        self.ask("systemctl reboot", quiet=True)
        self.qemu.process.wait(timeout=180)
        self.start()

    def cut(self) -> None:
        """The power fails, and comes back."""
        self.qemu.process.kill()
        self.qemu.process.wait()
        self.start()

    def close(self) -> None:
        self.qemu.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Trial:
    """A portal on this machine and the node to be."""

    def __init__(self, site: Site, machine: Machine) -> None:
        self.site, self.machine = site, machine

    def line(self, simulate: str = "") -> str:
        """What the Nodes page says, with simulated boards where they are wanted."""
        command = self.site.operator("POST", "/operator/join-tokens", {"approve": True, "adopt_labels": True})["command"]
        if simulate:
            command = command.replace("sudo --preserve-env=BERTH_JOIN_TOKEN",
                                      f"BERTH_SIMULATE={simulate} sudo --preserve-env=BERTH_JOIN_TOKEN,BERTH_SIMULATE")
        return str(command)

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
        said = self.machine.ask(self.line())
        check("a host without a driver is told what is missing",
              said.returncode != 0 and "Install NVIDIA's driver" in said.stdout, said.stdout)
        said = self.machine.ask(self.line(FLEET))
        check("one line makes it a node", said.returncode == 0 and f"{NODE} is node_" in said.stdout, said.stdout)
        isolation = wait_for("the node", self.node)["isolation"]
        limits = {name: isolation[name] for name in ("memory", "cpu", "pids")}
        check("its limits are cgroups of version 2", set(limits.values()) == {"cgroup v2"}, isolation)
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
                     "systemctl stop berth-worker; systemctl daemon-reexec; systemctl start berth-worker", self.line()):
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
        left = wait_for("the node", self.node)
        check(f"{how}: every board is free after it", not any(gpu["tiles"] for gpu in left["gpus"]), left)

    def run(self) -> None:
        self.joins()
        self.limits()
        self.daemon_dies()
        self.goes_down("a reboot", self.machine.reboot, "node.drained", told=True)
        self.goes_down("a power cut", self.machine.cut, "attempt.unknown_outcome", told=False)


def workers_tests(machine: Machine) -> None:
    """The worker's own tests, one after the other: a machine that is emulated is slow."""
    subprocess.run(["cargo", "build", "--quiet", "-p", "berth-worker", "-p", "berth-nvml-sim"], cwd=ROOT, check=True)
    built = subprocess.run(["cargo", "test", "--quiet", "-p", "berth-worker", "--no-run", "--message-format=json"],
                           cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    made = [message for message in map(json.loads, built.splitlines()) if message.get("executable")]
    tests = [Path(message["executable"]) for message in made if message["profile"]["test"]]
    archive = machine.folder / "tests.tar"
    with tarfile.open(archive, "w") as tar:
        for file in [*tests, *(ROOT / "target/debug" / name for name in ("berth-worker", "libberth_nvml_sim.so"))]:
            tar.add(file)
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
    missing = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        raise Failed(f"This needs more programs. Install: {' '.join(missing)}")
    if os.geteuid() != 0:
        raise Failed("To make a system of its own this needs root.")
    # A machine for each part: nothing is left on the second of what was done to the first.
    if ONLY != "tests":
        with closing(Site(seen_from=OUTSIDE)) as site, closing(Machine()) as machine:
            Trial(site, machine).run()
    if ONLY != "node":
        with closing(Machine()) as machine:
            workers_tests(machine)


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"FAILED  {error}")
