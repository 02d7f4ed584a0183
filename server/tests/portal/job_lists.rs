//! Tests of the filters of an organization's jobs, and of a submission that is read again.

use crate::common::{Caller, TestPortal, engines, job};
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use berth_store::{self as store, Db};
use berth_types::events::JobEvent;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::JobState;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A portal with an organization that has credit.
struct Setup {
    t: TestPortal,
    ada: Caller,
    org: String,
}

impl Setup {
    async fn on(db: Db) -> Self {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 10_000_000).await;
        Self { t, ada, org: format!("/orgs/{org}") }
    }

    /// Submits a job and returns its id.
    async fn submit(&self, body: Value) -> String {
        let made = self.t.post(&self.ada, &format!("{}/jobs", self.org), body).await.expect(201);
        // The list is in the order of creation.
        self.t.clock.advance_s(1);
        made["id"].as_str().unwrap().to_owned()
    }

    /// Submits a job with a name and labels and returns its id.
    async fn submit_named(&self, name: &str, labels: Value) -> String {
        let mut body = job();
        body["name"] = json!(name);
        body["labels"] = labels;
        self.submit(body).await
    }

    /// The names of the jobs that match a query.
    async fn names(&self, query: &str) -> Vec<String> {
        let page = self.t.get(&self.ada, &format!("{}/jobs?{query}", self.org)).await.expect(200);
        let items = page["items"].as_array().unwrap();
        items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    }

    async fn csv(&self, query: &str) -> String {
        let Caller::Cookie(cookie) = &self.ada else { panic!("a person") };
        let uri = format!("/api/v1{}/jobs.csv?{query}", self.org);
        let request = Request::builder().uri(uri).header(header::COOKIE, cookie);
        let answer = self.t.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        String::from_utf8(to_bytes(answer.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
    }
}

#[tokio::test]
async fn jobs_are_filtered_by_state_name_person_and_label() {
    for (engine, db, _location) in engines("job_filters").await {
        let setup = Setup::on(db).await;
        setup.submit_named("Train-7B", json!({"project": "ocr", "team": "a, b"})).await;
        let ended = setup.submit_named("eval 100%", json!({})).await;
        let cancel = format!("{}/jobs/{ended}/cancel", setup.org);
        setup.t.post(&setup.ada, &cancel, Value::Null).await.expect(202);
        let (train, eval) = ("Train-7B", "eval 100%");
        let cases: [(&str, &[&str]); 15] = [
            ("", &[eval, train]),
            ("sort=asc", &[train, eval]),
            ("ended=true", &[eval]),
            ("ended=false", &[train]),
            ("state=queued", &[train]),
            ("state=queued&ended=false", &[train]),
            ("state=queued&ended=true", &[]),
            ("name=TRAIN", &[train]),
            ("name=%25", &[eval]),
            ("name=_", &[]),
            ("created_by=aD", &[eval, train]),
            ("created_by=grace", &[]),
            ("label=project%3Docr", &[train]),
            ("label=team%3Da%2C%20b&ended=false&name=7b&created_by=Ada", &[train]),
            ("label=project%3Doc", &[]),
        ];
        for (query, expected) in cases {
            assert_eq!(setup.names(query).await, expected, "{engine} {query}");
            if !query.starts_with("sort") {
                let lines = setup.csv(query).await.lines().count();
                assert_eq!(lines, expected.len() + 1, "{engine} {query} as CSV");
            }
        }
        let long = format!("name={}", "n".repeat(101));
        for bad in ["name=", "created_by=%0A", "label=project", "label=", "ended=perhaps", long.as_str()] {
            for list in ["jobs", "jobs.csv"] {
                let path = format!("{}/{list}?{bad}", setup.org);
                setup.t.get(&setup.ada, &path).await.problem(400, "request.malformed");
            }
        }
    }
}

#[tokio::test]
async fn a_submission_is_read_again_and_submitted_again() {
    for (engine, db, _location) in engines("submissions").await {
        let setup = Setup::on(db).await;
        let (t, ada) = (&setup.t, &setup.ada);
        let secret = json!({"value": "long-enough-value"});
        t.call(ada, "PUT", &format!("{}/secrets/hf-token", setup.org), secret).await.expect(201);
        let body = json!({
            "name": "again", "offering": "h100-80gb.1g.10gb", "max_duration_s": 60, "script": "echo $LR", "env": {"LR": "0.1"},
            "files": {"a.txt": "text"}, "labels": {"project": "ocr"}, "artifacts": ["out/**"], "lease_s": 600,
            "secrets": [{"name": "hf-token", "env": "HF_TOKEN"}],
        });
        let first = setup.submit(body.clone()).await;
        let path = format!("{}/jobs/{first}/submission", setup.org);
        let read = t.get(ada, &path).await.expect(200);
        for field in ["name", "script", "env", "files", "labels", "artifacts", "lease_s", "secrets"] {
            assert_eq!(read[field], body[field], "{engine} {field}");
        }
        assert!(!read.to_string().contains("long-enough-value"), "{engine}: {read}");
        let longer = json!({"max_duration_s": 90});
        t.post(ada, &format!("{}/jobs/{first}/extend", setup.org), longer).await.expect(202);
        assert_eq!(t.get(ada, &path).await.expect(200)["max_duration_s"], 90, "{engine}");
        let second = setup.submit(read.clone()).await;
        let again = t.get(ada, &format!("{}/jobs/{second}/submission", setup.org)).await.expect(200);
        assert_eq!(again, read, "{engine}");
        // The values of variables are for members who could run the job themselves.
        let viewer = json!({"name": "ci", "role": "viewer"});
        let token = t.post(ada, &format!("{}/tokens", setup.org), viewer).await.expect(201);
        let viewer = Caller::Token(token["secret"].as_str().unwrap().to_owned());
        t.get(&viewer, &path).await.problem(403, "auth.forbidden");
        let unknown = format!("{}/jobs/job_00000000000000000000000000/submission", setup.org);
        t.get(ada, &unknown).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn the_last_start_is_of_the_last_attempt_that_ran() {
    for (engine, db, _location) in engines("job_lists_starts").await {
        let setup = Setup::on(db).await;
        let id: JobId = setup.submit(job()).await.parse().unwrap();
        let org: OrgId = setup.org.trim_start_matches("/orgs/").parse().unwrap();
        let find = async || {
            let mut conn = setup.t.portal.context.db.read().await.unwrap();
            let mut tx = conn.tx();
            store::job_events::find_last_start(&mut tx, id).await.unwrap()
        };
        assert_eq!(find().await, None, "{engine}");
        let at = |second: i64| Timestamp::from_micros(second * 1_000_000);
        let states = [
            (1, JobState::Running, 10),
            (2, JobState::Running, 20),
            // A change of the time limit while the attempt runs.
            (2, JobState::Running, 25),
            (2, JobState::Queued, 30),
            (3, JobState::Assigned, 40),
        ];
        let writing = setup.t.portal.context.db.write(move |tx| {
            async move {
                for (seq, (attempt, state, second)) in (100..).zip(states) {
                    let (at, detail) = (at(second), String::new());
                    let event = JobEvent { job: id, seq, at, state, attempt, detail };
                    store::job_events::insert_event(tx, org, &event).await?;
                }
                Ok(())
            }
            .boxed()
        });
        writing.await.unwrap();
        assert_eq!(find().await, Some(at(20)), "{engine}");
    }
}
