"""Requests as exact bytes, and their answers. Clients of HTTP refuse to send most of what attack.py sends."""
from __future__ import annotations

import http.client
import shlex
import socket
from pathlib import Path
from typing import NamedTuple

Headers = tuple[tuple[str, bytes], ...]
ANSWER_S, STREAM_S = 20.0, 0.05
ANSWER_BYTES, LINE_CHARS = 4 << 20, 1_000


class Request(NamedTuple):
    """`missing`: the bytes that `Content-Length` announces and that never arrive."""

    method: str
    target: str
    headers: Headers = ()
    body: bytes | None = None
    missing: int = 0

    def head(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1".encode()]
        # A later header of the same name is sent too.
        if not any(name == "Host" for name, _ in self.headers):
            lines.append(b"Host: 127.0.0.1")
        lines += [name.encode() + b": " + value for name, value in self.headers]
        if self.body is not None:
            lines.append(b"Content-Length: %d" % (len(self.body) + self.missing))
        return b"\r\n".join([*lines, b"Connection: close", b"", b""])


class Answer(NamedTuple):
    """`status` is 0 where the connection ended without an answer; `complete` is false for a stream."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool


def read_answer(wire: socket.socket, method: str) -> Answer:
    response = http.client.HTTPResponse(wire, method=method)
    try:
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        if headers.get("content-type", "").startswith("text/event-stream"):
            wire.settimeout(STREAM_S)
            try:
                return Answer(response.status, headers, response.read1(1 << 16), False)
            except TimeoutError:
                return Answer(response.status, headers, b"", False)
        return Answer(response.status, headers, response.read(ANSWER_BYTES), True)
    except (ConnectionError, http.client.HTTPException):
        return Answer(0, {}, b"", False)
    finally:
        response.close()


def exchange(port: int, request: Request) -> Answer:
    """A request on a connection of its own. `TimeoutError` without an answer in time."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as wire:
        try:
            wire.sendall(request.head() + (request.body or b""))
            if request.missing:
                wire.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass  # The portal may answer and close before it has read all.
        return read_answer(wire, request.method)


def curl(port: int, request: Request, folder: Path, number: int) -> str:
    """A line that sends the request again. What is long or no text is in a file."""
    words = ["curl", "-sS", "-i", "--path-as-is", "-X", request.method]
    names = {name.lower() for name, _ in request.headers}
    lines = [name.encode() + b": " + value for name, value in request.headers]
    if request.body is not None:
        lines += [b"Expect:"] if request.missing == 0 else [b"Content-Length: %d" % (len(request.body) + request.missing)]
        if "content-type" not in names:
            lines.append(b"Content-Type:")
    folder.mkdir(parents=True, exist_ok=True)

    def put(kind: str, content: bytes) -> str:
        file = folder / f"{number}.{kind}"
        file.write_bytes(content)
        return f"@{file}"

    def is_short(content: bytes) -> bool:
        return len(content) <= LINE_CHARS and content.isascii() and content.decode().isprintable()

    if all(is_short(line) for line in lines) and len(lines) < 20:
        for line in lines:
            words += ["-H", line.decode()]
    else:
        words += ["-H", put("headers", b"\n".join(lines) + b"\n")]
    if request.body is not None:
        body = request.body
        words += ["--data-binary", body.decode() if is_short(body) and body[:1] != b"@" else put("body", body)]
    return shlex.join([*words, f"http://127.0.0.1:{port}{request.target}"])
