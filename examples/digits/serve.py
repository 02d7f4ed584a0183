#!/usr/bin/env python3
"""Serve the trained network of train.py: `POST /` with 64 pixels answers with the digit.

Needs Python 3.9 or later and nothing else. Listens on PORT of the environment.

    GET /healthz                         200 {"status": "ready", "epoch": 20}
    POST / {"pixels": [0, 5, 13, …]}     200 {"digit": 0, "chances": [0.998, …]}
"""
import argparse
import http.server
import json
import os
import signal
import sys
import threading

import train

MAX_BODY_BYTES = 16 << 10
PIXEL_MAX = 16
TIMEOUT_S = 30


def digit_of(weights, pixels):
    """Return the most probable digit and the chances of all."""
    _, chances = train.forward(weights, [[pixel / PIXEL_MAX for pixel in pixels]])
    return max(range(train.CLASSES), key=lambda digit: chances[0][digit]), chances[0]


def pixels_of(text):
    """Return the pixels of a request, or raise ValueError with what is wrong."""
    try:
        asked = json.loads(text)
    except ValueError as error:
        raise ValueError("the body is not JSON") from error
    pixels = asked.get("pixels") if isinstance(asked, dict) else None
    good = isinstance(pixels, list) and len(pixels) == train.PIXELS and all(
        isinstance(pixel, (int, float)) and not isinstance(pixel, bool) and 0 <= pixel <= PIXEL_MAX for pixel in pixels)
    if not good:
        raise ValueError(f"'pixels' is not a list of {train.PIXELS} numbers from 0 to {PIXEL_MAX}")
    return pixels


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # A caller that sends nothing keeps its thread no longer.
    timeout = TIMEOUT_S

    def do_GET(self):
        if self.path == "/healthz":
            self.answer(200, {"status": "ready", "epoch": self.server.state["epoch"]})
        else:
            self.answer(404, {"error": "there is only / and /healthz"})

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            # Its body is unread, so the connection cannot go on.
            self.close_connection = True
            self.answer(413, {"error": f"send a body of at most {MAX_BODY_BYTES} bytes with its length"})
            return
        try:
            pixels = pixels_of(self.rfile.read(int(length)))
        except ValueError as error:
            self.answer(422, {"error": str(error)})
            return
        digit, chances = digit_of(self.server.state["weights"], pixels)
        self.answer(200, {"digit": digit, "chances": [round(chance, 4) for chance in chances]})

    def answer(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def model_of(path):
    """Return the state in the checkpoint."""
    try:
        with open(path, encoding="ascii") as source:
            shape = json.load(source)
        state = train.restore(path, shape["hidden"], shape["seed"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise train.Bad(f"{path} cannot be read: {error}") from error
    if state["epoch"] < 1:
        raise train.Bad(f"{path} is not trained")
    return state


def main(argv=None):
    parser = argparse.ArgumentParser(description="Serve the trained network.")
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkpoint.json")
    parser.add_argument("--checkpoint", default=beside, help="file (checkpoint.json beside this program)")
    args = parser.parse_args(argv)
    try:
        server = Server(("127.0.0.1", int(os.environ.get("PORT", "8000"))), Handler)
        server.state = model_of(args.checkpoint)
    except (train.Bad, OSError, ValueError) as error:
        print(f"serve.py: {error}", file=sys.stderr, flush=True)
        return 1
    # `shutdown` waits for the loop of the server, which this thread runs.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"serving epoch {server.state['epoch']} on port {server.server_port}", flush=True)
    server.serve_forever()
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
