//! Test nodes, boards and jobs, with short forms of the store's functions.

use berth_store::attempts::{StoredAllocation, StoredAttempt};
use berth_store::jobs::{JobInputs, NewStoredJob};
use berth_store::nodes::{GpuReport, NodeReport, StoredNode};
use berth_store::offerings::StoredOffering;
use berth_store::types::JsonColumn;
use berth_store::{self as store, Db, StoreError};
use berth_types::accounts::Org;
use berth_types::ids::{JobId, JoinTokenId, NodeId, OfferingId, OrgId};
use berth_types::jobs::NewJob;
use berth_types::time::Timestamp;
use futures::FutureExt;
use uuid::Uuid;

pub use crate::stores::{insert_node, later, now, write};

pub const LEASE_MS: i64 = 60_000;

pub fn org() -> OrgId {
    OrgId::from_uuid(Uuid::from_u128(1))
}

pub fn node(n: u128) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(n))
}

pub fn job(n: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(n))
}

pub fn join_token_id(n: u128) -> JoinTokenId {
    JoinTokenId::from_uuid(Uuid::from_u128(n))
}

pub fn offering(n: u128, slug: &str, model: &str, cells: i64) -> StoredOffering {
    StoredOffering {
        id: OfferingId::from_uuid(Uuid::from_u128(n)),
        slug: slug.to_owned(),
        gpu_model: model.to_owned(),
        mig_profile: (cells < 8).then(|| format!("{cells}g")),
        memory_mib: cells * 10_240,
        cells,
        board_cells: 8,
        simulated: true,
        price: None,
    }
}

pub fn board(uuid: &str, index: i64) -> GpuReport {
    GpuReport {
        uuid: uuid.to_owned(),
        index,
        model: "H100".to_owned(),
        memory_mib: 81_920,
        mig_enabled: true,
        nvlink_island: 1,
        foreign_instances: JsonColumn::default(),
    }
}

pub fn host(boards: Vec<GpuReport>) -> NodeReport {
    NodeReport {
        simulated: true,
        unisolated: false,
        driver_version: "550".to_owned(),
        worker_version: "0.1".to_owned(),
        cpu_milli: 64_000,
        memory_mib: 512_000,
        address: "10.0.0.1".to_owned(),
        labels: JsonColumn([("rack".to_owned(), "r1".to_owned())].into()),
        isolation: JsonColumn::default(),
        images: false,
        gang_ports: None,
        rdma_ports: JsonColumn::default(),
        egress: false,
        host_network: false,
        host_mounts: JsonColumn::default(),
        checks_rdma_links: false,
        inference_port: 0,
        boards,
    }
}

pub fn slice(j: u128, attempt: i64, idx: i64, gpu: &str, start: i64) -> StoredAllocation {
    StoredAllocation {
        job_id: job(j),
        attempt,
        idx,
        org_id: org(),
        node_id: node(1),
        gpu_uuid: gpu.to_owned(),
        profile_id: Some(19),
        start,
        size: 1,
        share_milli: None,
        mig_uuid: None,
        unclean: None,
    }
}

pub async fn with_nodes(db: &Db) {
    write(db, |tx| {
        async move {
            insert_node(tx, node(2), "beta", now()).await?;
            insert_node(tx, node(1), "alpha", now()).await
        }
        .boxed()
    })
    .await;
}

pub async fn with_jobs(db: &Db) {
    write(db, |tx| {
        async move {
            let name = "harbour".to_owned();
            let organization = Org { id: org(), slug: name.clone(), name, created_at: now() };
            store::accounts::insert_org(tx, &organization).await?;
            let slice = offering(1, "h100.1g", "H100", 1);
            store::offerings::insert(tx, &slice, now()).await?;
            for n in 1..=3 {
                let new = NewStoredJob {
                    id: job(n),
                    org: org(),
                    name: format!("job {n}"),
                    offering: slice.id,
                    spec: JsonColumn(NewJob::default()),
                    inputs: JobInputs::default(),
                    priority: 1,
                    preemptible: false,
                    cpu_milli: 4_000,
                    memory_mib: 0,
                    nodes: 1,
                    grace_s: 10,
                    board_milli: 125,
                    reservation: None,
                    labels: JsonColumn::default(),
                    device_milli: 1_000,
                    device_count: 1,
                    max_duration_s: 60,
                    price_version: 1,
                    nano_per_second: 1_000,
                    surcharge_basis_points: 0,
                    held_micros: 60,
                    hold: None,
                    created_by: "a@b".to_owned(),
                    created_at: later(5),
                };
                store::jobs::insert(tx, &new).await?;
            }
            Ok(())
        }
        .boxed()
    })
    .await;
}

pub async fn report(db: &Db, n: u128, report: NodeReport, at: Timestamp) -> Result<(), StoreError> {
    db.write(move |tx| {
        let report = report.clone();
        async move { store::nodes::record_report(tx, node(n), &report, at).await }.boxed()
    })
    .await
}

pub async fn join(db: &Db, n: u128, name: &'static str) -> Result<(), StoreError> {
    db.write(move |tx| async move { insert_node(tx, node(n), name, now()).await }.boxed()).await
}

pub async fn use_join_token(db: &Db, hash: &'static str, at: Timestamp) -> bool {
    write(db, move |tx| async move { store::nodes::use_join_token(tx, hash, at).await }.boxed()).await
}

pub async fn nodes(db: &Db) -> Vec<StoredNode> {
    read!(db, store::nodes::list)
}

pub async fn allocate(db: &Db, row: StoredAllocation) -> Result<(), StoreError> {
    db.write(move |tx| {
        let row = row.clone();
        async move { store::attempts::insert_allocation(tx, &row).await }.boxed()
    })
    .await
}

pub async fn quarantine(db: &Db, j: u128, attempt: i64, reason: &'static str) {
    write(db, move |tx| {
        async move { store::nodes::quarantine(tx, job(j), attempt, node(1), reason).await }.boxed()
    })
    .await;
}

/// Returns the boards in quarantine with their reasons.
pub async fn quarantined(db: &Db) -> Vec<(String, String)> {
    let rows = read!(db, store::nodes::list_gpus);
    rows.into_iter().filter_map(|gpu| Some((gpu.uuid, gpu.quarantined?))).collect()
}

pub async fn start(db: &Db, j: u128, number: u32, n: u128) -> Result<(), StoreError> {
    db.write(move |tx| {
        async move { store::attempts::insert(tx, job(j), (number, 0), org(), node(n), LEASE_MS, now()).await }
            .boxed()
    })
    .await
}

pub async fn update_attempt(db: &Db, row: &StoredAttempt) {
    let row = row.clone();
    write(db, move |tx| {
        let row = row.clone();
        async move { store::attempts::update(tx, &row).await }.boxed()
    })
    .await;
}

pub async fn open_on(db: &Db, n: u128) -> Vec<(JobId, i64)> {
    let rows = read!(db, store::attempts::list_open, node(n));
    rows.into_iter().map(|row| (row.job_id, row.number)).collect()
}

pub async fn release(db: &Db, j: u128, attempt: i64) {
    write(db, move |tx| async move { store::attempts::release(tx, job(j), attempt, node(1)).await }.boxed())
        .await;
}

pub async fn mark_unclean(db: &Db, j: u128, attempt: i64, reason: &'static str) {
    write(db, move |tx| {
        async move { store::attempts::mark_unclean(tx, job(j), attempt, node(1), reason).await }.boxed()
    })
    .await;
}

/// Returns the held slices: board, first memory slice, job, attempt and unclean reason.
pub async fn held(db: &Db) -> Vec<(String, i64, JobId, i64, Option<String>)> {
    let rows = read!(db, store::attempts::list_held);
    rows.into_iter()
        .map(|row| row.allocation)
        .map(|a| (a.gpu_uuid, a.start, a.job_id, a.attempt, a.unclean))
        .collect()
}

pub fn hold(gpu: &str, start: i64, j: u128, attempt: i64) -> (String, i64, JobId, i64, Option<String>) {
    (gpu.to_owned(), start, job(j), attempt, None)
}
