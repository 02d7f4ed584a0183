#!/usr/bin/env bash
# Every test of the project, one after the other; the first failure ends it. At the end stands what was left out on
# this machine and why; the last line has the counts.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=end2end/tools
log=$(mktemp)
at=set-up

# However it ends: the counts so far, and where it stopped.
finish() {
  local code=$? rust python browser stopped=''
  rust=$(grep -E '^test result:' "$log" | awk '{ok += $4; bad += $6} END {print ok + 0, bad + 0}')
  python=$(awk '/^Ran [0-9]+ test/ {ran += $2}
    /^FAILED \(/ && match($0, /failures=[0-9]+/) {bad += substr($0, RSTART + 9, RLENGTH - 9)}
    /^FAILED \(/ && match($0, /errors=[0-9]+/) {bad += substr($0, RSTART + 7, RLENGTH - 7)}
    END {print ran - bad, bad + 0}' "$log")
  browser=$(awk '/^# pass [0-9]+$/ {ok += $3} /^# (fail|cancelled) [0-9]+$/ {bad += $3} END {print ok + 0, bad + 0}' "$log")
  if grep -q 'left out of ' "$log"; then
    printf '\nLeft out on this machine:\n'
    grep -oh 'left out of .*' "$log" | sort -u | sed 's/^left out of /  /'
  fi
  # A test that hangs has no result line: cargo only says that it runs for long.
  awk '/^test .* has been running for over 60 seconds/ {long[$2]} /^test .* \.\.\. / {delete long[$2]}
    END {for (name in long) print "never ended: " name}' "$log"
  # The failures again, below the output of all other tests: those in a browser and those in Rust.
  awk '/^ *not ok / {in_it = 1; if (!seen++) print "\nFailed:"} in_it && printed++ < 200; /^ *\.\.\.$/ {in_it = 0}' "$log"
  grep -A 6 -E "^thread '.*' .*panicked at|^---- .* ----$" "$log" | head -n 120 || true
  rm -f "$log"
  [ "$code" = 0 ] || stopped="; stopped at: $at"
  printf '\n%d passed, %d failed%s\n' $((${rust% *} + ${python% *} + ${browser% *})) \
    $((${rust#* } + ${python#* } + ${browser#* })) "$stopped"
}
trap finish EXIT
step() {
  at=$1
  printf '\n== %s (after %d s)\n' "$1" "$SECONDS"
  shift
  "$@" 2>&1 | tee -a "$log"
}

# Licenses, sources and banned crates of the dependencies (deny.toml). Known vulnerabilities need the advisory
# database, so they are checked where it was fetched before.
dependencies() {
  if ! command -v cargo-deny >/dev/null; then
    echo "left out of the rules for dependencies: cargo-deny is not installed (cargo install cargo-deny)"
    return 0
  fi
  cargo deny --all-features check --hide-inclusion-graph licenses bans sources || return
  if [ -d "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs" ]; then
    cargo deny --all-features check --disable-fetch --hide-inclusion-graph advisories
  else
    echo "left out of the rules for dependencies: no advisory database (cargo deny fetch)"
  fi
}

$tools/setup.sh test
# shellcheck source=/dev/null
if [ -f target/tools/env ]; then . target/tools/env; fi
# Debian's PyTorch belongs to Debian's own Python, which need not be the first one on the PATH.
has_gloo='import torch.distributed as d; raise SystemExit(not (d.is_available() and d.is_gloo_available()))'
if [ -z "${BERTH_TEST_TORCH:-}" ] && /usr/bin/python3 -I -c "$has_gloo" 2>/dev/null; then
  export BERTH_TEST_TORCH=/usr/bin/python3
fi
export PATH=$PATH:$PWD/target/tools/nvtop/usr/bin
export PYTHONPATH=$PWD/target/tools/python:$PWD/target/tools/numba${PYTHONPATH:+:$PYTHONPATH}
step 'format' cargo fmt --all --check
step 'structure' python3 $tools/structure.py
step 'requirements of security' python3 $tools/asvs.py
step 'tests of the tools' python3 -m unittest discover -s $tools -p 'test_*.py'
step 'dependencies' dependencies
# Profile and folder of the demo's pages, whose macros then serve all three.
front=(--quiet --no-default-features --target wasm32-unknown-unknown --target-dir target/front --profile wasm-demo)
step 'lints of the browser part' cargo clippy "${front[@]}" -p berth-app --features hydrate -- -D warnings
step 'types, mig, core and engine without IO' cargo check "${front[@]}" -p berth-types -p berth-mig -p berth-core -p berth-engine
# One pass lints and compiles: clippy compiles as rustc does. Its arguments are a list in this variable, as cargo-clippy
# sets it. Tests start the worker as people do, by its binary, which comes with the tests of its package.
export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
step 'lints and tests, compiled' cargo test --quiet --workspace --all-targets --no-run
# The line above compiles examples with tests as tests only.
step 'examples with tests, compiled' cargo build --quiet --workspace --example placement --example troughs
# A test waits more than it computes, for processes and databases.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 5 / 2))}
# Three times the usual time: a test that hangs ends the run with its name.
step 'tests, on both engines' timeout 2400 $tools/with-postgres.sh cargo test --workspace --no-fail-fast
step 'the training example' python3 -m unittest discover -s examples/digits -p 'test_*.py'
step 'the demo' $tools/build.sh demo
export DIST=$PWD/target/demo
# The same requests each time: others are tried by the benchmark.
step 'generated requests' env FUZZ_SEED=1 python3 $tools/fuzz.py 60
step 'attacks' python3 $tools/attack.py 1500 1
step 'from training to serving' python3 $tools/digits_service.py
step 'a race on a budget' python3 $tools/service_budget.py
# With the tests came the portal whose clock is moved.
export BERTH_CLOCKED=$PWD/target/debug/examples/clocked
step 'tests in a browser' node $tools/browser-tests.mjs
