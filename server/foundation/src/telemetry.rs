//! Counts of the portal's own work since its start.
//!
//! All of it is in memory only. The metrics module of the portal checks the right to read it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_contract::exposition::{Exposition, Family};
use berth_types::ids::{JobId, TransferId};
use berth_types::time::Timestamp;

const fn family(name: &'static str, kind: &'static str, help: &'static str) -> Family {
    Family { name, kind, help }
}

pub const BUILD: Family = family("berth_build_info", "gauge", "The portal's version; always 1.");
pub const JOBS: Family = family("berth_jobs", "gauge", "Unfinished jobs, by state.");
pub const QUEUE_OLDEST: Family =
    family("berth_queue_oldest_seconds", "gauge", "Waiting time of the oldest queued job.");
pub const QUEUE_WAIT: Family = family(
    "berth_queue_wait_seconds",
    "histogram",
    "Time from the submission of a job to its first placement, since the start of this portal.",
);
pub const PASS: Family =
    family("berth_scheduler_pass_seconds", "histogram", "Duration of the scheduler's passes.");
pub const NODES: Family = family("berth_nodes", "gauge", "Nodes, by state.");
pub const GPUS: Family = family("berth_gpus", "gauge", "Boards that workers report.");
pub const GPUS_QUARANTINED: Family =
    family("berth_gpus_quarantined", "gauge", "Boards out of service or without an answer.");
pub const RESERVATIONS: Family =
    family("berth_reservations_active", "gauge", "Present reservations and maintenance windows.");
pub const POSTINGS: Family = family(
    "berth_ledger_postings_total",
    "counter",
    "Posted transfers since the start of this portal, by kind.",
);
pub const MISMATCHES: Family = family(
    "berth_ledger_mismatches",
    "gauge",
    "Mismatches in the last reconciliation of the ledger; 0 means none.",
);
pub const RECONCILED: Family = family(
    "berth_ledger_reconciled_timestamp_seconds",
    "gauge",
    "Time of the last reconciliation of the ledger.",
);
pub const LOOP_RUNS: Family =
    family("berth_loop_runs_total", "counter", "Completed runs of the portal's loops, by loop.");
pub const LOOP_FAILURES: Family =
    family("berth_loop_failures_total", "counter", "Failed runs of the portal's loops, by loop.");
pub const LOOP_LAST_RUN: Family =
    family("berth_loop_last_run_timestamp_seconds", "gauge", "Start time of each loop's last completed run.");
pub const LOOP_PERIOD: Family = family(
    "berth_loop_period_seconds",
    "gauge",
    "Time from the end of a loop's run to its next run without a wake-up.",
);
pub const LOOP_LAST_SECONDS: Family =
    family("berth_loop_last_run_seconds", "gauge", "Duration of each loop's last completed run.");
pub const LOOP_LAST_FAILED: Family =
    family("berth_loop_last_run_failed", "gauge", "1 if the last run of the loop failed, 0 otherwise.");
pub const AUDIT_BEHIND: Family =
    family("berth_audit_events_behind", "gauge", "Recorded audit events without a delivery, by destination.");
pub const REQUESTS: Family =
    family("berth_http_requests_total", "counter", "Requests to the API, by method and status.");
pub const REQUEST_SECONDS: Family = family(
    "berth_http_request_seconds",
    "histogram",
    "Time from a request to the head of its answer, without the rest of a stream.",
);
pub const READINGS_DROPPED: Family = family(
    "berth_readings_dropped_total",
    "counter",
    "Dropped readings of jobs' devices with a time far from the portal's time.",
);

/// All metric families of the portal.
pub const FAMILIES: [Family; 22] = [
    BUILD,
    JOBS,
    QUEUE_OLDEST,
    QUEUE_WAIT,
    PASS,
    NODES,
    GPUS,
    GPUS_QUARANTINED,
    RESERVATIONS,
    POSTINGS,
    MISMATCHES,
    RECONCILED,
    LOOP_RUNS,
    LOOP_FAILURES,
    LOOP_LAST_RUN,
    LOOP_PERIOD,
    LOOP_LAST_SECONDS,
    LOOP_LAST_FAILED,
    AUDIT_BEHIND,
    REQUESTS,
    REQUEST_SECONDS,
    READINGS_DROPPED,
];

/// A histogram of durations.
#[derive(Debug, Clone)]
struct Histogram {
    /// The upper bound of each bucket in seconds, with the number of durations up to this bound.
    buckets: Vec<(f64, u64)>,
    sum_s: f64,
    count: u64,
}

impl Histogram {
    fn new(bounds_s: &[f64]) -> Self {
        Self { buckets: bounds_s.iter().map(|bound| (*bound, 0)).collect(), sum_s: 0.0, count: 0 }
    }

    fn observe(&mut self, seconds: f64) {
        for (bound, count) in &mut self.buckets {
            *count += u64::from(seconds <= *bound);
        }
        self.sum_s += seconds;
        self.count += 1;
    }

    fn write(&self, out: &mut Exposition, family: Family) {
        for (bound, count) in &self.buckets {
            out.add_part(family, "_bucket", &[("le", bound.to_string().as_str())], *count as f64);
        }
        out.add_part(family, "_bucket", &[("le", "+Inf")], self.count as f64);
        out.add_part(family, "_sum", &[], self.sum_s);
        out.add_part(family, "_count", &[], self.count as f64);
    }
}

#[derive(Debug)]
struct Counts {
    requests: BTreeMap<(&'static str, u16), u64>,
    request_s: Histogram,
    pass_s: Histogram,
    wait_s: Histogram,
    postings: PostingCounts,
    readings_dropped: u64,
}

/// Numbers of posted transfers by kind, up to the transfer `until`. The metrics module counts later transfers
/// at the next request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostingCounts {
    pub until: TransferId,
    /// The names of kinds, each with its number.
    pub by_kind: BTreeMap<&'static str, i64>,
}

#[derive(Debug)]
pub struct Telemetry {
    counts: Mutex<Counts>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An id lower than all ids from this time on.
pub fn first_transfer(at: Timestamp) -> TransferId {
    let millis = u64::try_from(at.millis()).unwrap_or(0);
    TransferId::from_uuid(uuid::Builder::from_unix_timestamp_millis(millis, &[0; 10]).into_uuid())
}

/// The time of a job's submission in milliseconds, from its id.
fn submitted_ms(job: JobId) -> i64 {
    i64::try_from(job.uuid().as_u128() >> 80).unwrap_or(i64::MAX)
}

/// The label of a request's method. All unknown methods share the label `other`.
fn method_name(method: &str) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    known.into_iter().find(|name| *name == method).unwrap_or("other")
}

impl Telemetry {
    /// Counts of postings begin at `now`.
    pub fn new(now: Timestamp) -> Self {
        let seconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
        let waits = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0, 604_800.0];
        let counts = Counts {
            requests: BTreeMap::new(),
            request_s: Histogram::new(&seconds),
            pass_s: Histogram::new(&seconds),
            wait_s: Histogram::new(&waits),
            postings: PostingCounts { until: first_transfer(now), by_kind: BTreeMap::new() },
            readings_dropped: 0,
        };
        Self { counts: Mutex::new(counts) }
    }

    /// Counts an answered request.
    pub fn observe_request(&self, method: &str, status: u16, took: Duration) {
        let mut counts = lock(&self.counts);
        *counts.requests.entry((method_name(method), status)).or_default() += 1;
        counts.request_s.observe(took.as_secs_f64());
    }

    /// Counts a pass of the scheduler.
    pub fn observe_pass(&self, took: Duration) {
        lock(&self.counts).pass_s.observe(took.as_secs_f64());
    }

    /// Counts the placement of an attempt. Only the first attempt measures the wait of a job.
    pub fn observe_placement(&self, job: JobId, attempt: u32, at: Timestamp) {
        if attempt == 1 {
            let waited_ms = at.millis().saturating_sub(submitted_ms(job)).max(0);
            lock(&self.counts).wait_s.observe(waited_ms as f64 / 1_000.0);
        }
    }

    /// Counts dropped readings.
    pub fn count_dropped_readings(&self, readings: usize) {
        lock(&self.counts).readings_dropped += readings as u64;
    }

    pub fn posting_counts(&self) -> PostingCounts {
        lock(&self.counts).postings.clone()
    }

    /// Replaces the counts `old` by `new`. Does nothing if a concurrent request replaced `old` already.
    pub fn set_posting_counts(&self, old: &PostingCounts, new: PostingCounts) {
        let mut counts = lock(&self.counts);
        if counts.postings == *old {
            counts.postings = new;
        }
    }

    /// Writes the counts of this module.
    pub fn write(&self, out: &mut Exposition) {
        let counts = lock(&self.counts);
        counts.wait_s.write(out, QUEUE_WAIT);
        counts.pass_s.write(out, PASS);
        out.declare(REQUESTS);
        for ((method, status), count) in &counts.requests {
            out.add(REQUESTS, &[("method", *method), ("code", status.to_string().as_str())], *count as f64);
        }
        counts.request_s.write(out, REQUEST_SECONDS);
        out.add(READINGS_DROPPED, &[], counts.readings_dropped as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(telemetry: &Telemetry) -> String {
        let mut out = Exposition::default();
        telemetry.write(&mut out);
        out.text()
    }

    #[test]
    fn durations_are_counted_in_cumulative_buckets() {
        let telemetry = Telemetry::new(Timestamp::from_micros(0));
        for millis in [1, 30, 30, 20_000] {
            telemetry.observe_pass(Duration::from_millis(millis));
        }
        let text = text(&telemetry);
        for line in [
            "berth_scheduler_pass_seconds_bucket{le=\"0.001\"} 1",
            "berth_scheduler_pass_seconds_bucket{le=\"0.025\"} 1",
            "berth_scheduler_pass_seconds_bucket{le=\"0.05\"} 3",
            "berth_scheduler_pass_seconds_bucket{le=\"10\"} 3",
            "berth_scheduler_pass_seconds_bucket{le=\"+Inf\"} 4",
            "berth_scheduler_pass_seconds_count 4",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }

    #[test]
    fn only_the_first_placement_counts_a_wait_and_unknown_methods_share_a_label() {
        let telemetry = Telemetry::new(Timestamp::from_micros(0));
        let made = uuid::Builder::from_unix_timestamp_millis(1_800_000_000_000, &[7; 10]).into_uuid();
        let job = JobId::from_uuid(made);
        telemetry.observe_placement(job, 1, Timestamp::from_micros(1_800_000_002_000_000));
        telemetry.observe_placement(job, 2, Timestamp::from_micros(1_800_009_000_000_000));
        telemetry.observe_request("GET", 200, Duration::ZERO);
        telemetry.observe_request("BREW", 405, Duration::ZERO);
        telemetry.observe_request("MKCOL", 405, Duration::ZERO);
        let text = text(&telemetry);
        for line in [
            "berth_queue_wait_seconds_bucket{le=\"1\"} 0",
            "berth_queue_wait_seconds_bucket{le=\"5\"} 1",
            "berth_queue_wait_seconds_sum 2",
            "berth_http_requests_total{method=\"GET\",code=\"200\"} 1",
            "berth_http_requests_total{method=\"other\",code=\"405\"} 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }

    #[test]
    fn dropped_readings_are_counted() {
        let telemetry = Telemetry::new(Timestamp::from_micros(0));
        for readings in [2, 0, 1] {
            telemetry.count_dropped_readings(readings);
        }
        let text = text(&telemetry);
        assert!(text.lines().any(|l| l == "berth_readings_dropped_total 3"), "{text}");
    }

    #[test]
    fn the_first_transfer_id_separates_ids_by_time() {
        let at = Timestamp::from_micros(1_800_000_000_000_000);
        let made = uuid::Builder::from_unix_timestamp_millis(1_800_000_000_000, &[1; 10]).into_uuid();
        let made = TransferId::from_uuid(made).to_string();
        assert!(
            first_transfer(at).to_string() < made && made < first_transfer(at.plus_millis(1)).to_string()
        );
    }
}
