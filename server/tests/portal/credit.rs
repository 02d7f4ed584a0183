//! Tests of the operator's credits: bulk credits and expiring credits.

use crate::common::{Caller, TestPortal, engines, job};
use crate::idle_portal::{DAY, HOUR, IdlePortal};
use berth_types::ids::OrgId;
use serde_json::{Value, json};

/// Returns the posted balance, the held money and the expiring credits, soonest first.
async fn purse(t: &TestPortal, caller: &Caller, org: &str) -> (i64, i64, Vec<i64>) {
    let balance = t.get(caller, &format!("/orgs/{org}/balance")).await.expect(200);
    let number = |value: &Value| value.as_i64().unwrap();
    let left = balance["expiring"].as_array().unwrap().iter().map(|lot| number(&lot["amount_micros"]));
    (number(&balance["posted_micros"]), number(&balance["held_micros"]), left.collect())
}

/// Grants credit with an expiry `seconds` from now.
async fn lend(
    t: &TestPortal,
    operator: &Caller,
    org: &str,
    micros: i64,
    seconds: i64,
) -> crate::common::Reply {
    let until = t.portal.context.now().plus_seconds(seconds);
    let body = json!({"amount_micros": micros, "memo": "Trial", "expires_at": until});
    t.post(operator, &format!("/operator/orgs/{org}/credits"), body).await
}

#[tokio::test]
async fn expiring_credit_is_used_first_and_its_rest_is_debited() {
    for (engine, db, _location) in engines("expiry").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 30_000).await;
        for seconds in [0, -60, 3_654 * 86_400] {
            let problem = lend(&t, &operator, &org, 1, seconds).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/expires_at", "{engine} {problem}");
        }
        lend(&t, &operator, &org, 50_000, 7_200).await.expect(201);
        lend(&t, &operator, &org, 100_000, 3_600).await.expect(201);
        assert_eq!(purse(&t, &ada, &org).await, (180_000, 0, vec![100_000, 50_000]), "{engine}");
        let debit = json!({"amount_micros": 120_000, "memo": "Used elsewhere"});
        t.post(&operator, &format!("/operator/orgs/{org}/debits"), debit).await.expect(201);
        t.clock.advance_s(3_600);
        t.portal.credit_expiry.tick_credit().await.unwrap();
        assert_eq!(
            purse(&t, &ada, &org).await,
            (60_000, 0, vec![30_000]),
            "{engine}: nothing was left of it"
        );

        let jobs = format!("/orgs/{org}/jobs");
        let made = t.post(&ada, &jobs, job()).await.expect(201);
        t.clock.advance_s(3_600);
        t.portal.credit_expiry.tick_credit().await.unwrap();
        let credit = json!({"amount_micros": 40_000});
        t.post(&operator, &format!("/operator/orgs/{org}/credits"), credit).await.expect(201);
        t.portal.credit_expiry.tick_credit().await.unwrap();
        assert_eq!(purse(&t, &ada, &org).await, (100_000, 60_000, vec![]), "{engine}: it stays for the job");
        let cancel = format!("{jobs}/{}/cancel", made["id"].as_str().unwrap());
        t.post(&ada, &cancel, Value::Null).await.expect(202);
        for _ in 0..2 {
            t.portal.credit_expiry.tick_credit().await.unwrap();
            assert_eq!(purse(&t, &ada, &org).await, (70_000, 0, vec![]), "{engine}: once");
        }
        let statement = t.get(&ada, &format!("/orgs/{org}/transfers")).await.expect(200);
        let rows = statement["items"].as_array().unwrap();
        assert_eq!(
            (&rows[0]["kind"], &rows[0]["source"], &rows[0]["amount_micros"], &rows[0]["memo"]),
            (
                &json!("debit"),
                &json!("expiry"),
                &json!(-30_000),
                &json!("Expired: $0.05 granted on 2026-11-18 (Trial)")
            ),
            "{engine}"
        );
        let grant = rows.iter().find(|row| row["id"] == rows[0]["source_id"]).unwrap();
        assert!(grant["expires_at"].as_str().unwrap().starts_with("2026-11-18T"), "{engine} {grant}");
        let welcome = rows.iter().find(|row| row["memo"] == "Welcome").unwrap();
        assert_eq!(welcome["expires_at"], Value::Null, "{engine}");
        let books = t.post(&operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
    }
}

#[tokio::test]
async fn expiry_makes_no_balance_with_a_credit_limit_negative() {
    for (engine, db, _location) in engines("expiry_limit").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 0).await;
        let limit = json!({"credit_limit_micros": 100_000});
        t.call(&operator, "PUT", &format!("/operator/orgs/{org}/credit-limit"), limit).await.expect(200);
        let listed = t.get(&operator, "/operator/orgs").await.expect(200);
        assert_eq!(listed["items"][0]["credit_limit_micros"], 100_000, "{engine} {listed}");
        let submit = async || {
            let made = t.post(&ada, &format!("/orgs/{org}/jobs"), job()).await.expect(201);
            format!("/orgs/{org}/jobs/{}/cancel", made["id"].as_str().unwrap())
        };
        lend(&t, &operator, &org, 60_000, 3_600).await.expect(201);
        let before = submit().await;
        t.clock.advance_s(3_600);
        t.portal.credit_expiry.tick_credit().await.unwrap();
        assert_eq!(purse(&t, &ada, &org).await, (60_000, 60_000, vec![]), "{engine}");
        // A hold after the expiry draws on the credit limit and keeps no expired credit.
        let after = submit().await;
        t.post(&ada, &before, Value::Null).await.expect(202);
        t.portal.credit_expiry.tick_credit().await.unwrap();
        assert_eq!(purse(&t, &ada, &org).await, (0, 60_000, vec![]), "{engine}");
        // A grant first covers the debt; only its rest can expire.
        let debit = json!({"amount_micros": 30_000, "memo": "Refund"});
        t.post(&operator, &format!("/operator/orgs/{org}/debits"), debit).await.expect(201);
        lend(&t, &operator, &org, 50_000, 3_600).await.expect(201);
        assert_eq!(purse(&t, &ada, &org).await, (20_000, 60_000, vec![20_000]), "{engine}");
        t.post(&ada, &after, Value::Null).await.expect(202);
        t.clock.advance_s(3_600);
        t.portal.credit_expiry.tick_credit().await.unwrap();
        assert_eq!(purse(&t, &ada, &org).await, (0, 0, vec![]), "{engine}");
        let books = t.post(&operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine} {books}");
    }
}

#[tokio::test]
async fn each_expired_credit_stays_for_the_holds_from_before_its_expiry() {
    for (engine, db, _location) in engines("expiries").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 50_000).await;
        lend(&t, &operator, &org, 100_000, 3_600).await.expect(201);
        lend(&t, &operator, &org, 100_000, 7_200).await.expect(201);
        // The first hold is from before both expiries, the second is from between them.
        for _ in 0..2 {
            t.post(&ada, &format!("/orgs/{org}/jobs"), job()).await.expect(201);
            t.clock.advance_s(3_600);
        }
        t.portal.credit_expiry.tick_credit().await.unwrap();
        assert_eq!(purse(&t, &ada, &org).await, (170_000, 120_000, vec![]), "{engine}");
        let statement = t.get(&ada, &format!("/orgs/{org}/transfers")).await.expect(200);
        let debits = statement["items"].as_array().unwrap().iter().filter(|row| row["source"] == "expiry");
        let amounts: Vec<&Value> = debits.map(|row| &row["amount_micros"]).collect();
        assert_eq!(amounts, [&json!(-40_000), &json!(-40_000)], "{engine} {statement}");
    }
}

#[tokio::test]
async fn bulk_credit_is_granted_to_all_organizations_or_none() {
    for (engine, db, _location) in engines("grants").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, lab) = t.tenant("lab").await;
        let (_, other) = t.tenant("bobs").await;
        let grant = |grants: Value| t.post(&operator, "/operator/credits", json!({ "grants": grants }));
        let one = |org: &str, micros: i64| json!({"organization": org, "amount_micros": micros, "memo": "November"});
        let done = grant(json!([one(&lab, 5_000_000), one(&other, 7_000_000)])).await.expect(201);
        assert_eq!(
            done,
            json!({"organizations": 2, "total_micros": 12_000_000, "currency": "USD"}),
            "{engine}"
        );
        let stranger = OrgId::from_uuid(uuid::Uuid::from_u128(9)).to_string();
        for (grants, pointer) in [
            (json!([]), "/grants"),
            (json!([one(&lab, 1), one(&lab, 1)]), "/grants/1/organization"),
            (json!([one(&lab, 1), one(&other, 0)]), "/grants/1/amount_micros"),
            (json!([one(&lab, 1), one(&stranger, 1)]), "/grants/1/organization"),
        ] {
            let refused = grant(grants.clone()).await.expect(422);
            assert_eq!(refused["errors"][0]["pointer"], pointer, "{engine}: {grants}");
        }
        t.post(&ada, "/operator/credits", json!({"grants": [one(&lab, 1)]})).await.expect(404);
        // The body is larger than that of most requests.
        let many = (1..=2_000).map(|n| OrgId::from_uuid(uuid::Uuid::from_u128(n)).to_string());
        let refused = grant(many.map(|org| one(&org, 1)).collect()).await.expect(422);
        assert_eq!(refused["errors"][0]["pointer"], "/grants/0/organization", "{engine}");
        for (org, micros) in [(&lab, 5_000_000), (&other, 7_000_000)] {
            let orgs = t.get(&operator, "/operator/orgs").await.expect(200);
            let found = orgs["items"].as_array().unwrap().iter().find(|o| o["org"]["id"] == **org).unwrap();
            assert_eq!(found["posted_micros"], micros, "{engine}: nothing else was granted");
        }
        let books = t.post(&operator, "/operator/reconciliation", Value::Null).await.expect(200);
        assert_eq!(books["mismatches"], json!([]), "{engine}");
    }
}

#[tokio::test]
async fn a_reservation_keeps_the_expiring_credit_of_its_hold() {
    for (engine, db, _location) in engines("lent").await {
        let mut setup = IdlePortal::on(db).await;
        setup.set_policy(json!({})).await;
        let lent = json!({"amount_micros": 4_000_000, "expires_at": setup.at(HOUR / 2)});
        setup
            .t
            .post(&setup.operator, &format!("/operator/orgs/{}/credits", setup.org), lent)
            .await
            .expect(201);
        let from = setup.at(HOUR);
        let made = setup.reserve(1, 1, from, from.plus_seconds(HOUR)).await;
        setup.let_time_pass(HOUR / 2).await;
        setup.t.portal.credit_expiry.tick_credit().await.unwrap();
        assert_eq!(
            setup.balance().await,
            (10_003_600_000, 3_600_000),
            "{engine}: what it does not hold is gone"
        );
        // The fee is half of the price; the other half returns after the expiry of its credit.
        setup.cancel(&made).await.expect(200);
        setup.t.portal.credit_expiry.tick_credit().await.unwrap();
        assert_eq!(
            setup.balance().await,
            (10_000_000_000, 0),
            "{engine}: the rest of it, and nothing else, is gone"
        );
        let mut conn = setup.t.portal.context.db.read().await.unwrap();
        let wrong = berth_store::ledger::cross_mismatches(&mut conn.tx(), setup.at(-DAY)).await.unwrap();
        assert_eq!(wrong, Vec::<String>::new(), "{engine}");
    }
}
