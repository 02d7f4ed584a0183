#!/usr/bin/env bash
# Runs a command beside a private Postgres that lives as long as the command does, so it need not survive a power cut.
# The command finds it in BERTH_TEST_POSTGRES. usage: with-postgres.sh COMMAND [ARG...]
set -euo pipefail
tools=$(cd "$(dirname "$0")" && pwd)
bin=$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null | sort -V | tail -n 1)")
dir=$(mktemp -d); chmod 755 "$dir"
# Postgres refuses to run as root.
run=(); if [ "$(id -u)" = 0 ]; then chown postgres "$dir"; run=(runuser -u postgres --); fi
# Nobody waits for the removal, which takes a minute after the tests of the portal: they create hundreds of databases.
stop() {
  "${run[@]}" "$bin/pg_ctl" -D "$dir/data" -m immediate stop >/dev/null 2>&1 || true
  rm -rf "$dir" </dev/null >/dev/null 2>&1 &
}
trap stop EXIT
cd "$dir"
"${run[@]}" "$bin/initdb" -D "$dir/data" -A trust -U postgres -E UTF8 >/dev/null
port=$(PYTHONPATH=$tools python3 -c 'from processes import free_port; print(free_port())')
"${run[@]}" "$bin/pg_ctl" -D "$dir/data" -w -l "$dir/log" \
  -o "-c listen_addresses=127.0.0.1 -p $port -k $dir -c max_connections=300 -c fsync=off -c full_page_writes=off -c autovacuum=off -c wal_level=minimal -c max_wal_senders=0" start >/dev/null ||
  { cat "$dir/log" >&2; exit 1; }
cd - >/dev/null
BERTH_TEST_POSTGRES="postgres://postgres@127.0.0.1:$port" "$@"
