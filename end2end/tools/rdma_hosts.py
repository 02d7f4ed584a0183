"""RDMA over Ethernet inside jobs on two hosts: the last step of the part `network` of test-host.

A job with RDMA needs all boards of its node, so the hosts join again as nodes with one simulated board each. The RDMA
devices are those of the kernel's rdma_rxe, and the nodes have them by `--simulate-rdma /`.
"""
from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rest import Failed
from virtual_host import check
from worker_bench import wait_for

if TYPE_CHECKING:
    from two_hosts import Tenant, TwoHosts

NODES = ("rdma-1", "rdma-2")
MODEL, OFFERING = "1xH100-80GB", "h100-80gb"
PORT = 18_515
# Emulated machines start the programs of a measurement slowly.
DEADLINE_S = 240
# The second entry of the table of addresses is that of IP version 4.
TEST = "ib_write_bw -d rxe0 -x 1 -m 1024 -s 65536 -n 200 -F"
# A part of the throughput that the emulated adapters reach.
SLOW = "rate 16mbit burst 32kbit latency 400ms"
RATE = r"^ *65536 +200 +\S+ +(\S+)"
# Rank 0 is the server. The server of perftest takes one connection, so the other rank tries it with the test itself.
BETWEEN_RANKS = f"""
ls -x /dev/infiniband
echo "ports $NCCL_IB_HCA"
if [ "$NODE_RANK" = 0 ]; then exec {TEST}; fi
for _ in $(seq 60); do {TEST} "$MASTER_ADDR" && exit 0; sleep 1; done
exit 1
"""
SERVE = f"""
ip -4 -o address show eth1
while {TEST}; do echo served; done
"""
FROM_ANOTHER = """
ls -d /dev/infiniband
TEST ADDRESS
echo "ib_write_bw ended with $?"
python3 - << 'END'
import socket
try:
    socket.create_connection(("ADDRESS", PORT), 5).close()
    print("connection open")
except OSError as error:
    print("connection closed:", error)
END
"""


class RdmaHosts:
    """The two hosts of another trial as new nodes with RDMA devices."""

    def __init__(self, trial: TwoHosts, addresses: tuple[str, str]) -> None:
        self.trial, self.addresses = trial, addresses

    def join(self) -> None:
        for number, name in enumerate(NODES):
            token = self.trial.site.operator("POST", "/operator/join-tokens", {"approve": True, "adopt_labels": True})
            settings = {"NODE_NAME": name, "SIMULATE": MODEL, "SIMULATE_RDMA": "/", "JOIN_TOKEN": token["secret"]}
            kept = "|".join(settings)
            lines = "".join(f"BERTH_{key}={value}\\n" for key, value in settings.items())
            start = f"/usr/local/bin/berth-worker run --data /var/lib/berth-{name}"
            folder = "/etc/systemd/system/berth-worker.service.d"
            # The host has the nodes that a job never gets, too.
            self.trial.command(number, "modprobe -a rdma_ucm ib_umad && systemctl stop berth-worker && "
                               f"sed -i -E '/^BERTH_({kept})=/d' /etc/berth/worker.env && "
                               f"printf '{lines}' >> /etc/berth/worker.env && "
                               f"printf '[Service]\\nExecStart=\\nExecStart={start}\\n' > {folder}/data.conf && "
                               "systemctl daemon-reload && systemctl start berth-worker")
        nodes = wait_for("the nodes with RDMA", self.nodes)
        ports = [[(port["device"], port["state"]) for port in node["rdma_ports"]] for node in nodes]
        check("each node has its RDMA port, which is active", ports == [[("rxe0", "ACTIVE")]] * len(NODES), ports)

    def nodes(self) -> list[Any] | None:
        """The nodes of both hosts. `None`: one is not ready."""
        all_nodes = self.trial.site.operator.items("/operator/nodes")
        found = [node for node in all_nodes if node["name"] in NODES and node["state"] == "ready" and node["gpus"]]
        return found if len(found) == len(NODES) else None

    def between_ranks(self, tenant: Tenant) -> None:
        job = tenant.submit(OFFERING, "sh", "-c", BETWEEN_RANKS, nodes=2, rdma=True)
        tenant.output(job, DEADLINE_S)
        texts = [self.trial.site.log(job, 1, rank) for rank in range(len(NODES))]
        rate = re.search(RATE, texts[1], re.MULTILINE)
        check(f"ib_write_bw between the ranks of a job ({rate[1] if rate else 'no'} MiB/s)", rate is not None, texts)
        seen = [text.split("\n")[0].split() for text in texts]
        check("a job with RDMA has its adapter and no node that changes the fabric",
              all(nodes in (["rdma_cm", "uverbs0"], ["uverbs0"]) for nodes in seen), seen)
        for number in range(len(NODES)):
            self.trial.command(number, "test -c /dev/infiniband/umad0")
        check("NCCL gets the port", all("\nports =rxe0:1\n" in text for text in texts), texts)

    def from_another_organization(self, tenant: Tenant, other: Tenant) -> None:
        """A job without the grant does not reach the RDMA of a job of another organization."""
        server = tenant.submit(OFFERING, "sh", "-c", SERVE, rdma=True)
        address = tenant.line(server, r"inet ([\d.]+)/")[1]
        elsewhere = 1 - self.addresses.index(address)
        listening = f"ss -Hltn 'sport = {PORT}' | grep -q ."
        self.trial.command(1 - elsewhere, f"until {listening}; do sleep 0.1; done")
        script = FROM_ANOTHER.replace("TEST", TEST).replace("ADDRESS", address).replace("PORT", str(PORT))
        text = other.output(other.submit(OFFERING, "sh", "-c", script))
        ended = re.search(r"^ib_write_bw ended with (\d+)$", text, re.MULTILINE)
        check("a job of another organization on the other node has no adapter, and ib_write_bw fails",
              ended is not None and ended[1] != "0" and "connection closed" in text
              and re.search("^/dev/infiniband", text, re.MULTILINE) is None, text[-2_000:])
        # The server still waits for its first client.
        figures = self.trial.command(elsewhere, f"{TEST} {address}")
        rate = re.search(RATE, figures, re.MULTILINE)
        check(f"control: the machine of that job reaches the same server ({rate[1] if rate else 'no'} MiB/s)",
              rate is not None, figures)
        tenant.cancel(server)

    def slow_link(self, tenant: Tenant) -> None:
        """A link that became slow refuses a job before its start, until it is repaired."""
        # With the job before, these are the three measurements of an expectation.
        for _ in range(2):
            tenant.output(tenant.submit(OFFERING, "true", nodes=2, rdma=True), DEADLINE_S)
        self.trial.command(0, f"tc qdisc add dev eth1 root tbf {SLOW}")
        job = tenant.submit(OFFERING, "true", nodes=2, rdma=True)
        reasons = wait_for("the refusal of a slow link", self.reasons, 0.5, DEADLINE_S)
        slow = re.fullmatch(r"The RDMA link between the nodes .* reaches (\d+) MiB/s; at least (\d+) are expected\.",
                            reasons[0])
        found = f"{slow[1]} MiB/s in place of {slow[2]}" if slow else reasons
        check(f"a slow RDMA link is found before the start of a job ({found})",
              slow is not None and reasons[0] == reasons[1], reasons)
        # Both ranks have reported then.
        wait_for("the job in the queue", lambda: tenant.job(job)["state"] == "queued", 0.5)
        check("the job waits and costs nothing", tenant.job(job)["cost_micros"] == 0, tenant.job(job))
        self.trial.command(0, "tc qdisc del dev eth1 root")
        for node in self.nodes() or []:
            self.trial.site.operator("DELETE", f"/operator/nodes/{node['id']}/set-aside")
        tenant.output(job, DEADLINE_S)
        check("the job starts after the release of its nodes", tenant.job(job)["attempt"] > 1, tenant.job(job))
        for number in range(len(NODES)):
            self.trial.command(number, "! pgrep ib_write_bw && ! ss -Hltn 'sport >= 288 and sport <= 352' | grep .")
        check("no process and no port of the measurement is left", True)

    def reasons(self) -> list[str] | None:
        """The reasons against both nodes. `None`: one is not set aside."""
        found = [node["set_aside"]["reason"] for node in self.nodes() or [] if node.get("set_aside")]
        return found if len(found) == len(NODES) else None

    def run(self) -> None:
        tenant, _, other = self.trial.tenants
        self.trial.site.operator("PUT", f"/operator/orgs/{tenant.org}/rdma", {"granted": True})
        self.join()
        self.between_ranks(tenant)
        self.slow_link(tenant)
        self.from_another_organization(tenant, other)
