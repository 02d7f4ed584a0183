//! The summary of nodes and boards for the operators' overview.

use std::collections::{BTreeMap, HashMap, HashSet};

use berth_mig::{Board, Instance, board_by_name, room_for};
use berth_types::ids::NodeId;
use berth_types::nodes::NodeState;
use berth_types::operators::OperatorRight;
use berth_types::overview::{
    BoardNotice, ClusterSummary, ModelCapacity, NodeCount, NodeNotice, OVERVIEW_ITEMS,
};
use berth_types::problems::Problem;

use super::maintenance::{BookedBoards, read_booked};
use super::{Cluster, foreign_instances, instance, node_state};
use crate::reports::{MODE_CHANGE, UNKNOWN_FAULT};
use berth_foundation::Caller;
use berth_store as store;
use berth_store::attempts::StoredAllocation;
use berth_store::health::StoredBoardNotice;
use berth_store::nodes::{StoredGpu, StoredNode};

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// The boards of one model, while they are counted.
#[derive(Default)]
struct Tally {
    boards: u64,
    usable: u64,
    free: u64,
    /// The memory slices and the name of the largest profile with room.
    largest: Option<(u32, String)>,
}

/// The size and the name of the largest profile with room on a board. A job on the whole board leaves no room.
fn largest_profile(board: &Board, live: &[Instance]) -> Option<(u32, String)> {
    let fits = board.profiles.iter().filter(|profile| room_for(board, live, profile.id) > 0);
    // Profiles of the same size differ by media engines; the plain one comes first by its missing group.
    let largest = fits.max_by_key(|profile| (profile.size, profile.compute, profile.group.is_none()))?;
    Some((largest.size, largest.name.clone()))
}

impl Tally {
    fn add(
        &mut self,
        gpu: &StoredGpu,
        held: &[&StoredAllocation],
        (is_ready, booked): (bool, &BookedBoards),
    ) {
        self.boards += 1;
        if !is_ready || gpu.quarantined.is_some() || booked.maintained.contains(&gpu.uuid) {
            return;
        }
        self.usable += 1;
        // A present reservation has the board for its own jobs.
        if booked.reserved.contains(&gpu.uuid) {
            return;
        }
        let foreign = foreign_instances(gpu);
        if held.is_empty() && foreign.is_empty() && berth_mig::is_usable_whole(&gpu.model, gpu.mig_enabled) {
            self.free += 1;
        }
        let Some(board) = board_by_name(&gpu.model).filter(|_| gpu.mig_enabled) else { return };
        // An allocation without a profile takes the whole board.
        let live: Option<Vec<Instance>> = held.iter().map(|row| instance(row)).collect();
        let live = live.map(|live| live.into_iter().chain(foreign).collect::<Vec<Instance>>());
        let largest = live.and_then(|live| largest_profile(board, &live));
        if largest.as_ref().map(|(size, _)| *size) > self.largest.as_ref().map(|(size, _)| *size) {
            self.largest = largest;
        }
    }
}

/// The capacity of the reported boards by model. `ready` has the nodes that take new work, `booked` the boards of
/// present windows.
fn capacity(
    gpus: &[&StoredGpu],
    held: &[StoredAllocation],
    ready: &HashSet<NodeId>,
    booked: &BookedBoards,
) -> Vec<ModelCapacity> {
    let mut by_board: HashMap<&str, Vec<&StoredAllocation>> = HashMap::new();
    for row in held {
        by_board.entry(row.gpu_uuid.as_str()).or_default().push(row);
    }
    let mut models: BTreeMap<&str, Tally> = BTreeMap::new();
    for gpu in gpus.iter().filter(|gpu| gpu.present) {
        let held = by_board.get(gpu.uuid.as_str()).map(Vec::as_slice).unwrap_or_default();
        models.entry(gpu.model.as_str()).or_default().add(gpu, held, (ready.contains(&gpu.node_id), booked));
    }
    let capacity = |(model, tally): (&str, Tally)| ModelCapacity {
        model: model.to_owned(),
        boards: tally.boards,
        usable: tally.usable,
        free: tally.free,
        largest_free_slice: tally.largest.map(|(_, name)| name),
    };
    models.into_iter().map(capacity).collect()
}

const fn needs_notice(state: NodeState) -> bool {
    matches!(state, NodeState::Unreachable | NodeState::Draining | NodeState::AwaitingApproval)
}

/// The nodes that need a notice, by their state or as perhaps copied: their number, and the first of them in the order of
/// `rows`. `gone` has the lost nodes with a revoked certificate.
fn notices(rows: &[(StoredNode, NodeState)], gone: &HashSet<NodeId>) -> (u64, Vec<NodeNotice>) {
    let needs = |row: &StoredNode, state: NodeState| {
        row.suspect.is_some() || (needs_notice(state) && !gone.contains(&row.id))
    };
    let found: Vec<&(StoredNode, NodeState)> =
        rows.iter().filter(|(row, state)| needs(row, *state)).collect();
    let notice = |(row, state): &(StoredNode, NodeState)| NodeNotice {
        node: row.id,
        name: row.name.clone(),
        state: *state,
        may_be_copied: row.suspect.is_some(),
        last_seen_at: row.last_seen_at,
    };
    (count(found.len()), found.into_iter().take(OVERVIEW_ITEMS).map(notice).collect())
}

fn board_notice(row: StoredBoardNotice) -> BoardNotice {
    let code = row.quarantined.is_some().then_some(row.quarantine_code);
    let awaits_approval = row.awaits_approval && code.is_none() && row.silent.is_none();
    let reason = match row.quarantined.or(row.silent) {
        None if awaits_approval => "The node reported the board after its approval.".to_owned(),
        reason => reason.unwrap_or_default(),
    };
    BoardNotice {
        node: row.node_id,
        node_name: row.node_name,
        gpu_uuid: row.uuid,
        index: u32::try_from(row.idx).unwrap_or(0),
        code: code.map(|code| code.unwrap_or_else(|| UNKNOWN_FAULT.to_owned())),
        reason,
        since: row.quarantined_at,
        awaits_approval,
    }
}

impl Cluster {
    /// The nodes by state and the free capacity of the boards, for an operator.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn summary(&self, caller: &Caller) -> Result<ClusterSummary, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let rows = store::nodes::list(&mut tx).await?;
        let gpus = store::nodes::list_gpus(&mut tx).await?;
        let held = store::attempts::list_held_allocations(&mut tx).await?;
        let connected = self.context.live.connected();
        let with_state = |row: StoredNode| {
            let state = node_state(&row, &connected);
            (row, state)
        };
        let rows: Vec<(StoredNode, NodeState)> = rows.into_iter().map(with_state).collect();
        let in_state = |wanted: NodeState| rows.iter().filter(move |(_, state)| *state == wanted);
        let ready: HashSet<NodeId> = in_state(NodeState::Ready).map(|(row, _)| row.id).collect();
        let states =
            NodeState::ALL.map(|state| NodeCount { state, nodes: count(in_state(state).count()) }).to_vec();
        // The loss of these nodes is settled: their attempts have ended, and their certificates are revoked.
        let lost = store::leases::list_lost(&mut tx).await?;
        let gone: HashSet<NodeId> = in_state(NodeState::Unreachable)
            .filter(|(row, _)| row.certified_until.is_none() && lost.contains(&row.id))
            .map(|(row, _)| row.id)
            .collect();
        let (notice_count, notices) = notices(&rows, &gone);
        let gpus: Vec<&StoredGpu> = gpus.iter().filter(|gpu| !gone.contains(&gpu.node_id)).collect();
        let booked = read_booked(&mut tx, self.context.now()).await?;
        let out_of_service = gpus.iter().filter(|gpu| gpu.present && gpu.quarantined.is_some()).count();
        let limit = i64::try_from(OVERVIEW_ITEMS).unwrap_or(i64::MAX);
        let board_notices = store::health::list_out_of_service(&mut tx, MODE_CHANGE, limit).await?;
        Ok(ClusterSummary {
            states,
            notice_count,
            notices,
            boards_out_of_service: count(out_of_service),
            board_notices: board_notices.into_iter().map(board_notice).collect(),
            capacity: capacity(&gpus, &held, &ready, &booked),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_store::types::JsonColumn;
    use berth_types::ids::{JobId, OrgId};
    use uuid::Uuid;

    fn node() -> NodeId {
        NodeId::from_uuid(Uuid::from_u128(1))
    }

    fn gpu(uuid: &str, mig_enabled: bool) -> StoredGpu {
        StoredGpu {
            uuid: uuid.to_owned(),
            node_id: node(),
            idx: 0,
            model: "H100-80GB".to_owned(),
            memory_mib: 81_920,
            mig_enabled,
            nvlink_island: 0,
            present: true,
            quarantined: None,
            foreign_instances: JsonColumn::default(),
            facts: JsonColumn::default(),
            cordoned: false,
            dedicated_to: None,
            pool: berth_types::node_pools::NodePool::Both,
        }
    }

    fn held(uuid: &str, profile: Option<&str>, start: i64) -> StoredAllocation {
        let board = board_by_name("H100-80GB").unwrap();
        let profile = profile.map(|name| board.profile_by_name(name).unwrap());
        StoredAllocation {
            job_id: JobId::from_uuid(Uuid::from_u128(1)),
            attempt: 1,
            idx: 0,
            org_id: OrgId::from_uuid(Uuid::from_u128(1)),
            node_id: node(),
            gpu_uuid: uuid.to_owned(),
            profile_id: profile.map(|profile| i64::from(profile.id)),
            start,
            size: profile.map_or(8, |profile| i64::from(profile.size)),
            share_milli: None,
            mig_uuid: None,
            unclean: None,
        }
    }

    fn one(gpus: &[StoredGpu], held: &[StoredAllocation], is_ready: bool) -> (u64, u64, u64, Option<String>) {
        let ready = if is_ready { HashSet::from([node()]) } else { HashSet::new() };
        booked_one(gpus, held, &ready, &BookedBoards::default())
    }

    fn booked_one(
        gpus: &[StoredGpu],
        held: &[StoredAllocation],
        ready: &HashSet<NodeId>,
        booked: &BookedBoards,
    ) -> (u64, u64, u64, Option<String>) {
        let gpus: Vec<&StoredGpu> = gpus.iter().collect();
        let found = capacity(&gpus, held, ready, booked).remove(0);
        (found.boards, found.usable, found.free, found.largest_free_slice)
    }

    #[test]
    fn free_boards_and_the_largest_slice_are_counted_by_model() {
        let whole = [gpu("a", false), gpu("b", false)];
        assert_eq!(one(&whole, &[], true), (2, 2, 2, None), "no MIG mode");
        assert_eq!(one(&whole, &[held("a", None, 0)], true), (2, 2, 1, None));
        assert_eq!(one(&whole, &[], false), (2, 0, 0, None), "the node takes no work");
        let sick = StoredGpu { quarantined: Some("XID 79".to_owned()), ..gpu("b", false) };
        assert_eq!(one(&[gpu("a", false), sick], &[], true), (2, 1, 1, None));
        let sliced = [gpu("a", true)];
        assert_eq!(one(&sliced, &[], true), (1, 1, 1, Some("7g.80gb".to_owned())));
        let half = [held("a", Some("4g.40gb"), 0)];
        assert_eq!(one(&sliced, &half, true), (1, 1, 0, Some("3g.40gb".to_owned())));
        assert_eq!(one(&sliced, &[held("a", None, 0)], true), (1, 1, 0, None), "the whole board is taken");
        let two = [gpu("a", true), gpu("b", true)];
        assert_eq!(one(&two, &half, true), (2, 2, 1, Some("7g.80gb".to_owned())));
        let keeps_mode = StoredGpu { model: "A100-80GB".to_owned(), ..gpu("a", true) };
        assert_eq!(one(&[keeps_mode], &[], true), (1, 1, 0, Some("7g.80gb".to_owned())), "not sold whole");
    }

    #[test]
    fn boards_of_present_windows_are_not_free() {
        let (boards, ready) = ([gpu("a", true), gpu("b", false)], HashSet::from([node()]));
        let only = |uuid: &str| HashSet::from([uuid.to_owned()]);
        let maintained = BookedBoards { maintained: only("a"), ..BookedBoards::default() };
        assert_eq!(booked_one(&boards, &[], &ready, &maintained), (2, 1, 1, None));
        let reserved = BookedBoards { reserved: only("a"), ..BookedBoards::default() };
        assert_eq!(booked_one(&boards, &[], &ready, &reserved), (2, 2, 1, None));
    }

    #[test]
    fn boards_that_no_report_has_are_not_counted() {
        let gone = StoredGpu { present: false, ..gpu("a", false) };
        let booked = BookedBoards::default();
        assert!(capacity(&[&gone], &[], &HashSet::from([node()]), &booked).is_empty());
    }
}
