#!/usr/bin/env python3
"""A language model behind a gateway: llama-cpp-python serves the small random model of llama_model.py as a service.

Prints its steps and exits with 1 after a failed one. Without llama-cpp-python (end2end/tools/setup.sh llama) it says so.
Takes DIST (target/dist) from the environment.
"""
from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from typing import Any

from processes import adopt_orphans
from rest import Failed
from service_site import ServiceSite, obstacle, step
from worker_bench import ROOT, wait_for

PACKAGES = ROOT / "target/tools/llama"
MODEL, PORT, TOKENS = "random", 8000, 24
# Loading Python's packages is most of the start.
START_S = 180.0
TIMEOUT_S = 120.0
SERVE = ('exec python3 -m llama_cpp.server --model "$BERTH_VOLUME_WEIGHTS/random.gguf" --model_alias random '
         '--host 127.0.0.1 --port "$PORT" --n_ctx 256 --n_threads 1 --interrupt_requests false')


def left_out() -> str | None:
    """The reason why this machine cannot run it; None if it can."""
    if not (ROOT / "target/tools/llama.version").exists():
        return "llama-cpp-python is not installed"
    # A sandbox hides these directories.
    if any(PACKAGES.is_relative_to(hidden) for hidden in ("/root", "/home", "/run", "/tmp")):
        return f"jobs cannot read {PACKAGES}"
    return obstacle()


class Scene:
    """The service and its gateway."""

    def __init__(self) -> None:
        self.site, self.service, self.port, self.key = ServiceSite("1xH100-80GB"), "", 0, ""
        # The use by the answers themselves.
        self.counted = {"prompt_tokens": 0, "completion_tokens": 0}

    def exchange(self, path: str, body: Any = None, key: str | None = None) -> tuple[int, str, list[float]]:
        """Status and text of an answer, and the times at which its lines came."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key or self.key}"}
            link.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
            answer, lines, at = link.getresponse(), list[str](), list[float]()
            for line in answer:
                lines.append(line.decode())
                at.append(time.monotonic())
            return answer.status, "".join(lines), at
        finally:
            link.close()

    def completion(self, path: str, **more: Any) -> dict[str, Any]:
        status, text, _ = self.exchange(path, {"model": MODEL, "max_tokens": TOKENS, "seed": 1} | more)
        if status != 200:
            raise Failed(f"{path} answered {status}: {text[:300]}")
        answer: dict[str, Any] = json.loads(text)
        for name in self.counted:
            self.counted[name] += answer["usage"][name]
        return answer

    def serve(self) -> str:
        file = self.site.data / "random.gguf"
        argv = [sys.executable, str(ROOT / "end2end/tools/llama_model.py"), str(file)]
        subprocess.run(argv, check=True, env=os.environ | {"PYTHONPATH": str(PACKAGES)})
        self.site.upload("weights", file.name, file.read_bytes())
        job = {"volumes": [{"name": "weights", "path": "weights"}], "env": {"PYTHONPATH": str(PACKAGES)}}
        revision = self.site.revision(SERVE, PORT, job=job, readiness_path="/v1/models", concurrency=4)
        models = [{"name": MODEL, "context_tokens": 256}]
        began = time.monotonic()
        self.service = self.site.create(MODEL, revision, models=models)
        self.site.price_tokens(self.service, 1_000_000, 2_000_000)
        self.key = self.site.key("llama")
        self.site.until_ready(self.service, 1, START_S)
        took_s = time.monotonic() - began
        self.port = self.site.gateway("gateway-1")
        wait_for("the gateway to know the model", lambda: MODEL in self.exchange("/v1/models")[1])
        return f"{file.stat().st_size:,} bytes of weights, ready after {took_s:.1f} s"

    def whole(self) -> str:
        chat = self.completion("/v1/chat/completions", messages=[{"role": "user", "content": "Who are you?"}])
        text = self.completion("/v1/completions", prompt="Once upon a time")
        kinds = [chat["object"], text["object"]]
        if kinds != ["chat.completion", "text_completion"]:
            raise Failed(f"the answers are {kinds}")
        return f"usage {chat['usage']} and {text['usage']}"

    def streamed(self) -> str:
        body = {"model": MODEL, "max_tokens": TOKENS, "stream": True, "seed": 2,
                "messages": [{"role": "user", "content": "Tell a long story."}]}
        status, text, at = self.exchange("/v1/chat/completions", body)
        events = [line for line in text.splitlines() if line.startswith("data: ")]
        if status != 200 or len(events) < 3 or events[-1] != "data: [DONE]":
            raise Failed(f"the stream has the status {status} and {len(events)} events: {text[-300:]}")
        # A buffered stream would come at once.
        if at[-1] - at[0] <= 0.001:
            raise Failed(f"all events came within {(at[-1] - at[0]) * 1000:.2f} ms")
        return f"{len(events)} events within {(at[-1] - at[0]) * 1000:.0f} ms"

    def refused(self) -> str:
        body = {"model": "nothing", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
        found = {
            "unknown model": self.exchange("/v1/chat/completions", body)[0],
            "unknown key": self.exchange("/v1/chat/completions", body | {"model": MODEL}, "sk-berth-unknown")[0],
        }
        if found != {"unknown model": 404, "unknown key": 401}:
            raise Failed(f"the refusals are {found}")
        return str(found)

    def accounted(self) -> str:
        """The accounted use has the usage of whole answers, and more for the stream."""
        wait_for("the use of all answers", lambda: self.site.used(self.service)["requests"] >= 3)
        used = self.site.used(self.service)
        beyond = {name: used[name] - self.counted[name] for name in self.counted}
        if used["requests"] != 3 or used["errors"] or min(beyond.values()) < 1 or beyond["completion_tokens"] > TOKENS:
            raise Failed(f"the use is {used}, and the answers had {self.counted}")
        return f"{used}; for the stream {beyond}"

    def wake(self) -> str:
        scaling = {"min_replicas": 0, "max_replicas": 1, "down_delay_s": 0, "idle_s": 2}
        self.site.api("PATCH", self.service, {"scaling": scaling})

        def is_asleep() -> bool:
            seen = self.site.api("GET", self.service)
            return seen["state"] == "asleep" and not seen["replicas"]

        wait_for("the service to fall asleep", is_asleep)
        began = time.monotonic()
        answer = self.completion("/v1/completions", prompt="Wake up")
        took_s = time.monotonic() - began
        return f"the first request woke a replica and had {answer['usage']['completion_tokens']} tokens after {took_s:.1f} s"


def main() -> int:
    if why := left_out():
        print(f"left out of services: a language model, because {why}")
        return 0
    adopt_orphans()
    try:
        scene = Scene()
    except Failed as error:
        print(f"service_llama: {error}", file=sys.stderr)
        return 1
    try:
        steps = {"a model from a volume is ready": scene.serve, "whole answers": scene.whole, "a stream": scene.streamed,
                 "refusals": scene.refused, "the accounted use": scene.accounted, "to zero and back": scene.wake}
        # Each step needs those before it.
        passed = all(step(name, check) for name, check in steps.items())
    finally:
        scene.site.close()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
