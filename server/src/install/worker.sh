#!/bin/sh
# Makes this host a node of a Berth portal: fetches the worker, writes its settings and its systemd unit,
# starts it. Run it again to bring the worker up to the portal's version. As root:
#   curl -fsSL PORTAL/install/worker.sh | BERTH_JOIN_TOKEN=… sh
# BERTH_JOIN_TOKEN is needed only the first time, or to prove this node anew. DESTDIR writes everything
# under another root and starts nothing.
set -eu

PUBLIC_URL=@PUBLIC_URL@
WORKER_URL=@WORKER_URL@
SHA256=@SHA256@
ARCH=@ARCH@

DESTDIR=${DESTDIR:-}
PROGRAM=/usr/local/bin/berth-worker
DATA=/var/lib/berth-worker
SETTINGS=/etc/berth/worker.env
UNIT=/etc/systemd/system/berth-worker.service

fail() {
    echo "berth: $*" >&2
    exit 1
}

# A line of a pipe that breaks off must not run half of this.
main() {
    umask 077
    [ "$(uname -s)" = Linux ] || fail "a worker runs on Linux only, and this is $(uname -s)."
    [ "$(uname -m)" = "$ARCH" ] || fail "the portal has a worker for $ARCH, and this host is $(uname -m). Build berth-worker for it and run: berth-worker run --portal $WORKER_URL"
    if [ -z "$DESTDIR" ]; then
        [ "$(id -u)" = 0 ] || fail "run it as root."
        [ -d /run/systemd/system ] || fail "this host has no systemd. Fetch $PUBLIC_URL/install/berth-worker and have your own supervisor run, with BERTH_JOIN_TOKEN in its environment: berth-worker run --portal $WORKER_URL --data $DATA. It must end that one process only: jobs outlive the daemon."
    fi
    if [ -z "${BERTH_JOIN_TOKEN:-}" ] && [ ! -e "$DESTDIR$DATA/identity.json" ]; then
        fail "this host has not joined yet: put a join token from the Nodes page into BERTH_JOIN_TOKEN. With sudo: --preserve-env=BERTH_JOIN_TOKEN"
    fi
    case "${BERTH_JOIN_TOKEN:-}" in
        *[!A-Za-z0-9._-]*) fail "BERTH_JOIN_TOKEN is no join token." ;;
    esac
    fetch
    settings
    unit
    (umask 022 && mkdir -p "$(dirname "$DESTDIR$DATA")")
    mkdir -p "$DESTDIR$DATA"
    chmod 700 "$DESTDIR$DATA"
    if [ -n "$DESTDIR" ]; then
        echo "Written under $DESTDIR; nothing is started."
        return
    fi
    systemctl daemon-reload
    systemctl enable berth-worker
    systemctl restart berth-worker
    command -v bwrap > /dev/null || echo "berth: bubblewrap is missing; without it the worker refuses to run jobs. Install the package bubblewrap." >&2
    echo "The worker is started. Its log: journalctl -u berth-worker"
}

fetch() {
    dir=$(dirname "$DESTDIR$PROGRAM")
    (umask 022 && mkdir -p "$dir")
    part="$DESTDIR$PROGRAM.part"
    if command -v curl > /dev/null; then
        curl -fsSL -o "$part" "$PUBLIC_URL/install/berth-worker" || fail "the worker cannot be fetched from $PUBLIC_URL."
    else
        wget -q -O "$part" "$PUBLIC_URL/install/berth-worker" || fail "the worker cannot be fetched from $PUBLIC_URL."
    fi
    if [ "$(sha256sum "$part" | cut -d ' ' -f 1)" != "$SHA256" ]; then
        rm -f "$part"
        fail "what was fetched is not the portal's worker; nothing is changed."
    fi
    chmod 755 "$part"
    # A program that runs keeps its old file.
    mv -f "$part" "$DESTDIR$PROGRAM"
}

# Keeps what the operator added; the lines that this script knows are written anew.
settings() {
    file="$DESTDIR$SETTINGS"
    (umask 022 && mkdir -p "$(dirname "$file")")
    token=${BERTH_JOIN_TOKEN:-}
    if [ -e "$file" ]; then
        [ -n "$token" ] || token=$(sed -n 's/^BERTH_JOIN_TOKEN=//p' "$file" | tail -n 1)
        grep -v -e '^BERTH_PORTAL=' -e '^BERTH_WORKER_DATA=' -e '^BERTH_JOIN_TOKEN=' "$file" > "$file.part" || true
    else
        : > "$file.part"
    fi
    {
        echo "BERTH_PORTAL=$WORKER_URL"
        echo "BERTH_WORKER_DATA=$DATA"
        if [ -n "$token" ]; then echo "BERTH_JOIN_TOKEN=$token"; fi
    } >> "$file.part"
    chmod 600 "$file.part"
    mv -f "$file.part" "$file"
}

unit() {
    file="$DESTDIR$UNIT"
    (umask 022 && mkdir -p "$(dirname "$file")")
    cat > "$file" << 'UNIT'
[Unit]
Description=Berth worker
After=network-online.target
Wants=network-online.target

[Service]
ExecStart=/usr/local/bin/berth-worker run
EnvironmentFile=/etc/berth/worker.env
Restart=always
RestartSec=2
# Jobs outlive the daemon: a restart or an upgrade does not touch them.
KillMode=process
Delegate=yes
OOMPolicy=continue
LimitNOFILE=1048576

[Install]
WantedBy=multi-user.target
UNIT
    chmod 644 "$file"
}

main
