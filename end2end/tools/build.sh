#!/usr/bin/env bash
# Builds the programs, the simulated driver and the files for browsers, with a bill of materials (sbom.cdx.json).
# Quick when nothing changed.
# usage: build.sh [release|demo]
#   release   optimized, in target/dist
#   demo      built fast, in target/demo: the programs are those of the tests
set -euo pipefail
cd "$(dirname "$0")/../.."
mode=${1:-release}
case $mode in
  release) cargo=(--release -p berth-server -p berth-nvml-sim) programs=target/release web=target/web dist=target/dist ;;
  # Whole, and with an example of the tests: so the features are those of the tests, and nothing is built again for them.
  demo) cargo=(--workspace --lib --bins --example clocked) programs=target/debug web=target/web-demo dist=target/demo ;;
  *) echo 'usage: build.sh [release|demo]' >&2; exit 2 ;;
esac
end2end/tools/setup.sh
# shellcheck source=/dev/null
if [ -f target/tools/env ]; then . target/tools/env; fi
cargo build "${cargo[@]}"
plane=$programs
if [ "$mode" = release ]; then
  cargo build --profile data-plane -p berth-worker -p berth-gateway
  plane=target/data-plane
fi
end2end/tools/web.sh "$mode"
mkdir -p "$dist"
# Replaced by a rename and only when it differs: a running binary cannot be written to.
for from in "$programs"/{berth-portal,libberth_nvml_sim.so} "$plane"/{berth-worker,berth-gateway}; do
  file=${from##*/}
  cmp -s "$from" "$dist/$file" && continue
  cp "$from" "$dist/.$file.new"
  mv "$dist/.$file.new" "$dist/$file"
done
if ! cmp -s "$web/build-id" "$dist/web/build-id" || ! diff -rq "$web" "$dist/web" >/dev/null; then
  rm -rf "$dist/web.new"
  cp -r "$web" "$dist/web.new"
  rm -rf "$dist/web"
  mv "$dist/web.new" "$dist/web"
fi
python3 end2end/tools/sbom.py "$dist/sbom.cdx.json"
