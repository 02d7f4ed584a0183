//! Small clusters of H100 boards and jobs on them, for tests in the engine and beside it. The parent has the imports.

use super::*;

pub fn job_id(n: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(n))
}

pub fn node_id(n: u128) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(n))
}

pub fn org(n: u128) -> OrgId {
    OrgId::from_uuid(Uuid::from_u128(n))
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000).plus_seconds(seconds)
}

pub fn node(n: u128, model: &str, boards: usize) -> NodeFacts {
    let gpu = |i: usize| GpuFacts {
        uuid: format!("GPU-{n}-{i}").into(),
        model: model.into(),
        mig_enabled: true,
        healthy: true,
        island: u8::try_from(i / 4).unwrap_or(0),
        limit_watts: None,
        foreign: Vec::new(),
    };
    NodeFacts {
        id: node_id(n),
        open: true,
        away: false,
        awaited: false,
        lost: false,
        drains_by: None,
        images: true,
        rdma_boards: 0,
        networks: berth_placement::networks::NodeNetworks::ALL,
        storage: Vec::new(),
        cpu_milli: 64_000,
        memory_mib: 512_000,
        switch: Some(format!("leaf-{}", n / 2).into()),
        rack: Some("rack-1".into()),
        dedicated_to: None,
        pool: berth_types::node_pools::NodePool::Both,
        gpus: (0..boards).map(gpu).collect(),
    }
}

pub fn boards(count: u32, nodes: u32) -> Request {
    Request {
        device: DeviceRequest::Board,
        count,
        nodes,
        models: vec!["H100-80GB".into()],
        cpu_milli: 0,
        memory_mib: 0,
        topology: Nearness::Any,
        nvlink: false,
        images: false,
        rdma: false,
        network: berth_placement::networks::NetworkNeed::Any,
        storage: Vec::new(),
        work: berth_placement::pools::Work::Training,
        offering: None,
        nano_per_second: 0,
    }
}

pub fn slice(profile: &str) -> Request {
    Request { device: DeviceRequest::Slice(profile.into()), ..boards(1, 1) }
}

pub fn waits(n: u128, request: Request) -> JobFacts {
    JobFacts {
        id: job_id(n),
        generation: 1,
        attempt: 0,
        org: org(1),
        request,
        priority: Priority::Normal,
        max_duration_s: 3_600,
        preemptible: false,
        grace_s: 60,
        gives_back_ms: None,
        queued_at: at(i64::try_from(n).unwrap_or(0)),
        depends_on: Vec::new(),
        inside: None,
        volume: None,
    }
}

/// A cluster of `nodes` nodes with `gpus` H100 boards each.
pub fn engine(nodes: u128, gpus: usize) -> Engine {
    let mut engine = Engine::default();
    for n in 1..=nodes {
        engine.apply(Fact::Node { version: 1, facts: node(n, "H100-80GB", gpus) }, at(0));
    }
    engine
}

pub fn submit(engine: &mut Engine, facts: JobFacts) {
    engine.apply(Fact::Waits { version: facts.generation, facts }, at(0));
}

/// The jobs that a pass starts, in order.
pub fn starts(decisions: &[Decision]) -> Vec<JobId> {
    let start = |d: &Decision| match d {
        Decision::Start { job, .. } => Some(*job),
        _ => None,
    };
    decisions.iter().filter_map(start).collect()
}

pub fn free(engine: &mut Engine, n: u128, now: Timestamp) {
    let owner = Owner { job: job_id(n), attempt: 1 };
    engine.apply(Fact::Freed { version: 9, owner }, now);
}
