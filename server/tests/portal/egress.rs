//! Tests of named networks, egress policies, the grant for the network of nodes and the choice of nodes for ranks, on
//! both databases.

use crate::common::{Reply, engines};
use crate::idle_portal::{Equipment, HOUR, IdlePortal, node};
use crate::operations::{job, put, schedule_all, submit};
use berth_foundation::Change;
use berth_jobs::assignments::RankStart;
use berth_store::gangs::GangPorts;
use serde_json::{Value, json};

impl IdlePortal {
    async fn put_network(&self, name: &str, ranges: &[&str]) -> Reply {
        put(&self.t, &self.operator, &format!("/operator/networks/{name}"), json!({"ranges": ranges})).await
    }

    async fn set_egress_policy(&self, body: Value) -> Reply {
        put(&self.t, &self.operator, &format!("/operator/orgs/{}/egress-policy", self.org), body).await
    }

    /// Returns the answer to a submission with this network.
    async fn submit_with(&self, network: &str, nodes: u32) -> Reply {
        let body = json!({
            "name": "a", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 600,
            "network": network, "nodes": nodes,
        });
        self.t.post(&self.ada, &format!("/orgs/{}/jobs", self.org), body).await
    }

    /// Returns the code of the first reason for which a job waits.
    async fn blocker_of(&self, id: &str) -> Value {
        let path = format!("/orgs/{}/jobs/{id}/explanation", self.org);
        self.t.get(&self.ada, &path).await.expect(200)["blockers"][0]["code"].clone()
    }

    /// Returns the starts that a node gets.
    async fn starts_of(&self, n: u128) -> Vec<RankStart> {
        let desired = self.t.portal.attempts.desired(node(n)).await.unwrap();
        desired.into_iter().filter_map(|rank| rank.start).collect()
    }
}

#[tokio::test]
async fn networks_are_named_checked_and_kept_while_a_policy_names_them() {
    for (engine, db, _location) in engines("named_networks").await {
        let setup = IdlePortal::on(db).await;
        let made = setup.put_network("storage", &["10.8.4.1/16", "fd00:8::/32"]).await.expect(200);
        let expected = json!({
            "name": "storage", "ranges": ["10.8.0.0/16", "fd00:8::/32"], "org_count": 0, "orgs": [],
        });
        assert_eq!(made, expected, "{engine}");
        for bad in ["127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/0", "fe80::/64", "x"] {
            let refused = setup.put_network("bad", &[bad]).await.problem(422, "request.invalid");
            assert_eq!(refused["errors"][0]["pointer"], "/ranges/0", "{engine} {bad}");
        }
        let refused = setup.put_network("No", &["10.8.0.0/16"]).await.problem(422, "request.invalid");
        assert_eq!(refused["errors"][0]["pointer"], "/name", "{engine}");
        let path = "/operator/networks/storage";
        setup.t.call(&setup.ada, "DELETE", path, Value::Null).await.problem(404, "object.not_found");

        let refused = setup.set_egress_policy(json!({"internet": true, "networks": ["backup"]})).await;
        assert_eq!(
            refused.problem(422, "request.invalid")["errors"][0]["pointer"],
            "/networks/0",
            "{engine}"
        );
        let body = json!({"internet": false, "networks": ["storage"]});
        let set = setup.set_egress_policy(body.clone()).await.expect(200);
        let networks = json!([{"name": "storage", "ranges": ["10.8.0.0/16", "fd00:8::/32"]}]);
        let expected = json!({"internet": false, "networks": networks, "host_network": false});
        assert_eq!(set, expected, "{engine}");
        setup.set_egress_policy(body).await.expect(200);
        let own = format!("/orgs/{}/egress-policy", setup.org);
        assert_eq!(setup.t.get(&setup.ada, &own).await.expect(200), expected, "{engine}");
        setup.t.get(&setup.bob, &own).await.problem(404, "object.not_found");
        let theirs =
            setup.t.get(&setup.bob, &format!("/orgs/{}/egress-policy", setup.other)).await.expect(200);
        assert_eq!(theirs, json!({"internet": true, "networks": [], "host_network": false}), "{engine}");

        let refused = setup.t.call(&setup.operator, "DELETE", path, Value::Null).await;
        refused.problem(409, "network.in_use");
        let listed = setup.t.get(&setup.operator, "/operator/networks").await.expect(200);
        assert_eq!(listed["items"][0]["orgs"][0]["id"], json!(setup.org), "{engine}");
        setup.set_egress_policy(json!({"internet": true})).await.expect(200);
        setup.t.call(&setup.operator, "DELETE", path, Value::Null).await.expect(204);
        setup.t.call(&setup.operator, "DELETE", path, Value::Null).await.problem(404, "object.not_found");

        let audit = setup.t.get(&setup.operator, "/operator/audit-events?limit=200").await.expect(200);
        let audit = audit["items"].as_array().unwrap();
        let count = |action: &str| audit.iter().filter(|event| event["action"] == action).count();
        let counts = (count("network.set"), count("network.removed"), count("org.egress_set"));
        assert_eq!(counts, (1, 1, 2), "{engine}: a repeated policy is no event");
    }
}

#[tokio::test]
async fn a_job_gets_at_most_the_network_of_its_policy() {
    for (engine, db, _location) in engines("egress_jobs").await {
        let setup = IdlePortal::on(db).await;
        setup.put_network("storage", &["10.8.0.0/16"]).await.expect(200);
        for network in ["outbound", "internet"] {
            setup.submit_with(network, 1).await.expect(201);
        }
        let refused = setup.submit_with("host", 1).await.problem(403, "network.not_allowed");
        assert!(refused["detail"].as_str().unwrap().contains("ask an operator"), "{engine}: {refused}");
        schedule_all(&setup).await;
        let started = [setup.starts_of(1).await, setup.starts_of(2).await].concat();
        assert_eq!(started.len(), 2, "{engine}: old workers give the default network");
        assert!(started.iter().all(|start| start.egress.is_default()), "{engine}");

        setup.set_egress_policy(json!({"internet": false, "networks": ["storage"]})).await.expect(200);
        setup.submit_with("internet", 1).await.problem(403, "network.not_allowed");
        let gang = setup.submit_with("outbound", 2).await.expect(201)["id"].as_str().unwrap().to_owned();
        setup.submit_with("none", 1).await.expect(201);
        let waiting = submit(&setup, json!({})).await;
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &waiting).await["state"], "queued", "{engine}: no worker keeps the policy");
        assert_eq!(setup.blocker_of(&waiting).await, "capacity.network", "{engine}");
        assert_eq!(setup.blocker_of(&gang).await, "capacity.network", "{engine}");
    }
}

/// A worker with networks between ranks.
fn with_gang_ports(plain: bool) -> Equipment {
    let gang_ports = Some(GangPorts { first: 51_821, plain, checks: false });
    Equipment { egress: true, gang_ports, ..Equipment::default() }
}

#[tokio::test]
async fn ranks_wait_for_nodes_whose_network_keeps_the_policy() {
    for (engine, db, _location) in engines("egress_gangs").await {
        let setup = IdlePortal::on(db).await;
        setup.set_egress_policy(json!({"internet": false})).await.expect(200);
        for n in 1..=2 {
            setup.report_equipped(n, Equipment { egress: true, ..Equipment::default() }).await;
        }
        let gang = submit(&setup, json!({"nodes": 2})).await;
        schedule_all(&setup).await;
        assert_eq!(
            job(&setup, &gang).await["state"],
            "queued",
            "{engine}: ranks have the network of the host"
        );
        assert_eq!(setup.blocker_of(&gang).await, "capacity.network", "{engine}");
        for n in 1..=2 {
            setup.report_equipped(n, with_gang_ports(false)).await;
        }
        setup.t.portal.context.publish(Change::Boards);
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &gang).await["state"], "assigned", "{engine}");
        for n in 1..=2 {
            let starts = setup.starts_of(n).await;
            let [start] = &starts[..] else { panic!("{engine}: {starts:?}") };
            assert!(start.unusable.is_none() && start.egress.no_internet, "{engine}: {start:?}");
            assert_eq!(start.gang.as_ref().unwrap().peers.len(), 1, "{engine}");
        }
    }
}

#[tokio::test]
async fn ranks_wait_for_nodes_with_one_kind_of_network() {
    for (engine, db, _location) in engines("gang_kinds").await {
        let setup = IdlePortal::on(db).await;
        // The worker of the other node is older: its ranks would have the network of the host.
        setup.report_equipped(1, with_gang_ports(false)).await;
        let gang = submit(&setup, json!({"nodes": 2})).await;
        for plain in [None, Some(true)] {
            if let Some(plain) = plain {
                setup.report_equipped(2, with_gang_ports(plain)).await;
                setup.t.portal.context.publish(Change::Boards);
            }
            schedule_all(&setup).await;
            assert_eq!(job(&setup, &gang).await["state"], "queued", "{engine} {plain:?}");
            assert_eq!(setup.blocker_of(&gang).await, "capacity.network", "{engine} {plain:?}");
        }
        setup.report_equipped(2, with_gang_ports(false)).await;
        setup.t.portal.context.publish(Change::Boards);
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &gang).await["state"], "assigned", "{engine}");
        let starts = setup.starts_of(2).await;
        assert!(starts[0].unusable.is_none() && starts[0].gang.is_some(), "{engine}: {starts:?}");
    }
}

#[tokio::test]
async fn a_portal_that_cannot_read_its_key_starts_all_jobs_but_gangs() {
    for (engine, db, _location) in engines("gang_keys").await {
        let setup = IdlePortal::on(db).await;
        std::fs::write(setup.t.portal.context.settings.secrets_key_file(), "no key").unwrap();
        for n in 1..=2 {
            setup.report_equipped(n, with_gang_ports(false)).await;
        }
        let gang = submit(&setup, json!({"nodes": 2})).await;
        let other = submit(&setup, json!({})).await;
        schedule_all(&setup).await;
        for id in [&gang, &other] {
            assert_eq!(job(&setup, id).await["state"], "assigned", "{engine}");
        }
        let starts = [setup.starts_of(1).await, setup.starts_of(2).await].concat();
        let failures: Vec<&str> =
            starts.iter().filter_map(|start| Some(start.unusable.as_ref()?.code.as_str())).collect();
        assert_eq!((starts.len(), failures), (3, vec!["gang.not_reserved"; 2]), "{engine}: {starts:?}");
    }
}

#[tokio::test]
async fn a_worker_that_keeps_policies_gets_the_ranges_of_a_job() {
    for (engine, db, _location) in engines("egress_ranges").await {
        let setup = IdlePortal::on(db).await;
        setup.put_network("storage", &["10.8.0.0/16"]).await.expect(200);
        setup.set_egress_policy(json!({"internet": false, "networks": ["storage"]})).await.expect(200);
        setup.report_equipped(2, Equipment { egress: true, ..Equipment::default() }).await;
        let id = submit(&setup, json!({})).await;
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &id).await["state"], "assigned", "{engine}");
        let starts = setup.starts_of(2).await;
        let [start] = &starts[..] else { panic!("{engine}: {starts:?}") };
        assert!(start.egress.no_internet && !start.egress.host_network, "{engine}");
        assert_eq!(start.egress.reach, ["10.8.0.0/16"], "{engine}");
        // A worker of an older version takes the place of the present one: the job must not start there.
        setup.report(2).await;
        let starts = setup.starts_of(2).await;
        let refused = starts[0].unusable.as_ref().unwrap();
        assert_eq!(refused.code, "network.not_allowed", "{engine}");
        assert!(starts[0].command.is_empty() && starts[0].env.is_empty(), "{engine}");
    }
}

#[tokio::test]
async fn the_network_of_a_node_needs_a_grant() {
    for (engine, db, _location) in engines("host_network").await {
        let setup = IdlePortal::on(db).await;
        setup.report_equipped(1, Equipment { host_network: true, ..Equipment::default() }).await;
        setup.submit_with("host", 1).await.problem(403, "network.not_allowed");
        setup.set_egress_policy(json!({"internet": true, "host_network": true})).await.expect(200);
        let made = setup.submit_with("host", 1).await.expect(201);
        assert_eq!(made["network"], "host", "{engine}");
        schedule_all(&setup).await;
        let starts = setup.starts_of(1).await;
        assert!(starts.len() == 1 && starts[0].egress.host_network, "{engine}: {starts:?}");
        let audit = setup.t.get(&setup.ada, &format!("/orgs/{}/audit-events", setup.org)).await.expect(200);
        assert!(audit.to_string().contains("internet, network of nodes"), "{engine}: {audit}");
        // The end of the grant counts for a job that has not started.
        setup.set_egress_policy(json!({"internet": true})).await.expect(200);
        let starts = setup.starts_of(1).await;
        assert_eq!(starts[0].unusable.as_ref().unwrap().code, "network.not_allowed", "{engine}");
    }
}

#[tokio::test]
async fn a_reservation_has_nodes_that_keep_the_policy() {
    for (engine, db, _location) in engines("egress_reservations").await {
        let setup = IdlePortal::on(db).await;
        setup.set_egress_policy(json!({"internet": false})).await.expect(200);
        let window = || setup.quote_request(1, 2, setup.at(HOUR), setup.at(2 * HOUR));
        let quote = setup.quote(window()).await;
        assert!(quote["refusals"][0].as_str().unwrap().contains("network policy"), "{engine}: {quote}");
        setup.report_equipped(2, Equipment { egress: true, ..Equipment::default() }).await;
        setup.t.portal.context.publish(Change::Boards);
        setup.reserve(1, 2, setup.at(HOUR), setup.at(2 * HOUR)).await;
        let quote = setup.quote(window()).await;
        assert!(quote["conflicts"][0].is_object(), "{engine}: the other node is of no use: {quote}");
    }
}
