//! Requests that no nodes of the cloud could ever hold.

use berth_types::ids::OrgId;

use super::place::Limits;
use super::reasons::{Blocker, WaitReasons};
use super::{Engine, node_pools, order, place};
use berth_placement::cluster::{NodeIx, missing_storage};
use berth_placement::networks::NetworkNeed;
use berth_placement::request::{Ask, InvalidRequest, Request};

/// The largest number of asks in `Caches::possible`.
const MAX_POSSIBLE: usize = 4_096;

impl Engine {
    /// The reason for which the nodes of the cloud could never hold a request, even if all were open, healthy
    /// and empty. `None` if they could, or if the cloud has no board yet.
    ///
    /// # Errors
    /// No cluster could ever meet the request.
    pub fn why_impossible(
        &mut self,
        request: &Request,
        org: OrgId,
    ) -> Result<Option<WaitReasons>, InvalidRequest> {
        let ask = Ask::from_request(request, org, &mut self.cluster)?;
        // A cloud without boards is being set up.
        if self.cluster.nodes().iter().all(|n| n.facts.gpus.is_empty()) {
            return Ok(None);
        }
        // An operator can install podman, mount a file system, start another worker, connect a port, or dedicate a node or
        // change its pool at once, but not add boards.
        let is_final = |blocker: &Blocker| match blocker {
            Blocker::Images { .. }
            | Blocker::Network { .. }
            | Blocker::Storage { .. }
            | Blocker::OwnNodes { .. }
            | Blocker::Pool { .. } => false,
            Blocker::Rdma { .. } => !waits_for_ports(self, &ask),
            _ => true,
        };
        let blocker = why_ask_impossible(self, &ask, &place::able_nodes(self, &ask)).filter(is_final);
        let why = |b| WaitReasons { blockers: vec![b], changes: Vec::new(), earliest: None, fits: false };
        Ok(blocker.map(why))
    }
}

/// Returns impossible jobs to the queue if the nodes can hold them after a change of equipment.
pub(super) fn put_possible_back(engine: &mut Engine) {
    let equipped = engine.cluster.equipment_version();
    if std::mem::replace(&mut engine.caches.equipped, equipped) == equipped {
        return;
    }
    for job in std::mem::take(&mut engine.impossible) {
        let Some(ask) = engine.jobs.get(&job).and_then(|w| w.ask) else { continue };
        if is_possible(engine, &ask) {
            order::put_back(engine, job);
        } else {
            engine.impossible.insert(job);
        }
    }
}

/// True if enough nodes could hold an ask while empty.
pub(super) fn is_possible(engine: &mut Engine, ask: &Ask) -> bool {
    let ask = ask.for_anybody();
    let equipped = engine.cluster.equipment_version();
    if let Some((_, known)) = engine.caches.possible.get(&ask).filter(|(as_of, _)| *as_of == equipped) {
        return *known;
    }
    let able = place::all_nodes(engine).filter(|node| place::is_able(engine, *node, &ask));
    let possible = able.take(ask.nodes as usize).count() == ask.nodes as usize;
    if engine.caches.possible.len() >= MAX_POSSIBLE {
        engine.caches.possible.clear();
    }
    engine.caches.possible.insert(ask, (equipped, possible));
    possible
}

/// The same for an ask; `able` are the nodes that could hold one of its ranks.
pub(super) fn why_ask_impossible(engine: &Engine, ask: &Ask, able: &[NodeIx]) -> Option<Blocker> {
    if let Some(blocker) = why_unable(engine, ask, able) {
        return Some(blocker);
    }
    if able.len() < ask.nodes as usize
        && let Some(blocker) = in_other_mode(engine, ask, able)
    {
        return Some(blocker);
    }
    let (count, nodes) = most(engine, ask, able);
    let open = without_network(ask);
    if nodes < ask.nodes && open != *ask && most(engine, &open, able).1 >= ask.nodes {
        return Some(Blocker::Network { nodes: ask.nodes.saturating_sub(nodes) });
    }
    let too_few = count < ask.shape.count || nodes < ask.nodes;
    too_few.then_some(Blocker::None { count, nodes })
}

/// The same ask on nodes with any network.
fn without_network(ask: &Ask) -> Ask {
    let mut open = *ask;
    open.shape.network = NetworkNeed::Any;
    open
}

/// The same ask with nothing that an operator can add to nodes with suitable boards.
fn without_needs(ask: &Ask) -> Ask {
    let mut bare = without_network(ask);
    (bare.shape.images, bare.shape.rdma, bare.shape.storage) = (false, false, 0);
    bare
}

/// The blocker of an ask whose nodes lack several things besides boards: the first of them.
fn why_lacking(engine: &Engine, ask: &Ask, able: &[NodeIx]) -> Option<Blocker> {
    let (bare, wanted) = (without_needs(ask), ask.nodes as usize);
    if bare == *ask || able.len() >= wanted {
        return None;
    }
    let others = place::able_nodes(engine, &bare);
    if others.len() < wanted {
        return None;
    }
    let nodes = u32::try_from(others.len().saturating_sub(able.len())).unwrap_or(u32::MAX);
    let is_short = |one: &Ask| place::able_nodes(engine, one).len() < wanted;
    let (mut images, mut network, mut storage) = (bare, bare, bare);
    images.shape.images = ask.shape.images;
    network.shape.network = ask.shape.network;
    storage.shape.storage = ask.shape.storage;
    Some(if is_short(&images) {
        Blocker::Images { nodes }
    } else if is_short(&network) {
        Blocker::Network { nodes }
    } else if is_short(&storage) {
        let class = missing_storage(&engine.cluster, ask.shape.storage, &others);
        Blocker::Storage { nodes, class: class.cloned().unwrap_or_default() }
    } else {
        Blocker::Rdma { nodes }
    })
}

/// The blocker of an ask whose organization, or whose demand besides boards, rules out too many nodes.
fn why_unable(engine: &Engine, ask: &Ask, able: &[NodeIx]) -> Option<Blocker> {
    let count = |other: &Ask| u32::try_from(place::able_nodes(engine, other).len()).unwrap_or(u32::MAX);
    if ask.shape.tenancy.own_only && able.len() < ask.nodes as usize {
        let mut anywhere = *ask;
        anywhere.shape.tenancy.own_only = false;
        if count(&anywhere) >= ask.nodes {
            return Some(Blocker::OwnNodes { busy: 0 });
        }
    }
    let anywhere = node_pools::any_pool(engine, ask);
    if anywhere != *ask && able.len() < ask.nodes as usize && count(&anywhere) >= ask.nodes {
        return Some(node_pools::blocker(ask, 0));
    }
    let (mut plain, mut without_rdma) = (*ask, *ask);
    (plain.shape.images, without_rdma.shape.rdma) = (false, false);
    let unable = |nodes: u32| nodes.saturating_sub(u32::try_from(able.len()).unwrap_or(0));
    // Too few nodes for a job on several nodes count as none.
    let lacking = |other: &Ask| {
        let nodes = if able.len() < ask.nodes as usize { count(other) } else { 0 };
        (nodes >= ask.nodes).then(|| unable(nodes))
    };
    if ask.shape.images
        && let Some(nodes) = lacking(&plain)
    {
        return Some(Blocker::Images { nodes });
    }
    if ask.shape.rdma
        && let Some(nodes) = lacking(&without_rdma)
    {
        return Some(Blocker::Rdma { nodes });
    }
    let open = without_network(ask);
    if open != *ask && able.len() < ask.nodes as usize {
        let nodes = count(&open);
        if nodes >= ask.nodes {
            return Some(Blocker::Network {
                nodes: nodes.saturating_sub(u32::try_from(able.len()).unwrap_or(0)),
            });
        }
    }
    plain.shape.storage = 0;
    if ask.shape.storage != 0 && able.len() < ask.nodes as usize {
        let others = place::able_nodes(engine, &plain);
        if others.len() >= ask.nodes as usize {
            let class = missing_storage(&engine.cluster, ask.shape.storage, &others);
            let nodes = u32::try_from(others.len().saturating_sub(able.len())).unwrap_or(u32::MAX);
            return Some(Blocker::Storage { nodes, class: class.cloned().unwrap_or_default() });
        }
    }
    if let Some(blocker) = why_lacking(engine, ask, able) {
        return Some(blocker);
    }
    let mut bare = *ask;
    (bare.shape.cpu_milli, bare.shape.memory_mib) = (0, 0);
    let nodes = if able.is_empty() && bare != *ask { count(&bare) } else { 0 };
    (nodes > 0).then_some(Blocker::Host { nodes, temporary: false })
}

/// True if enough nodes have as many boards as a request for RDMA, so that only their ports are missing.
fn waits_for_ports(engine: &Engine, ask: &Ask) -> bool {
    let boards = |node: &NodeIx| engine.cluster.node(*node).map_or(0, |node| node.facts.gpus.len());
    let nodes = place::able_nodes(engine, &without_needs(ask));
    let whole = nodes.iter().filter(|node| boards(node) == ask.shape.count as usize);
    whole.count() >= ask.nodes as usize
}

/// The blocker of boards that would suit in the other MIG mode; those on too few nodes count only if no node is able.
fn in_other_mode(engine: &Engine, ask: &Ask, able: &[NodeIx]) -> Option<Blocker> {
    let (mut boards, mut nodes) = (0, 0);
    for index in place::all_nodes(engine) {
        let Some(view) = engine.cluster.view_empty_in_other_mode(index) else { continue };
        if engine.finder.offer(&engine.cluster, &view, &ask.shape).is_some() {
            nodes += 1;
            boards += view.gpus().iter().filter(|g| ask.shape.fits_gpu(g, engine.cluster.models())).count();
        }
    }
    let most_nodes = (nodes < ask.nodes).then_some(nodes);
    let boards = u32::try_from(boards).unwrap_or(u32::MAX);
    (boards > 0 && (most_nodes.is_none() || able.is_empty())).then_some(Blocker::Mode { boards, most_nodes })
}

/// The most devices a node that an empty cluster offers, and the most nodes with the requested devices.
fn most(engine: &Engine, ask: &Ask, able: &[NodeIx]) -> (u32, u32) {
    let offers = able.iter().filter_map(|node| {
        let view = engine.cluster.view_empty(*node)?;
        Some((0, *node, engine.finder.offer(&engine.cluster, &view, &ask.shape)?))
    });
    let offers: Vec<_> = offers.collect();
    if !offers.is_empty() {
        let fits = |nodes: u32| {
            let ask = Ask { nodes, ..*ask };
            place::gather(engine, &ask, offers.clone(), Limits::default()).is_some()
        };
        let nodes = (1..=ask.nodes).rev().find(|n| fits(*n)).unwrap_or(0);
        return (ask.shape.count, nodes);
    }
    let smaller_count = (1..ask.shape.count).rev().find(|count| {
        let mut smaller = *ask;
        smaller.shape.count = *count;
        !place::able_nodes(engine, &smaller).is_empty()
    });
    (smaller_count.unwrap_or(0), ask.nodes)
}
