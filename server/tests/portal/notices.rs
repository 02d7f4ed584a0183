//! Tests of the order of deliveries: a receiver without success delays no other one.

use crate::common::{TestPortal, engines};
use crate::people::mails;
use crate::webhooks::Receiver;
use berth_store as store;
use berth_store::webhooks::{Channel, DeliveryPart, StoredDelivery};
use berth_types::ids::{DeliveryId, OrgId};
use berth_types::webhooks::DeliveryState;
use futures::FutureExt;
use serde_json::json;
use uuid::Uuid;

async fn add_notice(t: &TestPortal, org: &str, kind: &str) {
    let (subject, detail) = (format!("About {kind}"), "It happened.".to_owned());
    let notice = t.portal.context.notice(org.parse().unwrap(), kind, subject, detail, &json!({}));
    let stored = t.portal.context.db.write(move |tx| {
        let notice = notice.clone();
        async move { store::budgets::insert_notice(tx, &notice).await }.boxed()
    });
    stored.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_without_success_delays_no_other_one_and_no_mail() {
    for (engine, db, _location) in engines("dead_receivers").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let (bob, other) = t.tenant("bobs").await;
        let (dead, url) = Receiver::open(&[500; 300]).await;
        let hook = json!({"url": url, "kinds": ["job.*"]});
        t.post(&ada, &format!("/orgs/{org}/webhooks"), hook).await.expect(201);
        for _ in 0..70 {
            add_notice(&t, &org, "job.failed").await;
        }
        t.portal.webhooks.deliver().await.unwrap();
        assert_eq!(dead.received().len(), 70, "{engine}");

        let (good, url) = Receiver::open(&[]).await;
        for (caller, org) in [(&ada, &org), (&bob, &other)] {
            let hook = json!({"url": url, "kinds": ["*"]});
            t.post(caller, &format!("/orgs/{org}/webhooks"), hook).await.expect(201);
        }
        t.clock.advance_s(11);
        add_notice(&t, &org, "budget.passed").await;
        add_notice(&t, &other, "job.succeeded").await;
        t.portal.webhooks.deliver().await.unwrap();
        let notices = good.notices();
        let mut kinds: Vec<&str> = notices.iter().map(|notice| notice["type"].as_str().unwrap()).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["budget.passed", "job.succeeded"], "{engine}");
        assert_eq!(mails(&t, "lab@example.org").await.len(), 1, "{engine}");
        assert_eq!(dead.received().len(), 70 + 64, "{engine}: a round has a bound for failing webhooks");
    }
}

/// Stores a due delivery of a notice with this subject.
async fn add_delivery(t: &TestPortal, org: u128, target: (Channel, &'static str), subject: &str) {
    let (context, org) = (&t.portal.context, OrgId::from_uuid(Uuid::from_u128(org)));
    let notice = context.notice(org, "job.failed", subject.to_owned(), String::new(), &json!({}));
    let now = context.now();
    let id: DeliveryId = context.new_id(now);
    let stored = context.db.write(move |tx| {
        let notice = notice.clone();
        async move {
            store::budgets::insert_notice(tx, &notice).await?;
            store::webhooks::insert_delivery(tx, id, (notice.id, org), target, now).await
        }
        .boxed()
    });
    stored.await.unwrap();
}

async fn list_due(t: &TestPortal, part: DeliveryPart, limit: i64) -> Vec<StoredDelivery> {
    let mut conn = t.portal.context.db.read().await.unwrap();
    let now = t.portal.context.now();
    store::webhooks::list_due_deliveries(&mut conn.tx(), part, now, limit).await.unwrap()
}

/// The subjects of due deliveries in their order.
async fn order(t: &TestPortal, part: DeliveryPart) -> Vec<String> {
    list_due(t, part, 10).await.into_iter().map(|row| row.subject).collect()
}

/// Records a try of a due delivery.
async fn record(t: &TestPortal, part: DeliveryPart, subject: &str, (state, tries): (DeliveryState, i64)) {
    let found = list_due(t, part, 10).await.into_iter().find(|row| row.subject == subject).unwrap();
    let row = StoredDelivery { state, tries, ..found };
    let stored = t.portal.context.db.write(move |tx| {
        let row = row.clone();
        async move { store::webhooks::update_delivery(tx, &row).await }.boxed()
    });
    stored.await.unwrap();
}

#[tokio::test]
async fn each_organization_and_each_of_its_webhooks_has_its_turn() {
    for (engine, db, _location) in engines("delivery_turns").await {
        let t = TestPortal::on(db);
        for subject in ["x1", "x2", "x3"] {
            add_delivery(&t, 1, (Channel::Webhook, "x"), subject).await;
        }
        add_delivery(&t, 1, (Channel::Webhook, "y"), "y1").await;
        add_delivery(&t, 2, (Channel::Webhook, "z"), "z1").await;
        add_delivery(&t, 1, (Channel::Mail, "lab@example.org"), "m1").await;
        let (webhooks, failing) = (DeliveryPart::Webhooks, DeliveryPart::FailingWebhooks);
        assert_eq!(order(&t, webhooks).await, ["x1", "z1", "y1", "x2", "x3"], "{engine}");
        assert_eq!(list_due(&t, webhooks, 2).await.len(), 2, "{engine}");
        assert_eq!(order(&t, DeliveryPart::Mails).await, ["m1"], "{engine}");
        assert!(order(&t, failing).await.is_empty(), "{engine}");

        record(&t, webhooks, "x1", (DeliveryState::Pending, 1)).await;
        assert_eq!(order(&t, webhooks).await, ["y1", "z1"], "{engine}");
        assert_eq!(order(&t, failing).await, ["x1", "x2", "x3"], "{engine}");
        record(&t, failing, "x3", (DeliveryState::Pending, 2)).await;
        assert_eq!(order(&t, failing).await, ["x3", "x1", "x2"], "{engine}: those with the most tries");
        // The webhook answers again.
        for subject in ["x1", "x3"] {
            record(&t, failing, subject, (DeliveryState::Delivered, 3)).await;
        }
        assert_eq!(order(&t, webhooks).await, ["x2", "z1", "y1"], "{engine}");
        assert!(order(&t, failing).await.is_empty(), "{engine}");
    }
}
