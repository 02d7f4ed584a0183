//! Tests of the operators and their roles.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::described::resolve;
use crate::common::{Caller, TestPortal, engines};
use crate::edge::{ends, open_stream};
use crate::operations::items;
use berth_server::openapi::document;
use berth_types::accounts::NewOperatorToken;
use serde_json::{Value, json};

const ROLES: [&str; 5] = ["owner", "fleet", "billing", "support", "auditor"];

/// The routes of operators with the roles that may use them. All roles use a route with "all".
const TABLE: &[(&str, &str)] = &[
    ("GET /operator/audit-destinations", "all"),
    ("GET /operator/audit-events", "owner support auditor"),
    ("GET /operator/billing-settings", "all"),
    ("PUT /operator/billing-settings", "owner billing"),
    ("GET /operator/calendar", "all"),
    ("GET /operator/capacity", "all"),
    ("GET /operator/change-policy", "all"),
    ("PUT /operator/change-policy", "owner"),
    ("GET /operator/change-requests", "all"),
    ("GET /operator/change-requests/{change}", "all"),
    // The right is that of the act, and no request has the id of this table.
    ("POST /operator/change-requests/{change}/approve", "all"),
    ("POST /operator/change-requests/{change}/reject", "all"),
    ("POST /operator/change-requests/{change}/withdraw", "all"),
    ("POST /operator/credits", "owner billing"),
    ("GET /operator/drains", "all"),
    ("GET /operator/gateways", "all"),
    ("POST /operator/gateways", "owner fleet"),
    ("DELETE /operator/gateways/{gateway}", "owner fleet"),
    ("POST /operator/gateways/{gateway}/token", "owner fleet"),
    ("POST /operator/gpus/{gpu}/approve", "owner fleet"),
    ("POST /operator/gpus/{gpu}/check", "owner fleet"),
    ("POST /operator/gpus/{gpu}/mode", "owner fleet"),
    ("POST /operator/gpus/{gpu}/release", "owner fleet"),
    ("POST /operator/gpus/{gpu}/reset", "owner fleet"),
    ("GET /operator/inference-pool", "all"),
    ("PUT /operator/inference-pool", "owner fleet"),
    ("GET /operator/inventory", "all"),
    ("GET /operator/invoices", "all"),
    ("POST /operator/invoices", "owner billing"),
    ("POST /operator/invoices/{id}/paid", "owner billing"),
    ("POST /operator/invoices/{id}/void", "owner billing"),
    ("GET /operator/jobs", "all"),
    ("GET /operator/jobs.csv", "all"),
    ("POST /operator/jobs/stop", "owner fleet support"),
    ("POST /operator/join-tokens", "owner fleet"),
    ("GET /operator/loops", "all"),
    ("GET /operator/metrics-tokens", "owner support auditor"),
    ("POST /operator/metrics-tokens", "owner"),
    ("DELETE /operator/metrics-tokens/{token}", "owner"),
    ("GET /operator/networks", "all"),
    ("DELETE /operator/networks/{network}", "owner fleet"),
    ("PUT /operator/networks/{network}", "owner fleet"),
    ("GET /operator/nodes", "all"),
    ("DELETE /operator/nodes/{node}", "owner fleet"),
    ("GET /operator/nodes/{node}", "all"),
    ("PATCH /operator/nodes/{node}", "owner fleet"),
    ("POST /operator/nodes/{node}/approve", "owner fleet"),
    ("PUT /operator/nodes/{node}/dedication", "owner fleet"),
    ("GET /operator/nodes/{node}/diagnosis", "all"),
    ("DELETE /operator/nodes/{node}/drain", "owner fleet"),
    ("PUT /operator/nodes/{node}/drain", "owner fleet"),
    ("GET /operator/nodes/{node}/gpus", "all"),
    ("GET /operator/nodes/{node}/gpus/{gpu}/samples", "all"),
    ("POST /operator/nodes/{node}/join-token", "owner fleet"),
    ("POST /operator/nodes/{node}/lost", "owner fleet"),
    ("POST /operator/nodes/{node}/revoke", "owner fleet"),
    ("DELETE /operator/nodes/{node}/set-aside", "owner fleet"),
    ("GET /operator/operators", "owner support auditor"),
    ("POST /operator/operators", "owner"),
    ("PATCH /operator/operators/{user}", "owner"),
    ("POST /operator/operators/{user}/remove", "owner"),
    ("GET /operator/orgs", "all"),
    ("PUT /operator/orgs/{org}/credit-limit", "owner billing"),
    ("POST /operator/orgs/{org}/credits", "owner billing"),
    ("POST /operator/orgs/{org}/debits", "owner billing"),
    ("GET /operator/orgs/{org}/egress-policy", "all"),
    ("PUT /operator/orgs/{org}/egress-policy", "owner fleet"),
    ("GET /operator/orgs/{org}/nodes", "all"),
    ("PUT /operator/orgs/{org}/nodes", "owner fleet"),
    ("DELETE /operator/orgs/{org}/quota", "owner support"),
    ("GET /operator/orgs/{org}/quota", "all"),
    ("PUT /operator/orgs/{org}/quota", "owner support"),
    ("GET /operator/orgs/{org}/rdma", "all"),
    ("PUT /operator/orgs/{org}/rdma", "owner fleet"),
    ("PUT /operator/orgs/{org}/service-hosts", "owner"),
    ("PUT /operator/orgs/{org}/sso-domains", "owner"),
    ("GET /operator/overview", "all"),
    ("GET /operator/portal-settings", "all"),
    ("PUT /operator/portal-settings", "owner"),
    ("DELETE /operator/portal-settings/logo", "owner"),
    ("PUT /operator/portal-settings/logo", "owner"),
    ("GET /operator/prices", "all"),
    ("POST /operator/prices", "owner billing"),
    ("GET /operator/prices/planned", "all"),
    ("DELETE /operator/prices/{offering}/{version}", "owner billing"),
    ("GET /operator/quota", "all"),
    ("PUT /operator/quota", "owner support"),
    ("GET /operator/quota-requests", "all"),
    ("GET /operator/promises", "all"),
    ("POST /operator/promises", "owner billing"),
    ("DELETE /operator/promises/{promise}", "owner billing"),
    ("PATCH /operator/promises/{promise}", "owner billing"),
    ("POST /operator/quota-requests/{id}", "owner billing support"),
    ("GET /operator/racks", "all"),
    ("DELETE /operator/racks/{rack}", "owner fleet"),
    ("PUT /operator/racks/{rack}", "owner fleet"),
    ("GET /operator/reconciliation", "all"),
    ("POST /operator/reconciliation", "owner billing"),
    ("GET /operator/reservation-policy", "all"),
    ("PUT /operator/reservation-policy", "owner billing"),
    ("GET /operator/reservations", "all"),
    ("POST /operator/reservations", "owner fleet"),
    ("POST /operator/reservations/{id}/approve", "owner fleet support"),
    ("POST /operator/reservations/{id}/cancel", "owner fleet support"),
    ("POST /operator/reservations/{id}/decline", "owner fleet support"),
    ("GET /operator/service-hosts", "all"),
    ("GET /operator/services", "all"),
    ("PUT /operator/services/{service}/token-price", "owner billing"),
    ("GET /operator/sso-domains", "owner support auditor"),
    ("GET /operator/storage-classes", "all"),
    ("DELETE /operator/storage-classes/{class}", "owner fleet"),
    ("PUT /operator/storage-classes/{class}", "owner fleet"),
    ("DELETE /operator/storage-classes/{class}/orgs/{org}", "owner fleet"),
    ("PUT /operator/storage-classes/{class}/orgs/{org}", "owner fleet"),
    ("GET /operator/stuck", "all"),
    ("GET /operator/tokens", "owner support auditor"),
    ("POST /operator/tokens", "owner"),
    ("DELETE /operator/tokens/{token}", "owner"),
    ("GET /operator/users", "owner support auditor"),
    ("DELETE /operator/users/{user}/disabled", "owner support"),
    ("PUT /operator/users/{user}/disabled", "owner support"),
    ("DELETE /operator/users/{user}/factors", "owner support"),
];

/// The routes of operators in the document, each with an example of its body.
fn routes() -> BTreeMap<String, Value> {
    let mut routes = BTreeMap::new();
    for (path, item) in document()["paths"].as_object().unwrap() {
        let Some(path) = path.strip_prefix("/api/v1").filter(|path| path.starts_with("/operator/")) else {
            continue;
        };
        for (method, operation) in item.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let example = if schema.is_null() { Value::Null } else { resolve(schema)["examples"][0].clone() };
            routes.insert(format!("{} {path}", method.to_uppercase()), example);
        }
    }
    routes
}

/// An address of the route with ids that no object has.
fn address(path: &str) -> String {
    let none = "00000000000000000000000001";
    let id = if path.contains("invoices") {
        "inv"
    } else if path.contains("quota-requests") {
        "qreq"
    } else {
        "res"
    };
    let path = path
        .replace("{id}", &format!("{id}_{none}"))
        .replace("{gpu}", "GPU-0")
        .replace("{rack}", "r1")
        .replace("{network}", "storage")
        .replace("{class}", "scratch")
        .replace("{offering}", "h100-80gb")
        .replace("{version}", "1");
    path.replace("{node}", &format!("node_{none}"))
        .replace("{change}", &format!("chg_{none}"))
        .replace("{org}", &format!("org_{none}"))
        .replace("{user}", &format!("user_{none}"))
        .replace("{token}", &format!("tok_{none}"))
        .replace("{service}", &format!("svc_{none}"))
        .replace("{gateway}", &format!("gw_{none}"))
        .replace("{promise}", &format!("prom_{none}"))
}

/// Signs up a person and makes the person an operator. Returns the session and the id.
pub async fn add(t: &TestPortal, owner: &Caller, role: &str, name: &str) -> (Caller, String) {
    t.tenant(name).await;
    let email = format!("{name}@example.org");
    let new = json!({"email": email, "role": role, "reason": "The night shift."});
    let added = t.post(owner, "/operator/operators", new).await.expect(201);
    (t.sign_in(&email).await, added["user"].as_str().unwrap().to_owned())
}

fn change(role: &str) -> Value {
    json!({"role": role, "reason": "The end of the night shift."})
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_uses_the_routes_of_the_table_and_no_others() {
    let routes = routes();
    let table: BTreeMap<&str, &str> = TABLE.iter().copied().collect();
    let known: BTreeSet<&str> = table.keys().copied().collect();
    assert_eq!(routes.keys().map(String::as_str).collect::<BTreeSet<_>>(), known, "routes of operators");
    for (engine, db, _location) in engines("operator_routes").await {
        let t = TestPortal::on(db);
        let root = t.operator().await;
        for role in ROLES {
            let (caller, _) = add(&t, &root, role, role).await;
            for (route, example) in &routes {
                let (method, path) = route.split_once(' ').unwrap();
                let reply = t.call(&caller, method, &address(path), example.clone()).await;
                let roles = table[route.as_str()];
                let is_granted = roles == "all" || roles.split(' ').any(|one| one == role);
                let is_refused = reply.body["code"] == "auth.forbidden";
                assert_eq!(
                    is_refused, !is_granted,
                    "{engine} {role} {route}: {} {}",
                    reply.status, reply.body
                );
                if is_refused {
                    let detail = reply.body["detail"].as_str().unwrap();
                    assert!(detail.contains(&roles.replace(' ', " or ")), "{engine} {route}: {detail}");
                } else {
                    assert!(reply.status.as_u16() != 500, "{engine} {role} {route}: {}", reply.body);
                }
            }
        }
        // Each refused right is in the audit log once a minute.
        let denied = items(&t, &root, "/operator/audit-events?action=access.denied&limit=200").await;
        let rights: BTreeSet<String> = denied.iter().map(|event| event["detail"].to_string()).collect();
        assert_eq!(denied.len(), rights.len(), "{engine}: {denied:?}");
        assert!(rights.iter().any(|detail| detail.contains("role auditor")), "{engine}: {rights:?}");
    }
}

#[tokio::test]
async fn a_new_role_counts_at_once_and_is_in_the_audit_log() {
    for (engine, db, _location) in engines("operator_changes").await {
        let t = TestPortal::on(db);
        let root = t.operator().await;
        let (grace, id) = add(&t, &root, "fleet", "grace").await;
        let me = t.get(&grace, "/me").await.expect(200);
        assert_eq!((&me["operator_role"], &me["user"]["operator"]), (&json!("fleet"), &json!(true)));
        t.call(&grace, "PUT", "/operator/racks/r1", json!({"budget_watts": 2_000})).await.expect(204);
        t.get(&grace, "/operator/audit-events").await.problem(403, "auth.forbidden");
        let path = format!("/operator/operators/{id}");
        assert_eq!(t.call(&root, "PATCH", &path, change("auditor")).await.expect(200)["role"], "auditor");
        // The session stays and has the new role.
        t.get(&grace, "/operator/audit-events").await.expect(200);
        let rack = t.call(&grace, "PUT", "/operator/racks/r1", json!({"budget_watts": 2_000})).await;
        rack.problem(403, "auth.forbidden");
        let own = t.call(&grace, "PATCH", &path, change("owner")).await;
        own.problem(403, "auth.forbidden");
        let bad = t.call(&root, "PATCH", &path, json!({"role": "fleet", "reason": " "})).await;
        bad.problem(422, "request.invalid");
        let listed = items(&t, &root, "/operator/operators").await;
        let roles: BTreeSet<&str> = listed.iter().map(|one| one["role"].as_str().unwrap()).collect();
        assert_eq!(roles, BTreeSet::from(["auditor", "owner"]), "{engine}");
        let removed = t.post(&root, &format!("{path}/remove"), json!({"reason": "Left."})).await;
        removed.expect(204);
        t.get(&grace, "/operator/nodes").await.problem(404, "object.not_found");
        assert!(t.get(&grace, "/me").await.expect(200)["operator_role"].is_null(), "{engine}");
        t.call(&root, "PATCH", &path, change("fleet")).await.problem(404, "object.not_found");
        let changed = items(&t, &root, "/operator/audit-events?action=operator.role_changed").await;
        assert_eq!(changed.len(), 1, "{engine}");
        let detail = changed[0]["detail"].as_str().unwrap();
        assert_eq!(
            detail, "grace@example.org: auditor, before fleet; The end of the night shift.",
            "{engine}"
        );
        for action in ["operator.added", "operator.removed"] {
            let events = items(&t, &root, &format!("/operator/audit-events?action={action}")).await;
            assert_eq!(events.len(), 1, "{engine} {action}");
        }
    }
}

#[tokio::test]
async fn the_portal_keeps_an_active_owner() {
    for (engine, db, _location) in engines("operator_owners").await {
        let t = TestPortal::on(db);
        let root = t.operator().await;
        let me = t.get(&root, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
        let own = format!("/operator/operators/{me}");
        t.call(&root, "PATCH", &own, change("auditor")).await.problem(409, "operators.last_owner");
        let reason = json!({"reason": "Left."});
        let removed = t.post(&root, &format!("{own}/remove"), reason.clone()).await;
        removed.problem(409, "operators.last_owner");
        let (grace, id) = add(&t, &root, "owner", "grace").await;
        let disabled = format!("/operator/users/{id}/disabled");
        t.call(&root, "PUT", &disabled, reason.clone()).await.expect(200);
        // A disabled owner is not active.
        t.call(&root, "PATCH", &own, change("auditor")).await.problem(409, "operators.last_owner");
        t.call(&root, "DELETE", &disabled, Value::Null).await.expect(200);
        t.get(&grace, "/operator/nodes").await.expect(401);
        t.call(&root, "PATCH", &own, change("auditor")).await.expect(200);
        let grace = t.sign_in("grace@example.org").await;
        t.post(&grace, &format!("/operator/operators/{id}/remove"), reason)
            .await
            .problem(409, "operators.last_owner");
        // The operator's own account cannot be deleted, so no deletion takes the last owner.
        let gone = t.post(&grace, "/me/deletion", json!({"password": crate::common::PASSWORD})).await;
        gone.problem(409, "account.operator");
        assert_eq!(items(&t, &grace, "/operator/operators").await.len(), 2, "{engine}");
    }
}

#[tokio::test]
async fn only_owners_change_accounts_of_operators() {
    for (engine, db, _location) in engines("operator_accounts").await {
        let t = TestPortal::on(db);
        let root = t.operator().await;
        let (support, _) = add(&t, &root, "support", "support").await;
        let (_, fleet) = add(&t, &root, "fleet", "fleet").await;
        let path = format!("/operator/users/{fleet}");
        let reason = json!({"reason": "A lost laptop."});
        let refused = t.call(&support, "PUT", &format!("{path}/disabled"), reason.clone()).await;
        refused.problem(403, "auth.forbidden");
        let refused = t.call(&support, "DELETE", &format!("{path}/factors"), Value::Null).await;
        refused.problem(403, "auth.forbidden");
        let (ada, _) = t.tenant("lab").await;
        let person = t.get(&ada, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
        let path = format!("/operator/users/{person}/disabled");
        t.call(&support, "PUT", &path, reason).await.expect(200);
        t.get(&ada, "/me").await.expect(401);
        t.get(&ada, "/operator/operators").await.expect(401);
        assert_eq!(items(&t, &root, "/operator/operators").await.len(), 3, "{engine}");
    }
}

#[tokio::test]
async fn an_operator_needs_a_verified_account_and_loses_sessions_and_tokens() {
    for (engine, db, _location) in engines("operator_tokens").await {
        let t = TestPortal::on(db);
        let root = t.operator().await;
        let new = |email: &str, role: &str| json!({"email": email, "role": role, "reason": "More hands."});
        let unknown = t.post(&root, "/operator/operators", new("nobody@example.org", "fleet")).await;
        assert_eq!(unknown.problem(422, "request.invalid")["errors"][0]["pointer"], "/email");
        let (ada, _) = t.tenant("ada").await;
        let reply = t.post(&root, "/operator/operators", new(" ADA@example.org", "owner")).await;
        let ada_id = reply.expect(201)["user"].as_str().unwrap().to_owned();
        // The former session had no right of operators.
        t.get(&ada, "/me").await.expect(401);
        t.post(&root, "/operator/operators", new("ada@example.org", "owner")).await.expect(201);
        let other = t.post(&root, "/operator/operators", new("ada@example.org", "fleet")).await;
        other.problem(409, "operators.account");
        let ada = t.sign_in("ada@example.org").await;
        let made = t.post(&ada, "/operator/tokens", json!({"name": "ci", "scopes": ["admin"]})).await;
        let token = Caller::Token(made.expect(201)["secret"].as_str().unwrap().to_owned());
        t.get(&token, "/operator/users").await.expect(200);
        let path = format!("/operator/operators/{ada_id}");
        t.call(&root, "PATCH", &path, change("fleet")).await.expect(200);
        t.get(&token, "/operator/users").await.problem(403, "auth.forbidden");
        let removed = t.post(&root, &format!("{path}/remove"), json!({"reason": "Left."})).await;
        removed.expect(204);
        t.get(&token, "/operator/nodes").await.expect(401);
        let (_, org) = t.tenant("lab").await;
        let disabled =
            t.get(&root, "/operator/users?text=lab@").await.expect(200)["items"][0]["user"]["id"].clone();
        let path = format!("/operator/users/{}/disabled", disabled.as_str().unwrap());
        t.call(&root, "PUT", &path, json!({"reason": "Unpaid."})).await.expect(200);
        let refused = t.post(&root, "/operator/operators", new("lab@example.org", "fleet")).await;
        refused.problem(409, "operators.account");
        assert!(org.starts_with("org_"), "{engine}");
    }
}

#[tokio::test]
async fn open_streams_of_an_operator_end_with_the_role() {
    let t = TestPortal::sqlite().await;
    let root = t.operator().await;
    let (grace, id) = add(&t, &root, "fleet", "grace").await;
    let org = t.get(&grace, "/me").await.expect(200)["memberships"][0]["org"]["id"].clone();
    let stream = open_stream(&t, &grace, org.as_str().unwrap()).await;
    t.call(&root, "PATCH", &format!("/operator/operators/{id}"), change("auditor")).await.expect(200);
    ends(stream).await;
}

#[tokio::test]
async fn billing_decides_credit_and_support_decides_limits() {
    for (engine, db, _location) in engines("operator_requests").await {
        let t = TestPortal::on(db);
        let root = t.operator().await;
        let (billing, _) = add(&t, &root, "billing", "billing").await;
        let (support, _) = add(&t, &root, "support", "support").await;
        let (ada, org) = t.tenant("lab").await;
        let ask = async |body: Value| {
            let made = t.post(&ada, &format!("/orgs/{org}/quota-requests"), body).await.expect(201);
            format!("/operator/quota-requests/{}", made["id"].as_str().unwrap())
        };
        let credit = ask(json!({"credit_micros": 5_000_000, "reason": "a deadline"})).await;
        let limits = ask(json!({"limits": {"boards_milli": 2_000}, "reason": "a deadline"})).await;
        let grant = json!({"grant": true, "note": ""});
        t.post(&support, &credit, grant.clone()).await.problem(403, "auth.forbidden");
        t.post(&billing, &limits, grant.clone()).await.problem(403, "auth.forbidden");
        let both = json!({"grant": true, "note": "", "limits": {"boards_milli": 9_000}});
        t.post(&billing, &credit, both).await.problem(403, "auth.forbidden");
        assert_eq!(
            t.post(&billing, &credit, grant.clone()).await.expect(200)["state"],
            "granted",
            "{engine}"
        );
        assert_eq!(t.post(&support, &limits, grant).await.expect(200)["state"], "granted", "{engine}");
    }
}

#[tokio::test]
async fn a_removed_operator_creates_no_token() {
    for (engine, db, _location) in engines("operator_removed").await {
        let t = TestPortal::on(db);
        let root = t.operator().await;
        let (grace, id) = add(&t, &root, "owner", "grace").await;
        let Caller::Cookie(cookie) = &grace else { panic!("a person") };
        let (_, value) = cookie.split_once('=').unwrap();
        // A request that began before the removal.
        let former = t.portal.accounts.caller_by_session(value).await.unwrap().unwrap();
        let path = format!("/operator/operators/{id}/remove");
        t.post(&root, &path, json!({"reason": "Left."})).await.expect(204);
        let new: NewOperatorToken =
            serde_json::from_value(json!({"name": "ci", "scopes": ["admin"]})).unwrap();
        let refused = t.portal.accounts.create_operator_token(&former, new).await.err().unwrap();
        assert_eq!(refused.code, "object.not_found", "{engine}");
        assert_eq!(items(&t, &root, "/operator/tokens").await, Vec::<Value>::new(), "{engine}");
    }
}

#[tokio::test]
async fn an_idempotency_key_of_operators_belongs_to_its_sender() {
    for (engine, db, _location) in engines("operator_keys").await {
        let t = TestPortal::on(db);
        let root = t.operator().await;
        let (grace, _) = add(&t, &root, "billing", "grace").await;
        let (ada, org) = t.tenant("lab").await;
        let path = format!("/operator/orgs/{org}/credits");
        let send = async |caller: &Caller| {
            let body = json!({"amount_micros": 1_000_000});
            t.call_with(caller, "POST", &path, body, &[("idempotency-key", "one")]).await
        };
        let first = send(&root).await.expect(201);
        assert_eq!(send(&root).await.expect(201), first, "{engine}");
        // The same body of another operator is another request, and so is that of an own token.
        send(&grace).await.problem(422, "idempotency.other_request");
        let made = t.post(&root, "/operator/tokens", json!({"name": "ci", "scopes": ["admin"]})).await;
        let token = Caller::Token(made.expect(201)["secret"].as_str().unwrap().to_owned());
        send(&token).await.problem(422, "idempotency.other_request");
        let balance = t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200);
        assert_eq!(balance["posted_micros"], 1_000_000, "{engine}");
    }
}
