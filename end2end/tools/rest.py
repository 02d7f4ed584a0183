"""A small client of the portal's REST interface, for the scripts beside it. Standard library only."""
from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Any


class Failed(Exception):
    """A script cannot go on; the text says why, for people."""


class Api:
    """The REST interface of the portal on a port of this machine, as somebody."""

    def __init__(self, port: int, **headers: str) -> None:
        self.port, self.headers = port, headers

    @classmethod
    def with_token(cls, port: int, token: str) -> Api:
        return cls(port, Authorization=f"Bearer {token}")

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of one request under /api/v1; anything but success is `Failed`."""
        status, answer, _ = self.exchange(method, f"/api/v1{path}", body)
        if status >= 300:
            reason = answer.get("detail", answer) if isinstance(answer, dict) else answer
            raise Failed(f"{method} {path} was refused ({status}): {reason}")
        return answer

    def items(self, path: str) -> list[Any]:
        """All items of a list under /api/v1, page by page."""
        found: list[Any] = []
        page: dict[str, Any] = {"next_cursor": ""}
        separator = "&" if "?" in path else "?"
        while (cursor := page.get("next_cursor")) is not None:
            after = f"&cursor={cursor}" if cursor else ""
            page = self("GET", f"{path}{separator}limit=200{after}")
            found += page["items"]
        return found

    def exchange(self, method: str, path: str, body: Any = None) -> tuple[int, Any, str]:
        """Status, answer and cookie of one request."""
        # No urllib: it would send even this to a proxy that the environment names.
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            text = None if body is None else json.dumps(body)
            headers = self.headers | ({} if text is None else {"Content-Type": "application/json"})
            connection.request(method, path, text, headers)
            response = connection.getresponse()
            raw = response.read()
            is_json = raw and "json" in (response.getheader("content-type") or "")
            answer = json.loads(raw) if is_json else raw.decode(errors="replace")
            return response.status, answer, (response.getheader("set-cookie") or "").split(";")[0]
        finally:
            connection.close()

    def sign_in(self, email: str, password: str) -> Api | None:
        """As the person with this password; None where there is no such person."""
        status, answer, cookie = self.exchange("POST", "/api/v1/sessions", {"email": email, "password": password})
        if status == 401:
            return None
        if status != 201:
            raise Failed(f"Nobody can sign in ({status}): {answer}")
        return Api(self.port, Cookie=cookie)


def put_json(path: Path, value: Any) -> None:
    """Replaces the file in one step; nobody else can read it."""
    partial = path.with_name(f"{path.name}.new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as out:
        json.dump(value, out, indent=2)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())
    partial.replace(path)


def find_json(path: Path) -> Any:
    """What the file holds; None where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
