//! Tests of limits on the fields of bodies and on the parameters of queries, which hold before any use of them.

use crate::common::described::find_fault;
use crate::common::{Caller, PASSWORD, engines};
use crate::idle_portal::{IdlePortal, node};
use serde_json::{Value, json};

const JOB: &str = "job_00000000000000000000000001";
const USER: &str = "user_00000000000000000000000001";
const TERMINAL: &str = "term_00000000000000000000000001";

/// A request with an invalid field: method, path, body and pointer of the field.
type Invalid = (&'static str, String, Value, &'static str);

fn text(chars: usize) -> String {
    "x".repeat(chars)
}

fn spaces(chars: usize) -> String {
    " ".repeat(chars)
}

/// Requests without sign-in.
fn requests_of_visitors() -> Vec<Invalid> {
    let email = format!("{}@example.org", text(243));
    let user = json!({"token": text(101), "email": "ada@example.org", "password": PASSWORD, "name": "Ada"});
    let accept = json!({"token": text(101), "name": "Ada", "password": PASSWORD});
    let (sign_in, long_email) = ("/sessions".to_owned(), email.clone());
    let reset = json!({"token": text(101), "password": PASSWORD});
    vec![
        ("POST", sign_in.clone(), json!({"email": email, "password": PASSWORD}), "/email"),
        ("POST", sign_in, json!({"email": "lab@example.org", "password": text(1_025)}), "/password"),
        ("POST", "/setup".to_owned(), user, "/token"),
        ("POST", "/invitations/look".to_owned(), json!({"token": text(101)}), "/token"),
        ("POST", "/password-resets".to_owned(), json!({"email": long_email}), "/email"),
        ("POST", "/password-resets/complete".to_owned(), reset, "/token"),
        ("POST", "/email-verifications/complete".to_owned(), json!({"token": text(101)}), "/token"),
        ("POST", "/invitations/accept".to_owned(), accept, "/token"),
    ]
}

/// Requests of an owner.
fn requests_of_owners(org: &str) -> Vec<Invalid> {
    let path = |rest: &str| format!("/orgs/{org}/{rest}");
    let details = || path("billing-details");
    let email = format!("{}b@example.org", spaces(242));
    let hook = |url: String| json!({"url": url, "kinds": ["job.*"]});
    let budget =
        |label: &str, value: &str| json!({"name": "b", "limit_micros": 1, "label": label, "value": value});
    let (terminals, tickets) = (format!("jobs/{JOB}/terminals"), format!("jobs/{JOB}/ports/8888/tickets"));
    let reason = || json!({"reason": text(501)});
    let on = ["exit", "node_lost", "exit"];
    let job = json!({
        "name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60,
        "retry": {"max": 1, "on": on},
    });
    let labelled = json!({
        "name": "train", "offering": "h100-80gb", "command": ["true"], "labels": {"a=b": "c"},
    });
    let stop = |field: &str, text: &str| json!({"filter": {field: text}, "expected": 0});
    let mut limits = json!({"limits": {"devices": {}}, "reason": "a deadline"});
    limits["limits"]["devices"][text(101)] = json!(1);
    vec![
        ("POST", path("jobs"), job, "/retry/on"),
        ("POST", path("jobs"), labelled, "/labels/a=b"),
        ("POST", path("jobs/stop"), stop("name", &text(101)), "/filter/name"),
        ("POST", path("jobs/stop"), stop("created_by", ""), "/filter/created_by"),
        ("POST", path("jobs/stop"), stop("created_by", "a\tb"), "/filter/created_by"),
        (
            "POST",
            path("jobs/stop?preview=true"),
            stop("label", &format!("team={}", text(123))),
            "/filter/label",
        ),
        ("POST", path("quota-requests"), limits, "/limits/devices"),
        ("POST", path("invitations"), json!({"email": email, "role": "viewer"}), "/email"),
        ("POST", path("webhooks"), hook(format!("https://example.org/{}", text(2_029))), "/url"),
        ("POST", path("webhooks"), hook("https://example.org/\u{7f}".to_owned()), "/url"),
        ("POST", path("budgets"), budget(&text(64), "vision"), "/label"),
        ("POST", path("budgets"), budget("te\u{1b}am", "vision"), "/label"),
        ("POST", path("budgets"), budget("team", &text(64)), "/value"),
        ("POST", path("budgets"), budget("team", "vi\nsion"), "/value"),
        ("PUT", details(), json!({"name": text(101)}), "/name"),
        ("PUT", details(), json!({"name": "Lab\nGmbH"}), "/name"),
        ("PUT", details(), json!({"address": text(501)}), "/address"),
        ("PUT", details(), json!({"address": "Kade\t4"}), "/address"),
        ("PUT", details(), json!({"tax_id": text(51)}), "/tax_id"),
        ("POST", path(&terminals), reason(), "/reason"),
        ("POST", path(&tickets), reason(), "/reason"),
        ("PUT", "/me/password".to_owned(), json!({"current": text(1_025), "new": PASSWORD}), "/current"),
        ("POST", "/me/deletion".to_owned(), json!({"password": text(1_025)}), "/password"),
    ]
}

/// Requests of an operator.
fn requests_of_operators(setup: &IdlePortal) -> Vec<Invalid> {
    let settings = || "/operator/billing-settings".to_owned();
    let tax = |name: String| json!({"taxes": [{"name": name, "basis_points": 1_900}]});
    let taxes: Vec<Value> = (0..6).map(|n| json!({"name": format!("VAT {n}"), "basis_points": 1})).collect();
    let drain = || format!("/operator/nodes/{}/drain", node(1));
    let late = json!({"deadline_at": setup.at(-120), "reason": "firmware"});
    let window = |gpus: Vec<String>| {
        let (from, until) = (setup.at(600), setup.at(1_200));
        json!({"node": node(1), "gpus": gpus, "starts_at": from, "ends_at": until, "reason": "New driver"})
    };
    let many = (0..65).map(|n| format!("GPU-{n}")).collect();
    let (maintenance, stop) = (|| "/operator/reservations".to_owned(), "/operator/jobs/stop");
    let filter = |filter: Value| json!({"filter": filter, "reason": "an update", "expected": 0});
    let price = json!({"offering": text(101), "per_hour_micros": 1});
    vec![
        ("POST", maintenance(), window(many), "/gpus"),
        ("POST", maintenance(), window(vec!["GPU-1-0".to_owned(); 2]), "/gpus"),
        ("POST", maintenance(), window(vec![text(257)]), "/gpus"),
        ("POST", "/operator/prices".to_owned(), price, "/offering"),
        ("PUT", format!("/operator/users/{USER}/disabled"), json!({"reason": text(301)}), "/reason"),
        ("POST", stop.to_owned(), filter(json!({"offering": text(101)})), "/filter/offering"),
        ("POST", stop.to_owned(), filter(json!({"label": format!("team={}", text(123))})), "/filter/label"),
        ("POST", stop.to_owned(), filter(json!({"label": "team=a\nb"})), "/filter/label"),
        ("POST", stop.to_owned(), json!({"reason": text(201), "expected": 0}), "/reason"),
        ("POST", format!("{stop}?preview=true"), json!({"reason": text(201)}), "/reason"),
        ("PUT", settings(), json!({"seller_tax_id": text(51)}), "/seller_tax_id"),
        ("PUT", settings(), tax(text(101)), "/taxes/0"),
        ("PUT", settings(), tax("V\nAT".to_owned()), "/taxes/0"),
        ("PUT", settings(), json!({"taxes": taxes}), "/taxes"),
        ("PUT", drain(), late, "/deadline_at"),
        ("PUT", drain(), json!({"reason": text(201)}), "/reason"),
        ("PUT", drain(), json!({"reason": format!("{}x", spaces(200))}), "/reason"),
    ]
}

#[tokio::test]
async fn a_field_beyond_its_limit_is_refused_by_the_portal_and_the_schema() {
    for (engine, db, _location) in engines("limits").await {
        let setup = IdlePortal::on(db).await;
        let all = [
            (&Caller::Nobody, requests_of_visitors()),
            (&setup.ada, requests_of_owners(&setup.org)),
            (&setup.operator, requests_of_operators(&setup)),
        ];
        for (caller, requests) in all {
            for (method, path, body, pointer) in requests {
                // A schema knows no time.
                let fault = find_fault(method, &format!("/api/v1{path}"), &body);
                assert!(fault.is_some() || pointer == "/deadline_at", "{method} {path}: {body}");
                let reply = setup.t.call(caller, method, &path, body).await;
                let problem = reply.problem(422, "request.invalid");
                let errors = problem["errors"].as_array().unwrap();
                assert_eq!(errors.len(), 1, "{engine} {method} {path}: {problem}");
                assert_eq!(errors[0]["pointer"], pointer, "{engine} {method} {path}: {problem}");
            }
        }
    }
}

#[tokio::test]
async fn a_field_at_its_limit_is_accepted() {
    for (engine, db, _location) in engines("limits_at").await {
        let setup = IdlePortal::on(db).await;
        let (t, nobody) = (&setup.t, Caller::Nobody);
        let padded = json!({"email": format!("{}lab@example.org", spaces(239)), "password": PASSWORD});
        t.post(&nobody, "/sessions", padded).await.expect(201);
        let wrong = json!({"email": "lab@example.org", "password": text(1_024)});
        t.post(&nobody, "/sessions", wrong).await.problem(401, "auth.wrong_password");
        let unknown = json!({"token": text(100)});
        t.post(&nobody, "/invitations/look", unknown).await.problem(404, "invitation.not_valid");
        let hook = json!({"url": format!("https://example.org/{}", text(2_028)), "kinds": ["job.*"]});
        t.post(&setup.ada, &format!("/orgs/{}/webhooks", setup.org), hook).await.expect(201);
        let budget = json!({"name": "vision", "limit_micros": 1, "label": text(63), "value": text(63)});
        t.post(&setup.ada, &format!("/orgs/{}/budgets", setup.org), budget).await.expect(201);
        let taxes = json!({"taxes": [{"name": text(100), "basis_points": 1_900}]});
        t.call(&setup.operator, "PUT", "/operator/billing-settings", taxes).await.expect(200);
        let drain = json!({"deadline_at": setup.at(-30), "reason": text(200)});
        let path = format!("/operator/nodes/{}/drain", node(1));
        let drain = t.call(&setup.operator, "PUT", &path, drain).await.expect(200);
        assert_eq!(drain["reason"], text(200), "{engine} {drain}");
    }
}

#[tokio::test]
async fn a_parameter_beyond_its_limit_is_refused() {
    for (_, db, _location) in engines("limits_queries").await {
        let setup = IdlePortal::on(db).await;
        let job = format!("jobs/{JOB}");
        let socket = format!("{job}/terminals/{TERMINAL}/socket");
        for query in [
            format!("usage?group=label&label={}", text(64)),
            "usage?group=label&label=a%0Ab".to_owned(),
            "usage?from=2026-11-21T00:00:00Z".to_owned(),
            "usage?until=2026-11-2".to_owned(),
            "events?after=-1".to_owned(),
            format!("{job}/events?after=-1"),
            format!("{job}/logs?rank=64"),
            format!("{job}/logs?from=9223372036854775808"),
            format!("{job}/logs?timestamps=maybe"),
            format!("{job}/metrics?step_s=2592001"),
            format!("{socket}?cols=0"),
            format!("{socket}?cols=1001"),
            format!("{socket}?rows=0"),
            format!("{socket}?rows=1001"),
        ] {
            let path = format!("/orgs/{}/{query}", setup.org);
            setup.t.get(&setup.ada, &path).await.problem(400, "request.malformed");
        }
        for query in [
            format!("jobs?offering={}", text(101)),
            format!("jobs?label=team%3D{}", text(123)),
            "jobs?label=team%3Da%0Ab".to_owned(),
            format!("prices?offering={}", text(101)),
            format!("users?text={}", text(101)),
        ] {
            let path = format!("/operator/{query}");
            setup.t.get(&setup.operator, &path).await.problem(422, "request.invalid");
        }
    }
}
