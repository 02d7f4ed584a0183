//! Starts around what is held for the first of a pool, and room that others make for the rest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use super::hold::hold_id;
use super::pass::PoolPass;
use super::preempt::{Claimant, Room};
use super::{Basis, Decision, Engine};
use crate::calendar::But;
use crate::cluster::BookingId;
use crate::queue::{Group, Stuck, Turn};
use crate::request::Ask;

/// In clusters of up to so many nodes others may make room for everybody who waits.
const MOST_SEARCHED: usize = 256;

/// In larger clusters so many of a pool, the first in turn, are looked at for a later start, and others make
/// room for them.
pub(super) const FIRST_CLAIMANTS: usize = 16;

/// What is known while others are started around what is held.
pub(super) struct Around {
    /// For each ask and (where it matters) class: runs of so many seconds and longer do not fit.
    fits_below: BTreeMap<(Ask, i64), i64>,
    /// A class finds room that lower ones do not find: others were stopped for somebody.
    by_class: bool,
    /// The ask that stands for each, as long as nobody was started.
    alike: HashMap<Ask, Ask>,
    /// For each ask and class: nobody can make room for runs of so many seconds and longer.
    room_below: HashMap<(Ask, i64), i64>,
    /// The lowest class of those who may be told to make room.
    lowest: i64,
    lines: Vec<Line>,
    order: BinaryHeap<Reverse<(Turn, usize)>>,
}

/// The first of each group who could be started with one ask.
struct Line {
    ask: Ask,
    /// Runs of so many seconds and longer do not fit, whoever asks.
    below: i64,
    /// No board is free at all, whatever is booked.
    full: bool,
    /// Seconds of the shortest run of anybody in the line.
    shortest: i64,
    firsts: BinaryHeap<Reverse<(Turn, Group)>>,
}

impl Around {
    /// Runs of so many seconds and longer of somebody in a line are not looked at.
    fn bound(&mut self, line: usize, own: &Ask, alike: &Ask, class: i64) -> (i64, i64) {
        let below = self.lines.get(line).map_or(0, |l| l.below);
        let fits = self.fits_below.get(&self.fits_key(alike, class)).copied().unwrap_or(i64::MAX).min(below);
        let room = match class > self.lowest {
            true => self.room_below.get(&(*own, class)).copied().unwrap_or(i64::MAX),
            false => 0,
        };
        (fits, room)
    }

    fn fits_key(&self, alike: &Ask, class: i64) -> (Ask, i64) {
        (*alike, if self.by_class { class } else { 0 })
    }

    pub(super) fn next(&self) -> Option<Turn> {
        self.order.peek().map(|Reverse((turn, _))| *turn)
    }

    fn queue_line(&mut self, line: usize) {
        let lowest = self.lowest;
        let open = |l: &&Line| l.shortest < l.below || lowest < i64::MAX;
        let first = self.lines.get(line).filter(open).and_then(|l| l.firsts.peek());
        if let Some(Reverse((turn, _))) = first {
            self.order.push(Reverse((*turn, line)));
        }
    }
}

impl Engine {
    /// Goes on to those who may start around what is held.
    pub(super) fn enter(&mut self, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
        let lowest = match self.is_searched() {
            true => self.lowest_preemptible(None).unwrap_or(i64::MAX),
            false => i64::MAX,
        };
        let mut around = Around {
            fits_below: BTreeMap::new(),
            by_class: self.holds.values().any(|h| h.basis == Basis::Stopped),
            alike: HashMap::new(),
            room_below: HashMap::new(),
            lowest,
            lines: Vec::new(),
            order: BinaryHeap::new(),
        };
        if self.backfill && !pass.searches {
            for (ask, below, shortest) in self.roomy(pass, lowest, now) {
                let firsts = self.queue.firsts(&ask, i64::MAX, self.turns(now));
                let firsts = firsts.filter(|(_, group)| below > 0 || group.class > lowest).map(Reverse);
                around.lines.push(Line { ask, below, full: false, shortest, firsts: firsts.collect() });
            }
            (0..around.lines.len()).for_each(|line| around.queue_line(line));
        }
        let is_over = around.order.is_empty();
        pass.around = Some(around);
        pass.order = self.queue.order_version(pass.pool);
        pass.first = self.queue.head(pass.pool, self.turns(now), &pass.passed).map(|turn| turn.job);
        if is_over && !self.is_searched() {
            self.make_room_for_first(pass, now, out);
        }
    }

    /// Tries the next who may start around what is held, or make others leave.
    pub(super) fn fill(&mut self, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
        let Some(around) = pass.around.as_mut() else { return };
        let Some(Reverse((_, index))) = around.order.pop() else { return };
        let Some(line) = around.lines.get_mut(index) else { return };
        let ask = line.ask;
        if let Some(Reverse((seen, group))) = line.firsts.pop() {
            let stopped = out.len();
            let (next, finished) = self.try_next(pass.pool, around, index, &ask, (seen, group), now, out);
            pass.finished &= finished;
            // Those who were looked at before may start sooner now that somebody has to go.
            let news = out.get(stopped..).unwrap_or_default();
            pass.again |= news.iter().any(|d| matches!(d, Decision::Preempt { .. }));
            if let (Some(turn), Some(line)) = (next, around.lines.get_mut(index)) {
                line.firsts.push(Reverse((turn, group)));
            }
        }
        around.queue_line(index);
        if around.order.is_empty() {
            self.keep_stuck(pass.pool, around);
            if !self.is_searched() {
                self.make_room_for_first(pass, now, out);
            }
        }
    }

    /// True in a cluster so small that others may make room for every waiting job.
    pub(super) fn is_searched(&self) -> bool {
        self.cluster.nodes().len() <= MOST_SEARCHED
    }

    /// Makes room for the first of a pool in a large cluster.
    fn make_room_for_first(&mut self, pass: &mut PoolPass, now: Timestamp, out: &mut Vec<Decision>) {
        if !self.backfill {
            return;
        }
        let held = self.first_held(pass.pool);
        // For each ask and class: nobody can make room for runs of so many seconds and longer.
        let mut in_vain: HashMap<(Ask, i64), i64> = HashMap::new();
        for turn in self.queue.first_turns(pass.pool, self.turns(now), FIRST_CLAIMANTS) {
            let lowest = self.lowest_preemptible(None).unwrap_or(i64::MAX);
            if held == Some(turn.job) || self.class(turn.job).is_none_or(|class| class <= lowest) {
                continue;
            }
            let Some((key, seconds)) = self.claimant_key(turn.job) else { continue };
            // Of those who ask the same, longer runs with later turns find no more.
            if in_vain.get(&key).is_some_and(|shorter| *shorter <= seconds) {
                continue;
            }
            let room = self.make_room(pass.pool, turn.job, None, now, out);
            pass.finished &= room != Room::NotYet;
            match room {
                Room::Without(_) => pass.again = true,
                Room::None => _ = in_vain.insert(key, seconds),
                Room::NotYet => {}
            }
        }
    }

    /// The ask, the class as submitted and the seconds of a waiting job.
    fn claimant_key(&self, job: JobId) -> Option<((Ask, i64), i64)> {
        let waiting = self.jobs.get(&job)?;
        Some(((waiting.ask?, waiting.lane?.group.class), waiting.facts.max_duration_s))
    }

    /// What found no place is remembered until something changes.
    fn keep_stuck(&mut self, pool: u64, around: &Around) {
        let (changes, bookings) = (self.cluster.changes(), self.bookings_version(pool));
        let none = around.lines.iter().filter(|l| l.full).map(|l| (l.ask, 0));
        // Only where nothing is free at all it does not matter what is booked.
        // A higher class may find more than the lower one that was looked at.
        let none_fits = around.fits_below.iter().filter(|_| !around.by_class);
        for (ask, seconds) in none_fits.map(|((ask, _), s)| (*ask, (*s).max(1))).chain(none) {
            // Of shares the boards that are shared already are not known to be without room.
            if ask == ask.for_anybody() {
                self.queue.stick(&ask, Stuck { seconds, changes, bookings });
            }
        }
    }

    /// Starts the first of a group who asks for this, if there is a place around what is held, or if others
    /// make room. The turn of the next of the group, and whether no search goes on.
    #[expect(
        clippy::too_many_arguments,
        reason = "the pool, where its pass is, who is next, when, and what comes of it"
    )]
    fn try_next(
        &mut self,
        pool: u64,
        around: &mut Around,
        line: usize,
        ask: &Ask,
        (seen, group): (Turn, Group),
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> (Option<Turn>, bool) {
        let Some((first, _)) = self.queue.first(ask, group, i64::MAX, self.turns(now)) else {
            return (None, true);
        };
        let Some(own) = self.jobs.get(&first.job).and_then(|w| w.ask) else { return (None, true) };
        let alike = *around.alike.entry(own).or_insert_with(|| self.alike(&own));
        let (fits, room) = around.bound(line, &own, &alike, group.class);
        let Some((turn, seconds)) = self.queue.first(ask, group, fits.max(room), self.turns(now)) else {
            return (None, true);
        };
        if turn > seen {
            // Its organization got something meanwhile, or its first is too long now.
            return (Some(turn), true);
        }
        let but = self.no_obstacles(turn.job, true, now);
        let mut finished = true;
        let mut done = false;
        if seconds < fits {
            let free = But { bookings: &but, owners: &[], away: false };
            match self.place(&own, now, self.ends(now, seconds), free) {
                Some(places) => {
                    self.start(turn.job, &places, now, out);
                    around.alike.clear();
                    done = true;
                }
                None => {
                    // The cluster only gets fuller in a pass, so this holds for all who ask alike.
                    let below = self.longest(&own, seconds, now, &but);
                    let key = around.fits_key(&alike, group.class);
                    around.fits_below.insert(key, below);
                    let by_class = around.by_class;
                    self.finder.sync(&self.cluster, &ask.shape);
                    let none = self.finder.best(&self.cluster, &ask.shape, &|_| true).is_none();
                    if let Some(line) = around.lines.get_mut(line) {
                        // Those who share boards already may find more.
                        let anybody = if own == own.for_anybody() && !by_class { below } else { i64::MAX };
                        line.full = none;
                        line.below = if none { 0 } else { line.below.min(anybody).max(1) };
                    }
                }
            }
        }
        if !done && seconds < room {
            let key = (own, group.class);
            match self.make_room(pool, turn.job, None, now, out) {
                Room::Without(_) => {
                    around.lowest = self.lowest_preemptible(None).unwrap_or(i64::MAX);
                    if !self.is_aside(turn.job) {
                        finished = false;
                        around.room_below.insert(key, 0);
                    }
                }
                Room::NotYet => {
                    finished = false;
                    around.room_below.insert(key, 0);
                }
                Room::None => {
                    let below = self.longest_with_room(turn.job, &own, group.class, seconds, now);
                    around.room_below.insert(key, below);
                }
            }
        }
        // What follows in the group is looked up when it is its turn.
        let next = self.queue.first(ask, group, i64::MAX, self.turns(now));
        (next.map(|(turn, _)| turn.max(seen)), finished)
    }

    /// Runs of how many seconds and longer find no place, where one of `seconds` found none.
    fn longest(&mut self, ask: &Ask, seconds: i64, now: Timestamp, but: &[BookingId]) -> i64 {
        let shorter = self.begins_within(seconds, now, but);
        let fits = |engine: &mut Self, seconds: i64| {
            let until = engine.ends(now, seconds);
            engine.place(ask, now, until, But { bookings: but, owners: &[], away: false }).is_some()
        };
        self.first_below(&shorter, fits)
    }

    /// Runs of how many seconds and longer nobody can make room for, where there was none for `seconds`.
    fn longest_with_room(&mut self, job: JobId, ask: &Ask, class: i64, seconds: i64, now: Timestamp) -> i64 {
        let but = &self.no_obstacles(job, false, now);
        let (from, _) = self.span_after_grace(None, class, seconds, now);
        let shorter = self.begins_within(seconds, from, but);
        let fits = |engine: &mut Self, seconds: i64| {
            let span = engine.span_after_grace(None, class, seconds, now);
            engine.could_fit(&Claimant { class, ask: *ask, now, span, but })
        };
        self.first_below(&shorter, fits)
    }

    /// The seconds, ascending, after which something that is booked begins, within a run of `seconds`: other
    /// lengths between two of them meet the same bookings.
    fn begins_within(&self, seconds: i64, now: Timestamp, but: &[BookingId]) -> Vec<i64> {
        let booked = self.calendar.iter().filter(|b| !but.contains(&b.id));
        let mut all: Vec<i64> = booked.map(|b| (b.from.micros() - now.micros()) / 1_000_000).collect();
        all.retain(|s| *s > 0 && *s < seconds);
        all.sort_unstable();
        all.dedup();
        all
    }

    fn first_below(&mut self, shorter: &[i64], mut fits: impl FnMut(&mut Self, i64) -> bool) -> i64 {
        let (mut good, mut bad) = (0, shorter.len());
        while good < bad {
            let half = (good + bad) / 2;
            match shorter.get(half) {
                Some(seconds) if fits(self, *seconds) => good = half + 1,
                _ => bad = half,
            }
        }
        // One that ends as the next booking begins still fits; without a booking in the way, none does.
        match good.checked_sub(1).and_then(|last| shorter.get(last)) {
            Some(longest) => longest + 1,
            None => 0,
        }
    }

    /// The ask that stands for all that find the same: those of organizations that share no board on
    /// which this one fits.
    fn alike(&self, ask: &Ask) -> Ask {
        if self.finder.fits_own(&self.cluster, &ask.shape) {
            return *ask;
        }
        Ask { shape: self.finder.kept(&self.cluster, &ask.shape), ..*ask }
    }

    /// The asks that may fit somewhere, each with the seconds of its shortest run and the seconds from which
    /// on runs are known not to fit; also asks that do not fit, of classes above the lowest preemptible one.
    /// An ask that found no place before is looked at again only on nodes that changed since.
    fn roomy(&mut self, pass: &PoolPass, lowest: i64, now: Timestamp) -> Vec<(Ask, i64, i64)> {
        let pool = pass.pool;
        let (yields, stopped) = self.yielding(pass);
        let (changes, bookings) = (self.cluster.changes(), self.bookings_version(pool));
        let settled = yields.is_empty() && stopped.is_empty() && self.racks.is_empty();
        let Self { cluster, queue, .. } = &mut *self;
        let mut open = Vec::new();
        for (ask, known) in queue.asks_of(pool) {
            let mut below = i64::MAX;
            if let Some(stuck) = known.stuck.as_mut() {
                let changed = cluster.changed_since(stuck.changes);
                let same = changed.is_some_and(|nodes| {
                    let mut views = nodes.iter().filter_map(|n| cluster.node(*n));
                    nodes.len() < 64 && !views.any(|n| ask.shape.may_fit(n.view(), cluster.models()))
                });
                // Without any place at all it does not matter what is booked.
                // From the begin of a booking its boards draw power anyway, also for others on them.
                let booked = stuck.bookings == bookings && settled;
                if same && (booked || stuck.seconds == 0) {
                    (stuck.changes, below) = (changes, stuck.seconds);
                }
            }
            let outranks = lowest < i64::MAX && known.highest_class() > lowest;
            if known.shortest() < below || outranks {
                open.push((*ask, below, known.shortest(), known.highest_class(), outranks));
            }
        }
        let mut out = Vec::new();
        for (ask, below, shortest, highest, outranks) in open {
            let lower = stopped.iter().filter(|(class, _)| *class < highest).map(|(_, id)| *id);
            let but: Vec<BookingId> = yields.iter().copied().chain(lower).collect();
            let roomy = shortest < below && self.has_room_for(&ask, shortest, &but, now);
            if roomy || outranks {
                out.push((ask, if roomy { below } else { 0 }, shortest));
            }
        }
        out
    }

    /// Held starts that are no obstacle to some jobs of a pool, which is known for each job only: those that
    /// give way to an earlier turn, and those with their classes that give way to a higher class.
    fn yielding(&self, pass: &PoolPass) -> (Vec<BookingId>, Vec<(i64, BookingId)>) {
        let (mut yields, mut stopped) = (Vec::new(), Vec::new());
        for (job, held) in &self.holds {
            match held.basis {
                _ if !self.meets(held, pass.pool) => {}
                // A job that was passed over has an earlier turn than the first.
                Basis::First if held.pool == pass.pool && pass.passed.is_empty() => {}
                Basis::First | Basis::Soon => yields.push(hold_id(*job)),
                Basis::Stopped => stopped.extend(self.class(*job).map(|class| (class, hold_id(*job)))),
            }
        }
        (yields, stopped)
    }

    /// Whether a run of the shortest length at least fits; remembered where not.
    fn has_room_for(&mut self, ask: &Ask, shortest: i64, but: &[BookingId], now: Timestamp) -> bool {
        let (changes, bookings) = (self.cluster.changes(), self.bookings_version(ask.shape.models.0));
        self.finder.sync(&self.cluster, &ask.shape);
        if self.finder.best(&self.cluster, &ask.shape, &|_| true).is_none() {
            self.queue.stick(ask, Stuck { seconds: 0, changes, bookings });
            return false;
        }
        let until = self.ends(now, shortest);
        let fits = self.place(ask, now, until, But { bookings: but, owners: &[], away: false }).is_some();
        if !fits {
            self.queue.stick(ask, Stuck { seconds: shortest, changes, bookings });
        }
        fits
    }
}
