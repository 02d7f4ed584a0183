#!/bin/sh
# Makes this host a node of a Berth portal: fetches the worker, writes its settings and its systemd unit, and
# starts it. Run it again to update the worker to the portal's version. As root:
#   curl -fsSL PORTAL/install/worker.sh | BERTH_JOIN_TOKEN=… sh
# BERTH_JOIN_TOKEN is needed only the first time, or for a new certificate of this node.
# BERTH_SIMULATE=2xH100-80GB makes it a node of simulated boards. With DESTDIR it writes everything under
# another root and starts nothing.
set -eu

PUBLIC_URL=@PUBLIC_URL@
WORKER_URL=@WORKER_URL@
SHA256=@SHA256@
SIMULATION_SHA256=@SIMULATION_SHA256@
ARCH=@ARCH@

DESTDIR=${DESTDIR:-}
PROGRAM=/usr/local/bin/berth-worker
SIMULATION=/usr/local/lib/berth/libberth_nvml_sim.so
DATA=/var/lib/berth-worker
SETTINGS=/etc/berth/worker.env
UNIT=/etc/systemd/system/berth-worker.service

fail() {
    echo "berth: $*" >&2
    exit 1
}

# In a function, so that a download that breaks off runs nothing.
main() {
    umask 077
    [ "$(uname -s)" = Linux ] || fail "the worker needs Linux, and this host has $(uname -s)."
    [ "$(uname -m)" = "$ARCH" ] || fail "the portal has a worker for $ARCH, and this host has $(uname -m). Build berth-worker for this host and run: berth-worker run --portal $WORKER_URL"
    if [ -z "$DESTDIR" ]; then
        [ "$(id -u)" = 0 ] || fail "run this script as root."
        [ -d /run/systemd/system ] || fail "this host has no systemd. Fetch $PUBLIC_URL/install/berth-worker and run it by another supervisor, with BERTH_JOIN_TOKEN in its environment: berth-worker run --portal $WORKER_URL --data $DATA. The supervisor must stop this one process only: jobs outlive the daemon."
    fi
    if [ -z "${BERTH_JOIN_TOKEN:-}" ] && [ ! -e "$DESTDIR$DATA/identity.json" ]; then
        fail "this host has not joined yet. Set BERTH_JOIN_TOKEN to a join token from the page Nodes. With sudo: --preserve-env=BERTH_JOIN_TOKEN"
    fi
    case "${BERTH_JOIN_TOKEN:-}" in
        *[!A-Za-z0-9._-]*) fail "BERTH_JOIN_TOKEN is not a join token." ;;
    esac
    case "${BERTH_SIMULATE:-}" in
        *[!A-Za-z0-9.,-]*) fail "BERTH_SIMULATE is not a list of boards such as 2xH100-80GB,1xA30." ;;
    esac
    [ -n "$DESTDIR" ] || networks
    fetch berth-worker "$SHA256" 755 "$PROGRAM"
    settings
    if grep -q '^BERTH_SIMULATE=.' "$DESTDIR$SETTINGS"; then
        [ -n "$SIMULATION_SHA256" ] || fail "the portal cannot provide simulated boards: libberth_nvml_sim.so is missing beside its berth-worker."
        fetch libberth_nvml_sim.so "$SIMULATION_SHA256" 644 "$SIMULATION"
    fi
    unit
    (umask 022 && mkdir -p "$(dirname "$DESTDIR$DATA")")
    mkdir -p "$DESTDIR$DATA"
    chmod 700 "$DESTDIR$DATA"
    if [ -n "$DESTDIR" ]; then
        echo "Files written under $DESTDIR. Nothing was started."
        return
    fi
    command -v bwrap > /dev/null || echo "berth: bubblewrap is missing, and the worker needs it for jobs. Install the package bubblewrap." >&2
    # The worker may run in spite of a problem. The script may be the standard input.
    "$PROGRAM" doctor < /dev/null || echo "berth: this host has a problem; the lines above have the next commands." >&2
    systemctl daemon-reload
    systemctl enable berth-worker
    systemctl restart berth-worker
    report_start
}

# Ends the script if the worker would not start without a program for the networks of jobs. An update would otherwise
# replace a daemon that runs, and its jobs would end with their leases.
networks() {
    if grep -Eqs '^(BERTH_JOB_NETWORK="?host|BERTH_ALLOW_UNISOLATED=)' "$SETTINGS"; then return; fi
    for program in ip:iproute2 nft:nftables; do
        (PATH="$PATH:/usr/sbin:/sbin" && command -v "${program%:*}" > /dev/null) ||
            fail "${program%:*} is missing, and the worker needs it for the networks of jobs. Nothing was changed. Install the package ${program#*:}, or give jobs the network of this host: mkdir -p ${SETTINGS%/*} && echo BERTH_JOB_NETWORK=host >> $SETTINGS"
    done
}

# The log of this start of the worker.
log() {
    journalctl --quiet --output=cat "_SYSTEMD_INVOCATION_ID=$(systemctl show --property=InvocationID --value berth-worker)"
}

# Waits for the result of the start and prints it: a started unit may fail in the next moment.
report_start() {
    tries=120
    while [ "$tries" -gt 0 ]; do
        case "$(systemctl show --property=SubState --value berth-worker)" in
            running)
                node=$(log | grep ' is node_' | tail -n 1)
                if [ -n "$node" ]; then
                    echo "The worker runs: $node. Its log: journalctl -u berth-worker"
                    return
                fi
                ;;
            auto-restart | failed | dead)
                fail "the worker does not start. systemd tries again every two seconds. $(log | sed -n 's/^berth-worker: /Error: /p' | tail -n 1)
Its log: journalctl -u berth-worker"
                ;;
        esac
        tries=$((tries - 1))
        sleep 0.5
    done
    echo "The worker is started, without a connection to $WORKER_URL so far. Its log: journalctl -u berth-worker"
}

# fetch NAME SHA256 MODE TO
fetch() {
    (umask 022 && mkdir -p "$(dirname "$DESTDIR$4")")
    part="$DESTDIR$4.part"
    if command -v curl > /dev/null; then
        curl -fsSL -o "$part" "$PUBLIC_URL/install/$1" || fail "$1 cannot be fetched from $PUBLIC_URL."
    else
        wget -q -O "$part" "$PUBLIC_URL/install/$1" || fail "$1 cannot be fetched from $PUBLIC_URL."
    fi
    if [ "$(sha256sum "$part" | cut -d ' ' -f 1)" != "$2" ]; then
        rm -f "$part"
        fail "the fetched $1 has a wrong SHA-256. The installed file is unchanged."
    fi
    chmod "$3" "$part"
    # A running program keeps its old file.
    mv -f "$part" "$DESTDIR$4"
}

# Writes the lines of this script anew and keeps the lines of the operator.
settings() {
    file="$DESTDIR$SETTINGS"
    (umask 022 && mkdir -p "$(dirname "$file")")
    token=${BERTH_JOIN_TOKEN:-}
    simulate=${BERTH_SIMULATE:-}
    if [ -e "$file" ]; then
        [ -n "$token" ] || token=$(sed -n 's/^BERTH_JOIN_TOKEN=//p' "$file" | tail -n 1)
        [ -n "$simulate" ] || simulate=$(sed -n 's/^BERTH_SIMULATE=//p' "$file" | tail -n 1)
        grep -v -e '^BERTH_PORTAL=' -e '^BERTH_WORKER_DATA=' -e '^BERTH_JOIN_TOKEN=' -e '^BERTH_SIMULATE=' "$file" \
            > "$file.part" || true
    else
        : > "$file.part"
    fi
    {
        echo "BERTH_PORTAL=$WORKER_URL"
        echo "BERTH_WORKER_DATA=$DATA"
        if [ -n "$token" ]; then echo "BERTH_JOIN_TOKEN=$token"; fi
        if [ -n "$simulate" ]; then echo "BERTH_SIMULATE=$simulate"; fi
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
# At a shutdown of the host the worker waits for its jobs, at most for the longest grace.
TimeoutStopSec=660
Delegate=yes
OOMPolicy=continue
LimitNOFILE=1048576

[Install]
WantedBy=multi-user.target
UNIT
    chmod 644 "$file"
}

main
