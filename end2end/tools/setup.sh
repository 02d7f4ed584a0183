#!/usr/bin/env bash
# Prepares a Debian or Ubuntu machine that has Rust, git and make. Safe to run again: it does only
# what is missing, and says what it does. usage: setup.sh [test|llama]
#   (nothing)  what a build and the demo need
#   test       and what the tests need besides: Postgres and a browser; podman, NVIDIA's binding for Python, nvtop,
#              numba and PyTorch where they can be had
#   llama      llama-cpp-python for end2end/tools/service_llama.py
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=$PWD/target/tools
mkdir -p "$tools"
say() { printf '>> %s\n' "$*" >&2; }

may_be_root() { [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; }

# Runs a command as root, or says exactly what to run.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif may_be_root; then sudo "$@"
  else
    say "this needs root once; run it and start again:"
    printf '\n    sudo %s\n\n' "$*" >&2
    exit 1
  fi
}

apt_install() {
  local install="apt-get install -y --no-install-recommends $*"
  command -v apt-get >/dev/null || { say "please install: $*"; exit 1; }
  if ! may_be_root; then
    say "this needs root once; run it and start again:"
    printf '\n    sudo apt-get update && sudo %s\n\n' "$install" >&2
    exit 1
  fi
  say "installing $*"
  # A stale list or a third source that fails is no reason to stop; a package that is missing is.
  as_root apt-get update -qq || true
  # shellcheck disable=SC2086 # package names have no blanks
  as_root env DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null ||
    { say "apt could not install all of: $*"; say "it says why above; start again once they are there"; exit 1; }
}

# packages PROBE=PACKAGE...: installs each package whose probe (a program or a path) is not there.
packages() {
  local missing=() pair
  for pair in "$@"; do
    local probe=${pair%%=*} package=${pair#*=}
    [ -e "$probe" ] || command -v "$probe" >/dev/null || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  apt_install "${missing[@]}"
}

# A listed target is no proof: compile and link a line that uses std.
wasm_works() {
  local dir ok=0; dir=$(mktemp -d)
  printf '#[unsafe(no_mangle)] pub extern "C" fn f(x: i32) -> i32 { vec![x; 3].iter().sum() }' > "$dir/t.rs"
  rustc --edition 2024 --target wasm32-unknown-unknown --crate-type cdylib -O "$dir/t.rs" -o "$dir/t.wasm" 2>/dev/null || ok=1
  rm -rf "$dir"
  return $ok
}

wasm_target() {
  # The trial takes a good part of a second, so it is made once for each compiler.
  local stamp=$tools/wasm-works-with compiler; compiler=$(rustc -vV)
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$compiler" ] && return 0
  if ! wasm_works; then
    if command -v rustup >/dev/null; then
      say "adding the wasm32 target"
      timeout 120 rustup target add wasm32-unknown-unknown >/dev/null 2>&1 || say "rustup cannot add it"
    fi
    if ! wasm_works; then
      # shellcheck source=end2end/tools/debian-wasm.sh
      . end2end/tools/debian-wasm.sh
      debian_wasm
    fi
  fi
  rustc -vV > "$stamp"
}

# Without this an older one fails minutes later, or Debian's is installed beside it for nothing.
rust_version() {
  local want have
  want=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
  have=$(rustc --version | cut -d' ' -f2)
  [ "$(printf '%s\n' "$want" "$have" | sort -V | head -n 1)" != "$want" ] || return 0
  # Without rustup Debian's rustc-web may still help.
  command -v rustup >/dev/null || return 0
  say "Rust $want or newer is needed, and this is $have; run: rustup update stable && rustup default stable"
  exit 1
}

# rustup's minimal profile has neither; only the tests use them.
rust_components() {
  cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return 0
  say "adding rustfmt and clippy"
  if command -v rustup >/dev/null && rustup component add rustfmt clippy >/dev/null 2>&1; then return 0; fi
  say "rustfmt or clippy is missing; run: rustup component add rustfmt clippy"
  exit 1
}

node_version() {
  local have; have=$(node --version)
  node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 18 || (a === 18 && b >= 19) ? 0 : 1)' && return 0
  say "Node 18.19 or newer is needed, and $(command -v node) is $have; see https://nodejs.org/en/download"
  exit 1
}

npm_packages() {
  local stamp=end2end/node_modules/.installed-from
  cmp -s end2end/package-lock.json "$stamp" && return 0
  say "installing the npm packages of end2end/package-lock.json"
  # Nothing here needs an install script, so none may run.
  npm ci --prefix end2end --silent --ignore-scripts --omit=optional ||
    { say "npm ci failed; to see why: npm ci --prefix end2end"; exit 1; }
  cp end2end/package-lock.json "$stamp"
}

# NVIDIA's own binding for NVML, and monitoring programs with what they need, which drive the simulated library in tests.
nvml_programs() {
  local pins=(nvidia-ml-py==13.580.82 nvitop==1.7.2 gpustat==1.1.1 py3nvml==0.2.7 pyte==0.8.2
    psutil==7.2.2 blessed==1.52.0 jinxed==2.1.0 wcwidth==0.9.4 xmltodict==1.0.4)
  [ "$(cat "$tools/python.version" 2>/dev/null)" != "${pins[*]}" ] || return 0
  python3 -m pip --version >/dev/null 2>&1 || { may_be_root && packages pip3=python3-pip; } || return 1
  say "installing programs for NVML: ${pins[*]}"
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --upgrade --target "$tools/python" \
    "${pins[@]}" && echo "${pins[*]}" > "$tools/python.version"
}

# nvtop, which reads the simulated library in a test. Debian has it in its area contrib. Without root, or without that
# area among the sources, the package is fetched with lists of its own and unpacked: the sources stay as they are.
debian_nvtop() {
  command -v nvtop >/dev/null && return 0
  "$tools/nvtop/usr/bin/nvtop" --version >/dev/null 2>&1 && return 0
  if may_be_root && apt-cache show nvtop >/dev/null 2>&1; then
    packages nvtop=nvtop
    return
  fi
  local dir=$tools/nvtop key=/usr/share/keyrings/debian-archive-keyring.gpg
  mkdir -p "$dir/parts" "$dir/lists/partial" "$dir/cache/archives/partial"
  # shellcheck disable=SC2016 # apt fills them in
  apt-get indextargets --format "deb [signed-by=$key]"' $(REPO_URI) $(RELEASE) contrib' 'Identifier: Packages' \
    'Component: main' 'Origin: Debian' 'Label: Debian' > "$dir/parts/contrib.list"
  [ -s "$dir/parts/contrib.list" ] || return 1
  local own=(-qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$dir/parts"
    -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache" -o Acquire::Languages=none -o APT::Sandbox::User=root)
  say "fetching nvtop"
  rm -f "$dir"/nvtop_*.deb
  (cd "$dir" && timeout 120 apt-get "${own[@]}" update && timeout 120 apt-get "${own[@]}" download nvtop) &&
    dpkg-deb -x "$dir"/nvtop_*.deb "$dir" && "$dir/usr/bin/nvtop" --version >/dev/null
}

# numba with what it needs, which one test drives the simulated CUDA library by.
numba() {
  local versions="numba==0.61.2 llvmlite==0.44.0 numpy==2.2.6"
  [ "$(cat "$tools/numba.version" 2>/dev/null)" != "$versions" ] || return 0
  python3 -m pip --version >/dev/null 2>&1 || { may_be_root && packages pip3=python3-pip; } || return 1
  say "installing $versions"
  # shellcheck disable=SC2086 # the versions have no blanks
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --only-binary :all: --upgrade \
    --target "$tools/numba" $versions && echo "$versions" > "$tools/numba.version"
}

# Debian's PyTorch for Debian's own Python, which one test trains with. The one of pip brings gigabytes of CUDA.
pytorch() {
  # The tests use the one that is named.
  [ -z "${BERTH_TEST_TORCH:-}" ] || return 0
  packages /usr/lib/python3/dist-packages/torch=python3-torch
}

# Schemathesis with what it needs, which sends generated requests to a portal.
schemathesis() {
  local version=4.32.5
  [ "$(cat "$tools/schemathesis.version" 2>/dev/null)" != "$version" ] || return 0
  python3 -m pip --version >/dev/null 2>&1 || { may_be_root && packages pip3=python3-pip; } || return 1
  say "installing schemathesis $version"
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --upgrade --target "$tools/schemathesis" \
    "schemathesis==$version" && echo "$version" > "$tools/schemathesis.version"
}

# llama-cpp-python with its server, and gguf, which writes the model: a real server of models behind a gateway. pip
# compiles it for some minutes. After a failure it is tried again for another version, or without llama.failed.
llama() {
  local versions="llama-cpp-python[server]==0.3.16 gguf==0.17.1 numpy==2.2.6"
  [ "$(cat "$tools/llama.version" 2>/dev/null)" != "$versions" ] || return 0
  [ "$(cat "$tools/llama.failed" 2>/dev/null)" != "$versions" ] || return 1
  python3 -m pip --version >/dev/null 2>&1 || { may_be_root && packages pip3=python3-pip; } || return 1
  command -v c++ >/dev/null || { may_be_root && packages c++=g++; } || return 1
  say "compiling ${versions%% *}, which takes some minutes"
  echo "$versions" > "$tools/llama.failed"
  # shellcheck disable=SC2086 # the versions have no blanks
  PIP_ROOT_USER_ACTION=ignore timeout 1800 python3 -m pip install --quiet --upgrade --target "$tools/llama" \
    $versions && mv "$tools/llama.failed" "$tools/llama.version"
}

command -v cargo >/dev/null || [ -f "$tools/env" ] || { say "Rust is missing: install it with rustup, then start again"; exit 1; }
# Written by debian-wasm.sh where another compiler stands in for rustup's.
# shellcheck source=/dev/null
if [ -f "$tools/env" ]; then . "$tools/env"; fi
wanted=(cc=gcc /usr/include/stdio.h=libc6-dev node=nodejs npm=npm bwrap=bubblewrap python3=python3 curl=curl)
if [ "${1:-}" = test ]; then
  [ -n "${CHROMIUM:-}" ] || wanted+=(chromium=chromium)
  shopt -s nullglob
  servers=(/usr/lib/postgresql/*/bin/initdb)
  [ ${#servers[@]} -gt 0 ] || wanted+=(initdb=postgresql)
fi
rust_version
packages "${wanted[@]}"
# Tests that need one of these say what they leave out without it.
if [ "${1:-}" = test ]; then
  if may_be_root && command -v apt-get >/dev/null; then
    (packages podman=podman runc=runc catatonit=catatonit) || say "images are not tried on this machine"
    (packages ip=iproute2 /usr/sbin/nft=nftables) || say "networks of jobs are not tried on this machine"
    (pytorch) || say "training by PyTorch is not tried on this machine"
  fi
  if command -v apt-get >/dev/null; then
    (debian_nvtop) || say "nvtop is not tried on this machine"
  fi
  (nvml_programs) || say "the programs for NVML are not tried on this machine"
  (numba) || say "numba is not tried on this machine"
  (schemathesis) || say "generated requests are not tried on this machine"
fi
if [ "${1:-}" = llama ]; then
  (llama) || say "a language model is not served on this machine"
fi
node_version
wasm_target
[ "${1:-}" != test ] || rust_components
npm_packages
