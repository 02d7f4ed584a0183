//! The balancer of a service: the revision of a request by weight, and its replica.
//!
//! The replica is the better of two random ones, by outstanding requests relative to concurrency (the power of
//! two choices). Requests of one session go to the replica with the highest hash of session and replica
//! (rendezvous hashing), so a replica that leaves moves its own sessions only. Its load is bounded: above
//! 1.25 times the mean a request goes to the next hash (consistent hashing with bounded loads).

mod outliers;

use std::collections::BTreeMap;

use berth_types::ids::{InferenceKeyId, RevisionId};
use rand::RngCore;
use sha2::{Digest, Sha256};

use crate::snapshot::{Replica, ReplicaId, Service};
use outliers::Outlier;

/// Milliseconds in which a new replica comes to its full share.
const SLOW_START_MS: u64 = 10_000;
/// The bound of a replica's load, in percent of the mean.
const BOUND_PERCENT: u128 = 125;
/// Thousandths of one concurrent request.
const MILLI: u128 = 1_000;

/// The name of a session or of a prompt's begin, the same on all gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session(u64);

impl Session {
    pub fn new(text: &[u8]) -> Self {
        Self(Sha256::digest(text).first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes)))
    }
}

/// A request for a replica.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ask<'a> {
    pub key: Option<InferenceKeyId>,
    pub session: Option<Session>,
    /// The begin of the prompt. It chooses the replica where no session does, and never the revision.
    pub prefix: Option<Session>,
    /// Replicas that failed this request before.
    pub except: &'a [ReplicaId],
}

/// The replica of a request. Each pick ends with one [`Balancer::finish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    pub revision: RevisionId,
    pub replica: ReplicaId,
}

/// The reason why a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoReplica {
    /// No revision with weight has a replica.
    Asleep,
    /// Each replica of the revision has as many requests as it takes, or failed this request before.
    Full,
}

/// The end of a request at a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A whole answer that blames nothing on the replica.
    Answered,
    /// No connection, a broken answer, or a status 502 to 504.
    Failed,
    /// The caller left: no evidence about the replica.
    Abandoned,
}

#[derive(Debug)]
struct Weighted {
    id: RevisionId,
    weight: u64,
    pinned: Vec<InferenceKeyId>,
}

#[derive(Debug)]
struct State {
    revision: RevisionId,
    concurrency: u32,
    outstanding: u32,
    ready_at_ms: u64,
    /// Present in the snapshot and not draining.
    is_open: bool,
    is_listed: bool,
    outlier: Outlier,
}

/// A replica that could get the request.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: ReplicaId,
    outstanding: u32,
    concurrency: u32,
    /// Its concurrency in thousandths, lower during its slow start.
    warm_milli: u128,
}

impl Candidate {
    const fn has_room(&self) -> bool {
        self.outstanding < self.concurrency
    }

    /// True if one more request makes this one no more loaded than `other` with one more.
    fn is_better(&self, other: &Self) -> bool {
        let with_one = |c: &Self| u128::from(c.outstanding) + 1;
        with_one(self) * other.warm_milli <= with_one(other) * self.warm_milli
    }
}

/// The replicas of one service with their outstanding requests from this gateway.
#[derive(Debug, Default)]
pub struct Balancer {
    revisions: Vec<Weighted>,
    replicas: BTreeMap<ReplicaId, State>,
}

impl Balancer {
    /// Takes over the service of a new snapshot. Outstanding requests and evidence stay.
    pub fn update(&mut self, service: &Service, now_ms: u64) {
        self.revisions.clear();
        for state in self.replicas.values_mut() {
            state.is_open = false;
            state.is_listed = false;
        }
        for revision in &service.revisions {
            self.revisions.push(Weighted {
                id: revision.id,
                weight: u64::from(revision.weight_percent),
                pinned: revision.pinned_keys.clone(),
            });
            for replica in &revision.replicas {
                self.put(revision.id, replica, now_ms);
            }
        }
        self.replicas.retain(|_, state| state.is_listed || state.outstanding > 0);
        for index in 0..self.revisions.len() {
            self.return_excess(index, now_ms);
        }
    }

    fn put(&mut self, revision: RevisionId, replica: &Replica, now_ms: u64) {
        let ready_at_ms = now_ms.saturating_sub(replica.ready_for_ms);
        let state = self.replicas.entry(replica.id).or_insert_with(|| State {
            revision,
            concurrency: replica.concurrency,
            outstanding: 0,
            ready_at_ms,
            is_open: false,
            is_listed: false,
            outlier: Outlier::default(),
        });
        state.revision = revision;
        state.concurrency = replica.concurrency;
        state.is_open = !replica.draining;
        state.is_listed = true;
    }

    /// Chooses the replica of a request and counts the request there.
    ///
    /// # Errors
    /// No replica can take it now; the request waits in [`crate::queue`].
    pub fn pick(&mut self, ask: &Ask<'_>, now_ms: u64, rng: &mut impl RngCore) -> Result<Pick, NoReplica> {
        let revision = self.revision(ask, rng).ok_or(NoReplica::Asleep)?;
        let candidates = self.candidates(revision, ask.except, now_ms);
        let session = ask.session.or(ask.prefix);
        let by_session = session.and_then(|session| bounded_choice(&candidates, session));
        let replica = by_session.or_else(|| two_choices(&candidates, rng)).ok_or(NoReplica::Full)?;
        let state = self.replicas.get_mut(&replica).ok_or(NoReplica::Full)?;
        state.outstanding += 1;
        Ok(Pick { revision, replica })
    }

    /// The revision of a request: the one that pins its key, or one by weight among those with an open replica.
    /// A session keeps its revision while the weights stay.
    fn revision(&self, ask: &Ask<'_>, rng: &mut impl RngCore) -> Option<RevisionId> {
        let is_open =
            |id: RevisionId| self.replicas.values().any(|state| state.is_open && state.revision == id);
        let open: Vec<&Weighted> = self.revisions.iter().filter(|r| is_open(r.id)).collect();
        let pins = |key: InferenceKeyId| open.iter().find(|r| r.pinned.contains(&key));
        if let Some(pinned) = ask.key.and_then(pins) {
            return Some(pinned.id);
        }
        let total: u64 = open.iter().map(|r| r.weight).sum();
        let mut place = match ask.session {
            // Another mix than that of the replicas, so that the two choices are independent.
            Some(Session(session)) => below(mix(!session), total),
            None => below(rng.next_u64(), total),
        };
        for revision in open {
            if place < revision.weight {
                return Some(revision.id);
            }
            place -= revision.weight;
        }
        None
    }

    fn candidates(&self, revision: RevisionId, except: &[ReplicaId], now_ms: u64) -> Vec<Candidate> {
        let able = self.replicas.iter().filter(|(_, state)| {
            state.is_open && state.revision == revision && !state.outlier.is_ejected(now_ms)
        });
        let left = able.filter(|(id, _)| !except.contains(*id));
        left.map(|(id, state)| candidate(*id, state, now_ms)).collect()
    }

    /// Ends a request of [`Self::pick`], with the evidence about its replica.
    pub fn finish(&mut self, replica: ReplicaId, outcome: Outcome, now_ms: u64) {
        let Some(state) = self.replicas.get_mut(&replica) else { return };
        state.outstanding = state.outstanding.saturating_sub(1);
        if !state.is_listed && state.outstanding == 0 {
            self.replicas.remove(&replica);
            return;
        }
        let failed = match outcome {
            Outcome::Answered => false,
            Outcome::Failed => true,
            Outcome::Abandoned => return,
        };
        let is_outlier = state.outlier.record(failed, now_ms);
        let (revision, is_open) = (state.revision, state.is_open);
        if !is_outlier || !is_open {
            return;
        }
        let (open, ejected) = self.ejected(revision, now_ms);
        if (ejected + 1) * 2 <= open
            && let Some(state) = self.replicas.get_mut(&replica)
        {
            state.outlier.eject(now_ms);
        }
    }

    /// The open replicas of a revision, and those among them that are ejected.
    fn ejected(&self, revision: RevisionId, now_ms: u64) -> (usize, usize) {
        let open = self.replicas.values().filter(|state| state.is_open && state.revision == revision);
        open.fold((0, 0), |(all, out), state| (all + 1, out + usize::from(state.outlier.is_ejected(now_ms))))
    }

    /// Returns ejected replicas of a revision, the next to return first, until at most half of it is ejected.
    fn return_excess(&mut self, index: usize, now_ms: u64) {
        let Some(revision) = self.revisions.get(index).map(|r| r.id) else { return };
        loop {
            let (open, ejected) = self.ejected(revision, now_ms);
            if ejected * 2 <= open {
                return;
            }
            let out = self.replicas.values_mut().filter(|state| {
                state.is_open && state.revision == revision && state.outlier.is_ejected(now_ms)
            });
            let Some(next) = out.min_by_key(|state| state.outlier.ejected_until_ms()) else { return };
            next.outlier.return_now(now_ms);
        }
    }

    /// Closes all replicas until the next update. Outstanding requests stay.
    pub fn close(&mut self) {
        self.replicas.values_mut().for_each(|state| state.is_open = false);
    }

    /// The known replicas without a request from this gateway.
    pub fn free(&self) -> impl Iterator<Item = ReplicaId> {
        self.replicas.iter().filter(|(_, state)| state.outstanding == 0).map(|(id, _)| *id)
    }

    /// The requests at a replica from this gateway.
    pub fn outstanding(&self, replica: ReplicaId) -> u32 {
        self.replicas.get(&replica).map_or(0, |state| state.outstanding)
    }
}

fn candidate(id: ReplicaId, state: &State, now_ms: u64) -> Candidate {
    let age = now_ms.saturating_sub(state.ready_at_ms).min(SLOW_START_MS);
    let full = u128::from(state.concurrency) * MILLI;
    let warm_milli = (full * u128::from(age) / u128::from(SLOW_START_MS)).clamp(MILLI, full.max(MILLI));
    Candidate { id, outstanding: state.outstanding, concurrency: state.concurrency, warm_milli }
}

/// The better of two random replicas with room.
fn two_choices(candidates: &[Candidate], rng: &mut impl RngCore) -> Option<ReplicaId> {
    let with_room: Vec<&Candidate> = candidates.iter().filter(|c| c.has_room()).collect();
    let count = with_room.len() as u64;
    if count < 2 {
        return with_room.first().map(|only| only.id);
    }
    let first = below(rng.next_u64(), count);
    let other = below(rng.next_u64(), count - 1);
    let second = if other >= first { other + 1 } else { other };
    let (first, second) = (with_room.get(first as usize)?, with_room.get(second as usize)?);
    Some(if first.is_better(second) { first.id } else { second.id })
}

/// The replica with the highest hash whose load stays within the bound.
///
/// With m requests including this one and a bound of 1.25 m × concurrency / all concurrency, rounded up, some
/// replica with room is always below its bound.
fn bounded_choice(candidates: &[Candidate], session: Session) -> Option<ReplicaId> {
    let requests = candidates.iter().map(|c| u128::from(c.outstanding)).sum::<u128>() + 1;
    let all = candidates.iter().map(|c| u128::from(c.concurrency)).sum::<u128>().max(1);
    let is_within = |c: &&Candidate| {
        let bound = (requests * BOUND_PERCENT * u128::from(c.concurrency)).div_ceil(all * 100);
        c.has_room() && u128::from(c.outstanding) < bound
    };
    let is_warm = |c: &&Candidate| u128::from(c.outstanding) * MILLI < c.warm_milli;
    let rank = |c: &&Candidate| (mix(session.0 ^ hash(c.id)), c.id);
    let warm = candidates.iter().filter(is_within).filter(is_warm).max_by_key(rank);
    warm.or_else(|| candidates.iter().filter(is_within).max_by_key(rank)).map(|c| c.id)
}

fn hash(id: ReplicaId) -> u64 {
    let (high, low) = id.job.uuid().as_u64_pair();
    let rank = (u64::from(id.attempt) << 32) | u64::from(id.rank);
    mix(high ^ mix(low ^ mix(rank)))
}

/// A bijection that spreads each bit over all (the finalizer of SplitMix64).
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A number below `end` from a uniform one.
const fn below(uniform: u64, end: u64) -> u64 {
    ((uniform as u128 * end as u128) >> 64) as u64
}

#[cfg(test)]
mod tests;
