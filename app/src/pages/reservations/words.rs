//! Terms, conflicts and shares of a reservation in words and cells.
//!
//! Pure; must not promise what the portal did not: every figure is one that it gave.

use berth_types::money::money_text;
use berth_types::reservations::{
    Conflict, Quote, Reservation, ReservationPolicy, ReservationState, SpanKind, Window,
};
use berth_types::time::Timestamp;

use super::super::words::{counted, limit_text, offering_text, sentence};
use super::zone::Zone;
use crate::ui::BarTile;

/// A length of time in whole units: `2 h`, `30 min`, `1 d`.
pub fn length_text(seconds: i64) -> String {
    limit_text(u64::try_from(seconds).unwrap_or(0))
}

fn length_of(window: &Window) -> i64 {
    window.ends_at.millis_since(window.starts_at) / 1_000
}

/// `2 h`, `5 × 2 h`.
pub fn windows_text(windows: &[Window]) -> String {
    let length = windows.first().map(length_of).unwrap_or(0);
    match windows.len() {
        0 | 1 => length_text(length),
        many => format!("{many} × {}", length_text(length)),
    }
}

/// Until when it can be cancelled free of charge; `None` when that is over before it could be.
pub fn free_until(policy: &ReservationPolicy, starts_at: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let until = starts_at.plus_seconds(policy.cancel_free_before_s.saturating_neg());
    (until > now).then_some(until)
}

fn cancelling(policy: &ReservationPolicy, starts_at: Timestamp, now: Timestamp, zone: Zone) -> String {
    let percent = policy.late_cancel_percent;
    if percent == 0 || policy.cancel_free_before_s <= 0 {
        return "Cancelled before it begins, it costs nothing.".to_owned();
    }
    match free_until(policy, starts_at, now) {
        Some(until) => format!(
            "Cancel it free of charge until {}. Cancelled later, it costs {percent} % of its price.",
            zone.wall(until).moment()
        ),
        None => format!(
            "It begins in less than {}, so cancelling it costs {percent} % of its price.",
            length_text(policy.cancel_free_before_s)
        ),
    }
}

fn giving_back(policy: &ReservationPolicy) -> String {
    match policy.early_release_percent {
        0 => "Given back while it runs, what is left of it costs nothing.".to_owned(),
        percent if percent >= 100 => {
            "Given back while it runs, what is left of it is charged in full.".to_owned()
        }
        percent => format!("Given back while it runs, what is left of it costs {percent} % of its price."),
    }
}

/// What holds besides the price, a sentence each.
pub fn terms(policy: &ReservationPolicy, starts_at: Timestamp, now: Timestamp, zone: Zone) -> Vec<String> {
    let unused = match policy.no_show_after_s {
        Some(after) => format!(
            "If no job runs in it within {} of its begin, it is given back by itself.",
            length_text(after)
        ),
        None => "It stays yours to its end, used or not.".to_owned(),
    };
    vec![cancelling(policy, starts_at, now, zone), giving_back(policy), unused]
}

/// What is true of a quote besides the terms: money, approval, repeats.
pub fn remarks(quote: &Quote, zone: Zone) -> Vec<String> {
    let total = money_text(quote.total_micros, &quote.currency);
    let mut out = vec![format!(
        "{total} is set aside and charged as time passes. Jobs inside it cost nothing more. Price version {}.",
        quote.price_version
    )];
    if quote.needs_approval {
        out.push(
            "It is large enough to need the operator's approval. Its devices are held meanwhile; if nobody approves before it begins, it ends and costs nothing."
                .to_owned(),
        );
    }
    if let (Some(first), Some(last)) = (quote.windows.first(), quote.windows.last())
        && quote.windows.len() > 1
    {
        let at = |window: &Window| zone.wall(window.starts_at);
        out.push(format!(
            "{}, the last begins {}. Each can be cancelled by itself.",
            counted(quote.windows.len(), "reservation", "reservations"),
            at(last).moment()
        ));
        if let Some(other) = quote.windows.iter().find(|w| at(w).minute_of_day() != at(first).minute_of_day())
        {
            out.push(format!(
                "They repeat by UTC. Your clocks change meanwhile: from {} on they begin at {}.",
                at(other).date(),
                at(other).clock()
            ));
        }
    }
    out
}

/// How much is missing, and what helps.
pub fn shortage(quote: &Quote) -> Option<String> {
    let missing = quote.total_micros.saturating_sub(quote.available_micros);
    (!quote.affordable).then(|| {
        format!(
            "You are short of {}. Choose less time, fewer devices or a smaller offering, or ask your operator for credit.",
            money_text(missing, &quote.currency)
        )
    })
}

/// What is in the way, in a sentence.
pub fn conflict_text(conflict: &Conflict, zone: Zone) -> String {
    let time = match conflict.ends_at {
        Some(until) => zone.window(conflict.starts_at, until),
        None => format!("from {}, nobody knows until when", zone.wall(conflict.starts_at).moment()),
    };
    let name = conflict.name.trim();
    match (conflict.kind, conflict.reservation.is_some()) {
        (SpanKind::Reservation, true) => format!("Your own reservation {name}: {time}."),
        (SpanKind::Reservation, false) => format!("A reservation of another organization: {time}."),
        (SpanKind::Maintenance, _) if name.is_empty() => format!("Maintenance: {time}."),
        (SpanKind::Maintenance, _) => format!("Maintenance, {name}: {time}."),
        (SpanKind::HeldStart, _) => format!("The start of a job that waits: {time}."),
        (SpanKind::Job, _) => match conflict.ends_at {
            Some(until) => {
                format!("Jobs that may run until {}.", zone.wall(until).moment())
            }
            None => "Jobs that run, and nobody knows until when.".to_owned(),
        },
    }
}

/// What a list of other windows begins with.
const NEAREST: &str = "The nearest free times of the same length:";

/// Why there is no room; `None` where there is.
pub fn no_room(quote: &Quote) -> Option<String> {
    if quote.feasible {
        return None;
    }
    let refused = || quote.refusals.iter().map(|refusal| sentence(refusal)).collect::<Vec<_>>().join(" ");
    Some(match (quote.refusals.is_empty(), quote.alternatives.is_empty()) {
        (false, true) => refused(),
        (false, false) => format!("{} {NEAREST}", refused()),
        (true, false) => format!("Not all of it is free then. {NEAREST}"),
        (true, true) => {
            "Not all of it is free then, and no free time of the same length is near. Ask for less, or for another day."
                .to_owned()
        }
    })
}

/// What was reserved: `h100-80gb × 2`, and the nodes where they are several.
pub fn ordered(offering: &str, nodes: u32, gpus_per_node: u32) -> String {
    let devices = offering_text(offering, gpus_per_node);
    if nodes > 1 { format!("{devices}, on each of {nodes} nodes") } else { devices }
}

/// The present by the portal's clock, as far as a reservation that runs tells it: what has passed of it
/// since its begin. It needs no clock of the page's own.
pub fn seen_at(reservation: &Reservation) -> Option<Timestamp> {
    let devices = i64::from(reservation.nodes).saturating_mul(i64::from(reservation.gpus_per_node));
    let passed = reservation.elapsed_device_ms.checked_div(devices)?;
    (reservation.state == ReservationState::Active).then(|| reservation.starts_at.plus_millis(passed))
}

/// What taking it back now means for work and money.
pub fn consequence(reservation: &Reservation) -> String {
    let text = |micros: i64| money_text(micros, &reservation.currency);
    let fee = reservation.cancel_fee_micros;
    let rest = text(reservation.held_micros.saturating_sub(fee).max(0));
    if reservation.state == ReservationState::Active {
        return format!(
            "Jobs inside it are stopped, and its devices go back at once. It costs another {}: what passed since the last charge, and {} % of what is left. {rest} comes back to your balance.",
            text(fee),
            reservation.policy.early_release_percent
        );
    }
    if fee == 0 {
        return format!(
            "It costs nothing now. The {rest} set aside comes back to your balance. Jobs that wait for it never start."
        );
    }
    format!(
        "It costs {} now, {} % of its price, since it begins soon. {rest} comes back to your balance. Jobs that wait for it never start.",
        text(fee),
        reservation.policy.late_cancel_percent
    )
}

/// How much of what has passed was used: `62 % used`.
pub fn used_text(reservation: &Reservation) -> String {
    if reservation.elapsed_device_ms <= 0 {
        return "not begun".to_owned();
    }
    let used = reservation.used_device_ms.clamp(0, reservation.elapsed_device_ms);
    let percent = i128::from(used) * 100 / i128::from(reservation.elapsed_device_ms);
    format!("{percent} % used")
}

/// Why it ended before its time, as a heading.
pub fn cause_text(cause: &str) -> String {
    match cause {
        "released" => "It was given back before its end".to_owned(),
        "by the operator" => "The operator took it back".to_owned(),
        "declined by the operator" => "The operator declined it".to_owned(),
        "nobody used it" => "It was given back, since no job ran in it".to_owned(),
        other => format!("It is over: {other}"),
    }
}

/// Named parts of a whole as tiles, in the order given; `rest` stays free.
pub fn part_tiles(parts: &[(&'static str, i64, u32, &'static str)], rest: i64, cells: u32) -> Vec<BarTile> {
    let amounts: Vec<i64> = parts.iter().map(|(_, amount, _, _)| *amount).chain([rest]).collect();
    let mut start = 0;
    let mut tiles = Vec::new();
    for ((name, _, hue, pattern), size) in parts.iter().zip(shares(&amounts, cells)) {
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

/// Some parts of a whole as cells: every part that is anything has a cell, and all cells are given out.
pub fn shares(parts: &[i64], cells: u32) -> Vec<u32> {
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
