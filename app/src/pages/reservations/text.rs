//! Texts of reservations and quotes, and the cells of their bars.
//!
//! Pure. All figures come from the portal.

use berth_types::money::{money_text, reserved_text};
use berth_types::reservations::{
    Conflict, Quote, Reservation, ReservationPolicy, ReservationState, SpanKind, Window,
};
use berth_types::time::Timestamp;

use super::super::text::{counted, limit_text, offering_text, sentence};
use crate::ui::{BarTile, Zone};

/// Returns a duration in whole units: `2 h`, `30 min`, `1 d`.
pub fn length_text(seconds: i64) -> String {
    limit_text(u64::try_from(seconds).unwrap_or(0))
}

fn seconds(window: &Window) -> i64 {
    window.ends_at.millis_since(window.starts_at) / 1_000
}

/// Returns the duration of windows: `2 h`, `5 × 2 h`.
pub fn windows_text(windows: &[Window]) -> String {
    let length = windows.first().map(seconds).unwrap_or(0);
    match windows.len() {
        0 | 1 => length_text(length),
        many => format!("{many} × {}", length_text(length)),
    }
}

/// Returns the end of the free cancellation; `None` after that time.
pub fn free_until(policy: &ReservationPolicy, starts_at: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let until = starts_at.plus_seconds(policy.cancel_free_before_s.saturating_neg());
    (until > now).then_some(until)
}

fn cancellation_text(policy: &ReservationPolicy, starts_at: Timestamp, now: Timestamp, zone: Zone) -> String {
    let percent = policy.late_cancel_percent;
    if percent == 0 || policy.cancel_free_before_s <= 0 {
        return "Free cancellation before the start.".to_owned();
    }
    match free_until(policy, starts_at, now) {
        Some(until) => format!(
            "Free cancellation until {}. A later cancellation costs {percent} % of the price.",
            zone.wall(until).moment()
        ),
        None => format!(
            "Less than {} before the start, a cancellation costs {percent} % of the price.",
            length_text(policy.cancel_free_before_s)
        ),
    }
}

fn return_text(policy: &ReservationPolicy) -> String {
    match policy.early_release_percent {
        0 => "Early return: the remaining time is not charged.".to_owned(),
        percent if percent >= 100 => "Early return: the remaining time is charged in full.".to_owned(),
        percent => format!("Early return: the remaining time costs {percent} % of its price."),
    }
}

/// Lists the terms as sentences.
pub fn terms_text(
    policy: &ReservationPolicy,
    starts_at: Timestamp,
    now: Timestamp,
    zone: Zone,
) -> Vec<String> {
    let unused = match policy.no_show_after_s {
        Some(after) => {
            format!("Automatic return if no job runs or waits within {} of the start.", length_text(after))
        }
        None => "No automatic return: unused time is charged.".to_owned(),
    };
    vec![cancellation_text(policy, starts_at, now, zone), return_text(policy), unused]
}

/// Lists remarks about money, approval and series.
pub fn remarks(quote: &Quote, zone: Zone) -> Vec<String> {
    let total = reserved_text(quote.total_micros, &quote.currency);
    let mut out = vec![format!(
        "{total} is reserved and charged as time passes. Jobs in the reservation cost nothing more. Price version {}.",
        quote.price_version
    )];
    if quote.needs_approval {
        out.push(
            "The operator must approve a reservation of this size. Its devices are reserved meanwhile; without approval before the start, it expires free of charge."
                .to_owned(),
        );
    }
    if let (Some(first), Some(last)) = (quote.windows.first(), quote.windows.last())
        && quote.windows.len() > 1
    {
        let at = |window: &Window| zone.wall(window.starts_at);
        out.push(format!(
            "{}; the last one starts {}. Each can be cancelled separately.",
            counted(quote.windows.len(), "reservation", "reservations"),
            at(last).moment()
        ));
        if let Some(other) = quote.windows.iter().find(|w| at(w).minute_of_day() != at(first).minute_of_day())
        {
            out.push(format!(
                "They repeat in UTC. Your clocks change: from {} on, they start at {}.",
                at(other).date(),
                at(other).clock()
            ));
        }
    }
    out
}

/// Returns the missing credit; `None` for an affordable quote.
pub fn shortage_text(quote: &Quote) -> Option<String> {
    let missing = quote.total_micros.saturating_sub(quote.available_micros);
    (!quote.affordable).then(|| {
        format!(
            "{} more credit is required. Request credit from your operator, or choose a shorter time, fewer devices or a smaller offering.",
            reserved_text(missing, &quote.currency)
        )
    })
}

/// Returns a conflict as a sentence.
pub fn conflict_text(conflict: &Conflict, zone: Zone) -> String {
    let time = match conflict.ends_at {
        Some(until) => zone.window(conflict.starts_at, until),
        None => format!("from {}, end unknown", zone.wall(conflict.starts_at).moment()),
    };
    let name = conflict.name.trim();
    match (conflict.kind, conflict.reservation.is_some()) {
        (SpanKind::Reservation, true) => format!("Your reservation {name}: {time}."),
        (SpanKind::Reservation, false) => format!("Reservation of another organization: {time}."),
        (SpanKind::Maintenance, _) if name.is_empty() => format!("Maintenance: {time}."),
        (SpanKind::Maintenance, _) => format!("Maintenance ({name}): {time}."),
        (SpanKind::HeldStart, _) => format!("Held for a waiting job: {time}."),
        (SpanKind::Job, _) => match conflict.ends_at {
            Some(until) => {
                format!("Running jobs, until {} at the latest.", zone.wall(until).moment())
            }
            None => "Running jobs, end unknown.".to_owned(),
        },
    }
}

/// The introduction of the alternatives.
const NEAREST: &str = "Nearest free times of the same duration:";

/// Returns the reason of an infeasible quote; `None` for a feasible one.
pub fn unavailable_text(quote: &Quote) -> Option<String> {
    if quote.feasible {
        return None;
    }
    let refusals = || quote.refusals.iter().map(|refusal| sentence(refusal)).collect::<Vec<_>>().join(" ");
    Some(match (quote.refusals.is_empty(), quote.alternatives.is_empty()) {
        (false, true) => refusals(),
        (false, false) => format!("{} {NEAREST}", refusals()),
        (true, false) => format!("Not enough free devices at this time. {NEAREST}"),
        (true, true) => {
            "Not enough free devices at this time or near it. Choose fewer devices or another day.".to_owned()
        }
    })
}

/// Returns the reserved devices: `h100-80gb × 2`, with the number of several nodes.
pub fn devices_text(offering: &str, nodes: u32, gpus_per_node: u32) -> String {
    let devices = offering_text(offering, gpus_per_node);
    if nodes > 1 { format!("{devices}, on each of {nodes} nodes") } else { devices }
}

/// Calculates the portal's time from the elapsed time of an active reservation, without a clock.
pub fn portal_time(reservation: &Reservation) -> Option<Timestamp> {
    let devices = i64::from(reservation.nodes).saturating_mul(i64::from(reservation.gpus_per_node));
    let elapsed = reservation.elapsed_device_ms.checked_div(devices)?;
    (reservation.state == ReservationState::Active).then(|| reservation.starts_at.plus_millis(elapsed))
}

/// Returns the consequences of a cancellation or a return for work and money.
pub fn consequence(reservation: &Reservation) -> String {
    let text = |micros: i64| money_text(micros, &reservation.currency);
    let fee = reservation.cancel_fee_micros;
    let rest_micros = reservation.held_micros.saturating_sub(fee).max(0);
    // A hold that returns as a whole has the text of its reservation.
    let rest = if fee == 0 { reserved_text(rest_micros, &reservation.currency) } else { text(rest_micros) };
    if reservation.state == ReservationState::Active {
        return format!(
            "Jobs in the reservation are stopped, and its devices are released at once. Another {} is charged: the time since the last charge and {} % of the price of the remaining time. {rest} is released.",
            text(fee),
            reservation.policy.early_release_percent
        );
    }
    if fee == 0 {
        return format!(
            "The cancellation is free now. The reserved {rest} is released. Jobs waiting for the reservation never start."
        );
    }
    format!(
        "The cancellation costs {} now, {} % of the price, because the start is near. {rest} is released. Jobs waiting for the reservation never start.",
        text(fee),
        reservation.policy.late_cancel_percent
    )
}

/// Returns the used part of the elapsed time: `62 % of elapsed time used`.
pub fn used_text(reservation: &Reservation) -> String {
    if reservation.elapsed_device_ms <= 0 {
        return "not started".to_owned();
    }
    let used = reservation.used_device_ms.clamp(0, reservation.elapsed_device_ms);
    let percent = i128::from(used) * 100 / i128::from(reservation.elapsed_device_ms);
    format!("{percent} % of elapsed time used")
}

/// Returns the cause of an early end as a title.
pub fn cause_text(cause: &str) -> String {
    match cause {
        "released" => "Returned before its end".to_owned(),
        "by the operator" => "Cancelled by the operator".to_owned(),
        "declined by the operator" => "Declined by the operator".to_owned(),
        "no job ran in it" => "Returned automatically: no job ran in it".to_owned(),
        other => format!("Ended: {other}"),
    }
}

/// Returns named amounts as tiles in the given order; the cells of `rest` stay free.
pub fn part_tiles(parts: &[(&'static str, i64, u32, &'static str)], rest: i64, cells: u32) -> Vec<BarTile> {
    let amounts: Vec<i64> = parts.iter().map(|(_, amount, _, _)| *amount).chain([rest]).collect();
    let mut start = 0;
    let mut tiles = Vec::new();
    for ((name, _, hue, pattern), size) in parts.iter().zip(cell_counts(&amounts, cells)) {
        if size > 0 {
            tiles.push(BarTile {
                start,
                size,
                label: (*name).to_owned(),
                meta: String::new(),
                hue: *hue,
                pattern: (*pattern).to_owned(),
                own: true,
                foreign: false,
                level: 0,
                aria: (*name).to_owned(),
            });
        }
        start += size;
    }
    tiles
}

/// Distributes cells by amounts: each positive amount has a cell, and the sum is `cells`.
pub fn cell_counts(parts: &[i64], cells: u32) -> Vec<u32> {
    let sum: i128 = parts.iter().map(|part| i128::from(*part.max(&0))).sum();
    if sum == 0 {
        return parts.iter().map(|_| 0).collect();
    }
    let mut out: Vec<u32> = parts
        .iter()
        .map(|part| {
            let cell = i128::from(*part.max(&0)) * i128::from(cells) / sum;
            u32::try_from(cell).unwrap_or(0).max(u32::from(*part > 0))
        })
        .collect();
    let given: u32 = out.iter().sum();
    if let Some(largest) = out.iter_mut().max_by_key(|cell| **cell) {
        *largest = largest.saturating_add(cells).saturating_sub(given);
    }
    out
}

#[cfg(test)]
mod tests;
