"""A service with a server of models that others wrote, for the scripts beside it: its steps, from the upload of the model to
the bill."""
from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rest import Failed
from service_site import ServiceSite, step
from worker_bench import wait_for

MODEL, TOKENS = "random", 24
MANY, CALLERS = 48, 6
# Loading Python's packages is most of the start.
START_S = 180.0
TIMEOUT_S = 120.0


@dataclass
class Engine:
    """A server of models that others wrote, and its model."""

    # A script for a replica. `$PORT` is its port, and `$BERTH_VOLUME_WEIGHTS` the directory of the model.
    script: str
    port: int
    readiness_path: str
    # More fields of the job of a replica.
    job: dict[str, Any]
    # Writes the model into a directory.
    write: Callable[[Path], None]
    context_tokens: int


class Scene:
    """A service with one replica, and its gateway."""

    def __init__(self, site: ServiceSite, engine: Engine) -> None:
        self.site, self.engine, self.service, self.port, self.key = site, engine, "", 0, ""
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
        model = self.site.data / "model"
        model.mkdir()
        self.engine.write(model)
        files = sorted(model.iterdir())
        size = sum(file.stat().st_size for file in files)
        self.site.volume("weights", size)
        for file in files:
            self.site.upload("weights", file.name, file)
        job = {"volumes": [{"name": "weights", "path": "weights"}]} | self.engine.job
        revision = self.site.revision(
            self.engine.script, self.engine.port, job=job, readiness_path=self.engine.readiness_path, concurrency=4)
        models = [{"name": MODEL, "context_tokens": self.engine.context_tokens}]
        began = time.monotonic()
        self.service = self.site.create(MODEL, revision, models=models)
        self.site.price_tokens(self.service, 1_000_000, 2_000_000)
        self.key = self.site.key("models")
        self.site.until_ready(self.service, 1, START_S)
        took_s = time.monotonic() - began
        self.port = self.site.gateway("gateway-1")
        wait_for("the gateway to know the model", lambda: MODEL in self.exchange("/v1/models")[1])
        return f"{size:,} bytes of weights, ready after {took_s:.1f} s"

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
        # Not all servers send a last event of its own.
        whole = events[-1:] == ["data: [DONE]"] or '"finish_reason":"length"' in "".join(events[-1:])
        if status != 200 or len(events) < 3 or not whole:
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

    def many(self) -> str:
        """Requests of several callers at once: all are answered, and each is accounted."""
        before, began = self.site.used(self.service), time.monotonic()
        with ThreadPoolExecutor(CALLERS) as callers:
            prompts = [f"Number {number}" for number in range(MANY)]
            list(callers.map(lambda prompt: self.completion("/v1/completions", prompt=prompt), prompts))
        took_s = time.monotonic() - began
        wait_for("the use of all answers", lambda: self.site.used(self.service)["requests"] >= before["requests"] + MANY)
        used = self.site.used(self.service)
        gone = {name: used[name] - before[name] for name in ("requests", "errors", "completion_tokens")}
        if gone != {"requests": MANY, "errors": 0, "completion_tokens": MANY * TOKENS}:
            raise Failed(f"the use is {gone}")
        return f"{MANY} by {CALLERS} callers in {took_s:.1f} s; the use is {gone}"

    def sleep(self) -> str:
        scaling = {"min_replicas": 0, "max_replicas": 1, "down_delay_s": 0, "idle_s": 2}
        self.site.api("PATCH", self.service, {"scaling": scaling})

        def is_asleep() -> bool:
            seen = self.site.api("GET", self.service)
            return seen["state"] == "asleep" and not seen["replicas"]

        wait_for("the service to fall asleep", is_asleep)
        return "no replica is left"

    def wake(self) -> str:
        began = time.monotonic()
        answer = self.completion("/v1/completions", prompt="Wake up")
        took_s = time.monotonic() - began
        return f"the first request woke a replica and had {answer['usage']['completion_tokens']} tokens after {took_s:.1f} s"

    def run(self) -> bool:
        """Runs all steps, and closes the site. False after a failed step."""
        steps = {"a model from a volume is ready": self.serve, "whole answers": self.whole, "a stream": self.streamed,
                 "refusals": self.refused, "the accounted use": self.accounted, "many requests": self.many,
                 "to zero": self.sleep, "and back": self.wake}
        try:
            # Each step needs those before it.
            return all(step(name, check) for name, check in steps.items())
        finally:
            self.site.close()
