//! What the job costs: ticking while it runs, exact once it ended, with the sum written out.
//!
//! Between two words of the portal the figure is carried on at the job's rate, and says that it is
//! "so far". Must not carry it on for longer than the feed can be silent: a figure never looks
//! fresher than it is.

use berth_types::events::JobCost;
use berth_types::jobs::{Job, JobState};
use berth_types::money::{money_text, per_hour_micros};
use berth_types::time::duration_text;
use leptos::prelude::*;

use super::super::parts::{interval, now_ms};
use super::super::words::{charge, full_money, grouped, limit_text, price_text, rate_text, ticking_money};
use super::LiveJob;
use crate::ui::*;

/// Milliseconds for which a figure is carried on without a word from the portal.
const CARRIED_MS: i64 = 3_000;

/// What was last told of a job's use, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meter {
    /// Proved use.
    pub metered_ms: i64,
    /// Its price.
    pub cost_micros: i64,
    /// Set aside for the rest.
    pub held_micros: i64,
    /// By the browser's clock; 0 when it was the server that drew it.
    heard_ms: i64,
}

impl Meter {
    /// The meter as a job carries it.
    pub fn of(job: &Job, heard_ms: i64) -> Self {
        Self {
            metered_ms: job.metered_ms,
            cost_micros: job.cost_micros,
            held_micros: job.held_micros,
            heard_ms,
        }
    }

    /// Takes in a `cost` event; a meter never runs backwards.
    pub fn heard(&mut self, cost: &JobCost, now_ms: i64) {
        if cost.metered_ms >= self.metered_ms {
            *self = Self {
                metered_ms: cost.metered_ms,
                cost_micros: cost.cost_micros,
                held_micros: cost.held_micros,
                heard_ms: now_ms,
            };
        }
    }

    /// Use and price carried on to `now_ms`.
    fn carried(&self, nano_per_second: i64, now_ms: i64) -> (i64, i64) {
        if self.heard_ms == 0 {
            return (self.metered_ms, self.cost_micros);
        }
        let since = now_ms.saturating_sub(self.heard_ms).clamp(0, CARRIED_MS);
        (
            self.metered_ms.saturating_add(since),
            self.cost_micros.saturating_add(charge(nano_per_second, since)),
        )
    }
}

/// Cost, what is set aside, how long it ran, its limit.
#[component]
pub fn CostFigures(
    /// The job.
    live: LiveJob,
) -> impl IntoView {
    let job = live.job;
    let meter = live.meter;
    let told = meter.get_untracked();
    let shown = RwSignal::new((told.metered_ms, told.cost_micros));
    Effect::new(move || {
        let told = meter.get();
        if live.state.get() != JobState::Running {
            shown.set((told.metered_ms, told.cost_micros));
            return;
        }
        let tick = move || {
            let rate = job.with_untracked(|job| job.nano_per_second);
            let (ms, cost) = told.carried(rate, now_ms());
            // A word that comes a little late must not make the figure step back.
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
    let over = move || live.state.get().ended();
    let cost = move || {
        let (_, micros) = shown.get();
        let ticking = running();
        job.with(|job| {
            if ticking { ticking_money(micros, &job.currency) } else { money_text(micros, &job.currency) }
        })
    };
    let cost_label = move || if over() { "Cost" } else { "Cost so far" };
    let rate = move || {
        job.with(|job| {
            let hourly = per_hour_micros(job.nano_per_second).unwrap_or(i64::MAX);
            format!("at {}/h, price version {}", price_text(hourly, &job.currency), job.price_version)
        })
    };
    let held = move || {
        let micros = meter.with(|meter| meter.held_micros);
        job.with(|job| money_text(micros, &job.currency))
    };
    let held_note =
        move || if over() { "the rest went back to your balance" } else { "held from your balance" };
    let ran = move || duration_text(shown.get().0);
    let ran_note = move || {
        job.with(|job| match job.attempt {
            0 => "not started".to_owned(),
            attempt => format!("attempt {attempt}"),
        })
    };
    let limit = move || job.with(|job| limit_text(job.max_duration_s));
    let limit_note = move || {
        let ends = job.with(|job| {
            let seconds = i64::try_from(job.max_duration_s).unwrap_or(i64::MAX);
            job.started_at.map(|at| at.plus_seconds(seconds))
        });
        match ends.filter(|_| running()) {
            Some(at) => view! { "ends at the latest " <When at=at/> }.into_any(),
            None => "counted from its start".into_any(),
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
                <dt class="stat__label">"Set aside"</dt>
                <dd class="stat__value">{held}</dd>
                <dd class="stat__note">{held_note}</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Ran"</dt>
                <dd class="stat__value">{ran}</dd>
                <dd class="stat__note">{ran_note}</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Limit"</dt>
                <dd class="stat__value">{limit}</dd>
                <dd class="stat__note">{limit_note}</dd>
            </div>
        </dl>
        {move || {
            over().then(|| job.with(sum)).flatten().map(|sum| view! { <p class="quiet small mono">{sum}</p> })
        }}
        {move || {
            over().then(|| job.with(borne_out)).flatten().map(|text| view! { <p class="quiet small">{text}</p> })
        }}
    }
}

/// `$0.002677777/s × 3,600,000 ms = $9.639997`, where the posted cost is just that.
fn sum(job: &Job) -> Option<String> {
    if job.metered_ms <= 0 || charge(job.nano_per_second, job.metered_ms) != job.cost_micros {
        return None;
    }
    Some(format!(
        "{}/s × {} ms = {}, rounded down",
        rate_text(job.nano_per_second, &job.currency),
        grouped(job.metered_ms),
        full_money(job.cost_micros, &job.currency)
    ))
}

/// What its process and devices say to what was billed, rank by rank, and what came back of it.
fn borne_out(job: &Job) -> Option<String> {
    if job.evidence.is_empty() {
        return None;
    }
    let verb = if job.reservation.is_some() { "Metered" } else { "Billed" };
    let mut text = format!("{verb} {}", duration_text(job.metered_ms));
    text.push_str(&match job.attempt {
        0 | 1 => ".".to_owned(),
        tries => format!(" over {tries} attempts; what follows is of the last."),
    });
    let many = job.nodes > 1;
    for seen in &job.evidence {
        let process =
            if many { format!("The process of rank {}", seen.rank) } else { "The process".to_owned() };
        text.push_str(&format!(
            " {process} lived {}; its devices answered for {}, lost {}.",
            duration_text(seen.process_ms),
            duration_text(seen.device_ms),
            duration_text(seen.lost_ms)
        ));
    }
    if job.credited_micros > 0 {
        let back = full_money(job.credited_micros, &job.currency);
        text.push_str(&format!(" {back} was credited for what this does not bear out."));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended() -> Job {
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
    fn a_bill_stands_beside_what_was_seen() {
        let job = ended();
        let plain = "Billed 12 min 04 s. The process lived 12 min 04 s; its devices answered for 12 min 03 s, lost 0 s.";
        assert_eq!(borne_out(&job).as_deref(), Some(plain));
        let credited = borne_out(&Job { credited_micros: 42, ..job.clone() }).unwrap();
        assert!(credited.ends_with("$0.000042 was credited for what this does not bear out."), "{credited}");
        let gang = borne_out(&Job { nodes: 2, attempt: 3, ..job.clone() }).unwrap();
        assert!(gang.contains("over 3 attempts") && gang.contains("The process of rank 0 lived"), "{gang}");
        assert_eq!(borne_out(&Job { evidence: vec![], ..job }), None, "an older worker tells nothing");
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
    fn a_figure_is_carried_on_for_a_while_only() {
        let mut meter = Meter { metered_ms: 0, cost_micros: 0, held_micros: 9, heard_ms: 0 };
        assert_eq!(meter.carried(2_000_000, 500_000), (0, 0));
        meter.heard(&cost(1_000), 50_000);
        assert_eq!(meter.carried(2_000_000, 50_250), (1_250, 2_500));
        assert_eq!(meter.carried(2_000_000, 90_000), (1_000 + CARRIED_MS, 2_000 + 2 * CARRIED_MS));
        assert_eq!(meter.carried(2_000_000, 1), (1_000, 2_000));
        meter.heard(&cost(900), 51_000);
        assert_eq!(meter.metered_ms, 1_000);
    }
}
