//! The return of borrowed boards to the reserve for bursts, and the reserve as the reason of a wait.
//!
//! Replicas use the reserve. Then runs that borrow stop ahead of need, until as many boards as the reserve has are free
//! or on their way back. The same boards count as in the rule for starts, so a stopped job does not borrow them again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use berth_types::time::Timestamp;

use super::burst_reserve::{self, NO_BOARDS, ReserveGroup};
use super::claims::SOON_S;
use super::facts::Claim;
use super::node_pools::PreemptionRight;
use super::power::add_slots;
use super::preempt::VictimCost;
use super::reasons::Blocker;
use super::{Decision, Engine, Span, decide, place, preempt, shortage};
use berth_placement::calendar::{BookingKind, Exclusions, HANGS_S};
use berth_placement::cluster::{Models, Owner};
use berth_placement::request::Ask;

/// The blocker of a run that would find its places without the reserve.
pub(super) fn blocker(
    engine: &mut Engine,
    ask: &Ask,
    (now, until): Span,
    excluded: Exclusions<'_>,
) -> Option<Blocker> {
    if !engine.burst_reserve.binds(ask) {
        return None;
    }
    let reserve = std::mem::take(&mut engine.burst_reserve);
    let is_reason = place::find_places(engine, ask, now, until, excluded).is_some()
        || shortage::blocker(engine, ask, (now, until), excluded).is_some();
    engine.burst_reserve = reserve;
    is_reason.then_some(Blocker::BurstReserve { boards: reserve.boards() })
}

/// The boards for which one pass stops runs. The next pass continues.
const BOARDS_PER_PASS: usize = 256;

/// Stops runs that borrow until the reserve of each group is free or on its way back.
pub(super) fn restore(engine: &mut Engine, now: Timestamp, out: &mut Vec<Decision>) {
    let mut groups = burst_reserve::incomplete_groups(engine, now);
    // A run on nodes of several groups is chosen for the dedicated nodes first, and counts for the others then.
    groups.sort_by_key(|(model, dedicated_to)| (*model, Reverse(*dedicated_to)));
    for group in groups {
        let victims = find_victims(engine, group, now);
        decide::preempt(engine, victims, None, now, out);
    }
}

/// The cheapest runs whose ends complete the reserve of a group, as far as runs that borrow can.
fn find_victims(engine: &Engine, group: ReserveGroup, now: Timestamp) -> Vec<Owner> {
    let right = PreemptionRight::for_reserve();
    let stops = |owner: &Owner| {
        let claim = engine.claims.get(*owner).filter(|claim| claim.inside.is_none());
        claim.is_some_and(|claim| right.covers(&engine.cluster, claim)) && !engine.started.contains(owner)
    };
    let all = users_of_boards(engine, group, now);
    let free = all.iter().filter(|users| users.is_empty()).count();
    let missing = (engine.burst_reserve.boards() as usize).saturating_sub(free).min(BOARDS_PER_PASS);
    let boards: Vec<Vec<Owner>> =
        all.into_iter().filter(|users| !users.is_empty() && users.iter().all(stops)).collect();
    // Without a board that can come back no run of the cluster needs a price.
    if missing == 0 || boards.is_empty() {
        return Vec::new();
    }
    let mut candidates = preempt::eligible(engine, right, None, now);
    let boards = cheapest_boards(boards, &candidates, missing);
    let users: BTreeSet<Owner> = boards.iter().flatten().copied().collect();
    candidates.retain(|(_, owner)| users.contains(owner));
    let back = |owners: &[Owner]| {
        let gone: BTreeSet<&Owner> = owners.iter().collect();
        boards.iter().filter(|users| users.iter().all(|user| gone.contains(user))).count()
    };
    let wanted = boards.len().min(missing);
    preempt::cheapest_victims(candidates, &|owners| back(owners) >= wanted).unwrap_or_default()
}

/// The boards whose runs cost least, if there are very many: the search for victims tries the runs of all of them.
fn cheapest_boards(
    mut boards: Vec<Vec<Owner>>,
    candidates: &[(VictimCost, Owner)],
    missing: usize,
) -> Vec<Vec<Owner>> {
    if boards.len() <= BOARDS_PER_PASS {
        return boards;
    }
    let costs: BTreeMap<Owner, VictimCost> = candidates.iter().map(|(cost, owner)| (*owner, *cost)).collect();
    let cost = |users: &Vec<Owner>| {
        let known = users.iter().filter_map(|user| costs.get(user));
        known.fold(VictimCost::default(), |sum, cost| sum.plus(*cost))
    };
    boards.sort_by_cached_key(cost);
    boards.truncate(missing);
    boards
}

/// For each usable board of a group, the runs that keep it in use: none for a board that is free or on its way back.
/// Boards of held starts of replicas and of maintenance are absent.
fn users_of_boards(engine: &Engine, own: ReserveGroup, now: Timestamp) -> Vec<Vec<Owner>> {
    let held = burst_reserve::held_by_replicas(engine);
    let mut out = Vec::new();
    for node in burst_reserve::nodes_with(engine, Models::only(own.0)) {
        let Some(host) = engine.cluster.node(node).filter(|host| host.facts.open || host.facts.awaited)
        else {
            continue;
        };
        let mut promised = held.get(&node).copied().unwrap_or(NO_BOARDS);
        let booked = engine.calendar.on(node, now, burst_reserve::after(now));
        let booked = booked.filter(|booking| booking.kind != BookingKind::Hold);
        for place in booked.flat_map(|booking| &booking.places).filter(|place| place.node == node) {
            add_slots(&engine.cluster, node, &place.slots, &mut promised);
        }
        let mut users: Vec<Vec<Owner>> = vec![Vec::new(); host.facts.gpus.len()];
        for rank in host.ranks.iter().filter(|rank| !is_coming_back(engine.claims.get(rank.owner), now)) {
            for board in rank.slots.iter().filter_map(|slot| host.gpu_index(&slot.gpu)) {
                if let Some(users) = users.get_mut(board) {
                    users.push(rank.owner);
                }
            }
        }
        for (index, ((gpu, is_promised), users)) in
            host.facts.gpus.iter().zip(promised).zip(users).enumerate()
        {
            let is_usable = gpu.healthy && gpu.foreign.is_empty() && !is_promised;
            if is_usable && burst_reserve::group(host, index) == own {
                out.push(users);
            }
        }
    }
    out
}

/// True if a run gives its devices back soon by itself: it stops already, or its limit is near. A stopped run that hangs
/// does not count.
fn is_coming_back(claim: Option<&Claim>, now: Timestamp) -> bool {
    claim.is_some_and(|claim| {
        let is_soon = |end: Timestamp| claim.stops || end <= now.plus_seconds(SOON_S);
        claim.ends_by.is_some_and(|end| now <= end.plus_seconds(HANGS_S) && is_soon(end))
    })
}
