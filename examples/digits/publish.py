#!/usr/bin/env python3
"""From training to serving: train a network, check it, and make it a service or the next revision of the service.

    publish.py [arguments of train.py]        for example: publish.py --epochs 40

The first job trains and writes the next version of the volume `digits-model`. The second job depends on it and checks the
model. Only a checked model serves. Portal, token and organization (org_…) come from BERTH_URL, BERTH_TOKEN and BERTH_ORG;
whatever is not set is read from ./data/demo.json, which `make demo` writes. BERTH_OFFERING picks another offering.
Needs Python 3.9 or later and nothing else.
"""
import json
import os
import pathlib
import sys
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
VOLUME, VOLUME_BYTES = "digits-model", 16 << 20
TRAIN = 'python3 train.py "$@" --checkpoint model/checkpoint.json && cp train.py serve.py model/'
ENDED = ("succeeded", "failed", "cancelled", "timed_out")
WAIT_S, TIMEOUT_S = 3600, 60
CANARY_PERCENT = [10, 50]


class Refused(Exception):
    """The portal refuses a request; the text says why."""

    def __init__(self, text, code):
        super().__init__(text)
        self.code = code


class Portal:
    def __init__(self):
        demo = {}
        try:
            demo = json.loads(pathlib.Path("data/demo.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            pass  # All of it may be in the environment.
        tenant = demo.get("tenant", {})
        self.url = os.environ.get("BERTH_URL") or demo.get("url")
        self.token = os.environ.get("BERTH_TOKEN") or tenant.get("token")
        self.org = os.environ.get("BERTH_ORG") or tenant.get("organization")
        if not (self.url and self.token and self.org):
            raise SystemExit("publish.py: set BERTH_URL, BERTH_TOKEN and BERTH_ORG, or start beside data/demo.json")
        self.gateway = demo.get("gateway", {}).get("url", "GATEWAY")

    def __call__(self, method, path, body=None):
        """The answer of a request about the organization."""
        data = None if body is None else json.dumps(body).encode()
        address = f"{self.url.rstrip('/')}/api/v1/orgs/{self.org}{path}"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(address, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                problem = json.loads(text)
            except ValueError:
                problem = {}
            raise Refused(f"{method} {path}: {error.code}: {problem.get('detail', text)}", error.code) from error


def files(*names):
    return {name: (HERE / name).read_text(encoding="utf-8") for name in names}


def jobs(arguments, offering):
    """Return the bodies of both jobs; the second one still needs its dependency."""
    common = {"offering": offering, "network": "none", "max_duration_s": 1800}
    train = common | {
        "name": "digits-train", "command": ["sh", "-c", TRAIN, "train", *arguments],
        "files": files("train.py", "serve.py", "digits.csv"),
        "volumes": [{"name": VOLUME, "path": "model", "mode": "rw"}],
    }
    check = common | {
        "name": "digits-check", "command": ["python3", "check.py", "model"], "files": files("check.py", "digits.csv"),
        "volumes": [{"name": VOLUME, "path": "model"}],
    }
    return train, check


def wait(portal, job):
    deadline = time.monotonic() + WAIT_S
    while True:
        seen = portal("GET", f"/jobs/{job}")
        if seen["state"] in ENDED:
            return seen
        if time.monotonic() > deadline:
            raise SystemExit(f"publish.py: {job} is still {seen['state']} after {WAIT_S} s")
        time.sleep(1)


def main(arguments):
    portal = Portal()
    service = json.loads((HERE / "service.json").read_text(encoding="utf-8"))
    job = service["revision"]["job"]
    job["offering"] = os.environ.get("BERTH_OFFERING") or job["offering"]
    try:
        portal("POST", "/volumes", {"name": VOLUME, "max_bytes": VOLUME_BYTES})
    except Refused as error:
        if error.code != 409:
            raise
        # The volume exists: training goes on from its model.
    train, check = jobs(arguments, job["offering"])
    first = portal("POST", "/jobs", train)["id"]
    second = portal("POST", "/jobs", check | {"depends_on": [{"job": first}]})["id"]
    print(f"training: {first}\nchecking: {second}", flush=True)
    ended = wait(portal, second)
    if ended["state"] != "succeeded":
        raise SystemExit(f"publish.py: {second} is {ended['state']}, so nothing changes in the service")
    known = [one for one in portal("GET", "/services?limit=200")["items"] if one["name"] == service["name"]]
    if known:
        revision = service["revision"] | {"canary_percent": CANARY_PERCENT, "note": " ".join(arguments)}
        number = portal("POST", f"/services/{known[0]['id']}/revisions", revision)["number"]
        print(f"revision {number} of {known[0]['id']} gets {CANARY_PERCENT[0]} % of the requests first")
    else:
        known = [portal("POST", "/services", service)]
        print(f"service: {known[0]['id']}")
    print(f"ask it: {portal.gateway}{known[0]['path']}/")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (Refused, OSError) as error:
        sys.exit(f"publish.py: {error}")
