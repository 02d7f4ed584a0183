//! Tests of the rule for a second operator: acts that wait, and their decisions.

use crate::common::{Caller, Reply, TestPortal, engines, job};
use crate::money::record_charge;
use crate::operators;
use berth_store as store;
use berth_types::accounts::User;
use futures::FutureExt;
use serde_json::{Value, json};

const POLICY: &str = "/operator/change-policy";
const REQUESTS: &str = "/operator/change-requests";

/// A portal with two operators, and an organization with 20 units of credit.
struct Desk {
    t: TestPortal,
    first: Caller,
    second: Caller,
    ada: Caller,
    org: String,
}

async fn put(t: &TestPortal, caller: &Caller, path: &str, body: Value) -> Reply {
    t.call(caller, "PUT", path, body).await
}

/// Adds a second operator with the password of the first.
pub async fn second_operator(t: &TestPortal) -> Caller {
    let (id, now) = (t.portal.context.new_id(t.portal.context.now()), t.portal.context.now());
    let user =
        User { id, email: "grace@example.org".to_owned(), name: "Grace Holm".to_owned(), operator: true };
    let added = t.portal.context.db.write(move |tx| {
        let user = user.clone();
        async move {
            let found = store::accounts::find_login(tx, "harbour@example.org").await?;
            let (_, hash) = found.unwrap();
            store::accounts::insert_user(tx, &user, &hash, now).await
        }
        .boxed()
    });
    added.await.unwrap();
    t.sign_in("grace@example.org").await
}

impl Desk {
    async fn on(db: store::Db) -> Self {
        let t = TestPortal::on(db);
        let first = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&first, &org, 20_000_000).await;
        let second = second_operator(&t).await;
        Self { t, first, second, ada, org }
    }

    async fn require_second(&self) {
        let on = put(&self.t, &self.first, POLICY, json!({"second_operator": true})).await.expect(200);
        assert_eq!(on["second_operator"], true);
    }

    async fn posted(&self) -> i64 {
        let balance = self.t.get(&self.ada, &format!("/orgs/{}/balance", self.org)).await.expect(200);
        balance["posted_micros"].as_i64().unwrap()
    }

    fn credits(&self) -> String {
        format!("/operator/orgs/{}/credits", self.org)
    }

    /// Requests a credit of five units.
    async fn request_credit(&self) -> Value {
        let body = json!({"amount_micros": 5_000_000, "memo": "Goodwill"});
        self.t.post(&self.first, &self.credits(), body).await.expect(202)
    }

    async fn decide(&self, caller: &Caller, request: &Value, verb: &str) -> Reply {
        let body = if verb == "reject" { json!({"reason": "No receipt."}) } else { Value::Null };
        self.t.post(caller, &format!("{REQUESTS}/{}/{verb}", text(request, "id")), body).await
    }

    /// The number of waiting requests, which the overview has too.
    async fn pending(&self) -> usize {
        let page = self.t.get(&self.second, &format!("{REQUESTS}?pending=true")).await.expect(200);
        let pending = page["items"].as_array().unwrap().len();
        let overview = self.t.get(&self.second, "/operator/overview").await.expect(200);
        assert_eq!(overview["change_request_count"], pending);
        pending
    }

    /// Signs everyone in again after an expiry of proofs or sessions.
    async fn sign_in_again(&mut self) {
        self.ada = self.t.sign_in("lab@example.org").await;
        self.first = self.t.sign_in("harbour@example.org").await;
        self.second = self.t.sign_in("grace@example.org").await;
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap()
}

#[tokio::test]
async fn the_rule_needs_two_operators_and_its_end_needs_both() {
    for (engine, db, _location) in engines("change_policy").await {
        let t = TestPortal::on(db);
        let first = t.operator().await;
        let (ada, _) = t.tenant("lab").await;
        let on = json!({"second_operator": true});
        put(&t, &first, POLICY, on.clone()).await.problem(409, "change_policy.operators");
        let second = second_operator(&t).await;
        put(&t, &ada, POLICY, on.clone()).await.problem(404, "object.not_found");
        let made = t.post(&first, "/operator/tokens", json!({"name": "ci"})).await.expect(201);
        let ci = Caller::Token(text(&made, "secret").to_owned());
        put(&t, &ci, POLICY, on.clone()).await.problem(403, "auth.forbidden");
        put(&t, &first, POLICY, on.clone()).await.expect(200);
        put(&t, &first, POLICY, on).await.expect(200);

        let off = json!({"second_operator": false});
        let request = put(&t, &first, POLICY, off.clone()).await.expect(202);
        assert_eq!(
            (text(&request, "action"), text(&request, "state")),
            ("end_policy", "pending"),
            "{engine}"
        );
        // A repetition has the same change request.
        assert_eq!(put(&t, &first, POLICY, off).await.expect(202)["id"], request["id"], "{engine}");
        assert_eq!(t.get(&second, POLICY).await.expect(200), json!({"second_operator": true}), "{engine}");
        let approve = format!("{REQUESTS}/{}/approve", text(&request, "id"));
        t.post(&first, &approve, Value::Null).await.problem(403, "change_request.own");
        t.post(&ci, &approve, Value::Null).await.problem(403, "auth.forbidden");
        t.clock.advance_s(16 * 60);
        t.post(&second, &approve, Value::Null).await.problem(403, "auth.proof_required");
        let second = t.sign_in("grace@example.org").await;
        let done = t.post(&second, &approve, Value::Null).await.expect(200);
        assert_eq!(
            (text(&done, "state"), text(&done, "decided_by_name")),
            ("approved", "Grace Holm"),
            "{engine}"
        );
        assert_eq!(t.get(&second, POLICY).await.expect(200), json!({"second_operator": false}), "{engine}");
        // A repetition by the same operator has the same answer.
        assert_eq!(t.post(&second, &approve, Value::Null).await.expect(200), done, "{engine}");
        let log = t.get(&second, "/operator/audit-events?action=change_policy.set").await.expect(200);
        let before: Vec<&str> = log["items"].as_array().unwrap().iter().map(|e| text(e, "before")).collect();
        assert_eq!(before, [r#"{"second_operator":true}"#, r#"{"second_operator":false}"#], "{engine}");
        t.portal.context.record_omitted().await.unwrap();
        let log = t.get(&second, "/operator/audit-events?action=access.denied").await.expect(200);
        let denied: Vec<&str> = log["items"].as_array().unwrap().iter().map(|e| text(e, "detail")).collect();
        for reason in ["Only another operator decides", "Only the session of a person"] {
            assert!(
                denied.iter().any(|detail| detail.starts_with(reason)),
                "{engine}: {reason} in {denied:?}"
            );
        }
    }
}

#[tokio::test]
async fn acts_with_money_wait_for_the_second_operator() {
    for (engine, db, _location) in engines("change_money").await {
        let desk = Desk::on(db).await;
        let (t, org) = (&desk.t, &desk.org);
        let request = json!({"credit_micros": 5_000_000, "reason": "a deadline"});
        let asked = async || {
            let made = t.post(&desk.ada, &format!("/orgs/{org}/quota-requests"), request.clone()).await;
            format!("/operator/quota-requests/{}", text(&made.expect(201), "id"))
        };
        let price = json!({"offering": "h100-80gb.1g.10gb", "per_hour_micros": 7_200_000});
        let grants = json!({"grants": [{"organization": org, "amount_micros": 1_000_000, "memo": "Pilot"}]});
        // Method, path, body, status without the rule, and the change of the balance.
        let acts = [
            ("POST", desk.credits(), json!({"amount_micros": 2_000_000}), 201, 2_000_000),
            ("POST", "/operator/credits".to_owned(), grants, 201, 1_000_000),
            (
                "POST",
                format!("/operator/orgs/{org}/debits"),
                json!({"amount_micros": 500_000, "memo": "Refund"}),
                201,
                -500_000,
            ),
            (
                "PUT",
                format!("/operator/orgs/{org}/credit-limit"),
                json!({"credit_limit_micros": 9_000_000}),
                200,
                0,
            ),
            ("POST", "/operator/prices".to_owned(), price, 201, 0),
        ];
        let mut balance = desk.posted().await;
        for (method, path, body, status, moved) in &acts {
            t.call(&desk.first, method, path, body.clone()).await.expect(*status);
            balance += moved;
            assert_eq!(desk.posted().await, balance, "{engine} {path}: without the rule");
        }
        t.post(&desk.first, &asked().await, json!({"grant": true})).await.expect(200);
        balance += 5_000_000;
        assert_eq!(desk.posted().await, balance, "{engine}");

        desk.require_second().await;
        for (method, path, body, _, moved) in &acts {
            let waiting = t.call(&desk.first, method, path, body.clone()).await.expect(202);
            assert_eq!(text(&waiting, "state"), "pending", "{engine} {path}");
            assert_eq!(desk.posted().await, balance, "{engine} {path}: nothing moved");
            desk.decide(&desk.first, &waiting, "approve").await.problem(403, "change_request.own");
            let done = desk.decide(&desk.second, &waiting, "approve").await.expect(200);
            assert_eq!(text(&done, "state"), "approved", "{engine} {path}");
            balance += moved;
            assert_eq!(desk.posted().await, balance, "{engine} {path}: at the approval");
            desk.decide(&desk.second, &waiting, "reject").await.problem(409, "change_request.closed");
        }
        let path = asked().await;
        let waiting = t.post(&desk.first, &path, json!({"grant": true})).await.expect(202);
        assert_eq!(
            (text(&waiting, "action"), &waiting["amount_micros"]),
            ("grant_request", &json!(5_000_000))
        );
        desk.decide(&desk.second, &waiting, "approve").await.expect(200);
        assert_eq!(desk.posted().await, balance + 5_000_000, "{engine}");
        // A request for limits alone moves no money, and neither does a refusal.
        t.post(&desk.first, &asked().await, json!({"grant": false})).await.expect(200);
        let versions = t.get(&desk.first, "/operator/prices?offering=h100-80gb.1g.10gb").await.expect(200);
        assert_eq!(versions["items"].as_array().unwrap().len(), 3, "{engine}: each act once");
        let books = t.post(&desk.first, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine}");
    }
}

#[tokio::test]
async fn the_closing_of_an_invoice_waits_for_the_second_operator() {
    for (engine, db, _location) in engines("change_invoice").await {
        let mut desk = Desk::on(db).await;
        let limit = json!({"credit_limit_micros": 50_000_000});
        let path = format!("/operator/orgs/{}/credit-limit", desk.org);
        put(&desk.t, &desk.first, &path, limit).await.expect(200);
        record_charge(&desk.t, &desk.org, 2_000_000).await;
        desk.t.clock.advance_s(20 * 86_400);
        desk.sign_in_again().await;
        desk.require_second().await;
        assert_eq!(desk.t.portal.invoices.bill_last_month().await.unwrap(), 1, "{engine}");
        let all = desk.t.get(&desk.first, "/operator/invoices").await.expect(200);
        let close = |verb: &str| format!("/operator/invoices/{}/{verb}", text(&all["items"][0], "id"));
        let before = desk.posted().await;
        let void = desk.t.post(&desk.first, &close("void"), Value::Null).await.expect(202);
        let paid = desk.t.post(&desk.first, &close("paid"), Value::Null).await.expect(202);
        assert_eq!(desk.posted().await, before, "{engine}");
        desk.decide(&desk.second, &paid, "approve").await.expect(200);
        assert_eq!(desk.posted().await, before + 2_000_000, "{engine}");
        // The checks are those of the time of the approval.
        desk.decide(&desk.second, &void, "approve").await.problem(409, "invoice.closed");
        assert_eq!(desk.posted().await, before + 2_000_000, "{engine}");
    }
}

#[tokio::test]
async fn an_approval_takes_effect_once() {
    for (engine, db, _location) in engines("change_once").await {
        let desk = Desk::on(db).await;
        desk.require_second().await;
        let request = desk.request_credit().await;
        let again =
            futures::future::join_all((0..4).map(|_| desk.decide(&desk.second, &request, "approve"))).await;
        let statuses: Vec<u16> = again.iter().map(|reply| reply.status.as_u16()).collect();
        assert!(statuses.contains(&200), "{engine} {statuses:?}");
        assert!(statuses.iter().all(|status| [200, 409, 503].contains(status)), "{engine} {statuses:?}");
        assert_eq!(desk.posted().await, 25_000_000, "{engine}");

        // A repeated request has one change request, also after a lost answer.
        let key = [("idempotency-key", "one")];
        let body = json!({"amount_micros": 1_000_000});
        let send = async || {
            desk.t.call_with(&desk.first, "POST", &desk.credits(), body.clone(), &key).await.expect(202)
        };
        let waiting = send().await;
        assert_eq!(send().await, waiting, "{engine}");
        desk.t.lose_answer("operator", "one", text(&waiting, "id")).await;
        assert_eq!(send().await["id"], waiting["id"], "{engine}");
        assert_eq!(desk.pending().await, 1, "{engine}");
        // Without a key a second credit is another act.
        desk.request_credit().await;
        desk.request_credit().await;
        assert_eq!(desk.pending().await, 3, "{engine}");
    }
}

#[tokio::test]
async fn a_rejected_withdrawn_or_expired_request_has_no_effect() {
    for (engine, db, _location) in engines("change_ends").await {
        let mut desk = Desk::on(db).await;
        desk.require_second().await;
        let rejected = desk.request_credit().await;
        desk.decide(&desk.first, &rejected, "reject").await.problem(403, "change_request.own");
        let path = format!("{REQUESTS}/{}/reject", text(&rejected, "id"));
        for reason in ["", " ", "two\nlines", &"x".repeat(501)] {
            let refused = desk.t.post(&desk.second, &path, json!({"reason": reason})).await;
            assert_eq!(
                refused.problem(422, "request.invalid")["errors"][0]["pointer"],
                "/reason",
                "{engine}"
            );
        }
        let done = desk.decide(&desk.second, &rejected, "reject").await.expect(200);
        assert_eq!(
            (text(&done, "state"), text(&done, "decision_reason")),
            ("rejected", "No receipt."),
            "{engine}"
        );
        let withdrawn = desk.request_credit().await;
        desk.decide(&desk.second, &withdrawn, "withdraw").await.problem(403, "auth.forbidden");
        desk.decide(&desk.first, &withdrawn, "withdraw").await.expect(200);
        let expired = desk.request_credit().await;
        desk.t.clock.advance_s(24 * 3_600);
        desk.sign_in_again().await;
        for request in [&rejected, &withdrawn, &expired] {
            desk.decide(&desk.second, request, "approve").await.problem(409, "change_request.closed");
        }
        let listed = desk.t.get(&desk.first, REQUESTS).await.expect(200);
        let all = listed["items"].as_array().unwrap();
        let mut states: Vec<&str> = all.iter().map(|request| text(request, "state")).collect();
        // Requests of one millisecond have no order.
        states.sort_unstable();
        assert_eq!(states, ["expired", "rejected", "withdrawn"], "{engine}");
        assert_eq!((desk.pending().await, desk.posted().await), (0, 20_000_000), "{engine}");
        let events = desk.t.get(&desk.first, "/operator/audit-events?limit=200").await.expect(200);
        let of = |action: &str| {
            let all = events["items"].as_array().unwrap();
            all.iter().filter(|event| event["action"] == action).count()
        };
        let counts =
            ["created", "rejected", "withdrawn", "approved"].map(|a| of(&format!("change_request.{a}")));
        assert_eq!(counts, [3, 1, 1, 0], "{engine}");
    }
}

#[tokio::test]
async fn an_approval_counts_for_the_state_of_the_request() {
    for (engine, db, _location) in engines("change_state").await {
        let desk = Desk::on(db).await;
        let (t, org) = (&desk.t, &desk.org);
        desk.require_second().await;
        let limit = format!("/operator/orgs/{org}/credit-limit");
        let set = async |micros: i64| {
            put(t, &desk.first, &limit, json!({"credit_limit_micros": micros})).await.expect(202)
        };
        let (low, high) = (set(1_000_000).await, set(2_000_000).await);
        desk.decide(&desk.second, &high, "approve").await.expect(200);
        desk.decide(&desk.second, &low, "approve").await.problem(409, "change_request.changed");
        // The price of the request replaces another one than the operator saw.
        let price = |micros: i64| json!({"offering": "h100-80gb.1g.10gb", "per_hour_micros": micros});
        let one = t.post(&desk.first, "/operator/prices", price(1_000_000)).await.expect(202);
        let other = t.post(&desk.first, "/operator/prices", price(2_000_000)).await.expect(202);
        desk.decide(&desk.second, &other, "approve").await.expect(200);
        desk.decide(&desk.second, &one, "approve").await.problem(409, "change_request.changed");
        // A debit is checked against the money at the approval.
        let debit = json!({"amount_micros": 20_000_000, "memo": "Refund"});
        let path = format!("/operator/orgs/{org}/debits");
        let [one, other] = [
            t.post(&desk.first, &path, debit.clone()).await.expect(202),
            t.post(&desk.first, &path, debit).await.expect(202),
        ];
        desk.decide(&desk.second, &one, "approve").await.expect(200);
        desk.decide(&desk.second, &other, "approve").await.problem(402, "funds.insufficient");
        assert_eq!(desk.posted().await, 0, "{engine}");
        // The requester is still an operator.
        let waiting = desk.request_credit().await;
        let me = t.get(&desk.first, "/me").await.expect(200)["user"]["id"].clone();
        let disable = format!("/operator/users/{}/disabled", me.as_str().unwrap());
        put(t, &desk.second, &disable, json!({"reason": "Left."})).await.expect(200);
        desk.decide(&desk.second, &waiting, "approve").await.problem(409, "change_request.changed");
        assert_eq!(desk.posted().await, 0, "{engine}");
    }
}

#[tokio::test]
async fn both_operators_of_a_grant_need_the_right_to_change_money() {
    for (engine, db, _location) in engines("change_roles").await {
        let desk = Desk::on(db).await;
        let (t, org) = (&desk.t, &desk.org);
        let (billing, user) = operators::add(t, &desk.first, "billing", "billing").await;
        let (support, _) = operators::add(t, &desk.first, "support", "support").await;
        desk.require_second().await;
        let request = json!({"credit_micros": 5_000_000, "reason": "a deadline\nchecked by Grace"});
        let made = t.post(&desk.ada, &format!("/orgs/{org}/quota-requests"), request).await.expect(201);
        let path = format!("/operator/quota-requests/{}", text(&made, "id"));
        let waiting = t.post(&billing, &path, json!({"grant": true})).await.expect(202);
        assert!(text(&waiting, "detail").ends_with("a deadline checked by Grace"), "{engine} {waiting}");
        for verb in ["approve", "reject"] {
            desk.decide(&support, &waiting, verb).await.problem(403, "auth.forbidden");
        }
        let role = json!({"role": "support", "reason": "Another desk."});
        let changed = t.call(&desk.first, "PATCH", &format!("/operator/operators/{user}"), role).await;
        desk.decide(&desk.second, &changed.expect(202), "approve").await.expect(200);
        desk.decide(&desk.second, &waiting, "approve").await.problem(409, "change_request.changed");
        assert_eq!(desk.posted().await, 20_000_000, "{engine}");
    }
}

#[tokio::test]
async fn the_access_to_a_job_waits_and_ends_after_an_hour() {
    for (engine, db, _location) in engines("change_access").await {
        let mut desk = Desk::on(db).await;
        let made = desk.t.post(&desk.ada, &format!("/orgs/{}/jobs", desk.org), job()).await.expect(201);
        let path = format!("/orgs/{}/jobs/{}/terminals", desk.org, text(&made, "id"));
        let reason = json!({"reason": "Ada asked for help"});
        // No worker runs the job: this refusal shows that the operator has access.
        desk.t.post(&desk.first, &path, reason.clone()).await.problem(409, "job.not_running");
        desk.require_second().await;
        desk.t.post(&desk.ada, &path, json!({})).await.problem(409, "job.not_running");
        desk.t.post(&desk.first, &path, json!({})).await.problem(422, "request.invalid");
        let waiting = desk.t.post(&desk.first, &path, reason.clone()).await.expect(202);
        assert_eq!((text(&waiting, "action"), &waiting["target"]), ("access_job", &made["id"]), "{engine}");
        let again = desk.t.post(&desk.first, &path, reason.clone()).await.expect(202);
        assert_eq!(again["id"], waiting["id"], "{engine}: one request for one access");
        // An operator without a membership has keys too.
        let key = [("idempotency-key", "one")];
        for _ in 0..2 {
            let again = desk.t.call_with(&desk.first, "POST", &path, reason.clone(), &key).await.expect(202);
            assert_eq!(again["id"], waiting["id"], "{engine}: one request for one key");
        }
        let done = desk.decide(&desk.second, &waiting, "approve").await.expect(200);
        assert!(done["access_until"].is_string(), "{engine} {done}");
        desk.t.post(&desk.first, &path, reason.clone()).await.problem(409, "job.not_running");
        // The access is for its requester alone.
        desk.t.post(&desk.second, &path, reason.clone()).await.expect(202);
        let own = format!("/orgs/{}/audit-events?action=job.access_opened", desk.org);
        let log = desk.t.get(&desk.ada, &own).await.expect(200);
        assert!(text(&log["items"][0], "detail").contains("Ada asked for help"), "{engine} {log}");
        desk.t.clock.advance_s(3_600);
        desk.sign_in_again().await;
        desk.t.post(&desk.first, &path, reason).await.expect(202);
    }
}

#[tokio::test]
async fn the_waiting_requests_have_a_limit() {
    let (_, db, _location) = engines("change_limit").await.remove(0);
    let desk = Desk::on(db).await;
    let mut others = vec![desk.second.clone()];
    for name in ["alan", "linus", "mary"] {
        others.push(operators::add(&desk.t, &desk.first, "billing", name).await.0);
    }
    desk.require_second().await;
    let request =
        async |caller: &Caller| desk.t.post(caller, &desk.credits(), json!({"amount_micros": 1})).await;
    let mut last = Value::Null;
    for _ in 0..25 {
        last = desk.request_credit().await;
    }
    request(&desk.first).await.problem(409, "change_request.limit");
    // Other operators have places of their own, up to those of the portal.
    let late = others.pop().unwrap();
    for other in &others {
        for _ in 0..25 {
            request(other).await.expect(202);
        }
    }
    request(&late).await.problem(409, "change_request.limit");
    desk.decide(&desk.first, &last, "withdraw").await.expect(200);
    request(&desk.first).await.expect(202);
    let grants = json!({"grants": [{"organization": desk.org, "amount_micros": 1}]});
    desk.t.post(&desk.first, "/operator/credits", grants).await.problem(409, "change_request.limit");
    desk.t.get(&desk.ada, REQUESTS).await.problem(404, "object.not_found");
}
