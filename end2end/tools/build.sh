#!/usr/bin/env bash
# Release binaries, the simulated driver and the web assets under target/dist. Quick when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
end2end/tools/setup.sh
# shellcheck source=/dev/null
if [ -f target/tools/env ]; then . target/tools/env; fi
cargo build --release -p berth-server -p berth-worker -p berth-nvml-sim
end2end/tools/web.sh release
mkdir -p target/dist
# Replaced by a rename and only when it differs: a running binary cannot be written to.
for file in berth berth-worker libberth_nvml_sim.so; do
  cmp -s "target/release/$file" "target/dist/$file" && continue
  cp "target/release/$file" "target/dist/.$file.new"
  mv "target/dist/.$file.new" "target/dist/$file"
done
if ! cmp -s target/web/build-id target/dist/web/build-id || ! diff -rq target/web target/dist/web >/dev/null; then
  rm -rf target/dist/web.new
  cp -r target/web target/dist/web.new
  rm -rf target/dist/web
  mv target/dist/web.new target/dist/web
fi
