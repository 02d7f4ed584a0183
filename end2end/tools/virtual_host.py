"""Virtual machines of Debian with systemd, for the tests of `make test-host`. Needs root."""
from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import Service, free_port
from rest import Failed
from worker_bench import Site, wait_for

ROOT = Path(__file__).resolve().parents[2]
SUITE = os.environ.get("HOST_SUITE") or "bookworm"
ACCELERATOR = os.environ.get("HOST_ACCELERATOR") or "tcg,thread=multi"
HOME = ROOT / "target/host"
PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "debootstrap": "debootstrap", "mke2fs": "e2fsprogs",
            "ssh": "openssh-client"}
PACKAGES = ("systemd,systemd-sysv,dbus,udev,kmod,iproute2,openssh-server,procps,curl,ca-certificates,python3,sudo,"
            "bubblewrap,nftables")
# The address of this host on the machines.
OUTSIDE = "10.0.2.2"


def say(text: str) -> None:
    print(text, flush=True)


def check(what: str, good: bool, seen: Any = "") -> None:
    if not good:
        raise Failed(f"{what}: {seen}")
    say(f"ok    {what}")


def check_programs() -> None:
    missing = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        raise Failed(f"This needs more programs. Install: {' '.join(missing)}")
    if os.geteuid() != 0:
        raise Failed("To make a system of its own this needs root.")


def join_line(site: Site, simulate: str = "") -> str:
    """What the Nodes page says, with simulated boards where they are wanted."""
    command = site.operator("POST", "/operator/join-tokens", {"approve": True, "adopt_labels": True})["command"]
    if simulate:
        command = command.replace("sudo --preserve-env=BERTH_JOIN_TOKEN",
                                  f"BERTH_SIMULATE={simulate} sudo --preserve-env=BERTH_JOIN_TOKEN,BERTH_SIMULATE")
    return str(command)


@dataclass(frozen=True)
class System:
    """An installation of Debian in target/host/NAME. It is made once, and each machine has a copy."""

    name: str
    # Additional packages, separated by commas, with the kernel.
    packages: str
    # The names of the machines with this system.
    hosts: Sequence[str]
    # Additional files: path without the first slash → text.
    files: Mapping[str, str] = field(default_factory=dict)

    def folder(self) -> Path:
        """The folder with `disk`, `vmlinuz`, `initrd.img` and `key`."""
        made = HOME / self.name
        if not (made / "disk").exists():
            with tempfile.TemporaryDirectory(prefix="berth-host-") as scratch:
                self.make(made, Path(scratch) / "root")
        return made

    def make(self, made: Path, root: Path) -> None:
        say(f"making a system of Debian {SUITE} in {made}")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        with (made / "debootstrap.log").open("w") as log:
            subprocess.run(["debootstrap", "--variant=minbase", f"--include={PACKAGES},{self.packages}", SUITE, root],
                           check=True, stdout=log, stderr=log)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", made / "key"], check=True)
        for file, text in {
            "etc/hostname": f"{self.hosts[0]}\n", "etc/hosts": f"127.0.0.1 localhost {' '.join(self.hosts)}\n",
            "etc/machine-id": "", "etc/fstab": "/dev/vda / ext4 defaults 0 1\n",
            "etc/systemd/network/host.network": "[Match]\nName=e*\n[Network]\nDHCP=yes\n",
            "root/.ssh/authorized_keys": (made / "key.pub").read_text(), **self.files,
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


class Machine:
    """A virtual machine, with its disk on this one. `options`: additional ones of QEMU."""

    def __init__(self, system: System, name: str, *options: str, memory_mib: int = 4096, cpus: int = 2) -> None:
        self.name, self.options, self.memory_mib, self.cpus = name, options, memory_mib, cpus
        self.folder, self.port = Path(tempfile.mkdtemp(prefix="berth-host-")), free_port()
        self.disk, self.key = self.folder / "disk", self.folder / "key"
        try:
            made = system.folder()
            self.kernel, self.initrd = made / "vmlinuz", made / "initrd.img"
            # Nothing that is done to it is there the next time.
            subprocess.run(["cp", "--sparse=always", "--reflink=auto", made / "disk", self.disk], check=True)
            shutil.copy(made / "key", self.key)
            self.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def start(self) -> None:
        self.qemu = Service(
            f"virtual machine {self.name}", self.folder / "qemu.log", "qemu-system-x86_64", "-accel", ACCELERATOR,
            "-cpu", "max", "-m", str(self.memory_mib), "-smp", str(self.cpus),
            "-kernel", str(self.kernel), "-initrd", str(self.initrd),
            "-append", f"root=/dev/vda rw console=ttyS0 net.ifnames=0 systemd.hostname={self.name}",
            "-display", "none", "-no-reboot",
            "-drive", f"file={self.disk},if=virtio,format=raw", "-serial", f"file:{self.folder / 'console'}",
            "-nic", f"user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{self.port}-:22", *self.options)
        try:
            wait_for("the machine", lambda: self.ask("true", quiet=True).returncode == 0, 1)
        except BaseException as error:
            self.qemu.stop()
            if not isinstance(error, Failed):
                raise
            console = (self.folder / "console").read_text(errors="replace").splitlines()
            raise Failed("\n".join([f"{error}. The end of what its console showed:", *console[-30:]])) from error

    def ask(self, command: str, feed: Any = subprocess.DEVNULL, *, quiet: bool = False,
            deadline_s: float | None = None) -> subprocess.CompletedProcess[str]:
        """What a command said on the machine, both outputs in one. With a deadline a later end is `Failed`."""
        self.qemu.check()
        ssh = ["ssh", "-q", "-i", str(self.key), "-p", str(self.port), "-o", "StrictHostKeyChecking=no",
               "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=20", "-o", "BatchMode=yes"]
        errors = subprocess.DEVNULL if quiet else subprocess.STDOUT
        try:
            return subprocess.run([*ssh, "root@127.0.0.1", command], stdin=feed, stdout=subprocess.PIPE, stderr=errors,
                                  text=True, errors="replace", check=False, timeout=deadline_s)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{self.name}: after {error.timeout:.0f} s still waiting for {command}") from error

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
