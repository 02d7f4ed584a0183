//! The API's view of reservations, and the calendar of all boards.

use crate::Reservations;
use std::collections::HashMap;

use berth_core::dedicated::UsableNodes;
use berth_mig::board_by_name;
use berth_types::Page;
use berth_types::ids::{NodeId, OrgId, ReservationId};
use berth_types::jobs::{Device, Placement};
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::reservations::{Calendar, CalendarRow, Reservation, ReservationState, Span, SpanKind};
use berth_types::time::Timestamp;

use crate::charges::{cost_if_ended, policy_of};
use berth_foundation::{Caller, Context, Right, Scope};
use berth_store::nodes::StoredGpu;
use berth_store::reservations::StoredReservation;
use berth_store::{self as store, StoreError, Tx};

/// The most days of a period in one answer.
const MAX_DAYS: i64 = 93;
/// The most bytes of the name of a board model in a filter.
const MAX_MODEL_BYTES: usize = 100;

/// Checks that the caller may see the boards as a member of an organization, or as an operator without one.
pub(crate) async fn authorise_view(
    context: &Context,
    caller: &Caller,
    org: Option<OrgId>,
) -> Result<(), Problem> {
    match org {
        Some(org) => context.authorise(caller, org, Right::View).await.map(|_| ()),
        None => context.authorise_operator(caller, OperatorRight::View).await,
    }
}

/// Checks the length of a period.
///
/// # Errors
/// The times are in the wrong order or too far apart.
pub(crate) fn check_period(from: Timestamp, until: Timestamp) -> Result<(), Problem> {
    if until <= from || until > from.plus_seconds(MAX_DAYS * 86_400) {
        return Err(Problem::malformed(format!("Enter a time after `from`, at most {MAX_DAYS} days later.")));
    }
    Ok(())
}

/// The nodes that an organization may use. `None` for operators, who see all.
pub(crate) async fn usable_nodes(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
) -> Result<Option<UsableNodes>, StoreError> {
    let Some(org) = org else { return Ok(None) };
    let own_only = store::dedicated::find_own_only(tx, org).await?.unwrap_or(false);
    Ok(Some(UsableNodes { org, own_only }))
}

/// The name of a board's model, as in offerings.
pub(crate) fn model_name(gpu: &StoredGpu) -> &str {
    board_by_name(&gpu.model).map_or(gpu.model.as_str(), |board| board.model.as_str())
}

/// The names of nodes by id, and the boards by UUID.
struct Boards {
    nodes: HashMap<NodeId, String>,
    gpus: HashMap<String, StoredGpu>,
}

impl Boards {
    async fn read(tx: &mut Tx<'_>) -> Result<Self, StoreError> {
        // Former reservations may be of removed nodes.
        let mut nodes = store::nodes::list_removed(tx).await?;
        nodes.extend(store::nodes::list(tx).await?.into_iter().map(|n| (n.id, n.name)));
        let mut gpus = store::nodes::list_removed_gpus(tx).await?;
        gpus.extend(store::nodes::list_gpus(tx).await?);
        let gpus = gpus.into_iter().map(|g| (g.uuid.clone(), g)).collect();
        Ok(Self { nodes: nodes.into_iter().collect(), gpus })
    }

    fn devices(&self, row: &StoredReservation) -> Result<Vec<Device>, StoreError> {
        let mut out = Vec::new();
        for (node, devices) in row.places()? {
            for device in devices {
                let board = self.gpus.get(&device.gpu_uuid);
                out.push(Device {
                    node,
                    node_name: self.nodes.get(&node).cloned().unwrap_or_default(),
                    gpu_index: board.map_or(0, |g| u32::try_from(g.idx).unwrap_or(0)),
                    cells: board.and_then(|g| board_by_name(&g.model)).map_or(1, |b| b.memory_slices),
                    mig_uuid: None,
                    placement: device
                        .profile_id
                        .map(|_| Placement { start: device.start, size: device.size }),
                    gpu_uuid: device.gpu_uuid,
                    gpu_milli: None,
                });
            }
        }
        Ok(out)
    }
}

impl Reservations {
    async fn show_rows(
        &self,
        tx: &mut Tx<'_>,
        rows: Vec<StoredReservation>,
    ) -> Result<Vec<Reservation>, StoreError> {
        let boards = Boards::read(tx).await?;
        let ids: Vec<ReservationId> = rows.iter().map(|row| row.id).collect();
        let uses = store::reservations::list_job_use(tx, &ids).await?;
        let used: HashMap<ReservationId, i64> =
            uses.into_iter().map(|row| (row.reservation_id, row.device_ms)).collect();
        let now = self.context.now();
        let show = |row: StoredReservation| {
            let used_device_ms = used.get(&row.id).copied().unwrap_or(0);
            self.reservation(row, &boards, used_device_ms, now)
        };
        rows.into_iter().map(show).collect()
    }

    fn reservation(
        &self,
        row: StoredReservation,
        boards: &Boards,
        used_device_ms: i64,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        let (state, policy) = (row.state, policy_of(&row)?);
        let number = |n: i64| u32::try_from(n).unwrap_or(0);
        let until = row.ended_at.unwrap_or(row.ends_at).min(row.ends_at).min(now);
        let elapsed_ms = until.millis_since(row.starts_at).max(0);
        let cost = cost_if_ended(&row, state, &policy, now);
        Ok(Reservation {
            id: row.id,
            org: row.org_id,
            devices: boards.devices(&row)?,
            kind: if row.org_id.is_some() { SpanKind::Reservation } else { SpanKind::Maintenance },
            state,
            nodes: number(row.nodes),
            gpus_per_node: number(row.gpus_per_node),
            topology: row.topology,
            starts_at: row.starts_at,
            ends_at: row.ends_at,
            ended_at: row.ended_at,
            degraded_milli: number(row.lost_milli),
            elapsed_device_ms: elapsed_ms.saturating_mul(row.nodes.saturating_mul(row.gpus_per_node)),
            used_device_ms,
            cancel_fee_micros: if state.holds() { (cost - row.posted_micros).max(0) } else { 0 },
            created_at: row.created_at,
            org_name: row.org_name.unwrap_or_default(),
            offering: row.slug.unwrap_or_default(),
            name: row.name,
            cause: row.cause,
            series: row.series,
            nano_per_second: row.nano_per_second,
            price_version: row.price_version,
            currency: self.context.settings.currency.clone(),
            total_micros: row.total_micros,
            held_micros: row.held_micros,
            posted_micros: row.posted_micros,
            credited_micros: row.credited_micros,
            created_by: row.created_by,
            generation: row.generation,
            policy,
        })
    }

    pub(crate) async fn show_reservation(&self, id: ReservationId) -> Result<Reservation, Problem> {
        self.show_reservations(&[id]).await?.pop().ok_or_else(Problem::not_found)
    }

    /// The reservations with these ids, in the order of the ids.
    ///
    /// # Errors
    /// A reservation does not exist.
    pub(crate) async fn show_reservations(&self, ids: &[ReservationId]) -> Result<Vec<Reservation>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let rows = store::reservations::list_any(&mut tx, ids).await?;
        let mut rows: HashMap<ReservationId, StoredReservation> =
            rows.into_iter().map(|row| (row.id, row)).collect();
        let rows: Option<Vec<StoredReservation>> = ids.iter().map(|id| rows.remove(id)).collect();
        Ok(self.show_rows(&mut tx, rows.ok_or_else(Problem::not_found)?).await?)
    }

    pub async fn get_reservation(
        &self,
        caller: &Caller,
        org: OrgId,
        id: ReservationId,
    ) -> Result<Reservation, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let row = store::reservations::find(&mut tx, org, id).await?.ok_or_else(Problem::not_found)?;
        self.show_rows(&mut tx, vec![row]).await?.pop().ok_or_else(Problem::not_found)
    }

    /// A page of the reservations of a scope. The scope of operators has maintenance windows too.
    pub async fn list_reservations(
        &self,
        caller: &Caller,
        scope: Scope,
        state: Option<ReservationState>,
        options: &ListOptions<ReservationId>,
    ) -> Result<Page<Reservation>, Problem> {
        let org = self.context.authorise_scope(caller, scope, (Right::View, OperatorRight::View)).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let rows = store::reservations::list(&mut tx, org, state, options).await?;
        let Page { items, next_cursor } = options.page(rows, |row| row.id);
        Ok(Page { items: self.show_rows(&mut tx, items).await?, next_cursor })
    }

    /// The bookings and the running jobs on all boards that the organization may use, or on those of one model,
    /// between two times. Those of other organizations have no names.
    ///
    /// # Errors
    /// The times are in the wrong order or too far apart, or the name of the model is too long.
    pub async fn calendar(
        &self,
        caller: &Caller,
        org: Option<OrgId>,
        (from, until): (Timestamp, Timestamp),
        model: Option<&str>,
    ) -> Result<Calendar, Problem> {
        authorise_view(&self.context, caller, org).await?;
        check_period(from, until)?;
        if model.is_some_and(|model| model.len() > MAX_MODEL_BYTES) {
            return Err(Problem::malformed(format!("`model` has at most {MAX_MODEL_BYTES} bytes.")));
        }
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let boards = Boards::read(&mut tx).await?;
        let usable = usable_nodes(&mut tx, org).await?;
        let booked = store::reservations::list_between(&mut tx, from, until).await?;
        let held = store::attempts::list_held(&mut tx).await?;
        drop(conn);
        let mut spans: HashMap<String, Vec<Span>> = HashMap::new();
        let is_visible = |owner: Option<OrgId>| org.is_none() || owner.is_some() && owner == org;
        for row in booked {
            let maintenance = row.org_id.is_none();
            let visible = is_visible(row.org_id);
            for device in row.places()?.into_iter().flat_map(|(_, devices)| devices) {
                spans.entry(device.gpu_uuid).or_default().push(Span {
                    kind: if maintenance { SpanKind::Maintenance } else { SpanKind::Reservation },
                    starts_at: row.starts_at,
                    ends_at: Some(row.ends_at),
                    placement: device
                        .profile_id
                        .map(|_| Placement { start: device.start, size: device.size }),
                    own: visible && !maintenance,
                    id: if visible || org.is_none() { row.id.to_string() } else { String::new() },
                    name: if visible || maintenance { row.name.clone() } else { String::new() },
                });
            }
        }
        for row in held.into_iter().filter(|h| h.reservation_id.is_none()) {
            let a = &row.allocation;
            let visible = is_visible(Some(a.org_id));
            let left_s = row.max_duration_s - row.metered_before_ms / 1_000;
            let runs = !row.phase.state.ended();
            let begun = row.started_at;
            let ends_at = begun.filter(|_| runs && a.unclean.is_none()).map(|t| t.plus_seconds(left_s));
            let number = |n: i64| u32::try_from(n).unwrap_or(0);
            spans.entry(a.gpu_uuid.clone()).or_default().push(Span {
                kind: SpanKind::Job,
                starts_at: begun.unwrap_or_else(|| self.context.now()),
                ends_at,
                placement: a.profile_id.map(|_| Placement { start: number(a.start), size: number(a.size) }),
                own: visible,
                id: if visible { a.job_id.to_string() } else { String::new() },
                name: if visible { row.job_name.clone() } else { String::new() },
            });
        }
        let mut rows: Vec<CalendarRow> = Vec::new();
        let is_shown = |gpu: &&StoredGpu| {
            gpu.present
                && usable.is_none_or(|nodes| nodes.has(gpu.dedicated_to))
                && model.is_none_or(|model| model == model_name(gpu))
        };
        for gpu in boards.gpus.values().filter(is_shown) {
            let mut spans = spans.remove(&gpu.uuid).unwrap_or_default();
            spans.sort_by_key(|s| (s.starts_at, s.placement.map_or(0, |p| p.start)));
            rows.push(CalendarRow {
                node: gpu.node_id,
                node_name: boards.nodes.get(&gpu.node_id).cloned().unwrap_or_default(),
                gpu_uuid: gpu.uuid.clone(),
                gpu_index: u32::try_from(gpu.idx).unwrap_or(0),
                model: gpu.model.clone(),
                cells: board_by_name(&gpu.model).map_or(1, |b| b.memory_slices),
                spans,
            });
        }
        rows.sort_by(|a, b| (&a.node_name, a.node, a.gpu_index).cmp(&(&b.node_name, b.node, b.gpu_index)));
        Ok(Calendar { from, until, now: self.context.now(), rows })
    }
}
