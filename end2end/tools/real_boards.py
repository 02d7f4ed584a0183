#!/usr/bin/env python3
"""The whole path on this host's own boards: a portal, a worker without simulation, and jobs of two organizations.

Prints one line for each step with its figures, and exits with 1 after a failed step. It changes no MIG mode and resets
nothing: jobs use whole boards without MIG. Boards must be idle. Takes DIST (target/dist), DATA (a new directory) and
WORKER_ARGS (further options of the worker) from the environment. Needs root for the networks of jobs.
"""
from __future__ import annotations

import csv
import io
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import POLL_S, Service, adopt_orphans, stop_orphans
from rest import Api, Failed

ROOT = Path(__file__).resolve().parents[2]
DIST = Path(os.environ.get("DIST") or ROOT / "target/dist").resolve()
PORT, WORKER_PORT = 18_480, 18_481
CLIENT = (ROOT / "end2end/tools/cuda_client.py").read_text(encoding="utf-8")
DEADLINE_S = 60.0
PRICE_MICROS = 3_600_000
TORCH = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
a @ a
torch.cuda.synchronize()
began, n = time.monotonic(), 0
while time.monotonic() - began < 6:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
    n += 20
took = time.monotonic() - began
print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}: {n * 2 * 8192 ** 3 / took / 1e12:.0f} TFLOP/s", flush=True)
"""


def wait_for(subject: str, found: Callable[[], Any], limit_s: float = DEADLINE_S) -> Any:
    """Polls until `found` returns a true value."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            value = found()
        except OSError:
            value = None
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"no {subject} after {limit_s:.0f} s")
        time.sleep(POLL_S)


def smi(*fields: str) -> list[dict[str, str]]:
    """The answers of nvidia-smi by board."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    return [dict(zip(fields, (cell.strip() for cell in row))) for row in csv.reader(io.StringIO(text))]


def compute_pids() -> list[str]:
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split()


class Cloud:
    """The portal, the worker, the accounts, and the results of the steps."""

    def __init__(self, data: Path) -> None:
        self.data, self.failed = data, 0
        self.portal = Service(
            "portal", data / "portal.log", str(DIST / "berth-portal"), "serve", "--data", str(data / "portal"),
            "--listen", f"127.0.0.1:{PORT}", "--worker-listen", f"127.0.0.1:{WORKER_PORT}")
        wait_for("portal", lambda: Api(PORT).exchange("GET", "/readyz")[0] == 200)
        self.operator = self.make_operator()
        self.tenants = [self.make_tenant(name) for name in ("first", "second")]
        self.join_token = self.operator("POST", "/operator/join-tokens", {"approve": True})["secret"]
        self.worker = self.start_worker()

    def make_operator(self) -> Api:
        line = re.compile(r"Setup token, valid until used or until the next start: (\S+)")
        token = wait_for("setup token", lambda: line.search(self.portal.output())).group(1)
        email, password = "operator@example.org", secrets.token_urlsafe(18)
        Api(PORT)("POST", "/setup", {"token": token, "email": email, "password": password, "name": "Operator"})
        person = Api(PORT).sign_in(email, password)
        assert person is not None
        return Api.with_token(PORT, person("POST", "/operator/tokens", {"name": "path"})["secret"])

    def make_tenant(self, name: str) -> tuple[Api, str]:
        email, password = f"{name}@example.org", secrets.token_urlsafe(18)
        person = {"email": email, "password": password, "name": name.title(), "organization": name}
        Api(PORT)("POST", "/sign-up", person)
        tenant = Api(PORT).sign_in(email, password)
        assert tenant is not None
        org = tenant("GET", "/me")["memberships"][0]["org"]["id"]
        self.operator("POST", f"/operator/orgs/{org}/credits", {"amount_micros": 100_000_000, "memo": "Credit"})
        token = tenant("POST", f"/orgs/{org}/tokens", {"name": "path", "role": "owner"})["secret"]
        return Api.with_token(PORT, token), org

    def start_worker(self) -> Service:
        arguments = ["run", "--portal", f"https://127.0.0.1:{WORKER_PORT}", "--data", str(self.data / "worker"),
                     "--name", "host", "--join-token", self.join_token]
        arguments += shlex.split(os.environ.get("WORKER_ARGS", ""))
        return Service("worker", self.data / "worker.log", str(DIST / "berth-worker"), *arguments)

    def step(self, name: str, check: Callable[[], str]) -> None:
        began = time.monotonic()
        try:
            text, word = check(), "ok"
        except (Failed, AssertionError, OSError, LookupError, TypeError, ValueError, subprocess.SubprocessError) as error:
            self.failed += 1
            text, word = f"{type(error).__name__}: {error}", "FAILED"
        print(f"{word:6} {name} ({time.monotonic() - began:.1f} s): {text}", flush=True)

    def boards(self) -> list[dict[str, Any]]:
        self.worker.check()
        nodes = self.operator.items("/operator/nodes")
        if not nodes or nodes[0]["state"] != "ready":
            return []
        return self.operator.items(f"/operator/nodes/{nodes[0]['id']}/gpus")

    def whole_board(self) -> str:
        """The offering of a whole board, with a price."""
        offerings = [o for o in self.operator.items("/offerings") if o["cells"] == o["board_cells"]]
        slug = str(offerings[0]["slug"])
        if offerings[0]["price"]["version"] == 0:
            self.operator("POST", "/operator/prices", {"offering": slug, "per_hour_micros": PRICE_MICROS})
        return slug

    def submit(self, tenant: int, *words: str, **more: Any) -> str:
        api, org = self.tenants[tenant]
        job = {"name": "-".join(words)[:40] or "job", "offering": self.whole_board(), "max_duration_s": 300,
               "command": [sys.executable, "cuda_client.py", *words], "files": {"cuda_client.py": CLIENT}} | more
        return str(api("POST", f"/orgs/{org}/jobs", job)["id"])

    def job(self, tenant: int, job: str) -> dict[str, Any]:
        api, org = self.tenants[tenant]
        found: dict[str, Any] = api("GET", f"/orgs/{org}/jobs/{job}")
        return found

    def log(self, tenant: int, job: str) -> str:
        api, org = self.tenants[tenant]
        return str(api.exchange("GET", f"/api/v1/orgs/{org}/jobs/{job}/logs")[1])

    def until_line(self, tenant: int, job: str, text: str) -> str:
        def line() -> str | None:
            state = self.job(tenant, job)
            log = self.log(tenant, job)
            if text not in log and state["state"] in ("failed", "cancelled", "succeeded"):
                raise Failed(f"the job ended: {state.get('failure')} {log!r}")
            return log if text in log else None
        return str(wait_for(f"line {text!r}", line))

    def ended(self, tenant: int, job: str) -> dict[str, Any]:
        def end() -> dict[str, Any] | None:
            found = self.job(tenant, job)
            return found if found["state"] in ("succeeded", "failed", "cancelled") else None
        found: dict[str, Any] = wait_for("end of the job", end, 120)
        return found

    def run(self, tenant: int, *words: str, **more: Any) -> tuple[dict[str, Any], str]:
        job = self.submit(tenant, *words, **more)
        return self.ended(tenant, job), self.log(tenant, job)


def succeeded(result: tuple[dict[str, Any], str]) -> tuple[dict[str, Any], str]:
    job, log = result
    if job["state"] != "succeeded":
        raise Failed(f"{job['state']}: {job.get('failure')} {log[-400:]!r}")
    return job, log


def clearing(job: dict[str, Any]) -> str:
    found = [e["memory_clearing"] for e in job["evidence"] if e.get("memory_clearing")]
    if not found:
        return "no clearing"
    one = found[0]
    return (f"cleared {one['cleared_bytes'] >> 20} of {one['total_bytes'] >> 20} MiB in {one['took_ms']} ms, "
            f"{one['samples']} samples")


def service(board: dict[str, Any]) -> str:
    """The reason why a board takes no work."""
    return str(board.get("quarantine") or board.get("silent") or "in service")


def last(log: str) -> str:
    return log.strip().splitlines()[-1] if log.strip() else "no log"


def check_boards(cloud: Cloud) -> str:
    boards = wait_for("facts of all boards", lambda: all(b.get("facts", {}).get("vbios") for b in found) and found
                      if (found := cloud.boards()) else None)
    own = smi("uuid", "name", "memory.total", "pci.bus_id", "vbios_version", "mig.mode.current")
    assert {b["uuid"] for b in boards} == {b["uuid"] for b in own}, (boards, own)
    for board in own:
        shown = next(b for b in boards if b["uuid"] == board["uuid"])
        assert shown["facts"]["vbios"] == board["vbios_version"], (shown, board)
        assert shown["facts"]["pci_bus_id"].lower()[-12:] == board["pci.bus_id"].lower()[-12:], (shown, board)
        assert abs(shown["memory_mib"] - int(board["memory.total"])) <= 1, (shown, board)
    return f"nvidia-smi {own}; the portal {json.dumps(boards)}"


def check_readings(cloud: Cloud) -> str:
    """Compares the readings of a busy board with those of nvidia-smi."""
    job = cloud.submit(0, "compute", "12")
    log = cloud.until_line(0, job, "device:")
    time.sleep(6)  # The job computes for 12 s; readings of the middle are compared.
    boards = smi("uuid", "utilization.gpu", "power.draw", "temperature.gpu", "memory.used", "clocks.sm")
    own = next(board for board in boards if board["uuid"].removeprefix("GPU-").replace("-", "") in log)
    api, org = cloud.tenants[0]
    series = api("GET", f"/orgs/{org}/jobs/{job}/metrics")["series"][0]
    values = {key: [v for v in series[key] if v is not None][-1:] for key in series if isinstance(series[key], list)}
    done = cloud.ended(0, job)
    assert done["state"] == "succeeded", done
    assert values["utilization_percent"][0] >= 90 and float(own["utilization.gpu"]) >= 90, (values, own)
    assert abs(values["temperature_celsius"][0] - float(own["temperature.gpu"])) <= 5, (values, own)
    assert abs(values["power_watts"][0] - float(own["power.draw"])) <= 0.2 * float(own["power.draw"]), (values, own)
    return f"the portal {values}, nvidia-smi {own}; cost {done['cost_micros']} micros; evidence {done['evidence']}"


def check_clearing(cloud: Cloud) -> str:
    job, log = succeeded(cloud.run(0, "fill"))
    texts = [f"first organization: {last(log)} ({clearing(job)})"]
    job, log = succeeded(cloud.run(0, "search"))
    texts.append(f"the same organization: {last(log)} ({clearing(job)})")
    succeeded(cloud.run(0, "fill"))
    job, log = succeeded(cloud.run(1, "search"))
    texts.append(f"second organization: {last(log)} ({clearing(job)})")
    assert last(log).startswith("found 0 of ") and "cleared" in clearing(job), texts
    return "; ".join(texts)


def check_program_fault(cloud: Cloud) -> str:
    """A stray write of a program is an XID of the board, and the board stays in service."""
    job, log = cloud.run(0, "fail")
    assert job["state"] == "failed", job
    time.sleep(6)  # Two readings of the board, so that an XID has its effect.
    board = cloud.boards()[0]
    assert all(service(other) == "in service" for other in cloud.boards()), board
    succeeded(cloud.run(0, "compute", "1"))
    xids = [line for line in cloud.worker.output().splitlines() if "xid" in line.lower()]
    return f"{last(log)}; {job['failure']}; board {service(board)}; the worker: {[line[-200:] for line in xids[-3:]]}"


def check_left_process(cloud: Cloud) -> str:
    """A process that leaves its session holds the board after the end of the command."""
    script = f"setsid {sys.executable} cuda_client.py hold 600 > /dev/null 2>&1 & sleep 8; echo left $(nproc)"
    job, _ = cloud.run(0, "leave", command=None, script=script)
    ended = time.monotonic()
    wait_for("end of its process", lambda: not compute_pids())
    gone = time.monotonic() - ended
    _, log = succeeded(cloud.run(1, "search"))
    assert last(log).startswith("found 0 of "), log
    return f"{job['state']}; no process on the board {gone:.1f} s after the end; the next job: {last(log)}"


def check_stop(cloud: Cloud) -> str:
    job = cloud.submit(0, "compute", "100")
    cloud.until_line(0, job, "device:")
    api, org = cloud.tenants[0]
    time.sleep(2)  # The kernel runs.
    began = time.monotonic()
    api("POST", f"/orgs/{org}/jobs/{job}/cancel")
    done = cloud.ended(0, job)
    assert done["state"] == "cancelled", done
    wait_for("empty board", lambda: not compute_pids())
    return f"{done['state']} and no process on the board after {time.monotonic() - began:.1f} s"


def check_daemon_kill(cloud: Cloud) -> str:
    job = cloud.submit(0, "compute", "10")
    cloud.until_line(0, job, "device:")
    cloud.worker.process.send_signal(signal.SIGKILL)
    cloud.worker.process.wait()
    cloud.worker = cloud.start_worker()
    done = cloud.ended(0, job)
    assert (done["state"], done["attempt"]) == ("succeeded", 1), done
    return f"{last(cloud.log(0, job))}; attempt {done['attempt']}; cost {done['cost_micros']} micros"


def check_foreign_process(cloud: Cloud) -> str:
    """Memory of a program outside of Berth: no job of another organization starts on the board."""
    if len(cloud.boards()) > 1:
        return "skipped: the job could get another board"
    succeeded(cloud.run(1, "compute", "1"))
    command = [sys.executable, str(ROOT / "end2end/tools/cuda_client.py"), "hold", "600"]
    output = cloud.data / "held.log"
    with output.open("w", encoding="utf-8") as log:
        held = subprocess.Popen(command, stdout=log)
    try:
        wait_for("line of the process", lambda: "holds" in output.read_text(encoding="utf-8"))
        job, _ = cloud.run(0, "compute", "1")
        board = cloud.boards()[0]
    finally:
        held.kill()
        held.wait()
    failure = job["failure"]
    assert (job["state"], failure["code"]) == ("failed", "device.unavailable"), job
    assert "A process uses the GPU" in failure["detail"] and board.get("quarantine"), (job, board)
    cloud.operator("POST", f"/operator/gpus/{board['uuid']}/check")
    wait_for("board in service", lambda: service(cloud.boards()[0]) == "in service")
    succeeded(cloud.run(0, "compute", "1"))
    return f"{job['state']}: {failure}; board {service(board)}; in service after a check"


def check_view(cloud: Cloud) -> str:
    script = ("ls /dev; ls /dev/nvidia-caps 2>&1; id -u; "
              "export CUDA_VISIBLE_DEVICES=$(seq -s, 0 $(($(echo \"$CUDA_VISIBLE_DEVICES\" | tr , '\\n' | wc -l) - 1))); "
              f"{sys.executable} cuda_client.py compute 1")
    job, log = succeeded(cloud.run(0, "view", command=None, script=script))
    assert " as 0" in log, log
    return " ".join(log.split())


def check_share(cloud: Cloud) -> str:
    jobs = [cloud.submit(0, "compute", "4", gpu_milli=400) for _ in range(2)]
    done = [cloud.ended(0, job) for job in jobs]
    assert all(d["state"] == "succeeded" for d in done), done
    return f"costs {[d['cost_micros'] for d in done]} micros; {[last(cloud.log(0, job)) for job in jobs]}"


def root_of_python(target: Path) -> None:
    """Writes an archive with this Python and its libraries alone, as the root of an image."""
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_paths()["stdlib"])
    shared = [str(program), *(str(found) for found in library.glob("lib-dynload/_ctypes*.so"))]
    cache = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    # What the driver's library needs of the system; the library itself comes by the specification.
    driver = re.search(r"libcuda\.so\.1 .*=> (\S+)", cache)
    shared += [str(Path(driver.group(1)).resolve())] if driver else []
    listed = subprocess.run(["ldd", *shared], capture_output=True, text=True, check=True).stdout
    libraries = {path for path in re.findall(r"(/\S+\.so\S*)", listed) if "nvidia" not in path and "cuda" not in path}
    with tarfile.open(target, "w") as archive:
        archive.add(program, str(program))
        archive.add(library, str(library), filter=lambda entry: None if entry.name.endswith(("/test", "/site-packages", ".pyc")) else entry)
        for path in sorted(libraries):
            if not path.endswith(":"):
                archive.add(Path(path).resolve(), path)


def check_image(cloud: Cloud) -> str:
    """A program of CUDA in a container that has the driver's files by its CDI specification only."""
    if shutil.which("podman") is None:
        return "skipped: podman is not installed"
    root = cloud.data / "root.tar"
    root_of_python(root)
    command = [str(DIST / "berth-worker"), "podman", "--data", str(cloud.data / "worker"), "--",
               "import", str(root), "localhost/python:1"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    program = str(Path(sys.executable).resolve())
    show = ("import os; print('nodes', sorted(n for n in os.listdir('/dev') if 'nvidia' in n)); "
            "print('mounts', sorted(l.split()[4] for l in open('/proc/self/mountinfo') if 'nvidia' in l or 'cuda' in l))")
    job = cloud.submit(1, command=[program, "-c", f"{show}; os.execv({program!r}, "
                                   f"[{program!r}, 'cuda_client.py', 'search'])"], image="localhost/python:1")
    specifications = wait_for("specification", lambda: list(Path("/var/run/cdi").glob("berth-*.json")))
    text = specifications[0].read_text(encoding="utf-8")
    done = cloud.ended(1, job)
    log = cloud.log(1, job)
    assert done["state"] == "succeeded" and "found 0 of " in log, (done, log)
    wait_for("end of the specification", lambda: not list(Path("/var/run/cdi").glob("berth-*.json")))
    return f"{' '.join(log.split())}; specification {text}"


def check_torch(cloud: Cloud) -> str:
    python = os.environ.get("TORCH_PYTHON", "python3")
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode:
        return "skipped: PyTorch is not installed"
    job, log = succeeded(cloud.run(0, "torch", command=[python, "-c", TORCH]))
    return f"{last(log)}; cost {job['cost_micros']} micros"


def check_end(cloud: Cloud) -> str:
    diagnosis = cloud.operator("GET", f"/operator/nodes/{cloud.operator.items('/operator/nodes')[0]['id']}/diagnosis")
    problems = [f for f in diagnosis["findings"] if f["state"] == "problem"]
    assert not compute_pids()
    return f"no process on a board; {len(diagnosis['findings'])} host checks, problems {problems}"


def main() -> int:
    adopt_orphans()
    data = Path(os.environ.get("DATA") or tempfile.mkdtemp(prefix="berth-boards-"))
    data.mkdir(parents=True, exist_ok=True)
    (data / "portal").mkdir(exist_ok=True)
    cloud = Cloud(data)
    try:
        for check in (check_boards, check_view, check_readings, check_clearing, check_program_fault, check_left_process,
                      check_stop, check_daemon_kill, check_foreign_process, check_share, check_image, check_torch, check_end):
            cloud.step(check.__name__.removeprefix("check_"), lambda check=check: check(cloud))
    finally:
        services = [cloud.worker, cloud.portal]
        for service in services:
            service.stop()
        stop_orphans([])
    print(f"{cloud.failed} failed; the logs are in {data}", flush=True)
    return 1 if cloud.failed else 0


if __name__ == "__main__":
    sys.exit(main())
