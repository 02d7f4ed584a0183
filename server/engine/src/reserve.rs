//! Bookings of future capacity: quotes, repacking and alternatives.

use std::collections::BTreeMap;

use berth_types::ids::{NodeId, OrgId};
use berth_types::time::Timestamp;

use super::place::Limits;
use super::reasons::PowerShortage;
use super::{Engine, find_node_id, place, shortage};
use berth_placement::calendar::{Booking, BookingKind, Calendar, Exclusions, NodeSlots};
use berth_placement::cluster::{BookingId, NodeIx, Owner, Slot, group_milli, tenancy};
use berth_placement::obstacle_times::ObstacleTimes;
use berth_placement::request::{Ask, InvalidRequest, Request};
use berth_placement::tenancy::Tenancy;
use berth_placement::timeline::Timeline;

/// The longest window, and the latest begin of a window from now: a year.
pub const MAX_S: i64 = 366 * 86_400;
/// Alternative windows of a refusal on either side.
const ALTERNATIVES: usize = 3;
/// The longest distance from the first later alternative to another one.
const ALTERNATIVES_SPAN_S: i64 = 14 * 86_400;
/// Windows that are tried for alternatives on either side.
const MAX_TRIED: usize = 48;
/// The largest number of bookings that are all placed anew.
const MAX_REPACKED: usize = 24;
/// The number of nodes to try to clear if there are more bookings.
const MAX_CLEARED: usize = 6;

/// A half open span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub from: Timestamp,
    pub until: Timestamp,
}

/// The reason for a refused quote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    InvalidRequest(#[from] InvalidRequest),
    #[error("the window is empty, too long, in the past, or more than a year ahead")]
    Window,
    #[error("the cluster has too few suitable devices, even without other use")]
    Never,
    #[error("booked or in use by others at that time")]
    Taken {
        conflicts: Vec<BookingId>,
        /// The number of attempts that may still run then on suitable boards, and their last end (`None`:
        /// unknown).
        running: u32,
        running_until: Option<Timestamp>,
        /// The lack of power of a rack, if only power is short. Bookings count against it; present runs do
        /// not.
        power: Option<PowerShortage>,
        /// The number of suitable nodes that are disconnected and not expected back before the window.
        away: u32,
        alternatives: Vec<Window>,
    },
}

/// Slots by the ids of their nodes.
pub type NamedSlots = Vec<(NodeId, Vec<Slot>)>;

impl Engine {
    /// The ask and the places of a request for a window, and the later bookings that would move for it.
    ///
    /// # Errors
    /// The window or the request is invalid, or the places are taken.
    pub fn quote(
        &mut self,
        request: &Request,
        org: OrgId,
        window: Window,
        now: Timestamp,
    ) -> Result<(Ask, Vec<NodeSlots>, Vec<Booking>), Refusal> {
        let Window { from, until } = window;
        let seconds = (until.micros() - from.micros()) / 1_000_000;
        // The present second has not passed yet.
        if from < now.plus_seconds(-1) || seconds <= 0 || seconds > MAX_S || from > now.plus_seconds(MAX_S) {
            return Err(Refusal::Window);
        }
        let ask = Ask::from_request(request, org, &mut self.cluster)?;
        if let Some(places) = find_window_places(self, &ask, window, now) {
            return Ok((ask, places, Vec::new()));
        }
        let able: Vec<NodeIx> = place::able_nodes(self, &ask);
        if able.len() < ask.nodes as usize {
            return Err(Refusal::Never);
        }
        if let Some((places, moved)) = repack(self, &ask, org, window, &able, now) {
            return Ok((ask, places, moved));
        }
        let mut conflicts: Vec<BookingId> = able
            .iter()
            .flat_map(|node| self.calendar.on(*node, from, until))
            .filter(|b| b.kind != BookingKind::Hold)
            .map(|b| b.id)
            .collect();
        conflicts.sort_unstable();
        conflicts.dedup();
        let power = shortage::for_booking(self, &ask, (from, until), now);
        let ranks = able.iter().filter_map(|n| self.cluster.node(*n)).flat_map(|n| &n.ranks);
        let present: Vec<Option<Timestamp>> =
            ranks.map(|r| r.ends_by).filter(|end| end.is_none_or(|end| end > from)).collect();
        // If only power is short, there is a place beside the present runs.
        let running = if power.is_some() { 0 } else { u32::try_from(present.len()).unwrap_or(u32::MAX) };
        let running_until =
            present.iter().copied().collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().max());
        Err(Refusal::Taken {
            conflicts,
            running,
            running_until,
            power,
            away: count_away(self, &able, from, now),
            alternatives: alternatives(self, &ask, org, &able, window, now),
        })
    }

    /// Quotes windows without overlap one after the other, as if the earlier ones were booked.
    ///
    /// # Errors
    /// The refusal of the first window that is refused.
    pub fn quote_all(
        &self,
        request: &Request,
        org: OrgId,
        windows: &[Window],
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let mut trial = clone_for_trial(self);
        for (index, window) in windows.iter().enumerate() {
            let (ask, places, moved) = trial.quote(request, org, *window, now)?;
            let id = BookingId(uuid::Uuid::from_u128(index as u128 + 1));
            let Window { from, until } = *window;
            let kind = BookingKind::Reservation;
            trial.book(Booking { id, kind, org, ask: Some(ask), from, until, places }, moved);
        }
        Ok(())
    }

    /// Places with the ids of their nodes.
    pub fn name_places(&self, places: &[NodeSlots]) -> NamedSlots {
        places.iter().filter_map(|p| Some((find_node_id(&self.cluster, p.node)?, p.slots.clone()))).collect()
    }

    /// Places from node ids; those on unknown nodes are left out.
    pub fn resolve_places(&self, named: &NamedSlots) -> Vec<NodeSlots> {
        let place = |(node, slots): &(NodeId, Vec<Slot>)| {
            Some(NodeSlots { node: self.cluster.find_node(*node)?, slots: slots.clone() })
        };
        named.iter().filter_map(place).collect()
    }

    /// The ask of a request.
    ///
    /// # Errors
    /// No cluster could ever meet the request.
    pub fn resolve_request(&mut self, request: &Request, org: OrgId) -> Result<Ask, InvalidRequest> {
        Ask::from_request(request, org, &mut self.cluster)
    }

    /// Returns true if the boards of a booking have no other reservation or maintenance and no run during its
    /// span. Unlike [`Engine::has_room`] it accepts unusable boards, since maintenance is for them too.
    pub fn is_clear(&self, booking: &Booking) -> bool {
        booking.places.iter().all(|place| {
            let meets = |slot: &Slot| place.slots.iter().any(|own| own.gpu == slot.gpu);
            let others = self.calendar.on(place.node, booking.from, booking.until);
            let others =
                others.filter(|b| b.id != booking.id && b.kind != BookingKind::Hold).flat_map(|b| &b.places);
            let promised = others.filter(|p| p.node == place.node).any(|p| p.slots.iter().any(meets));
            let ranks = self.cluster.node(place.node).into_iter().flat_map(|n| &n.ranks);
            let mut present = ranks.filter(|r| r.ends_by.is_none_or(|end| end > booking.from));
            !promised && !present.any(|r| r.slots.iter().any(meets))
        })
    }

    /// Returns true if the places of a booking are free apart from the booking itself and the runs inside it, which
    /// stop at its end.
    pub fn has_room(&self, booking: &Booking, now: Timestamp) -> bool {
        let own = [booking.id];
        // Unclean devices have no known end.
        let inside =
            self.claims.iter().filter(|claim| claim.inside == Some(booking.id) && claim.ends_by.is_some());
        let owners: Vec<Owner> = inside.map(|claim| claim.owner).collect();
        let beside = place::beside_booking(booking.from, now);
        let excluded = Exclusions { bookings: &own, owners: &owners, ..beside };
        place::still_fits(self, &self.calendar, booking, now, excluded)
    }

    /// Books the result of [`Engine::quote`]. The caller applies the bookings as facts once they are stored.
    pub fn book(&mut self, booking: Booking, moved: Vec<Booking>) {
        for booking in moved.into_iter().chain([booking]) {
            self.calendar.put(&self.cluster, booking);
        }
    }
}

/// The number of these nodes that are disconnected and not expected back by then.
fn count_away(engine: &Engine, nodes: &[NodeIx], from: Timestamp, now: Timestamp) -> u32 {
    let away = nodes.iter().filter_map(|n| engine.cluster.node(*n)).filter(|n| n.facts.away).count();
    if place::expects_back(from, now) { 0 } else { u32::try_from(away).unwrap_or(u32::MAX) }
}

/// The places for a window in the calendar.
fn find_window_places(engine: &Engine, ask: &Ask, window: Window, now: Timestamp) -> Option<Vec<NodeSlots>> {
    place::find_places_in(engine, &engine.calendar, ask, (window.from, window.until), now)
}

/// Returns true if an ask has places for a window.
fn fits_at(engine: &Engine, ask: &Ask, window: Window, now: Timestamp) -> bool {
    if ask.nodes > 1 || !engine.racks.is_empty() {
        return find_window_places(engine, ask, window, now).is_some();
    }
    let each = i64::from(ask.shape.milli(engine.cluster.models()));
    let (from, until) = (window.from, window.until);
    let excluded = place::beside_booking(from, now);
    place::all_nodes(engine).any(|node| {
        engine.calendar.may_fit(node, from, until, each, place::nodes_milli(engine, &[node]))
            && engine
                .calendar
                .view(&engine.cluster, node, (from, until), now, excluded)
                .and_then(|view| engine.finder.offer(&engine.cluster, &view, &ask.shape))
                .is_some_and(|offer| {
                    place::gather(engine, ask, vec![(0, node, offer)], Limits::default()).is_some()
                })
    })
}

/// Searches places for a new booking by moving bookings of that time that have not begun.
fn repack(
    engine: &mut Engine,
    ask: &Ask,
    org: OrgId,
    window: Window,
    able: &[NodeIx],
    now: Timestamp,
) -> Option<(Vec<NodeSlots>, Vec<Booking>)> {
    // Without enough free capacity of all boards together no move helps.
    let known = booked(engine, ask, org);
    if known.is_some_and(|(line, most)| !line.stays(window.from, window.until, most)) {
        return None;
    }
    let own = BookingId(uuid::Uuid::nil());
    let kind = BookingKind::Reservation;
    let Window { from, until } = window;
    let new = Booking { id: own, kind, org, ask: Some(*ask), from, until, places: Vec::new() };
    let may_move = |b: &&Booking| {
        b.kind == BookingKind::Reservation
            && b.from > now
            && b.ask.is_some_and(|a| a.shape.models.0 & ask.shape.models.0 != 0)
    };
    let mut movable: Vec<&Booking> = Vec::new();
    let mut on_node: BTreeMap<NodeIx, (i64, Vec<BookingId>)> = BTreeMap::new();
    for node in able {
        for booking in engine.calendar.on(*node, from, until).filter(may_move) {
            let (milli, present) = on_node.entry(*node).or_default();
            *milli += booking.ask.map_or(0, |a| a.milli(&engine.cluster));
            present.push(booking.id);
            movable.push(booking);
        }
    }
    movable.sort_unstable_by_key(|b| b.id);
    movable.dedup_by_key(|b| b.id);
    let mut removed: Vec<Booking> = Vec::new();
    if movable.len() <= MAX_REPACKED {
        removed.extend(movable.into_iter().cloned());
    } else {
        // Clear the nodes with the least to move; all other bookings stay.
        let mut nodes: Vec<(i64, Vec<BookingId>)> = on_node.into_values().collect();
        nodes.sort_unstable();
        let sets = nodes.into_iter().take(MAX_CLEARED).map(|(_, ids)| ids);
        let sets: Vec<Vec<Booking>> =
            sets.map(|ids| ids.iter().filter_map(|id| engine.calendar.get(*id)).cloned().collect()).collect();
        let mut calendar = std::mem::take(&mut engine.calendar);
        let found = sets.iter().find_map(|removed| {
            calendar.with_removed(&engine.cluster, removed, own, |c| move_few(engine, c, removed, &new, now))
        });
        engine.calendar = calendar;
        return found;
    }
    if removed.is_empty() {
        return None;
    }
    // The largest first, since they have the fewest possible places.
    let weight = |b: &Booking| {
        let milli = b.ask.map_or(0, |a| a.milli(&engine.cluster));
        (std::cmp::Reverse(milli), b.from, b.id)
    };
    removed.sort_by_key(weight);
    let mut calendar = std::mem::take(&mut engine.calendar);
    let repacked =
        calendar.with_removed(&engine.cluster, &removed, own, |c| move_few(engine, c, &removed, &new, now));
    let answer = repacked.or_else(|| {
        calendar.with_removed(&engine.cluster, &removed, own, |c| move_all(engine, c, &removed, &new, now))
    });
    engine.calendar = calendar;
    answer
}

/// The booked thousandths over time of the boards that an ask may use, and the most of them beside which there may be
/// room for it. Both count boards on nodes that are too small for it. `None` for own nodes beside those of all.
fn booked<'a>(engine: &'a Engine, ask: &Ask, org: OrgId) -> Option<(&'a Timeline, i64)> {
    let dedicated_to = match ask.shape.tenancy {
        Tenancy { own_only: true, .. } => Some(org),
        Tenancy::COMMON => None,
        Tenancy { .. } => return None,
    };
    let (cluster, model) = (&engine.cluster, ask.shape.models.single()?);
    let line = engine.calendar.group_timeline(model, dedicated_to)?;
    Some((line, group_milli(cluster, model, dedicated_to) - ask.milli(cluster)))
}

/// Places the new booking at its best place without the others; of these, some stay and the rest are
/// placed anew.
fn move_few(
    engine: &Engine,
    calendar: &mut Calendar,
    others: &[Booking],
    new: &Booking,
    now: Timestamp,
) -> Option<(Vec<NodeSlots>, Vec<Booking>)> {
    let when = |b: &Booking| (b.from, b.until);
    let places = place::find_places_in(engine, calendar, &new.ask?, when(new), now)?;
    calendar.put(&engine.cluster, Booking { places: places.clone(), ..new.clone() });
    let mut todo = Vec::new();
    for booking in others {
        if place::still_fits(engine, calendar, booking, now, Exclusions::default()) {
            calendar.put(&engine.cluster, booking.clone());
        } else {
            todo.push(booking);
        }
    }
    let mut moved = Vec::new();
    for booking in todo {
        let places =
            place::find_places_in(engine, calendar, &present_ask(engine, booking)?, when(booking), now)?;
        let booking = Booking { places, ..booking.clone() };
        calendar.put(&engine.cluster, booking.clone());
        moved.push(booking);
    }
    Some((places, moved))
}

/// The ask of a booking for the nodes that its organization may use at present.
fn present_ask(engine: &Engine, booking: &Booking) -> Option<Ask> {
    let mut ask = booking.ask?;
    ask.shape.tenancy = tenancy(&engine.cluster, booking.org);
    Some(ask)
}

/// Places all bookings anew, the largest first.
fn move_all(
    engine: &Engine,
    calendar: &mut Calendar,
    others: &[Booking],
    new: &Booking,
    now: Timestamp,
) -> Option<(Vec<NodeSlots>, Vec<Booking>)> {
    let milli = |b: &Booking| b.ask.map_or(0, |a| a.milli(&engine.cluster));
    let mut order: Vec<&Booking> = others.iter().collect();
    let at = order.partition_point(|b| milli(b) >= milli(new));
    order.insert(at, new);
    let (mut own, mut moved) = (None, Vec::new());
    for booking in order {
        let when = (booking.from, booking.until);
        let places = place::find_places_in(engine, calendar, &present_ask(engine, booking)?, when, now)?;
        let placed = Booking { places, ..booking.clone() };
        calendar.put(&engine.cluster, placed.clone());
        if booking.id == new.id {
            own = Some(placed.places);
        } else if placed.places != booking.places {
            moved.push(placed);
        }
    }
    Some((own?, moved))
}

/// A copy of the parts of the engine that a quote needs.
fn clone_for_trial(engine: &Engine) -> Engine {
    Engine {
        cluster: engine.cluster.clone(),
        finder: engine.finder.clone(),
        calendar: engine.calendar.clone(),
        racks: engine.racks.clone(),
        ..Engine::default()
    }
}

/// The nearest free windows of the same length, after and before. The ends and begins of obstacles and the timeline
/// of the boards give candidates quickly; a search of the boards confirms them.
fn alternatives(
    engine: &Engine,
    ask: &Ask,
    org: OrgId,
    able: &[NodeIx],
    window: Window,
    now: Timestamp,
) -> Vec<Window> {
    let length = window.until.micros() - window.from.micros();
    let at = |from: Timestamp| Window {
        from,
        until: Timestamp::from_micros(from.micros().saturating_add(length)),
    };
    // Other nodes change nothing for the ask.
    let near = engine.racks.with_neighbours(&engine.cluster, able);
    let obstacles = ObstacleTimes::on(&engine.cluster, &engine.calendar, &near);
    let nothing = Timeline::default();
    let (line, limit) = booked(engine, ask, org).unwrap_or((&nothing, i64::MAX));
    let mut out = Vec::new();
    let (mut from, far) = (window.from, now.plus_seconds(MAX_S));
    for _ in 0..MAX_TRIED {
        let Some(next) = obstacles.next_end(from) else { break };
        let Some(begin) = line.earliest(next, length, limit).filter(|t| *t <= far) else { break };
        // No further alternative far behind the first one.
        if out.first().is_some_and(|w: &Window| begin > w.from.plus_seconds(ALTERNATIVES_SPAN_S)) {
            break;
        }
        if fits_at(engine, ask, at(begin), now) {
            out.push(at(begin));
            if out.len() == ALTERNATIVES {
                break;
            }
        }
        from = begin;
    }
    let mut earlier = 0;
    let mut until = window.until;
    for _ in 0..MAX_TRIED {
        let Some(end) = obstacles.last_begin(until) else { break };
        let Some(begin) = line.latest(end, length, limit, now) else { break };
        if begin < window.from && fits_at(engine, ask, at(begin), now) {
            out.push(at(begin));
            earlier += 1;
            if earlier == ALTERNATIVES {
                break;
            }
        }
        until = at(begin).until;
    }
    if earlier < ALTERNATIVES
        && now < window.from
        && !out.iter().any(|w| w.from == now)
        && fits_at(engine, ask, at(now), now)
    {
        out.push(at(now));
    }
    out
}
