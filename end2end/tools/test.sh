#!/usr/bin/env bash
# Every test of the project, one after the other; the first failure ends it. The last line has the counts.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=end2end/tools
$tools/setup.sh test
log=$(mktemp); trap 'rm -f "$log"' EXIT
step() { printf '\n== %s\n' "$1"; shift; "$@" 2>&1 | tee -a "$log"; }
step 'format' cargo fmt --all --check
step 'lints' cargo clippy --workspace --all-targets --quiet -- -D warnings
step 'types, mig and core without IO' \
  cargo check --quiet --target wasm32-unknown-unknown -p berth-types -p berth-mig -p berth-core
step 'tests, on both engines' $tools/with-postgres.sh cargo test --workspace --no-fail-fast
step 'the training example' python3 -m unittest discover -s examples/digits -p 'test_*.py'
rust=$(grep -E '^test result:' "$log" | awk '{ok += $4; bad += $6} END {print ok + 0, bad + 0}')
python=$(grep -E '^Ran [0-9]+ test' "$log" | awk '{n += $2} END {print n + 0}')
printf '\n%d passed, %d failed\n' $((${rust% *} + python)) "${rust#* }"
