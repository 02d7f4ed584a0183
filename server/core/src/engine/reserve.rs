//! Books capacity for a time to come.

use std::collections::BTreeMap;

use berth_types::ids::{NodeId, OrgId};
use berth_types::time::Timestamp;

use super::Engine;
use super::why::Short;
use crate::calendar::{Booking, But, Calendar, Kind, Place};
use crate::cluster::{BookingId, NodeIx, Slot, WHOLE_MILLI};
use crate::request::{Absurd, Ask, Request};
use crate::timeline::{Level, Timeline};

/// The longest window, and how far ahead one may begin: a year.
pub const MOST_S: i64 = 366 * 86_400;
/// Alternatives that a refusal names on either side.
const ALTERNATIVES: usize = 3;
const FAR_S: i64 = 14 * 86_400;
/// Windows that are looked at for them, on either side.
const TRIED: usize = 48;
/// Up to so many bookings are placed anew from scratch, when moving few of them is not enough.
const SCRATCH: usize = 24;
/// Else so many nodes are tried to be cleared.
const CLEARED: usize = 6;
/// After so many seconds a node is expected back whose worker is not connected.
const BACK_S: i64 = 60;

/// Half open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub from: Timestamp,
    pub until: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Absurd(#[from] Absurd),
    #[error("the window is empty, too long, in the past, or more than a year ahead")]
    Window,
    #[error("no cluster like this one could ever give that")]
    Never,
    #[error("booked or in use by others at that time")]
    Taken {
        conflicts: Vec<BookingId>,
        /// Attempts that may still run then on boards that would do, and the last time of their end
        /// (`None`: nobody knows).
        running: u32,
        running_until: Option<Timestamp>,
        /// There would be places if this rack could feed them. Nothing that runs counts against it, only
        /// what is promised.
        power: Option<Short>,
        /// So many nodes that would do are not connected, and the window begins too soon to count on them.
        away: u32,
        alternatives: Vec<Window>,
    },
}

/// Places by the names of their nodes.
pub type Named = Vec<(NodeId, Vec<Slot>)>;

impl Engine {
    /// Where a request could be booked for a window, and which later bookings would move for it.
    pub fn quote(
        &mut self,
        request: &Request,
        org: OrgId,
        window: Window,
        now: Timestamp,
    ) -> Result<(Ask, Vec<Place>, Vec<Booking>), Refusal> {
        let Window { from, until } = window;
        let seconds = (until.micros() - from.micros()) / 1_000_000;
        // The second that has begun is not over.
        if from < now.plus_seconds(-1) || seconds <= 0 || seconds > MOST_S || from > now.plus_seconds(MOST_S)
        {
            return Err(Refusal::Window);
        }
        let ask = Ask::of(request, org, &mut self.cluster)?;
        if let Some(places) = self.places_for(&ask, window, now) {
            return Ok((ask, places, Vec::new()));
        }
        let able: Vec<NodeIx> = self.able(&ask);
        if able.len() < ask.nodes as usize {
            return Err(Refusal::Never);
        }
        let all = self.milli_of(&able);
        if let Some((places, moved)) = self.repack(&ask, org, window, &able, now) {
            return Ok((ask, places, moved));
        }
        let mut conflicts: Vec<BookingId> = able
            .iter()
            .flat_map(|node| self.calendar.on(*node, from, until))
            .filter(|b| b.kind != Kind::Hold)
            .map(|b| b.id)
            .collect();
        conflicts.sort_unstable();
        conflicts.dedup();
        let power = self.short_of_power_then(&ask, window, now);
        let ranks = able.iter().filter_map(|n| self.cluster.node(*n)).flat_map(|n| &n.ranks);
        let there: Vec<Option<Timestamp>> =
            ranks.map(|r| r.ends_by).filter(|end| end.is_none_or(|end| end > from)).collect();
        // Where power is all that lacks, there is a place beside what runs.
        let running = if power.is_some() { 0 } else { u32::try_from(there.len()).unwrap_or(u32::MAX) };
        let running_until =
            there.iter().copied().collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().max());
        Err(Refusal::Taken {
            conflicts,
            running,
            running_until,
            power,
            away: self.away(&able, from, now),
            alternatives: self.alternatives(&ask, all, window, now),
        })
    }

    /// True if a booking may begin then on a node whose worker is not connected now.
    pub(super) fn expects_back(from: Timestamp, now: Timestamp) -> bool {
        from > now.plus_seconds(BACK_S)
    }

    /// How many of these nodes are not connected and not expected back by then.
    fn away(&self, nodes: &[NodeIx], from: Timestamp, now: Timestamp) -> u32 {
        let away = nodes.iter().filter_map(|n| self.cluster.node(*n)).filter(|n| n.facts.away).count();
        if Self::expects_back(from, now) { 0 } else { u32::try_from(away).unwrap_or(u32::MAX) }
    }

    /// Quotes windows that do not overlap, one after the other, as if each before it were booked.
    pub fn quote_all(
        &self,
        request: &Request,
        org: OrgId,
        windows: &[Window],
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let mut trial = self.clone_for_trial();
        for (index, window) in windows.iter().enumerate() {
            let (ask, places, moved) = trial.quote(request, org, *window, now)?;
            let id = BookingId(uuid::Uuid::from_u128(index as u128 + 1));
            let Window { from, until } = *window;
            let kind = Kind::Reservation;
            trial.book(Booking { id, kind, org, ask: Some(ask), from, until, places }, moved);
        }
        Ok(())
    }

    /// Places with the names of their nodes.
    pub fn named(&self, places: &[Place]) -> Named {
        places.iter().filter_map(|p| Some((self.node_id(p.node)?, p.slots.clone()))).collect()
    }

    /// Places by names; those of nodes that are not known are left out.
    pub fn places_named(&self, named: &Named) -> Vec<Place> {
        let place = |(node, slots): &(NodeId, Vec<Slot>)| {
            Some(Place { node: self.cluster.find_node(*node)?, slots: slots.clone() })
        };
        named.iter().filter_map(place).collect()
    }

    /// What was asked for, in the engine's terms.
    pub fn ask_of(&mut self, request: &Request, org: OrgId) -> Result<Ask, Absurd> {
        Ask::of(request, org, &mut self.cluster)
    }

    /// Whether nothing is promised on the boards of a booking meanwhile, and nothing may still run there.
    /// Unlike [`Engine::has_room`] it does not ask whether the boards are of use: maintenance is for those
    /// that are not.
    pub fn is_clear(&self, booking: &Booking) -> bool {
        booking.places.iter().all(|place| {
            let meets = |slot: &Slot| place.slots.iter().any(|own| own.gpu == slot.gpu);
            let others = self.calendar.on(place.node, booking.from, booking.until);
            let others =
                others.filter(|b| b.id != booking.id && b.kind != Kind::Hold).flat_map(|b| &b.places);
            let promised = others.filter(|p| p.node == place.node).any(|p| p.slots.iter().any(meets));
            let ranks = self.cluster.node(place.node).into_iter().flat_map(|n| &n.ranks);
            let mut there = ranks.filter(|r| r.ends_by.is_none_or(|end| end > booking.from));
            !promised && !there.any(|r| r.slots.iter().any(meets))
        })
    }

    /// Whether a booking has room where it is, itself and nobody else thought away.
    pub fn has_room(&self, booking: &Booking, now: Timestamp) -> bool {
        let own = [booking.id];
        let but = But { bookings: &own, ..But::default() };
        self.rests(&self.calendar, booking, now, but)
    }

    /// Whether the places of a run are free, all of them and for all its time.
    pub(super) fn is_free_throughout(&self, run: &Booking, ask: &Ask, now: Timestamp, but: But<'_>) -> bool {
        let power = self.power_for_run((run.from, run.until), now, but);
        let fed = power.is_none_or(|power| self.feeds_all(power, &run.places));
        let runs_images = |place: &Place| self.cluster.node(place.node).is_some_and(|n| n.facts.images);
        fed && (!ask.shape.images || run.places.iter().all(runs_images))
            && self.rests(&self.calendar, run, now, but)
    }

    /// Books what [`Engine::quote`] answered. Whoever asked states the bookings as facts once they are kept.
    pub fn book(&mut self, booking: Booking, moved: Vec<Booking>) {
        for booking in moved.into_iter().chain([booking]) {
            self.calendar.put(&self.cluster, booking);
        }
    }

    /// The nodes that could hold one rank if they were empty, open and healthy.
    pub(super) fn able(&self, ask: &Ask) -> Vec<NodeIx> {
        self.all_nodes().filter(|node| self.is_able(*node, ask)).collect()
    }

    /// True if a node could hold one rank with nothing on it, open and healthy.
    pub(super) fn is_able(&self, node: NodeIx, ask: &Ask) -> bool {
        let view = self.cluster.view_empty(node);
        view.is_some_and(|view| self.finder.offer(&self.cluster, &view, &ask.shape).is_some())
    }

    /// Thousandths of boards on a node, or on some.
    pub(super) fn milli_of(&self, nodes: &[NodeIx]) -> i64 {
        let boards = nodes.iter().filter_map(|n| self.cluster.node(*n)).map(|n| n.facts.gpus.len());
        boards.sum::<usize>() as i64 * i64::from(WHOLE_MILLI)
    }

    pub(super) fn places_for(&self, ask: &Ask, window: Window, now: Timestamp) -> Option<Vec<Place>> {
        self.places_in(&self.calendar, ask, (window.from, window.until), now)
    }

    /// Whether there is a place at all.
    fn fits_at(&self, ask: &Ask, window: Window, now: Timestamp) -> bool {
        if ask.nodes > 1 || !self.racks.is_empty() {
            return self.places_for(ask, window, now).is_some();
        }
        let each = i64::from(ask.shape.milli(self.cluster.models()));
        let mut all = (0..self.cluster.nodes().len()).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
        let (from, until) = (window.from, window.until);
        all.any(|node| {
            self.calendar.may_fit(node, from, until, each, self.milli_of(&[node]))
                && self
                    .calendar
                    .view(&self.cluster, node, (from, until), now, But::default())
                    .and_then(|view| self.finder.offer(&self.cluster, &view, &ask.shape))
                    .is_some_and(|offer| self.gather(ask, vec![(0, node, offer)], None).is_some())
        })
    }

    /// Tries to make room by moving bookings that have not begun and are there at that time.
    fn repack(
        &mut self,
        ask: &Ask,
        org: OrgId,
        window: Window,
        able: &[NodeIx],
        now: Timestamp,
    ) -> Option<(Vec<Place>, Vec<Booking>)> {
        if !self.may_ever(ask, window, self.milli_of(able)) {
            return None;
        }
        let own = BookingId(uuid::Uuid::nil());
        let kind = Kind::Reservation;
        let Window { from, until } = window;
        let new = Booking { id: own, kind, org, ask: Some(*ask), from, until, places: Vec::new() };
        let may_move = |b: &&Booking| {
            b.kind == Kind::Reservation
                && b.from > now
                && b.ask.is_some_and(|a| a.shape.models.0 & ask.shape.models.0 != 0)
        };
        let mut movable: Vec<&Booking> = Vec::new();
        let mut on_node: BTreeMap<NodeIx, (i64, Vec<BookingId>)> = BTreeMap::new();
        for node in able {
            for booking in self.calendar.on(*node, from, until).filter(may_move) {
                let (milli, there) = on_node.entry(*node).or_default();
                *milli += booking.ask.map_or(0, |a| self.milli(&a));
                there.push(booking.id);
                movable.push(booking);
            }
        }
        movable.sort_unstable_by_key(|b| b.id);
        movable.dedup_by_key(|b| b.id);
        let mut gone: Vec<Booking> = Vec::new();
        if movable.len() <= SCRATCH {
            gone.extend(movable.into_iter().cloned());
        } else {
            // Where the least must move; everything else stays.
            let mut nodes: Vec<(i64, Vec<BookingId>)> = on_node.into_values().collect();
            nodes.sort_unstable();
            let sets = nodes.into_iter().take(CLEARED).map(|(_, ids)| ids);
            let sets: Vec<Vec<Booking>> = sets
                .map(|ids| ids.iter().filter_map(|id| self.calendar.get(*id)).cloned().collect())
                .collect();
            let mut calendar = std::mem::take(&mut self.calendar);
            let found = sets.iter().find_map(|gone| {
                calendar.without(&self.cluster, gone, own, |c| self.move_few(c, gone, &new, now))
            });
            self.calendar = calendar;
            return found;
        }
        if gone.is_empty() {
            return None;
        }
        // The largest first: they find a place the least easily.
        let weight = |b: &Booking| {
            let milli = b.ask.map_or(0, |a| self.milli(&a));
            (std::cmp::Reverse(milli), b.from, b.id)
        };
        gone.sort_by_key(weight);
        let mut calendar = std::mem::take(&mut self.calendar);
        let few = calendar.without(&self.cluster, &gone, own, |c| self.move_few(c, &gone, &new, now));
        let answer = few
            .or_else(|| calendar.without(&self.cluster, &gone, own, |c| self.move_all(c, &gone, &new, now)));
        self.calendar = calendar;
        answer
    }

    /// Whether so much is free at that time on all boards together that moving others can help.
    fn may_ever(&self, ask: &Ask, window: Window, all: i64) -> bool {
        let need = self.milli(ask);
        match self.only_model(ask) {
            Some(model) => self
                .calendar
                .of_model(model)
                .is_none_or(|line| line.stays(window.from, window.until, all - need)),
            None => true,
        }
    }

    fn only_model(&self, ask: &Ask) -> Option<u8> {
        let mut models = (0..64).filter(|m| ask.shape.models.has(*m));
        models.next().filter(|_| models.next().is_none())
    }

    /// The new one where it fits best without the others; those that can stay do, the rest find places anew.
    fn move_few(
        &self,
        calendar: &mut Calendar,
        others: &[Booking],
        new: &Booking,
        now: Timestamp,
    ) -> Option<(Vec<Place>, Vec<Booking>)> {
        let when = |b: &Booking| (b.from, b.until);
        let places = self.places_in(calendar, &new.ask?, when(new), now)?;
        calendar.put(&self.cluster, Booking { places: places.clone(), ..new.clone() });
        let mut todo = Vec::new();
        for booking in others {
            if self.rests(calendar, booking, now, But::default()) {
                calendar.put(&self.cluster, booking.clone());
            } else {
                todo.push(booking);
            }
        }
        let mut moved = Vec::new();
        for booking in todo {
            let places = self.places_in(calendar, &booking.ask?, when(booking), now)?;
            let booking = Booking { places, ..booking.clone() };
            calendar.put(&self.cluster, booking.clone());
            moved.push(booking);
        }
        Some((places, moved))
    }

    /// All of them one after the other, the largest first.
    fn move_all(
        &self,
        calendar: &mut Calendar,
        others: &[Booking],
        new: &Booking,
        now: Timestamp,
    ) -> Option<(Vec<Place>, Vec<Booking>)> {
        let milli = |b: &Booking| b.ask.map_or(0, |a| self.milli(&a));
        let mut order: Vec<&Booking> = others.iter().collect();
        let at = order.partition_point(|b| milli(b) >= milli(new));
        order.insert(at, new);
        let (mut own, mut moved) = (None, Vec::new());
        for booking in order {
            let when = (booking.from, booking.until);
            let places = self.places_in(calendar, &booking.ask?, when, now)?;
            let placed = Booking { places, ..booking.clone() };
            calendar.put(&self.cluster, placed.clone());
            if booking.id == new.id {
                own = Some(placed.places);
            } else if placed.places != booking.places {
                moved.push(placed);
            }
        }
        Some((own?, moved))
    }

    /// Whether a booking has room where it is.
    fn rests(&self, calendar: &Calendar, booking: &Booking, now: Timestamp, but: But<'_>) -> bool {
        let window = (booking.from, booking.until);
        !booking.places.is_empty()
            && booking.places.iter().all(|place| {
                let view = calendar.view(&self.cluster, place.node, window, now, but);
                let ask = booking.ask.map(|a| (a.shape.cpu_milli, a.shape.memory_mib)).unwrap_or_default();
                view.is_some_and(|mut view| {
                    view.cpu_milli >= ask.0
                        && view.memory_mib >= ask.1
                        && place
                            .slots
                            .iter()
                            .all(|slot| self.cluster.take(&mut view, place.node, slot, booking.org))
                })
            })
    }

    fn clone_for_trial(&self) -> Self {
        Self {
            cluster: self.cluster.clone(),
            finder: self.finder.clone(),
            calendar: self.calendar.clone(),
            racks: self.racks.clone(),
            ..Self::default()
        }
    }

    /// The nearest windows of the same length that are free, after and before. What is booked in all
    /// says quickly where one can be; a look at the boards, whether it is.
    fn alternatives(&self, ask: &Ask, all: i64, window: Window, now: Timestamp) -> Vec<Window> {
        let length = window.until.micros() - window.from.micros();
        let at = |from: Timestamp| Window {
            from,
            until: Timestamp::from_micros(from.micros().saturating_add(length)),
        };
        let nothing = Timeline::default();
        let line = self.only_model(ask).and_then(|m| self.calendar.of_model(m)).unwrap_or(&nothing);
        let most = all - self.milli(ask);
        // What runs ends some time; the calendar does not know it.
        let mut ends: Vec<Timestamp> = self.claims.values().filter_map(|c| c.ends_by).collect();
        ends.retain(|end| *end > window.from);
        ends.sort_unstable();
        let mut out = Vec::new();
        let (mut from, far) = (window.from, now.plus_seconds(MOST_S));
        for _ in 0..TRIED {
            // The next time at which something changes for the better.
            let freed = ends.get(ends.partition_point(|end| *end <= from)).copied();
            let Some(next) = [line.next(from), freed].into_iter().flatten().min() else { break };
            let Some(begin) = line.earliest(next, length, most).filter(|t| *t <= far) else { break };
            // Far behind one that was found nobody looks for another.
            if out.first().is_some_and(|w: &Window| begin > w.from.plus_seconds(FAR_S)) {
                break;
            }
            if self.fits_at(ask, at(begin), now) {
                out.push(at(begin));
                if out.len() == ALTERNATIVES {
                    break;
                }
            }
            from = begin;
        }
        let mut earlier = 0;
        let mut until = window.until;
        for _ in 0..TRIED {
            let Some(end) = line.last(until, Level::AtMost(i64::MAX)) else { break };
            let Some(begin) = line.latest(end, length, most, now) else { break };
            if begin < window.from && self.fits_at(ask, at(begin), now) {
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
            && self.fits_at(ask, at(now), now)
        {
            out.push(at(now));
        }
        out
    }
}
