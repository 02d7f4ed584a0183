//! Tests of measured links between nodes: the expectation of a later attempt, the nodes of a bad link, and their release,
//! on both databases.

use std::path::Path;

use crate::common::{TestPortal, engines};
use crate::idle_portal::{Equipment, IdlePortal, node};
use crate::operations::{job, schedule_all, submit};
use crate::rdma::port;
use berth_foundation::{Change, Settings};
use berth_gangs::networks::{RankGang, RankRdmaCheck, reseal};
use berth_jobs::reports::{AttemptPhase, AttemptReport, LinkFigures, ReportedLink};
use berth_store::gangs::GangPorts;
use berth_types::ids::JobId;
use berth_types::jobs::Failure;
use serde_json::{Value, json};

impl IdlePortal {
    /// Reports both nodes with networks of gangs and the check of their links.
    async fn report_gang_networks(&self) {
        for n in 1..=2 {
            let gang_ports = Some(GangPorts { first: 51_821, plain: false, checks: true });
            self.report_equipped(n, Equipment { gang_ports, ..Equipment::default() }).await;
        }
        self.t.portal.context.publish(Change::Boards);
    }

    /// The part of a node in the network of the only gang.
    async fn rank_gang(&self, n: u128) -> RankGang {
        let ranks = self.t.portal.attempts.desired(node(n)).await.unwrap();
        *ranks.into_iter().find_map(|rank| rank.start?.gang).unwrap()
    }

    /// The set-aside of a node for operators.
    async fn set_aside(&self, n: u128) -> Value {
        let shown = self.t.get(&self.operator, &format!("/operator/nodes/{}", node(n))).await.expect(200);
        shown["set_aside"].clone()
    }

    /// The least throughputs of the gangs that a node has to start.
    async fn minima(&self, n: u128) -> Vec<u64> {
        let ranks = self.t.portal.attempts.desired(node(n)).await.unwrap();
        let gangs = ranks.into_iter().filter_map(|rank| rank.start?.gang);
        gangs.map(|gang| gang.peers[0].min_mib_per_s).collect()
    }

    async fn place_gang(&self) -> JobId {
        self.place(json!({"nodes": 2})).await
    }

    async fn place(&self, body: Value) -> JobId {
        let gang = submit(self, body).await.parse().unwrap();
        schedule_all(self).await;
        gang
    }

    /// Reports a phase of a gang from both nodes, each with its throughput of the link.
    async fn report_gang(&self, gang: JobId, phase: AttemptPhase, figures: [i64; 2]) {
        let others = [(1, self.other_rank(gang, 1).await), (2, self.other_rank(gang, 2).await)];
        for ((n, other), mib_per_s) in others.into_iter().zip(figures) {
            let exit_code = phase.has_ended().then_some(0);
            let log_bytes = phase.has_ended().then_some(0);
            let links = vec![link(other, Some(mib_per_s))];
            let new = AttemptReport::new(gang, 1, phase);
            let report = AttemptReport { exit_code, log_bytes, links, began: true, ..new };
            self.t.portal.attempts.apply_status(node(n), report).await.unwrap();
        }
    }

    /// Places a gang and reports good links of these throughputs, then its end.
    async fn run_gang(&self, figures: [i64; 2]) {
        self.run(json!({"nodes": 2}), figures).await;
    }

    async fn run(&self, body: Value, figures: [i64; 2]) {
        let gang = self.place(body).await;
        for phase in [AttemptPhase::Running, AttemptPhase::Clean] {
            self.report_gang(gang, phase, figures).await;
        }
        assert_eq!(job(self, &gang.to_string()).await["state"], "succeeded");
    }

    /// Releases a node, which forgets its links.
    async fn release(&self, n: u128) -> Value {
        let path = format!("/operator/nodes/{}/set-aside", node(n));
        self.t.call(&self.operator, "DELETE", &path, Value::Null).await.expect(200)
    }

    /// The rank on the node that is not this one.
    async fn other_rank(&self, gang: JobId, n: u128) -> i64 {
        let shown = job(self, &gang.to_string()).await;
        let first = shown["devices"][0]["node"].as_str().unwrap().to_owned();
        i64::from(first == node(n).to_string())
    }
}

fn link(rank: i64, mib_per_s: Option<i64>) -> ReportedLink {
    ReportedLink { rank, figures: mib_per_s.map(|mib_per_s| LinkFigures { rtt_us: 90, mib_per_s }) }
}

/// The report of a rank that was not started.
fn failed(gang: JobId, code: &str, links: Vec<ReportedLink>) -> AttemptReport {
    let failure = Some(Failure { code: code.to_owned(), detail: "The job was not started.".to_owned() });
    AttemptReport { failure, log_bytes: Some(0), links, ..AttemptReport::new(gang, 1, AttemptPhase::Clean) }
}

#[tokio::test]
async fn the_nodes_of_a_slow_link_take_no_gang_until_an_operator_releases_them() {
    for (engine, db, _location) in engines("gang_links").await {
        let setup = IdlePortal::on(db).await;
        setup.report_gang_networks().await;
        for mib_per_s in [500, 480, 9_000] {
            setup.run_gang([mib_per_s; 2]).await;
        }
        let gang = submit(&setup, json!({"nodes": 2})).await;
        let id: JobId = gang.parse().unwrap();
        schedule_all(&setup).await;
        let (one, two) = (setup.rank_gang(1).await, setup.rank_gang(2).await);
        assert_eq!((one.peers[0].min_mib_per_s, two.peers[0].min_mib_per_s), (250, 250), "{engine}");
        assert!(one.check_token.is_some() && one.check_token == two.check_token, "{engine}");

        let slow = vec![link(i64::from(two.rank), Some(12))];
        let attempts = &setup.t.portal.attempts;
        attempts.apply_status(node(2), AttemptReport::new(id, 1, AttemptPhase::Preparing)).await.unwrap();
        attempts.apply_status(node(1), failed(id, "gang.link_slow", slow)).await.unwrap();
        setup.t.clock.advance_s(1);
        attempts.apply_status(node(2), failed(id, "attempt.not_started", Vec::new())).await.unwrap();
        schedule_all(&setup).await;
        let shown = job(&setup, &gang).await;
        assert_eq!(
            (&shown["state"], &shown["retries"], &shown["cost_micros"]),
            (&json!("queued"), &json!(1), &json!(0)),
            "{engine}: {shown}"
        );
        for n in 1..=2 {
            let aside = setup.set_aside(n).await;
            let reason =
                "The link between the nodes node-1 and node-2 reaches 12 MiB/s; at least 250 are expected.";
            assert_eq!(aside["reason"], reason, "{engine}: {aside}");
        }
        let jobs = format!("/orgs/{}/jobs", setup.org);
        let why = setup.t.get(&setup.ada, &format!("{jobs}/{gang}/explanation")).await.expect(200);
        assert_eq!(why["blockers"][0]["code"], "node.set_aside", "{engine}: {why}");
        let nodes = setup.t.get(&setup.ada, &format!("/orgs/{}/nodes", setup.org)).await.expect(200);
        assert!(!nodes.to_string().contains("set_aside"), "{engine}: {nodes}");
        let alone = submit(&setup, json!({})).await;
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &alone).await["state"], "assigned", "{engine}: a job on one node");
        assert_eq!(job(&setup, &gang).await["state"], "queued", "{engine}");

        for n in 1..=2 {
            let path = format!("/operator/nodes/{}/set-aside", node(n));
            setup.t.call(&setup.ada, "DELETE", &path, Value::Null).await.problem(404, "object.not_found");
            let freed = setup.release(n).await;
            assert_eq!(freed.get("set_aside"), None, "{engine}: {freed}");
        }
        let missing = format!("/operator/nodes/{}/set-aside", node(9));
        setup.t.call(&setup.operator, "DELETE", &missing, Value::Null).await.problem(404, "object.not_found");
        schedule_all(&setup).await;
        let shown = job(&setup, &gang).await;
        assert_eq!(
            (&shown["state"], &shown["attempt"]),
            (&json!("assigned"), &json!(2)),
            "{engine}: {shown}"
        );
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn the_link_of_a_cancelled_gang_or_to_a_node_without_the_attempt_sets_nobody_aside() {
    for (engine, db, _location) in engines("gang_links_spared").await {
        let setup = IdlePortal::on(db).await;
        setup.report_gang_networks().await;
        for cancelled in [false, true] {
            let gang = submit(&setup, json!({"nodes": 2})).await;
            let id: JobId = gang.parse().unwrap();
            schedule_all(&setup).await;
            let absent = vec![link(setup.other_rank(id, 1).await, None)];
            let attempts = &setup.t.portal.attempts;
            if cancelled {
                let begun = AttemptReport::new(id, 1, AttemptPhase::Preparing);
                attempts.apply_status(node(2), begun).await.unwrap();
            }
            let path = format!("/orgs/{}/jobs/{gang}/cancel", setup.org);
            if cancelled {
                setup.t.post(&setup.ada, &path, Value::Null).await.expect(202);
            }
            attempts.apply_status(node(1), failed(id, "gang.unreachable", absent)).await.unwrap();
            for n in 1..=2 {
                assert_eq!(setup.set_aside(n).await, Value::Null, "{engine} {cancelled}");
            }
            setup.t.clock.advance_s(1);
            attempts.apply_status(node(2), failed(id, "attempt.not_started", Vec::new())).await.unwrap();
            if !cancelled {
                setup.t.post(&setup.ada, &path, Value::Null).await.expect(202);
            }
        }
    }
}

#[tokio::test]
async fn a_link_beside_another_gang_is_neither_compared_nor_kept() {
    for (engine, db, _location) in engines("gang_links_shared").await {
        let setup = IdlePortal::on(db).await;
        setup.report_gang_networks().await;
        for _ in 0..3 {
            setup.run_gang([500; 2]).await;
        }
        let first = setup.place_gang().await;
        assert_eq!(setup.minima(1).await, [250], "{engine}: it is alone");
        let second = setup.place_gang().await;
        for n in 1..=2 {
            assert_eq!(setup.minima(n).await, [0, 0], "{engine}");
        }
        // The first gang had its expectation before the second one was placed.
        let attempts = &setup.t.portal.attempts;
        let slow = vec![link(setup.other_rank(first, 1).await, Some(12))];
        attempts.apply_status(node(2), AttemptReport::new(first, 1, AttemptPhase::Preparing)).await.unwrap();
        attempts.apply_status(node(1), failed(first, "gang.link_slow", slow)).await.unwrap();
        setup.t.clock.advance_s(1);
        attempts.apply_status(node(2), failed(first, "attempt.not_started", Vec::new())).await.unwrap();
        for n in 1..=2 {
            assert_eq!(setup.set_aside(n).await, Value::Null, "{engine}");
        }
        let path = format!("/orgs/{}/jobs/{first}/cancel", setup.org);
        setup.t.post(&setup.ada, &path, Value::Null).await.expect(202);

        setup.release(1).await;
        let third = setup.place_gang().await;
        for phase in [AttemptPhase::Running, AttemptPhase::Clean] {
            setup.report_gang(second, phase, [500; 2]).await;
            setup.report_gang(third, phase, [500; 2]).await;
        }
        setup.run_gang([500; 2]).await;
        let fourth = setup.place_gang().await;
        assert_eq!(setup.minima(1).await, [0], "{engine}: one figure is no expectation");
        for phase in [AttemptPhase::Running, AttemptPhase::Clean] {
            setup.report_gang(fourth, phase, [500; 2]).await;
        }
        setup.run_gang([500; 2]).await;
        setup.place_gang().await;
        assert_eq!(setup.minima(1).await, [250], "{engine}");
    }
}

#[tokio::test]
async fn one_worker_raises_no_expectation_and_no_further_figure_clears_it() {
    for (engine, db, _location) in engines("gang_links_hostile").await {
        let setup = IdlePortal::on(db).await;
        setup.report_gang_networks().await;
        for figures in [[9_000_000, 500], [500, 9_000_000], [9_000_000, 500]] {
            setup.run_gang(figures).await;
        }
        let gang = setup.place_gang().await;
        assert_eq!((setup.minima(1).await, setup.minima(2).await), (vec![250], vec![250]), "{engine}");

        let (one, two) = (setup.other_rank(gang, 2).await, setup.other_rank(gang, 1).await);
        let attempts = &setup.t.portal.attempts;
        attempts.apply_status(node(2), AttemptReport::new(gang, 1, AttemptPhase::Preparing)).await.unwrap();
        let twice = vec![link(two, Some(12)), link(two, Some(500))];
        attempts.apply_status(node(1), failed(gang, "gang.link_slow", twice)).await.unwrap();
        let both = [setup.set_aside(1).await, setup.set_aside(2).await];
        for aside in &both {
            assert!(aside["reason"].as_str().unwrap().contains("reaches 12 MiB/s"), "{engine}: {aside}");
        }
        // A later report with a shorter time changes nothing.
        setup.t.clock.advance_s(1);
        let absent = vec![link(one, None)];
        attempts.apply_status(node(2), failed(gang, "gang.unreachable", absent)).await.unwrap();
        assert_eq!([setup.set_aside(1).await, setup.set_aside(2).await], both, "{engine}");
    }
}

#[tokio::test]
async fn a_release_forgets_the_link_of_a_running_gang_too() {
    for (engine, db, _location) in engines("gang_links_forgotten").await {
        let setup = IdlePortal::on(db).await;
        setup.report_gang_networks().await;
        let running = setup.place_gang().await;
        setup.report_gang(running, AttemptPhase::Running, [500; 2]).await;
        setup.release(2).await;
        setup.report_gang(running, AttemptPhase::Clean, [500; 2]).await;
        for _ in 0..2 {
            setup.run_gang([500; 2]).await;
        }
        setup.place_gang().await;
        assert_eq!(setup.minima(1).await, [0], "{engine}");
    }
}

/// A job with RDMA on all boards of both nodes.
fn rdma_job() -> Value {
    json!({"count": 2, "nodes": 2, "rdma": true})
}

impl IdlePortal {
    /// Reports both nodes with an RDMA port and networks of gangs. `checks` has the nodes that measure RDMA links.
    async fn report_rdma(&self, checks: [bool; 2]) {
        for (n, checks_rdma_links) in (1..).zip(checks) {
            let gang_ports = Some(GangPorts { first: 51_821, plain: false, checks: true });
            let rdma_ports = vec![port("ACTIVE")];
            let equipment = Equipment { gang_ports, rdma_ports, checks_rdma_links, ..Equipment::default() };
            self.report_equipped(n, equipment).await;
        }
        self.t.portal.context.publish(Change::Boards);
    }

    async fn rdma_check(&self, n: u128) -> Option<RankRdmaCheck> {
        let ranks = self.t.portal.attempts.desired(node(n)).await.unwrap();
        ranks.into_iter().find_map(|rank| rank.start?.rdma_check)
    }
}

/// The key of the rank on the first node: that of its network, or that of its check.
async fn rank_key(t: &TestPortal) -> Option<[u8; 32]> {
    let ranks = t.portal.attempts.desired(node(1)).await.unwrap();
    ranks.into_iter().find_map(|rank| {
        let start = rank.start?;
        match (start.gang, start.rdma_check) {
            (Some(gang), _) => Some(gang.private_key),
            (None, check) => check.map(|check| check.token),
        }
    })
}

#[tokio::test]
async fn the_keys_of_placed_jobs_outlive_a_change_of_the_key_of_the_portal() {
    for (engine, db, _location) in engines("gang_keys").await {
        let dir = tempfile::tempdir().unwrap();
        let [old, new, stranger] = ["old.key", "new.key", "stranger.key"].map(|name| dir.path().join(name));
        let with = |key: &Path, former: &[&Path]| {
            let (secrets_key, former) =
                (Some(key.to_owned()), former.iter().map(|f| (*f).to_owned()).collect());
            TestPortal::with(db.clone(), |s| Settings { secrets_key, secrets_old_keys: former, ..s })
        };
        let setup = IdlePortal::with_portal(with(&old, &[])).await;
        setup.grant_rdma(true).await;
        setup.report_rdma([true; 2]).await;
        for body in [json!({"nodes": 2}), rdma_job()] {
            let gang = setup.place(body).await;
            let key = rank_key(&setup.t).await;
            assert!(key.is_some(), "{engine}");
            let lost = with(&stranger, &[]);
            assert_eq!(reseal(&lost.portal.context).await, Ok((0, 1)), "{engine}: another key opens nothing");
            assert_eq!(reseal(&with(&new, &[&old]).portal.context).await, Ok((1, 0)), "{engine}");
            let changed = with(&new, &[]);
            assert_eq!(reseal(&changed.portal.context).await, Ok((0, 0)), "{engine}: once");
            assert_eq!(rank_key(&changed).await, key, "{engine}");
            for phase in [AttemptPhase::Running, AttemptPhase::Clean] {
                setup.report_gang(gang, phase, [500; 2]).await;
            }
        }
    }
}

#[tokio::test]
async fn a_job_with_rdma_is_compared_with_former_measurements_by_rdma_alone() {
    for (engine, db, _location) in engines("rdma_links").await {
        let setup = IdlePortal::on(db).await;
        setup.grant_rdma(true).await;
        setup.report_rdma([true, false]).await;
        let unchecked = setup.place(rdma_job()).await;
        assert!(setup.rdma_check(1).await.is_none(), "{engine}: the worker of a node cannot measure");
        setup.report_rdma([true; 2]).await;
        assert!(setup.rdma_check(1).await.is_none(), "{engine}: it could not at the placement");
        for phase in [AttemptPhase::Running, AttemptPhase::Clean] {
            setup.report_gang(unchecked, phase, [40_000; 2]).await;
        }
        for _ in 0..3 {
            setup.run_gang([500; 2]).await;
        }
        setup.run(rdma_job(), [40_000; 2]).await;
        let gang = setup.place_gang().await;
        assert_eq!(setup.minima(1).await, [250], "{engine}: figures by RDMA do not count");
        for phase in [AttemptPhase::Running, AttemptPhase::Clean] {
            setup.report_gang(gang, phase, [500; 2]).await;
        }
        setup.run(rdma_job(), [44_000; 2]).await;

        let slow = setup.place(rdma_job()).await;
        let checks = [setup.rdma_check(1).await.unwrap(), setup.rdma_check(2).await.unwrap()];
        assert!(checks[0].token == checks[1].token, "{engine}");
        for check in &checks {
            let [peer] = check.peers.as_slice() else { panic!("{engine}: one peer") };
            assert_eq!(peer.rank, 1 - check.rank, "{engine}");
            assert_eq!((peer.address.as_str(), peer.min_mib_per_s), ("10.0.0.1", 20_000), "{engine}");
        }
        let ranks = setup.t.portal.attempts.desired(node(1)).await.unwrap();
        assert!(ranks.into_iter().all(|rank| rank.start.unwrap().gang.is_none()), "{engine}");
        let links = vec![link(setup.other_rank(slow, 1).await, Some(1_000))];
        let attempts = &setup.t.portal.attempts;
        attempts.apply_status(node(2), AttemptReport::new(slow, 1, AttemptPhase::Preparing)).await.unwrap();
        attempts.apply_status(node(1), failed(slow, "gang.link_slow", links)).await.unwrap();
        for n in 1..=2 {
            let aside = setup.set_aside(n).await;
            let reason = "The RDMA link between the nodes node-1 and node-2 reaches 1000 MiB/s; at least 20000 are expected.";
            assert_eq!(aside["reason"], reason, "{engine}: {aside}");
        }
    }
}
