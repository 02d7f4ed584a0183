//! Books capacity for a time to come.

use berth_types::ids::{NodeId, OrgId};
use berth_types::time::Timestamp;

use super::Engine;
use crate::calendar::{Booking, But, Calendar, Kind, Place};
use crate::cluster::{BookingId, NodeIx, Slot};
use crate::request::{Absurd, Ask, Request};

/// The longest window, and how far ahead one may begin: a year.
pub const MOST_S: i64 = 366 * 86_400;
/// Alternatives that a refusal names on either side.
const ALTERNATIVES: usize = 3;

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
        if from < now || seconds <= 0 || seconds > MOST_S || from > now.plus_seconds(MOST_S) {
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
        if let Some((places, moved)) = self.repack(&ask, org, window, now) {
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
        let ranks = able.iter().filter_map(|n| self.cluster.node(*n)).flat_map(|n| &n.ranks);
        let there: Vec<Option<Timestamp>> =
            ranks.map(|r| r.ends_by).filter(|end| end.is_none_or(|end| end > from)).collect();
        let running_until =
            there.iter().copied().collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().max());
        Err(Refusal::Taken {
            conflicts,
            running: u32::try_from(there.len()).unwrap_or(u32::MAX),
            running_until,
            alternatives: self.alternatives(&ask, &able, window, now),
        })
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

    /// Whether a booking has room where it is, itself and nobody else thought away.
    pub fn has_room(&self, booking: &Booking, now: Timestamp) -> bool {
        let mut trial = self.calendar.clone();
        trial.remove(booking.id);
        self.rests(&trial, booking, now)
    }

    /// Books what [`Engine::quote`] answered. Whoever asked states the bookings as facts once they are kept.
    pub fn book(&mut self, booking: Booking, moved: Vec<Booking>) {
        for booking in moved.into_iter().chain([booking]) {
            self.calendar.put(booking);
        }
    }

    /// The nodes that could hold one rank if they were empty, open and healthy.
    pub(super) fn able(&self, ask: &Ask) -> Vec<NodeIx> {
        let all = (0..self.cluster.nodes().len()).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
        all.filter(|node| {
            let view = self.cluster.view_empty(*node);
            view.is_some_and(|v| self.finder.offer(&self.cluster, &v, &ask.shape).is_some())
        })
        .collect()
    }

    fn places_for(&self, ask: &Ask, window: Window, now: Timestamp) -> Option<Vec<Place>> {
        let all = (0..self.cluster.nodes().len()).filter_map(|n| u32::try_from(n).ok()).map(NodeIx);
        let offers = all.filter_map(|node| {
            // A start that is held gives way to nothing but itself; a hold is never in a booking's way
            // only because it would be later.
            let view =
                self.calendar.view(&self.cluster, node, (window.from, window.until), now, But::default())?;
            let offer = self.finder.offer(&self.cluster, &view, &ask.shape)?;
            Some((offer.cost, node, offer))
        });
        let chosen = self.gather(ask, offers.collect())?;
        Some(self.places(ask, &chosen))
    }

    /// Tries to make room by placing the bookings that have not begun anew, the largest first.
    fn repack(
        &self,
        ask: &Ask,
        org: OrgId,
        window: Window,
        now: Timestamp,
    ) -> Option<(Vec<Place>, Vec<Booking>)> {
        let own = BookingId(uuid::Uuid::nil());
        let new = Booking {
            id: own,
            kind: Kind::Reservation,
            org,
            ask: Some(*ask),
            from: window.from,
            until: window.until,
            places: Vec::new(),
        };
        let may_move = |b: &&Booking| {
            b.kind == Kind::Reservation
                && b.from > now
                && b.ask.is_some_and(|a| a.shape.models.0 & ask.shape.models.0 != 0)
        };
        let mut order: Vec<Booking> = self.calendar.iter().filter(may_move).cloned().chain([new]).collect();
        if order.len() < 2 {
            return None;
        }
        let weight = |b: &Booking| {
            let milli = b.ask.map_or(0, |a| self.milli(&a));
            (std::cmp::Reverse(milli), b.from, b.id)
        };
        order.sort_by_key(weight);
        // First with as few moves as possible; then, if that does not do, with all of them in order.
        self.rearrange(&order, own, true, now).or_else(|| self.rearrange(&order, own, false, now))
    }

    /// Places bookings one after the other as if none of them were there: the new one, and those that moved.
    fn rearrange(
        &self,
        order: &[Booking],
        own: BookingId,
        keep: bool,
        now: Timestamp,
    ) -> Option<(Vec<Place>, Vec<Booking>)> {
        let mut trial = self.clone_for_trial();
        for booking in order {
            trial.calendar.remove(booking.id);
        }
        let mut todo: Vec<&Booking> = order.iter().collect();
        let (mut places, mut moved) = (None, Vec::new());
        if keep {
            todo.sort_by_key(|b| b.id != own);
        }
        let put = |trial: &mut Self, booking: &Booking, places: Vec<Place>| {
            trial.calendar.put(Booking { places, ..booking.clone() });
        };
        if keep && let Some(new) = todo.first().copied() {
            todo.remove(0);
            let found = trial.places_for(&new.ask?, Window { from: new.from, until: new.until }, now)?;
            put(&mut trial, new, found.clone());
            places = Some(found);
            todo.retain(|booking| {
                let stays = trial.stays(booking, now);
                if stays {
                    put(&mut trial, booking, booking.places.clone());
                }
                !stays
            });
        }
        for booking in todo {
            let at = Window { from: booking.from, until: booking.until };
            let found = trial.places_for(&booking.ask?, at, now)?;
            put(&mut trial, booking, found.clone());
            if booking.id == own {
                places = Some(found);
            } else if booking.places != found {
                moved.push(Booking { places: found, ..booking.clone() });
            }
        }
        Some((places?, moved))
    }

    /// Whether a booking still has room where it is.
    fn stays(&self, booking: &Booking, now: Timestamp) -> bool {
        self.rests(&self.calendar, booking, now)
    }

    fn rests(&self, calendar: &Calendar, booking: &Booking, now: Timestamp) -> bool {
        let window = (booking.from, booking.until);
        !booking.places.is_empty()
            && booking.places.iter().all(|place| {
                let view = calendar.view(&self.cluster, place.node, window, now, But::default());
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
            ..Self::default()
        }
    }

    /// The nearest windows of the same length that are free, before and after.
    fn alternatives(&self, ask: &Ask, able: &[NodeIx], window: Window, now: Timestamp) -> Vec<Window> {
        let length = window.until.micros() - window.from.micros();
        let mut begins: Vec<i64> = vec![now.micros()];
        let mut ends: Vec<i64> = Vec::new();
        for node in able {
            let far = Timestamp::from_micros(i64::MAX);
            for booking in self.calendar.on(*node, now, far) {
                begins.push(booking.until.micros());
                ends.push(booking.from.micros());
            }
            let ranks = self.cluster.node(*node).into_iter().flat_map(|n| &n.ranks);
            begins.extend(ranks.filter_map(|r| r.ends_by).map(Timestamp::micros));
        }
        // Later windows begin where something ends; earlier ones end where something begins.
        begins.extend(ends.iter().map(|end| end - length));
        begins.retain(|b| *b >= now.micros() && *b <= now.plus_seconds(MOST_S).micros());
        begins.sort_unstable();
        begins.dedup();
        let asked = window.from.micros();
        let free = |from: i64| {
            let at =
                Window { from: Timestamp::from_micros(from), until: Timestamp::from_micros(from + length) };
            self.places_for(ask, at, now).map(|_| at)
        };
        let later = begins.iter().filter(|b| **b > asked).filter_map(|b| free(*b)).take(ALTERNATIVES);
        let mut out: Vec<Window> = later.collect();
        out.extend(begins.iter().rev().filter(|b| **b < asked).filter_map(|b| free(*b)).take(ALTERNATIVES));
        out
    }
}
