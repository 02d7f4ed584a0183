#!/usr/bin/env python3
"""From training to serving: train a network, check it, and make it a service or the next revision of the service.

    publish.py [arguments of train.py]        for example: publish.py --epochs 40

The first job trains and writes the model into a new volume. The second job depends on it, checks the model (check.py) and
publishes it (release.py) with the token in the secret `digits-publisher`. Only a checked model serves. Portal, token and
organization (org_…) come from BERTH_URL, BERTH_TOKEN and BERTH_ORG; whatever is not set is read from ./data/demo.json,
which `make demo` writes. BERTH_OFFERING picks another offering.
Needs Python 3.9 or later and nothing else.
"""
import datetime
import json
import os
import pathlib
import sys
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
VOLUME_BYTES, SECRET, TOKEN_FILE, TOKEN_DAYS = 16 << 20, "digits-publisher", "publisher.token", 90
TRAIN = 'python3 train.py "$@" --checkpoint model/checkpoint.json && cp train.py serve.py model/'
PUBLISH = "python3 check.py model && exec python3 release.py service.json"
ENDED = ("succeeded", "failed", "cancelled", "timed_out")
WAIT_S, TIMEOUT_S = 3600, 60


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
        self.url = self.url.rstrip("/")

    def __call__(self, method, path, body=None):
        """The answer of a request about the organization."""
        data = None if body is None else json.dumps(body).encode()
        address = f"{self.url}/api/v1/orgs/{self.org}{path}"
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


def service_with(volume, note, offering=None):
    """Return the body of the service, whose replicas have the model of this volume."""
    service = json.loads((HERE / "service.json").read_text(encoding="utf-8"))
    job = service["revision"]["job"]
    job["offering"] = offering or job["offering"]
    job["volumes"][0]["name"] = volume
    service["revision"]["note"] = note
    return service


def jobs(arguments, service, address):
    """Return the bodies of both jobs; the second one still needs its dependency. `address`: the variables of the portal."""
    job = service["revision"]["job"]
    volume = job["volumes"][0]
    common = {"offering": job["offering"], "max_duration_s": 1800}
    train = common | {
        "name": "digits-train", "command": ["sh", "-c", TRAIN, "train", *arguments], "network": "none",
        "files": files("train.py", "serve.py", "digits.csv"),
        "volumes": [volume | {"mode": "rw"}],
    }
    publish = common | {
        "name": "digits-publish", "command": ["sh", "-c", PUBLISH],
        "files": files("check.py", "release.py", "digits.csv") | {"service.json": json.dumps(service)},
        "volumes": [volume], "env": address, "secrets": [{"name": SECRET, "file": TOKEN_FILE}],
    }
    return train, publish


def make_secret(portal):
    """Put a token into the secret of the second job, once. It changes services and nothing else."""
    if any(one["name"] == SECRET for one in portal("GET", "/secrets?limit=200")["items"]):
        return
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=TOKEN_DAYS)
    token = {"name": SECRET, "role": "member", "scopes": ["services:write"], "expires_at": end.strftime("%Y-%m-%dT%H:%M:%SZ")}
    portal("PUT", f"/secrets/{SECRET}", {"value": portal("POST", "/tokens", token)["secret"]})
    print(f"secret: {SECRET}, with a token until {token['expires_at']}", flush=True)


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
    # A replica has the version of a volume at its start, so each model has a volume of its own.
    volume = datetime.datetime.now(datetime.timezone.utc).strftime("digits-%Y%m%d-%H%M%S")
    service = service_with(volume, " ".join(arguments) or "the usual arguments", os.environ.get("BERTH_OFFERING"))
    make_secret(portal)
    portal("POST", "/volumes", {"name": volume, "max_bytes": VOLUME_BYTES})
    train, publish = jobs(arguments, service, {"PORTAL_URL": portal.url, "PORTAL_ORG": portal.org})
    first = portal("POST", "/jobs", train)["id"]
    second = portal("POST", "/jobs", publish | {"depends_on": [{"job": first}]})["id"]
    print(f"volume: {volume}\ntraining: {first}\npublishing: {second}", flush=True)
    ended = wait(portal, second)
    if ended["state"] != "succeeded":
        raise SystemExit(f"publish.py: {second} is {ended['state']}, so no revision has this model; its log has the reason")
    known = next(one for one in portal("GET", "/services?limit=200")["items"] if one["name"] == service["name"])
    newest = max(known["revisions"], key=lambda one: one["number"])
    print(f"service: {known['id']}, revision {newest['number']} is {newest['state']} with {newest['weight_percent']} % of the requests")
    gateways = portal("GET", "/service-gateways")["items"]
    print(f"ask it: {gateways[0]['url'] if gateways else 'GATEWAY'}{known['path']}/")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (Refused, OSError) as error:
        sys.exit(f"publish.py: {error}")
