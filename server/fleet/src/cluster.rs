//! The cluster: boards with their occupants for placements, and nodes with tiles for people. The sources are
//! the database and the open sessions.

pub mod routes;

use std::collections::HashSet;

use berth_mig::{Board, Instance, blocked_slices, board_by_name};
use berth_placement::assignment::{BoardState, Occupant};
use berth_types::ids::{NodeId, OrgId};
use berth_types::jobs::Placement;
use berth_types::nodes::{Gpu, Node, NodeState, Tile, TileOwner};
use berth_types::problems::Problem;

use crate::leases::{Leases, Silences};
use berth_foundation::Context;
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
    let mut out = Vec::new();
    for gpu in &gpus {
        let Some(board) = board_by_name(&gpu.model) else { continue };
        let allocations = held.iter().filter(|a| a.gpu_uuid == gpu.uuid);
        let ours = allocations.map(|a| {
            let share = a.share_milli.map(|n| (a.org_id, u16::try_from(n).unwrap_or(u16::MAX)));
            Occupant { instance: instance(a), share }
        });
        let others = foreign_instances(gpu).into_iter().map(|i| Occupant { instance: Some(i), share: None });
        out.push(BoardState {
            node: gpu.node_id,
            uuid: gpu.uuid.clone(),
            board,
            mig_enabled: gpu.mig_enabled,
            ready: !gpu.cordoned && gpu.present && connected.contains(&gpu.node_id),
            quarantined: gpu.quarantined.is_some(),
            occupants: ours.chain(others).collect(),
        });
    }
    Ok(out)
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

    /// All nodes, with all owners, for an operator.
    pub async fn list_all_nodes(&self, caller: &Caller) -> Result<Vec<Node>, Problem> {
        self.context.authorise_operator(caller)?;
        self.nodes(None).await
    }

    /// All nodes. `shown_to` hides the owners of other organizations; `None` shows everything.
    pub async fn nodes(&self, shown_to: Option<OrgId>) -> Result<Vec<Node>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let nodes = store::nodes::list(&mut tx).await?;
        let gpus = store::nodes::list_gpus(&mut tx).await?;
        let held = store::attempts::list_held(&mut tx).await?;
        let silences = match shown_to {
            None => Some(Silences::read(&mut tx).await?),
            Some(_) => None,
        };
        let connected = self.context.live.connected();
        let node = |row: StoredNode| {
            let node_gpus: Vec<&StoredGpu> =
                gpus.iter().filter(|g| g.node_id == row.id && g.present).collect();
            let mut node = self.node(row, &node_gpus, &held, &connected, shown_to);
            node.silence =
                silences.as_ref().and_then(|silences| silences.find(&self.context, &self.leases, node.id));
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
        let state = match (connected.contains(&row.id), row.cordoned, row.last_seen_at) {
            (false, _, None) => NodeState::Joining,
            (false, ..) => NodeState::Unreachable,
            (true, true, _) => NodeState::Cordoned,
            (true, false, _) => NodeState::Ready,
        };
        Node {
            id: row.id,
            name: row.name,
            state,
            simulated: row.simulated,
            unisolated: row.unisolated,
            driver_version: row.driver_version,
            labels: row.labels.0,
            isolation: row.isolation.0,
            worker_version: row.worker_version,
            last_seen_at: row.last_seen_at,
            suspect: row.suspect.filter(|_| shown_to.is_none()),
            left_out: Some(row.gpus_left_out).filter(|reasons| shown_to.is_none() && !reasons.is_empty()),
            certified_until: row.certified_until.filter(|_| shown_to.is_none()),
            silence: None,
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
                quarantined: Some("Made outside this portal; it is left alone.".to_owned()),
                owner: None,
            }
        }));
        tiles.sort_by_key(|t| t.placement.start);
        let live: Vec<Instance> =
            held_here.iter().filter_map(|h| instance(&h.allocation)).chain(foreign).collect();
        let whole = held_here.iter().any(|h| h.allocation.profile_id.is_none());
        let blocked = board.filter(|_| !whole).map_or_else(Vec::new, |b| blocked_slices(b, &live));
        let reading = self.context.live.reading(&row.uuid);
        Gpu {
            uuid: row.uuid.clone(),
            index: u32::try_from(row.idx).unwrap_or(0),
            model: row.model.clone(),
            memory_mib: row.memory_mib,
            cells: board.map_or(1, |b| b.memory_slices),
            blocked_cells: blocked,
            mig_enabled: row.mig_enabled,
            nvlink_island: u32::try_from(row.nvlink_island).ok().filter(|n| *n > 0),
            quarantined: row.quarantined.clone(),
            tiles,
            power_watts: reading.power_watts,
            temperature_celsius: reading.temperature_celsius,
            utilization_percent: reading.utilization_percent,
        }
    }
}
