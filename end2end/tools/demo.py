#!/usr/bin/env python3
"""Start a whole Berth on this machine: portal, one worker with simulated boards, a gateway of services, two accounts.

Takes PORT (8080), WORKER_PORT (8081), INFERENCE_PORT (8082: of the worker for gateways), GATEWAY_PORT (8083), DATA
(./data), DIST (target/dist) and FLEET (2xH100-80GB,1xA30) from the environment.
What a script needs to use it is in DATA/demo.json, which appears once everything works. Ctrl-C or SIGTERM stops all of it; started
again with the same DATA, it takes up where it stopped.
"""
from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import gateways
from processes import POLL_S, Service, adopt_orphans, stop_orphans
from rest import Api, Failed, find_json, put_json

ROOT = Path(__file__).resolve().parents[2]
DIST = Path(os.environ.get("DIST") or ROOT / "target/dist").resolve()
DATA = Path(os.environ.get("DATA") or "./data").resolve()
PORT = int(os.environ.get("PORT") or 8080)
WORKER_PORT = int(os.environ.get("WORKER_PORT") or 8081)
INFERENCE_PORT = int(os.environ.get("INFERENCE_PORT") or 8082)
GATEWAY_PORT = int(os.environ.get("GATEWAY_PORT") or 8083)
FLEET, NODE = os.environ.get("FLEET") or "2xH100-80GB,1xA30", "quay-1"
BOARDS = sum(int(part.split("x")[0]) for part in FLEET.split(","))
CREDIT_MICROS = 250_000_000
# A whole board, an hour, by what its model's name contains; a slice costs its share of the memory.
WHOLE_BOARD_MICROS = {"H100": 2_990_000, "A30": 600_000}
DEADLINE_S = 60.0


class Stopped(Exception):
    """A signal asks for the end."""


def say(text: str) -> None:
    print(text, flush=True)


def wait_for(what: str, found: Callable[[], Any], *services: Service) -> Any:
    """Polls until `found` gives something, as long as the services live and the deadline holds."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for service in services:
            service.check()
        try:
            value = found()
        except (OSError, http.client.HTTPException):
            value = None
        if value:
            return value
        if time.monotonic() > deadline:
            logs = " and ".join(str(service.log) for service in services)
            raise Failed(f"After {DEADLINE_S:.0f} s still waiting for {what}; see {logs}.")
        time.sleep(POLL_S)


def check_port(port: int, variable: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise Failed(f"Port {port} cannot be used ({error.strerror}). Stop what listens there, "
                         f"or choose another: {variable}={port + 100} make demo") from error


def lock_data() -> int:
    """Two portals on the same data would spoil it. The lock ends with this process."""
    DATA.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(DATA / "demo.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Failed(f"Another demo runs with {DATA}. Stop it, or choose other data: DATA=… make demo") from error
    return descriptor


def start_portal() -> Service:
    portal = Service(
        "portal", DATA / "portal.log", str(DIST / "berth-portal"), "serve", "--data", str(DATA),
        "--listen", f"127.0.0.1:{PORT}", "--worker-listen", f"127.0.0.1:{WORKER_PORT}",
        "--web", str(DIST / "web"), "--ports-origin", f"http://*.localhost:{PORT}", "--gallery")
    try:
        wait_for("the portal to be ready", lambda: Api(PORT).exchange("GET", "/readyz")[0] == 200, portal)
    except BaseException:
        portal.stop()
        raise
    return portal


def make_accounts(portal: Service) -> dict[str, Any]:
    """Operator, tenant, tokens and credit. May be cut off anywhere and run again."""
    # The passwords are kept before they are used, or a cut-off start could not go on.
    draft = DATA / "demo-passwords.json"
    words = find_json(draft) or {"operator": secrets.token_urlsafe(18), "tenant": secrets.token_urlsafe(18)}
    put_json(draft, words)

    email, password = "operator@example.org", words["operator"]
    if Api(PORT)("GET", "/info")["needs_setup"]:
        line = re.compile(r"Setup token, valid until used or until the next start: (\S+)")
        token = wait_for("the setup token", lambda: line.search(portal.output()), portal).group(1)
        Api(PORT)("POST", "/setup", {"token": token, "email": email, "password": password, "name": "Operator"})
    operator = Api(PORT).sign_in(email, password)
    if operator is None:
        raise Failed(f"{DATA} has an operator whose password is not known here. Choose other data: DATA=… make demo")
    operator_token = operator("POST", "/operator/tokens", {"name": "demo"})["secret"]
    demo = {"operator": {"email": email, "password": password, "token": operator_token}}

    email, password = "ada@example.org", words["tenant"]
    tenant = Api(PORT).sign_in(email, password)
    if tenant is None:
        person = {"email": email, "password": password, "name": "Ada", "organization": "Kelda Lab"}
        Api(PORT)("POST", "/sign-up", person)
        tenant = Api(PORT).sign_in(email, password)
    if tenant is None:
        raise Failed("The new account cannot sign in.")
    own = tenant("GET", "/me")["memberships"][0]["org"]
    org = own["id"]
    if tenant("GET", f"/orgs/{org}/balance")["posted_micros"] == 0:
        operator("POST", f"/operator/orgs/{org}/credits", {"amount_micros": CREDIT_MICROS, "memo": "Welcome credit"})
    token = tenant("POST", f"/orgs/{org}/tokens", {"name": "demo", "role": "owner"})["secret"]
    demo["tenant"] = {"email": email, "password": password, "organization": org, "slug": own["slug"], "token": token}
    return demo


def take_up(demo: dict[str, Any]) -> None:
    """Sees that the accounts of an earlier start still stand."""
    for who in ("operator", "tenant"):
        status, _, _ = Api.with_token(PORT, demo[who]["token"]).exchange("GET", "/api/v1/me")
        if status != 200:
            raise Failed(f"The portal does not know the {who} of {DATA}/demo.json any more ({status}). "
                         f"Put the data of then back, or choose other data: DATA=… make demo")


def start_worker(operator: Api, portal: Service) -> Service:
    argv = [str(DIST / "berth-worker"), "run", "--portal", f"https://127.0.0.1:{WORKER_PORT}",
            "--data", str(DATA / "worker"), "--simulate", FLEET, "--name", NODE,
            # A worker that is not root runs jobs with its own rights to files: the portal's are hidden.
            "--hide", str(DATA),
            # A demo leaves the network of this machine as it is.
            "--job-network", "host", "--inference-listen", f"127.0.0.1:{INFERENCE_PORT}"]
    identity = DATA / "worker/identity.json"
    # A certificate is good for a day: an earlier start's may have expired, so the node proves itself anew.
    path = "/operator/join-tokens"
    if identity.exists():
        path = f"/operator/nodes/{json.loads(identity.read_text())['node']}/join-token"
    argv += ["--join-token", operator("POST", path, {"approve": True, "adopt_labels": True})["secret"]]
    # What the worker needs of it at the least: new namespaces are what a container may forbid.
    probe = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
             "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"]
    try:
        isolated = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        isolated = False
    if not isolated:
        say("Bubblewrap cannot run here: jobs run without a sandbox, and the portal says so.")
        argv += ["--allow-unisolated"]
    worker = Service("worker", DATA / "worker.log", *argv)

    def ready() -> bool:
        nodes = operator.items("/operator/nodes")
        return any(n["name"] == NODE and n["state"] == "ready" and len(n["gpus"]) == BOARDS for n in nodes)

    try:
        wait_for("the worker to report its boards", ready, portal, worker)
    except BaseException:
        worker.stop()
        raise
    return worker


def start_gateway(operator: Api, portal: Service) -> Service:
    home = gateways.registered(operator, "gateway-1", GATEWAY_PORT, DATA / "gateways")
    gateway = Service("gateway", DATA / "gateway.log", *gateways.argv(DIST, PORT, GATEWAY_PORT, home))
    try:
        wait_for("the gateway to know the services", lambda: gateways.is_ready(GATEWAY_PORT), portal, gateway)
    except BaseException:
        gateway.stop()
        raise
    return gateway


def set_prices(operator: Api) -> None:
    for offering in operator.items("/offerings"):
        names = f"{offering['gpu_model']} {offering['slug']}".upper()
        whole = next((price for name, price in WHOLE_BOARD_MICROS.items() if name in names), None)
        if offering["price"]["version"] == 0 and whole is not None:
            price = whole * offering["cells"] // offering["board_cells"]
            operator("POST", "/operator/prices", {"offering": offering["slug"], "per_hour_micros": price})


RUNNING: list[Service] = []


def run() -> None:
    for program in ("berth-portal", "berth-worker", "berth-gateway"):
        if not (DIST / program).exists():
            raise Failed(f"{DIST}/{program} is not built; run: make build")
    _lock = lock_data()
    check_port(PORT, "PORT")
    check_port(WORKER_PORT, "WORKER_PORT")
    check_port(INFERENCE_PORT, "INFERENCE_PORT")
    check_port(GATEWAY_PORT, "GATEWAY_PORT")
    RUNNING.append(portal := start_portal())
    # demo.json is for whoever waits until everything works, so it is not there before.
    if (DATA / "demo.json").exists():
        (DATA / "demo.json").rename(DATA / "demo-accounts.json")
    demo = find_json(DATA / "demo-accounts.json")
    if demo:
        take_up(demo)
    else:
        demo = make_accounts(portal)
    # The ports may be others than last time.
    demo = {"url": f"http://127.0.0.1:{PORT}", "gateway": {"url": gateways.url(GATEWAY_PORT)},
            "operator": demo["operator"], "tenant": demo["tenant"]}
    put_json(DATA / "demo-accounts.json", demo)
    (DATA / "demo-passwords.json").unlink(missing_ok=True)
    operator = Api.with_token(PORT, demo["operator"]["token"])
    RUNNING.insert(0, start_worker(operator, portal))
    RUNNING.insert(0, start_gateway(operator, portal))
    set_prices(operator)
    put_json(DATA / "demo.json", demo)
    show(demo)
    while True:
        for service in RUNNING:
            service.check()
        time.sleep(0.2)


def show(demo: dict[str, Any]) -> None:
    url, operator, tenant = demo["url"], demo["operator"], demo["tenant"]
    job = json.dumps({"name": "hello", "offering": "h100-80gb.1g.10gb", "command": ["echo", "hello"]})
    headers = f"-H 'Authorization: Bearer {tenant['token']}' -H 'Content-Type: application/json'"
    say(f"""
Berth is ready: {url}

  tenant     {tenant['email']}   password {tenant['password']}
  operator   {operator['email']}   password {operator['password']}
  API token  {tenant['token']}
  gateway    {demo['gateway']['url']} (docs/services.md)

The boards are simulated ({FLEET}); jobs, logs and money are real.
Accounts and tokens: {DATA}/demo.json. Logs: {DATA}/portal.log, worker.log and gateway.log.
Run a first job:

  curl -s {url}/api/v1/orgs/{tenant['organization']}/jobs {headers} -d '{job}'

Ctrl-C stops all of it; started again, it takes up where it stopped.""")


def main() -> int:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def handle(how: Any) -> None:
        for number in signals:
            signal.signal(number, how)

    def stopped(_number: int, _frame: Any) -> NoReturn:
        handle(signal.SIG_IGN)  # The end may not be interrupted by a second signal.
        raise Stopped

    handle(stopped)
    adopt_orphans()
    code = 0
    try:
        run()
    except Stopped:
        say("Stopping.")
    except Failed as error:
        print(f"demo: {error}", file=sys.stderr, flush=True)
        code = 1
    finally:
        handle(signal.SIG_IGN)
        # The gateway and the worker first, while the portal still takes their last words.
        while RUNNING:
            RUNNING.pop(0).stop()
            stop_orphans(RUNNING)
    return code


if __name__ == "__main__":
    sys.exit(main())
