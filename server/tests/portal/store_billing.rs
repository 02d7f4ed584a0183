//! Tests of the stored charges of many organizations, on every engine.

use crate::common::engines;
use crate::stores::{later, now, write};
use berth_store as store;
use berth_store::invoices::StoredLine;
use berth_store::ledger::Posting;
use berth_store::usage::{Charge, UsageMode};
use berth_types::accounts::Org;
use berth_types::ids::{OrgId, TransferId};
use berth_types::ledger::TransferKind;
use berth_types::time::Timestamp;
use futures::FutureExt;
use uuid::Uuid;

fn org(n: u128) -> OrgId {
    OrgId::from_uuid(Uuid::from_u128(n))
}

fn credit(id: u128, to: u128, source: &'static str, amount_micros: i64, at: Timestamp) -> Posting {
    Posting {
        id: TransferId::from_uuid(Uuid::from_u128(id)),
        org: org(to),
        kind: TransferKind::Credit,
        amount_micros,
        pending: None,
        source,
        source_id: id.to_string(),
        seq: 1,
        memo: "credit".to_owned(),
        at,
    }
}

fn charge(n: u128, day: i64, mode: UsageMode, cost_micros: i64) -> Charge<'static> {
    Charge {
        org: org(n),
        day,
        offering: "off-a",
        mode,
        member: "ada",
        price_version: 0,
        surcharge_basis_points: 0,
        labels: Vec::new(),
        device_milli_ms: cost_micros * 1_000,
        cost_micros,
    }
}

fn line(n: u128, mode: &str, amount_micros: i64) -> StoredLine {
    StoredLine {
        org_id: org(n),
        item: "off-a".to_owned(),
        mode: mode.to_owned(),
        unit_nano_per_second: None,
        surcharge_basis_points: 0,
        device_milli_ms: amount_micros * 1_000,
        amount_micros,
    }
}

#[tokio::test]
async fn the_charges_of_a_month_are_summed_for_each_organization() {
    for (engine, db, _location) in engines("billing_sums").await {
        write(&db, |tx| {
            async move {
                for n in 1..=3 {
                    let (name, slug) = (format!("org {n}"), format!("org-{n}"));
                    let new = Org { id: org(n), name, slug, created_at: now() };
                    store::accounts::insert_org(tx, &new).await?;
                    store::ledger::open_accounts(tx, org(n)).await?;
                }
                for posting in [
                    credit(10, 1, "reservation", 5, now()),
                    credit(11, 1, "reservation", 7, later(99)),
                    credit(12, 1, "evidence", 2, now()),
                    credit(13, 2, "evidence", 3, now()),
                    credit(14, 2, "grant", 100, now()),
                    credit(15, 2, "reservation", 9, later(100)),
                    credit(16, 3, "reservation", 1, now()),
                ] {
                    store::ledger::post(tx, &posting).await?;
                }
                for charged in [
                    charge(1, 10, UsageMode::OnDemand, 4),
                    charge(1, 11, UsageMode::OnDemand, 6),
                    Charge { surcharge_basis_points: 1_000, ..charge(1, 11, UsageMode::OnDemand, 3) },
                    Charge { surcharge_basis_points: 1_000, ..charge(1, 11, UsageMode::OnDemand, 4) },
                    charge(1, 10, UsageMode::Reserved, 1),
                    charge(2, 11, UsageMode::OnDemand, 8),
                    charge(2, 12, UsageMode::OnDemand, 20),
                    charge(3, 10, UsageMode::OnDemand, 50),
                ] {
                    store::usage::add_charge(tx, &charged).await?;
                }
                store::ledger::set_credit_limit(tx, org(2), 1).await
            }
            .boxed()
        })
        .await;
        let orgs = [org(1), org(2)];
        let lines = read!(db, store::invoices::list_lines, &orgs, (10, 11));
        let surcharged = StoredLine { surcharge_basis_points: 1_000, ..line(1, "on_demand", 7) };
        let expected =
            [line(1, "on_demand", 10), surcharged, line(1, "reserved", 1), line(2, "on_demand", 8)];
        assert_eq!(lines, expected, "{engine}");
        let mut given_back = read!(db, store::invoices::list_given_back, &orgs, (now(), later(100)));
        given_back.sort();
        let expected = [(1, "evidence", 2), (1, "reservation", 12), (2, "evidence", 3)]
            .map(|(n, source, micros)| (org(n), source.to_owned(), micros));
        assert_eq!(given_back, expected, "{engine}");
        assert_eq!(read!(db, store::ledger::list_with_credit_limit, &orgs), [org(2)], "{engine}");
        for (kind, source, id, seq, expected) in [
            (TransferKind::Credit, "reservation", "10", 1, true),
            (TransferKind::Credit, "reservation", "10", 2, false),
            (TransferKind::Credit, "reservation", "12", 1, false),
            (TransferKind::Hold, "reservation", "10", 1, false),
        ] {
            let posted = read!(db, store::ledger::is_posted, (kind, source, id, seq));
            assert_eq!(posted, expected, "{engine}: {kind:?} {source} {id} {seq}");
        }
    }
}
