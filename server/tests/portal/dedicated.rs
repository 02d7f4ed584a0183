//! Tests of dedicated nodes and of organizations that use no others, on both databases.

use crate::common::{Caller, engines};
use crate::idle_portal::{HOUR, IdlePortal, node};
use crate::operations::{items, job, put, schedule_all, submit};
use berth_store as store;
use berth_types::ids::OrgId;
use futures::FutureExt;
use serde_json::{Value, json};

impl IdlePortal {
    async fn dedicate(&self, n: u128, org: Option<&str>) -> crate::common::Reply {
        let path = format!("/operator/nodes/{}/dedication", node(n));
        put(&self.t, &self.operator, &path, json!({"org": org})).await
    }

    async fn restrict(&self, org: &str, own_nodes_only: bool) -> crate::common::Reply {
        let body = json!({"own_nodes_only": own_nodes_only});
        put(&self.t, &self.operator, &format!("/operator/orgs/{org}/nodes"), body).await
    }

    async fn submit_for_bob(&self) -> String {
        let body =
            json!({"name": "bobs", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 600});
        let made = self.t.post(&self.bob, &format!("/orgs/{}/jobs", self.other), body).await.expect(201);
        made["id"].as_str().unwrap().to_owned()
    }

    /// Returns the ids of the jobs on a node that have not ended.
    async fn jobs_on(&self, n: u128) -> Vec<String> {
        let path = format!("/operator/jobs?state=assigned&node={}", node(n));
        let jobs = items(&self.t, &self.operator, &path).await;
        jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the answers with nodes and boards that an organization sees.
    async fn seen(&self, caller: &Caller, org: &str) -> String {
        let mut seen = String::new();
        for path in ["nodes", "boards", "cluster"] {
            seen += &self.t.get(caller, &format!("/orgs/{org}/{path}")).await.expect(200).to_string();
        }
        let (from, until) = (self.at(0), self.at(HOUR));
        let calendar = format!("/orgs/{org}/calendar?from={from}&until={until}");
        seen + &self.t.get(caller, &calendar).await.expect(200).to_string()
    }

    /// Returns the number of boards in the capacity that an organization sees.
    async fn boards_in_capacity(&self, caller: &Caller, org: &str) -> Value {
        let capacity = self.t.get(caller, &format!("/orgs/{org}/capacity")).await.expect(200);
        capacity["models"][0]["boards"].clone()
    }

    /// Returns the numbers of all and of available whole boards in a list of offerings.
    async fn counted_boards(&self, caller: &Caller, path: &str) -> (Value, Value) {
        let offerings = items(&self.t, caller, path).await;
        let whole = offerings.iter().find(|offering| offering["slug"] == "h100-80gb").unwrap();
        (whole["capacity"].clone(), whole["available"].clone())
    }

    async fn blockers(&self, job: &str) -> Vec<Value> {
        let path = format!("/orgs/{}/jobs/{job}/explanation", self.org);
        let why = self.t.get(&self.ada, &path).await.expect(200);
        why["blockers"].as_array().unwrap().clone()
    }
}

#[tokio::test]
async fn a_dedicated_node_takes_and_shows_itself_to_one_organization_alone() {
    for (engine, db, _location) in engines("dedicated_node").await {
        let setup = IdlePortal::on(db).await;
        let path = format!("/operator/nodes/{}/dedication", node(1));
        let body = json!({"org": setup.other});
        put(&setup.t, &setup.ada, &path, body).await.problem(404, "object.not_found");
        setup.dedicate(9, Some(&setup.other)).await.problem(404, "object.not_found");
        let nobody = OrgId::from_uuid(uuid::Uuid::from_u128(7)).to_string();
        setup.dedicate(1, Some(&nobody)).await.problem(422, "request.invalid");
        let made = setup.dedicate(1, Some(&setup.other)).await.expect(200);
        assert_eq!(made["dedicated_to"], json!({"org": setup.other, "name": "bobs"}), "{engine}");

        let mut ada = Vec::new();
        for _ in 0..3 {
            ada.push(submit(&setup, json!({})).await);
        }
        let bob = setup.submit_for_bob().await;
        schedule_all(&setup).await;
        assert_eq!(setup.jobs_on(1).await, [bob], "{engine}: its own jobs alone");
        let on_other = setup.jobs_on(2).await;
        let waiting: Vec<&String> = ada.iter().filter(|id| !on_other.contains(id)).collect();
        let [waiting] = waiting[..] else { panic!("{engine}: two run: {on_other:?}") };
        assert_eq!(job(&setup, waiting).await["state"], "queued", "{engine}: a board of node 1 is free");
        assert_eq!(setup.blockers(waiting).await[0]["code"], "capacity.busy", "{engine}");

        let (seen, all) =
            (setup.seen(&setup.ada, &setup.org).await, setup.seen(&setup.bob, &setup.other).await);
        assert!(seen.contains("node-2") && seen.contains("GPU-2-0"), "{engine}: {seen}");
        assert!(!seen.contains("node-1") && !seen.contains("GPU-1-"), "{engine}: {seen}");
        assert!(all.contains("node-1") && all.contains("node-2"), "{engine}: {all}");
        assert_eq!(setup.boards_in_capacity(&setup.ada, &setup.org).await, 2, "{engine}");
        assert_eq!(setup.boards_in_capacity(&setup.bob, &setup.other).await, 4, "{engine}");
        let all = setup.counted_boards(&setup.ada, "/offerings").await;
        assert_eq!(all, (json!(2), json!(0)), "{engine}: the nodes of all organizations");
        let own = setup.counted_boards(&setup.ada, &format!("/orgs/{}/offerings", setup.org)).await;
        assert_eq!(own, (json!(2), json!(0)), "{engine}");
        let theirs = format!("/orgs/{}/offerings", setup.other);
        assert_eq!(setup.counted_boards(&setup.bob, &theirs).await, (json!(4), json!(1)), "{engine}");
        setup.t.get(&setup.ada, &theirs).await.problem(404, "object.not_found");

        let refused = setup.dedicate(2, Some(&setup.other)).await.problem(409, "node.in_use");
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.starts_with("2 jobs and 0 reservations on node node-2"), "{engine}: {detail}");
        let opened = setup.dedicate(1, None).await.expect(200);
        assert_eq!(opened.get("dedicated_to"), None, "{engine}");
        schedule_all(&setup).await;
        assert_eq!(job(&setup, waiting).await["state"], "assigned", "{engine}");
        let audit = setup.t.get(&setup.bob, &format!("/orgs/{}/audit-events", setup.other)).await.expect(200);
        let audit = audit.to_string();
        assert!(audit.contains("node-1: dedicated to bobs"), "{engine}: {audit}");
        assert!(audit.contains("node-1: open to all organizations"), "{engine}: {audit}");
    }
}

#[tokio::test]
async fn an_organization_with_own_nodes_only_uses_no_others() {
    for (engine, db, _location) in engines("own_nodes_only").await {
        let setup = IdlePortal::on(db).await;
        let path = format!("/operator/orgs/{}/nodes", setup.org);
        setup.t.get(&setup.ada, &path).await.problem(404, "object.not_found");
        let set = setup.restrict(&setup.org, true).await.expect(200);
        assert_eq!(set, json!({"own_nodes_only": true, "node_count": 0, "nodes": []}), "{engine}");
        let waiting = submit(&setup, json!({})).await;
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &waiting).await["state"], "queued", "{engine}");
        let blockers = setup.blockers(&waiting).await;
        assert_eq!(blockers[0]["code"], "capacity.own_nodes", "{engine}: {blockers:?}");
        let seen = setup.seen(&setup.ada, &setup.org).await;
        assert!(!seen.contains("GPU-"), "{engine}: {seen}");
        let offerings = format!("/orgs/{}/offerings", setup.org);
        assert_eq!(setup.counted_boards(&setup.ada, &offerings).await, (json!(0), json!(0)), "{engine}");

        setup.dedicate(1, Some(&setup.org)).await.expect(200);
        schedule_all(&setup).await;
        assert_eq!(setup.jobs_on(1).await, [waiting], "{engine}");
        assert_eq!(setup.boards_in_capacity(&setup.ada, &setup.org).await, 2, "{engine}");
        assert_eq!(setup.counted_boards(&setup.ada, &offerings).await, (json!(2), json!(1)), "{engine}");
        let own = setup.t.get(&setup.operator, &path).await.expect(200);
        assert_eq!(own["nodes"], json!([{"id": node(1), "name": "node-1"}]), "{engine}");
        setup.reserve(1, 1, setup.at(HOUR), setup.at(2 * HOUR)).await;
        // The node would be open to others, and its organization could not use it.
        let refused = setup.dedicate(1, None).await.problem(409, "node.in_use");
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.starts_with("1 job and 1 reservation on node node-1"), "{engine}: {detail}");

        // Another organization has work on a node of all.
        setup.submit_for_bob().await;
        schedule_all(&setup).await;
        assert_eq!(setup.jobs_on(2).await.len(), 1, "{engine}");
        let refused = setup.restrict(&setup.other, true).await.problem(409, "org.work_elsewhere");
        assert!(refused["detail"].as_str().unwrap().starts_with("1 job and 0 reservations"), "{engine}");
        setup.restrict(&setup.org, false).await.expect(200);
        let next = submit(&setup, json!({"nodes": 2})).await;
        schedule_all(&setup).await;
        assert_eq!(job(&setup, &next).await["state"], "assigned", "{engine}: both nodes");
    }
}

#[tokio::test]
async fn a_node_that_an_organization_may_not_use_gets_no_start_of_its_jobs() {
    for (engine, db, _location) in engines("dedicated_start").await {
        let setup = IdlePortal::on(db).await;
        setup.dedicate(1, Some(&setup.org)).await.expect(200);
        let id = submit(&setup, json!({"env": {"KEY": "value"}})).await;
        schedule_all(&setup).await;
        assert_eq!(setup.jobs_on(1).await, std::slice::from_ref(&id), "{engine}");
        // A fault: the node passes to another organization although it has work on it.
        let other: OrgId = setup.other.parse().unwrap();
        let context = &setup.t.portal.context;
        let change = context.db.write(move |tx| {
            async move { store::dedicated::set_node(tx, node(1), Some(other)).await }.boxed()
        });
        change.await.unwrap();
        for _ in 0..2 {
            let mut ranks = setup.t.portal.attempts.desired(node(1)).await.unwrap();
            let start = ranks.remove(0).start.unwrap();
            assert_eq!(start.unusable.unwrap().code, "node.not_usable", "{engine}");
            assert!(start.command.is_empty() && start.env.is_empty(), "{engine}");
        }
        let audit = setup.t.get(&setup.ada, &format!("/orgs/{}/audit-events", setup.org)).await.expect(200);
        let events = audit["items"].as_array().unwrap();
        let refusals = events.iter().filter(|event| event["action"] == "attempt.start_refused");
        let subjects: Vec<&Value> = refusals.map(|event| &event["subject"]).collect();
        assert_eq!(subjects, [&json!(id)], "{engine}: recorded once");
    }
}
