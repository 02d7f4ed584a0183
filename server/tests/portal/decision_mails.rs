//! Tests of the mails about decisions on requests for limits and credit.

use crate::common::{Caller, TestPortal, engines};
use crate::people::mails;
use crate::webhooks::Receiver;
use berth_store as store;
use berth_types::ids::UserId;
use futures::FutureExt;
use serde_json::{Value, json};
use sqlx::Connection;

/// Returns the mails about decisions to an address, after all deliveries.
async fn decisions(t: &TestPortal, to: &str) -> Vec<String> {
    t.portal.webhooks.deliver().await.unwrap();
    let mut found = mails(t, to).await;
    found.retain(|mail| mail.contains("Subject: Your request was "));
    found
}

/// Requests five units of credit; returns the id of the request.
async fn request_credit(t: &TestPortal, caller: &Caller, org: &str) -> String {
    let body = json!({"credit_micros": 5_000_000, "reason": "a deadline"});
    let made = t.post(caller, &format!("/orgs/{org}/quota-requests"), body).await.expect(201);
    made["id"].as_str().unwrap().to_owned()
}

async fn decide(t: &TestPortal, operator: &Caller, id: &str, body: Value) {
    t.post(operator, &format!("/operator/quota-requests/{id}"), body).await.expect(200);
}

async fn id_of(t: &TestPortal, caller: &Caller) -> UserId {
    t.get(caller, "/me").await.expect(200)["user"]["id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_person_who_made_a_request_gets_a_mail_about_the_decision() {
    for (engine, db, _location) in engines("decision_mails").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (receiver, url) = Receiver::open(&[]).await;
        let hook = json!({"url": url, "kinds": ["*"]});
        t.post(&ada, &format!("/orgs/{org}/webhooks"), hook).await.expect(201);

        let id = request_credit(&t, &ada, &org).await;
        let half = json!({"grant": true, "credit_micros": 1_500_000, "note": "Half for now."});
        decide(&t, &operator, &id, half.clone()).await;
        let again = t.post(&operator, &format!("/operator/quota-requests/{id}"), half).await;
        again.problem(409, "quota_request.decided");
        let sent = decisions(&t, "lab@example.org").await;
        let [mail] = &sent[..] else { panic!("{engine}: {sent:?}") };
        for part in [
            "Subject: Your request was granted in part",
            "- Credit: $5.00",
            "- Credit: $1.50",
            "Half for now.",
            "http://127.0.0.1:8080/orgs/lab/limits",
        ] {
            assert!(mail.contains(part), "{engine}: {part} in {mail}");
        }

        let body = json!({"limits": {"running_jobs": 50}, "reason": "a deadline"});
        let made = t.post(&ada, &format!("/orgs/{org}/quota-requests"), body).await.expect(201);
        let no = json!({"grant": false, "note": "No boards are free."});
        decide(&t, &operator, made["id"].as_str().unwrap(), no).await;
        let sent = decisions(&t, "lab@example.org").await;
        assert_eq!(sent.len(), 2, "{engine}: {sent:?}");
        let declined = sent.iter().find(|mail| mail.contains("Subject: Your request was declined")).unwrap();
        for part in ["- Running jobs: 50", "No boards are free."] {
            assert!(declined.contains(part), "{engine}: {part} in {declined}");
        }
        assert!(!declined.contains("Granted:"), "{engine}: {declined}");
        assert!(receiver.received().is_empty(), "{engine}: the mail is for the person alone");
    }
}

#[tokio::test]
async fn a_former_member_and_an_unverified_address_get_no_mail_about_a_decision() {
    for (engine, db, _location) in engines("decision_receivers").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, _) = t.tenant("bobs").await;
        let invite = json!({"email": "bobs@example.org", "role": "billing"});
        let made = t.post(&ada, &format!("/orgs/{org}/invitations"), invite).await.expect(201);
        let secret = made["link"].as_str().unwrap().rsplit_once('#').unwrap().1.to_owned();
        t.post(&bob, "/invitations/accept", json!({"token": secret})).await.expect(200);
        let new = json!({"name": "nightly", "role": "member"});
        let account = t.post(&ada, &format!("/orgs/{org}/service-accounts"), new).await.expect(201);
        let new = json!({"name": "ci", "role": "member", "service_account": account["id"]});
        let made = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
        let machine = Caller::Token(made["secret"].as_str().unwrap().to_owned());
        let yes = || json!({"grant": true});

        // The person gets the mail and not another owner or billing member.
        let by_bob = request_credit(&t, &bob, &org).await;
        decide(&t, &operator, &by_bob, yes()).await;
        assert_eq!(decisions(&t, "bobs@example.org").await.len(), 1, "{engine}");
        let by_machine = request_credit(&t, &machine, &org).await;
        decide(&t, &operator, &by_machine, yes()).await;
        assert!(decisions(&t, "lab@example.org").await.is_empty(), "{engine}");

        let by_bob = request_credit(&t, &bob, &org).await;
        let path = format!("/orgs/{org}/members/{}", id_of(&t, &bob).await);
        t.call(&ada, "DELETE", &path, Value::Null).await.expect(204);
        decide(&t, &operator, &by_bob, yes()).await;
        assert_eq!(decisions(&t, "bobs@example.org").await.len(), 1, "{engine}: a former member");

        let by_ada = request_credit(&t, &ada, &org).await;
        let user = id_of(&t, &ada).await;
        let unverified = t.portal.context.db.write(move |tx| store::people::unverify_email(tx, user).boxed());
        unverified.await.unwrap();
        decide(&t, &operator, &by_ada, yes()).await;
        assert!(decisions(&t, "lab@example.org").await.is_empty(), "{engine}: not verified");
    }
}

#[tokio::test]
async fn pending_requests_from_before_the_mails_have_their_requesters() {
    let mut conn = sqlx::SqliteConnection::connect("sqlite::memory:").await.unwrap();
    for sql in [
        include_str!("../../../migrations/0001_accounts.sql"),
        include_str!("../../../migrations/0002_billing.sql"),
        include_str!("../../../migrations/0009_audit.sql"),
        "INSERT INTO orgs (id, name, slug, created_at) VALUES ('org', 'Lab', 'lab', 1)",
        "INSERT INTO quota_requests (id, org_id, limits, reason, state, created_at, created_by, note) \
         VALUES ('a', 'org', '{}', 'x', 'pending', 1, 'Ada', ''), ('b', 'org', '{}', 'x', 'pending', 1, 'Ada', ''), \
         ('c', 'org', '{}', 'x', 'declined', 1, 'Ada', '')",
        "INSERT INTO audit_events (id, org_id, at, actor, action, subject, detail, actor_id) \
         VALUES ('1', 'org', 1, 'Ada', 'quota.requested', 'a', '', 'ada'), \
         ('2', 'org', 1, 'Ada', 'quota.requested', 'b', '', NULL), \
         ('3', 'org', 1, 'Eve', 'quota.declined', 'c', '', 'eve')",
        include_str!("../../../migrations/0050_requesters.sql"),
    ] {
        sqlx::raw_sql(sql).execute(&mut conn).await.unwrap();
    }
    let sql = "SELECT id, created_by_id FROM quota_requests ORDER BY id";
    let rows: Vec<(String, Option<String>)> = sqlx::query_as(sql).fetch_all(&mut conn).await.unwrap();
    let known = rows.iter().map(|(id, user)| (id.as_str(), user.as_deref()));
    assert_eq!(known.collect::<Vec<_>>(), [("a", Some("ada")), ("b", None), ("c", None)]);
}
