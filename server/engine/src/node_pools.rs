//! Pools of nodes: the runs that borrow nodes for inference, and the jobs that may preempt them.
//!
//! A replica may preempt a run that borrows whatever its class. A replica on a node for inference is preempted for
//! another replica only, because the two would otherwise preempt each other without end.

use berth_types::ids::JobId;
use berth_types::node_pools::NodePool;

use super::burst_reserve::BurstReserve;
use super::facts::{Claim, ClaimRank};
use super::reasons::Blocker;
use super::{Engine, Span, burst_reserve, order, place};
use berth_placement::calendar::Exclusions;
use berth_placement::cluster::{Cluster, Node, View, has_pools};
use berth_placement::pools::{Work, takes};
use berth_placement::request::Ask;

/// The kind of a run for preemptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RunKind {
    /// Its class decides.
    Plain,
    /// No replica, with a rank on a node for inference.
    Borrower,
    /// A replica with a rank on a node for inference.
    Kept,
}

impl RunKind {
    pub(super) const ALL: [Self; 3] = [Self::Plain, Self::Borrower, Self::Kept];
}

/// The kind of a run. A booking keeps its runs for its own jobs, so pools change nothing there.
pub(super) fn run_kind(cluster: &Cluster, claim: &Claim) -> RunKind {
    if !has_pools(cluster) || claim.inside.is_some() {
        return RunKind::Plain;
    }
    let is_for_inference = |rank: &ClaimRank| {
        let node = cluster.find_node(rank.node).and_then(|index| cluster.node(index));
        node.is_some_and(|node| node.facts.pool == NodePool::Inference)
    };
    match (claim.ranks.iter().any(is_for_inference), claim.replica) {
        (false, _) => RunKind::Plain,
        (true, false) => RunKind::Borrower,
        (true, true) => RunKind::Kept,
    }
}

/// The right of a waiting job to preempt runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PreemptionRight {
    class: i64,
    pub(super) replica: bool,
}

impl PreemptionRight {
    pub(super) fn new(ask: &Ask, class: i64) -> Self {
        Self { class, replica: ask.shape.work == Work::Replica }
    }

    /// The right to preempt runs that borrow for the reserve for bursts, whatever their class, and no others.
    pub(super) const fn for_reserve() -> Self {
        Self { class: i64::MIN, replica: true }
    }

    /// The class from which on the runs of a kind stay.
    pub(super) const fn limit(self, kind: RunKind) -> i64 {
        match (kind, self.replica) {
            (RunKind::Borrower, true) => i64::MAX,
            (RunKind::Kept, false) => i64::MIN,
            _ => self.class,
        }
    }

    /// True if the job may preempt a running attempt.
    pub(super) fn covers(self, cluster: &Cluster, claim: &Claim) -> bool {
        claim.preemptible.is_some() && claim.priority.rank() < self.limit(run_kind(cluster, claim))
    }
}

/// True if a job may start on devices that runs give back for the job `other`: it has a higher class, and is a replica
/// if the other is one.
pub(super) fn may_go_before(engine: &Engine, job: JobId, other: JobId) -> bool {
    let class = |job: JobId| engine.jobs.get(&job).map(|waiting| waiting.facts.priority.rank());
    let is_higher = class(job).zip(class(other)).is_some_and(|(own, other)| other < own);
    is_higher && (order::is_replica(engine, job) || !order::is_replica(engine, other))
}

/// The same ask on nodes of any pool: all of them take a preemptible job.
pub(super) fn any_pool(engine: &Engine, ask: &Ask) -> Ask {
    let mut any = *ask;
    if has_pools(&engine.cluster) {
        any.shape.work = Work::Preemptible;
    }
    any
}

/// The blocker of an ask that other pools could hold, with `boards` free ones there.
pub(super) fn blocker(ask: &Ask, boards: u32) -> Blocker {
    Blocker::Pool { boards, replica: ask.shape.work == Work::Replica }
}

/// The number of suitable free boards on nodes of pools that do not take an ask, if it would find its place in the span
/// with them.
pub(super) fn free_elsewhere(
    engine: &mut Engine,
    ask: &Ask,
    (now, until): Span,
    excluded: Exclusions<'_>,
) -> u32 {
    let any = any_pool(engine, ask);
    let reserve = engine.burst_reserve;
    if ask.shape.work == Work::Replica {
        // The reserve is no limit for a replica.
        engine.burst_reserve = BurstReserve::default();
    }
    let free = if any == *ask { 0 } else { count_free(engine, (ask, &any), (now, until), excluded) };
    engine.burst_reserve = reserve;
    free
}

/// The same for an ask and its form for any pool.
fn count_free(
    engine: &mut Engine,
    (ask, any): (&Ask, &Ask),
    (now, until): Span,
    excluded: Exclusions<'_>,
) -> u32 {
    if place::find_places(engine, any, now, until, excluded).is_none() {
        return 0;
    }
    let models = engine.cluster.models();
    let is_refused = |view: &&View| !takes(view.pool, ask.shape.work) && any.shape.may_fit(view, models);
    let views = engine.cluster.nodes().iter().map(Node::view).filter(is_refused);
    let free = |view: &View| view.gpus().iter().filter(|gpu| any.shape.fits_gpu(gpu, models)).count();
    let free = u32::try_from(views.map(free).sum::<usize>()).unwrap_or(u32::MAX);
    // The reserve for bursts stays free.
    let lendable = burst_reserve::for_run(engine, any, (now, until), now, excluded);
    lendable.map_or(free, |lendable| free.min(lendable.count().max(1)))
}
