//! The application of facts.

use std::collections::BTreeSet;

use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::node_pools::NodePool;
use berth_types::time::Timestamp;

use super::facts::{Claim, ClaimBill, ClaimRank, Fact, JobFacts, OrgFacts, VersionedItem};
use super::held::Basis;
use super::{Engine, WaitingJob, hold, node_pools};
use berth_placement::cluster::{
    NodeFacts, NodeIx, Owner, Rank, has_pools, network_need, present_work, set_egress_policy, set_own_only,
    tenancy,
};
use berth_placement::fair_share::OrgIx;
use berth_placement::pools::Work;
use berth_placement::queue::{Group, Lane};
use berth_placement::quotas::Need;
use berth_placement::request::Ask;

impl Engine {
    /// Applies a fact; an older version of an item changes nothing.
    pub fn apply(&mut self, fact: Fact, now: Timestamp) {
        match fact {
            Fact::Node { version, facts } => {
                if self.versions.is_newer(VersionedItem::Node(facts.id), version) {
                    put_node(self, facts);
                }
            }
            Fact::Waits { version, facts } => {
                if self.versions.is_newer(VersionedItem::Job(facts.id), version) {
                    put_job(self, facts);
                }
            }
            Fact::Left { version, job } => {
                if self.versions.is_newer(VersionedItem::Job(job), version) {
                    remove_job(self, job);
                }
            }
            Fact::Ended { job, succeeded } => put_outcome(self, job, succeeded),
            Fact::Claim { version, claim } => {
                if self.versions.is_newer(VersionedItem::Claim(claim.owner), version) {
                    put_claim(self, claim, now);
                }
            }
            Fact::Freed { version, owner } => {
                if self.versions.is_newer(VersionedItem::Claim(owner), version) {
                    remove_claim(self, owner, now);
                }
            }
            Fact::Booked { version, booking } => {
                if self.versions.is_newer(VersionedItem::Booking(booking.id), version) {
                    self.calendar.put(&self.cluster, booking);
                }
            }
            Fact::Unbooked { version, id } => {
                if self.versions.is_newer(VersionedItem::Booking(id), version) {
                    self.calendar.remove(id);
                }
            }
            Fact::Org(facts) => put_org(self, facts, now),
        }
    }
}

/// Sets the weight, the use, the limits, the nodes and the network of an organization.
fn put_org(engine: &mut Engine, facts: OrgFacts, now: Timestamp) {
    set_own_only(&mut engine.cluster, facts.org, facts.own_nodes_only);
    set_egress_policy(&mut engine.cluster, facts.org, facts.egress_policy);
    requeue(engine, facts.org);
    engine.shares.put(facts.org, facts.weight, facts.guaranteed_milli, facts.used, now);
    let org = engine.shares.index(facts.org);
    let Engine { quotas, cluster, queue, .. } = engine;
    quotas.put(org, facts.limits, |name| cluster.offering(Some(name)));
    queue.mark_changed(org, true);
    mark_aside_changed(engine, org, true);
}

/// Adds the use of a claim (`sign` 1), or subtracts it (`sign` −1). A run inside a booking counts against
/// no limit, since its booking bounds it.
fn count(engine: &mut Engine, claim: &Claim, sign: i64, now: Timestamp) {
    engine.preemptible.count(claim, node_pools::run_kind(&engine.cluster, claim), sign);
    engine.ends.count(claim, sign);
    engine.shares.add_running(claim.org, sign * claim.milli, now);
    let org = engine.shares.index(claim.org);
    let offering = engine.cluster.offering(claim.bill.offering.as_ref());
    let ClaimBill { devices_milli, nano_per_second, .. } = claim.bill;
    let need = match claim.inside {
        Some(_) => Need { boards_milli: 0, offering: 0, devices_milli: 0, nano_per_second: 0 },
        None => Need { boards_milli: claim.milli, offering, devices_milli, nano_per_second },
    };
    engine.quotas.count(org, &need, sign);
    // The turns of the organization change in every pool.
    let limited = engine.quotas.is_limited(org);
    engine.queue.mark_changed(org, limited);
    mark_aside_changed(engine, org, limited);
}

/// Marks the pools of jobs aside as changed after a change of an organization. These jobs are in no line;
/// their order may differ, and the limits may now admit or refuse those of the organization.
fn mark_aside_changed(engine: &mut Engine, org: OrgIx, limited: bool) {
    for (job, held) in engine.holds.iter().filter(|(_, h)| h.basis != Basis::First) {
        let own = engine.jobs.get(&job).and_then(|w| w.lane).is_some_and(|lane| lane.group.org == org);
        engine.queue.mark_pool_changed(held.pool, limited && own);
    }
}

/// Adds or updates a node, and places the claims that waited for it.
pub(super) fn put_node(engine: &mut Engine, facts: NodeFacts) {
    let id = facts.id;
    let before = engine.cluster.changes();
    let known = engine.cluster.find_node(id).and_then(|index| engine.cluster.node(index));
    let (old_org, new_org) = (known.and_then(|node| node.facts.dedicated_to), facts.dedicated_to);
    let change = begin_pool_change(engine, &facts);
    let index = engine.cluster.put_node(facts);
    if engine.cluster.changes() != before {
        engine.calendar.recount_node(&engine.cluster, index);
        // The new boards may draw less power than the old ones.
        engine.racks.mark_changed(&mut engine.cluster, index);
    }
    end_pool_change(engine, change);
    if old_org != new_org {
        old_org.into_iter().chain(new_org).for_each(|org| requeue(engine, org));
    }
    for owner in engine.unplaced.remove(&id).unwrap_or_default() {
        let Some(claim) = engine.claims.get(owner) else { continue };
        for rank in claim.ranks.iter().filter(|r| r.node == id) {
            let rank = cluster_rank(claim, rank);
            engine.cluster.hold(index, rank);
        }
    }
}

/// The change of a node, which may be one of its pool.
struct PoolChange {
    /// The runs on the node, if its pool changes.
    owners: BTreeSet<Owner>,
    had_pools: bool,
}

/// Counts runs by their kinds for preemptions (`sign` 1), or subtracts them (`sign` −1).
fn count_kinds(engine: &mut Engine, owners: &BTreeSet<Owner>, sign: i64) {
    let Engine { cluster, claims, preemptible, .. } = engine;
    for claim in owners.iter().filter_map(|owner| claims.get(*owner)) {
        preemptible.count(claim, node_pools::run_kind(cluster, claim), sign);
    }
}

/// Prepares the change of a node: the kinds of its runs depend on its pool.
fn begin_pool_change(engine: &mut Engine, facts: &NodeFacts) -> PoolChange {
    let had_pools = has_pools(&engine.cluster);
    let known = engine.cluster.find_node(facts.id).and_then(|index| engine.cluster.node(index));
    if known.map_or(NodePool::Both, |node| node.facts.pool) == facts.pool {
        return PoolChange { owners: BTreeSet::new(), had_pools };
    }
    let placed = known.into_iter().flat_map(|node| node.ranks.iter().map(|rank| rank.owner));
    let unplaced = engine.unplaced.get(&facts.id).into_iter().flatten().copied();
    let owners: BTreeSet<Owner> = placed.chain(unplaced).collect();
    count_kinds(engine, &owners, -1);
    PoolChange { owners, had_pools }
}

/// Completes the change of a node, and queues the waiting jobs anew if their kind counts now or not any more.
fn end_pool_change(engine: &mut Engine, change: PoolChange) {
    let PoolChange { owners, had_pools } = change;
    count_kinds(engine, &owners, 1);
    let ranks = owners.iter().filter_map(|owner| engine.claims.get(*owner)).flat_map(|claim| &claim.ranks);
    let nodes: Vec<NodeIx> = ranks.filter_map(|rank| engine.cluster.find_node(rank.node)).collect();
    nodes.into_iter().for_each(|node| engine.cluster.mark_changed(node));
    if had_pools == has_pools(&engine.cluster) {
        return;
    }
    let has_changed = |facts: &&JobFacts| {
        let ask = engine.jobs.get(&facts.id).and_then(|waiting| waiting.ask);
        ask.is_some_and(|ask| ask.shape.work != present_work(&engine.cluster, facts.request.work))
    };
    let jobs: Vec<JobFacts> =
        engine.jobs.values().map(|waiting| &waiting.facts).filter(has_changed).cloned().collect();
    jobs.into_iter().for_each(|facts| insert_anew(engine, facts));
}

/// Adds or replaces a waiting job.
pub(super) fn put_job(engine: &mut Engine, facts: JobFacts) {
    let id = facts.id;
    if engine.jobs.get(&id).is_some_and(|known| known.facts == facts) {
        return;
    }
    let was_known = engine.jobs.contains_key(&id);
    insert_anew(engine, facts);
    if !was_known && let Some(ask) = engine.jobs.get(&id).and_then(|w| w.ask) {
        engine.finder.observe(&ask.shape, &engine.cluster);
    }
}

/// Inserts a waiting job in place of the one with its id.
fn insert_anew(engine: &mut Engine, facts: JobFacts) {
    let id = facts.id;
    remove_job(engine, id);
    engine.dependencies.insert(id, &facts.depends_on);
    engine.jobs.insert(id, WaitingJob { facts, lane: None, ask: None });
    enqueue(engine, id);
}

/// Queues the waiting jobs of an organization anew if the nodes that it may use or the needed networks have changed
/// since.
fn requeue(engine: &mut Engine, org: OrgId) {
    let tenancy = tenancy(&engine.cluster, org);
    let has_changed = |waiting: &&WaitingJob| {
        let network = network_need(&engine.cluster, org, waiting.facts.request.network);
        let differs = |ask: Ask| ask.shape.tenancy != tenancy || ask.shape.network != network;
        waiting.facts.org == org && waiting.ask.is_some_and(differs)
    };
    let jobs: Vec<JobFacts> =
        engine.jobs.values().filter(has_changed).map(|waiting| waiting.facts.clone()).collect();
    jobs.into_iter().for_each(|facts| insert_anew(engine, facts));
}

/// Puts a job into the queue if no dependency or volume blocks it.
fn enqueue(engine: &mut Engine, id: JobId) {
    let Some(waiting) = engine.jobs.get_mut(&id).filter(|w| w.lane.is_none()) else { return };
    let facts = &waiting.facts;
    let met = |dependency| engine.dependencies.is_met(dependency);
    if !facts.depends_on.iter().all(met) || facts.volume.is_some() {
        return;
    }
    // An invalid request stays out of the queue; `why` returns the reason.
    let Ok(ask) = Ask::from_request(&facts.request, facts.org, &mut engine.cluster) else { return };
    let seconds = facts.max_duration_s;
    let replica = facts.request.work == Work::Replica;
    let group = Group { class: facts.priority.rank(), replica, org: engine.shares.index(facts.org) };
    let lane = Lane { ask: ask.for_anybody(), group, seconds, inside: facts.inside };
    (waiting.lane, waiting.ask) = (Some(lane), Some(ask));
    engine.queue.insert(lane, facts.queued_at, id);
}

/// Removes a waiting job with its held start and its dependencies.
pub(super) fn remove_job(engine: &mut Engine, id: JobId) {
    hold::drop_hold(engine, id);
    engine.holds.remove_inside(id);
    engine.impossible.remove(&id);
    let Some(old) = engine.jobs.remove(&id) else { return };
    if let Some(lane) = old.lane {
        engine.queue.remove(lane, old.facts.queued_at, id);
    }
    engine.dependencies.remove(id, &old.facts.depends_on);
}

/// Records the end of a job, and queues the jobs that waited for it.
fn put_outcome(engine: &mut Engine, job: JobId, succeeded: bool) {
    for id in engine.dependencies.put_outcome(job, succeeded) {
        enqueue(engine, id);
    }
}

/// Adds or replaces the claim of an attempt.
pub(super) fn put_claim(engine: &mut Engine, mut claim: Claim, now: Timestamp) {
    let owner = claim.owner;
    // The grace counts from the first fact of the stop, and never extends the limit.
    let before = engine.claims.get(owner).and_then(|old| old.ends_by).filter(|_| claim.stops);
    claim.ends_by = claim.ends_by.map(|end| before.map_or(end, |before| before.min(end)));
    if engine.claims.get(owner) == Some(&claim) {
        return;
    }
    // Ranks on nodes that the new claim omits are released; the others are updated.
    if let Some(old) = engine.claims.remove(owner) {
        engine.preemptions.remove(&old);
        count(engine, &old, -1, now);
        for rank in old.ranks.iter().filter(|r| !claim.ranks.iter().any(|n| n.node == r.node)) {
            forget_rank(engine, rank.node, owner);
        }
        mark_racks_changed(engine, &old);
    }
    engine.preemptions.insert(&claim);
    count(engine, &claim, 1, now);
    for rank in &claim.ranks {
        match engine.cluster.find_node(rank.node) {
            Some(index) => engine.cluster.hold(index, cluster_rank(&claim, rank)),
            None => {
                engine.unplaced.entry(rank.node).or_default().insert(owner);
            }
        }
    }
    mark_racks_changed(engine, &claim);
    engine.claims.insert(claim);
}

/// Releases the devices of an attempt on a node.
fn forget_rank(engine: &mut Engine, node: NodeId, owner: Owner) {
    match engine.cluster.find_node(node) {
        Some(index) => engine.cluster.release(index, owner),
        None => {
            if let Some(owners) = engine.unplaced.get_mut(&node) {
                owners.remove(&owner);
            }
        }
    }
}

/// Removes the claim of an attempt, and releases its devices.
pub(super) fn remove_claim(engine: &mut Engine, owner: Owner, now: Timestamp) {
    let Some(old) = engine.claims.remove(owner) else { return };
    engine.preemptions.remove(&old);
    count(engine, &old, -1, now);
    for rank in &old.ranks {
        forget_rank(engine, rank.node, owner);
    }
    mark_racks_changed(engine, &old);
}

/// Marks the racks of a claim's nodes as changed.
fn mark_racks_changed(engine: &mut Engine, claim: &Claim) {
    for rank in &claim.ranks {
        if let Some(index) = engine.cluster.find_node(rank.node) {
            engine.racks.mark_changed(&mut engine.cluster, index);
        }
    }
}

/// The rank of a claim in the form of the cluster.
fn cluster_rank(claim: &Claim, rank: &ClaimRank) -> Rank {
    Rank {
        owner: claim.owner,
        org: claim.org,
        cpu_milli: rank.cpu_milli,
        memory_mib: rank.memory_mib,
        slots: rank.slots.clone(),
        ends_by: claim.ends_by,
        inside: claim.inside,
    }
}
