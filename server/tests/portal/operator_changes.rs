//! Tests of the rule for a second operator: new rights of operators, the mails about change requests and their readers.

use crate::change_requests::second_operator;
use crate::common::{Caller, Reply, TestPortal, engines};
use crate::operations::items;
use crate::operators::add;
use crate::people::mails;
use berth_store as store;
use futures::FutureExt;
use serde_json::{Value, json};

const OPERATORS: &str = "/operator/operators";
const REQUESTS: &str = "/operator/change-requests";

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap()
}

/// Turns the rule on. Returns the second owner.
async fn require_second(t: &TestPortal, first: &Caller) -> Caller {
    let second = second_operator(t).await;
    t.call(first, "PUT", "/operator/change-policy", json!({"second_operator": true})).await.expect(200);
    second
}

async fn decide(t: &TestPortal, caller: &Caller, request: &Value, verb: &str) -> Reply {
    let body = if verb == "reject" { json!({"reason": "No receipt."}) } else { Value::Null };
    t.post(caller, &format!("{REQUESTS}/{}/{verb}", text(request, "id")), body).await
}

fn new_operator(name: &str, role: &str) -> Value {
    json!({"email": format!("{name}@example.org"), "role": role, "reason": "More hands."})
}

fn change(role: &str) -> Value {
    json!({"role": role, "reason": "Another desk."})
}

#[tokio::test]
async fn a_new_operator_waits_for_the_second_operator() {
    for (engine, db, _location) in engines("change_new_operator").await {
        let t = TestPortal::on(db);
        let first = t.operator().await;
        // Without the rule a new operator needs nobody.
        add(&t, &first, "auditor", "early").await;
        let second = require_second(&t, &first).await;
        let (linus, _) = t.tenant("linus").await;

        let key = [("idempotency-key", "one")];
        let send = async || {
            let new = new_operator("linus", "owner");
            t.call_with(&first, "POST", OPERATORS, new, &key).await.expect(202)
        };
        let waiting = send().await;
        assert_eq!((text(&waiting, "action"), text(&waiting, "state")), ("add_operator", "pending"));
        assert_eq!(text(&waiting, "detail"), "linus@example.org: owner; More hands.", "{engine}");
        assert_eq!(send().await["id"], waiting["id"], "{engine}: one request for one key");
        t.lose_answer("operator", "one", text(&waiting, "id")).await;
        assert_eq!(send().await["id"], waiting["id"], "{engine}: after a lost answer");
        let again = t.post(&first, OPERATORS, new_operator("linus", "owner")).await.expect(202);
        assert_eq!(again["id"], waiting["id"], "{engine}: one request for one act");
        // The session of the person goes on, without a right of operators.
        t.get(&linus, "/operator/nodes").await.problem(404, "object.not_found");
        t.get(&linus, "/me").await.expect(200);

        decide(&t, &first, &waiting, "approve").await.problem(403, "change_request.own");
        let done = decide(&t, &second, &waiting, "approve").await.expect(200);
        assert_eq!(text(&done, "state"), "approved", "{engine}");
        // A repetition has the same answer and no further effect.
        assert_eq!(decide(&t, &second, &waiting, "approve").await.expect(200), done, "{engine}");
        t.get(&linus, "/me").await.expect(401);
        let linus = t.sign_in("linus@example.org").await;
        assert_eq!(t.get(&linus, "/me").await.expect(200)["operator_role"], "owner", "{engine}");
        let events = items(&t, &first, "/operator/audit-events?action=operator.added").await;
        assert_eq!(events.len(), 2, "{engine}: {events:?}");
        assert!(events.iter().any(|event| event["actor"] == "Grace Holm"), "{engine}: {events:?}");

        // The checks are those of the time of the approval.
        let (mary, _) = t.tenant("mary").await;
        let id = t.get(&mary, "/me").await.expect(200)["user"]["id"].clone();
        let waiting = t.post(&first, OPERATORS, new_operator("mary", "fleet")).await.expect(202);
        let disabled = format!("/operator/users/{}/disabled", id.as_str().unwrap());
        t.call(&second, "PUT", &disabled, json!({"reason": "Left."})).await.expect(200);
        decide(&t, &second, &waiting, "approve").await.problem(409, "operators.account");
        // The account of a person who is no operator is enabled at once.
        t.call(&first, "DELETE", &disabled, Value::Null).await.expect(200);
        let other = t.post(&linus, OPERATORS, new_operator("mary", "fleet")).await.expect(202);
        decide(&t, &second, &other, "approve").await.expect(200);
        // The person is an operator already.
        decide(&t, &second, &waiting, "approve").await.problem(409, "operators.account");
        let pending = items(&t, &second, &format!("{REQUESTS}?pending=true")).await;
        assert_eq!(pending.len(), 1, "{engine}: {pending:?}");
    }
}

#[tokio::test]
async fn further_rights_of_an_operator_wait_for_the_second_operator() {
    for (engine, db, _location) in engines("change_operator_role").await {
        let t = TestPortal::on(db);
        let first = t.operator().await;
        let (_, id) = add(&t, &first, "auditor", "early").await;
        let path = format!("{OPERATORS}/{id}");
        t.call(&first, "PATCH", &path, change("support")).await.expect(200);
        let second = require_second(&t, &first).await;
        let set = async |role: &str| t.call(&first, "PATCH", &path, change(role)).await;
        let role = async || {
            let all = items(&t, &second, OPERATORS).await;
            let found = all.iter().find(|one| one["user"] == id.as_str()).unwrap();
            text(found, "role").to_owned()
        };

        // A lower role waits for nobody.
        assert_eq!(set("auditor").await.expect(200)["role"], "auditor", "{engine}");
        let (fleet, billing) = (set("fleet").await.expect(202), set("billing").await.expect(202));
        assert_eq!((text(&fleet, "action"), role().await.as_str()), ("change_operator", "auditor"));
        decide(&t, &first, &fleet, "approve").await.problem(403, "change_request.own");
        decide(&t, &second, &fleet, "approve").await.expect(200);
        assert_eq!(role().await, "fleet", "{engine}");
        // The request was for another present role.
        decide(&t, &second, &billing, "approve").await.problem(409, "change_request.changed");
        // The approval of a role that another request gave already does nothing.
        let same = set("owner").await.expect(202);
        let other = t.call(&first, "PATCH", &path, json!({"role": "owner", "reason": "Again."})).await;
        decide(&t, &second, &other.expect(202), "approve").await.expect(200);
        decide(&t, &second, &same, "approve").await.problem(409, "change_request.changed");
        assert_eq!(role().await, "owner", "{engine}");

        // An account ends at once, and its return waits.
        let disabled = format!("/operator/users/{id}/disabled");
        t.call(&first, "PUT", &disabled, json!({"reason": "A lost laptop."})).await.expect(200);
        let waiting = t.call(&first, "DELETE", &disabled, Value::Null).await.expect(202);
        assert_eq!(text(&waiting, "detail"), "early@example.org: owner; disabled: A lost laptop.");
        let me = json!({"email": "early@example.org", "password": crate::common::PASSWORD});
        t.post(&Caller::Nobody, "/sessions", me).await.problem(403, "account.disabled");
        decide(&t, &second, &waiting, "approve").await.expect(200);
        let early = t.sign_in("early@example.org").await;
        t.get(&early, "/operator/nodes").await.expect(200);
        // An enabled account needs nothing.
        t.call(&first, "DELETE", &disabled, Value::Null).await.expect(200);
        t.post(&first, &format!("{path}/remove"), json!({"reason": "Left."})).await.expect(204);
        t.get(&early, "/operator/nodes").await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn the_rule_keeps_two_owners_and_a_command_ends_it() {
    for (engine, db, _location) in engines("change_owners").await {
        let t = TestPortal::on(db);
        let first = t.operator().await;
        let second = require_second(&t, &first).await;
        let me = t.get(&second, "/me").await.expect(200);
        let id = text(&me["user"], "id");
        let path = format!("{OPERATORS}/{id}");
        let remove = async || t.post(&first, &format!("{path}/remove"), json!({"reason": "Left."})).await;
        // Nobody could approve a new owner, or the end of the rule.
        remove().await.problem(409, "operators.last_owner");
        t.call(&first, "PATCH", &path, change("auditor")).await.problem(409, "operators.last_owner");
        t.get(&second, "/operator/nodes").await.expect(200);

        // An account in wrong hands ends at once. The way back is the command.
        let disabled = format!("/operator/users/{id}/disabled");
        t.call(&first, "PUT", &disabled, json!({"reason": "A lost laptop."})).await.expect(200);
        t.call(&first, "DELETE", &disabled, Value::Null).await.expect(202);
        t.portal.operators.end_policy_by_command().await.unwrap();
        t.call(&first, "DELETE", &disabled, Value::Null).await.expect(200);
        remove().await.expect(204);
        let again = t.portal.operators.end_policy_by_command().await.unwrap_err();
        assert!(again.contains("no rule"), "{engine}: {again}");
        let events = items(&t, &first, "/operator/audit-events?action=change_policy.set").await;
        let by_command = events.iter().filter(|event| event["actor"] == "The portal").count();
        assert_eq!((events.len(), by_command), (2, 1), "{engine}: {events:?}");
    }
}

/// The mails to an address, after those about change requests.
async fn sent(t: &TestPortal, name: &str) -> Vec<String> {
    t.portal.operators.mail_changes().await.unwrap();
    mails(t, &format!("{name}@example.org")).await
}

/// Counts the mails with a text.
fn count(mails: &[String], text: &str) -> usize {
    mails.iter().filter(|mail| mail.contains(text)).count()
}

#[tokio::test]
async fn operators_get_mails_about_change_requests() {
    for (engine, db, _location) in engines("change_mails").await {
        let t = TestPortal::on(db);
        let first = t.operator().await;
        let (_, org) = t.tenant("lab").await;
        add(&t, &first, "billing", "billing").await;
        add(&t, &first, "auditor", "auditor").await;
        t.tenant("linus").await;
        let second = require_second(&t, &first).await;
        let credits = format!("/operator/orgs/{org}/credits");
        let request = async || {
            let body = json!({"amount_micros": 5_000_000, "memo": "Click here"});
            t.post(&first, &credits, body).await.expect(202)
        };

        let credit = request().await;
        let new = sent(&t, "grace").await;
        assert_eq!(new.len(), 1, "{engine}: {new:?}");
        for part in
            ["Harbour master", "expires at 2026-", "/operator/changes", &format!("Credit: {org}, $5.00")]
        {
            assert!(new[0].contains(part), "{engine} {part}: {}", new[0]);
        }
        assert!(!new[0].contains("Click here"), "{engine}: {}", new[0]);
        assert_eq!(sent(&t, "billing").await.len(), 1, "{engine}");
        for other in ["auditor", "harbour", "lab"] {
            assert_eq!(sent(&t, other).await, Vec::<String>::new(), "{engine} {other}");
        }
        // The next mail follows after a minute, with all requests of the receiver's right.
        let operator = t.post(&first, OPERATORS, new_operator("linus", "fleet")).await.expect(202);
        let withdrawn = request().await;
        decide(&t, &first, &withdrawn, "withdraw").await.expect(200);
        assert_eq!(sent(&t, "grace").await.len(), 1, "{engine}");
        t.clock.advance_s(61);
        let new = sent(&t, "grace").await;
        let about = format!("New operator: {}", text(&operator, "target"));
        assert_eq!((new.len(), count(&new, &about), count(&new, "Credit: ")), (2, 1, 1), "{engine}: {new:?}");
        assert_eq!(sent(&t, "billing").await.len(), 1, "{engine}");

        // The requester gets the decisions, without the text of the other operator.
        decide(&t, &second, &credit, "reject").await.expect(200);
        decide(&t, &second, &operator, "approve").await.expect(200);
        sent(&t, "harbour").await;
        let own = sent(&t, "harbour").await;
        let counts =
            ["request was approved", "request was rejected", "No receipt"].map(|part| count(&own, part));
        assert_eq!(counts, [1, 1, 0], "{engine}: {own:?}");

        // Anyone can have chosen the name of an account without a verified address.
        let user = text(&credit, "requested_by").parse().unwrap();
        let unverified = t.portal.context.db.write(move |tx| store::people::unverify_email(tx, user).boxed());
        unverified.await.unwrap();
        t.clock.advance_s(61);
        let unnamed = request().await;
        let new = sent(&t, "grace").await;
        assert_eq!((new.len(), count(&new, "An operator requested")), (3, 1), "{engine}: {new:?}");
        decide(&t, &second, &unnamed, "reject").await.expect(200);
        assert_eq!(sent(&t, "harbour").await.len(), 2, "{engine}");
    }
}

#[tokio::test]
async fn a_role_reads_the_change_requests_of_its_rights() {
    for (engine, db, _location) in engines("change_readers").await {
        let t = TestPortal::on(db);
        let first = t.operator().await;
        let (_, org) = t.tenant("lab").await;
        let (billing, id) = add(&t, &first, "billing", "billing").await;
        let (fleet, _) = add(&t, &first, "fleet", "fleet").await;
        let (auditor, _) = add(&t, &first, "auditor", "auditor").await;
        t.tenant("linus").await;
        let second = require_second(&t, &first).await;
        let credits = format!("/operator/orgs/{org}/credits");
        t.post(&first, &credits, json!({"amount_micros": 5_000_000})).await.expect(202);
        let operator = t.post(&first, OPERATORS, new_operator("linus", "fleet")).await.expect(202);
        let path = format!("{REQUESTS}/{}", text(&operator, "id"));

        let all = ["add_operator", "grant_credit"];
        for (name, caller, expected) in [
            ("owner", &second, &all[..]),
            ("auditor", &auditor, &all[..]),
            ("billing", &billing, &all[1..]),
            ("fleet", &fleet, &all[..0]),
        ] {
            let listed = items(&t, caller, &format!("{REQUESTS}?pending=true")).await;
            let mut actions: Vec<&str> = listed.iter().map(|request| text(request, "action")).collect();
            actions.sort_unstable();
            assert_eq!(actions, expected, "{engine} {name}");
            let overview = t.get(caller, "/operator/overview").await.expect(200);
            assert_eq!(overview["change_request_count"], expected.len(), "{engine} {name}");
            let one = t.get(caller, &path).await;
            if expected.contains(&"add_operator") {
                one.expect(200);
            } else {
                one.problem(404, "object.not_found");
                decide(&t, caller, &operator, "approve").await.problem(404, "object.not_found");
            }
        }
        // The own requests stay readable with another role.
        let own = t.post(&billing, &credits, json!({"amount_micros": 1_000_000})).await.expect(202);
        let moved = t.call(&first, "PATCH", &format!("{OPERATORS}/{id}"), change("fleet")).await.expect(202);
        decide(&t, &second, &moved, "approve").await.expect(200);
        let listed = items(&t, &billing, REQUESTS).await;
        assert_eq!(listed.iter().map(|request| &request["id"]).collect::<Vec<_>>(), [&own["id"]], "{engine}");
    }
}
