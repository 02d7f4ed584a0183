//! The claims of attempts, and their counts for preemption and for the times of their ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use berth_types::ids::JobId;
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;

use super::facts::Claim;
use berth_placement::cluster::{BookingId, Owner};

/// No run is stopped for a job that starts within these seconds by itself.
const SOON_S: i64 = 30;

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

    /// The attempts that a class may preempt, with the lost work, the cheapest first.
    pub(super) fn eligible(
        &self,
        class: i64,
        inside: Option<BookingId>,
        now: Timestamp,
    ) -> Vec<(i64, Owner)> {
        let below = |c: &&Claim| c.preemptible.is_some() && c.priority.rank() < class && c.inside == inside;
        let mut all: Vec<(i64, Owner)> =
            self.iter().filter(below).map(|c| (self.lost_work(&[c.owner], now), c.owner)).collect();
        all.sort_unstable();
        all
    }

    /// The longest grace of these victims, but at least [`SOON_S`]: no run is stopped for a start within
    /// these seconds.
    pub(super) fn wait_threshold_s(&self, victims: &[Owner]) -> i64 {
        let graces = victims.iter().filter_map(|v| self.0.get(v)?.preemptible);
        graces.max().unwrap_or(0).max(SOON_S)
    }
}

/// The number of preemptible attempts by the booking around them, class and grace in seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct PreemptibleCounts(BTreeMap<(Option<BookingId>, i64, i64), i64>);

impl PreemptibleCounts {
    /// Counts a preemptible attempt (`sign` 1), or one that has ended or stops (`sign` −1).
    pub(super) fn count(&mut self, claim: &Claim, sign: i64) {
        let Some(grace_s) = claim.preemptible else { return };
        let key = (claim.inside, claim.priority.rank(), grace_s);
        let count = self.0.entry(key).or_default();
        *count += sign;
        if *count <= 0 {
            self.0.remove(&key);
        }
    }

    /// The lowest class of preemptible attempts, inside a booking or (`None`) outside all of them.
    pub(super) fn lowest(&self, inside: Option<BookingId>) -> Option<i64> {
        let from = self.0.range((inside, i64::MIN, i64::MIN)..);
        from.take_while(|((scope, ..), _)| *scope == inside).map(|((_, class, _), _)| *class).next()
    }

    /// For each class of attempts that some class may preempt, the longest grace up to that class in seconds.
    pub(super) fn graces_s(&self, inside: Option<BookingId>) -> Vec<(i64, i64)> {
        let from = (inside, i64::MIN, i64::MIN);
        let to = (inside, Priority::High.rank(), i64::MIN);
        let mut out: Vec<(i64, i64)> = Vec::new();
        for (_, class, grace_s) in self.0.range(from..to).map(|(key, _)| *key) {
            let longest_s = out.last().map_or(0, |(_, longest_s)| *longest_s).max(grace_s);
            match out.last_mut().filter(|(last, _)| *last == class) {
                Some(last) => last.1 = longest_s,
                None => out.push((class, longest_s)),
            }
        }
        out
    }

    /// The longest grace of the attempts that a class may preempt, in seconds.
    pub(super) fn longest_grace_s(&self, inside: Option<BookingId>, class: i64) -> i64 {
        let graces = self.0.range((inside, i64::MIN, i64::MIN)..(inside, class, i64::MIN));
        graces.map(|((.., grace_s), _)| *grace_s).max().unwrap_or(0)
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
