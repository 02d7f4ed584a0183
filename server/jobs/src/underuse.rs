//! Points out devices that stand idle, with what that costs, and stops the jobs that asked for it.
//!
//! Readings pass through here on their way to the recordings. What is known of the last hour is in memory only:
//! after a restart it is read from the recordings, and what was said already from the store.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::underuse_rules::{BELOW_PERCENT, Underused, WINDOW_S, Watch};
use berth_core::jobs::{Event, idle_text};
use berth_core::rating::charge_micros;
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{JobState, StopWhenIdle};
use berth_types::metrics::Sample;
use berth_types::money::money_text;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde::Deserialize;

use crate::attempts::Attempts;
use berth_foundation::days::day_of;
use berth_foundation::{Change, Context, Listener};
use berth_recordings::Recordings;
use berth_store::jobs::JobRow;
use berth_store::underuse::UnderuseRow;
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

/// What nothing was read of for this long is let go; it can be read from the recordings again.
const LET_GO_MS: i64 = 3_600_000;
/// Seconds of a step of the recordings.
const STEP_S: u64 = 60;

/// What a submission says that matters here; the rest of it, files above all, is passed over.
#[derive(Deserialize)]
struct Wanted {
    #[serde(default)]
    stop_when_idle: Option<StopWhenIdle>,
    #[serde(default)]
    gpu_milli: Option<u32>,
}

/// What is watched of a job: its present attempt.
#[derive(Debug)]
struct Watched {
    attempt: u32,
    /// By the portal's clock.
    seen: Timestamp,
    /// Absent for shares: the driver reads the whole board, and so the neighbours too.
    tell: Option<Watch>,
    stop: Option<Watch>,
}

/// What was found idle: to be told, and to be stopped.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    tell: Option<Underused>,
    stop: Option<Underused>,
}

/// The attempts that run, with the readings of their last hour in sums.
#[derive(Debug, Default)]
struct Watches(Mutex<HashMap<JobId, Watched>>);

impl Listener for Watches {
    fn hear(&self, change: &Change) {
        if let Change::Job { job, event: Some(event), .. } = change
            && (event.state.ended() || event.state == JobState::Queued)
        {
            self.forget(*job);
        }
    }
}

impl Watches {
    fn all(&self) -> MutexGuard<'_, HashMap<JobId, Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing must be read to judge readings of this attempt; those of an older one are not judged.
    fn knows(&self, job: JobId, attempt: u32) -> bool {
        self.all().get(&job).is_some_and(|w| w.attempt >= attempt)
    }

    fn begin(&self, job: JobId, watched: Watched) {
        let mut all = self.all();
        let now = watched.seen;
        all.retain(|_, w| now.millis_since(w.seen) < LET_GO_MS);
        // Another rank's readings may have come first.
        if all.get(&job).is_none_or(|w| w.attempt < watched.attempt) {
            all.insert(job, watched);
        }
    }

    fn feed(&self, job: JobId, attempt: u32, rows: &[Sample], now: Timestamp) -> Found {
        let mut all = self.all();
        let Some(watched) = all.get_mut(&job).filter(|w| w.attempt == attempt) else {
            return Found::default();
        };
        watched.seen = now;
        let mut found = Found::default();
        for row in rows {
            let feed = |watch: &mut Watch| watch.feed(row.at, row.utilization_percent);
            found.tell = watched.tell.as_mut().and_then(feed).or(found.tell);
            found.stop = watched.stop.as_mut().and_then(feed).or(found.stop);
        }
        found
    }

    /// The attempt is over, or must be looked at from the start.
    fn forget(&self, job: JobId) {
        self.all().remove(&job);
    }
}

/// The watch for devices that stand idle.
#[derive(Clone)]
pub struct IdleWatch {
    context: Context,
    recordings: Recordings,
    attempts: Attempts,
    watches: Arc<Watches>,
}

impl IdleWatch {
    pub fn new(context: Context, recordings: Recordings, attempts: Attempts) -> Self {
        let watches: Arc<Watches> = Arc::default();
        context.changes.subscribe(watches.clone());
        Self { context, recordings, attempts, watches }
    }

    /// Takes in what was read of the devices of a running attempt at one moment.
    pub async fn watch_use(&self, job: JobId, number: u32, rows: &[Sample]) -> Result<(), StoreError> {
        if rows.iter().all(|row| row.utilization_percent.is_none()) {
            return Ok(());
        }
        if !self.watches.knows(job, number) {
            let Some(watched) = self.watched(job, number, rows).await? else { return Ok(()) };
            self.watches.begin(job, watched);
        }
        let found = self.watches.feed(job, number, rows, self.context.now());
        let done = self.act_on_idle(job, number, found).await;
        if done.is_err() {
            // It is found again from the recordings.
            self.watches.forget(job);
        }
        done
    }

    async fn act_on_idle(&self, job: JobId, number: u32, found: Found) -> Result<(), StoreError> {
        if let Some(idle) = found.tell {
            self.tell_idle(job, number, idle).await?;
        }
        if let Some(idle) = found.stop {
            let (percent, for_s) = (idle.whole_percent(), u32::try_from(idle.for_s).unwrap_or(u32::MAX));
            let event = Event::Idle { attempt: number, percent, for_s };
            self.attempts.move_on(job, None, event, idle_text(percent, for_s)).await?;
        }
        Ok(())
    }

    /// Begins to watch an attempt, with what the recordings know of it. `None`: it does not run.
    async fn watched(&self, job: JobId, number: u32, rows: &[Sample]) -> Result<Option<Watched>, StoreError> {
        let (wanted, last) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let Some(row) = store::jobs::find_any(&mut tx, job).await? else { return Ok(None) };
            if !runs(&row, number) {
                return Ok(None);
            }
            let wanted: Wanted =
                serde_json::from_str(&row.spec).map_err(|_| StoreError::Corrupt(row.id.clone()))?;
            (wanted, store::underuse::latest(&mut tx, &row.id, row.attempt).await?)
        };
        let alone = wanted.gpu_milli.is_none();
        let mut tell = alone.then(|| Watch::new(BELOW_PERCENT, WINDOW_S));
        let rule = wanted.stop_when_idle.filter(|_| alone);
        let mut stop = rule.map(|rule| Watch::new(rule.below_percent, rule.for_s));
        if let (Some(watch), Some(last)) = (&mut tell, last) {
            watch.told(Timestamp::from_micros(last.ends_at));
        }
        if alone {
            let longest = rule.map_or(WINDOW_S, |rule| rule.for_s.max(WINDOW_S));
            let newest = rows.iter().map(|row| row.at).max().unwrap_or_default();
            for (at, percent) in self.recalled(job, number, newest, longest).await {
                tell.iter_mut().chain(&mut stop).for_each(|watch| watch.recall(at, percent));
            }
        }
        Ok(Some(Watched { attempt: number, seen: self.context.now(), tell, stop }))
    }

    /// What was read of an attempt in the `window_s` seconds before `now`, by the minute, oldest first.
    async fn recalled(
        &self,
        job: JobId,
        number: u32,
        now: Timestamp,
        window_s: u32,
    ) -> Vec<(Timestamp, f64)> {
        let recordings = self.recordings.clone();
        // The minute that the window begins in, and the one before it.
        let from = now.plus_seconds(-i64::from(window_s) - 120);
        let read = move || recordings.series(job, number, Some(from), Some(now), STEP_S);
        let series = match tokio::task::spawn_blocking(read).await {
            Ok(Ok((_, series))) => series,
            other => {
                let error = other.err().map_or_else(|| "they cannot be read".to_owned(), |e| e.to_string());
                tracing::warn!(%job, error, "the watch for idle devices begins without recordings");
                return Vec::new();
            }
        };
        // A minute counts as read at its end: so an attempt is never taken for older than it is.
        let at = |start_s: f64| Timestamp::from_micros((start_s * 1e6) as i64).plus_seconds(59);
        let mut out: Vec<(Timestamp, f64)> = series
            .iter()
            .flat_map(|s| s.at_s.iter().zip(&s.utilization_percent))
            .filter_map(|(start, percent)| Some((at(*start), (*percent)?)))
            .collect();
        // Device stands after device in there.
        out.sort_by_key(|(at, _)| *at);
        out
    }

    async fn tell_idle(&self, job: JobId, number: u32, idle: Underused) -> Result<(), StoreError> {
        let now = self.context.now();
        let context = self.context.clone();
        let told = self.context.db.write(move |tx| {
            let context = context.clone();
            async move { record(tx, &context, (job, number), idle, now).await }.boxed()
        });
        if let Some((org, event)) = told.await? {
            self.context.publish(Change::Job { org, job, event: Some(event) });
        }
        Ok(())
    }
}

fn runs(row: &JobRow, number: u32) -> bool {
    row.phase.state == JobState::Running && row.attempt == i64::from(number)
}

/// What the time cost, in words.
fn cost_text(row: &JobRow, cost_micros: i64, currency: &str) -> String {
    match &row.reservation_id {
        Some(_) => "that hour is paid with its reservation".to_owned(),
        None => format!("that hour cost {}", money_text(cost_micros, currency)),
    }
}

/// Records an idle hour, unless most of it was told of already or the attempt is over.
async fn record(
    tx: &mut Tx<'_>,
    context: &Context,
    (job, number): (JobId, u32),
    idle: Underused,
    now: Timestamp,
) -> Result<Option<(OrgId, JobEvent)>, StoreError> {
    let Some(row) = store::jobs::find_any(tx, job).await?.filter(|row| runs(row, number)) else {
        return Ok(None);
    };
    let (ends_at, length_ms) = (idle.until(), idle.for_s.saturating_mul(1_000));
    let last = store::underuse::latest(tx, &row.id, row.attempt).await?;
    if last.is_some_and(|l| ends_at.millis_since(Timestamp::from_micros(l.ends_at)).abs() < length_ms) {
        return Ok(None);
    }
    let org: OrgId = row.org_id.parse().map_err(|_| StoreError::Corrupt(row.org_id.clone()))?;
    // Never more than what was metered, whatever the clock of the readings says.
    let cost_micros = charge_micros(row.nano_per_second, length_ms).unwrap_or(i64::MAX).min(row.cost_micros);
    let percent = idle.whole_percent();
    let new = UnderuseRow {
        job_id: row.id.clone(),
        attempt: row.attempt,
        org_id: row.org_id.clone(),
        starts_at: idle.since.micros(),
        ends_at: ends_at.micros(),
        percent: i64::from(percent),
        cost_micros,
        told_at: now.micros(),
        day: day_of(now),
    };
    store::underuse::insert(tx, &new).await?;
    store::jobs::raise(tx, &row.id, row.generation).await?;
    let detail = format!(
        "GPU utilisation was {percent} % over the last hour; {}. If it waits for data or for nothing, mend that or stop it; if it needs no more, a smaller offering costs less.",
        cost_text(&row, cost_micros, &context.settings.currency)
    );
    let event =
        JobEvent { job, seq: row.generation + 1, at: now, state: JobState::Running, attempt: number, detail };
    store::jobs::insert_event(tx, org, &event).await?;
    if context.live.is_hooked(&row.org_id) {
        let data = serde_json::json!({
            "job": row.id, "name": row.name, "attempt": number, "percent": percent, "since": idle.since,
            "until": ends_at, "cost_micros": cost_micros,
        });
        let subject = format!("{} uses {percent} % of its devices", row.name);
        let notice = context.notice(&row.org_id, "job.underused", subject, event.detail.clone(), &data);
        store::budgets::insert_notice(tx, &notice).await?;
    }
    Ok(Some((org, event)))
}
