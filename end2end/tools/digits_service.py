#!/usr/bin/env python3
"""From training to serving, three times: examples/digits/publish.py on a portal, a worker and a gateway of their own.

The first model serves, and reads most digits of the test set. The second model fails its check, and changes nothing. The
third one passes its check, but its server answers with errors: the canary is rolled back, and the first model serves on.

Prints its steps and exits with 1 after a failed one. Takes DIST (target/dist) from the environment.
"""
from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from processes import adopt_orphans
from rest import Failed
from service_site import NoSandbox, ServiceSite, obstacle, step
from worker_bench import ROOT, SLICE, wait_for

EXAMPLE = ROOT / "examples/digits"
TEST_SHARE, LEAST_RIGHT, TIMEOUT_S, PUBLISH_S = 0.2, 0.93, 120.0, 300.0
SPLIT_SEED = 1797
# Of the third model: its check does not use the server, so only requests show the error.
GOOD, BAD = 'self.answer(200, {"digit"', 'self.answer(500, {"digit"'


def test_images() -> list[tuple[list[int], int]]:
    """The images that no training has seen, with their digits: the same part of the file as in train.py."""
    rows = [[int(number) for number in line.split(",")] for line in (EXAMPLE / "digits.csv").read_text().splitlines()]
    random.Random(SPLIT_SEED).shuffle(rows)
    return [(row[:64], row[64]) for row in rows[:round(len(rows) * TEST_SHARE)]]


class Scene:
    """The site, its gateway and the service."""

    def __init__(self) -> None:
        self.site, self.service, self.path = ServiceSite("1xH100-80GB"), "", ""
        try:
            self.port, self.key, self.images = self.site.gateway("gateway-1"), self.site.key("digits"), test_images()
        except BaseException:
            self.site.close()
            raise

    def publish(self, example: Path, *arguments: str) -> tuple[int, str]:
        """The exit code and the text of a run of publish.py."""
        secret = self.site.api.headers["Authorization"].removeprefix("Bearer ")
        env = {"PATH": os.environ["PATH"], "BERTH_URL": f"http://127.0.0.1:{self.site.port}", "BERTH_TOKEN": secret,
               "BERTH_ORG": self.site.org_id, "BERTH_OFFERING": SLICE, "no_proxy": "127.0.0.1"}
        done = subprocess.run([sys.executable, str(example / "publish.py"), *arguments], env=env, text=True, cwd=self.site.data,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PUBLISH_S)
        return done.returncode, done.stdout

    def job_log(self, name: str) -> str:
        """The log of the newest job with this name."""
        named = [one for one in self.site.api.items(f"{self.site.org}/jobs") if one["name"] == name]
        job = max(named, key=lambda one: str(one["created_at"]))
        wait_for("its whole log", lambda: not list(self.site.data.glob(f"*/attempts/{job['id']}-*")))
        return self.site.log(job["id"], job["attempt"])

    def published(self, example: Path, *arguments: str) -> str:
        code, text = self.publish(example, *arguments)
        if code != 0:
            raise Failed(f"publish.py ended with {code}: {text}\n{self.job_log('digits-train')}\n{self.job_log('digits-publish')}")
        return self.job_log("digits-publish").strip().replace("\n", "; ")

    def revisions(self) -> dict[int, str]:
        return {one["number"]: one["state"] for one in self.site.api.items(f"{self.service}/revisions")}

    def ask(self, link: http.client.HTTPConnection, pixels: list[int]) -> tuple[int, Any]:
        link.request("POST", f"{self.path}/", json.dumps({"pixels": pixels}),
                     {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"})
        answer = link.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else text

    def link(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

    def right(self) -> str:
        """The share of the test images that the service reads."""
        link, right, began = self.link(), 0, time.monotonic()
        try:
            for pixels, digit in self.images:
                status, answer = self.ask(link, pixels)
                if status != 200:
                    raise Failed(f"the service answered {status}: {answer}")
                right += answer["digit"] == digit
        finally:
            link.close()
        if right < LEAST_RIGHT * len(self.images):
            raise Failed(f"{right} of {len(self.images)} digits are right")
        return f"{right} of {len(self.images)} digits are right, read in {time.monotonic() - began:.1f} s"

    def first(self) -> str:
        said = self.published(EXAMPLE)
        found = self.site.api.items(f"{self.site.org}/services")
        if [one["name"] for one in found] != ["digits"]:
            raise Failed(f"the services are {found}")
        self.service, self.path = f"{self.site.org}/services/{found[0]['id']}", found[0]["path"]
        return said

    def wake(self) -> str:
        """The first request: until the gateway knows the service it answers 404."""
        began = time.monotonic()

        def is_answered() -> bool:
            link = self.link()
            try:
                status, answer = self.ask(link, self.images[0][0])
            finally:
                link.close()
            if status not in (200, 401, 404, 503):
                raise Failed(f"the service answered {status}: {answer}")
            return status == 200

        wait_for("an answer of the service", is_answered)
        return f"an answer after {time.monotonic() - began:.1f} s"

    def unchecked(self) -> str:
        """One epoch with small steps: the network has learned nothing."""
        code, text = self.publish(EXAMPLE, "--epochs", "1", "--lr", "0.00001")
        log = self.job_log("digits-publish")
        if code == 0 or "is necessary" not in log or self.revisions() != {1: "live"}:
            raise Failed(f"publish.py ended with {code}, and the revisions are {self.revisions()}: {text}\n{log}")
        return f"no revision: {log.strip()}"

    def worse(self) -> str:
        copy = self.site.data / "worse"
        shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        text = (copy / "serve.py").read_text()
        if text.count(GOOD) != 1:
            raise Failed(f"serve.py has no {GOOD}")
        (copy / "serve.py").write_text(text.replace(GOOD, BAD))
        return self.published(copy)

    def rolled_back(self) -> str:
        """Asks until the judge of canaries has seen enough errors."""
        statuses, link = Counter[int](), self.link()

        def is_back() -> bool:
            for pixels, _ in self.images[:50]:
                statuses[self.ask(link, pixels)[0]] += 1
            return self.revisions() == {1: "live", 2: "rolled_back"}

        try:
            wait_for("the roll back", is_back)
        finally:
            link.close()
        if statuses[500] < 1 or set(statuses) - {200, 500}:
            raise Failed(f"the answers were {dict(statuses)}")
        detail = self.site.api("GET", f"{self.service}/revisions?limit=1")["items"][0]["detail"]
        return f"{statuses[200]} answers, {statuses[500]} errors; revision 2: {detail}"

    def again(self) -> str:
        """The gateway can have the former shares for a moment; then each answer is that of the first model."""
        link = self.link()

        def is_sound() -> bool:
            return all(self.ask(link, pixels)[0] == 200 for pixels, _ in self.images[:50])

        try:
            wait_for("answers without an error", is_sound)
        finally:
            link.close()
        return self.right()


def main() -> int:
    why = obstacle()
    if why is None:
        adopt_orphans()
        try:
            scene = Scene()
        except NoSandbox as error:
            why = str(error)
        except Failed as error:
            print(f"digits_service: {error}", file=sys.stderr)
            return 1
    if why is not None:
        print(f"left out of services: the way from training to serving, because {why}")
        return 0
    try:
        steps = {"a trained and checked model becomes a service": scene.first, "the first request wakes it": scene.wake,
                 "it reads the digits": scene.right, "a model that fails its check": scene.unchecked,
                 "a model with a broken server becomes a canary": scene.worse, "the canary is rolled back": scene.rolled_back,
                 "the first model serves on": scene.again}
        # Each step needs those before it.
        passed = all(step(name, check) for name, check in steps.items())
    finally:
        scene.site.close()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
