#!/usr/bin/env python3
"""Sends generated requests to a portal of its own and compares each answer with the description of the API.

Schemathesis makes the requests from /api/openapi.json: as a tenant and as an
operator. Sign-in, sign-up and set-up are left out. A fault is an answer of the 5xx kind, a status, a media type or a form that is not described.
    fuzz.py [SECONDS]   tests for about so many seconds (120)
"""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from processes import Service, free_port
from rest import Failed
from worker_bench import ROOT, MakeRow, Row

TOOLS = ROOT / "end2end/tools"
SCHEMATHESIS = ROOT / "target/tools/schemathesis"
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "response_headers_conformance")
# A stream has no end; and the caller must not lose its own rights on the way.
LEFT_OUT = ("/api/v1/orgs/{org}/events", "/api/v1/orgs/{org}/tokens/{token}", "/api/v1/orgs/{org}/members/{user}",
            "/api/v1/operator/tokens/{token}")
OPERATOR = "^/api/v1/operator"
OF_NOBODY = "^/api/v1/(operator|sessions|setup|sign-up)"
START_S, DEMO_STOP_S = 90.0, 30.0


class Found(NamedTuple):
    """The cases of a run, and the faults among them."""

    cases: int
    faults: int


def installed() -> bool:
    return (SCHEMATHESIS / "bin/st").exists()


def demo(data: Path, port: int) -> Service:
    """A demo of its own."""
    data.mkdir()
    settings = (f"DATA={data}", f"PORT={port}", f"WORKER_PORT={free_port()}", f"INFERENCE_PORT={free_port()}",
                f"GATEWAY_PORT={free_port()}")
    return Service("demo", data / "demo.log", "env", *settings, sys.executable, str(TOOLS / "demo.py"))


def wait_for_demo(service: Service, data: Path) -> None:
    deadline = time.monotonic() + START_S
    while not (data / "demo.json").exists():
        service.check()
        if time.monotonic() > deadline:
            raise Failed(f"the demo was not ready within {START_S:.0f} s")
        time.sleep(0.1)


def end_demo(service: Service) -> None:
    """The demo ends its own jobs first."""
    service.process.terminate()
    try:
        service.process.wait(DEMO_STOP_S)
    except subprocess.TimeoutExpired:
        service.stop()


def run(port: int, token: str, folder: Path, seconds: int, which: list[str]) -> Found:
    """Runs Schemathesis as one caller; what it printed is shown where it found a fault."""
    config = folder / "schemathesis.toml"
    argv = [sys.executable, str(SCHEMATHESIS / "bin/st"), "--config-file", str(config), "run",
            f"http://127.0.0.1:{port}/api/openapi.json", "-H", f"Authorization: Bearer {token}",
            "--checks", ",".join(CHECKS), "--max-time", str(seconds), "--phases", "coverage,fuzzing",
            "--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off", *which]
    if seed := os.environ.get("FUZZ_SEED"):
        argv += ["--seed", seed]
    for path in LEFT_OUT:
        argv += ["--exclude-path", path]
    path = os.pathsep.join([str(SCHEMATHESIS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(argv, cwd=folder, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=os.environ | {"PYTHONPATH": path})
    counts = re.search(r"(\d+) generated(?:, (\d+) found (\d+) unique failures?)?", done.stdout)
    if counts is None:
        raise Failed(f"Schemathesis did not run ({done.returncode}):\n{done.stdout[-4000:]}")
    cases, faults = int(counts[1]), int(counts[3] or 0)
    if done.returncode != 0:
        print(done.stdout.replace(token, "[token]"))
        faults = max(faults, 1)
    return Found(cases, faults)


def fuzz(seconds: int) -> Found:
    """Both callers, each for half of the time."""
    with tempfile.TemporaryDirectory(prefix="berth-fuzz-") as name:
        folder, port = Path(name), free_port()
        service = demo(folder / "data", port)
        try:
            wait_for_demo(service, folder / "data")
            facts = json.loads((folder / "data/demo.json").read_text(encoding="utf-8"))
            config = f'[parameters]\norg = "{facts["tenant"]["organization"]}"\n'
            (folder / "schemathesis.toml").write_text(config, encoding="utf-8")
            half = max(seconds // 2, 1)
            tenant = run(port, facts["tenant"]["token"], folder, half, ["--exclude-path-regex", OF_NOBODY])
            operator = run(port, facts["operator"]["token"], folder, half, ["--include-path-regex", OPERATOR])
            service.check()
        finally:
            end_demo(service)
    return Found(tenant.cases + operator.cases, tenant.faults + operator.faults)


def bench(row: MakeRow) -> list[Row]:
    """Generated requests against the description of the API, for FUZZ_SECONDS."""
    if not installed():
        note = "Schemathesis is not installed"
        return [row(name, None, "", goal, note=note) for name, goal in (("fuzz", 0), ("fuzz-cases", 10_000))]
    seconds = int(os.environ.get("FUZZ_SECONDS") or "240")
    found = fuzz(seconds)
    return [row("fuzz", found.faults, "", 0, note=f"{found.cases} cases in {seconds} s"),
            row("fuzz-cases", found.cases, "", 10_000, least=True)]


BENCHES = {"fuzz fuzz-cases": bench}


def main() -> int:
    if not installed():
        print("left out of fuzz: Schemathesis is not installed")
        return 0
    found = fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else 120)
    print(f"{found.cases} generated requests, {found.faults} faults")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
