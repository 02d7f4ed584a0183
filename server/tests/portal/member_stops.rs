//! Tests of the bulk stop of an organization's jobs by its members, on every engine.

use crate::common::{Caller, engines};
use crate::idle_portal::IdlePortal;
use crate::operations::{items, job, schedule_all, submit};
use serde_json::{Value, json};

/// Creates a token of Ada's organization with a role.
async fn token(setup: &IdlePortal, role: &str) -> Caller {
    let path = format!("/orgs/{}/tokens", setup.org);
    let made = setup.t.post(&setup.ada, &path, json!({"name": role, "role": role})).await.expect(201);
    Caller::Token(made["secret"].as_str().unwrap().to_owned())
}

/// The states of Ada's jobs.
async fn states(setup: &IdlePortal, jobs: &[&str]) -> Vec<Value> {
    let mut states = Vec::new();
    for id in jobs {
        states.push(job(setup, id).await["state"].clone());
    }
    states
}

#[tokio::test]
async fn members_stop_the_expected_matching_jobs_of_their_organization() {
    for (engine, db, _location) in engines("member_stops").await {
        let setup = IdlePortal::on(db).await;
        let t = &setup.t;
        let ocr = json!({"labels": {"project": "ocr"}});
        let (one, two) = (submit(&setup, ocr.clone()).await, submit(&setup, ocr).await);
        let other = submit(&setup, json!({"name": "Eval", "labels": {"project": "asr"}})).await;
        let body = json!({
            "name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 600,
            "labels": {"project": "ocr"},
        });
        let jobs_of_bob = format!("/orgs/{}/jobs", setup.other);
        let foreign = t.post(&setup.bob, &jobs_of_bob, body).await.expect(201);
        let stop = format!("/orgs/{}/jobs/stop", setup.org);
        let preview = format!("{stop}?preview=true");
        let order = |expected: u64| json!({"filter": {"label": "project=ocr"}, "expected": expected});

        // The right to run jobs, in this organization.
        let (viewer, runner) = (token(&setup, "viewer").await, token(&setup, "member").await);
        for path in [&stop, &preview] {
            t.post(&setup.bob, path, order(2)).await.problem(404, "object.not_found");
            t.post(&viewer, path, order(2)).await.problem(403, "auth.forbidden");
            t.post(&Caller::Nobody, path, order(2)).await.problem(401, "auth.required");
        }
        let counted =
            t.post(&runner, &preview, json!({"filter": {"label": "project=ocr"}})).await.expect(200);
        assert_eq!(
            (&counted["matched"], &counted["stopped"], &counted["left"]),
            (&json!(2), &json!(0), &json!(2))
        );
        assert_eq!(counted["orgs"], json!([{"org": setup.org, "org_name": "lab", "jobs": 2}]), "{engine}");
        t.post(&setup.ada, &stop, order(1)).await.problem(409, "jobs.more");
        let unread = json!({"filter": {"label": "project=ocr"}});
        let refused = t.post(&setup.ada, &stop, unread).await.problem(422, "request.invalid");
        assert_eq!(refused["errors"][0]["pointer"], "/expected", "{engine}");
        let wider = json!({"filter": {"labels": "project=ocr"}, "expected": 9});
        assert!(t.post(&setup.ada, &stop, wider).await.status.is_client_error(), "{engine}: a wrong field");
        let queued = [json!("queued"), json!("queued"), json!("queued")];
        assert_eq!(states(&setup, &[&one, &two, &other]).await, queued, "{engine}: refusals stop nothing");

        // A repeated request stops nothing more.
        let key = [("idempotency-key", "ocr")];
        let done = t.call_with(&setup.ada, "POST", &stop, order(2), &key).await.expect(202);
        assert_eq!((&done["stopped"], &done["left"]), (&json!(2), &json!(0)), "{engine} {done}");
        let later = submit(&setup, json!({"labels": {"project": "ocr"}})).await;
        assert_eq!(t.call_with(&setup.ada, "POST", &stop, order(2), &key).await.expect(202), done);
        let expected = [json!("cancelled"), json!("cancelled"), json!("queued"), json!("queued")];
        assert_eq!(states(&setup, &[&one, &two, &other, &later]).await, expected, "{engine}");
        let of_bob = format!("{jobs_of_bob}/{}", foreign["id"].as_str().unwrap());
        assert_eq!(t.get(&setup.bob, &of_bob).await.expect(200)["state"], "queued", "{engine}");

        // The jobs end like jobs that a member stops one by one.
        let ended = job(&setup, &one).await;
        assert_eq!((&ended["held_micros"], &ended["failure"]), (&json!(0), &Value::Null), "{engine} {ended}");
        let events = items(t, &setup.ada, &format!("/orgs/{}/jobs/{one}/events", setup.org)).await;
        assert_eq!(events.last().unwrap()["detail"], "Stopped by Ada.", "{engine}");
        let audit = items(t, &setup.ada, &format!("/orgs/{}/audit-events", setup.org)).await;
        let stops: Vec<&Value> = audit.iter().filter(|e| e["action"] == "jobs.stopped").collect();
        assert_eq!(
            (stops.len(), &stops[0]["detail"]),
            (1, &json!("2 jobs: label “project=ocr”")),
            "{engine}"
        );
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn a_bulk_stop_of_members_keeps_to_its_filter() {
    for (engine, db, _location) in engines("member_filters").await {
        let setup = IdlePortal::on(db).await;
        let runs = submit(&setup, json!({"name": "Train-7B"})).await;
        schedule_all(&setup).await;
        let waits = submit(&setup, json!({"name": "train-8b", "count": 2, "nodes": 2})).await;
        let ended = submit(&setup, json!({"name": "train-9b"})).await;
        let cancel = format!("/orgs/{}/jobs/{ended}/cancel", setup.org);
        setup.t.post(&setup.ada, &cancel, Value::Null).await.expect(202);
        let stop = format!("/orgs/{}/jobs/stop", setup.org);
        for (filter, matched) in [
            (json!({}), 2),
            (json!({"name": "TRAIN"}), 2),
            (json!({"name": "7b"}), 1),
            (json!({"created_by": "ada"}), 2),
            (json!({"created_by": "grace"}), 0),
            (json!({"ended": false}), 2),
            (json!({"ended": true}), 0),
            (json!({"state": "cancelled"}), 0),
            (json!({"state": "queued", "name": "train"}), 1),
            (json!({"state": "assigned"}), 1),
        ] {
            let body = json!({"filter": filter});
            let counted = setup.t.post(&setup.ada, &format!("{stop}?preview=true"), body).await.expect(200);
            assert_eq!(counted["matched"], json!(matched), "{engine} {filter}");
        }
        let order = json!({"filter": {"state": "assigned", "name": "train"}, "expected": 1});
        assert_eq!(setup.t.post(&setup.ada, &stop, order).await.expect(202)["stopped"], 1, "{engine}");
        let expected = [json!("stopping"), json!("queued"), json!("cancelled")];
        assert_eq!(states(&setup, &[&runs, &waits, &ended]).await, expected, "{engine}");
        // A job that stops for good does not match again, neither for members nor for operators.
        let all = setup.t.post(&setup.ada, &stop, json!({"expected": 1})).await.expect(202);
        assert_eq!((&all["matched"], &all["stopped"]), (&json!(1), &json!(1)), "{engine} {all}");
        let order = json!({"reason": "power cut", "expected": 0});
        let none = setup.t.post(&setup.operator, "/operator/jobs/stop", order).await.expect(202);
        assert_eq!(none["matched"], 0, "{engine} {none}");
        let audit = items(&setup.t, &setup.ada, &format!("/orgs/{}/audit-events", setup.org)).await;
        for detail in ["1 job: no filter", "1 job: state assigned, name with “train”"] {
            let stops = audit.iter().filter(|e| e["action"] == "jobs.stopped" && e["detail"] == detail);
            assert_eq!(stops.count(), 1, "{engine}: {detail}");
        }
        setup.assert_books_balance().await;
    }
}

#[tokio::test]
async fn one_order_of_a_member_stops_500_jobs_at_most() {
    for (engine, db, _location) in engines("member_many").await {
        let setup = IdlePortal::on(db).await;
        let made = (0..501).map(|_| submit(&setup, json!({"max_duration_s": 60})));
        let made = futures::future::join_all(made).await;
        let stop = format!("/orgs/{}/jobs/stop", setup.org);
        let first = setup.t.post(&setup.ada, &stop, json!({"expected": 501})).await.expect(202);
        let counts =
            |answer: &Value| ["matched", "stopped", "left"].map(|field| answer[field].as_u64().unwrap());
        assert_eq!(counts(&first), [501, 500, 1], "{engine}");
        // The oldest ones are stopped first.
        let newest = made.iter().max().unwrap();
        assert_eq!(job(&setup, newest).await["state"], "queued", "{engine}");
        let rest = setup.t.post(&setup.ada, &stop, json!({"expected": 501})).await.expect(202);
        assert_eq!(counts(&rest), [1, 1, 0], "{engine}");
        setup.assert_books_balance().await;
    }
}
