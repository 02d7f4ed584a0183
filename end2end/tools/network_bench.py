#!/usr/bin/env python3
"""The benchmarks of networks and of the cache of a node: each row is a ratio of two figures of one run.

`network_bench.py jobs|gang|volumes` prints its figures as JSON. It needs root and nftables. The nodes of `jobs` and
`gang` are network namespaces of this machine with a pair of virtual interfaces, so the network of the machine itself
stays as it is. BENCH_NETWORK_JOBS (200) is the number of short jobs of each kind, and BENCH_VOLUMES (3) the number of
volumes.
"""
from __future__ import annotations

import ctypes
import http.client
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import datetime
from typing import Any

from processes import adopt_orphans, free_port
from rest import Failed
from sse import events
from worker_bench import DEADLINE_S, ENDED, MakeRow, Row, Site, Way, wait_for

JOBS, VOLUMES = int(os.environ.get("BENCH_NETWORK_JOBS") or 200), int(os.environ.get("BENCH_VOLUMES") or 3)
# The blocks of jobs alternate, so a slow minute of the machine meets both kinds.
BLOCKS = ("own", "host", "host", "own")
BOARD = "h100-80gb"
FILES, FILE_BYTES = 20, 10 << 20
SENT_MIB, ROUNDS = 256, 3
# One range for both ends of the pair.
ADDRESSES, PORT = ("10.213.77.1", "10.213.77.2"), 20_000
# The users of two workers on one host must differ.
USERS = ("600000-609999", "610000-619999")
# Both hosts have the files of this machine, but the sockets of tunnels have the same names on both.
OWN_SOCKETS = 'mkdir -p /run/wireguard && mount -t tmpfs none /run/wireguard && exec "$@"'
CLONE_NEWNET = 0x4000_0000
PYTHON = "/usr/bin/python3"
# The second rank sends, the first one measures: from the first byte to the last one, in each round.
SEND = """
import os, socket, time
rank, place = int(os.environ["NODE_RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
block, total, rounds = bytearray(1 << 20), MIB << 20, ROUNDS
if rank == 0:
    server = socket.create_server(place)
    for _ in range(rounds):
        peer = server.accept()[0]
        got, began = peer.recv_into(block), time.perf_counter()
        while got < total:
            size = peer.recv_into(block)
            assert size, got
            got += size
        print("MiB/s", round(total / (1 << 20) / (time.perf_counter() - began), 1), flush=True)
        peer.close()
else:
    for _ in range(rounds):
        deadline = time.monotonic() + 60
        while True:
            try:
                peer = socket.create_connection(place, 5)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        for _ in range(total // len(block)):
            peer.sendall(block)
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b""
        peer.close()
""".replace("MIB", str(SENT_MIB)).replace("ROUNDS", str(ROUNDS))


def obstacle() -> str | None:
    """The reason why this machine cannot run these benchmarks; None if it can."""
    if os.geteuid() != 0:
        return "only root makes networks"
    absent = [name for name in ("ip", "nft", "nsenter", "unshare", "bwrap", PYTHON) if shutil.which(name) is None]
    if absent:
        return f"this machine has no {', '.join(absent)}"
    probe = f"berth-bench-{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode != 0:
        return "this machine makes no network namespaces"
    ip("netns", "del", probe)
    return None


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], text=True, capture_output=True)
    if done.returncode != 0:
        raise Failed(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """Two network namespaces with a pair of virtual interfaces between them."""

    def __init__(self) -> None:
        names = [f"berth-bench-{os.getpid()}-{number}" for number in range(2)]
        self.names = list[str]()
        try:
            for name in names:
                ip("netns", "add", name)
                self.names.append(name)
                ip("-n", name, "link", "set", "lo", "up")
            ip("-n", names[0], "link", "add", "pair0", "type", "veth", "peer", "name", "pair0", "netns", names[1])
            for name, address in zip(names, ADDRESSES):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", "pair0")
                ip("-n", name, "link", "set", "pair0", "up")
        except BaseException:
            self.close()
            raise

    def inside(self, number: int) -> list[str]:
        """The first arguments of a command in a namespace."""
        return ["nsenter", f"--net=/run/netns/{self.names[number]}"]

    def listener(self, number: int) -> socket.socket:
        """A socket that listens at the loopback of a namespace and belongs to this process."""
        made = list[socket.socket]()

        def make() -> None:
            # The change is for this thread only, which ends with it.
            with open(f"/run/netns/{self.names[number]}", "rb") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) == 0:
                    made.append(socket.create_server(("127.0.0.1", 0)))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if not made:
            raise Failed("this process cannot enter a network namespace")
        return made[0]

    def worker(self, site: Site, number: int, name: str, kind: str) -> None:
        """Starts a worker in a namespace, with its way to the portal outside."""
        argv = site.worker_argv(name, "1xH100-80GB", Way(site.worker_port, self.listener(number)).port)
        argv = argv[:argv.index("--allow-unisolated")]
        # There are two workers: one on each host, or one of each kind.
        users = USERS[max(number, ("own", "host").index(kind))]
        more = ["--job-network", kind, "--job-users", users, "--job-resolver", "192.0.2.53", "--address", ADDRESSES[number]]
        alone = ["unshare", "--mount", "sh", "-c", OWN_SOCKETS, "sh"]
        site.service(name, *self.inside(number), *alone, *argv, *more)

    def close(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def states(site: Site, job: str) -> dict[str, float]:
    """The time of each state of a job in seconds, by the portal's clock. It waits for the end of the job."""
    token, seen = site.api.headers["Authorization"].split()[1], dict[str, float]()
    for event in events(site.port, f"{site.org}/jobs/{job}/events?after=0", token, DEADLINE_S):
        if event.name == "change" and (change := json.loads(event.data).get("event")):
            seen.setdefault(change["state"], datetime.fromisoformat(change["at"]).timestamp())
            if change["state"] in ENDED:
                break
    if "succeeded" not in seen or "running" not in seen:
        raise Failed(f"{job} did not succeed: {site.job(job).get('failure')}")
    return seen


def jobs() -> dict[str, Any]:
    """The time from the assignment of a short job to its run, on a node with networks of jobs and on one without."""
    with ExitStack() as stack:
        hosts, site = stack.enter_context(closing(Hosts())), stack.enter_context(closing(Site()))
        for kind in dict.fromkeys(BLOCKS):
            hosts.worker(site, 0, kind, kind)
        site.ready(2)
        site.price()
        took_ms = {kind: list[float]() for kind in BLOCKS}
        for kind in BLOCKS:
            for node in site.operator.items("/operator/nodes"):
                site.operator("PATCH", f"/operator/nodes/{node['id']}", {"cordoned": node["name"] != kind})
            for _ in range(-(-JOBS // BLOCKS.count(kind))):
                seen = states(site, site.submit("true"))
                took_ms[kind].append((seen["running"] - seen["assigned"]) * 1000)
        return took_ms


def rates(text: str) -> list[float]:
    """The MiB/s of all rounds in an output of SEND."""
    return [float(rate) for rate in re.findall(r"^MiB/s (\S+)$", text, re.MULTILINE)]


def plain(hosts: Hosts) -> list[float]:
    """The MiB/s of the pair of interfaces itself."""
    place = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(PORT)}
    ends = list[subprocess.Popen[str]]()
    try:
        for rank in range(2):
            ends.append(subprocess.Popen([*hosts.inside(rank), PYTHON, "-c", SEND], text=True, stdout=subprocess.PIPE,
                                         env=os.environ | place | {"NODE_RANK": str(rank)}))
        text, _ = ends[0].communicate(timeout=DEADLINE_S)
        ends[1].wait(DEADLINE_S)
    finally:
        for end in ends:
            end.kill()
            end.wait()
    if len(measured := rates(text)) != ROUNDS:
        raise Failed(f"the pair of interfaces has {len(measured)} figures in place of {ROUNDS}")
    return measured


def gang() -> dict[str, Any]:
    """The throughput of the network between two ranks, and of the pair below it before and after them."""
    with ExitStack() as stack:
        hosts, site = stack.enter_context(closing(Hosts())), stack.enter_context(closing(Site()))
        for number in range(2):
            hosts.worker(site, number, f"node-{number}", "own")
        site.ready(2)
        site.operator("POST", "/operator/prices", {"offering": BOARD, "per_hour_micros": 3_600_000})
        kinds = {node["isolation"]["gang_network"] for node in site.operator.items("/operator/nodes")}
        before = plain(hosts)
        job = site.submit("", offering=BOARD, nodes=2, command=[PYTHON, "-c", SEND], max_duration_s=600)
        states(site, job)
        ranks = wait_for("the log of the job", lambda: len(found := rates(site.log(job, 1))) == ROUNDS and found)
        site.end([job])
        return {"kind": ", ".join(sorted(kinds)), "ranks": ranks, "plain": before + plain(hosts)}


def upload(site: Site, volume: str) -> None:
    """Creates a volume and uploads its files, each in one part."""
    site.api("POST", f"{site.org}/volumes", {"name": volume, "max_bytes": FILES * FILE_BYTES})
    for number in range(FILES):
        path, content = f"/api/v1{site.org}/volumes/{volume}/uploads/part-{number}.bin", os.urandom(FILE_BYTES)
        site.api("PUT", path.removeprefix("/api/v1"), {"bytes": FILE_BYTES})
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
        with closing(connection):
            connection.request("PATCH", path, content, site.api.headers | {"Upload-Offset": "0"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
            if answer.status >= 300 or not json.loads(text)["done"]:
                raise Failed(f"the upload to {path} was refused ({answer.status}): {text}")


def volumes() -> dict[str, Any]:
    """The first and the second start of jobs with one read-only volume on one node: seconds, and fetched bytes."""
    with closing(Site()) as site:
        metrics, data = free_port(), site.data / "quay"
        # By default a fuller disk has no room for a cache.
        more = ["--metrics-listen", f"127.0.0.1:{metrics}", "--cache-free-gib", "1"]
        site.service("quay", *site.worker_argv("quay", "1xH100-80GB"), *more)
        site.ready(1)
        site.price()

        def hit_bytes() -> int:
            with closing(http.client.HTTPConnection("127.0.0.1", metrics, timeout=DEADLINE_S)) as connection:
                token = (data / "metrics-token").read_text().strip()
                connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
                text = connection.getresponse().read().decode()
            total = re.search(r"^berth_worker_cache_hit_bytes_total (\d+)", text, re.MULTILINE)
            if total is None:
                raise Failed("the worker has no cache")
            return int(total[1])

        took_s, fetched = list[list[float]](), list[list[int]]()
        for number in range(VOLUMES):
            volume = f"set-{number}"
            upload(site, volume)
            took_s.append([])
            fetched.append([])
            for _ in ("first", "second"):
                before = hit_bytes()
                check = f"test $(cat /data/*.bin | wc -c) = {FILES * FILE_BYTES}"
                job = site.submit(check, volumes=[{"name": volume, "path": "/data"}], max_duration_s=600)
                seen = states(site, job)
                took_s[-1].append(seen["running"] - seen["queued"])
                fetched[-1].append(FILES * FILE_BYTES - (hit_bytes() - before))
                site.end([job])
        return {"took_s": took_s, "fetched": fetched}


def found(what: str) -> dict[str, Any]:
    argv = [sys.executable, __file__, what]
    out = subprocess.run(argv, check=True, text=True, stdout=subprocess.PIPE).stdout
    return dict(json.loads(out.splitlines()[-1]))


def left_out(row: MakeRow, names: str) -> list[Row] | None:
    """The rows of a machine that cannot run them; None if it can."""
    why = obstacle()
    return None if why is None else [row(name, None, "", None, note=f"left out: {why}") for name in names.split()]


def beside(value: Row, other: float, ratio: float) -> Row:
    """A row with its peer of the same run."""
    return value | {"peer": round(other, 1), "ratio": round(ratio, 3)}


def job_rows(row: MakeRow) -> list[Row]:
    if rows := left_out(row, JOB_ROWS):
        return rows
    took = {kind: sorted(all_ms) for kind, all_ms in found("jobs").items()}
    rows = []
    for name, share in zip(JOB_ROWS.split(), (0.5, 0.99)):
        own, host = (took[kind][min(len(took[kind]) - 1, int(share * len(took[kind])))] for kind in ("own", "host"))
        note = (f"--job-network host: {host:.1f} ms, ratio {own / host:.2f}; from the assignment to the run, "
                f"{len(took['own'])} jobs of each kind, one after the other")
        rows.append(beside(row(name, own, "ms", None, note=note), host, own / host))
    return rows


def gang_rows(row: MakeRow) -> list[Row]:
    if rows := left_out(row, GANG_ROWS):
        return rows
    data = found("gang")
    ranks, pair = statistics.median(data["ranks"]), statistics.median(data["plain"])
    note = (f"the pair of interfaces itself: {pair:.0f} MiB/s, ratio {ranks / pair:.3f}; {SENT_MIB} MiB by TCP, median "
            f"of {len(data['ranks'])} rounds beside {len(data['plain'])}; {data['kind']}")
    return [beside(row(GANG_ROWS, ranks, "MiB/s", None, least=True, note=note), pair, ranks / pair)]


def volume_rows(row: MakeRow) -> list[Row]:
    if rows := left_out(row, VOLUME_ROWS):
        return rows
    data = found("volumes")
    first_ms, second_ms = (1000 * statistics.median(pair[nth] for pair in data["took_s"]) for nth in range(2))
    first_bytes, second_bytes = (max(pair[nth] for pair in data["fetched"]) for nth in range(2))
    note = (f"second start: {second_ms:.1f} ms, ratio {first_ms / second_ms:.2f}; from the submission to the run, median "
            f"of {len(data['took_s'])} volumes of {FILES} files")
    name, fetched = VOLUME_ROWS.split()
    return [beside(row(name, first_ms, "ms", None, note=note), second_ms, first_ms / second_ms),
            row(fetched, second_bytes, "bytes", 0, note=f"by a second start; a first one fetches {first_bytes >> 20} MiB")]


JOB_ROWS, GANG_ROWS = "networks-job-p50 networks-job-p99", "networks-gang"
VOLUME_ROWS = "networks-volume-start networks-volume-fetched"
BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {JOB_ROWS: job_rows, GANG_ROWS: gang_rows, VOLUME_ROWS: volume_rows}


def main() -> int:
    whats = {"jobs": jobs, "gang": gang, "volumes": volumes}
    if len(sys.argv) != 2 or sys.argv[1] not in whats:
        print(f"network_bench: say one of {', '.join(whats)}", file=sys.stderr)
        return 2
    adopt_orphans()
    print(json.dumps(whats[sys.argv[1]]()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
