#!/bin/sh
# Submit the digits training as a Berth job. Needs python3 and curl.
#
#   ./launch.sh [arguments of train.py]        for example: ./launch.sh --epochs 200
#
# Portal, token and organization (org_…) come from BERTH_URL, BERTH_TOKEN and BERTH_ORG;
# whatever is not set is read from ./data/demo.json, which `make demo` writes.
# BERTH_OFFERING picks another offering.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

from_demo() {
    python3 - "$@" <<'PY'
import json, sys
path = "data/demo.json"
try:
    with open(path, encoding="utf-8") as source:
        value = json.load(source)
    for key in sys.argv[2:]:
        value = value[key]
    print(value)
except (OSError, ValueError, KeyError, TypeError) as error:
    sys.exit(f"launch.sh: set {sys.argv[1]}, or start in the folder that has {path} ({error!r})")
PY
}

url=${BERTH_URL:-$(from_demo BERTH_URL url)}
token=${BERTH_TOKEN:-$(from_demo BERTH_TOKEN tenant token)}
org=${BERTH_ORG:-$(from_demo BERTH_ORG tenant organization)}
# An empty answer means that from_demo has already said what is missing.
[ -n "$url" ] && [ -n "$token" ] && [ -n "$org" ] || exit 1
url=${url%/}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

python3 - "$here" "${BERTH_OFFERING:-h100-80gb.1g.10gb}" "$@" > "$work/body.json" <<'PY'
import json, pathlib, sys
here, offering, *arguments = sys.argv[1:]
json.dump({
    "name": "digits",
    "offering": offering,
    "command": ["python3", "train.py", *arguments],
    "files": {name: (pathlib.Path(here) / name).read_text(encoding="utf-8")
              for name in ("train.py", "digits.csv")},
    "max_duration_s": 1800,
}, sys.stdout)
PY

# The headers go through a file, so that the token is in no process list. All tries
# carry one key, so that a repeated request does not start a second job.
(umask 077; cat > "$work/headers" <<EOF
Authorization: Bearer $token
Content-Type: application/json
Idempotency-Key: $(python3 -c 'import uuid; print(uuid.uuid4())')
EOF
)
status=$(curl --silent --show-error --retry 3 --header @"$work/headers" \
    --data-binary @"$work/body.json" --output "$work/answer.json" \
    --write-out '%{http_code}' "$url/api/v1/orgs/$org/jobs")

python3 - "$work/answer.json" "$status" "$url" <<'PY'
import json, sys
path, status, url = sys.argv[1:]
try:
    with open(path, encoding="utf-8") as source:
        answer = json.load(source)
except (OSError, ValueError):
    sys.exit(f"launch.sh: the portal answered {status} without JSON")
if not isinstance(answer, dict) or not status.startswith("2") or "id" not in answer:
    sys.exit(f"launch.sh: the portal answered {status}: {json.dumps(answer, indent=2)}")
print(answer["id"])
print(f"{url}/jobs/{answer['id']}")
PY
