//! Timeline of a reservation with the past and the still possible steps.

use berth_types::reservations::{Reservation, ReservationState};
use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::live::LiveReservation;
use super::text::free_until;
use crate::ui::Zone;

/// The position of a step in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Done,
    Now,
    Next,
}

/// A step with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    name: &'static str,
    at: Timestamp,
    phase: Phase,
    /// The state with its colour.
    state: &'static str,
}

fn steps(one: &Reservation, now: Option<Timestamp>) -> Vec<Step> {
    use Phase::{Done, Next, Now};
    let step = |name: &'static str, at: Timestamp, phase: Phase, state: &'static str| Step {
        name,
        at,
        phase,
        state,
    };
    let over = |name: &'static str| step(name, one.ended_at.unwrap_or(one.ends_at), Done, one.state.name());
    let made = |phase: Phase| step("reserved", one.created_at, phase, "scheduled");
    let starts = step("starts", one.starts_at, Next, "active");
    let ends = step("ends", one.ends_at, Next, "ended");
    match one.state {
        ReservationState::Pending => {
            vec![step("pending approval", one.created_at, Now, "pending"), starts, ends]
        }
        ReservationState::Scheduled => {
            let free = free_until(&one.policy, one.starts_at, now.unwrap_or(one.created_at));
            let free = free.map(|at| step("free cancellation until", at, Next, "cancelled"));
            [Some(made(Now)), free, Some(starts), Some(ends)].into_iter().flatten().collect()
        }
        ReservationState::Active => {
            vec![made(Done), step("started", one.starts_at, Now, "active"), ends]
        }
        ReservationState::Ended => {
            vec![made(Done), step("started", one.starts_at, Done, "active"), over("ended")]
        }
        ReservationState::Cancelled => vec![made(Done), over("cancelled")],
        ReservationState::Expired => vec![made(Done), over("expired")],
    }
}

/// The timeline.
#[component]
pub fn Steps(
    /// The reservation.
    live: LiveReservation,
) -> impl IntoView {
    let all = Memo::new(move |_| {
        let now = live.now.get();
        live.one.with(|one| steps(one, now))
    });
    let items = move || all.get().into_iter().map(|step| item(step, live.zone)).collect::<Vec<AnyView>>();
    view! { <ol class="timeline" aria-label="Timeline of this reservation">{items}</ol> }
}

fn item(step: Step, zone: RwSignal<Zone>) -> AnyView {
    let place = match step.phase {
        Phase::Done => "timeline__step--done",
        Phase::Now => "timeline__step--now",
        Phase::Next => "timeline__step--next",
    };
    let class = format!("timeline__step {place} state--{}", step.state);
    let current = (step.phase == Phase::Now).then_some("step");
    let exact = step.at.to_string();
    view! {
        <li class=class aria-current=current>
            <span class="timeline__dot">
                <svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true" focusable="false">
                    {dot(step.phase)}
                </svg>
            </span>
            <span class="timeline__name">{step.name}</span>
            <time class="timeline__time" datetime=exact.clone() title=exact>
                {move || zone.get().wall(step.at).moment()}
            </time>
        </li>
    }
    .into_any()
}

fn dot(phase: Phase) -> AnyView {
    match phase {
        Phase::Done => view! { <circle cx="6" cy="6" r="5" fill="currentColor"></circle> }.into_any(),
        Phase::Now => view! {
            <circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"></circle>
            <circle cx="6" cy="6" r="1.75" fill="currentColor"></circle>
        }
        .into_any(),
        Phase::Next => {
            view! { <circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"></circle> }
                .into_any()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(state: ReservationState) -> Reservation {
        serde_json::from_value(serde_json::json!({
            "id": "res_00000000000000000000000001", "kind": "reservation", "name": "n", "state": state,
            "nodes": 1, "gpus_per_node": 1, "topology": "any", "starts_at": "2026-11-24T09:00:00Z",
            "ends_at": "2026-11-24T11:00:00Z", "ended_at": "2026-11-24T10:00:00Z", "degraded_milli": 0,
            "devices": [], "nano_per_second": 1, "price_version": 1, "currency": "USD", "total_micros": 1,
            "held_micros": 1, "posted_micros": 0, "credited_micros": 0, "elapsed_device_ms": 0,
            "used_device_ms": 0, "cancel_fee_micros": 0, "created_at": "2026-11-20T09:00:00Z",
            "created_by": "a", "generation": 1,
            "policy": berth_types::reservations::ReservationPolicy::default(),
        }))
        .unwrap()
    }

    fn names(state: ReservationState, now: &str) -> Vec<(&'static str, Phase)> {
        let now = now.parse().unwrap();
        steps(&one(state), Some(now)).into_iter().map(|step| (step.name, step.phase)).collect()
    }

    #[test]
    fn impossible_steps_are_absent() {
        use Phase::{Done, Next, Now};
        let free = names(ReservationState::Scheduled, "2026-11-21T09:00:00Z");
        assert_eq!(
            free,
            [("reserved", Now), ("free cancellation until", Next), ("starts", Next), ("ends", Next)]
        );
        let late = names(ReservationState::Scheduled, "2026-11-24T08:00:00Z");
        assert_eq!(late, [("reserved", Now), ("starts", Next), ("ends", Next)]);
        let active = names(ReservationState::Active, "2026-11-24T09:30:00Z");
        assert_eq!(active, [("reserved", Done), ("started", Now), ("ends", Next)]);
        let cancelled = names(ReservationState::Cancelled, "2026-11-24T09:30:00Z");
        assert_eq!(cancelled, [("reserved", Done), ("cancelled", Done)]);
        let last = steps(&one(ReservationState::Ended), None).pop().unwrap();
        assert_eq!((last.name, last.at.to_string().as_str()), ("ended", "2026-11-24T10:00:00Z"));
    }
}
