"""The benchmarks of the books: the program `books` of berth-server, and its answers as rows.

On both engines, each on a database of its own; Postgres is left out where it is not installed.
"""
from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
MakeRow = Callable[..., Row]
POSTGRES = any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def answers(engine: str, what: str) -> dict[str, dict[str, Any]]:
    """What the program says of each figure."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "berth-server", "--example", "books"]
    subprocess.run(build, cwd=ROOT, check=True)
    # Beside the build, because a temporary directory may be in memory.
    disk = tempfile.mkdtemp(prefix="books-", dir=ROOT / "target")
    argv = [str(ROOT / "target/release/examples/books"), what, "--disk", disk]
    if engine == "postgres":
        inner = 'exec "$@" --database "$BERTH_TEST_POSTGRES/postgres"'
        argv = [str(ROOT / "end2end/tools/with-postgres.sh"), "bash", "-c", inner, "books", *argv]
    try:
        out = subprocess.run(argv, check=True, text=True, stdout=subprocess.PIPE)
    finally:
        shutil.rmtree(disk, ignore_errors=True)
    said = (json.loads(line) for line in out.stdout.splitlines() if line.startswith("{"))
    return {answer["name"]: answer for answer in said}


def postings(row: MakeRow) -> list[Row]:
    rows = []
    for engine, batched, single in (("sqlite", 100_000, 5_000), ("postgres", 50_000, 2_000)):
        if engine == "postgres" and not POSTGRES:
            rows += [row(f"ledger-{kind}-{engine}", None, "/s", None, note="not installed") for kind in ("batched", "single")]
            continue
        said = answers(engine, "postings")
        rows += [row(f"ledger-batched-{engine}", said["batched"]["per_second"], "/s", batched, least=True,
                     note="8,000 in a transaction, over 100 accounts"),
                 row(f"ledger-single-{engine}", said["single"]["per_second"], "/s", single, least=True)]
    return rows


def usage(row: MakeRow) -> list[Row]:
    rows = []
    for engine in ("sqlite", "postgres") if POSTGRES else ("sqlite",):
        said = answers(engine, "usage")["usage"]
        rows.append(row(f"usage-{engine}", said["slowest_ms"], "ms", 200, note=f"slowest of 80 over {said['rows']:,} rows"))
    return rows


BENCHES: dict[str, Callable[[MakeRow], list[Row]]] = {
    "ledger-batched-sqlite ledger-single-sqlite ledger-batched-postgres ledger-single-postgres": postings,
    "usage-sqlite usage-postgres": usage,
}
