//! Tests of the templates of jobs.

use crate::common::{Caller, TestPortal, engines};
use berth_foundation::Settings;
use serde_json::{Value, json};

const TEMPLATES: &str = "/templates";
const BUILT_IN: [&str; 4] = ["notebook", "training", "shell", "server"];

fn names(body: &Value) -> Vec<&str> {
    body["templates"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn signed_in_callers_read_the_templates_once() {
    for (engine, db, _location) in engines("templates").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 0).await;
        t.get(&Caller::Nobody, TEMPLATES).await.problem(401, "auth.required");
        let reply = t.get(&ada, TEMPLATES).await;
        let tag = reply.headers["etag"].to_str().unwrap().to_owned();
        let body = reply.expect(200);
        assert_eq!(names(&body), BUILT_IN, "{engine}");
        let known = [("if-none-match", tag.as_str())];
        t.call_with(&ada, "GET", TEMPLATES, Value::Null, &known).await.expect(304);

        // The fields of a template are fields of a submission.
        for template in body["templates"].as_array().unwrap() {
            let mut job = template["job"].clone();
            job["offering"] = json!("h100-80gb.1g.10gb");
            t.post(&ada, &format!("/orgs/{org}/jobs?dry_run=true"), job).await.expect(200);
        }
    }
}

#[tokio::test]
async fn the_operator_adds_templates_as_files_and_invalid_files_are_left_out() {
    for (engine, db, _location) in engines("template_files").await {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, content: Value| {
            std::fs::write(dir.path().join(name), content.to_string()).unwrap();
        };
        let template = |title: &str| json!({"title": title, "job": {"command": ["true"], "cpus": 2}});
        write("sweep.json", template("Sweep"));
        write("shell.json", template("Our shell"));
        write("unknown.json", json!({"title": "Unknown", "job": {"command": ["true"], "gpus": 1}}));
        write("too-many.json", json!({"title": "Many", "job": {"command": ["true"], "count": 65}}));
        write("Name.json", template("Name"));
        std::fs::write(dir.path().join("broken.json"), "{").unwrap();
        std::fs::write(dir.path().join("large.json"), " ".repeat((64 << 10) + 1)).unwrap();

        let templates = Some(dir.path().to_owned());
        let t = TestPortal::with(db, |settings| Settings { templates, ..settings });
        t.operator().await;
        let (ada, _) = t.tenant("lab").await;
        let reply = t.get(&ada, TEMPLATES).await;
        let tag = reply.headers["etag"].to_str().unwrap().to_owned();
        let body = reply.expect(200);
        assert_eq!(names(&body), [&BUILT_IN[..], &["sweep"]].concat(), "{engine}");
        let all = body["templates"].as_array().unwrap();
        let shell = all.iter().find(|one| one["name"] == "shell").unwrap();
        assert_eq!(shell["title"], "Our shell", "{engine}: the file replaces the built-in template");
        let sweep = json!({
            "name": "sweep", "title": "Sweep", "description": "", "job": {"command": ["true"], "cpus": 2},
        });
        assert_eq!(all.last(), Some(&sweep), "{engine}");

        write("broken.json", template("Repaired"));
        let known = [("if-none-match", tag.as_str())];
        t.call_with(&ada, "GET", TEMPLATES, Value::Null, &known).await.expect(304);
        t.portal.templates.reload();
        let body = t.call_with(&ada, "GET", TEMPLATES, Value::Null, &known).await.expect(200);
        assert_eq!(names(&body), [&BUILT_IN[..], &["broken", "sweep"]].concat(), "{engine}");
    }
}
