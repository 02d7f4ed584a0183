#!/usr/bin/env python3
"""Create a service, or its next revision if it exists: the last step of a job that has checked a model.

    release.py SERVICE.JSON        the body of the service, with its first revision

PORTAL_URL and PORTAL_ORG have the portal and the organization (org_…). The token is in the file `publisher.token` of the
directory BERTH_SECRETS, which the job has by its secrets. Needs Python 3.9 or later and nothing else.
"""
import json
import os
import pathlib
import sys
import urllib.error
import urllib.request

TOKEN_FILE, TIMEOUT_S = "publisher.token", 60
# The parts of the requests that a revision after the first one gets, before it is live.
CANARY_PERCENT = [10, 50]


def portal(method, path, body=None):
    """Return the answer of a request about the organization."""
    token = pathlib.Path(os.environ["BERTH_SECRETS"], TOKEN_FILE).read_text(encoding="ascii").strip()
    address = f"{os.environ['PORTAL_URL']}/api/v1/orgs/{os.environ['PORTAL_ORG']}{path}"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    if method == "POST":
        # A repeated request of this job creates nothing more.
        headers["Idempotency-Key"] = f"release-{os.environ['BERTH_JOB_ID']}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise OSError(f"{method} {path}: {error.code}: {error.read().decode(errors='replace')}") from error


def release(service):
    """Return what was created, as a sentence."""
    known = [one for one in portal("GET", "/services?limit=200")["items"] if one["name"] == service["name"]]
    if not known:
        return f"service {portal('POST', '/services', service)['id']} is created"
    path = f"/services/{known[0]['id']}/revisions"
    # A former attempt of this job may have ended after its request.
    newest = portal("GET", f"{path}?limit=1")["items"][0]
    if volumes(newest["spec"]) == volumes(service["revision"]):
        return f"revision {newest['number']} of {known[0]['id']} has this model already"
    number = portal("POST", path, service["revision"] | {"canary_percent": CANARY_PERCENT})["number"]
    return f"revision {number} of {known[0]['id']} gets {CANARY_PERCENT[0]} % of the requests first"


def volumes(revision):
    """Return the names of the volumes. Each model has one of its own."""
    return [volume["name"] for volume in revision["job"]["volumes"]]


def main(argv):
    if len(argv) != 2:
        print("usage: release.py SERVICE.JSON", file=sys.stderr)
        return 2
    try:
        print(release(json.loads(pathlib.Path(argv[1]).read_text(encoding="utf-8"))), flush=True)
    except KeyError as error:
        print(f"release.py: {error} is not set", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
