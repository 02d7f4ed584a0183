//! Conflicts between claims and bookings, found without the engine.

use std::sync::Arc;

use berth_mig::{board_by_name, legal};

use super::*;

/// The first conflict between claims, if there is one.
pub(super) fn fault<'a>(
    claims: impl Iterator<Item = &'a Claim>,
    nodes: &BTreeMap<u128, NodeFacts>,
) -> Option<String> {
    let mut on: BTreeMap<Arc<str>, Vec<(OrgId, Part)>> = BTreeMap::new();
    let mut cpus: BTreeMap<NodeId, i64> = BTreeMap::new();
    for claim in claims {
        for rank in &claim.ranks {
            *cpus.entry(rank.node).or_default() += rank.cpu_milli;
            for slot in &rank.slots {
                on.entry(slot.gpu.clone()).or_default().push((claim.org, slot.part));
            }
        }
    }
    for node in nodes.values() {
        if cpus.get(&node.id).is_some_and(|used| *used > node.cpu_milli) {
            return Some(format!("{}: too many processors", node.id));
        }
    }
    let board = board_by_name("H100-80GB").unwrap();
    for (gpu, parts) in on {
        let mut live = Vec::new();
        let mut milli = 0;
        for (org, part) in &parts {
            match part {
                Part::Whole if parts.len() > 1 => return Some(format!("{gpu}: {parts:?}")),
                Part::Whole => {}
                Part::Share(part) => {
                    milli += part;
                    let alike = parts.iter().all(|(o, p)| o == org && matches!(p, Part::Share(_)));
                    if milli > 1_000 || !alike {
                        return Some(format!("{gpu}: {parts:?}"));
                    }
                }
                Part::Slice(instance) => {
                    if legal(board, &live, *instance).is_err() {
                        return Some(format!("{gpu}: {parts:?}"));
                    }
                    live.push(*instance);
                }
            }
        }
    }
    None
}

/// Returns true if a claim takes booked boards or slices.
pub(super) fn shares_a_board(booking: &Booking, claim: &Claim, engine: &Engine) -> bool {
    let board = board_by_name("H100-80GB").unwrap();
    let bits = |part: Part| match part {
        Part::Slice(i) => berth_mig::cover(board.profile(i.profile_id).unwrap(), i.start),
        _ => u8::MAX,
    };
    booking.places.iter().any(|place| {
        let id = find_node_id(engine.cluster(), place.node);
        let taken = claim.ranks.iter().filter(|r| Some(r.node) == id).flat_map(|r| &r.slots);
        taken.clone().any(|t| place.slots.iter().any(|s| s.gpu == t.gpu && bits(s.part) & bits(t.part) != 0))
    })
}

/// Checks that no two bookings take the same place at the same time.
pub(super) fn check_bookings(bookings: &BTreeMap<BookingId, Booking>) -> Result<(), String> {
    let board = board_by_name("H100-80GB").unwrap();
    let bits = |part: Part| match part {
        Part::Slice(i) => berth_mig::cover(board.profile(i.profile_id).unwrap(), i.start),
        _ => u8::MAX,
    };
    let slots = |b: &Booking| -> Vec<(NodeSlots, Slot)> {
        b.places.iter().flat_map(|p| p.slots.iter().map(|s| (p.clone(), s.clone()))).collect()
    };
    for (i, a) in bookings.values().enumerate() {
        for b in bookings.values().skip(i + 1).filter(|b| a.from < b.until && b.from < a.until) {
            for (_, x) in slots(a) {
                for (_, y) in slots(b) {
                    let milli = |p| if let Part::Share(m) = p { m } else { 1_000 };
                    let shared = milli(x.part) + milli(y.part) <= 1_000;
                    if x.gpu == y.gpu && bits(x.part) & bits(y.part) != 0 && !shared {
                        return Err(format!("{a:?} and {b:?}"));
                    }
                }
            }
        }
    }
    Ok(())
}
