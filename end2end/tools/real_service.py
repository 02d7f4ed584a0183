#!/usr/bin/env python3
"""A language model on a board of this host behind a gateway: `transformers serve` runs a random model as a service.

Prints its steps and exits with 1 after a failed one. It changes no MIG mode and resets nothing. Boards must be idle.
Takes DIST (target/dist), DATA (a new directory), WORKER_ARGS (further options of the worker) and TORCH_PYTHON (a Python
with torch and transformers[serving]) from the environment. Needs root for the networks of replicas.
"""
from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from model_scene import MODEL, TOKENS, Engine, Scene
from processes import adopt_orphans, free_port
from rest import Failed
from service_site import ServiceSite, obstacle
from worker_bench import ROOT, wait_for

STARTS = 3
PYTHON = os.environ.get("TORCH_PYTHON", "python3")
# It answers for the name of its argument only, which is a directory.
SERVE = (f'ln -s "$BERTH_VOLUME_WEIGHTS" {MODEL}; '
         f'HF_HUB_OFFLINE=1 exec {PYTHON} -c "from transformers.cli.transformers import main; main()" '
         f'serve {MODEL} --host 127.0.0.1 --port "$PORT" --log-level info')


def left_out() -> str | None:
    """The reason why this machine cannot run it; None if it can."""
    needed = "import fastapi, openai, torch, transformers, uvicorn; assert torch.cuda.is_available()"
    if subprocess.run([PYTHON, "-c", needed], capture_output=True, check=False).returncode:
        return "torch with CUDA or transformers[serving] is not installed"
    return obstacle()


def write(directory: Path) -> None:
    subprocess.run([PYTHON, str(ROOT / "end2end/tools/transformers_model.py"), str(directory)], check=True)


def compute_processes() -> list[str]:
    """The programs of CUDA on the boards, as nvidia-smi lists them."""
    argv = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()


class RealScene(Scene):
    """The same steps, with a look at the boards and the start of the same server without Berth."""

    def whole(self) -> str:
        text, processes = super().whole(), compute_processes()
        if not processes:
            raise Failed("the server of models is not on a board")
        return f"{text}; on the boards (process, memory): {processes}"

    def sleep(self) -> str:
        text = super().sleep()
        wait_for("empty boards", lambda: not compute_processes())
        return f"{text}, and no process is on a board"

    def wake(self) -> str:
        """Seconds from a request until its answer, and from a start of the same server by itself until its answer."""
        woken, bare = list[float](), list[float]()
        for _ in range(STARTS):
            began = time.monotonic()
            super().wake()
            woken.append(time.monotonic() - began)
            self.sleep()
            bare.append(self.bare_start())
        more = statistics.median(woken) - statistics.median(bare)
        return (f"answers after {', '.join(f'{one:.2f}' for one in woken)} s; of the server by itself after "
                f"{', '.join(f'{one:.2f}' for one in bare)} s; the medians differ by {more:.2f} s")

    def bare_start(self) -> float:
        """Runs the server without Berth until its first answer."""
        port, home = free_port(), Path(tempfile.mkdtemp(dir=self.site.data))
        env = os.environ | {"PORT": str(port), "BERTH_VOLUME_WEIGHTS": str(self.site.data / "model")}
        body = json.dumps({"model": MODEL, "max_tokens": TOKENS, "seed": 1, "prompt": "Wake up"})

        def answers(method: str, path: str, body: str | None = None) -> bool:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                link.request(method, path, body, {"Content-Type": "application/json"})
                answer = link.getresponse()
                answer.read()
                return answer.status == 200
            except OSError:
                return False
            finally:
                link.close()

        began = time.monotonic()
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(["sh", "-c", SERVE], cwd=home, env=env, stdout=log, stderr=log)
        try:
            wait_for("the server without Berth", lambda: answers("GET", "/health"))
            if not answers("POST", "/v1/completions", body):
                raise Failed("the server without Berth gave no answer")
            return time.monotonic() - began
        finally:
            server.kill()
            server.wait()
            wait_for("empty boards", lambda: not compute_processes())


def main() -> int:
    if why := left_out():
        print(f"left out: a language model on a board, because {why}")
        return 0
    adopt_orphans()
    job = {"env": {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}}
    engine = Engine(SERVE, 8000, "/health", job, write, context_tokens=1_024)
    data = Path(os.environ["DATA"]) if os.environ.get("DATA") else None
    if data is not None:
        data.mkdir(parents=True)
    try:
        scene = RealScene(ServiceSite(None, data), engine)
    except Failed as error:
        print(f"real_service: {error}", file=sys.stderr)
        return 1
    return 0 if scene.run() else 1


if __name__ == "__main__":
    sys.exit(main())
