//! The watch for idle devices: it reports them with their cost, and stops jobs with `stop_when_idle`.
//!
//! Readings pass through this module on their way to the recordings. The sums of the last hour are in memory
//! only. After a restart the recordings give the readings again, and the store gives the last report.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_core::jobs::{MachineEvent, idle_text};
use berth_core::rating::charge_micros;
use berth_core::underuse::{BELOW_PERCENT, IdleWindow, Underused, WINDOW_S};
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::JobState;
use berth_types::metrics::Sample;
use berth_types::money::money_text;
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::attempts::Attempts;
use berth_foundation::days::day_of;
use berth_foundation::{Change, Context, Listener};
use berth_recordings::Recordings;
use berth_store::attempts::StoredAttempt;
use berth_store::jobs::StoredJob;
use berth_store::underuse::StoredUnderuse;
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

/// An attempt without readings for this long is forgotten; the recordings can give its readings again.
const FORGET_AFTER_MS: i64 = 3_600_000;
/// The step of the recordings in seconds.
const STEP_S: u64 = 60;
/// The ends of the ranks of an attempt are read this often.
const ENDS_EVERY_MS: i64 = 60_000;

/// The present attempt of a job, under watch.
#[derive(Debug)]
struct WatchedAttempt {
    attempt: u32,
    /// The time of the last reading by the portal's clock.
    last_reading_at: Timestamp,
    /// The time of the last read of the ends of ranks. `None` before the first one.
    ends_read_at: Option<Timestamp>,
    ranks: usize,
    /// The window for reports. `None` for a share: the driver reads the whole board with all its shares.
    report: Option<IdleWindow>,
    /// The window for `stop_when_idle`.
    stop: Option<IdleWindow>,
}

/// Idle windows to report, and to stop the job for.
#[derive(Debug, Clone, Copy, Default)]
struct IdleFindings {
    report: Option<Underused>,
    stop: Option<Underused>,
}

/// The running attempts, with their readings of the last hour in sums.
#[derive(Debug, Default)]
struct WatchedAttempts(Mutex<HashMap<JobId, WatchedAttempt>>);

impl Listener for WatchedAttempts {
    fn on_change(&self, change: &Change) {
        if let Change::Job { job, event: Some(event), .. } = change
            && (event.state.ended() || event.state == JobState::Queued)
        {
            self.forget(*job);
        }
    }
}

impl WatchedAttempts {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, WatchedAttempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if this attempt or a later one of the job is under watch. Readings of an older attempt
    /// are not judged.
    fn contains(&self, job: JobId, attempt: u32) -> bool {
        self.lock().get(&job).is_some_and(|w| w.attempt >= attempt)
    }

    fn insert(&self, job: JobId, watched: WatchedAttempt) {
        let mut all = self.lock();
        let now = watched.last_reading_at;
        all.retain(|_, w| now.millis_since(w.last_reading_at) < FORGET_AFTER_MS);
        // The readings of another rank may have inserted the attempt already.
        if all.get(&job).is_none_or(|w| w.attempt < watched.attempt) {
            all.insert(job, watched);
        }
    }

    /// True if the ends of the ranks of an attempt are to be read now. An attempt with one rank ends with it.
    fn claims_ends(&self, job: JobId, attempt: u32, now: Timestamp) -> bool {
        let mut all = self.lock();
        let Some(watched) = all.get_mut(&job).filter(|w| w.attempt == attempt && w.ranks > 1) else {
            return false;
        };
        let is_recent = |at: Timestamp| (0..ENDS_EVERY_MS).contains(&now.millis_since(at));
        if watched.ends_read_at.is_some_and(is_recent) {
            return false;
        }
        watched.ends_read_at = Some(now);
        true
    }

    /// Records the ends of ranks.
    fn end_ranks(&self, job: JobId, attempt: u32, ends: &[(u32, Timestamp)]) {
        let mut all = self.lock();
        let Some(watched) = all.get_mut(&job).filter(|w| w.attempt == attempt) else { return };
        for window in watched.report.iter_mut().chain(&mut watched.stop) {
            ends.iter().for_each(|(rank, at)| window.end_rank(*rank, *at));
        }
    }

    fn add(&self, job: JobId, attempt: u32, rows: &[Sample], now: Timestamp) -> IdleFindings {
        let mut all = self.lock();
        let Some(watched) = all.get_mut(&job).filter(|w| w.attempt == attempt) else {
            return IdleFindings::default();
        };
        watched.last_reading_at = now;
        let mut findings = IdleFindings::default();
        for row in rows {
            let add = |window: &mut IdleWindow| window.add(row.rank, row.at, row.utilization_percent);
            findings.report = watched.report.as_mut().and_then(add).or(findings.report);
            findings.stop = watched.stop.as_mut().and_then(add).or(findings.stop);
        }
        findings
    }

    /// Ends the watch of a job's attempt. Its next reading begins a new watch with the recordings.
    fn forget(&self, job: JobId) {
        self.lock().remove(&job);
    }
}

/// The watch for idle devices.
#[derive(Clone)]
pub struct IdleWatch {
    context: Context,
    recordings: Recordings,
    attempts: Attempts,
    watched: Arc<WatchedAttempts>,
}

impl IdleWatch {
    pub fn new(context: Context, recordings: Recordings, attempts: Attempts) -> Self {
        let watched: Arc<WatchedAttempts> = Arc::default();
        context.changes.subscribe(watched.clone());
        Self { context, recordings, attempts, watched }
    }

    /// Judges the readings of all devices of a running attempt at one moment.
    ///
    /// # Errors
    /// The database cannot be read, or a finding cannot be recorded. The recordings give the finding again.
    pub async fn add_readings(&self, job: JobId, number: u32, rows: &[Sample]) -> Result<(), StoreError> {
        if rows.iter().all(|row| row.utilization_percent.is_none()) {
            return Ok(());
        }
        if !self.watched.contains(job, number) {
            let Some(watched) = self.begin_watch(job, number, rows).await? else { return Ok(()) };
            self.watched.insert(job, watched);
        }
        let now = self.context.now();
        if self.watched.claims_ends(job, number, now) {
            // The recordings give the readings of this moment to the next watch.
            let ends = self.list_ends(job, number).await.inspect_err(|_| self.watched.forget(job))?;
            self.watched.end_ranks(job, number, &ends);
        }
        let findings = self.watched.add(job, number, rows, now);
        let done = self.act_on(job, number, findings).await;
        if done.is_err() {
            // The recordings give the finding again.
            self.watched.forget(job);
        }
        done
    }

    /// The ended ranks of an attempt, with the times of their ends.
    async fn list_ends(&self, job: JobId, number: u32) -> Result<Vec<(u32, Timestamp)>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let ranks = store::attempts::list_ranks(&mut conn.tx(), job, i64::from(number)).await?;
        let end = |row: StoredAttempt| Some((u32::try_from(row.rank).ok()?, row.ended_at?));
        Ok(ranks.into_iter().filter_map(end).collect())
    }

    async fn act_on(&self, job: JobId, number: u32, findings: IdleFindings) -> Result<(), StoreError> {
        if let Some(idle) = findings.report {
            self.report_idle(job, number, idle).await?;
        }
        if let Some(idle) = findings.stop {
            let (percent, for_s) = (idle.whole_percent(), u32::try_from(idle.for_s).unwrap_or(u32::MAX));
            let event = MachineEvent::Idle { attempt: number, percent, for_s };
            self.attempts.apply_event(job, None, event, idle_text(percent, for_s)).await?;
        }
        Ok(())
    }

    /// Begins the watch of an attempt with its readings from the recordings. `None` if the attempt does not
    /// run.
    async fn begin_watch(
        &self,
        job: JobId,
        number: u32,
        rows: &[Sample],
    ) -> Result<Option<WatchedAttempt>, StoreError> {
        let (row, last) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let Some(row) = store::jobs::find_any(&mut tx, job).await? else { return Ok(None) };
            if !is_running(&row, number) {
                return Ok(None);
            }
            let last = store::underuse::find_latest(&mut tx, row.id, row.attempt).await?;
            (row, last)
        };
        let whole_devices = row.spec.gpu_milli.is_none();
        let ranks = usize::try_from(row.nodes).unwrap_or(1);
        let mut report = whole_devices.then(|| IdleWindow::new(BELOW_PERCENT, WINDOW_S, ranks));
        let rule = row.spec.stop_when_idle.filter(|_| whole_devices);
        let mut stop = rule.map(|rule| IdleWindow::new(rule.below_percent, rule.for_s, ranks));
        if let (Some(window), Some(last)) = (&mut report, last) {
            window.mark_reported(last.ends_at);
        }
        if whole_devices {
            let longest = rule.map_or(WINDOW_S, |rule| rule.for_s.max(WINDOW_S));
            let newest = rows.iter().map(|row| row.at).max().unwrap_or_default();
            for (rank, at, percent) in self.recorded_readings(job, number, newest, longest).await {
                report.iter_mut().chain(&mut stop).for_each(|window| window.add_past(rank, at, percent));
            }
        }
        let last_reading_at = self.context.now();
        Ok(Some(WatchedAttempt { attempt: number, last_reading_at, ends_read_at: None, ranks, report, stop }))
    }

    /// The recorded readings of an attempt in the `window_s` seconds before `now`, by the minute, oldest
    /// first, each with its rank.
    async fn recorded_readings(
        &self,
        job: JobId,
        number: u32,
        now: Timestamp,
        window_s: u32,
    ) -> Vec<(u32, Timestamp, f64)> {
        let recordings = self.recordings.clone();
        // Two minutes more: the minute of the window's begin, and the minute before it.
        let from = now.plus_seconds(-i64::from(window_s) - 120);
        let read = move || recordings.series(job, number, Some(from), Some(now), STEP_S);
        let series = match tokio::task::spawn_blocking(read).await {
            Ok(Ok((_, series))) => series,
            other => {
                let error = other
                    .err()
                    .map_or_else(|| "the recordings are not readable".to_owned(), |e| e.to_string());
                tracing::warn!(%job, error, "idle devices are watched without earlier readings");
                return Vec::new();
            }
        };
        // A recorded minute counts at its end, so that no attempt appears older than it is.
        let at = |start_s: f64| Timestamp::from_micros((start_s * 1e6) as i64).plus_seconds(59);
        let mut out: Vec<(u32, Timestamp, f64)> = series
            .iter()
            .flat_map(|s| s.at_s.iter().zip(&s.utilization_percent).map(move |reading| (s.rank, reading)))
            .filter_map(|(rank, (start, percent))| Some((rank, at(*start), (*percent)?)))
            .collect();
        // The series has one device after the other.
        out.sort_by_key(|(_, at, _)| *at);
        out
    }

    async fn report_idle(&self, job: JobId, number: u32, idle: Underused) -> Result<(), StoreError> {
        let now = self.context.now();
        let context = self.context.clone();
        let reported = self.context.db.write(move |tx| {
            let context = context.clone();
            async move { record(tx, &context, (job, number), idle, now).await }.boxed()
        });
        if let Some((org, event)) = reported.await? {
            self.context.publish(Change::Job { org, job, event: Some(event) });
        }
        Ok(())
    }
}

fn is_running(row: &StoredJob, number: u32) -> bool {
    row.phase.state == JobState::Running && row.attempt == i64::from(number)
}

/// The cost of the idle hour as text.
fn cost_text(row: &StoredJob, cost_micros: i64, currency: &str) -> String {
    match &row.reservation_id {
        Some(_) => "this hour is paid with the reservation".to_owned(),
        None => format!("this hour cost {}", money_text(cost_micros, currency)),
    }
}

/// Records an idle hour, unless an earlier report covers a part of it or the attempt does not run any more.
async fn record(
    tx: &mut Tx<'_>,
    context: &Context,
    (job, number): (JobId, u32),
    idle: Underused,
    now: Timestamp,
) -> Result<Option<(OrgId, JobEvent)>, StoreError> {
    let Some(row) = store::jobs::find_any(tx, job).await?.filter(|row| is_running(row, number)) else {
        return Ok(None);
    };
    let (ends_at, length_ms) = (idle.until(), idle.for_s.saturating_mul(1_000));
    let last = store::underuse::find_latest(tx, row.id, row.attempt).await?;
    if last.is_some_and(|l| ends_at.millis_since(l.ends_at).abs() < length_ms) {
        return Ok(None);
    }
    let org = row.org_id;
    // The clock of the readings may be wrong: the cost is at most the charged cost.
    let cost_micros = charge_micros(row.nano_per_second, length_ms).unwrap_or(i64::MAX).min(row.cost_micros);
    let percent = idle.whole_percent();
    let new = StoredUnderuse {
        job_id: job,
        attempt: row.attempt,
        org_id: org,
        starts_at: idle.since,
        ends_at,
        percent: i64::from(percent),
        cost_micros,
        reported_at: now,
        day: day_of(now),
    };
    store::underuse::insert(tx, &new).await?;
    store::jobs::raise_generation(tx, job, row.generation).await?;
    let detail = format!(
        "GPU utilization was {percent} % in the last hour; {}. Check whether the job waits for data. Stop the job if it has no work, or launch it on a smaller offering.",
        cost_text(&row, cost_micros, &context.settings.currency)
    );
    let event =
        JobEvent { job, seq: row.generation + 1, at: now, state: JobState::Running, attempt: number, detail };
    store::job_events::insert_event(tx, org, &event).await?;
    if context.live.has_webhook(org) {
        let data = serde_json::json!({
            "job": row.id, "name": row.name, "attempt": number, "percent": percent, "since": idle.since,
            "until": ends_at, "cost_micros": cost_micros,
        });
        let subject = format!("Job {}: GPU utilization of {percent} % in the last hour", row.name);
        let notice = context.notice(org, "job.underused", subject, event.detail.clone(), &data);
        store::budgets::insert_notice(tx, &notice).await?;
    }
    Ok(Some((org, event)))
}

#[cfg(test)]
mod tests {
    use berth_types::events::JobEvent;
    use berth_types::ids::OrgId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_watch_of_an_attempt_ends_with_it() {
        let at = Timestamp::from_micros(0);
        let job = |n: u128| JobId::from_uuid(Uuid::from_u128(n));
        for state in JobState::ALL {
            let watched = WatchedAttempts::default();
            for n in [1, 2] {
                let attempt = WatchedAttempt {
                    attempt: 1,
                    last_reading_at: at,
                    ends_read_at: None,
                    ranks: 1,
                    report: None,
                    stop: None,
                };
                watched.insert(job(n), attempt);
            }
            let detail = String::new();
            let event = Some(JobEvent { job: job(1), seq: 2, at, state, attempt: 1, detail });
            let org = OrgId::from_uuid(Uuid::from_u128(9));
            watched.on_change(&Change::Job { org, job: job(1), event: None });
            assert!(watched.contains(job(1), 1), "{state:?}");
            watched.on_change(&Change::Job { org, job: job(1), event });
            assert_eq!(!watched.contains(job(1), 1), state.ended() || state == JobState::Queued, "{state:?}");
            assert!(watched.contains(job(2), 1), "{state:?}");
        }
    }
}
