//! Tests of what a deleted account leaves behind.

use berth_store as store;
use serde_json::json;

use crate::common::{PASSWORD, TestPortal, engines};
use crate::factors::enrol;
use crate::operations::items;
use crate::payments::PaymentSetup;

#[tokio::test]
async fn a_deleted_account_leaves_no_second_factor_and_an_event_in_each_organization() {
    for (engine, db, _location) in engines("deletion_factor").await {
        let t = TestPortal::on(db);
        let (ada, org) = t.tenant("lab").await;
        let (grace, _) = t.tenant("grace").await;
        let invite = json!({"email": "grace@example.org", "role": "billing"});
        let sent = t.post(&ada, &format!("/orgs/{org}/invitations"), invite).await.expect(201);
        let secret = sent["link"].as_str().unwrap().split_once('#').unwrap().1;
        t.post(&grace, "/invitations/accept", json!({"token": secret})).await.expect(200);
        let id = t.get(&grace, "/me").await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
        let user = id.parse().unwrap();
        enrol(&t, &grace).await;
        t.post(&grace, "/me/deletion", json!({"password": PASSWORD})).await.expect(204);
        {
            let mut conn = t.portal.context.db.read().await.unwrap();
            let mut tx = conn.tx();
            assert!(store::factors::list_totp(&mut tx).await.unwrap().is_empty(), "{engine}");
            assert_eq!(store::factors::count_recovery_codes(&mut tx, user).await.unwrap(), 0, "{engine}");
        }
        let left = items(&t, &ada, &format!("/orgs/{org}/audit-events?action=member.left")).await;
        assert_eq!(left.len(), 1, "{engine}: {left:?}");
        assert_eq!(
            (&left[0]["actor"], &left[0]["subject"], &left[0]["detail"]),
            (&json!("Deleted person"), &json!(id), &json!("billing")),
            "{engine}"
        );
    }
}

#[tokio::test]
async fn an_organization_without_members_charges_no_card_and_has_no_webhook() {
    for (engine, db, _location) in engines("deletion_card").await {
        let setup = PaymentSetup::on(db, "USD").await;
        let (t, ada) = (&setup.t, &setup.ada);
        let url = setup.top_up(1_000_000, true).await;
        let intent = setup.stripe.pay(&url);
        setup.deliver_event("payment_intent.succeeded", &intent).await;
        let rule = json!({"below_micros": 500_000, "amount_micros": 10_000_000, "most_a_day": 2});
        t.call(ada, "PUT", &setup.path("auto-recharge"), rule).await.expect(200);
        let hook = json!({"url": "http://127.0.0.1:9/hook", "kinds": ["*"]});
        t.post(ada, &setup.path("webhooks"), hook).await.expect(201);
        let debit = json!({"amount_micros": 1_000_000, "memo": "Settled"});
        t.post(&setup.operator, &format!("/operator/orgs/{}/debits", setup.org), debit).await.expect(201);
        let asked = setup.stripe.requests().len();
        t.post(ada, "/me/deletion", json!({"password": PASSWORD})).await.expect(204);
        t.get(ada, "/me").await.problem(401, "auth.required");
        for _ in 0..2 {
            t.clock.advance_s(86_400);
            t.portal.payments.tick_payments().await.unwrap();
        }
        assert_eq!(setup.stripe.requests().len(), asked, "{engine}");
        let org = setup.org.parse().unwrap();
        let mut conn = t.portal.context.db.read().await.unwrap();
        let mut tx = conn.tx();
        assert!(store::webhooks::list(&mut tx, Some(org)).await.unwrap().is_empty(), "{engine}");
        let profile = store::payments::find_profile(&mut tx, org).await.unwrap().unwrap();
        assert_eq!((profile.payment_method, profile.amount_micros), (None, 0), "{engine}");
    }
}
