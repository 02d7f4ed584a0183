//! The lack of power of runs and bookings that would find their places without power budgets.

use berth_types::time::Timestamp;

use super::reasons::{Blocker, PowerShortage};
use super::{Engine, Span, place, power};
use berth_placement::calendar::Exclusions;
use berth_placement::request::Ask;

/// The largest lack of power for an ask that would find its places without power budgets.
fn for_run(
    engine: &mut Engine,
    ask: &Ask,
    (now, until): Span,
    excluded: Exclusions<'_>,
) -> Option<PowerShortage> {
    let power = power::for_run(engine, (now, until), now, excluded)?;
    let budgets = std::mem::take(&mut engine.racks);
    let places = place::find_places(engine, ask, now, until, excluded);
    engine.racks = budgets;
    power.largest_shortage(&engine.cluster, &engine.racks, &places?)
}

/// The blocker of a run that lacks power: now, or from the begin of a booking on.
pub(super) fn blocker(
    engine: &mut Engine,
    ask: &Ask,
    (now, until): Span,
    excluded: Exclusions<'_>,
) -> Option<Blocker> {
    let short = for_run(engine, ask, (now, until), excluded)?;
    let moment = now.plus_seconds(1);
    if place::find_places(engine, ask, now, moment, excluded).is_none() {
        return Some(Blocker::Power(for_run(engine, ask, (now, moment), excluded).unwrap_or(short)));
    }
    let others = engine.calendar.iter().filter(|b| !excluded.bookings.contains(&b.id));
    let mut begins: Vec<Timestamp> =
        others.map(|b| b.from).filter(|from| *from > now && *from < until).collect();
    begins.sort_unstable();
    begins.dedup();
    let first = begins
        .into_iter()
        .find(|begin| place::find_places(engine, ask, now, begin.plus_seconds(1), excluded).is_none());
    Some(first.map_or(Blocker::Power(short), |begins| Blocker::Promised { begins }))
}

/// The largest lack of power for a booking that would find its places without power budgets.
pub(super) fn for_booking(
    engine: &mut Engine,
    ask: &Ask,
    span: Span,
    now: Timestamp,
) -> Option<PowerShortage> {
    let power = power::beside(engine, &engine.calendar, span, now)?;
    let budgets = std::mem::take(&mut engine.racks);
    let places = place::find_places_in(engine, &engine.calendar, ask, span, now);
    engine.racks = budgets;
    power.largest_shortage(&engine.cluster, &engine.racks, &places?)
}
