//! The boards of the cluster as an organization sees them: the compact map, the list and a single board.

use std::collections::{HashMap, HashSet};

use berth_foundation::{Caller, Context, Right};
use berth_mig::{Instance, blocked_slices, board_by_name};
use berth_placement::assignment::BoardState as Occupied;
use berth_store::attempts::{HeldAllocation, StoredAllocation};
use berth_store::nodes::{StoredGpu, StoredNode};
use berth_store::{self as store, StoreError, Tx};
use berth_types::cluster::{
    Board, BoardFilter, BoardModel, BoardState, ClusterMap, FreeDevices, MapBoard, MapNode,
};
use berth_types::ids::{NodeId, OrgId};
use berth_types::jobs::Placement;
use berth_types::nodes::{NodeState, Tile};
use berth_types::problems::Problem;

use super::{
    Cluster, board_states, foreign_instances, instance, node_state, occupy_reserved, spread_shares,
    usable_nodes,
};

/// The free part of a board for an organization.
struct FreePart {
    devices: Vec<FreeDevices>,
    /// True if a further share fits beside the shares of the organization.
    share: bool,
    /// True if nothing of the board is in use or reserved.
    unused: bool,
}

impl FreePart {
    fn new(board: &Occupied, org: OrgId) -> Self {
        let free = board.free_devices().into_iter();
        let devices: Vec<FreeDevices> =
            free.map(|(profile, count)| FreeDevices { profile: profile.map(str::to_owned), count }).collect();
        let unused = board.occupants.is_empty() && !devices.is_empty();
        let is_shared = board.occupants.iter().any(|occupant| occupant.share.is_some());
        let is_open = board.ready && !board.quarantined;
        Self { devices, share: is_open && is_shared && board.has_room_for_share(org, 1), unused }
    }
}

/// The stored facts about the boards that an organization may use, and the nodes with a session.
struct Snapshot {
    nodes: Vec<StoredNode>,
    gpus: Vec<StoredGpu>,
    /// By the UUID of the board.
    free: HashMap<String, FreePart>,
    connected: HashSet<NodeId>,
}

impl Snapshot {
    async fn read(
        tx: &mut Tx<'_>,
        context: &Context,
        org: OrgId,
        held: &[&StoredAllocation],
    ) -> Result<Self, StoreError> {
        let usable = usable_nodes(tx, org).await?;
        let mut nodes = store::nodes::list_approved(tx).await?;
        nodes.retain(|node| usable.has(node.dedicated_to));
        let gpus = store::nodes::list_gpus(tx).await?;
        let connected = context.live.connected();
        let mut boards = board_states(&gpus, held.iter().copied(), &connected);
        occupy_reserved(tx, &mut boards, context.now()).await?;
        let free = boards.iter().map(|board| (board.uuid.clone(), FreePart::new(board, org))).collect();
        Ok(Self { nodes, gpus, free, connected })
    }

    /// The nodes with reported boards by name, each with its boards by index.
    fn boards_by_node(&self) -> Vec<(&StoredNode, Vec<&StoredGpu>)> {
        let mut by_node: HashMap<NodeId, Vec<&StoredGpu>> = HashMap::new();
        for gpu in self.gpus.iter().filter(|gpu| gpu.present) {
            by_node.entry(gpu.node_id).or_default().push(gpu);
        }
        self.nodes.iter().filter_map(|node| Some((node, by_node.remove(&node.id)?))).collect()
    }

    fn free_devices(&self, gpu: &StoredGpu) -> Vec<FreeDevices> {
        self.free.get(&gpu.uuid).map(|free| free.devices.clone()).unwrap_or_default()
    }

    fn state(&self, node: &StoredNode, gpu: &StoredGpu) -> BoardState {
        match node_state(node, &self.connected) {
            // No organization sees a node without an approval.
            NodeState::Joining | NodeState::AwaitingApproval | NodeState::Unreachable => {
                return BoardState::NotConnected;
            }
            NodeState::Draining => return BoardState::Draining,
            NodeState::Cordoned => return BoardState::Cordoned,
            NodeState::Ready => {}
        }
        if gpu.quarantined.is_some() {
            return BoardState::Quarantined;
        }
        match self.free.get(&gpu.uuid) {
            Some(free) if free.unused => BoardState::Free,
            Some(free) if free.share || !free.devices.is_empty() => BoardState::PartlyFree,
            _ => BoardState::Full,
        }
    }
}

/// The name of a board model in offerings. An unknown model keeps the name of the driver.
pub fn model_name(driver_name: &str) -> &str {
    board_by_name(driver_name).map_or(driver_name, |board| board.model.as_str())
}

fn number(n: i64) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

fn mark(cells: &mut [char], placement: Placement, character: char) {
    let (start, size) = (placement.start as usize, placement.size as usize);
    for cell in cells.iter_mut().skip(start).take(size) {
        *cell = character;
    }
}

/// The memory slices of a board, one character each (see [`MapBoard::cells`]).
fn cell_text(gpu: &StoredGpu, held: &[&StoredAllocation], org: OrgId) -> String {
    let board = board_by_name(&gpu.model);
    let count = board.map_or(1, |board| board.memory_slices);
    let foreign = foreign_instances(gpu);
    let mut cells = vec!['.'; count as usize];
    // Shares and whole boards leave no slice to a profile.
    if let Some(board) = board.filter(|_| held.iter().all(|row| row.profile_id.is_some())) {
        let live: Vec<Instance> =
            held.iter().filter_map(|row| instance(row)).chain(foreign.iter().copied()).collect();
        for start in blocked_slices(board, &live) {
            mark(&mut cells, Placement { start, size: 1 }, '-');
        }
    }
    for instance in &foreign {
        let size = board.and_then(|board| board.profile(instance.profile_id)).map_or(1, |p| p.size);
        mark(&mut cells, Placement { start: instance.start, size }, 'q');
    }
    let tile = |row: &&StoredAllocation| Tile {
        placement: Placement { start: number(row.start), size: number(row.size) },
        profile: None,
        gpu_milli: row.share_milli.map(number),
        quarantined: None,
        owner: None,
    };
    let mut tiles: Vec<Tile> = held.iter().map(tile).collect();
    spread_shares(&mut tiles, count);
    for (tile, row) in tiles.iter().zip(held) {
        let character = match (&row.unclean, row.org_id == org) {
            (Some(_), _) => 'q',
            (None, true) => 'o',
            (None, false) => 'x',
        };
        mark(&mut cells, tile.placement, character);
    }
    cells.into_iter().collect()
}

/// The position of the model of a board in a list, which gets the model if it is new.
fn model_position(models: &mut Vec<BoardModel>, gpu: &StoredGpu) -> u32 {
    let name = model_name(&gpu.model);
    let at = models.iter().position(|model| model.name == name).unwrap_or_else(|| {
        let profiles = board_by_name(&gpu.model).map(|board| board.profiles.as_slice()).unwrap_or_default();
        let profiles = profiles.iter().map(|profile| profile.name.clone()).collect();
        models.push(BoardModel { name: name.to_owned(), profiles });
        models.len().saturating_sub(1)
    });
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// The position of free devices in a list, which gets them if they are new.
fn free_position(sets: &mut Vec<Vec<FreeDevices>>, devices: Vec<FreeDevices>) -> u32 {
    let at = sets.iter().position(|known| *known == devices).unwrap_or_else(|| {
        sets.push(devices);
        sets.len().saturating_sub(1)
    });
    u32::try_from(at).unwrap_or(u32::MAX)
}

impl Cluster {
    /// All boards in a short form, without the owners of other organizations' devices.
    ///
    /// # Errors
    /// The caller may not see the organization.
    pub async fn get_map(&self, caller: &Caller, org: OrgId) -> Result<ClusterMap, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let held = store::attempts::list_held_allocations(&mut tx).await?;
        let rows: Vec<&StoredAllocation> = held.iter().collect();
        let snapshot = Snapshot::read(&mut tx, &self.context, org, &rows).await?;
        let mut held_by_board: HashMap<&str, Vec<&StoredAllocation>> = HashMap::new();
        for row in rows {
            held_by_board.entry(row.gpu_uuid.as_str()).or_default().push(row);
        }
        let mut map = ClusterMap::default();
        for (node, gpus) in snapshot.boards_by_node() {
            let mut boards = Vec::new();
            for gpu in gpus {
                let held = held_by_board.get(gpu.uuid.as_str()).map(Vec::as_slice).unwrap_or_default();
                boards.push(MapBoard {
                    uuid: gpu.uuid.clone(),
                    index: number(gpu.idx),
                    model: model_position(&mut map.models, gpu),
                    state: snapshot.state(node, gpu),
                    cells: cell_text(gpu, held, org),
                    free: free_position(&mut map.free_sets, snapshot.free_devices(gpu)),
                });
            }
            map.nodes.push(MapNode {
                id: node.id,
                name: node.name.clone(),
                labels: node.labels.0.clone(),
                dedicated: node.dedicated_to == Some(org),
                boards,
            });
        }
        Ok(map)
    }

    /// The boards that match a filter, without the owners of other organizations' devices.
    ///
    /// # Errors
    /// The caller may not see the organization.
    pub async fn list_boards(
        &self,
        caller: &Caller,
        org: OrgId,
        filter: &BoardFilter,
    ) -> Result<Vec<Board>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut boards = self.tenant_boards(org).await?;
        boards.retain(|board| filter.matches(&board.facts()));
        Ok(boards)
    }

    /// A board, without the owners of other organizations' devices.
    ///
    /// # Errors
    /// The caller may not see the organization, or no node reports the board.
    pub async fn get_board(&self, caller: &Caller, org: OrgId, uuid: &str) -> Result<Board, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let boards = self.tenant_boards(org).await?;
        boards.into_iter().find(|board| board.uuid == uuid).ok_or_else(Problem::not_found)
    }

    /// All boards by node and index, as an organization sees them.
    async fn tenant_boards(&self, org: OrgId) -> Result<Vec<Board>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let held = store::attempts::list_held(&mut tx).await?;
        let rows: Vec<&StoredAllocation> = held.iter().map(|row| &row.allocation).collect();
        let snapshot = Snapshot::read(&mut tx, &self.context, org, &rows).await?;
        let mut held_by_board: HashMap<String, Vec<HeldAllocation>> = HashMap::new();
        for row in held {
            held_by_board.entry(row.allocation.gpu_uuid.clone()).or_default().push(row);
        }
        let mut boards = Vec::new();
        for (node, gpus) in snapshot.boards_by_node() {
            for gpu in gpus {
                let held = held_by_board.get(&gpu.uuid).map(Vec::as_slice).unwrap_or_default();
                boards.push(Board {
                    uuid: gpu.uuid.clone(),
                    node: node.id,
                    node_name: node.name.clone(),
                    labels: node.labels.0.clone(),
                    dedicated: node.dedicated_to == Some(org),
                    simulated: node.simulated,
                    unisolated: node.unisolated,
                    last_seen_at: node.last_seen_at,
                    model: model_name(&gpu.model).to_owned(),
                    state: snapshot.state(node, gpu),
                    free: snapshot.free_devices(gpu),
                    gpu: self.gpu(gpu, held, Some(org)),
                });
            }
        }
        Ok(boards)
    }
}
