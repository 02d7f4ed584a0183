#!/usr/bin/env bash
# Prepares a Debian or Ubuntu machine that has Rust, git and make. Safe to run again: it does only
# what is missing, and says what it does. usage: setup.sh [test]
set -euo pipefail
say() { printf '>> %s\n' "$*" >&2; }

# Runs a command as root, or says exactly what to run.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo "$@"
  else
    say "this needs root once; run it and start again:"
    printf '\n    sudo %s\n\n' "$*" >&2
    exit 1
  fi
}

packages() {
  local missing=()
  for pair in "$@"; do
    local probe=${pair%%=*} package=${pair#*=}
    [ -e "$probe" ] || command -v "$probe" >/dev/null || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || { say "please install: ${missing[*]}"; exit 1; }
  say "installing ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# A listed target is no proof: compile and link a line that uses std.
wasm_works() {
  local dir; dir=$(mktemp -d)
  printf '#[unsafe(no_mangle)] pub extern "C" fn f(x: i32) -> i32 { vec![x; 3].iter().sum() }' > "$dir/t.rs"
  local ok=0
  rustc --edition 2024 --target wasm32-unknown-unknown --crate-type cdylib -O "$dir/t.rs" -o "$dir/t.wasm" 2>/dev/null || ok=1
  rm -rf "$dir"
  return $ok
}

command -v cargo >/dev/null || { say "Rust is missing: install it with rustup, then start again"; exit 1; }
packages cc=gcc
if ! wasm_works; then
  say "adding the wasm32 target"
  { command -v rustup >/dev/null && timeout 120 rustup target add wasm32-unknown-unknown >/dev/null 2>&1 && wasm_works; } ||
    { say "the wasm32 target cannot be added; run: rustup target add wasm32-unknown-unknown"; exit 1; }
fi
if [ "${1:-}" = test ]; then
  shopt -s nullglob
  servers=(/usr/lib/postgresql/*/bin/initdb)
  [ ${#servers[@]} -gt 0 ] || packages initdb=postgresql
  packages python3=python3
fi
