//! Properties of all policies, on nodes in any state.

use std::sync::Arc;

use berth_types::ids::{JobId, NodeId, OrgId};
use proptest::prelude::*;
use uuid::Uuid;

use crate::cluster::{Cluster, GpuFacts, Models, NodeFacts, NodeIx, Owner, Rank, Slot};
use crate::finder::{Finder, slots};
use crate::networks::{NetworkNeed, NodeNetworks};
use crate::scoring::*;
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

proptest! {
    #[test]
    fn offers_are_free_places_and_cost_what_they_say(asked in prop::collection::vec((any::<u8>(), any::<u8>()), 1..60)) {
        let mut cluster = cluster(3);
        let mut finder = Finder::new(Reach);
        for (number, (kind, cpus)) in asked.into_iter().enumerate() {
            let shape = shape(kind, cpus);
            finder.observe(&shape, &cluster);
            finder.sync(&cluster, &shape);
            let cx = ScoringInput { models: cluster.models(), demand: finder.demand.tables() };
            let all: [&dyn Policy; 7] =
                [&Reach, &Fgd, &BestFit, &FirstFit, &Packing, &Completions, &Random];
            for node in cluster.nodes() {
                for policy in all {
                    let offer = policy.offer(node.view(), &shape, &cx);
                    // Either all policies place the shape, or none.
                    prop_assert_eq!(offer.is_some(), Reach.cost(node.view(), &shape, &cx).is_some());
                    prop_assert_eq!(offer.map(|o| o.cost), policy.cost(node.view(), &shape, &cx));
                }
            }
            // The cached costs agree with the costs of all nodes computed again.
            let costs = cluster.nodes().iter().filter_map(|n| Reach.cost(n.view(), &shape, &cx));
            let best = finder.best(&cluster, &shape, &|_| true);
            prop_assert_eq!(best.is_some(), costs.min().is_some());
            let Some(node) = best else { continue };
            let view = *cluster.node(node).unwrap().view();
            let offer = finder.offer(&cluster, &view, &shape).unwrap();
            let slots = slots(&cluster, node, &shape, &offer);
            prop_assert_eq!(slots.len(), shape.count as usize);
            let healthy: Vec<Arc<str>> = cluster.node(node).unwrap().facts.gpus.iter().map(|g| g.uuid.clone()).collect();
            prop_assert!(slots.iter().all(|s| healthy.contains(&s.gpu)));
            let before = cluster.node(node).unwrap().view().free_milli();
            hold(&mut cluster, node, number as u128, &shape, slots);
            let after = cluster.node(node).unwrap().view().free_milli();
            prop_assert!(after <= before);
            // The view after single additions equals a view that is derived again.
            let anew = cluster.view_of(cluster.node(node).unwrap(), |_| true);
            prop_assert_eq!(&anew, cluster.node(node).unwrap().view());
        }
    }
}
