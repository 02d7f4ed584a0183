"""How long a key takes through a terminal and back: browser's side, portal, worker, shell. Standard library only."""
from __future__ import annotations

import base64
import json
import os
import socket
import struct
import time

from rest import Failed

PROTOCOL = "berth.terminal.v1"
TEXT, BYTES, CLOSE, PING, PONG = 1, 2, 8, 9, 10
SLOW_S = 20


class Socket:
    """A WebSocket to the portal, opened by an API token."""

    def __init__(self, port: int, path: str, token: str) -> None:
        self.wire = socket.create_connection(("127.0.0.1", port), timeout=SLOW_S)
        self.wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.read = self.wire.makefile("rb")
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET /api/v1{path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: Upgrade", "Upgrade: websocket",
                 "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", f"Sec-WebSocket-Protocol: {PROTOCOL}",
                 f"Authorization: Bearer {token}", "", ""]
        self.wire.sendall("\r\n".join(lines).encode())
        status = self.read.readline().decode()
        while self.read.readline().strip():
            pass
        if " 101 " not in status:
            raise Failed(f"the terminal's socket was refused: {status.strip()}")

    def send(self, kind: int, data: bytes) -> None:
        mask = os.urandom(4)
        length = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + struct.pack(">H", len(data))
        masked = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
        self.wire.sendall(bytes([0x80 | kind]) + length + mask + masked)

    def next(self) -> tuple[int, bytes]:
        """The next message; signs of life are answered on the way."""
        while True:
            head = self.read.read(2)
            if len(head) < 2:
                raise Failed("the terminal's socket ended")
            kind, length = head[0] & 15, head[1] & 127
            if length == 126:
                length = struct.unpack(">H", self.read.read(2))[0]
            elif length == 127:
                length = struct.unpack(">Q", self.read.read(8))[0]
            data = self.read.read(length)
            if kind == PING:
                self.send(PONG, data)
            elif kind == CLOSE:
                raise Failed("the terminal's socket was closed")
            elif kind in (TEXT, BYTES):
                return kind, data

    def until(self, wanted: bytes) -> None:
        seen = b""
        while wanted not in seen:
            kind, data = self.next()
            seen += data if kind == BYTES else b""

    def close(self) -> None:
        self.send(TEXT, json.dumps({"type": "end"}).encode())
        self.wire.close()


def echoes(port: int, token: str, path: str, opened: dict, count: int) -> list[float]:
    """Milliseconds from sending a key to having it back, one after the other."""
    sock = Socket(port, f"{path}/{opened['terminal']['id']}/socket", token)
    # Every key comes back as it is, from a program and not from the terminal itself.
    sock.send(BYTES, b"stty raw -echo; echo re''ady; exec cat\n")
    sock.until(b"ready")
    took = []
    for number in range(count):
        key = bytes([97 + number % 26])
        began = time.perf_counter()
        sock.send(BYTES, key)
        sock.until(key)
        took.append((time.perf_counter() - began) * 1000)
    sock.close()
    return took
