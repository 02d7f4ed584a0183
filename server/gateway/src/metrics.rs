//! The metrics of a gateway, in the text format of Prometheus. They name no service and no caller.

use std::sync::atomic::{AtomicU64, Ordering};

use berth_contract::exposition::{Exposition, Family};

use crate::shared::Shared;

const fn family(name: &'static str, kind: &'static str, help: &'static str) -> Family {
    Family { name, kind, help }
}

const REQUESTS: Family = family("berth_gateway_requests_total", "counter", "Requests of callers.");
const REFUSED: Family =
    family("berth_gateway_refused_total", "counter", "Requests that the gateway answered with a refusal.");
const RETRIES: Family =
    family("berth_gateway_retries_total", "counter", "Tries of requests after the first one.");
const CONNECTIONS: Family =
    family("berth_gateway_connections", "gauge", "Connections of callers after the last accepted one.");
const IN_FLIGHT: Family = family("berth_gateway_in_flight", "gauge", "Requests at replicas.");
const WAITING: Family = family("berth_gateway_waiting", "gauge", "Requests that wait for a replica.");
const SNAPSHOT: Family =
    family("berth_gateway_snapshot_number", "gauge", "The number of the snapshot in use.");
const SNAPSHOT_AGE: Family = family(
    "berth_gateway_snapshot_age_seconds",
    "gauge",
    "Seconds since the last word of the portal about its snapshot.",
);

/// The text of all metrics.
pub fn text(shared: &Shared) -> String {
    let mut out = Exposition::default();
    let counters = &shared.counters;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let (in_flight, waiting) = shared.counts();
    for (family, value) in [
        (REQUESTS, read(&counters.requests)),
        (REFUSED, read(&counters.refused)),
        (RETRIES, read(&counters.retries)),
        (CONNECTIONS, read(&counters.connections)),
        (IN_FLIGHT, in_flight as f64),
        (WAITING, waiting as f64),
        (SNAPSHOT, shared.snapshot_number() as f64),
        (SNAPSHOT_AGE, shared.snapshot_age_ms() as f64 / 1_000.0),
    ] {
        out.add(family, &[], value);
    }
    out.text()
}
