"""Reading the portal's server-sent events as fast as Python can. Standard library only."""
from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import NamedTuple

from rest import Failed


class Event(NamedTuple):
    name: str
    data: bytes
    id: bytes


def request(path: str, token: str) -> bytes:
    lines = (f"GET /api/v1{path} HTTP/1.1", "Host: 127.0.0.1", "Accept: text/event-stream",
             f"Authorization: Bearer {token}", "", "")
    return "\r\n".join(lines).encode()


def parse(text: bytes) -> Event | None:
    """One event without its blank line; None for a comment."""
    name, data, number = b"message", [], b""
    for line in text.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if field == b"event":
            name = value
        elif field == b"data":
            data.append(value)
        elif field == b"id":
            number = value
    return Event(name.decode(), b"\n".join(data), number) if data or name != b"message" else None


class Splitter:
    """Cuts a stream of bytes into events. Joins pieces once, however large an event is."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[Event]:
        ends_here = b"\n\n" in piece or (piece[:1] == b"\n" and self.pieces and self.pieces[-1][-1:] == b"\n")
        self.pieces.append(piece)
        if ends_here:
            *events, rest = b"".join(self.pieces).split(b"\n\n")
            self.pieces = [rest] if rest else []
            for text in events:
                if event := parse(text):
                    yield event


def events(port: int, path: str, token: str, timeout_s: float = 60) -> Iterator[Event]:
    """The events of a stream until it ends."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        link.sendall(request(path, token))
        with link.makefile("rb", buffering=1 << 20) as stream:
            status = stream.readline().decode().strip()
            while stream.readline() not in (b"\r\n", b""):
                pass
            if " 200" not in status:
                raise Failed(f"{path} answered: {status}")
            splitter = Splitter()
            while size := int(stream.readline() or b"0", 16):
                yield from splitter.feed(stream.read(size))
                stream.read(2)
