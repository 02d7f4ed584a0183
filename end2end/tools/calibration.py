#!/usr/bin/env python3
"""The calibration of this machine: its own speed, beside the goals that are a time or a rate.

It measures SHA-256 on one core, appends with fsync where the benchmarks keep their data, and starts of a program.
Run alone, it prints its figures as JSON.
"""
from __future__ import annotations

import hashlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

# The longest time of each measurement; together they stay below two seconds.
SHA256_S, FSYNC_S, SPAWN_S = 0.5, 0.7, 0.5
BLOCK_BYTES = 1 << 20
APPENDS, APPEND_BYTES = 50, 4096
PROGRAM = "/bin/true"


def sha256_mb_per_s() -> float:
    """Megabytes a second of SHA-256 on one core."""
    block, digest, blocks = bytes(BLOCK_BYTES), hashlib.sha256(), 0
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < SHA256_S:
        digest.update(block)
        blocks += 1
    return blocks * BLOCK_BYTES / 1e6 / took


def fsync_ms(folder: Path) -> float:
    """The median time of an append and its fsync, in a new file of the folder."""
    block = os.urandom(APPEND_BYTES)
    took_ms: list[float] = []
    file = os.open(folder / "appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        deadline = time.perf_counter() + FSYNC_S
        while len(took_ms) < APPENDS and (began := time.perf_counter()) < deadline:
            os.write(file, block)
            os.fsync(file)
            took_ms.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(file)
    return statistics.median(took_ms)


def spawns_per_s() -> float:
    """Starts a second of a program that ends at once, one after the other: fork, exec and wait."""
    started = 0
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < SPAWN_S:
        os.waitpid(os.posix_spawn(PROGRAM, [PROGRAM], {}), 0)
        started += 1
    return started / took


def calibration() -> dict[str, float]:
    """All figures. The benchmarks make their directories in the same place."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        median_ms = fsync_ms(Path(folder))
    return {"sha256_mb_per_s": round(sha256_mb_per_s(), 1), "fsync_ms": round(median_ms, 3),
            "spawns_per_s": round(spawns_per_s(), 1)}


def described(figures: dict[str, float]) -> str:
    return (f"SHA-256 on one core {figures['sha256_mb_per_s']:,.0f} MB/s; fsync of {APPEND_BYTES >> 10} KiB "
            f"{figures['fsync_ms']:.2f} ms; fork and exec of {PROGRAM} {figures['spawns_per_s']:,.0f}/s")


if __name__ == "__main__":
    print(json.dumps(calibration()))
