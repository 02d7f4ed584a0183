//! Tests of the needs of jobs besides boards: processors, memory, images, storage classes, networks, and nodes in service.

use std::sync::Arc;

use berth_engine::{Blocker, Decision, Engine, Fact, JobFacts, OrgFacts};
use berth_placement::cluster::{GpuFacts, NodeFacts, Owner};
use berth_placement::networks::{GangKind, NetworkNeed, NodeNetworks};
use berth_placement::quotas::EngineLimits;
use berth_placement::request::{DeviceRequest, Nearness, Request};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::Priority;
use berth_types::time::Timestamp;
use uuid::Uuid;

mod small;

use small::*;

#[test]
fn processors_and_memory_count_and_are_named() {
    let mut e = engine(1, 2);
    let request_job = |n, cpu_milli, memory_mib| waits(n, Request { cpu_milli, memory_mib, ..boards(1, 1) });
    submit(&mut e, request_job(1, 40_000, 1_000));
    assert_eq!(starts(&e.pass(at(0))), [job_id(1)]);
    submit(&mut e, request_job(2, 40_000, 1_000));
    assert_eq!(e.pass(at(0)), []);
    let why = e.why(job_id(2), at(0)).unwrap();
    assert_eq!(why.blockers, [Blocker::Host { nodes: 1, temporary: true }]);
    assert_eq!(why.earliest, Some(at(3_600)));
    submit(&mut e, request_job(3, 24_000, 511_000));
    assert_eq!(starts(&e.pass(at(1))), [job_id(3)], "the rest is enough");
    submit(&mut e, request_job(4, 100_000, 0));
    assert_eq!(e.pass(at(2)), []);
    assert_eq!(e.why(job_id(4), at(2)).unwrap().blockers[0], Blocker::Host { nodes: 1, temporary: false });
}

#[test]
fn a_job_in_an_image_waits_for_a_node_that_runs_images() {
    let mut e = Engine::default();
    let with = |n, images| NodeFacts { images, ..node(n, "H100-80GB", 1) };
    for n in 1..=2 {
        e.apply(Fact::Node { version: 1, facts: with(n, false) }, at(0));
    }
    let request_job = |n, nodes| waits(n, Request { images: true, ..boards(1, nodes) });
    submit(&mut e, request_job(1, 1));
    submit(&mut e, waits(2, boards(1, 1)));
    assert_eq!(starts(&e.pass(at(0))), [job_id(2)], "a job without an image starts");
    let why = e.why(job_id(1), at(0)).unwrap();
    assert_eq!(why.blockers[0], Blocker::Images { nodes: 2 });
    e.apply(Fact::Node { version: 2, facts: with(2, true) }, at(1));
    e.apply(Fact::Node { version: 2, facts: with(3, true) }, at(1));
    assert_eq!(starts(&e.pass(at(1))), [job_id(1)]);
    submit(&mut e, request_job(3, 3));
    assert_eq!(e.pass(at(2)), []);
    assert_eq!(e.why(job_id(3), at(2)).unwrap().blockers, [Blocker::Images { nodes: 1 }]);
}

#[test]
fn a_job_with_rdma_gets_all_boards_of_nodes_with_active_ports() {
    let mut e = Engine::default();
    let with = |n, rdma_boards| NodeFacts { rdma_boards, ..node(n, "H100-80GB", 2) };
    for (n, rdma_boards) in [(1, 0), (2, 2), (3, 0)] {
        e.apply(Fact::Node { version: 1, facts: with(n, rdma_boards) }, at(0));
    }
    let request_job = |n, count, nodes| waits(n, Request { rdma: true, ..boards(count, nodes) });
    submit(&mut e, request_job(1, 1, 1));
    submit(&mut e, request_job(2, 2, 1));
    submit(&mut e, request_job(3, 2, 2));
    let mut never = |count, nodes| {
        let request = Request { rdma: true, ..boards(count, nodes) };
        e.why_impossible(&request, org(1)).unwrap().map(|why| why.blockers)
    };
    assert_eq!(never(1, 1), Some(vec![Blocker::Rdma { nodes: 3 }]), "no node has one board");
    assert_eq!(never(2, 3), None, "a port can become active");
    assert_eq!(starts(&e.pass(at(0))), [job_id(2)], "all boards of the only node with a port");
    assert_eq!(e.why(job_id(1), at(0)).unwrap().blockers[0], Blocker::Rdma { nodes: 3 }, "one of two boards");
    assert_eq!(e.why(job_id(3), at(0)).unwrap().blockers[0], Blocker::Rdma { nodes: 2 });
    e.apply(Fact::Node { version: 2, facts: with(1, 2) }, at(1));
    e.apply(Fact::Node { version: 2, facts: with(3, 2) }, at(1));
    assert_eq!(starts(&e.pass(at(1))), [job_id(3)], "two nodes with ports");
}

#[test]
fn a_job_waits_for_a_node_that_gives_its_network() {
    let mut e = Engine::default();
    let with = |n, policy, host| NodeFacts {
        networks: NodeNetworks { policy, host, ..NodeNetworks::default() },
        ..node(n, "H100-80GB", 1)
    };
    for n in 1..=3 {
        e.apply(Fact::Node { version: 1, facts: with(n, false, false) }, at(0));
    }
    let request_job = |n, network| waits(n, Request { network, ..boards(1, 1) });
    submit(&mut e, request_job(1, NetworkNeed::Host));
    submit(&mut e, request_job(2, NetworkNeed::Policy));
    assert_eq!(starts(&e.pass(at(0))), [job_id(2)], "the policy of its organization is the default one");
    assert_eq!(e.why(job_id(1), at(0)).unwrap().blockers[0], Blocker::Network { nodes: 3 });
    submit(&mut e, request_job(4, NetworkNeed::Policy));
    let facts = OrgFacts {
        org: org(1),
        weight: 1.0,
        used: None,
        guaranteed_milli: 0,
        own_nodes_only: false,
        egress_policy: true,
        limits: EngineLimits::default(),
    };
    e.apply(Fact::Org(facts), at(1));
    assert_eq!(e.pass(at(1)), [], "the waiting job follows the changed policy");
    assert_eq!(e.why(job_id(4), at(1)).unwrap().blockers[0], Blocker::Network { nodes: 3 });
    e.apply(Fact::Node { version: 2, facts: with(4, true, false) }, at(2));
    e.apply(Fact::Node { version: 2, facts: with(5, false, true) }, at(2));
    let mut started = starts(&e.pass(at(2)));
    started.sort_unstable();
    assert_eq!(started, [job_id(1), job_id(4)]);
}

#[test]
fn ranks_start_on_nodes_with_one_kind_of_network() {
    let mut e = Engine::default();
    let with = |n, gang| NodeFacts {
        networks: NodeNetworks { gang, ..NodeNetworks::ALL },
        ..node(n, "H100-80GB", 1)
    };
    for (n, gang) in [(1, GangKind::Host), (2, GangKind::Encrypted), (3, GangKind::Plain)] {
        e.apply(Fact::Node { version: 1, facts: with(n, gang) }, at(0));
    }
    let request = Request { network: NetworkNeed::Gang, ..boards(1, 2) };
    assert_eq!(e.why_impossible(&request, org(1)).unwrap(), None, "an operator can change the networks");
    submit(&mut e, waits(1, request));
    assert_eq!(e.pass(at(0)), []);
    assert_eq!(e.why(job_id(1), at(0)).unwrap().blockers[0], Blocker::Network { nodes: 1 });
    e.apply(Fact::Node { version: 2, facts: with(3, GangKind::Encrypted) }, at(1));
    e.apply(Fact::Node { version: 1, facts: with(4, GangKind::Host) }, at(1));
    let decisions = e.pass(at(1));
    let [Decision::Start { ranks, .. }] = &decisions[..] else { panic!("{decisions:?}") };
    let mut nodes: Vec<NodeId> = ranks.iter().map(|(node, _)| *node).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, [node_id(2), node_id(3)], "not the nodes with the network of the host");
}

#[test]
fn nodes_that_lack_several_things_can_get_them() {
    let mut e = Engine::default();
    let mut facts = node(1, "H100-80GB", 2);
    (facts.images, facts.networks) = (false, NodeNetworks::default());
    e.apply(Fact::Node { version: 1, facts: facts.clone() }, at(0));
    let wanted = Request {
        images: true,
        rdma: true,
        network: NetworkNeed::Policy,
        storage: vec!["home".into()],
        ..boards(2, 1)
    };
    let own = OrgFacts {
        org: org(1),
        weight: 1.0,
        used: None,
        guaranteed_milli: 0,
        own_nodes_only: false,
        egress_policy: true,
        limits: EngineLimits::default(),
    };
    e.apply(Fact::Org(own), at(0));
    submit(&mut e, waits(1, wanted.clone()));
    let class: Arc<str> = "home".into();
    let expected = [
        Blocker::Images { nodes: 1 },
        Blocker::Network { nodes: 1 },
        Blocker::Storage { nodes: 1, class: class.clone() },
        Blocker::Rdma { nodes: 1 },
    ];
    for (version, blocker) in (2..).zip(expected) {
        assert_eq!(e.why_impossible(&wanted, org(1)).unwrap(), None, "{blocker:?}");
        assert_eq!(e.pass(at(0)), []);
        assert_eq!(e.why(job_id(1), at(0)).unwrap().blockers[0], blocker);
        match blocker {
            Blocker::Images { .. } => facts.images = true,
            Blocker::Network { .. } => facts.networks.policy = true,
            Blocker::Storage { .. } => facts.storage = vec![class.clone()],
            _ => facts.rdma_boards = 2,
        }
        e.apply(Fact::Node { version, facts: facts.clone() }, at(0));
    }
    assert_eq!(starts(&e.pass(at(0))), [job_id(1)]);
}

#[test]
fn nodes_set_aside_take_no_ranks_of_gangs_and_other_jobs() {
    let mut e = Engine::default();
    let with = |n, aside| NodeFacts {
        networks: NodeNetworks { aside, ..NodeNetworks::ALL },
        ..node(n, "H100-80GB", 1)
    };
    e.apply(Fact::Node { version: 1, facts: with(1, true) }, at(0));
    e.apply(Fact::Node { version: 1, facts: with(2, false) }, at(0));
    let gang = boards(1, 2);
    submit(&mut e, waits(1, gang.clone()));
    assert_eq!(e.pass(at(0)), []);
    let why = e.why(job_id(1), at(0)).unwrap();
    assert_eq!(why.blockers, [Blocker::SetAside { nodes: 1 }]);
    assert_eq!(e.why_impossible(&gang, org(1)).unwrap(), None, "a node is released later");
    e.apply(Fact::Node { version: 2, facts: with(3, false) }, at(1));
    assert_eq!(starts(&e.pass(at(1))), [job_id(1)], "the gang avoids the first node");
    submit(&mut e, waits(2, boards(1, 1)));
    assert_eq!(starts(&e.pass(at(2))), [job_id(2)], "a job on one node takes it");
}

#[test]
fn a_closed_node_and_an_unhealthy_board_are_blockers() {
    let mut e = engine(2, 1);
    let mut away = node(1, "H100-80GB", 1);
    away.open = false;
    e.apply(Fact::Node { version: 2, facts: away }, at(0));
    let mut unhealthy = node(2, "H100-80GB", 1);
    unhealthy.gpus[0].healthy = false;
    e.apply(Fact::Node { version: 2, facts: unhealthy }, at(0));
    submit(&mut e, waits(1, slice("1g.10gb")));
    assert_eq!(e.pass(at(0)), []);
    let why = e.why(job_id(1), at(0)).unwrap();
    assert_eq!(why.blockers, [Blocker::Away { nodes: 1 }, Blocker::Quarantined { boards: 1 }]);
    let old = node(1, "H100-80GB", 1);
    e.apply(Fact::Node { version: 1, facts: old.clone() }, at(0));
    assert_eq!(e.pass(at(0)), [], "an older fact changes nothing");
    e.apply(Fact::Node { version: 3, facts: old }, at(0));
    assert_eq!(starts(&e.pass(at(0))), [job_id(1)]);
    let uuid: Arc<str> = "GPU-1-0".into();
    let view = e.cluster().node(e.cluster().find_node(node_id(1)).unwrap()).unwrap();
    assert_eq!(view.gpu_index(&uuid), Some(0));
}

#[test]
fn a_job_with_a_storage_class_waits_for_a_node_that_has_it() {
    let mut e = Engine::default();
    let with = |n, storage: &[&str]| NodeFacts {
        storage: storage.iter().map(|class| (*class).into()).collect(),
        ..node(n, "H100-80GB", 1)
    };
    e.apply(Fact::Node { version: 1, facts: with(1, &[]) }, at(0));
    e.apply(Fact::Node { version: 1, facts: with(2, &["home"]) }, at(0));
    let wants = |n, storage: &[&str]| {
        let storage = storage.iter().map(|class| (*class).into()).collect();
        waits(n, Request { storage, ..boards(1, 1) })
    };
    submit(&mut e, wants(1, &["home", "scratch"]));
    assert_eq!(e.pass(at(0)), []);
    let why = e.why(job_id(1), at(0)).unwrap();
    assert_eq!(why.blockers[0], Blocker::Storage { nodes: 2, class: "scratch".into() });
    submit(&mut e, wants(2, &["home"]));
    assert_eq!(starts(&e.pass(at(0))), [job_id(2)], "only the second node has it");
    submit(&mut e, wants(3, &["home"]));
    assert_eq!(e.pass(at(1)), []);
    assert!(matches!(e.why(job_id(3), at(1)).unwrap().blockers[0], Blocker::Busy { .. }));
    e.apply(Fact::Node { version: 2, facts: with(1, &["scratch", "home"]) }, at(1));
    assert_eq!(starts(&e.pass(at(1))), [job_id(1)], "its turn is the first");
}

#[test]
fn shares_of_a_board_stay_inside_one_organization() {
    let mut e = engine(1, 1);
    let share = |n, o, milli| JobFacts {
        org: org(o),
        ..waits(n, Request { device: DeviceRequest::Share(milli), ..boards(1, 1) })
    };
    submit(&mut e, share(1, 1, 600));
    submit(&mut e, share(2, 2, 300));
    submit(&mut e, share(3, 1, 400));
    let mut started = starts(&e.pass(at(10)));
    started.sort_unstable();
    assert_eq!(started, [job_id(1), job_id(3)]);
    free(&mut e, 1, at(20));
    free(&mut e, 3, at(20));
    assert_eq!(starts(&e.pass(at(20))), [job_id(2)]);
}
