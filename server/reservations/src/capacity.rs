//! The capacity by board model over time.

use std::collections::{BTreeMap, HashMap, HashSet};

use berth_core::capacity::{BoardUse, UsedSpan, capacity_steps, coarse_steps};
use berth_foundation::Caller;
use berth_store::attempts::HeldAllocation;
use berth_store::nodes::StoredGpu;
use berth_store::reservations::BookedWindow;
use berth_store::{self as store, StoreError};
use berth_types::capacity::{Capacity, ModelCapacitySteps};
use berth_types::ids::{NodeId, OrgId};
use berth_types::jobs::JobState;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;

use crate::Reservations;
use crate::show::{authorise_view, check_period, model_name, usable_nodes};

/// The most steps of a model in an answer.
const MAX_STEPS: usize = 400;
/// The length of a period without an end.
const DAY_S: i64 = 86_400;
/// A reservation may begin on a node without a connected worker after this time from now.
const RECONNECT_S: i64 = 60;
/// The time until the expected end of a run that is past its limit.
const LATE_S: i64 = 1;
/// The least time of a stop.
const GRACE_S: i64 = 10;

/// The stored facts about all boards and their uses.
struct Facts {
    gpus: Vec<StoredGpu>,
    connected: HashSet<NodeId>,
    booked: Vec<BookedWindow>,
    held: Vec<HeldAllocation>,
}

/// The boards of a model and their uses.
#[derive(Default)]
struct ModelUses {
    boards: usize,
    by_node: HashMap<NodeId, u32>,
    spans: Vec<UsedSpan>,
}

/// The expected end of the use of a device; `None` if it is unknown.
pub(crate) fn expected_end(row: &HeldAllocation, now: Timestamp) -> Option<Timestamp> {
    if row.allocation.unclean.is_some() {
        return None;
    }
    let runs = matches!(row.phase.state, JobState::Assigned | JobState::Starting | JobState::Running);
    if !runs || row.attempt != row.allocation.attempt {
        return Some(now.plus_seconds(row.grace_s.max(GRACE_S)));
    }
    let left_s = row.max_duration_s - row.metered_before_ms / 1_000;
    let limit = row.started_at.unwrap_or(now).plus_seconds(left_s.max(0));
    // The end of a reservation stops the runs inside.
    let end = row.reservation_ends_at.map_or(limit, |ends_at| limit.min(ends_at));
    Some(end.max(now.plus_seconds(LATE_S)))
}

/// The present state of a board against new work: (begin, end); `None` for a usable board.
fn outage(gpu: &StoredGpu, is_connected: bool, now: Timestamp) -> Option<(Timestamp, Option<Timestamp>)> {
    // Reservations are of whole boards.
    if gpu.quarantined.is_some() || gpu.cordoned || !berth_mig::is_usable_whole(&gpu.model, gpu.mig_enabled) {
        Some((now, None))
    } else if is_connected {
        None
    } else {
        Some((now, Some(now.plus_seconds(RECONNECT_S))))
    }
}

impl Facts {
    /// The capacity of each model in a window, as an organization or an operator (`None`) sees it.
    fn models(
        &self,
        org: Option<OrgId>,
        window: (Timestamp, Timestamp),
        now: Timestamp,
    ) -> Result<Vec<ModelCapacitySteps>, StoreError> {
        let mut models: BTreeMap<&str, ModelUses> = BTreeMap::new();
        // The model and the number of each board, by its UUID.
        let mut places: HashMap<&str, (&str, usize)> = HashMap::new();
        for gpu in self.gpus.iter().filter(|gpu| gpu.present) {
            let name = model_name(gpu);
            let uses = models.entry(name).or_default();
            let board = uses.boards;
            uses.boards += 1;
            *uses.by_node.entry(gpu.node_id).or_default() += 1;
            places.insert(gpu.uuid.as_str(), (name, board));
            if let Some((from, until)) = outage(gpu, self.connected.contains(&gpu.node_id), now) {
                uses.spans.push(UsedSpan { board, kind: BoardUse::Unavailable, from, until });
            }
        }
        let mut add = |uuid: &str, kind: BoardUse, from: Timestamp, until: Option<Timestamp>| {
            let Some((model, board)) = places.get(uuid).copied() else { return };
            if let Some(uses) = models.get_mut(model) {
                uses.spans.push(UsedSpan { board, kind, from, until });
            }
        };
        let owned = |owner: OrgId| if org == Some(owner) { BoardUse::Own } else { BoardUse::Others };
        for row in &self.booked {
            let kind = row.org_id.map_or(BoardUse::Unavailable, owned);
            for device in row.places()?.iter().flat_map(|(_, devices)| devices) {
                add(&device.gpu_uuid, kind, row.starts_at, Some(row.ends_at));
            }
        }
        // The boards of a job in a reservation are in use by the reservation.
        for row in self.held.iter().filter(|row| row.reservation_id.is_none()) {
            let (from, until) = (row.started_at.unwrap_or(now).min(now), expected_end(row, now));
            add(&row.allocation.gpu_uuid, owned(row.allocation.org_id), from, until);
        }
        Ok(models.into_iter().map(|(name, uses)| model_capacity(name, &uses, window, now)).collect())
    }
}

fn model_capacity(
    name: &str,
    uses: &ModelUses,
    window: (Timestamp, Timestamp),
    now: Timestamp,
) -> ModelCapacitySteps {
    let at_once = capacity_steps(uses.boards, &uses.spans, (now, now.plus_seconds(1)));
    let exact = capacity_steps(uses.boards, &uses.spans, window);
    let fewer = coarse_steps(&exact, window.1, MAX_STEPS);
    ModelCapacitySteps {
        model: name.to_owned(),
        boards: u32::try_from(uses.boards).unwrap_or(u32::MAX),
        boards_per_node: uses.by_node.values().copied().max().unwrap_or(0),
        nodes: u32::try_from(uses.by_node.len()).unwrap_or(u32::MAX),
        free_now: at_once.first().map_or(0, |step| step.free),
        coarse: fewer.is_some(),
        steps: fewer.unwrap_or(exact),
    }
}

/// The numbers of free boards of each model over time, for an organization or an operator (`None`). An organization
/// sees the boards that it may use. Without
/// `from`, the period begins now; without `until`, it lasts a day. Held starts of waiting jobs count as free.
///
/// # Errors
/// The times are in the wrong order or too far apart.
pub(crate) async fn get_capacity(
    reservations: &Reservations,
    caller: &Caller,
    org: Option<OrgId>,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
) -> Result<Capacity, Problem> {
    let context = &reservations.context;
    authorise_view(context, caller, org).await?;
    let now = context.now();
    let from = from.unwrap_or(now);
    let until = until.unwrap_or_else(|| from.plus_seconds(DAY_S));
    check_period(from, until)?;
    let mut conn = context.db.read().await?;
    let mut tx = conn.tx();
    let mut gpus = store::nodes::list_gpus(&mut tx).await?;
    let usable = usable_nodes(&mut tx, org).await?;
    gpus.retain(|gpu| usable.is_none_or(|nodes| nodes.has(gpu.dedicated_to)));
    let mut booked = store::reservations::list_windows_between(&mut tx, from.max(now), until).await?;
    if from > now {
        // For the boards that are free now. A window in both lists only counts its boards twice.
        let present = store::reservations::list_windows_between(&mut tx, now, now.plus_seconds(1));
        booked.extend(present.await?);
    }
    let held = store::attempts::list_held(&mut tx).await?;
    drop(conn);
    let facts = Facts { gpus, connected: context.live.connected(), booked, held };
    // Thousands of windows take milliseconds of a processor.
    let calculation = move || facts.models(org, (from.max(now), until), now);
    let models = tokio::task::spawn_blocking(calculation).await.map_err(|_| Problem::internal())??;
    Ok(Capacity { from, until, now, models })
}
