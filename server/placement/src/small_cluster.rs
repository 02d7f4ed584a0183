//! A cluster of H100 boards with shapes for it, for tests.

use berth_types::ids::{JobId, NodeId, OrgId};
use uuid::Uuid;

use crate::cluster::{Cluster, GpuFacts, Models, NodeFacts, NodeIx, Owner, Rank, Slot};
use crate::networks::{NetworkNeed, NodeNetworks};
use crate::shape::{Device, Shape};
use crate::tenancy::Tenancy;

pub fn cluster(nodes: u32) -> Cluster {
    let mut cluster = Cluster::default();
    for n in 0..nodes {
        let gpu = |i: u32| GpuFacts {
            uuid: format!("GPU-{n}-{i}").into(),
            model: "H100-80GB".into(),
            mig_enabled: true,
            healthy: true,
            island: 0,
            limit_watts: None,
            foreign: Vec::new(),
        };
        cluster.put_node(NodeFacts {
            id: NodeId::from_uuid(Uuid::from_u128(u128::from(n))),
            open: true,
            away: false,
            awaited: false,
            lost: false,
            drains_by: None,
            images: true,
            rdma_boards: 0,
            networks: NodeNetworks::ALL,
            storage: Vec::new(),
            cpu_milli: 32_000,
            memory_mib: 100_000,
            switch: None,
            rack: None,
            dedicated_to: None,
            pool: berth_types::node_pools::NodePool::Both,
            gpus: (0..3).map(gpu).collect(),
        });
    }
    cluster
}

pub fn shape(kind: u8, cpus: u8) -> Shape {
    let device = match kind % 8 {
        0 => Device::Board,
        n @ 1..=3 => Device::Share { milli: u16::from(n) * 230, sharer: 1 },
        n => Device::Slice { profile: n - 4 },
    };
    let count = if kind.is_multiple_of(8) { u32::from(kind / 8 % 3) + 1 } else { 1 };
    let cpu_milli = i64::from(cpus % 8) * 1_000;
    let (models, tenancy) = (Models::only(0), Tenancy::COMMON);
    Shape {
        device,
        count,
        models,
        cpu_milli,
        memory_mib: 0,
        nvlink: false,
        images: false,
        network: NetworkNeed::Any,
        gang: false,
        rdma: false,
        storage: 0,
        tenancy,
        work: crate::pools::Work::Training,
    }
}

pub fn hold(cluster: &mut Cluster, node: NodeIx, number: u128, shape: &Shape, slots: Vec<Slot>) {
    cluster.hold(
        node,
        Rank {
            owner: Owner { job: JobId::from_uuid(Uuid::from_u128(number)), attempt: 1 },
            org: OrgId::from_uuid(Uuid::from_u128(1)),
            cpu_milli: shape.cpu_milli,
            memory_mib: 0,
            slots,
            ends_by: None,
            inside: None,
        },
    );
}
