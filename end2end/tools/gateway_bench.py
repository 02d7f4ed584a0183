#!/usr/bin/env python3
"""The benchmarks of a gateway: requests and streams through it to real replicas, with a key, a hold and a meter.

`gateway_bench.py gateway` prints its figures as JSON. The replicas run server/gateway/examples/upstream.rs in their
sandboxes, and server/gateway/examples/gateway_load.rs makes the load. HAProxy and nginx, where they are installed, pass the same
load to as many processes of the same upstream in the same run; they know no keys, hold nothing and use no TLS.
BENCH_GATEWAY_SECONDS (10) is the length of each measurement, and BENCH_STREAMS (1000) the number of streams.
"""
from __future__ import annotations

import functools
import http.client
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import Service, adopt_orphans, free_port
from rest import Failed
from service_site import ServiceSite, obstacle
from worker_bench import DEADLINE_S, ROOT, MakeRow, Row, wait_for

SECONDS, STREAMS = int(os.environ.get("BENCH_GATEWAY_SECONDS") or 10), int(os.environ.get("BENCH_STREAMS") or 1_000)
CONNECTIONS, REPLICAS, TOKENS_PER_S, WAKES = 32, 2, 50, 5
# Tokens of a stream that outlasts the opening of all others and the measurement.
STREAM_TOKENS = TOKENS_PER_S * (SECONDS + 150)
MODEL, PORT = "stub", 8000
EXAMPLES = ROOT / "target/release/examples"
# Programs of the administrator are not on everybody's PATH.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
HAPROXY = """
global
    maxconn 4096
defaults
    mode http
    timeout connect 5s
    timeout client 300s
    timeout server 300s
    option http-keep-alive
    http-reuse always
frontend gateway
    bind 127.0.0.1:{port}
    default_backend replicas
backend replicas
    balance leastconn
{servers}
"""
# Its processes read the directory of this run; nginx ignores the user unless it is root.
NGINX = """
daemon off;
user root;
worker_processes auto;
worker_rlimit_nofile 20000;
pid {data}/nginx.pid;
error_log {data}/nginx-errors.log;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {data}/nginx-body;
    proxy_temp_path {data}/nginx-proxy;
    fastcgi_temp_path {data}/nginx-fastcgi;
    uwsgi_temp_path {data}/nginx-uwsgi;
    scgi_temp_path {data}/nginx-scgi;
    keepalive_requests 100000000;
    upstream replicas {{
        least_conn;
{servers}
        keepalive 64;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


def build() -> None:
    """The upstream and the load. Python would be what is measured, so both are programs."""
    argv = ["cargo", "build", "--quiet", "--release", "--workspace", "--example", "upstream", "--example", "gateway_load"]
    subprocess.run(argv, check=True, cwd=ROOT)


def load(what: str, port: int, key: str | None, *more: str, opened: Callable[[], None] | None = None) -> dict[str, Any]:
    """The figures of one run of the load; `opened` is called while all streams are open."""
    argv = [str(EXAMPLES / "gateway_load"), what, "--address", f"127.0.0.1:{port}", "--model", MODEL, "--seconds", str(SECONDS), *more]
    # In the environment, where other people of this machine do not see it.
    env = os.environ | ({"LOAD_KEY": key} if key else {})
    with subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(json.loads(line))
            if "open" in lines[-1] and opened:
                opened()
    if process.returncode != 0 or not lines:
        raise Failed(f"the load on port {port} failed ({process.returncode})")
    if lines[-1].get("refused"):
        raise Failed(f"{lines[-1]['refused']} requests to port {port} were refused")
    return dict(lines[-1])


def requests(port: int, key: str | None, per_second: float | None = None) -> dict[str, Any]:
    pace = [] if per_second is None else ["--per-second", str(max(1, int(per_second)))]
    return load("requests", port, key, "--connections", str(CONNECTIONS), *pace)


def streams(port: int, key: str | None, opened: Callable[[], None] | None = None) -> dict[str, Any]:
    return load("streams", port, key, "--streams", str(STREAMS), "--tokens", str(STREAM_TOKENS), opened=opened)


def rss_kb(process: Service) -> int:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])


def listens(port: int) -> Callable[[], bool]:
    """Whether somebody accepts connections on the port: state 0A in the kernel's list of sockets of version 4."""
    local = f"0100007F:{port:04X}"

    def found() -> bool:
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        return any(row[1] == local and row[3] == "0A" for row in rows)

    return found


def upstreams(site: ServiceSite) -> list[int]:
    """As many processes of the upstream as replicas, on the loopback of this machine."""
    ports = [free_port() for _ in range(REPLICAS)]
    for port in ports:
        site.service(f"upstream-{port}", str(EXAMPLES / "upstream"), "--listen", f"127.0.0.1:{port}")
        wait_for("an upstream", listens(port))
    return ports


def haproxy(site: ServiceSite, ports: list[int]) -> tuple[str, int] | None:
    """Version and port of HAProxy before the upstreams; None where it is not installed."""
    program = shutil.which("haproxy", path=PATH)
    if program is None:
        return None
    port, file = free_port(), site.data / "haproxy.cfg"
    servers = "\n".join(f"    server replica-{each} 127.0.0.1:{each}" for each in ports)
    file.write_text(HAPROXY.format(port=port, servers=servers))
    site.service("haproxy", program, "-db", "-f", str(file))
    wait_for("HAProxy", listens(port))
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"version (\S+)", said)[0], port


def nginx(site: ServiceSite, ports: list[int]) -> tuple[str, int] | None:
    """The same for nginx."""
    program = shutil.which("nginx", path=PATH)
    if program is None:
        return None
    port, file = free_port(), site.data / "nginx.conf"
    servers = "\n".join(f"        server 127.0.0.1:{each};" for each in ports)
    file.write_text(NGINX.format(port=port, data=site.data, servers=servers))
    site.service("nginx", program, "-p", str(site.data), "-e", str(site.data / "nginx-errors.log"), "-c", str(file))
    wait_for("nginx", listens(port))
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stderr
    return re.findall(r"nginx/(\S+)", said)[0], port


def own_start_ms(site: ServiceSite) -> float:
    """The median time from the start of the upstream alone to its first answer."""
    took = []
    for _ in range(WAKES):
        port, began = free_port(), time.perf_counter()
        alone = site.service("upstream-alone", str(EXAMPLES / "upstream"), "--listen", f"127.0.0.1:{port}")
        wait_for("the upstream alone", lambda: status_of(port, None) == 200, 0.001)
        took.append((time.perf_counter() - began) * 1000)
        site.kill(alone)
    return statistics.median(took)


def wake_ms(site: ServiceSite, service: str, port: int, key: str) -> float:
    """The median time from a request for the sleeping service to its answer."""
    scaling = {"min_replicas": 0, "max_replicas": 1, "target_requests": 10_000, "down_delay_s": 0, "idle_s": 1}
    site.api("PATCH", service, {"scaling": scaling})

    def is_asleep() -> bool:
        seen = site.api("GET", service)
        return seen["state"] == "asleep" and not seen["replicas"]

    took = []
    for _ in range(WAKES):
        wait_for("the service to fall asleep", is_asleep)
        began = time.perf_counter()
        if (status := status_of(port, key)) != 200:
            raise Failed(f"the request for the sleeping service was answered with {status}")
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def status_of(port: int, key: str | None) -> int:
    """The status of one request; 0 while nobody accepts connections."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
    try:
        link.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return link.getresponse().status
    except ConnectionRefusedError:
        return 0
    finally:
        link.close()


def through_gateway(site: ServiceSite) -> tuple[dict[str, Any], str, int, str]:
    """The figures of streams, with the service, the port of the gateway and the key."""
    site.volume("upstream", (EXAMPLES / "upstream").stat().st_size)
    site.upload("upstream", "upstream", EXAMPLES / "upstream")
    # An uploaded file is not executable.
    script = ('cp "$BERTH_VOLUME_UPSTREAM/upstream" upstream && chmod 700 upstream && '
              f'exec ./upstream --listen 127.0.0.1:"$PORT" --tokens-per-s {TOKENS_PER_S}')
    job = {"volumes": [{"name": "upstream", "path": "up"}]}
    revision = site.revision(script, PORT, job=job, concurrency=10_000)
    scaling = {"min_replicas": REPLICAS, "max_replicas": REPLICAS, "target_requests": 10_000}
    service = site.create(MODEL, revision, scaling=scaling)
    site.price_tokens(service, 100_000, 400_000)
    key = site.key("bench")
    site.until_ready(service, REPLICAS)
    port = site.gateway("gateway-1")
    wait_for("an answer", lambda: answers(port, key))
    # The memory of streams is measured first: later the gateway has room that earlier requests left.
    process = site.gateways["gateway-1"][1]
    before_kb, open_kb = rss_kb(process), list[int]()

    def opened() -> None:
        time.sleep(SECONDS / 2)
        open_kb.append(rss_kb(process))

    figures = streams(port, key, opened)
    return figures | {"kb_per_stream": (open_kb[0] - before_kb) / STREAMS}, service, port, key


def answers(port: int, key: str) -> bool:
    """Whether a request gets the answer of a replica: the gateway may have an older snapshot."""
    argv = [str(EXAMPLES / "gateway_load"), "requests", "--address", f"127.0.0.1:{port}", "--model", MODEL, "--seconds", "1",
            "--connections", "1"]
    done = subprocess.run(argv, env=os.environ | {"LOAD_KEY": key}, capture_output=True, text=True)
    return done.returncode == 0 and json.loads(done.stdout)["answers"] > 0


def gateway() -> dict[str, Any]:
    if why := obstacle():
        raise Failed(why)
    # The programs below inherit the limit: each stream has two connections in a gateway.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    build()
    site = ServiceSite("1xH100-80GB")
    try:
        streaming, service, port, key = through_gateway(site)
        ports = upstreams(site)
        peers = {"haproxy": haproxy(site, ports), "nginx": nginx(site, ports)}
        best = requests(port, key)
        # Half of the load that the gateway passes, once through it and once without it.
        half = best["per_second"] / 2
        found = {"streams": streaming, "requests": best, "half": requests(port, key, half), "direct": requests(ports[0], None, half)}
        for name, peer in peers.items():
            found[name] = None if peer is None else {
                "version": peer[0], "requests": requests(peer[1], None), "streams": streams(peer[1], None)}
        # A machine does not keep its speed, so ours is measured before and after theirs.
        found["again"] = requests(port, key)
        # Last, because the service sleeps from then on.
        return found | {"own_start_ms": own_start_ms(site), "wake_ms": wake_ms(site, service, port, key)}
    finally:
        site.close()


@functools.cache
def measured() -> dict[str, Any]:
    """What a process of its own found, once for all rows."""
    out = subprocess.run([sys.executable, __file__, "gateway"], check=True, text=True, stdout=subprocess.PIPE).stdout
    return dict(json.loads(out.splitlines()[-1]))


def gateway_rows(row: MakeRow) -> list[Row]:
    said = measured()
    ours = (said["requests"]["per_second"] + said["again"]["per_second"]) / 2
    names = {"haproxy": "HAProxy", "nginx": "nginx"}
    beside = ", ".join(
        f"{name} is not installed" if said[peer] is None
        else f"{name} {said[peer]['version']} {said[peer]['requests']['per_second']:.0f}/s"
        for peer, name in names.items())
    rows = [row("gateway-requests", ours, "/s", 8_000, least=True,
                note=f"{CONNECTIONS} connections, {REPLICAS} replicas, with key, hold and meter; {beside}")]
    if said["haproxy"] is None:
        rows.append(row("gateway-beside-haproxy", None, "", 0.5, least=True, note="left out: HAProxy is not installed"))
    else:
        theirs = said["haproxy"]["requests"]["per_second"]
        ratio = row("gateway-beside-haproxy", ours / theirs, "", 0.5, least=True, note="HAProxy without keys, meter and TLS")
        rows.append(ratio | {"value": round(ours / theirs, 2), "peer": round(theirs, 1)})
    for name, goal in (("p50", None), ("p99", 1)):
        half_ms, direct_ms = (said[way][f"{name}_us"] / 1000 for way in ("half", "direct"))
        note = f"{half_ms:.2f} ms beside {direct_ms:.2f} ms without a gateway, both at {said['requests']['per_second'] / 2:.0f}/s"
        added = row(f"gateway-added-{name}", half_ms - direct_ms, "ms", goal, note=note)
        rows.append(added | {"value": round(half_ms - direct_ms, 2)})
    return rows + stream_rows(row, said, names) + wake_rows(row, said)


def wake_rows(row: MakeRow, said: dict[str, Any]) -> list[Row]:
    note = f"median of {WAKES} first requests; the program of the replica alone starts in {said['own_start_ms']:.0f} ms"
    return [row("gateway-wake", said["wake_ms"], "ms", None, note=note) | {"peer": round(said["own_start_ms"], 1)}]


def stream_rows(row: MakeRow, said: dict[str, Any], names: dict[str, str]) -> list[Row]:
    def delays(figures: dict[str, Any]) -> str:
        return f"{figures['p99_us'] / 1000:.0f} ms at {figures['tokens_per_second']:.0f} tokens/s"

    ours = said["streams"]
    beside = ", ".join(
        f"{name} {delays(said[peer]['streams'])}" if said[peer] else f"{name} is not installed" for peer, name in names.items())
    note = f"{STREAMS} streams of {TOKENS_PER_S} tokens/s; {beside}"
    per_stream = row("gateway-stream-memory", ours["kb_per_stream"], "kB", 16, note="growth of the resident memory for each open stream")
    return [row("gateway-stream-p99", ours["p99_us"] / 1000, "ms", 50, note=note),
            row("gateway-stream-tokens", ours["tokens_per_second"], "tokens/s", 0.9 * STREAMS * TOKENS_PER_S, least=True),
            per_stream]


BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {
    "gateway-requests gateway-beside-haproxy gateway-added-p50 gateway-added-p99 gateway-stream-p99 gateway-stream-tokens "
    "gateway-stream-memory gateway-wake": gateway_rows,
}


def main() -> int:
    if sys.argv[1:] != ["gateway"]:
        print("gateway_bench: say gateway", file=sys.stderr)
        return 2
    adopt_orphans()
    print(json.dumps(gateway()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
