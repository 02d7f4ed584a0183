# FALLBACK, sourced by setup.sh: only where rustup cannot supply the wasm32 target.
#
# Debian's rustc-web is a newer rustc without a standard library for wasm. That library is built
# once from rust-web-src into the compiler's own sysroot, and the compiler then serves both targets:
# libraries of two compiler versions do not mix. target/tools/env makes every later step use it.
# Uses say, as_root, apt_install, wasm_works and $tools of setup.sh.

debian_wasm() {
  local target=wasm32-unknown-unknown
  command -v apt-get >/dev/null ||
    { say "the wasm32 target cannot be added; run: rustup target add $target"; exit 1; }
  say "rustup cannot supply $target: using Debian's rustc-web for everything"
  apt_install rustc-web cargo-web rust-web-src rust-web-clippy rustfmt-web lld-22 gcc libc6-dev
  local lib=/usr/lib/rustlib host
  host=$(/usr/bin/rustc -vV | sed -n 's/^host: //p')
  # rustc looks for its own linker under this name.
  as_root mkdir -p "$lib/$host/bin"
  as_root ln -sfn /usr/lib/llvm-22/bin/lld "$lib/$host/bin/rust-lld"
  if command -v rustup >/dev/null; then
    rustup toolchain link debian-web /usr
    export RUSTUP_TOOLCHAIN=debian-web
    echo 'export RUSTUP_TOOLCHAIN=debian-web' > "$tools/env.new"
  else
    export PATH=/usr/bin:$PATH
    echo 'export PATH=/usr/bin:$PATH' > "$tools/env.new"
  fi
  # Debian's rustc links with bfd unless told otherwise; lld is about four times faster.
  local flags; flags=CARGO_TARGET_$(echo "$host" | tr 'a-z-' 'A-Z_')_RUSTFLAGS
  echo "export $flags='-Clink-arg=-B/usr/lib/llvm-22/bin -Clink-arg=-fuse-ld=lld'" >> "$tools/env.new"
  if ! wasm_works; then
    say "building the standard library for $target"
    local dir; dir=$(mktemp -d)
    mkdir "$dir/src"
    echo '#![no_std]' > "$dir/src/lib.rs"
    printf '[package]\nname = "stdbuild"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n' > "$dir/Cargo.toml"
    (cd "$dir" && env -u RUSTUP_TOOLCHAIN -u CARGO_TARGET_DIR RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 \
      /usr/bin/cargo build -q --release --target $target -Zbuild-std=std,panic_abort,test,proc_macro)
    rm -f "$dir/target/$target/release/deps/"libstdbuild*
    as_root rm -rf "$lib/$target"
    as_root mkdir -p "$lib/$target/lib"
    as_root cp "$dir/target/$target/release/deps/"*.rlib "$lib/$target/lib/"
    rm -rf "$dir"
    wasm_works || { say "the standard library for $target was built but does not link"; exit 1; }
  fi
  # Last, so that a half-finished attempt is not taken for a working one.
  mv "$tools/env.new" "$tools/env"
  # shellcheck source=/dev/null
  . "$tools/env"
}
