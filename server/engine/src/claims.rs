//! The claims of attempts, and their counts for preemption and for the times of their ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use berth_types::ids::JobId;
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;

use super::facts::Claim;
use super::node_pools::{PreemptionRight, RunKind};
use berth_placement::cluster::{BookingId, Owner};
use berth_placement::pools::Work;
use berth_placement::request::Ask;

/// No run is stopped for a job that starts within these seconds by itself.
pub(super) const SOON_S: i64 = 30;

/// The claims by their owners.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims(HashMap<Owner, Claim>);

impl Claims {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, owner: Owner) -> Option<&Claim> {
        self.0.get(&owner)
    }

    pub(super) fn insert(&mut self, claim: Claim) {
        self.0.insert(claim.owner, claim);
    }

    pub(super) fn remove(&mut self, owner: Owner) -> Option<Claim> {
        self.0.remove(&owner)
    }

    /// The claims in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.0.values()
    }

    /// The owners in no order.
    pub(super) fn owners(&self) -> impl Iterator<Item = Owner> {
        self.0.keys().copied()
    }

    /// The work that would be lost with these attempts, in thousandths of a board × seconds.
    pub(super) fn lost_work(&self, owners: &[Owner], now: Timestamp) -> i64 {
        let each = |owner: &Owner| {
            let claim = self.0.get(owner)?;
            let since = claim.saved_at.unwrap_or(claim.since).max(claim.since);
            let seconds = (now.micros() - since.micros()).max(0) / 1_000_000;
            Some(claim.milli.saturating_mul(seconds.max(1)))
        };
        owners.iter().filter_map(each).fold(0, i64::saturating_add)
    }

    /// The longest time in ms in which one of these running attempts gives its devices back: as learned, or its grace.
    pub(super) fn gives_back_ms(&self, owners: &[Owner]) -> i64 {
        let each = |owner: &Owner| {
            let claim = self.0.get(owner)?;
            let grace_ms = claim.preemptible?.saturating_mul(1_000);
            Some(claim.gives_back_ms.map_or(grace_ms, |learned_ms| learned_ms.min(grace_ms)))
        };
        owners.iter().filter_map(each).max().unwrap_or(0)
    }

    /// The longest grace of these victims, but at least [`SOON_S`]: no run is stopped for a start within
    /// these seconds.
    pub(super) fn wait_threshold_s(&self, victims: &[Owner]) -> i64 {
        let graces = victims.iter().filter_map(|v| self.0.get(v)?.preemptible);
        graces.max().unwrap_or(0).max(SOON_S)
    }
}

/// The number of preemptible attempts by the booking around them, kind, class and grace in seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct PreemptibleCounts(BTreeMap<(Option<BookingId>, RunKind, i64, i64), i64>);

impl PreemptibleCounts {
    /// Counts a preemptible attempt (`sign` 1), or one that has ended or stops (`sign` −1).
    pub(super) fn count(&mut self, claim: &Claim, kind: RunKind, sign: i64) {
        let Some(grace_s) = claim.preemptible else { return };
        let key = (claim.inside, kind, claim.priority.rank(), grace_s);
        let count = self.0.entry(key).or_default();
        *count += sign;
        if *count <= 0 {
            self.0.remove(&key);
        }
    }

    /// The classes and graces of the attempts of a kind below a class, in order.
    fn below(
        &self,
        inside: Option<BookingId>,
        kind: RunKind,
        class: i64,
    ) -> impl DoubleEndedIterator<Item = (i64, i64)> {
        let range = (inside, kind, i64::MIN, i64::MIN)..(inside, kind, class, i64::MIN);
        self.0.range(range).map(|((.., class, grace_s), _)| (*class, *grace_s))
    }

    /// The lowest class of preemptible attempts, inside a booking or (`None`) outside all of them, for replicas or for
    /// other jobs. For a replica an attempt that borrows counts as below all classes.
    pub(super) fn lowest(&self, inside: Option<BookingId>, replica: bool) -> Option<i64> {
        let first = |kind| self.below(inside, kind, i64::MAX).next().map(|(class, _)| class);
        let other = match replica {
            true => first(RunKind::Borrower).map(|_| i64::MIN).or_else(|| first(RunKind::Kept)),
            false => first(RunKind::Borrower),
        };
        first(RunKind::Plain).into_iter().chain(other).min()
    }

    /// For each class of attempts that some job may preempt, the longest grace up to that class in seconds; for jobs,
    /// and if pools make a difference for replicas too.
    pub(super) fn graces_s(&self, inside: Option<BookingId>) -> Vec<(i64, i64)> {
        let borrowers = self.below(inside, RunKind::Borrower, i64::MAX).map(|(_, grace_s)| grace_s).max();
        let mut out = self.longest_up_to(inside, [RunKind::Plain, RunKind::Borrower], None);
        if borrowers.is_some() || self.below(inside, RunKind::Kept, i64::MAX).next().is_some() {
            out.extend(self.longest_up_to(inside, [RunKind::Plain, RunKind::Kept], borrowers));
        }
        out
    }

    /// For each class of these kinds, the longest grace up to that class. `least_s` is the longest grace of attempts
    /// below all classes.
    fn longest_up_to(
        &self,
        inside: Option<BookingId>,
        kinds: [RunKind; 2],
        least_s: Option<i64>,
    ) -> Vec<(i64, i64)> {
        let highest = Priority::High.rank();
        let mut all: Vec<(i64, i64)> =
            kinds.into_iter().flat_map(|kind| self.below(inside, kind, highest)).collect();
        all.sort_unstable();
        let mut out: Vec<(i64, i64)> = least_s.map(|grace_s| (i64::MIN, grace_s)).into_iter().collect();
        for (class, grace_s) in all {
            let longest_s = out.last().map_or(0, |(_, longest_s)| *longest_s).max(grace_s);
            match out.last_mut().filter(|(last, _)| *last == class) {
                Some(last) => last.1 = longest_s,
                None => out.push((class, longest_s)),
            }
        }
        out
    }

    /// The longest grace of the attempts that a job may preempt, in seconds.
    pub(super) fn longest_grace_s(&self, inside: Option<BookingId>, right: PreemptionRight) -> i64 {
        let graces = RunKind::ALL.into_iter().flat_map(|kind| self.below(inside, kind, right.limit(kind)));
        graces.map(|(_, grace_s)| grace_s).max().unwrap_or(0)
    }
}

/// The lowest classes of the runs outside bookings that jobs and replicas may preempt; `i64::MAX` without such a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct LowestClasses {
    jobs: i64,
    replicas: i64,
}

impl LowestClasses {
    pub(super) const NONE: Self = Self { jobs: i64::MAX, replicas: i64::MAX };

    pub(super) fn new(counts: &PreemptibleCounts) -> Self {
        let lowest = |replica| counts.lowest(None, replica).unwrap_or(i64::MAX);
        Self { jobs: lowest(false), replicas: lowest(true) }
    }

    pub(super) fn for_ask(self, ask: &Ask) -> i64 {
        if ask.shape.work == Work::Replica { self.replicas } else { self.jobs }
    }
}

/// The latest ends of attempts, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct RunEnds(BTreeSet<(Timestamp, Owner)>);

impl RunEnds {
    /// Adds the end of a claim (`sign` 1), or removes it (`sign` −1).
    pub(super) fn count(&mut self, claim: &Claim, sign: i64) {
        match claim.ends_by.map(|end| (end, claim.owner)) {
            Some(end) if sign > 0 => _ = self.0.insert(end),
            Some(end) => _ = self.0.remove(&end),
            None => {}
        }
    }

    /// The first end.
    pub(super) fn first(&self) -> Option<Timestamp> {
        self.0.first().map(|(end, _)| *end)
    }

    /// The ends after a time, in order.
    pub(super) fn after(&self, at: Timestamp) -> impl Iterator<Item = (Timestamp, Owner)> {
        let after = (at, Owner { job: JobId::from_uuid(uuid::Uuid::max()), attempt: u32::MAX });
        self.0.range((Bound::Excluded(after), Bound::Unbounded)).copied()
    }
}
