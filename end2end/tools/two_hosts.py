"""Two hosts with a network between them, as nodes with jobs of several organizations: the part `network` of test-host.

The network connects the two virtual machines only, and QEMU records all of its packets. The hosts have a kernel of
Debian with WireGuard and RDMA over Ethernet (rdma_rxe), and simulated boards. An address of one host stands for the
internet: it is in a public range, and the other host has a route to it.
"""
from __future__ import annotations

import re
import secrets
import shlex
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import free_port
from rdma_hosts import RdmaHosts
from rest import Api, Failed
from virtual_host import OUTSIDE, SUITE, Machine, System, check, join_line
from worker_bench import DEADLINE_S, ENDED, Site, wait_for

NAMES, ADDRESSES = ("node-1", "node-2"), ("10.77.0.1", "10.77.0.2")
# An address of node-2.
INTERNET, INTERNET_RANGE = "198.51.100.2", "198.51.100.0/24"
# The address of each machine towards this one.
OWN_ADDRESS = "10.0.2.15"
METADATA = "169.254.169.254"
PRIVATE_RANGES = ("10.77.0.0/24", "10.0.2.0/24")
# Each node has a board for the gang and a model of its own, so an offering names a node.
FLEETS, MODELS = ("1xH100-80GB,1xA30", "1xH100-80GB,1xA100-40GB"), ("A30", "A100-40GB")
GANG = "h100-80gb"
SSH, IPERF, HTTP = 22, 5201, 8080
SERVICES = [SSH, IPERF, HTTP]
# The ranges of jobs differ, and node-1 has a route to that of node-2: only the rules close it.
JOB_SUBNETS = ("100.125.0.0/16", "100.126.0.0/16")
PORTS = 65_535
SCAN_S, RULES_S = 1_200.0, 10.0
LAN = "[Match]\nName=eth1\nHost={name}\n[Network]\nLinkLocalAddressing=no\nAddress={address}/24\n{more}"
SYSTEM = System(
    f"{SUITE}-network", "linux-image-amd64,wireguard-tools,nmap,iperf3,rdma-core,perftest,ibverbs-providers", NAMES, {
        "etc/systemd/network/10-node-1.network": LAN.format(
            name=NAMES[0], address=ADDRESSES[0], more=f"[Route]\nDestination={INTERNET_RANGE}\nScope=link\n"),
        "etc/systemd/network/10-node-2.network": LAN.format(
            name=NAMES[1], address=ADDRESSES[1], more=f"Address={INTERNET}/32\n"),
    })

# A connect scan, which needs no right. The time limits fit a machine that is emulated.
NMAP = "nmap -n -Pn -sT -T4 --max-retries 0 --min-rate 3000 --max-rtt-timeout 400ms -oX -"
GATEWAY = "$(ip -4 route show default | cut -d ' ' -f 3)"
LISTEN = """
import os, socket, time
listeners = [socket.create_server(("0.0.0.0", port)) for port in PORTS]
for listener in listeners:
    socket.create_connection(("127.0.0.1", listener.getsockname()[1]), 5).close()
address = os.popen("ip -4 -o address show scope global").read().split()[3].split("/")[0]
print("listens at", address, flush=True)
while True:
    time.sleep(60)
"""
PROBE = """
import socket, time
state = ""
while True:
    try:
        socket.create_connection(("ADDRESS", PORT), 0.3).close()
        now = "open"
    except OSError:
        now = "closed"
    if now != state:
        state = now
        print(state, "at", round(time.monotonic() * 1000), flush=True)
    time.sleep(0.2)
"""
# The sum of a vector over two ranks, in messages with the marker.
ALL_REDUCE = """
import os, socket, struct, time
rank, place = int(os.environ["NODE_RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
form = struct.Struct("1000d")
mine = [float(rank + 1) * i for i in range(1000)]
filler = os.environ["MARKER"].encode() * (4 * 1024 * 1024 // len(os.environ["MARKER"]))
message = form.pack(*mine) + filler
def receive(peer):
    data = peer.makefile("rb").read(len(message))
    assert data[form.size:] == filler, len(data)
    return form.unpack(data[:form.size])
if rank == 0:
    server = socket.create_server(place)
    server.settimeout(60)
    peer = server.accept()[0]
    other = receive(peer)
    peer.sendall(message)
else:
    deadline = time.monotonic() + 60
    while True:
        try:
            peer = socket.create_connection(place, 5)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    peer.sendall(message)
    other = receive(peer)
listener = socket.create_server(("0.0.0.0", 7000 + rank))
print("rank", rank, "at", peer.getsockname()[0], "sum", sum(a + b for a, b in zip(mine, other)), flush=True)
while True:
    time.sleep(60)
"""


@dataclass(frozen=True)
class Tenant:
    """An organization with credit."""

    site: Site
    api: Api
    org: str

    def submit(self, offering: str, *command: str, **more: Any) -> str:
        job = {"name": "network", "offering": offering, "command": list(command), "max_duration_s": 3_600} | more
        return str(self.api("POST", f"/orgs/{self.org}/jobs", job)["id"])

    def job(self, job: str) -> Any:
        return self.api("GET", f"/orgs/{self.org}/jobs/{job}")

    def cancel(self, *jobs: str) -> None:
        for job in jobs:
            self.api("POST", f"/orgs/{self.org}/jobs/{job}/cancel")
        wait_for("the end of jobs", lambda: all(self.job(job)["state"] in ENDED for job in jobs), 0.5)

    def line(self, job: str, pattern: str, rank: int = 0) -> re.Match[str]:
        """The first match in the log of a job that runs."""
        def found() -> re.Match[str] | None:
            state = self.job(job)["state"]
            text = self.site.log(job, 1, rank)
            match = re.search(pattern, text, re.MULTILINE)
            if match is None and state in ENDED:
                raise Failed(f"a job ended as {state} without {pattern!r} in its log: {text[-2_000:]}")
            return match

        match: re.Match[str] = wait_for(f"{pattern!r} in the log of a job", found, 0.5)
        return match

    def output(self, job: str, deadline_s: float = DEADLINE_S) -> str:
        """The log of a job after its success."""
        wait_for("the end of a job", lambda: self.job(job)["state"] in ENDED, 0.5, deadline_s)
        ended, text = self.job(job), self.site.log(job, 1)
        if ended["state"] != "succeeded":
            raise Failed(f"a job ended as {ended['state']}: {ended.get('failure')} {text[-2_000:]}")
        return text


class Scan:
    """The result of nmap as XML: the open ports of each address, and the number of ports in each state."""

    def __init__(self, text: str) -> None:
        begin, end = text.find("<nmaprun"), text.find("</nmaprun>")
        if begin < 0 or end < 0:
            raise Failed(f"nmap gave no result: {text[-2_000:]}")
        self.open, self.states = dict[str, list[int]](), dict[str, Counter[str]]()
        for host in ElementTree.fromstring(text[begin:end] + "</nmaprun>").iter("host"):
            address = next(node.attrib["addr"] for node in host.iter("address"))
            states = [(int(port.attrib["portid"]), state.attrib["state"])
                      for port in host.iter("port") for state in port.iter("state")]
            self.open[address] = [port for port, state in states if state == "open"]
            self.states[address] = Counter(state for _, state in states)
            for rest in host.iter("extraports"):
                self.states[address][rest.attrib["state"]] += int(rest.attrib["count"])

    def total(self) -> Counter[str]:
        """The number of ports in each state at all addresses."""
        return sum(self.states.values(), Counter())

    def text(self) -> str:
        counts = ", ".join(f"{count:,} {state}" for state, count in sorted(self.total().items()))
        return f"{self.total().total():,} ports at {len(self.states)} addresses: {counts}"


def marks(capture: Path, marker: str) -> int:
    """How often a marker is in a capture; parts of it at the edges of packets do not count."""
    return capture.read_bytes().count(marker.encode())


class TwoHosts:
    """A portal on this machine, two nodes, and three organizations."""

    def __init__(self, site: Site, machines: list[Machine], capture: Path) -> None:
        self.site, self.machines, self.capture = site, machines, capture
        people = [(site.api, site.org_id), site.tenant("bo@example.org", "Yard"), site.tenant("cy@example.org", "Mole")]
        self.tenants = [Tenant(site, api, org) for api, org in people]
        self.slices: list[str] = []

    def command(self, number: int, command: str, deadline_s: float = DEADLINE_S) -> str:
        """The output of a command on a machine; `Failed` if it fails or lasts too long."""
        bounded = f"timeout {deadline_s:.0f} sh -c {shlex.quote(command)}"
        done = self.machines[number].ask(bounded, deadline_s=deadline_s + 30)
        if done.returncode != 0:
            raise Failed(f"{NAMES[number]}: {command} ended with {done.returncode}: {done.stdout[-2_000:]}")
        return done.stdout

    def join(self) -> None:
        for number, (machine, address, fleet) in enumerate(zip(self.machines, ADDRESSES, FLEETS)):
            # The UUIDs of simulated boards follow from the data directory, so each node has another one.
            start = f"/usr/local/bin/berth-worker run --data /var/lib/berth-{NAMES[number]}"
            folder = "/etc/systemd/system/berth-worker.service.d"
            self.command(number, f"mkdir -p /etc/berth {folder} && "
                         f"echo BERTH_ADDRESS={address} > /etc/berth/worker.env && "
                         f"echo BERTH_JOB_SUBNET={JOB_SUBNETS[number]} >> /etc/berth/worker.env && "
                         f"printf '[Service]\\nExecStart=\\nExecStart={start}\\n' > {folder}/data.conf")
            joined = machine.ask(join_line(self.site, fleet))
            check(f"{NAMES[number]} is a node", joined.returncode == 0 and " is node_" in joined.stdout, joined.stdout)
        self.site.ready(len(self.machines))
        for node in self.nodes():
            network = node["isolation"]["network"]
            check(f"{node['name']}: jobs have their own network ({network})", network.startswith("own"), node["isolation"])
        offerings = self.site.operator.items("/offerings")
        for model in MODELS:
            cut = [offer for offer in offerings if offer["gpu_model"].startswith(model) and offer.get("mig_profile")]
            self.slices.append(min(cut, key=lambda offer: offer["cells"])["slug"])
        for slug in [GANG, *self.slices]:
            self.site.operator("POST", "/operator/prices", {"offering": slug, "per_hour_micros": 3_600_000})

    def nodes(self) -> list[Any]:
        return self.site.operator.items("/operator/nodes")

    def serve(self) -> None:
        """Services on both machines: those of the controls."""
        listening = " && ".join(f"ss -Hltn 'sport = {port}' | grep -q ." for port in SERVICES)
        for number in range(len(self.machines)):
            self.command(number, f"systemd-run --quiet --unit=iperf iperf3 -s -p {IPERF}; "
                         f"systemd-run --quiet --unit=http python3 -m http.server {HTTP} --directory /usr/share/doc; "
                         f"until {listening}; do sleep 0.1; done")
        self.command(0, f"ip route add {JOB_SUBNETS[1]} via {ADDRESSES[1]}")
        rate = self.command(0, f"iperf3 -c {ADDRESSES[1]} -p {IPERF} -t 2 -f m | grep receiver")
        figure = re.search(r"[\d.]+ Mbits/sec", rate)
        check(f"the machines reach each other ({figure[0] if figure else rate})", figure is not None)

    def scans(self) -> None:
        """No port of a host, a private network or another organization is open to a job; the internet is."""
        control = Scan(self.command(0, f"{NMAP} -p 1-{PORTS} {' '.join(ADDRESSES)}", SCAN_S))
        check(f"control: a machine finds the services of both; {control.text()}",
              all(set(SERVICES) <= set(control.open[address]) for address in ADDRESSES), control.open)
        a, b, _ = self.tenants
        # A job may not listen on ports below 1024.
        listen = LISTEN.replace("PORTS", str([IPERF, HTTP, 7_000]))
        listeners = [b.submit(slug, "python3", "-c", listen) for slug in self.slices]
        others = [b.line(job, r"^listens at (\S+)$")[1] for job in listeners]
        closed = [*ADDRESSES, OWN_ADDRESS, OUTSIDE, METADATA, *others]
        targets = " ".join(dict.fromkeys([*closed, INTERNET]))
        began = time.monotonic()
        script = f"gateway={GATEWAY}; echo gateway $gateway; exec {NMAP} -p 1-{PORTS} {targets} $gateway"
        text = a.output(a.submit(self.slices[0], "sh", "-c", script), SCAN_S)
        took_s, scan = time.monotonic() - began, Scan(text)
        gateway = re.search(r"^gateway (\S+)$", text, re.MULTILINE)
        check("a job has a gateway", gateway is not None, text[:200])
        internet = scan.open.pop(INTERNET)
        del scan.states[INTERNET]
        check(f"control: the same scan in a job finds {len(internet)} ports of the internet, which are {NAMES[1]}'s",
              internet == control.open[ADDRESSES[1]], internet)
        self.expect_closed(f"a job on {NAMES[0]} in {took_s:.0f} s", scan, len(scan.open) * PORTS,
                           [*closed, gateway[1] if gateway else ""])
        ports = ",".join(str(port) for port in [*SERVICES, 53, 80, 443, self.site.port, self.site.worker_port])
        script = f"{NMAP} -p {ports} {' '.join(PRIVATE_RANGES)}"
        ranges = Scan(a.output(a.submit(self.slices[0], "sh", "-c", script), SCAN_S))
        self.expect_closed(f"a job, in {' and '.join(PRIVATE_RANGES)}", ranges, 512 * (ports.count(",") + 1), ADDRESSES)
        page = a.output(a.submit(self.slices[0], "curl", "-sS", "--max-time", "20", "-o", "/dev/null", "-w",
                                 "%{http_code}", f"http://{INTERNET}:{HTTP}/"))
        check("a job loads a page of the internet", page.strip() == "200", page)
        b.cancel(*listeners)

    def expect_closed(self, origin: str, scan: Scan, ports: int, addresses: Iterable[str]) -> None:
        seen = {address: found for address, found in scan.open.items() if found}
        whole = scan.total().total() == ports and set(addresses) <= set(scan.open)
        check(f"{origin}: 0 open; {scan.text()}", whole and not seen, seen or sorted(scan.open))

    def gang(self) -> None:
        """Two ranks exchange data, in packets that tell nothing, and no other organization reaches them."""
        a, _, c = self.tenants
        marker, plain = f"berth-{secrets.token_hex(8)}", f"plain-{secrets.token_hex(8)}"
        self.command(0, f"curl -s -o /dev/null --max-time 20 http://{ADDRESSES[1]}:{HTTP}/{plain}")
        check("control: the capture has what a machine sends in plain", marks(self.capture, plain) > 0)
        before = self.capture.stat().st_size
        job = a.submit(GANG, "python3", "all_reduce.py", nodes=2, files={"all_reduce.py": ALL_REDUCE},
                       env={"MARKER": marker})
        ranks = [a.line(job, rf"^rank {rank} at (\S+) sum (\S+)$", rank) for rank in range(2)]
        sent, found = self.capture.stat().st_size - before, marks(self.capture, marker)
        total = 3.0 * sum(range(1_000))
        check(f"two ranks at {ranks[0][1]} and {ranks[1][1]} have the sum {total:.0f} after {sent:,} captured bytes",
              sent > 8 << 20 and all(float(rank[2]) == total for rank in ranks), [rank[0] for rank in ranks])
        kinds = [str(node["isolation"].get("gang_network")) for node in self.nodes()]
        check(f"the ranks have an encrypted network ({kinds[0]})", all(kind.startswith("WireGuard") for kind in kinds),
              kinds)
        check("the capture has no plain byte of the ranks", found == 0, f"{found} markers")
        addresses = list(dict.fromkeys(rank[1] for rank in ranks))
        scan = Scan(c.output(c.submit(self.slices[1], "sh", "-c", f"{NMAP} -p 1-{PORTS} {' '.join(addresses)}"), SCAN_S))
        origin = f"a job of another organization on {NAMES[1]}, to the ranks"
        self.expect_closed(origin, scan, len(addresses) * PORTS, addresses)
        a.cancel(job)

    def rdma(self) -> None:
        """RDMA over Ethernet works between the hosts, and jobs have none of it."""
        for number in range(len(self.machines)):
            self.command(number, "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth1 && rdma link show")
        # The second entry of the table of addresses is that of IP version 4.
        test = "ib_write_bw -d rxe0 -x 1 -m 1024 -s 65536 -n 200 -F"
        listening = "ss -Hltn 'sport = 18515' | grep -q ."
        self.command(1, f"systemd-run --quiet --unit=bw {test}; until {listening}; do sleep 0.1; done")
        figures = self.command(0, f"{test} {ADDRESSES[1]}")
        rate = re.search(r"^ *65536 +200 +\S+ +(\S+)", figures, re.MULTILINE)
        check(f"control: ib_write_bw between the machines ({rate[1] if rate else 'no'} MiB/s)", rate is not None, figures)
        self.command(0, "test -c /dev/infiniband/uverbs0")
        a = self.tenants[0]
        seen = a.output(a.submit(self.slices[0], "sh", "-c", "ls /dev/infiniband 2>&1; ls /dev"))
        check("a job has no /dev/infiniband", "infiniband\n" not in seen and "uverbs" not in seen, seen)
        job = {"name": "rdma", "offering": GANG, "command": ["true"], "rdma": True}
        status, answer, _ = a.api.exchange("POST", f"/api/v1/orgs/{a.org}/jobs", job)
        fields = [error["pointer"] for error in answer.get("errors", [])] if status == 422 else []
        check("a job with RDMA is refused without the grant", fields == ["/rdma"], answer)

    def flush(self) -> None:
        """The rules of a host come back after another program removes them."""
        a = self.tenants[0]
        probe = PROBE.replace("ADDRESS", ADDRESSES[0]).replace("PORT", str(SSH))
        job = a.submit(self.slices[0], "python3", "-c", probe)
        a.line(job, r"^closed at")
        # The time on the machine, without that of the connection to it.
        uptime = "cut -d ' ' -f 1 /proc/uptime"
        wait = "until nft list tables | grep -q 'inet berth_'; do sleep 0.5; done"
        first, last = self.command(0, f"nft flush ruleset && {uptime} && {wait} && {uptime}").split()
        took_s = float(last) - float(first)
        # nft itself lasts seconds on an emulated machine, so the limit is for the time that the job sees.
        check(f"the rules are back, seen by nft {took_s:.1f} s after its flush", True)
        seen = wait_for("a closed host", lambda: self.states(job)[-1][0] == "closed" and self.states(job))
        gaps_ms = [int(later[1]) - int(former[1]) for former, later in zip(seen, seen[1:]) if former[0] == "open"]
        check(f"the host was open to a job for {sum(gaps_ms):,} ms, and is closed again",
              sum(gaps_ms) < RULES_S * 1_000, seen)
        a.cancel(job)

    def states(self, job: str) -> list[tuple[str, str]]:
        return re.findall(r"^(open|closed) at (\d+)$", self.site.log(job, 1), re.MULTILINE)

    def run(self) -> None:
        self.join()
        self.serve()
        self.rdma()
        self.gang()
        self.flush()
        self.scans()
        RdmaHosts(self, ADDRESSES).run()


def run() -> None:
    # The first machine waits for the connection of the second. Both end with this program.
    port = free_port()
    links = (f"listen=127.0.0.1:{port}", f"connect=127.0.0.1:{port}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="berth-capture-")))
        site = stack.enter_context(closing(Site(seen_from=OUTSIDE)))
        machines = []
        for number, (name, link) in enumerate(zip(NAMES, links), 1):
            options = ["-netdev", f"socket,id=lan,{link}", "-device",
                       f"virtio-net-pci,netdev=lan,mac=52:54:00:77:00:0{number}"]
            if number == 1:
                options += ["-object", f"filter-dump,id=capture,netdev=lan,file={folder / 'lan.pcap'}"]
            machine = Machine(SYSTEM, name, *options, memory_mib=1536, cpus=1)
            machines.append(stack.enter_context(closing(machine)))
        TwoHosts(site, machines, folder / "lan.pcap").run()
