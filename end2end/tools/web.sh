#!/usr/bin/env bash
# Builds the files that the portal serves to browsers. Does nothing when nothing changed.
# usage: web.sh [release|demo]
#   release   small modules, in target/web; some minutes
#   demo      modules that are built fast, in target/web-demo
# The folder has
#   pkg/       berth_app.js, berth_app_bg.wasm, snippets/, berth.css, uPlot.esm.js, xterm.js and .css; served at /pkg/<build id>/
#   fonts/     served at /fonts/
#   build-id   a short hash of pkg/, so that a browser never mixes two builds
# Text and wasm files have .br and .gz beside them.
set -euo pipefail
cd "$(dirname "$0")/../.."
mode=${1:-release}
case $mode in
  release) profile=wasm-release web=target/web ;;
  demo) profile=wasm-demo web=target/web-demo ;;
  *) echo 'usage: web.sh [release|demo]' >&2; exit 2 ;;
esac
# shellcheck source=/dev/null
if [ -f target/tools/env ]; then . target/tools/env; fi
say() { printf '>> %s\n' "$*" >&2; }
npm=end2end/node_modules

# A hash over the names and contents of files and folders.
key() { find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1; }
fresh() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

code_key=$mode-$(key app .cargo Cargo.toml Cargo.lock end2end/tools/web.sh end2end/tools/join_chunks.mjs end2end/package-lock.json)
web_key=$code_key-$(key style end2end/tools/compress.mjs)
if fresh "target/front/web-$mode.key" "$web_key" && [ -f "$web/build-id" ]; then exit 0; fi

code=target/front/code-$mode
if ! fresh "$code.key" "$code_key" || [ ! -d "$code" ]; then
  say "building the browser part ($mode)"
  # As a cdylib only here: with both crate types in the manifest fat LTO would be lost. By rustc, because clippy leaves
  # optimizations out where a test run compiles by it.
  env -u RUSTC_WORKSPACE_WRAPPER cargo rustc --quiet -p berth-app --lib --crate-type cdylib --no-default-features --features hydrate \
    --target wasm32-unknown-unknown --profile "$profile" --target-dir target/front -- -Clink-args=--emit-relocs
  rm -rf "$code" "$code.key"
  # One module for each page that is loaded when it is first visited, some of common code, and one for the rest.
  # With the features of the whole workspace, or its libraries would be built twice; a demo has those of the tests.
  if [ "$mode" = demo ]; then example=(--example clocked); else example=(); fi
  cargo build --quiet --workspace --bin berth-bundle "${example[@]}"
  target/debug/berth-bundle "target/front/wasm32-unknown-unknown/$profile/berth_app.wasm" "$code"
  node end2end/tools/join_chunks.mjs "$code" "$npm/.bin/wasm-merge"
  if [ "$mode" = release ]; then
    # Features by name: --all-features makes a module that browsers refuse.
    for part in "$code"/*.wasm; do
      $npm/.bin/wasm-opt -Oz --quiet --strip-debug --enable-bulk-memory --enable-nontrapping-float-to-int --enable-sign-ext \
        --enable-mutable-globals --enable-reference-types --enable-multivalue "$part" -o "$part.opt"
      mv "$part.opt" "$part"
    done
  fi
  echo "$code_key" > "$code.key"
fi

# Put together beside the old one and then exchanged, so that no half of it is ever served.
next=target/front/web-$mode.next
rm -rf "$next"
mkdir -p "$next/fonts"
cp -r "$code" "$next/pkg"
cp $npm/uplot/dist/uPlot.esm.js $npm/@xterm/xterm/lib/xterm.js $npm/@xterm/xterm/css/xterm.css "$next/pkg/"
cp style/fonts/*.woff2 style/fonts/OFL.txt "$next/fonts/"
$npm/.bin/sass --no-source-map --style=compressed style/main.scss "$next/pkg/berth.css"
node end2end/tools/compress.mjs "$next" "$mode"
rm -rf "$web"
mv "$next" "$web"
echo "$web_key" > "target/front/web-$mode.key"
say "$web is build $(cat "$web/build-id")"
