"""The HTTP server of a test job. It returns requests, streams events, receives files and echoes WebSockets."""
import base64
import hashlib
import http.server
import json
import struct
import sys
import threading

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
NEVER_SET = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, kind="application/json", status=200, headers=()):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def request_as_json(self):
        headers = {name.lower(): value for name, value in self.headers.items()}
        peer = self.client_address[1]
        return json.dumps({"path": self.path, "headers": headers, "peer": peer}).encode()

    def do_GET(self):
        path = self.path.split("?")[0]
        if self.headers.get("Upgrade"):
            self.echo()
        elif path.endswith("/redirect"):
            self.answer(b"", status=302, headers=[("Location", f"http://{self.headers['Host']}/after?x=1")])
        elif path.endswith("/cookies"):
            cookies = ["a=1; Path=/; Domain=ports.test", "berth_port=stolen; Path=/"]
            self.answer(b"{}", headers=[("Set-Cookie", c) for c in cookies] + [("Service-Worker-Allowed", "/")])
        elif path.endswith("/events"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for data in (b"data: first\n\n", b"data: second\n\n"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            NEVER_SET.wait()
        else:
            self.answer(self.request_as_json())

    def do_POST(self):
        digest, length = hashlib.sha256(), 0
        for chunk in self.chunks():
            digest.update(chunk)
            length += len(chunk)
        self.answer(json.dumps({"bytes": length, "sha256": digest.hexdigest()}).encode())

    def chunks(self):
        if "Content-Length" in self.headers:
            left = int(self.headers["Content-Length"])
            while left:
                chunk = self.rfile.read(min(left, 1 << 16))
                left -= len(chunk)
                yield chunk
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def echo(self):
        accept = base64.b64encode(hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode() + GUID).digest())
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept.decode())
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            length = head[1] & 127
            if length == 126:
                length, = struct.unpack(">H", self.rfile.read(2))
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(length)))
            size = bytes([length]) if length < 126 else b"\x7e" + struct.pack(">H", length)
            self.wfile.write(head[:1] + size + data)
            if head[0] & 15 == 8:
                return


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
