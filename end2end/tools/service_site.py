"""A portal with a worker, gateways and services of a tenant, for the scripts beside it."""
from __future__ import annotations

import http.client
import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gateways
from processes import Service, free_port
from rest import Failed
from worker_bench import DEADLINE_S, DIST, Site, wait_for

NODE = "quay"
# Bytes of one part of an upload.
PART_BYTES = 8 << 20


class NoSandbox(Failed):
    """Jobs have no sandbox on this machine."""


def obstacle() -> str | None:
    """The reason why services cannot run here; None if they can."""
    absent = [name for name in ("berth-portal", "berth-worker", "berth-gateway") if not (DIST / name).exists()]
    return f"{DIST} has no {', '.join(absent)}" if absent else None


class ServiceSite(Site):
    """A site with one worker, whose replicas have a network of their own each, and any number of gateways. `fleet`: the
    simulated boards; None: those of this host, without a change of their MIG mode, and with WORKER_ARGS."""

    def __init__(self, fleet: str | None, data: Path | None = None) -> None:
        super().__init__(data=data)
        self.gateways: dict[str, tuple[int, Service]] = {}
        try:
            listen = f"127.0.0.1:{free_port()}"
            own = shlex.split(os.environ.get("WORKER_ARGS", ""))
            argv = [*self.argv(NODE), *own] if fleet is None else self.worker_argv(NODE, fleet)
            self.worker = self.service(NODE, *argv, "--inference-listen", listen)
            self.ready(1)
            if fleet is None:
                self.offering = str(next(o for o in self.operator.items("/offerings") if o["cells"] == o["board_cells"])["slug"])
            self.price()
            if self.operator.items("/operator/nodes")[0]["unisolated"]:
                raise NoSandbox("no sandbox works here, so two replicas on one node cannot have the same port")
        except BaseException:
            self.close()
            raise

    def gateway(self, name: str) -> int:
        """Starts a gateway, again with the same data, and returns its port once it is ready."""
        port = self.gateways[name][0] if name in self.gateways else free_port()
        home = gateways.registered(self.operator, name, port, self.data / "gateways")
        process = self.service(name, *gateways.argv(DIST, self.port, port, home))
        self.gateways[name] = (port, process)

        def is_ready() -> bool:
            process.check()
            return gateways.is_ready(port)

        wait_for(f"the gateway {name}", is_ready)
        return port

    def kill(self, process: Service) -> None:
        """Ends a process without warning."""
        process.process.kill()
        process.process.wait()
        self.services.remove(process)

    def restart_portal(self) -> None:
        self.portal = self.start_portal(seen_from="127.0.0.1")
        wait_for("the portal", self.portal_answers)

    def portal_answers(self) -> bool:
        self.portal.check()
        try:
            return bool(self.operator.exchange("GET", "/readyz")[0] == 200)
        except (OSError, http.client.HTTPException):
            return False

    def key(self, name: str, **limits: Any) -> str:
        """The secret of a new inference key."""
        return str(self.api("POST", f"{self.org}/inference-keys", {"name": name} | limits)["secret"])

    def volume(self, name: str, max_bytes: int) -> None:
        self.api("POST", f"{self.org}/volumes", {"name": name, "max_bytes": max(max_bytes, 1 << 20)})

    def upload(self, volume: str, path: str, source: Path) -> None:
        """Copies a file to a path of a volume."""
        file, size = f"{self.org}/volumes/{volume}/uploads/{path}", source.stat().st_size
        self.api("PUT", file, {"bytes": size})
        with source.open("rb") as content:
            for begin in range(0, size, PART_BYTES):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
                try:
                    headers = self.api.headers | {"Upload-Offset": str(begin)}
                    connection.request("PATCH", f"/api/v1{file}", content.read(PART_BYTES), headers)
                    answer = connection.getresponse()
                    text = answer.read().decode(errors="replace")
                finally:
                    connection.close()
                if answer.status >= 300:
                    raise Failed(f"the upload to {path} was refused ({answer.status}): {text}")
        if not json.loads(text)["done"]:
            raise Failed(f"the upload to {path} is not complete")

    def revision(self, script: str, port: int, **more: Any) -> dict[str, Any]:
        """The body of a revision. Each replica has a loopback of its own, because all of them have the same port."""
        job = {"name": "replica", "offering": self.offering, "script": script, "network": "none", "max_duration_s": 86_400}
        return {"job": job | more.pop("job", {}), "port": port} | more

    def create(self, name: str, revision: dict[str, Any], **more: Any) -> str:
        """The path of a new service for the interface of OpenAI, with a model of its own name."""
        models = [{"name": name, "context_tokens": 100_000}]
        body = {"name": name, "protocol": "openai", "models": models, "revision": revision} | more
        return f"{self.org}/services/{self.api('POST', f'{self.org}/services', body)['id']}"

    def price_tokens(self, service: str, prompt: int, completion: int) -> None:
        """Sets the micro-units of the currency for a million tokens."""
        price = {"prompt_micros_per_million": prompt, "completion_micros_per_million": completion}
        self.operator("PUT", f"/operator/services/{service.rpartition('/')[2]}/token-price", price)

    def until_ready(self, service: str, replicas: int, limit_s: float = DEADLINE_S) -> Any:
        """The service once so many of its replicas are ready, and no others are left."""
        deadline = time.monotonic() + limit_s
        while True:
            self.worker.check()
            seen = self.api("GET", service)
            ready = [one for one in seen["replicas"]
                     if one["state"] == "running" and one.get("ready_since") and not one.get("draining_since")]
            if len(ready) == replicas == len(seen["replicas"]) and seen["state"] == "ready":
                return seen
            if time.monotonic() > deadline:
                states = ", ".join(f"{one['state']} of revision {one['revision_number']}" for one in seen["replicas"])
                raise Failed(f"after {limit_s:.0f} s the service is {seen['state']} ({seen.get('detail')}), with replicas: {states}")
            time.sleep(0.2)

    def used(self, service: str) -> dict[str, int]:
        """The accounted use of a service in the last two hours: whole hours, so no begin of an hour cuts it."""
        sums = {"requests": 0, "errors": 0, "prompt_tokens": 0, "completion_tokens": 0}
        for hour in self.api("GET", f"{service}/use?hours=2")["items"]:
            for name in sums:
                sums[name] += hour[name]
        return sums


def step(name: str, check: Callable[[], str]) -> bool:
    """Run a step and print its result. False after a failed one."""
    began = time.monotonic()
    try:
        text, word = check(), "ok"
    except (Failed, OSError, LookupError, ValueError, subprocess.SubprocessError, http.client.HTTPException) as error:
        text, word = f"{type(error).__name__}: {error}", "FAILED"
    print(f"{word:6} {name} ({time.monotonic() - began:.1f} s): {text}", flush=True)
    return word == "ok"
