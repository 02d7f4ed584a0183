"""Gateways of the demo and of the scripts beside it: their tokens, and the arguments of their program."""
from __future__ import annotations

import http.client
import os
import shutil
from pathlib import Path
from typing import Any

from rest import Api


def url(port: int) -> str:
    """The address of a gateway of this machine for callers."""
    return f"http://127.0.0.1:{port}"


def registered(operator: Api, name: str, port: int, folder: Path) -> Path:
    """The directory of the gateway with this name, which has its token. The portal shows a token once only, so without it
    the gateway is a new one."""
    for known in operator.items("/operator/gateways"):
        if known["name"] == name:
            home = folder / known["id"]
            if known["url"] == url(port) and (home / "token").exists():
                return home
            operator("DELETE", f"/operator/gateways/{known['id']}")
            shutil.rmtree(home, ignore_errors=True)
    new: dict[str, Any] = operator("POST", "/operator/gateways", {"name": name, "url": url(port)})
    home = folder / new["id"]
    home.mkdir(parents=True, mode=0o700)
    descriptor = os.open(home / "token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="ascii") as out:
        out.write(new["token"])
    return home


def argv(dist: Path, portal_port: int, port: int, home: Path) -> list[str]:
    return [str(dist / "berth-gateway"), "--portal", url(portal_port), "--token-file", str(home / "token"),
            "--listen", f"127.0.0.1:{port}", "--data", str(home / "data")]


def is_ready(port: int) -> bool:
    """True once the gateway has a snapshot of the services."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
