//! Tests of the webhooks of people who leave an organization, or whose accounts are disabled or deleted.

use axum::http::StatusCode;
use berth_foundation::delivery::sign;
use berth_store as store;
use futures::FutureExt;
use serde_json::{Value, json};

use crate::common::{Caller, PASSWORD, TestPortal, engines};
use crate::webhooks::Receiver;

/// Adds an owner by invitation; returns the signed-in user and the user's id.
async fn owner(t: &TestPortal, ada: &Caller, org: &str, name: &str) -> (Caller, String) {
    let email = format!("{name}@example.org");
    let invite = json!({"email": email, "role": "owner"});
    let sent = t.post(ada, &format!("/orgs/{org}/invitations"), invite).await.expect(201);
    let secret = sent["link"].as_str().unwrap().split_once('#').unwrap().1;
    let accept = json!({"token": secret, "name": name, "password": PASSWORD});
    t.post(&Caller::Nobody, "/invitations/accept", accept).await.expect(200);
    let caller = t.sign_in(&email).await;
    let me = t.get(&caller, "/me").await.expect(200);
    (caller, me["user"]["id"].as_str().unwrap().to_owned())
}

async fn hook(t: &TestPortal, caller: &Caller, org: &str, url: &str) -> Value {
    let new = json!({"url": url, "kinds": ["webhook.passed_on", "budget.passed"]});
    t.post(caller, &format!("/orgs/{org}/webhooks"), new).await.expect(201)
}

async fn events(t: &TestPortal, caller: &Caller, path: &str, action: &str) -> Vec<Value> {
    let page = t.get(caller, &format!("{path}/audit-events?action={action}")).await.expect(200);
    page["items"].as_array().unwrap().clone()
}

/// The number of mails with this subject.
fn mails(t: &TestPortal, to: &str, subject: &str) -> usize {
    let Ok(files) = std::fs::read_dir(t.data.path().join("outbox")) else { return 0 };
    let files = files.map(|file| file.unwrap().path());
    let mails = files.filter(|path| path.extension().is_some_and(|e| e == "eml"));
    let texts = mails.map(|path| std::fs::read_to_string(path).unwrap());
    let wanted = [format!("To: {to}"), format!("Subject: {subject}")];
    texts.filter(|text| wanted.iter().all(|line| text.contains(line))).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhooks_of_a_former_member_pass_to_an_owner_with_their_secrets() {
    for (engine, db, _location) in engines("heirs").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (receiver, url) = Receiver::open(&[]).await;
        let hooks = format!("/orgs/{org}/webhooks");
        for (name, how) in [("bob", "removed"), ("cyd", "left"), ("dan", "disabled"), ("eve", "deleted")] {
            let (caller, id) = owner(&t, &ada, &org, name).await;
            let made = hook(&t, &caller, &org, &url).await;
            assert_eq!(made["created_by"], name, "{engine}");
            let member = format!("/orgs/{org}/members/{id}");
            let before = receiver.received().len();
            let done = match how {
                "removed" => t.call(&ada, "DELETE", &member, Value::Null).await,
                "left" => t.call(&caller, "DELETE", &member, Value::Null).await,
                "disabled" => {
                    let reason = json!({"reason": "Unpaid invoices."});
                    t.call(&operator, "PUT", &format!("/operator/users/{id}/disabled"), reason).await
                }
                _ => t.post(&caller, "/me/deletion", json!({"password": PASSWORD})).await,
            };
            assert!(
                matches!(done.status, StatusCode::OK | StatusCode::NO_CONTENT),
                "{engine} {how}: {}",
                done.body
            );

            // The newest webhook is the first one of the list.
            let listed = t.get(&ada, &hooks).await.expect(200)["items"][0].clone();
            assert_eq!(
                (&listed["id"], &listed["created_by"]),
                (&made["id"], &json!("Ada")),
                "{engine} {how}"
            );
            let passed = events(&t, &ada, &format!("/orgs/{org}"), "webhook.passed_on").await;
            assert_eq!(passed[0]["subject"], made["id"], "{engine} {how}");
            assert_eq!(passed[0]["detail"], "To the owner Ada.", "{engine} {how}");
            if how == "deleted" {
                assert_eq!(passed[0]["actor"], "Deleted person", "{engine}: no name stays");
            }
            // The notice about it has a signature with the old secret.
            t.portal.webhooks.deliver().await.unwrap();
            let secret = made["secret"].as_str().unwrap();
            let is_ours = |(signature, body): &(String, String)| {
                let (at, v1) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
                v1 == sign(secret, at.parse().unwrap(), body)
            };
            let received = receiver.received();
            let ours: Vec<&(String, String)> =
                received[before..].iter().filter(|&one| is_ours(one)).collect();
            assert_eq!(ours.len(), 1, "{engine} {how}");
            let notice: Value = serde_json::from_str(&ours[0].1).unwrap();
            assert_eq!(notice["data"]["webhooks"], json!([made["id"]]), "{engine} {how}");
        }
        assert_eq!(events(&t, &ada, &format!("/orgs/{org}"), "webhook.stopped").await, [] as [Value; 0]);
        assert_eq!(mails(&t, "lab@example.org", "1 webhook passed to Ada"), 4, "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_without_an_owner_stop_until_the_organization_has_one() {
    for (engine, db, _location) in engines("heirless").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (receiver, url) = Receiver::open(&[]).await;
        let made = hook(&t, &ada, &org, &url).await;
        let id = t.get(&ada, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
        let disabled = format!("/operator/users/{id}/disabled");
        let notify = async || {
            let org = org.parse().unwrap();
            let subject = "Budget".to_owned();
            let notice = t.portal.context.notice(org, "budget.passed", subject, String::new(), &json!({}));
            let write = t.portal.context.db.write(move |tx| {
                let notice = notice.clone();
                async move { store::budgets::insert_notice(tx, &notice).await }.boxed()
            });
            write.await.unwrap();
            t.portal.webhooks.deliver().await.unwrap();
            receiver.received().len()
        };
        assert_eq!(notify().await, 1, "{engine}");
        // A repeated request has no further event.
        for _ in 0..2 {
            t.call(&operator, "PUT", &disabled, json!({"reason": "Unpaid."})).await.expect(200);
        }
        assert_eq!(notify().await, 1, "{engine}: it has stopped");
        let stopped = events(&t, &operator, "/operator", "webhook.stopped").await;
        assert_eq!(stopped.len(), 1, "{engine}: {stopped:?}");
        assert_eq!((&stopped[0]["subject"], &stopped[0]["org"]), (&made["id"], &json!(org)), "{engine}");
        t.call(&operator, "DELETE", &disabled, Value::Null).await.expect(200);
        assert_eq!(notify().await, 2, "{engine}: the organization has an owner again");
        let ada = t.sign_in("lab@example.org").await;
        let listed = t.get(&ada, &format!("/orgs/{org}/webhooks")).await.expect(200);
        assert_eq!(listed["items"][0]["created_by"], "Ada", "{engine}");
    }
}
