//! The search for places: one node, or all nodes of a gang or none.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_types::time::Timestamp;

use super::burst_reserve::{self, Lendable};
use super::power::{self, Boards, Power, offer_boards};
use super::{Engine, Span};
use berth_placement::calendar::{Booking, BookingKind, Calendar, Exclusions, Expected, NodeSlots};
use berth_placement::cluster::{MAX_GPUS, Models, NodeIx, View, WHOLE_MILLI, may_use};
use berth_placement::finder::slots;
use berth_placement::networks::GangKind;
use berth_placement::pools;
use berth_placement::request::{Ask, Nearness};
use berth_placement::scoring::ScoredPlace;

/// Seconds after which a disconnected worker is expected to be connected again.
const RECONNECT_S: i64 = 60;

/// A node that could take a rank, with the cost and the offer.
pub(super) type Candidate = (u64, NodeIx, ScoredPlace);

/// The limits that the places of a run share besides its nodes: the power of racks, and the boards beyond the reserve
/// for bursts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits<'a> {
    power: Option<&'a Power>,
    lendable: Option<&'a Lendable>,
}

/// Returns true if a node has a board of one of these models.
pub(super) fn has_board_of(engine: &Engine, node: NodeIx, models: Models) -> bool {
    let Some(node) = engine.cluster.node(node) else { return false };
    (0..node.facts.gpus.len()).any(|index| models.has(node.model_ix(index)))
}

/// The view of a node for a run from now until `until`.
fn view_until(
    engine: &Engine,
    node: NodeIx,
    now: Timestamp,
    until: Timestamp,
    excluded: Exclusions<'_>,
) -> Option<View> {
    if excluded.owners.is_empty() && engine.calendar.is_free(node) {
        return engine.cluster.node(node).map(|n| *n.view());
    }
    engine.calendar.view(&engine.cluster, node, (now, until), now, excluded)
}

/// The places at which an ask can start now and stay until `until`.
pub(super) fn find_places(
    engine: &mut Engine,
    ask: &Ask,
    now: Timestamp,
    until: Timestamp,
    excluded: Exclusions<'_>,
) -> Option<Vec<NodeSlots>> {
    engine.finder.sync(&engine.cluster, &ask.shape);
    let power = power::for_run(engine, (now, until), now, excluded);
    let lendable = burst_reserve::for_run(engine, ask, (now, until), now, excluded);
    let limits = Limits { power: power.as_ref(), lendable: lendable.as_ref() };
    let offer = |node: NodeIx| {
        let view = view_until(engine, node, now, until, excluded)?;
        limited_offer(engine, node, &view, ask, limits)
    };
    let mut candidates: Vec<Candidate> = Vec::new();
    if ask.nodes == 1 {
        // Without bookings, budgets and a reserve the answer of the finder suffices.
        let reserved = |node: NodeIx| limits.lendable.is_some() && Lendable::counts(&engine.cluster, node);
        let known = |node: NodeIx| engine.calendar.is_free(node) && power.is_none() && !reserved(node);
        let near = |node: NodeIx| domain(engine, node, ask.topology).is_some();
        let fits = |node: NodeIx| near(node) && (known(node) || offer(node).is_some());
        let node = engine.finder.best(&engine.cluster, &ask.shape, &fits)?;
        candidates.push((0, node, offer(node)?));
    } else {
        for (cost, node) in engine.finder.all(&engine.cluster, &ask.shape) {
            candidates.extend(offer(node).map(|offer| (cost, node, offer)));
        }
    }
    let view = |node| view_until(engine, node, now, until, excluded);
    let chosen = gather_low_power(engine, ask, candidates, limits, view)?;
    Some(node_slots(engine, ask, &chosen))
}

/// Gathers candidates; if racks cannot feed the cheapest offers together, those with the least power.
fn gather_low_power(
    engine: &Engine,
    ask: &Ask,
    mut candidates: Vec<Candidate>,
    limits: Limits<'_>,
    view: impl Fn(NodeIx) -> Option<View>,
) -> Option<Vec<Candidate>> {
    let chosen = gather(engine, ask, candidates.clone(), limits);
    let Some(power) = limits.power.filter(|_| chosen.is_none() && ask.nodes > 1) else { return chosen };
    for (_, node, offer) in &mut candidates {
        if let Some(low_power) =
            view(*node).and_then(|view| lowest_power_offer(engine, *node, &view, ask, power))
        {
            *offer = low_power;
        }
    }
    gather(engine, ask, candidates, limits)
}

/// The nodes on which an ask could start at some time and stay, by a search of all given nodes.
pub(super) fn find_places_at(
    engine: &Engine,
    ask: &Ask,
    nodes: &[NodeIx],
    span: Span,
    now: Timestamp,
    excluded: Exclusions<'_>,
) -> Option<Vec<Candidate>> {
    let power = power::for_run(engine, span, now, excluded);
    let lendable = burst_reserve::for_run(engine, ask, span, now, excluded);
    let limits = Limits { power: power.as_ref(), lendable: lendable.as_ref() };
    let offers = nodes.iter().filter_map(|node| {
        let view = engine.calendar.view(&engine.cluster, *node, span, now, excluded)?;
        let offer = limited_offer(engine, *node, &view, ask, limits)?;
        domain(engine, *node, ask.topology)?;
        Some((offer.cost, *node, offer))
    });
    // For one node the best of the first few places is good enough.
    let candidates = if ask.nodes == 1 { offers.take(8).collect() } else { offers.collect() };
    let view = |node| engine.calendar.view(&engine.cluster, node, span, now, excluded);
    gather_low_power(engine, ask, candidates, limits, view)
}

/// The offer of a node within limits.
fn limited_offer(
    engine: &Engine,
    node: NodeIx,
    view: &View,
    ask: &Ask,
    limits: Limits<'_>,
) -> Option<ScoredPlace> {
    let offer = powered_offer(engine, node, view, ask, limits.power)?;
    let admits = |lendable: &Lendable| lendable.admits(&engine.cluster, node, &offer_boards(&offer));
    limits.lendable.is_none_or(admits).then_some(offer)
}

/// The cheapest offer of a node; if its rack cannot feed that offer, the offer with the least added
/// power.
fn powered_offer(
    engine: &Engine,
    node: NodeIx,
    view: &View,
    ask: &Ask,
    power: Option<&Power>,
) -> Option<ScoredPlace> {
    let offer = engine.finder.offer(&engine.cluster, view, &ask.shape)?;
    match power.filter(|p| !p.feeds(&engine.cluster, node, &offer_boards(&offer))) {
        Some(power) => lowest_power_offer(engine, node, view, ask, power),
        None => Some(offer),
    }
}

/// The offer of a node with the least added power, if its rack can feed it.
fn lowest_power_offer(
    engine: &Engine,
    node: NodeIx,
    view: &View,
    ask: &Ask,
    power: &Power,
) -> Option<ScoredPlace> {
    let mut order: Vec<(i64, usize)> = (0..view.gpus().len().min(MAX_GPUS))
        .map(|index| {
            let only: Boards = std::array::from_fn(|i| i == index);
            (power.added(&engine.cluster, node, &only), index)
        })
        .collect();
    order.sort_unstable();
    let islands = if ask.shape.nvlink { view.islands() } else { vec![None] };
    islands.into_iter().find_map(|island| low_power_offer_on(engine, node, view, ask, power, &order, island))
}

/// An offer on the boards with the least added power in `order`, if the rack can feed it.
fn low_power_offer_on(
    engine: &Engine,
    node: NodeIx,
    view: &View,
    ask: &Ask,
    power: &Power,
    order: &[(i64, usize)],
    island: Option<u8>,
) -> Option<ScoredPlace> {
    let mut open: Boards = [false; MAX_GPUS];
    for (_, index) in order {
        if let Some(board) = open.get_mut(*index) {
            *board = true;
        }
        let mut open_view = *view;
        open_view.map_gpus(|i, gpu| {
            let is_open = open.get(i).copied().unwrap_or(false) && island.is_none_or(|n| n == gpu.island);
            if is_open { *gpu } else { berth_placement::cluster::NO_GPU }
        });
        if let Some(offer) = engine.finder.offer(&engine.cluster, &open_view, &ask.shape) {
            return Some(offer).filter(|o| power.feeds(&engine.cluster, node, &offer_boards(o)));
        }
    }
    None
}

/// One candidate for each node of an ask, within the required topology, one kind of network between ranks and these
/// limits; all or none.
pub(super) fn gather(
    engine: &Engine,
    ask: &Ask,
    candidates: Vec<Candidate>,
    limits: Limits<'_>,
) -> Option<Vec<Candidate>> {
    let count = ask.nodes as usize;
    let mut domains: BTreeMap<(Option<Arc<str>>, Option<GangKind>), Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        if let Some(domain) = domain(engine, candidate.1, ask.topology) {
            let kind = gang_kind(engine, candidate.1, ask);
            domains.entry((domain, kind)).or_default().push(candidate);
        }
    }
    // The safest network, then the smallest domain that suffices: larger ones stay free for larger jobs.
    let mut domains: Vec<_> = domains.into_iter().filter(|(_, found)| found.len() >= count).collect();
    domains.sort_by_key(|((_, kind), found)| (Reverse(*kind), found.len()));
    domains.into_iter().find_map(|(_, found)| gather_limited(engine, found, count, limits))
}

/// The cheapest candidates within limits together; if too few remain, those with the least added power and the fewest
/// boards of the reserve.
fn gather_limited(
    engine: &Engine,
    mut candidates: Vec<Candidate>,
    count: usize,
    limits: Limits<'_>,
) -> Option<Vec<Candidate>> {
    let cluster = &engine.cluster;
    candidates.sort_by_key(|(cost, node, _)| (*cost, *node));
    let Limits { power, lendable } = limits;
    if power.is_none() && lendable.is_none() {
        candidates.truncate(count);
        return Some(candidates);
    }
    let within = |order: &[Candidate]| {
        let (mut power, mut lendable) = (power.cloned(), lendable.cloned());
        let mut chosen: Vec<Candidate> = Vec::new();
        for candidate in order {
            let (node, boards) = (candidate.1, offer_boards(&candidate.2));
            let fits = power.as_ref().is_none_or(|power| power.feeds(cluster, node, &boards))
                && lendable.as_ref().is_none_or(|lendable| lendable.admits(cluster, node, &boards));
            if chosen.len() < count && fits {
                power.iter_mut().for_each(|power| power.draw(cluster, node, &boards));
                lendable.iter_mut().for_each(|lendable| lendable.lend(cluster, node, &boards));
                chosen.push(candidate.clone());
            }
        }
        (chosen.len() == count).then_some(chosen)
    };
    within(&candidates).or_else(|| {
        candidates.sort_by_key(|(cost, node, offer)| {
            let boards = offer_boards(offer);
            let added = power.map_or(0, |power| power.added(cluster, *node, &boards));
            let taken = lendable.map_or(0, |lendable| lendable.taken(cluster, *node, &boards));
            (added, taken, *cost, *node)
        });
        within(&candidates)
    })
}

/// The network domain of a node for a topology. The outer `None`: the node has no label for it, so it
/// cannot be used.
pub(super) fn domain(engine: &Engine, node: NodeIx, topology: Nearness) -> Option<Option<Arc<str>>> {
    let facts = &engine.cluster.node(node)?.facts;
    match topology {
        Nearness::Any => Some(None),
        Nearness::SameSwitch => facts.switch.clone().map(Some),
        Nearness::SameRack => facts.rack.clone().map(Some),
    }
}

/// The network between ranks that a node gives to an ask; `None` for an ask that needs none.
fn gang_kind(engine: &Engine, node: NodeIx, ask: &Ask) -> Option<GangKind> {
    let node = engine.cluster.node(node).filter(|_| ask.shape.network.is_gang())?;
    Some(node.facts.networks.gang)
}

/// The slots of chosen candidates.
pub(super) fn node_slots(engine: &Engine, ask: &Ask, chosen: &[Candidate]) -> Vec<NodeSlots> {
    let named = |(_, node, offer): &Candidate| NodeSlots {
        node: *node,
        slots: slots(&engine.cluster, *node, &ask.shape, offer),
    };
    chosen.iter().map(named).collect()
}

/// The places for a booking in a calendar.
pub(super) fn find_places_in(
    engine: &Engine,
    calendar: &Calendar,
    ask: &Ask,
    (from, until): Span,
    now: Timestamp,
) -> Option<Vec<NodeSlots>> {
    let each = i64::from(ask.shape.milli(engine.cluster.models()));
    let power = power::beside(engine, calendar, (from, until), now);
    let excluded = beside_booking(from, now);
    let offers = all_nodes(engine).filter_map(|node| {
        if !calendar.may_fit(node, from, until, each, nodes_milli(engine, &[node])) {
            return None;
        }
        let view = calendar.view(&engine.cluster, node, (from, until), now, excluded)?;
        let offer = powered_offer(engine, node, &view, ask, power.as_ref())?;
        Some((offer.cost, node, offer))
    });
    let limits = Limits { power: power.as_ref(), lendable: None };
    let chosen = gather(engine, ask, offers.collect(), limits)?;
    Some(node_slots(engine, ask, &chosen))
}

/// The exclusions of a new booking that begins then. A held start is an obstacle like any other booking.
pub(super) fn beside_booking(from: Timestamp, now: Timestamp) -> Exclusions<'static> {
    let expected = if expects_back(from, now) { Expected::All } else { Expected::Nobody };
    Exclusions { expected, ..Exclusions::default() }
}

/// All nodes of the cluster.
pub(super) fn all_nodes(engine: &Engine) -> impl Iterator<Item = NodeIx> + use<> {
    (0..engine.cluster.nodes().len()).filter_map(|n| u32::try_from(n).ok()).map(NodeIx)
}

/// True if a booking that begins then may use a node whose worker is disconnected now.
pub(super) fn expects_back(from: Timestamp, now: Timestamp) -> bool {
    from > now.plus_seconds(RECONNECT_S)
}

/// Returns true if all places of a run are free for its whole span.
pub(super) fn is_free_for(
    engine: &Engine,
    run: &Booking,
    ask: &Ask,
    now: Timestamp,
    excluded: Exclusions<'_>,
) -> bool {
    let power = power::for_run(engine, (run.from, run.until), now, excluded);
    let fed = power.is_none_or(|power| power.feeds_all(&engine.cluster, &run.places));
    let lendable = burst_reserve::for_run(engine, ask, (run.from, run.until), now, excluded);
    let lent = lendable.is_none_or(|lendable| lendable.admits_all(&engine.cluster, &run.places));
    let suits = |place: &NodeSlots| {
        engine.cluster.node(place.node).is_some_and(|node| {
            (!ask.shape.images || node.facts.images)
                && ask.shape.suits_rdma(node.facts.rdma_boards)
                && ask.shape.suits_networks(node.facts.networks)
                && pools::takes(node.facts.pool, ask.shape.work)
                && (ask.shape.storage & !node.view().storage) == 0
        })
    };
    let mut kinds = run.places.iter().map(|place| gang_kind(engine, place.node, ask));
    let first = kinds.next();
    let has_one_kind = kinds.all(|kind| Some(kind) == first);
    fed && lent
        && has_one_kind
        && run.places.iter().all(suits)
        && still_fits(engine, &engine.calendar, run, now, excluded)
}

/// The nodes that could hold one rank while empty, open and healthy.
pub(super) fn able_nodes(engine: &Engine, ask: &Ask) -> Vec<NodeIx> {
    all_nodes(engine).filter(|node| is_able(engine, *node, ask)).collect()
}

/// True if a node could hold one rank while empty, open and healthy.
pub(super) fn is_able(engine: &Engine, node: NodeIx, ask: &Ask) -> bool {
    let view = engine.cluster.view_empty(node);
    view.is_some_and(|view| engine.finder.offer(&engine.cluster, &view, &ask.shape).is_some())
}

/// True if a node takes an ask's kind of work and the work of its organization.
pub(super) fn takes(engine: &Engine, node: NodeIx, ask: &Ask) -> bool {
    let host = engine.cluster.node(node);
    host.is_some_and(|host| {
        ask.shape.tenancy.admits(host.view().dedicated_to) && pools::takes(host.facts.pool, ask.shape.work)
    })
}

/// The thousandths of boards on some nodes.
pub(super) fn nodes_milli(engine: &Engine, nodes: &[NodeIx]) -> i64 {
    let boards = nodes.iter().filter_map(|n| engine.cluster.node(*n)).map(|n| n.facts.gpus.len());
    boards.sum::<usize>() as i64 * i64::from(WHOLE_MILLI)
}

/// Returns true if a booking fits at its places.
pub(super) fn still_fits(
    engine: &Engine,
    calendar: &Calendar,
    booking: &Booking,
    now: Timestamp,
    excluded: Exclusions<'_>,
) -> bool {
    let window = (booking.from, booking.until);
    let is_maintenance = booking.kind == BookingKind::Maintenance;
    !booking.places.is_empty()
        && booking.places.iter().all(|place| {
            let pool = engine.cluster.node(place.node).map(|node| node.facts.pool).unwrap_or_default();
            // A reservation keeps its boards.
            let is_hold = booking.kind == BookingKind::Hold;
            let is_refused = booking.ask.is_some_and(|ask| is_hold && !pools::takes(pool, ask.shape.work));
            if is_refused || !is_maintenance && !may_use(&engine.cluster, place.node, booking.org) {
                return false;
            }
            let view = calendar.view(&engine.cluster, place.node, window, now, excluded);
            let ask = booking.ask.map(|a| (a.shape.cpu_milli, a.shape.memory_mib)).unwrap_or_default();
            view.is_some_and(|mut view| {
                view.cpu_milli >= ask.0
                    && view.memory_mib >= ask.1
                    && place
                        .slots
                        .iter()
                        .all(|slot| engine.cluster.occupy_slot(&mut view, place.node, slot, booking.org))
            })
        })
}
