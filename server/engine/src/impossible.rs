//! Requests that no nodes of the cloud could ever hold.

use berth_types::ids::OrgId;

use super::reasons::{Blocker, WaitReasons};
use super::{Engine, order, place};
use berth_placement::cluster::NodeIx;
use berth_placement::request::{Ask, InvalidRequest, Request};
use berth_placement::shape::Device;

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
        // An operator can install podman or dedicate a node at once, but not add boards.
        let blocker = why_ask_impossible(self, &ask, &place::able_nodes(self, &ask))
            .filter(|b| !matches!(b, Blocker::Images { .. } | Blocker::OwnNodes { .. }));
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
        && let Some(boards) = in_other_mode(engine, ask)
    {
        return Some(Blocker::Mode { boards });
    }
    let most = most(engine, ask, able);
    let too_few = most.0 < ask.shape.count || most.1 < ask.nodes;
    too_few.then_some(Blocker::None { count: most.0, nodes: most.1 })
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
    let mut plain = *ask;
    plain.shape.images = false;
    // Too few nodes for a job on several nodes count as none.
    if ask.shape.images && able.len() < ask.nodes as usize {
        let nodes = count(&plain);
        if nodes >= ask.nodes {
            return Some(Blocker::Images {
                nodes: nodes.saturating_sub(u32::try_from(able.len()).unwrap_or(0)),
            });
        }
    }
    let mut bare = *ask;
    (bare.shape.cpu_milli, bare.shape.memory_mib) = (0, 0);
    let nodes = if able.is_empty() && bare != *ask { count(&bare) } else { 0 };
    (nodes > 0).then_some(Blocker::Host { nodes, temporary: false })
}

/// The number of boards that would suit in the other MIG mode, if their nodes suffice.
fn in_other_mode(engine: &Engine, ask: &Ask) -> Option<u32> {
    if ask.shape.device == Device::Board {
        return None;
    }
    let mut boards = 0;
    let mut nodes = 0;
    for index in place::all_nodes(engine) {
        let Some(view) = engine.cluster.view_empty_in_other_mode(index) else { continue };
        if engine.finder.offer(&engine.cluster, &view, &ask.shape).is_some() {
            nodes += 1;
            boards += view.gpus().iter().filter(|g| ask.shape.fits_gpu(g, engine.cluster.models())).count();
        }
    }
    (nodes >= ask.nodes && boards > 0).then(|| u32::try_from(boards).unwrap_or(u32::MAX))
}

/// The most devices a node that an empty cluster offers, and the most nodes with the requested devices.
fn most(engine: &Engine, ask: &Ask, able: &[NodeIx]) -> (u32, u32) {
    let offers = able.iter().filter_map(|node| {
        let view = engine.cluster.view_empty(*node)?;
        Some((0, *node, engine.finder.offer(&engine.cluster, &view, &ask.shape)?))
    });
    let offers: Vec<_> = offers.collect();
    if !offers.is_empty() {
        let fits = |nodes: u32| place::gather(engine, &Ask { nodes, ..*ask }, offers.clone(), None).is_some();
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
