//! Tests of the store's functions, with the same results on every engine.

use std::sync::Arc;

use crate::common::{StoreLocation, engines};
use crate::stores::session;
use berth_store::ledger::Posting;
use berth_store::usage::{Charge, UsageMode};
use berth_store::{self as store, StoreError, WriteError};
use berth_types::accounts::{Org, Role, User};
use berth_types::ids::{OrgId, TransferId, UserId};
use berth_types::ledger::TransferKind;
use berth_types::lists::ListOptions;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use sqlx::Connection;
use uuid::Uuid;

fn now() -> Timestamp {
    Timestamp::from_micros(1_795_000_000_000_000)
}

fn org(n: u128) -> Org {
    let (name, slug) = (format!("org {n}"), format!("org-{n}"));
    Org { id: OrgId::from_uuid(Uuid::from_u128(n)), name, slug, created_at: now() }
}

fn posting(n: u128, kind: TransferKind, amount_micros: i64) -> Posting {
    Posting {
        id: TransferId::from_uuid(Uuid::from_u128(n)),
        org: org(1).id,
        kind,
        amount_micros,
        pending: None,
        source: "test",
        source_id: n.to_string(),
        seq: 1,
        memo: String::new(),
        at: now(),
    }
}

async fn with_org(db: &store::Db) {
    db.write(|tx| {
        async move {
            store::accounts::insert_org(tx, &org(1)).await?;
            store::ledger::open_accounts(tx, org(1).id).await?;
            store::ledger::open_accounts(tx, org(1).id).await
        }
        .boxed()
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn accounts_sessions_and_settings_are_stored() {
    for (engine, db, _location) in engines("accounts").await {
        with_org(&db).await;
        let user = User {
            id: UserId::from_uuid(Uuid::from_u128(9)),
            email: "a@b".into(),
            name: "A".into(),
            operator: true,
        };
        let inserted = user.clone();
        db.write(move |tx| {
            let user = inserted.clone();
            async move {
                assert!(!store::accounts::operator_exists(tx).await?);
                store::accounts::insert_user(tx, &user, "hash", now()).await?;
                store::accounts::insert_member(tx, org(1).id, user.id, Role::Billing).await?;
                let new = session("s1", 1, user.id);
                store::accounts::insert_session(tx, &new, now(), now().plus_seconds(100)).await?;
                store::accounts::put_setting(tx, "k", "v1").await?;
                store::accounts::put_setting(tx, "k", "v2").await
            }
            .boxed()
        })
        .await
        .unwrap();
        let mut conn = db.read().await.unwrap();
        let mut tx = conn.tx();
        assert!(store::accounts::operator_exists(&mut tx).await.unwrap(), "{engine}");
        assert_eq!(store::accounts::find_user(&mut tx, user.id).await.unwrap(), Some(user.clone()));
        assert_eq!(
            store::accounts::find_login(&mut tx, "a@b").await.unwrap(),
            Some((user.id, "hash".to_owned()))
        );
        assert_eq!(
            store::accounts::find_role(&mut tx, org(1).id, user.id).await.unwrap(),
            Some(Role::Billing)
        );
        assert_eq!(store::accounts::find_role(&mut tx, org(2).id, user.id).await.unwrap(), None);
        assert_eq!(store::accounts::list_memberships(&mut tx, user.id).await.unwrap()[0].org, org(1));
        assert_eq!(store::accounts::list_orgs(&mut tx).await.unwrap(), [org(1)]);
        assert_eq!(store::accounts::find_setting(&mut tx, "k").await.unwrap().as_deref(), Some("v2"));
        let idle = now().plus_seconds(-50);
        for (at, found) in [(now(), true), (now().plus_seconds(100), false)] {
            let session = store::accounts::find_session(&mut tx, "s1", at, idle).await.unwrap();
            assert_eq!(session.is_some(), found, "{engine}");
        }
        assert!(store::accounts::find_session(&mut tx, "s1", now(), now()).await.unwrap().is_none());
        drop(conn);
        let again = user.clone();
        let twice = db
            .write(move |tx| {
                let user = again.clone();
                async move { store::accounts::insert_user(tx, &user, "hash", now()).await }.boxed()
            })
            .await;
        assert!(matches!(twice, Err(StoreError::Duplicate)), "{engine}: {twice:?}");
    }
}

#[tokio::test]
async fn the_ledger_balances_and_refuses_invalid_postings() {
    for (engine, db, location) in engines("ledger").await {
        with_org(&db).await;
        let post = async |p: Posting| {
            db.write(move |tx| {
                let p = p.clone();
                async move { store::ledger::post(tx, &p).await }.boxed()
            })
            .await
        };
        post(posting(1, TransferKind::Credit, 1_000)).await.unwrap();
        post(posting(2, TransferKind::Hold, 700)).await.unwrap();
        let mut conn = db.read().await.unwrap();
        let hold = store::ledger::find_hold(&mut conn.tx(), "test", "2").await.unwrap();
        assert_eq!(hold, Some(posting(2, TransferKind::Hold, 1).id), "{engine}");
        assert_eq!(store::ledger::find_hold(&mut conn.tx(), "test", "1").await.unwrap(), None, "{engine}");
        drop(conn);
        let used = Posting { pending: hold, ..posting(3, TransferKind::Usage, 250) };
        post(used.clone()).await.unwrap();
        assert!(matches!(post(used).await, Err(StoreError::Duplicate)), "{engine}");
        post(posting(4, TransferKind::Release, 450)).await.unwrap();
        assert!(
            matches!(post(posting(5, TransferKind::Hold, 751)).await, Err(StoreError::Refused)),
            "{engine}"
        );
        assert!(
            matches!(post(posting(6, TransferKind::Credit, 0)).await, Err(StoreError::Refused)),
            "{engine}"
        );
        let mut conn = db.read().await.unwrap();
        assert_eq!(store::ledger::balance(&mut conn.tx(), org(1).id).await.unwrap(), (750, 0), "{engine}");
        assert_eq!(
            store::ledger::mismatches(&mut conn.tx()).await.unwrap(),
            Vec::<String>::new(),
            "{engine}"
        );
        let rows = store::ledger::list(&mut conn.tx(), org(1).id, &ListOptions::newest(10)).await.unwrap();
        assert_eq!(
            rows.iter().map(|r| r.kind).collect::<Vec<_>>(),
            [TransferKind::Release, TransferKind::Usage, TransferKind::Hold, TransferKind::Credit]
        );
        let older = ListOptions { cursor: Some(rows[1].id), ..ListOptions::newest(10) };
        let older = store::ledger::list(&mut conn.tx(), org(1).id, &older).await.unwrap();
        assert_eq!(older.len(), 2, "{engine}");
        // The ledger cannot be changed by direct SQL either.
        for sql in ["UPDATE transfers SET amount_micros = 1", "DELETE FROM transfers"] {
            let refused = match &location {
                StoreLocation::Sqlite(dir) => {
                    use sqlx::Connection;
                    let url = format!("sqlite://{}", dir.path().join("berth.db").display());
                    sqlx::query(sql)
                        .execute(&mut sqlx::SqliteConnection::connect(&url).await.unwrap())
                        .await
                        .is_err()
                }
                StoreLocation::Postgres(url) => {
                    use sqlx::Connection;
                    sqlx::query(sql)
                        .execute(&mut sqlx::PgConnection::connect(url).await.unwrap())
                        .await
                        .is_err()
                }
            };
            assert!(refused, "{engine}: {sql}");
        }
    }
}

#[tokio::test]
async fn usage_draws_on_the_soonest_expiring_credit_that_was_valid_at_the_hold() {
    for (engine, db, _location) in engines("lots").await {
        with_org(&db).await;
        let lend = async |n: u128, amount: i64, seconds: i64| {
            db.write(move |tx| {
                async move {
                    let grant = posting(n, TransferKind::Credit, amount);
                    store::ledger::post(tx, &grant).await?;
                    store::ledger::lots::insert(tx, &grant, now().plus_seconds(seconds)).await
                }
                .boxed()
            })
            .await
            .unwrap();
        };
        let post = async |p: Posting, forced: bool| {
            db.write(move |tx| {
                let p = p.clone();
                async move {
                    if forced {
                        store::ledger::post_forced(tx, &p).await
                    } else {
                        store::ledger::post(tx, &p).await
                    }
                }
                .boxed()
            })
            .await
            .unwrap();
        };
        let left = async || {
            let mut conn = db.read().await.unwrap();
            assert_eq!(store::ledger::lots::mismatches(&mut conn.tx()).await.unwrap(), Vec::<String>::new());
            let lots = store::ledger::lots::list_live(&mut conn.tx(), org(1).id).await.unwrap();
            lots.iter().map(|row| row.left_micros).collect::<Vec<i64>>()
        };
        lend(1, 50, 100).await;
        lend(2, 60, 50).await;
        post(posting(3, TransferKind::Credit, 40), false).await;
        assert_eq!(left().await, [60, 50], "{engine}");
        let hold = |n: u128, amount: i64, seconds: i64| Posting {
            at: now().plus_seconds(seconds),
            ..posting(n, TransferKind::Hold, amount)
        };
        post(hold(4, 70, 0), false).await;
        post(hold(5, 30, 60), false).await;
        let used = |n: u128, hold_posting: Posting, amount: i64| Posting {
            pending: Some(hold_posting.id),
            at: now().plus_seconds(70),
            ..posting(n, TransferKind::Usage, amount)
        };
        post(used(6, hold(5, 30, 60), 30), false).await;
        assert_eq!(left().await, [60, 20], "{engine}: the first had expired when it was set aside");
        post(used(7, hold(4, 70, 0), 50), false).await;
        assert_eq!(left().await, [10, 20], "{engine}");
        // A refund draws on non-expiring credit first; 70 are left in all.
        post(posting(8, TransferKind::Debit, 40), true).await;
        assert_eq!(left().await, [10, 20], "{engine}");
        post(posting(9, TransferKind::Debit, 15), true).await;
        assert_eq!(left().await, [15], "{engine}");
        post(posting(10, TransferKind::Debit, 20), true).await;
        assert_eq!(left().await, Vec::<i64>::new(), "{engine}");
        // The debt of five is covered first by the next grant.
        lend(11, 30, 200).await;
        assert_eq!(left().await, [25], "{engine}");
        let mut conn = db.read().await.unwrap();
        assert_eq!(store::ledger::balance(&mut conn.tx(), org(1).id).await.unwrap(), (25, 20), "{engine}");
        assert_eq!(store::ledger::mismatches(&mut conn.tx()).await.unwrap(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_database_of_another_version_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("berth.db");
    drop(store::Db::sqlite(&file).await.unwrap());
    let mut conn = sqlx::SqliteConnection::connect(&format!("sqlite:{}", file.display())).await.unwrap();
    for sql in [
        "UPDATE _sqlx_migrations SET version = 99 WHERE version = 6",
        "UPDATE _sqlx_migrations SET checksum = x'00'",
    ] {
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
        let refused = store::Db::sqlite(&file).await.err().unwrap().to_string();
        assert!(refused.contains("belongs to another version of Berth"), "{refused}");
    }
}

#[tokio::test]
async fn a_failed_write_rolls_back_alone() {
    // Half of the writes fail, or only one; some writes panic.
    let good = |few: bool, i: u128| if few { i != 40 } else { i.is_multiple_of(2) };
    let panics = |few: bool, i: u128| if few { i == 50 } else { i % 7 == 3 };
    for (engine, db, _location) in engines("neighbours").await {
        with_org(&db).await;
        // Only the writer thread of SQLite catches a panic; on PostgreSQL it ends the task of the caller.
        if engine == "postgres" {
            continue;
        }
        for few in [false, true] {
            let writes = (0..64u128).map(|i| {
                let db = db.clone();
                async move {
                    db.write(move |tx| {
                        async move {
                            store::accounts::put_setting(tx, &format!("k{few}{i}"), "v").await?;
                            assert!(!panics(few, i), "a piece of work that panics");
                            if good(few, i) { Ok(()) } else { Err(StoreError::Refused) }
                        }
                        .boxed()
                    })
                    .await
                    .is_ok()
                }
            });
            let done = futures::future::join_all(writes).await;
            let mut conn = db.read().await.unwrap();
            for (i, ok) in (0..).zip(done) {
                let there =
                    store::accounts::find_setting(&mut conn.tx(), &format!("k{few}{i}")).await.unwrap();
                assert_eq!(ok, good(few, i) && !panics(few, i), "{engine}: k{few}{i}");
                assert_eq!(there.is_some(), ok, "{engine}: k{few}{i}");
            }
        }
    }
}

#[tokio::test]
async fn a_refused_write_leaves_nothing_and_the_writes_beside_it_stay() {
    for (engine, db, _location) in engines("refused").await {
        let refused = |n: u32| n % 3 == 1;
        let writes = (0..60u32).map(|n| {
            let db = db.clone();
            tokio::spawn(async move {
                db.try_write(move |tx| {
                    async move {
                        store::accounts::put_setting(tx, &format!("r{n}"), "1").await?;
                        if refused(n) {
                            return Err(Problem::not_found().into());
                        }
                        store::accounts::put_setting(tx, &format!("s{n}"), "1").await?;
                        Ok(())
                    }
                    .boxed()
                })
                .await
            })
        });
        for (n, done) in (0..).zip(futures::future::join_all(writes).await) {
            match done.unwrap() {
                Ok(()) => assert!(!refused(n), "{engine}: {n}"),
                Err(WriteError::Refused(problem)) => assert!(refused(n) && problem.status == 404),
                Err(WriteError::Store(error)) => panic!("{engine}: {n}: {error}"),
            }
            let mut conn = db.read().await.unwrap();
            for key in ["r", "s"] {
                let found =
                    store::accounts::find_setting(&mut conn.tx(), &format!("{key}{n}")).await.unwrap();
                assert_eq!(found.is_some(), !refused(n), "{engine}: {key}{n}");
            }
        }
    }
}

#[tokio::test]
async fn concurrent_holds_never_exceed_the_credit() {
    for (engine, db, _location) in engines("holds").await {
        with_org(&db).await;
        db.write(|tx| {
            async move { store::ledger::post(tx, &posting(1, TransferKind::Credit, 100)).await }.boxed()
        })
        .await
        .unwrap();
        let holds = (2..202u128).map(|n| {
            let db = db.clone();
            tokio::spawn(async move {
                loop {
                    let held = db
                        .write(move |tx| {
                            async move { store::ledger::post(tx, &posting(n, TransferKind::Hold, 5)).await }
                                .boxed()
                        })
                        .await;
                    match held {
                        Ok(()) => return true,
                        Err(StoreError::Refused) => return false,
                        Err(StoreError::Contended) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        });
        let accepted =
            futures::future::join_all(holds).await.into_iter().filter(|r| *r.as_ref().unwrap()).count();
        assert_eq!(accepted, 20, "{engine}");
        let mut conn = db.read().await.unwrap();
        assert_eq!(store::ledger::balance(&mut conn.tx(), org(1).id).await.unwrap(), (100, 100), "{engine}");
        assert!(store::ledger::mismatches(&mut conn.tx()).await.unwrap().is_empty(), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_conflicting_writes_all_succeed() {
    const ORGS: u128 = 1_000;
    for (engine, db, _location) in engines("patience").await {
        db.write(|tx| {
            async move {
                for n in 0..ORGS {
                    store::accounts::insert_org(tx, &org(n + 1)).await?;
                    store::ledger::open_accounts(tx, org(n + 1).id).await?;
                }
                Ok(())
            }
            .boxed()
        })
        .await
        .unwrap();
        // Each write changes every account, so all but one of the concurrent writes must retry.
        let bulks = (0..4u128).map(|task| {
            let db = db.clone();
            tokio::spawn(async move {
                for round in 0..10u128 {
                    let id = |n: u128| 100_000_000 * (task + 1) + 10_000 * round + n;
                    let credit =
                        |n: u128| Posting { org: org(n + 1).id, ..posting(id(n), TransferKind::Credit, 1) };
                    let rows: Arc<[Posting]> = (0..ORGS).map(credit).collect();
                    db.write(move |tx| {
                        let rows = rows.clone();
                        async move { store::ledger::post_credits(tx, &rows).await }.boxed()
                    })
                    .await?;
                }
                Ok::<_, StoreError>(())
            })
        });
        for bulk in futures::future::join_all(bulks).await {
            bulk.unwrap().unwrap_or_else(|error| panic!("{engine}: {error}"));
        }
        let mut conn = db.read().await.unwrap();
        for n in [1, ORGS] {
            assert_eq!(store::ledger::balance(&mut conn.tx(), org(n).id).await.unwrap(), (40, 0), "{engine}");
        }
    }
}

#[tokio::test]
async fn usage_is_summed_by_day_and_one_more_key() {
    for (engine, db, _location) in engines("usage").await {
        with_org(&db).await;
        for (day, offering, mode, member, cost_micros) in [
            (10, "off-b", UsageMode::Reserved, "bob", 1),
            (10, "off-a", UsageMode::OnDemand, "ada", 2),
            (10, "off-a", UsageMode::OnDemand, "bob", 4),
            (10, "off-a", UsageMode::OnDemand, "bob", 8),
            (11, "off-a", UsageMode::OnDemand, "ada", 16),
            (12, "off-a", UsageMode::OnDemand, "ada", 32),
        ] {
            db.write(move |tx| {
                async move {
                    let charged = Charge {
                        org: org(1).id,
                        day,
                        offering,
                        mode,
                        member,
                        price_version: 0,
                        surcharge_basis_points: 0,
                        device_milli_ms: 1_000 * cost_micros,
                        cost_micros,
                        labels: Vec::new(),
                    };
                    store::usage::add_charge(tx, &charged).await
                }
                .boxed()
            })
            .await
            .unwrap();
        }
        let mut conn = db.read().await.unwrap();
        for (key, expected) in [
            ("", vec![(10, "", 15), (11, "", 16)]),
            ("offering", vec![(10, "off-a", 14), (10, "off-b", 1), (11, "off-a", 16)]),
            ("mode", vec![(10, "on_demand", 14), (10, "reserved", 1), (11, "on_demand", 16)]),
            ("member", vec![(10, "ada", 2), (10, "bob", 13), (11, "ada", 16)]),
        ] {
            let sums = store::usage::by_day(&mut conn.tx(), org(1).id, (10, 11), key).await.unwrap();
            let row = |(day, key, n): (i64, &str, i64)| (day, key.to_owned(), 1_000 * n, n);
            let expected: Vec<_> = expected.into_iter().map(row).collect();
            assert_eq!(sums, expected, "{engine} {key}");
        }
    }
}
