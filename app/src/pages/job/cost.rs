//! Cost figures of a job: an estimate while the job runs, the exact charge with its calculation afterwards.
//!
//! Between two events of the portal the cost grows at the job's rate, for at most `MAX_ESTIMATE_MS`, so that
//! a stale figure stands still.

use berth_types::documents::surcharge_text;
use berth_types::events::JobCost;
use berth_types::jobs::{Job, JobState};
use berth_types::money::{money_text, reserved_text};
use berth_types::time::duration_text;
use leptos::prelude::*;

use super::super::parts::{interval, now_ms};
use super::super::text::{charge, grouped, hourly_text, limit_text, rate_text, ticking_money};
use super::LiveJob;
use crate::ui::*;

/// The maximum growth of the estimate after an event, in milliseconds.
const MAX_ESTIMATE_MS: i64 = 3_000;

/// The last known use and cost of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meter {
    /// Metered milliseconds of all attempts.
    pub metered_ms: i64,
    /// The charge for `metered_ms`, in micro-units of the currency.
    pub cost_micros: i64,
    /// The hold of the job, in micro-units of the currency.
    pub held_micros: i64,
    /// The arrival by the browser's clock in Unix milliseconds; 0 on the server.
    received_ms: i64,
}

impl Meter {
    /// Returns the meter of a job that arrived at `received_ms`.
    pub fn from_job(job: &Job, received_ms: i64) -> Self {
        Self {
            metered_ms: job.metered_ms,
            cost_micros: job.cost_micros,
            held_micros: job.held_micros,
            received_ms,
        }
    }

    /// Applies a `cost` event, unless it is older than the meter. The meter of an ended job comes with the job; an event
    /// of the same time has the hold from before the end.
    pub fn apply(&mut self, cost: &JobCost, has_ended: bool, now_ms: i64) {
        if cost.metered_ms > self.metered_ms || (cost.metered_ms == self.metered_ms && !has_ended) {
            *self = Self {
                metered_ms: cost.metered_ms,
                cost_micros: cost.cost_micros,
                held_micros: cost.held_micros,
                received_ms: now_ms,
            };
        }
    }

    /// Estimates metered milliseconds and charge at `now_ms`.
    fn estimate(&self, nano_per_second: i64, now_ms: i64) -> (i64, i64) {
        if self.received_ms == 0 {
            return (self.metered_ms, self.cost_micros);
        }
        let since = now_ms.saturating_sub(self.received_ms).clamp(0, MAX_ESTIMATE_MS);
        (
            self.metered_ms.saturating_add(since),
            self.cost_micros.saturating_add(charge(nano_per_second, since)),
        )
    }
}

/// The figures: cost, reserved money, run time and time limit.
#[component]
pub fn CostFigures(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    let job = live.job;
    let meter = live.meter;
    let first = meter.get_untracked();
    let shown = RwSignal::new((first.metered_ms, first.cost_micros));
    Effect::new(move || {
        let latest = meter.get();
        if live.state.get() != JobState::Running {
            shown.set((latest.metered_ms, latest.cost_micros));
            return;
        }
        let tick = move || {
            let rate = job.with_untracked(|job| job.nano_per_second);
            let (ms, cost) = latest.estimate(rate, now_ms());
            // A late event must not decrease the figure.
            shown.maybe_update(|shown| {
                let next = (shown.0.max(ms), shown.1.max(cost));
                let moved = next != *shown;
                *shown = next;
                moved
            });
        };
        tick();
        interval(200, tick);
    });
    let running = move || live.state.get() == JobState::Running;
    let finished = move || live.state.get().ended();
    let cost = move || {
        let (_, micros) = shown.get();
        let ticking = running();
        job.with(|job| {
            if ticking { ticking_money(micros, &job.currency) } else { money_text(micros, &job.currency) }
        })
    };
    let cost_label = move || if finished() { "Cost" } else { "Cost so far" };
    let rate = move || job.with(rate_note);
    let held = move || {
        let micros = meter.with(|meter| meter.held_micros);
        job.with(|job| reserved_text(micros, &job.currency))
    };
    let held_note = move || if finished() { "unused rest released" } else { "until the job ends" };
    let run_time = move || duration_text(shown.get().0);
    let run_time_note = move || {
        job.with(|job| match job.attempt {
            0 => "not started".to_owned(),
            1 => "attempt 1".to_owned(),
            attempts => format!("sum of {attempts} attempts"),
        })
    };
    let limit = move || job.with(|job| limit_text(job.max_duration_s));
    let limit_note = move || {
        let ends = job.with(|job| {
            let seconds = i64::try_from(job.max_duration_s).unwrap_or(i64::MAX);
            job.started_at.map(|at| at.plus_seconds(seconds))
        });
        match ends.filter(|_| running()) {
            Some(at) => view! { "ends by " <When at=at/> }.into_any(),
            None => "counted from the start".into_any(),
        }
    };
    view! {
        <dl class="stats">
            <div class="stat">
                <dt class="stat__label">{cost_label}</dt>
                <dd class="stat__value">{cost}</dd>
                <dd class="stat__note">{rate}</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Reserved"</dt>
                <dd class="stat__value">{held}</dd>
                <dd class="stat__note">{held_note}</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Run time"</dt>
                <dd class="stat__value">{run_time}</dd>
                <dd class="stat__note">{run_time_note}</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Time limit"</dt>
                <dd class="stat__value">{limit}</dd>
                <dd class="stat__note">{limit_note}</dd>
            </div>
        </dl>
        {move || {
            finished().then(|| job.with(calculation)).flatten().map(|text| view! { <p class="quiet small mono">{text}</p> })
        }}
        {move || {
            finished().then(|| job.with(evidence_text)).flatten().map(|text| view! { <p class="quiet small">{text}</p> })
        }}
    }
}

/// Returns `at $2.99/h, price version 1`, with the surcharge of a promise.
fn rate_note(job: &Job) -> String {
    let surcharge = match job.surcharge_basis_points {
        0 => String::new(),
        points => format!(", with {} for a promise", surcharge_text(points)),
    };
    format!("at {}/h, price version {}{surcharge}", hourly_text(job), job.price_version)
}

/// Returns `$0.002677777/s × 3,600,000 ms = $9.639997, rounded down`, if the posted cost is this product.
fn calculation(job: &Job) -> Option<String> {
    if job.metered_ms <= 0 || charge(job.nano_per_second, job.metered_ms) != job.cost_micros {
        return None;
    }
    Some(format!(
        "{}/s × {} ms = {}, rounded down",
        rate_text(job.nano_per_second, &job.currency),
        grouped(job.metered_ms),
        money_text(job.cost_micros, &job.currency)
    ))
}

/// Returns the billed time with the evidence of each rank and the credit for time without evidence.
fn evidence_text(job: &Job) -> Option<String> {
    if job.evidence.is_empty() {
        return None;
    }
    let verb = if job.reservation.is_some() { "Metered" } else { "Billed" };
    let mut text = format!("{verb} {}", duration_text(job.metered_ms));
    text.push_str(&match job.attempt {
        0 | 1 => ".".to_owned(),
        attempts => format!(" over {attempts} attempts. Last attempt:"),
    });
    let many = job.nodes > 1;
    for evidence in &job.evidence {
        let rank = if many { format!(" of rank {}", evidence.rank) } else { String::new() };
        text.push_str(&format!(
            " Process{rank} alive for {}; devices responded for {}, did not respond for {}.",
            duration_text(evidence.process_ms),
            duration_text(evidence.device_ms),
            duration_text(evidence.lost_ms)
        ));
    }
    if job.credited_micros > 0 {
        let credit = money_text(job.credited_micros, &job.currency);
        text.push_str(&format!(" {credit} credited for billed time without evidence."));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished() -> Job {
        serde_json::from_value(serde_json::json!({
            "id": "job_00000000000000000000000001", "org": "org_00000000000000000000000001", "name": "n",
            "state": "succeeded", "reasons": [], "attempt": 1, "offering": "o", "simulated": false, "count": 1,
            "priority": "normal", "max_duration_s": 900, "devices": [], "created_at": "2026-03-01T09:00:00Z",
            "created_by": "a", "metered_ms": 724_000, "cost_micros": 9, "held_micros": 0, "nano_per_second": 1,
            "currency": "USD", "price_version": 1, "generation": 1, "actions": [],
            "evidence": [{"rank": 0, "process_ms": 724_000, "device_ms": 723_000, "lost_ms": 0}],
        }))
        .unwrap()
    }

    #[test]
    fn the_evidence_follows_the_billed_time() {
        let job = finished();
        let plain = "Billed 12 min 04 s. Process alive for 12 min 04 s; devices responded for 12 min 03 s, did not respond for 0 s.";
        assert_eq!(evidence_text(&job).as_deref(), Some(plain));
        let credited = evidence_text(&Job { credited_micros: 42, ..job.clone() }).unwrap();
        assert!(credited.ends_with("$0.000042 credited for billed time without evidence."), "{credited}");
        let gang = evidence_text(&Job { nodes: 2, attempt: 3, ..job.clone() }).unwrap();
        assert!(gang.contains("over 3 attempts") && gang.contains("Process of rank 0 alive"), "{gang}");
        assert_eq!(
            evidence_text(&Job { evidence: vec![], ..job }),
            None,
            "an older worker sends no evidence"
        );
    }

    fn cost(metered_ms: i64) -> JobCost {
        JobCost {
            job: "job_00000000000000000000000001".parse().unwrap(),
            metered_ms,
            cost_micros: metered_ms * 2,
            held_micros: 5,
        }
    }

    #[test]
    fn the_rate_names_the_surcharge_in_it() {
        let job = Job { nano_per_second: 913_611, ..finished() };
        assert_eq!(rate_note(&job), "at $3.289/h, price version 1");
        let slice = Job { nano_per_second: 103_819, ..job.clone() };
        assert_eq!(rate_note(&slice), "at $0.37375/h, price version 1");
        assert_eq!(rate_note(&Job { count: 2, ..slice }), "at $0.3738/h, price version 1");
        let promised = Job { surcharge_basis_points: 1_000, ..job };
        assert_eq!(rate_note(&promised), "at $3.289/h, price version 1, with +10 % for a promise");
    }

    #[test]
    fn the_estimate_stops_without_events() {
        let mut meter = Meter { metered_ms: 0, cost_micros: 0, held_micros: 9, received_ms: 0 };
        assert_eq!(meter.estimate(2_000_000, 500_000), (0, 0));
        meter.apply(&cost(1_000), false, 50_000);
        assert_eq!(meter.estimate(2_000_000, 50_250), (1_250, 2_500));
        assert_eq!(meter.estimate(2_000_000, 90_000), (1_000 + MAX_ESTIMATE_MS, 2_000 + 2 * MAX_ESTIMATE_MS));
        assert_eq!(meter.estimate(2_000_000, 1), (1_000, 2_000));
        meter.apply(&cost(900), false, 51_000);
        assert_eq!(meter.metered_ms, 1_000);
    }

    #[test]
    fn a_late_event_brings_no_hold_back() {
        for (metered_ms, has_ended, held_micros) in [(1_000, true, 0), (1_000, false, 5), (999, false, 0)] {
            let mut meter = Meter { metered_ms: 1_000, cost_micros: 2_000, held_micros: 0, received_ms: 1 };
            meter.apply(&cost(metered_ms), has_ended, 51_000);
            assert_eq!(meter.held_micros, held_micros, "{metered_ms} {has_ended}");
        }
    }
}
