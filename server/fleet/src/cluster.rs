//! The cluster: boards with their occupants for placements, and nodes with tiles for people. The sources are
//! the database and the open sessions.

mod maintenance;
mod map;
pub mod routes;
mod summary;

use std::collections::{BTreeMap, HashMap, HashSet};

use berth_core::approval::waiting_reason;
use berth_core::dedicated::UsableNodes;
use berth_mig::{Board, Instance, blocked_slices, board_by_name};
use berth_placement::assignment::{BoardState, Occupant};
use berth_rest::lists::{name_and_id, page_in_memory};
use berth_types::Page;
use berth_types::ids::{NodeId, OrgId};
use berth_types::jobs::Placement;
use berth_types::lists::{ListOptions, NameCursor};
use berth_types::nodes::{
    AwaitingApproval, Gpu, Node, NodeFilter, NodeOrg, NodeState, SetAside, Tile, TileOwner,
};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;

use self::maintenance::read_maintenance;
use crate::leases::{Leases, Silences};
use berth_foundation::Context;
use berth_foundation::live::BoardReading;
use berth_foundation::{Caller, Right};
use berth_store::attempts::{HeldAllocation, StoredAllocation};
use berth_store::nodes::{StoredGpu, StoredNode};
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

/// The MIG instances of a board that were created outside this portal.
pub fn foreign_instances(row: &StoredGpu) -> Vec<Instance> {
    row.foreign_instances.iter().map(|&(profile_id, start)| Instance { profile_id, start }).collect()
}

fn instance(row: &StoredAllocation) -> Option<Instance> {
    let profile_id = row.profile_id?;
    let number = |n: i64| u32::try_from(n).unwrap_or(0);
    Some(Instance { profile_id: number(profile_id), start: number(row.start) })
}

/// Every known board with its occupants. `connected` has the nodes with a session.
pub async fn boards(tx: &mut Tx<'_>, connected: &HashSet<NodeId>) -> Result<Vec<BoardState>, StoreError> {
    let gpus = store::nodes::list_gpus(tx).await?;
    let held = store::attempts::list_held_allocations(tx).await?;
    Ok(board_states(&gpus, held.iter(), connected))
}

/// The boards of `gpus` with their occupants.
fn board_states<'a>(
    gpus: &[StoredGpu],
    held: impl Iterator<Item = &'a StoredAllocation>,
    connected: &HashSet<NodeId>,
) -> Vec<BoardState> {
    let mut held_by_board: HashMap<&str, Vec<&StoredAllocation>> = HashMap::new();
    for row in held {
        held_by_board.entry(row.gpu_uuid.as_str()).or_default().push(row);
    }
    let mut out = Vec::new();
    for gpu in gpus {
        let board = board_by_name(&gpu.model);
        let allocations = held_by_board.get(gpu.uuid.as_str()).into_iter().flatten();
        let ours = allocations.map(|a| {
            let share = a.share_milli.map(|n| (a.org_id, u16::try_from(n).unwrap_or(u16::MAX)));
            Occupant { instance: instance(a), share }
        });
        let others = foreign_instances(gpu).into_iter().map(|i| Occupant { instance: Some(i), share: None });
        out.push(BoardState {
            node: gpu.node_id,
            uuid: gpu.uuid.clone(),
            model: board.map_or(gpu.model.as_str(), |board| board.model.as_str()).to_owned(),
            board,
            mig_enabled: gpu.mig_enabled,
            ready: !gpu.cordoned && gpu.present && connected.contains(&gpu.node_id),
            quarantined: gpu.quarantined.is_some(),
            dedicated_to: gpu.dedicated_to,
            pool: gpu.pool,
            occupants: ours.chain(others).collect(),
        });
    }
    out
}

/// The nodes that an organization may use, for its views of nodes and boards.
pub async fn usable_nodes(tx: &mut Tx<'_>, org: OrgId) -> Result<UsableNodes, StoreError> {
    let own_only = store::dedicated::find_own_only(tx, org).await?.unwrap_or(false);
    Ok(UsableNodes { org, own_only })
}

/// Adds the devices of present reservations to the occupants. Reserved devices are not available without the
/// reservation.
pub async fn occupy_reserved(
    tx: &mut Tx<'_>,
    boards: &mut [BoardState],
    now: Timestamp,
) -> Result<(), StoreError> {
    let just_after = Timestamp::from_micros(now.micros() + 1);
    let places = boards.iter().enumerate().map(|(place, board)| (board.uuid.clone(), place));
    let places: HashMap<String, usize> = places.collect();
    for row in store::reservations::list_between(tx, now, just_after).await? {
        for device in row.places()?.iter().flat_map(|(_, devices)| devices) {
            let instance = device.profile_id.map(|profile_id| Instance { profile_id, start: device.start });
            if let Some(gpu) = places.get(&device.gpu_uuid).and_then(|place| boards.get_mut(*place)) {
                gpu.occupants.retain(|o| o.instance != instance);
                gpu.occupants.push(Occupant { instance, share: None });
            }
        }
    }
    Ok(())
}

/// The state of a node. `connected` has the nodes with a session.
fn node_state(row: &StoredNode, connected: &HashSet<NodeId>) -> NodeState {
    if row.approved_at.is_none() && row.last_seen_at.is_some() {
        return NodeState::AwaitingApproval;
    }
    if !connected.contains(&row.id) {
        return if row.last_seen_at.is_some() { NodeState::Unreachable } else { NodeState::Joining };
    }
    match (row.draining, row.cordoned) {
        (true, _) => NodeState::Draining,
        (false, true) => NodeState::Cordoned,
        (false, false) => NodeState::Ready,
    }
}

/// The missing approval of a node with these boards. `None` for an approved node.
fn awaiting_approval(row: &StoredNode, gpus: &[&StoredGpu]) -> Option<AwaitingApproval> {
    if row.approved_at.is_some() {
        return None;
    }
    let reason = if row.last_seen_at.is_none() {
        "Its worker has not reported yet.".to_owned()
    } else {
        let models: Vec<&str> = gpus.iter().map(|gpu| gpu.model.as_str()).collect();
        waiting_reason(&row.terms, &models)
            .unwrap_or_else(|| "Its next report is approved by its join token.".to_owned())
    };
    Some(AwaitingApproval { reason, expected: row.terms.expected.clone() })
}

/// The most bytes of a text in a filter of nodes.
const MAX_FILTER_BYTES: usize = 100;

/// The text of a filter in lower case. Absent or blank text matches every node.
///
/// # Errors
/// The text is too long.
fn filter_text(text: Option<&String>, name: &str) -> Result<Option<String>, Problem> {
    let Some(text) = text.map(|text| text.trim()).filter(|text| !text.is_empty()) else { return Ok(None) };
    if text.len() > MAX_FILTER_BYTES {
        return Err(Problem::malformed(format!("`{name}` has at most {MAX_FILTER_BYTES} bytes.")));
    }
    Ok(Some(text.to_lowercase()))
}

/// The hue and pattern of an organization, always the same: one of eight hues and three patterns.
fn tile_style(org: &str) -> (u32, &'static str) {
    let hash = org.bytes().fold(2_166_136_261u32, |h, b| (h ^ u32::from(b)).wrapping_mul(16_777_619));
    let pattern = match (hash >> 8) % 3 {
        0 => "plain",
        1 => "stripes",
        _ => "dots",
    };
    (hash % 8 + 1, pattern)
}

fn tile(held: &HeldAllocation, board: Option<&'static Board>, shown_to: Option<OrgId>) -> Tile {
    let a = &held.allocation;
    let cells = |n: i64| u32::try_from(n).unwrap_or(0);
    let seen = shown_to.is_none_or(|org| org == a.org_id);
    let (hue, pattern) = tile_style(&a.org_id.to_string());
    let profile = a.profile_id.and_then(|id| board?.profile(u32::try_from(id).ok()?)).map(|p| p.name.clone());
    Tile {
        placement: Placement { start: cells(a.start), size: cells(a.size) },
        profile,
        gpu_milli: a.share_milli.map(cells),
        quarantined: a.unclean.clone(),
        owner: seen.then(|| TileOwner {
            job: a.job_id,
            job_name: held.job_name.clone(),
            org_name: held.org_name.clone(),
            hue,
            pattern: pattern.to_owned(),
        }),
    }
}

/// Assigns cells side by side to the shares of a board, in proportion. Each share has at least one cell.
fn spread_shares(tiles: &mut [Tile], cells: u32) {
    let (mut taken_milli, mut next) = (0, 0);
    for tile in tiles {
        let Some(milli) = tile.gpu_milli else { continue };
        taken_milli += milli;
        let end = (taken_milli * cells).div_ceil(1_000).clamp(next + 1, cells.max(next + 1)).min(cells);
        let start = next.min(cells.saturating_sub(1));
        tile.placement = Placement { start, size: end.saturating_sub(start).max(1) };
        next = end;
    }
}

/// Lists nodes with their boards.
#[derive(Clone)]
pub struct Cluster {
    context: Context,
    leases: Arc<Leases>,
}

impl Cluster {
    pub const fn new(context: Context, leases: Arc<Leases>) -> Self {
        Self { context, leases }
    }

    /// All nodes, without the owners of other organizations' devices.
    pub async fn list_nodes(&self, caller: &Caller, org: OrgId) -> Result<Vec<Node>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        self.nodes(Some(org)).await
    }

    /// A page of the nodes that match a filter, with all owners, for an operator. Only the nodes of the page
    /// get their boards and tiles.
    ///
    /// # Errors
    /// A text of the filter is too long.
    pub async fn list_matching_nodes(
        &self,
        caller: &Caller,
        filter: &NodeFilter,
        options: &ListOptions<NameCursor>,
    ) -> Result<Page<Node>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let (name, model) =
            (filter_text(filter.name.as_ref(), "name")?, filter_text(filter.model.as_ref(), "model")?);
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let mut rows = store::nodes::list(&mut tx).await?;
        let gpus = store::nodes::list_all_gpus(&mut tx).await?;
        let connected = self.context.live.connected();
        if let Some(name) = &name {
            rows.retain(|row| row.name.to_lowercase().contains(name));
        }
        if let Some(state) = filter.state {
            rows.retain(|row| node_state(row, &connected) == state);
        }
        if let Some(model) = &model {
            let fits = |gpu: &&StoredGpu| gpu.present && gpu.model.to_lowercase().contains(model);
            let with_model: HashSet<NodeId> = gpus.iter().filter(fits).map(|gpu| gpu.node_id).collect();
            rows.retain(|row| with_model.contains(&row.id));
        }
        let page = page_in_memory(rows, options, |row| name_and_id(&row.name, row.id));
        self.with_boards(&mut tx, page, &gpus, &connected).await
    }

    /// Adds boards and tiles to the nodes of a page, with all owners.
    async fn with_boards(
        &self,
        tx: &mut Tx<'_>,
        page: Page<StoredNode>,
        gpus: &[StoredGpu],
        connected: &HashSet<NodeId>,
    ) -> Result<Page<Node>, Problem> {
        let ids: HashSet<NodeId> = page.items.iter().map(|row| row.id).collect();
        let gpus: Vec<&StoredGpu> =
            gpus.iter().filter(|gpu| gpu.present && ids.contains(&gpu.node_id)).collect();
        let uuids: HashSet<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        let mut held = store::attempts::list_held(tx).await?;
        held.retain(|row| uuids.contains(row.allocation.gpu_uuid.as_str()));
        let silences = Silences::read(tx).await?;
        let mut maintenance = read_maintenance(tx, self.context.now()).await?;
        Ok(page.map(|row| {
            let own: Vec<&StoredGpu> = gpus.iter().copied().filter(|gpu| gpu.node_id == row.id).collect();
            let mut node = self.node(row, &own, &held, connected, None);
            node.silence = silences.find(&self.context, &self.leases, node.id);
            node.maintenance = maintenance.remove(&node.id);
            node
        }))
    }

    /// A node with its boards and all owners, for an operator.
    ///
    /// # Errors
    /// The node does not exist.
    pub async fn get_node(&self, caller: &Caller, node: NodeId) -> Result<Node, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let mut rows = store::nodes::list(&mut tx).await?;
        rows.retain(|row| row.id == node);
        let gpus = store::nodes::list_all_gpus(&mut tx).await?;
        let connected = self.context.live.connected();
        let page = self.with_boards(&mut tx, Page::whole(rows), &gpus, &connected).await?;
        page.items.into_iter().next().ok_or_else(Problem::not_found)
    }

    /// All nodes. `shown_to` hides nodes that the organization may not use or without an approval, and the owners of
    /// other organizations; `None` shows everything.
    pub async fn nodes(&self, shown_to: Option<OrgId>) -> Result<Vec<Node>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let nodes = match shown_to {
            None => store::nodes::list(&mut tx).await?,
            Some(org) => {
                let usable = usable_nodes(&mut tx, org).await?;
                let mut nodes = store::nodes::list_approved(&mut tx).await?;
                nodes.retain(|node| usable.has(node.dedicated_to));
                nodes
            }
        };
        let gpus = store::nodes::list_all_gpus(&mut tx).await?;
        let held = store::attempts::list_held(&mut tx).await?;
        let silences = match shown_to {
            None => Some(Silences::read(&mut tx).await?),
            Some(_) => None,
        };
        let mut maintenance = match shown_to {
            None => read_maintenance(&mut tx, self.context.now()).await?,
            Some(_) => HashMap::new(),
        };
        let connected = self.context.live.connected();
        let node = |row: StoredNode| {
            let node_gpus: Vec<&StoredGpu> =
                gpus.iter().filter(|g| g.node_id == row.id && g.present).collect();
            let mut node = self.node(row, &node_gpus, &held, &connected, shown_to);
            node.silence =
                silences.as_ref().and_then(|silences| silences.find(&self.context, &self.leases, node.id));
            node.maintenance = maintenance.remove(&node.id);
            node
        };
        Ok(nodes.into_iter().map(node).collect())
    }

    fn node(
        &self,
        row: StoredNode,
        gpus: &[&StoredGpu],
        held: &[HeldAllocation],
        connected: &HashSet<NodeId>,
        shown_to: Option<OrgId>,
    ) -> Node {
        let awaiting_approval = awaiting_approval(&row, gpus).filter(|_| shown_to.is_none());
        let now = self.context.now();
        let until = row.aside_until.filter(|until| *until > now);
        let set_aside = until.map(|until| SetAside { until, reason: row.aside_reason.clone() });
        Node {
            id: row.id,
            state: node_state(&row, connected),
            name: row.name,
            simulated: row.simulated,
            unisolated: row.unisolated,
            driver_version: row.driver_version,
            labels: row.labels.0,
            reported_labels: if shown_to.is_none() { row.reported_labels.0 } else { BTreeMap::new() },
            adopts_labels: row.adopts_labels && shown_to.is_none(),
            address: Some(row.address).filter(|address| shown_to.is_none() && !address.is_empty()),
            awaiting_approval,
            isolation: row.isolation.0,
            worker_version: Some(row.worker_version).filter(|_| shown_to.is_none()),
            last_seen_at: row.last_seen_at,
            dedicated_to: row.dedicated_to.zip(row.dedicated_name).map(|(org, name)| NodeOrg { org, name }),
            pool: row.pool,
            suspect: row.suspect.filter(|_| shown_to.is_none()),
            left_out: Some(row.gpus_left_out).filter(|reasons| shown_to.is_none() && !reasons.is_empty()),
            certified_until: row.certified_until.filter(|_| shown_to.is_none()),
            silence: None,
            set_aside: set_aside.filter(|_| shown_to.is_none()),
            maintenance: None,
            rdma_ports: if shown_to.is_none() { row.rdma_ports.0 } else { Vec::new() },
            host_mounts: if shown_to.is_none() { row.host_mounts.0 } else { Vec::new() },
            gpus: gpus.iter().map(|gpu| self.gpu(gpu, held, shown_to)).collect(),
        }
    }

    fn gpu(&self, row: &StoredGpu, held: &[HeldAllocation], shown_to: Option<OrgId>) -> Gpu {
        let board = board_by_name(&row.model);
        let held_here: Vec<&HeldAllocation> =
            held.iter().filter(|h| h.allocation.gpu_uuid == row.uuid).collect();
        let mut tiles: Vec<Tile> = held_here.iter().map(|h| tile(h, board, shown_to)).collect();
        spread_shares(&mut tiles, board.map_or(1, |b| b.memory_slices));
        let foreign = foreign_instances(row);
        tiles.extend(foreign.iter().map(|i| {
            let profile = board.and_then(|b| b.profile(i.profile_id));
            Tile {
                placement: Placement { start: i.start, size: profile.map_or(1, |p| p.size) },
                profile: profile.map(|p| p.name.clone()),
                gpu_milli: None,
                quarantined: Some(
                    "This instance was created outside of this portal. It stays unchanged.".to_owned(),
                ),
                owner: None,
            }
        }));
        tiles.sort_by_key(|t| t.placement.start);
        let live: Vec<Instance> =
            held_here.iter().filter_map(|h| instance(&h.allocation)).chain(foreign).collect();
        let whole = held_here.iter().any(|h| h.allocation.profile_id.is_none());
        let blocked = board.filter(|_| !whole).map_or_else(Vec::new, |b| blocked_slices(b, &live));
        // Readings of a board with other organizations' jobs are about their work.
        let own = held_here.iter().all(|h| Some(h.allocation.org_id) == shown_to) && !held_here.is_empty();
        let reading = if shown_to.is_none() || own {
            self.context.live.reading(&row.uuid)
        } else {
            BoardReading::default()
        };
        Gpu {
            uuid: row.uuid.clone(),
            index: u32::try_from(row.idx).unwrap_or(0),
            model: row.model.clone(),
            memory_mib: row.memory_mib,
            cells: board.map_or(1, |b| b.memory_slices),
            blocked_cells: blocked,
            mig_enabled: row.mig_enabled,
            nvlink_island: u32::try_from(row.nvlink_island).ok().filter(|n| *n > 0),
            quarantined: row.quarantined.clone().map(|reason| match shown_to {
                None => reason,
                Some(_) => "This board is out of service.".to_owned(),
            }),
            tiles,
            power_watts: reading.power_watts,
            temperature_celsius: reading.temperature_celsius,
            utilization_percent: reading.utilization_percent,
        }
    }
}
