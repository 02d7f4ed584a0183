//! Tests of the one currency of a portal.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::common::{TestPortal, engines};
use crate::payments::PaymentSetup;
use crate::process::{ChildGuard, eventually, serve};
use berth_foundation::Settings;
use berth_store::{self as store, Db};
use serde_json::json;

/// Starts a portal with a currency, up to the check of it.
async fn keep(db: &Db, currency: &str) -> Result<(), String> {
    let currency = currency.to_owned();
    TestPortal::with(db.clone(), |settings| Settings { currency, ..settings })
        .portal
        .ledger
        .keep_currency()
        .await
}

#[tokio::test]
async fn a_portal_keeps_the_currency_in_which_money_has_moved() {
    for (engine, db, _location) in engines("currency").await {
        // Without money the currency can change.
        for currency in ["USD", "EUR", "USD"] {
            assert_eq!(keep(&db, currency).await, Ok(()), "{engine}");
            assert_eq!(read!(db, store::accounts::find_setting, "currency").as_deref(), Some(currency));
        }
        let t = TestPortal::on(db.clone());
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        assert_eq!(keep(&db, "EUR").await, Ok(()), "{engine}: an empty account has no money");
        assert_eq!(keep(&db, "USD").await, Ok(()), "{engine}");
        let credit = json!({"amount_micros": 20_000_000, "memo": "Welcome"});
        t.post(&operator, &format!("/operator/orgs/{org}/credits"), credit).await.expect(201);
        for other in ["EUR", "JPY"] {
            let refused = keep(&db, other).await.unwrap_err();
            for part in
                [format!("in USD, but --currency (BERTH_CURRENCY) is {other}"), "--currency USD".to_owned()]
            {
                assert!(refused.contains(&part), "{engine}: {refused}");
            }
        }
        assert_eq!(keep(&db, "USD").await, Ok(()), "{engine}");
        let balance = t.get(&ada, &format!("/orgs/{org}/balance")).await.expect(200);
        assert_eq!((&balance["currency"], &balance["posted_micros"]), (&json!("USD"), &json!(20_000_000)));
    }
}

#[tokio::test]
async fn an_open_payment_fixes_the_currency_too() {
    for (engine, db, _location) in engines("currency_paid").await {
        let setup = PaymentSetup::on(db.clone(), "EUR").await;
        assert_eq!(setup.t.portal.ledger.keep_currency().await, Ok(()), "{engine}");
        setup.top_up(25_000_000, false).await;
        assert!(keep(&db, "USD").await.unwrap_err().contains("--currency EUR"), "{engine}");
        assert_eq!(keep(&db, "EUR").await, Ok(()), "{engine}");
    }
}

#[tokio::test]
async fn the_first_start_stores_the_currency() {
    let dir = tempfile::tempdir().unwrap();
    drop(serve(dir.path()));
    let db = Db::existing_sqlite(&dir.path().join("berth.db")).await.unwrap();
    assert_eq!(read!(db, store::accounts::find_setting, "currency").as_deref(), Some("USD"));
}

#[tokio::test]
async fn the_program_refuses_another_currency_than_that_of_its_money() {
    let dir = tempfile::tempdir().unwrap();
    drop(serve(dir.path()));
    let t = TestPortal::on(Db::existing_sqlite(&dir.path().join("berth.db")).await.unwrap());
    let operator = t.operator().await;
    let (_, org) = t.tenant("lab").await;
    let credit = json!({"amount_micros": 20_000_000, "memo": "Welcome"});
    t.post(&operator, &format!("/operator/orgs/{org}/credits"), credit).await.expect(201);
    drop(t);
    let program = Command::new(env!("CARGO_BIN_EXE_berth-portal"))
        .args(["serve", "--listen", "127.0.0.1:0", "--worker-listen", "127.0.0.1:0", "--currency", "EUR"])
        .arg("--data")
        .arg(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut program = ChildGuard(program);
    let status = eventually(|| program.0.try_wait().unwrap().ok_or("the portal runs".to_owned()));
    let mut text = String::new();
    program.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!status.success() && text.contains("--currency USD"), "{status} {text}");
    drop(serve(dir.path()));
}
