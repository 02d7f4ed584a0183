//! The conversion of stored rows into facts of the engine: requests of jobs and devices of attempts; and the
//! order in which the engine gets them.
//!
//! The module reads no database.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use berth_core::egress::has_gang_network;
use berth_core::jobs::StopCause;
use berth_engine::{Claim, ClaimBill, ClaimRank, Engine, Fact, JobFacts, RequestSummary, put_burst_reserve};
use berth_mig::{Instance, board_by_name};
use berth_placement::assignment::AssignedDevice;
use berth_placement::cluster::{BookingId, Owner, Part, Slot};
use berth_placement::networks::NetworkNeed;
use berth_placement::pools::Work;
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, ReservationId};
use berth_types::jobs::{JobState, Network, NewJob, Priority, Topology};
use berth_types::time::Timestamp;

use super::bookings;
use berth_store::StoreError;
use berth_store::attempts::HeldAllocation;
use berth_store::jobs::StoredJob;
use berth_store::reservations::StoredReservation;

/// The seconds for the worker's default grace and the cleaning of the devices.
const GRACE_S: i64 = 10;

fn priority(rank: i64) -> Priority {
    match rank {
        0 => Priority::Low,
        1 => Priority::Normal,
        _ => Priority::High,
    }
}

pub(super) fn device_request(profile: Option<&str>, gpu_milli: Option<u32>) -> DeviceRequest {
    match (profile, gpu_milli) {
        (Some(profile), _) => DeviceRequest::Slice(profile.into()),
        (None, Some(milli)) => DeviceRequest::Share(u16::try_from(milli).unwrap_or(0)),
        (None, None) => DeviceRequest::Board,
    }
}

/// A request for `count` devices of one board model on each of `nodes` nodes, with thousandths of processors
/// and memory on each.
pub(super) fn request(
    model: &str,
    device: DeviceRequest,
    (count, nodes): (u32, u32),
    (cpu_milli, memory_mib): (i64, i64),
    near: Topology,
) -> Request {
    let topology = match near {
        Topology::Any | Topology::SameNode | Topology::Nvlink => Nearness::Any,
        Topology::SameSwitch => Nearness::SameSwitch,
        Topology::SameRack => Nearness::SameRack,
    };
    Request {
        device,
        count,
        nodes,
        models: vec![model.into()],
        cpu_milli,
        memory_mib,
        topology,
        nvlink: near == Topology::Nvlink,
        images: false,
        rdma: false,
        network: NetworkNeed::Any,
        storage: Vec::new(),
        work: Work::Training,
        offering: None,
        nano_per_second: 0,
    }
}

/// The network that the nodes of a job must give.
pub(super) const fn network_need(spec: &NewJob) -> NetworkNeed {
    match spec.network {
        Network::None => NetworkNeed::Any,
        _ if has_gang_network(spec) => NetworkNeed::GangPolicy,
        Network::Outbound | Network::Internet => NetworkNeed::Policy,
        Network::Host => NetworkNeed::Host,
    }
}

/// The requested processors of a submission on each node, in thousandths.
pub fn cpu_milli(spec: &NewJob) -> i64 {
    i64::from(spec.cpus.unwrap_or(0)) * 1_000
}

/// The requested memory of a submission on each node.
pub fn memory_mib(spec: &NewJob) -> i64 {
    spec.memory_mib.map_or(0, |n| i64::try_from(n).unwrap_or(i64::MAX))
}

/// The booking of a job's reservation.
fn job_booking(reservation: Option<ReservationId>) -> Option<BookingId> {
    reservation.map(bookings::booking_id)
}

/// The facts of a waiting job, and true if it uses volumes. The caller has to add the state and the storage
/// classes of the volumes, which are not in the row.
pub(super) fn waiting_facts(row: &StoredJob) -> (JobFacts, bool) {
    let spec = &row.spec;
    let count = u32::try_from(row.device_count).unwrap_or(u32::MAX);
    let nodes = u32::try_from(row.nodes).unwrap_or(u32::MAX);
    let facts = JobFacts {
        id: row.id,
        generation: row.generation,
        attempt: u32::try_from(row.attempt).unwrap_or(0),
        org: row.org_id,
        request: Request {
            offering: Some(row.slug.as_str().into()),
            nano_per_second: row.nano_per_second,
            images: spec.image.is_some(),
            rdma: spec.rdma,
            network: network_need(spec),
            // A reservation has its boards in any pool.
            work: Work::new(row.replica, row.preemptible || row.reservation_id.is_some()),
            ..request(
                &row.gpu_model,
                device_request(row.mig_profile.as_deref(), spec.gpu_milli),
                (count, nodes),
                (row.cpu_milli, row.memory_mib),
                spec.topology,
            )
        },
        priority: priority(row.priority),
        max_duration_s: row.max_duration_s - row.metered_before_ms / 1_000,
        preemptible: row.preemptible,
        grace_s: row.grace_s,
        gives_back_ms: row.gives_back_ms,
        queued_at: row.created_at,
        depends_on: spec.depends_on.clone(),
        inside: job_booking(row.reservation_id),
        volume: None,
    };
    (facts, !spec.volumes.is_empty())
}

/// The summary of a job's request for the reason texts.
pub(super) fn request_summary(row: &StoredJob) -> RequestSummary {
    RequestSummary {
        model: row.gpu_model.clone(),
        device: device_request(row.mig_profile.as_deref(), row.spec.gpu_milli),
        count: u32::try_from(row.device_count).unwrap_or(u32::MAX),
    }
}

/// The held devices, by attempt.
pub(super) fn claims(held: Vec<HeldAllocation>, now: Timestamp) -> Vec<Claim> {
    let mut out: BTreeMap<Owner, Claim> = BTreeMap::new();
    let mut unclean: BTreeSet<Owner> = BTreeSet::new();
    for row in held {
        let a = &row.allocation;
        let number = |n: i64| u32::try_from(n).unwrap_or(0);
        let owner = Owner { job: a.job_id, attempt: number(a.attempt) };
        let since = row.started_at.unwrap_or(now);
        let current = row.attempt == a.attempt;
        let runs =
            current && matches!(row.phase.state, JobState::Assigned | JobState::Starting | JobState::Running);
        let stop = row.phase.stop.as_ref().map(|stop| stop.cause).filter(|_| current);
        // The retry policy after a failure is in the submission, which is not read here.
        let requeues = matches!(
            stop,
            Some(
                StopCause::Preempted { .. } | StopCause::Drained { again: true, .. } | StopCause::RankFailed
            )
        );
        let left = row.max_duration_s - row.metered_before_ms / 1_000;
        let claim = out.entry(owner).or_insert_with(|| Claim {
            owner,
            org: a.org_id,
            ranks: Vec::new(),
            milli: 0,
            since,
            ends_by: None,
            priority: priority(row.priority),
            stops: !runs,
            stopped_for: row.room_for_job,
            requeues,
            models: vec![row.gpu_model.as_str().into()],
            preemptible: (runs && row.preemptible).then_some(row.grace_s),
            gives_back_ms: row.gives_back_ms,
            replica: row.replica,
            saved_at: None,
            inside: job_booking(row.reservation_id),
            bill: ClaimBill {
                offering: Some(row.slug.as_str().into()),
                devices_milli: 0,
                nano_per_second: row.nano_per_second,
            },
        });
        let limit = since.plus_seconds(left.max(0));
        claim.ends_by = Some(match row.reservation_ends_at {
            // The attempt stops or is being cleaned. The engine counts from the first fact about that.
            _ if !runs => now.plus_seconds(row.grace_s.max(GRACE_S)),
            // The end of a reservation stops the runs inside.
            Some(end) => limit.min(end),
            None => limit,
        });
        if a.unclean.is_some() {
            unclean.insert(owner);
        }
        claim.bill.devices_milli += a.share_milli.unwrap_or(1_000);
        claim.milli += a.share_milli.unwrap_or(a.size * 1_000 / row.cells.max(1));
        let part = match (a.profile_id, a.share_milli) {
            (None, None) => Part::Whole,
            (None, Some(milli)) => Part::Share(u16::try_from(milli).unwrap_or(u16::MAX)),
            (Some(id), _) => Part::Slice(Instance { profile_id: number(id), start: number(a.start) }),
        };
        let slot = Slot { gpu: a.gpu_uuid.as_str().into(), part };
        match claim.ranks.iter_mut().find(|r| r.node == a.node_id) {
            Some(rank) => rank.slots.push(slot),
            None => {
                let (cpu_milli, memory_mib) = (row.cpu_milli, row.memory_mib);
                claim.ranks.push(ClaimRank { node: a.node_id, slots: vec![slot], cpu_milli, memory_mib });
            }
        }
    }
    // One device without a known end is enough.
    out.values_mut().filter(|claim| unclean.contains(&claim.owner)).for_each(|claim| claim.ends_by = None);
    out.into_values().collect()
}

/// The slots of the engine as assigned devices, the form of the database.
pub fn assigned_devices(model: &str, slots: &[Slot]) -> Vec<AssignedDevice> {
    let board = board_by_name(model);
    let slot = |slot: &Slot| {
        let instance = if let Part::Slice(instance) = slot.part { Some(instance) } else { None };
        let share_milli = if let Part::Share(milli) = slot.part { Some(milli) } else { None };
        let size = match instance {
            Some(i) => board.and_then(|b| b.profile(i.profile_id)).map_or(1, |p| p.size),
            None => board.map_or(1, |b| b.memory_slices),
        };
        AssignedDevice { gpu_uuid: slot.gpu.to_string(), instance, share_milli, size }
    };
    slots.iter().map(slot).collect()
}

/// The facts of one read, in the order in which the engine needs them.
pub(super) struct StatedFacts {
    pub facts: Vec<Fact>,
    pub racks: Option<Vec<(String, i64)>>,
    /// The reserve for bursts in boards.
    pub burst_reserve: Option<i64>,
    pub bookings: Option<Vec<StoredReservation>>,
    /// All present claims and waiting jobs, after a read of everything.
    pub present: Option<(HashSet<Owner>, HashSet<JobId>)>,
}

/// Gives the facts of a read to the engine.
pub(super) fn state_facts(
    engine: &mut Engine,
    stated: StatedFacts,
    version: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let StatedFacts { facts, racks, burst_reserve, bookings, present } = stated;
    let (nodes, others): (Vec<Fact>, Vec<Fact>) =
        facts.into_iter().partition(|f| matches!(f, Fact::Node { .. }));
    for fact in nodes {
        engine.apply(fact, now);
    }
    if let Some(racks) = racks {
        engine.put_racks(racks.into_iter().map(|(name, watts)| (name.into(), watts)).collect());
    }
    if let Some(boards) = burst_reserve {
        put_burst_reserve(engine, u32::try_from(boards).unwrap_or(0));
    }
    if let Some(rows) = bookings {
        bookings::state_bookings(engine, &rows, version, now)?;
    }
    for fact in others {
        engine.apply(fact, now);
    }
    if let Some((owners, jobs)) = present {
        let gone: Vec<Owner> = engine.owners().filter(|o| !owners.contains(o)).collect();
        let left: Vec<JobId> = engine.waiting_jobs().map(|(j, _)| j).filter(|j| !jobs.contains(j)).collect();
        for owner in gone {
            engine.apply(Fact::Freed { version, owner }, now);
        }
        for job in left {
            engine.apply(Fact::Left { version, job }, now);
        }
    }
    Ok(())
}
