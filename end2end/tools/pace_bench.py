#!/usr/bin/env python3
"""The benchmark of short jobs: how many of /bin/true a node runs a second, in its sandbox and without one.

The jobs are submitted while the node is cordoned. What is counted is from when it is opened to when the last
of them has ended and is charged for: placing, telling the worker, preparing, the shim, the command, its end,
the proof that its place is clean, and the next one in that place. Beside the sandboxed ones stands the same
sandbox in bare loops, as many as jobs run at once, before and after them: machines do not keep their speed.

Where `hq` is on the PATH, HyperQueue runs as many jobs in the same run (hq_bench.py). Its rows have both rates.

Run as `pace_bench.py pace` it prints what it found as JSON. BENCH_JOBS (3000), BENCH_SLOTS (how many at once: 56
in sandboxes, 200 without) and BENCH_SECONDS (10, of the bare loops) change it.
"""
from __future__ import annotations

import calendar
import functools
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import hq_bench
from processes import adopt_orphans
from rest import Failed, find_json, put_json
from worker_bench import ENDED, ROOT, MakeRow, Row, Site, wait_for

OFFERING, BOARDS, CLIENTS, NODE = "h100-80gb", 2, 4, "quay"
JOBS = int(os.environ.get("BENCH_JOBS") or 3_000)
# With how many at once this is fastest, by whether they are isolated.
SLOTS = {isolated: int(os.environ.get("BENCH_SLOTS") or most) for isolated, most in ((True, 56), (False, 200))}
SECONDS = int(os.environ.get("BENCH_SECONDS") or 10)
# Where the worker looks for it, in this order.
BWRAP = next((p for p in ("/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap") if Path(p).exists()), None)


def seconds(text: str) -> float:
    """Since the epoch, of an RFC 3339 time in UTC with any number of decimals."""
    whole, _, part = text.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{part or 0}")


def job(command: list[str], slots: int) -> dict[str, Any]:
    # As many of these fit on the boards as there are slots, and no more.
    share = 1_000 * BOARDS // slots
    return {"name": "pace", "offering": OFFERING, "gpu_milli": share, "command": command, "max_duration_s": 600}


def submit(site: Site, count: int, slots: int, failures: list[str]) -> None:
    """One client: one request after the other on one connection."""
    text = json.dumps(job(["/bin/true"], slots))
    headers = site.api.headers | {"Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
    try:
        for _ in range(count):
            connection.request("POST", f"/api/v1{site.org}/jobs", text, headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 201:
                raise Failed(f"a submission was refused ({answer.status}): {said[:200]!r}")
    except (OSError, http.client.HTTPException, Failed) as error:
        failures.append(str(error))
    finally:
        connection.close()


def submit_all(site: Site, slots: int) -> float:
    """Submissions a second."""
    failures: list[str] = []
    counts = [len(range(number, JOBS, CLIENTS)) for number in range(CLIENTS)]
    clients = [threading.Thread(target=submit, args=(site, count, slots, failures)) for count in counts]
    began = time.monotonic()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if failures:
        raise Failed(failures[0])
    return JOBS / (time.monotonic() - began)


def cordon(site: Site, cordoned: bool) -> None:
    for node in site.operator.items("/operator/nodes"):
        site.operator("PATCH", f"/operator/nodes/{node['id']}", {"cordoned": cordoned})


def listed(site: Site) -> list[Any]:
    """All jobs."""
    items: list[Any] = []
    cursor = ""
    while True:
        page = site.api("GET", f"{site.org}/jobs?limit=200{cursor}")
        items += page["items"]
        if not page.get("next_cursor"):
            return items
        cursor = f"&cursor={page['next_cursor']}"


def run_jobs(site: Site, slots: int) -> dict[str, float]:
    """How many jobs a second went through the node."""
    cordon(site, True)
    before = {each["id"] for each in listed(site)}
    submitted = submit_all(site, slots)
    began = time.time()
    cordon(site, False)
    going = ("queued", "assigned", "starting", "running", "stopping")
    deadline = time.monotonic() + 600
    # Asked seldom: whoever asks takes time from what is measured.
    while any(site.api("GET", f"{site.org}/jobs?limit=1&state={state}")["items"] for state in going):
        for service in site.services:
            service.check()
        if time.monotonic() > deadline:
            raise Failed("after 600 s still waiting for the jobs")
        time.sleep(0.5)
    jobs = [each for each in listed(site) if each["id"] not in before]
    bad = [each["state"] for each in jobs if each["state"] != "succeeded"]
    if len(jobs) != JOBS or bad:
        raise Failed(f"of {JOBS} jobs {len(jobs)} are there, and {len(bad)} did not succeed: {sorted(set(bad))}")
    wait_for("the worker to be clean", lambda: not list(site.data.glob("*/attempts/job_*")))
    took = max(seconds(each["ended_at"]) for each in jobs) - began
    return {"per_second": JOBS / took, "submitted_per_second": submitted}


def without_sandbox(argv: list[str]) -> list[str]:
    """The same worker where there is no bubblewrap: a mount that only it sees is over it."""
    if BWRAP is None:
        return argv
    alone = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    return [*alone, "sh", "-c", 'mount --bind /bin/false "$0" && exec "$@"', BWRAP, *argv]


def opened(isolated: bool) -> Site | None:
    """A site with one worker; None where that cannot be isolated."""
    site = Site()
    try:
        argv = site.worker_argv(NODE, f"{BOARDS}xH100-80GB")
        site.service(NODE, *(argv if isolated else without_sandbox(argv)))
        site.ready(1)
        site.operator("POST", "/operator/prices", {"offering": OFFERING, "per_hour_micros": 3_600_000})
        node = site.operator.items("/operator/nodes")[0]
        if node["unisolated"] != isolated:
            return site
        if not isolated:
            raise Failed("the worker found a sandbox that was to be hidden from it")
    except BaseException:
        site.close()
        raise
    site.close()
    return None


def bare(site: Site) -> float:
    """Starts a second of the very sandbox that a job of this worker gets, with nothing around it."""
    build = ["cargo", "build", "--quiet", "--release", "-p", "berth-worker", "--example", "bare_loop"]
    subprocess.run(build, check=True, cwd=ROOT)
    one = str(site.api("POST", f"{site.org}/jobs", job(["sleep", "300"], SLOTS[True]))["id"])
    wait_for("a job", lambda: site.job(one)["state"] in ("running", *ENDED))
    # Its directory is there as long as it runs.
    launch = find_json(site.data / NODE / f"attempts/{one}-1/launch.json")
    if launch is None or launch["argv"][-2:] != ["sleep", "300"]:
        raise Failed(f"the worker did not start {one} as expected")
    launch["argv"][-2:] = ["/bin/true"]
    put_json(site.data / "bare.json", launch)
    argv = [str(ROOT / "target/release/examples/bare_loop"), "--launch", str(site.data / "bare.json"),
            "--loops", str(SLOTS[True]), "--seconds", str(SECONDS)]
    said = subprocess.run(argv, check=True, text=True, stdout=subprocess.PIPE).stdout
    site.end([one])
    return float(json.loads(said)["per_second"])


def pace() -> dict[str, Any]:
    found: dict[str, Any] = {"bare": None, "sandboxed": None}
    site = opened(isolated=True)
    if site:
        try:
            before = bare(site)
            found["sandboxed"] = run_jobs(site, SLOTS[True])
            found["bare"] = (before + bare(site)) / 2
        finally:
            site.close()
    site = opened(isolated=False)
    if site is None:
        raise Failed("the worker says that it is isolated")
    try:
        found["unisolated"] = run_jobs(site, SLOTS[False])
    finally:
        site.close()
    return found


@functools.cache
def measured() -> dict[str, Any]:
    """What a process of its own found, once for all rows."""
    argv = [sys.executable, __file__, "pace"]
    out = subprocess.run(argv, check=True, text=True, stdout=subprocess.PIPE).stdout
    return dict(json.loads(out.splitlines()[-1]))


def pace_rows(row: MakeRow) -> list[Row]:
    said = measured()

    def note(found: dict[str, float], slots: int, more: str = "") -> str:
        before = f"submitted before, at {found['submitted_per_second']:.0f}/s"
        return f"{more}{JOBS} jobs, {slots} at once, {before}; from the node's opening to the last charge"

    if said["sandboxed"] is None:
        rows = [row("jobs-sandboxed-ratio", None, "% of bare", 60, least=True, note="no sandbox works here")]
    else:
        per_second = said["sandboxed"]["per_second"]
        more = f"{per_second:.0f} jobs/s beside {said['bare']:.0f} bare starts/s; "
        rows = [row("jobs-sandboxed-ratio", 100 * per_second / said["bare"], "% of bare", 60, least=True,
                    note=note(said["sandboxed"], SLOTS[True], more)) | {"peer": round(said["bare"], 1)}]
    unisolated = said["unisolated"]
    words = note(unisolated, SLOTS[False])
    return rows + [row("jobs-unisolated", unisolated["per_second"], "jobs/s", 400, least=True, note=words)]


def hq_rows(row: MakeRow) -> list[Row]:
    """Our rate without a sandbox beside the rates of hq, which has none: without output files, and with them."""
    if hq_bench.program() is None:
        why = "left out, like jobs-beside-hq-files: hq (HyperQueue) is not on the PATH"
        return [row("jobs-beside-hq", None, "jobs/s", None, note=why)]
    ours = measured()["unisolated"]["per_second"]
    hq = hq_bench.found(JOBS)

    def beside(name: str, theirs: float, files: str) -> Row:
        ratio = round(ours / theirs, 2)
        note = f"hq {hq['version']}: {theirs:.1f} jobs/s, ratio {ratio:g}; {JOBS} single jobs beside one array of hq, {files}"
        return row(name, ours, "jobs/s", None, note=note) | {"peer": round(theirs, 1), "ratio": ratio}

    return [beside("jobs-beside-hq", hq["without_files"], "no output files"),
            beside("jobs-beside-hq-files", hq["with_files"], "two output files a task")]


BENCHES = {
    "jobs-sandboxed-ratio jobs-unisolated": pace_rows,
    "jobs-beside-hq jobs-beside-hq-files": hq_rows,
}


def main() -> int:
    if sys.argv[1:] != ["pace"]:
        print("pace_bench: say pace", file=sys.stderr)
        return 2
    adopt_orphans()
    print(json.dumps(pace()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
