#!/usr/bin/env python3
"""A language model behind a gateway: llama-cpp-python serves the small random model of llama_model.py as a service.

Prints its steps and exits with 1 after a failed one. Without llama-cpp-python (end2end/tools/setup.sh llama) it says so.
Takes DIST (target/dist) from the environment.
"""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from model_scene import Engine, Scene
from processes import adopt_orphans
from rest import Failed
from service_site import ServiceSite, obstacle
from worker_bench import ROOT

PACKAGES = ROOT / "target/tools/llama"
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


def write(directory: Path) -> None:
    argv = [sys.executable, str(ROOT / "end2end/tools/llama_model.py"), str(directory / "random.gguf")]
    subprocess.run(argv, check=True, env=os.environ | {"PYTHONPATH": str(PACKAGES)})


def main() -> int:
    if why := left_out():
        print(f"left out of services: a language model, because {why}")
        return 0
    adopt_orphans()
    job = {"env": {"PYTHONPATH": str(PACKAGES)}}
    engine = Engine(SERVE, 8000, "/v1/models", job, write, context_tokens=256)
    try:
        scene = Scene(ServiceSite("1xH100-80GB"), engine)
    except Failed as error:
        print(f"service_llama: {error}", file=sys.stderr)
        return 1
    return 0 if scene.run() else 1


if __name__ == "__main__":
    sys.exit(main())
