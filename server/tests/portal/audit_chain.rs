//! Tests of the chain of the audit log, of its checkpoints and of its verification.

use std::ops::Range;
use std::path::PathBuf;

use berth_foundation::audit_check::{Fault, verify};
use berth_foundation::audit_key::{AuditKey, LastCheckpoint};
use berth_store::audit::{Checkpoint, StoredEvent};
use berth_store::{self as store, Db};
use berth_types::ids::{AuditEventId, OrgId, RequestId, TokenId, UserId};
use berth_types::quotas::{AuditContext, AuditEvent};
use berth_types::time::Timestamp;
use futures::FutureExt;
use futures::future::join_all;
use sqlx::{AssertSqlSafe, Connection};
use uuid::Uuid;

use crate::common::{StoreLocation, TestPortal, engines};

fn event(n: u128) -> AuditEvent {
    let id = Uuid::from_u128(n);
    AuditEvent {
        id: AuditEventId::from_uuid(id),
        at: Timestamp::from_micros(1_795_000_000_000_000),
        actor: "Ada".to_owned(),
        action: "quota.set".to_owned(),
        subject: "default".to_owned(),
        detail: "limits".to_owned(),
        context: AuditContext {
            actor_id: Some(UserId::from_uuid(id)),
            token_id: Some(TokenId::from_uuid(id)),
            session: Some("session".to_owned()),
            address: Some("192.0.2.7".to_owned()),
            request_id: Some(RequestId::from_uuid(id)),
            before: Some("{}".to_owned()),
            after: Some("{\"queued_jobs\":5}".to_owned()),
            ..AuditContext::default()
        },
    }
}

/// Writes these events of one organization, ten in each transaction and all transactions at once.
pub async fn append(db: &Db, numbers: Range<u128>) {
    let numbers: Vec<u128> = numbers.collect();
    let writes = numbers.chunks(10).map(|numbers| {
        let numbers = numbers.to_vec();
        db.write(move |tx| {
            let numbers = numbers.clone();
            async move {
                for n in numbers {
                    store::quotas::insert_audit(tx, Some(OrgId::from_uuid(Uuid::from_u128(1))), &event(n))
                        .await?;
                }
                Ok(())
            }
            .boxed()
        })
    });
    for done in join_all(writes).await {
        done.unwrap();
    }
}

/// Runs a statement beside the portal.
async fn run(location: &StoreLocation, sql: &str) -> Result<u64, sqlx::Error> {
    let sql = AssertSqlSafe(sql.to_owned());
    match location {
        StoreLocation::Sqlite(dir) => {
            let url = format!("sqlite://{}", dir.path().join("berth.db").display());
            let mut raw = sqlx::SqliteConnection::connect(&url).await?;
            Ok(sqlx::query(sql).execute(&mut raw).await?.rows_affected())
        }
        StoreLocation::Postgres(url) => {
            let mut raw = sqlx::PgConnection::connect(url).await?;
            Ok(sqlx::query(sql).execute(&mut raw).await?.rows_affected())
        }
    }
}

/// Removes the triggers of the audit log, as a person with all rights in the database can.
async fn remove_triggers(location: &StoreLocation) {
    let triggers: &[(&str, &str)] = match location {
        StoreLocation::Sqlite(_) => &[
            ("audit_events_no_update", ""),
            ("audit_events_no_delete", ""),
            ("audit_head_no_return", ""),
            ("audit_checkpoints_no_update", ""),
            ("audit_checkpoints_no_delete", ""),
        ],
        StoreLocation::Postgres(_) => &[
            ("audit_events_immutable", " ON audit_events"),
            ("audit_events_no_delete", " ON audit_events"),
            ("audit_head_no_return", " ON audit_head"),
            ("audit_checkpoints_immutable", " ON audit_checkpoints"),
        ],
    };
    for (name, table) in triggers {
        run(location, &format!("DROP TRIGGER {name}{table}")).await.unwrap();
    }
}

/// A log of 110 events with checkpoints at 50 and 100.
struct Log {
    engine: &'static str,
    db: Db,
    location: StoreLocation,
    t: TestPortal,
}

impl Log {
    async fn all(name: &str) -> Vec<Self> {
        let mut logs = Vec::new();
        for (engine, db, location) in engines(name).await {
            let t = TestPortal::on(db.clone());
            append(&db, 1..51).await;
            t.portal.audit_log.sign().await.unwrap();
            append(&db, 51..101).await;
            t.portal.audit_log.sign().await.unwrap();
            // Without new events there is no new checkpoint.
            t.portal.audit_log.sign().await.unwrap();
            append(&db, 101..111).await;
            logs.push(Self { engine, db, location, t });
        }
        logs
    }

    fn file(&self, name: &str) -> PathBuf {
        self.t.data.path().join(name)
    }

    async fn fault_from(&self, from: i64, with_last: bool) -> Option<Fault> {
        let key = AuditKey::read(&self.file(AuditKey::FILE)).unwrap();
        let last = LastCheckpoint::find(&self.file(LastCheckpoint::FILE)).unwrap();
        let last = last.as_ref().filter(|_| with_last);
        verify(&self.db, &key, last, from).await.unwrap().fault
    }

    async fn fault(&self) -> Option<Fault> {
        self.fault_from(1, true).await
    }

    /// The place and the description of the fault, which exists.
    async fn place(&self) -> (i64, String) {
        let fault = self.fault().await.unwrap();
        (fault.seq, fault.difference)
    }

    async fn run(&self, sql: &str) {
        assert!(run(&self.location, sql).await.unwrap() > 0, "{}: {sql}", self.engine);
    }

    async fn rows(&self, from: i64) -> Vec<StoredEvent> {
        store::audit::list_from(&mut self.db.read().await.unwrap().tx(), from, 1_000).await.unwrap()
    }

    async fn checkpoints(&self) -> Vec<Checkpoint> {
        store::audit::list_checkpoints(&mut self.db.read().await.unwrap().tx(), 0, 1_000).await.unwrap()
    }
}

/// The columns of a row with their values; `at` and `seq` are numbers.
fn columns(row: &StoredEvent) -> Vec<(&'static str, String)> {
    let text = |value: &Option<String>| value.clone().unwrap();
    vec![
        ("id", row.id.clone()),
        ("seq", row.seq.unwrap().to_string()),
        ("hash", text(&row.hash)),
        ("org_id", row.org_id.clone()),
        ("at", row.at.to_string()),
        ("actor", row.actor.clone()),
        ("action", row.action.clone()),
        ("subject", row.subject.clone()),
        ("detail", row.detail.clone()),
        ("actor_id", text(&row.actor_id)),
        ("token_id", text(&row.token_id)),
        ("session", text(&row.session)),
        ("address", text(&row.address)),
        ("request_id", text(&row.request_id)),
        ("before_json", text(&row.before_json)),
        ("after_json", text(&row.after_json)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_events_have_numbers_without_gaps_and_an_intact_chain() {
    for log in Log::all("audit_chain").await {
        assert_eq!(log.fault().await, None, "{}", log.engine);
        let rows = log.rows(1).await;
        let numbers: Vec<Option<i64>> = rows.iter().map(|row| row.seq).collect();
        assert_eq!(numbers, (1..=110).map(Some).collect::<Vec<_>>(), "{}", log.engine);
        let ends: Vec<i64> = log.checkpoints().await.iter().map(|checkpoint| checkpoint.seq).collect();
        assert_eq!(ends, [50, 100], "{}", log.engine);
        // The database itself refuses a change.
        for sql in [
            "UPDATE audit_events SET detail = 'other' WHERE seq = 5",
            "DELETE FROM audit_events WHERE seq = 5",
            "UPDATE audit_head SET seq = 1",
            "UPDATE audit_checkpoints SET seq = 1 WHERE number = 1",
            "DELETE FROM audit_checkpoints",
        ] {
            assert!(run(&log.location, sql).await.is_err(), "{}: {sql}", log.engine);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_byte_in_any_column_is_found_at_its_row() {
    for log in Log::all("audit_bytes").await {
        remove_triggers(&log.location).await;
        let row = log.rows(20).await.remove(0);
        for (column, value) in columns(&row) {
            let mut bytes = value.clone().into_bytes();
            bytes[0] ^= 1;
            let changed = String::from_utf8(bytes).unwrap();
            // A number of another row would be refused as a duplicate.
            let changed = if column == "seq" { "20000".to_owned() } else { changed };
            let condition = if column == "hash" {
                "seq = 20".to_owned()
            } else {
                format!("hash = '{}'", row.hash.as_ref().unwrap())
            };
            log.run(&format!("UPDATE audit_events SET {column} = '{changed}' WHERE {condition}")).await;
            let fault = log.fault().await.unwrap();
            assert_eq!(fault.seq, 20, "{} {column}: {fault:?}", log.engine);
            let expected = match column {
                "seq" => "the row is missing",
                "hash" => "the hash was changed",
                _ => "the content was changed",
            };
            assert!(fault.difference.contains(expected), "{} {column}: {fault:?}", log.engine);
            let id = match column {
                "seq" => "",
                "id" => &changed,
                _ => &row.id,
            };
            assert_eq!(fault.id, id, "{} {column}", log.engine);
            // A verification of later events trusts the hash before them.
            if column != "seq" && column != "hash" {
                assert_eq!(log.fault_from(60, true).await, None, "{} {column}", log.engine);
            }
            log.run(&format!("UPDATE audit_events SET {column} = '{value}' WHERE {column} = '{changed}'"))
                .await;
        }
        assert_eq!(log.fault().await, None, "{}", log.engine);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_row_a_cut_end_and_a_missing_checkpoint_are_found() {
    for log in Log::all("audit_cut").await {
        remove_triggers(&log.location).await;
        let engine = log.engine;
        let checkpoints = log.checkpoints().await;
        let restore = |number: usize| {
            let Checkpoint { number, seq, hash, at, signature } = &checkpoints[number - 1];
            format!("INSERT INTO audit_checkpoints VALUES ({number}, {seq}, '{hash}', {at}, '{signature}')")
        };
        log.run("DELETE FROM audit_checkpoints WHERE number = 1").await;
        assert_eq!(log.place().await, (100, "checkpoint 1 is missing".to_owned()), "{engine}");
        log.run(&restore(1)).await;
        log.run("DELETE FROM audit_checkpoints WHERE number = 2").await;
        assert_eq!(log.place().await, (100, "checkpoint 2 is missing".to_owned()), "{engine}");
        assert_eq!(log.fault_from(1, false).await, None, "{engine}: only the file knows the last one");
        log.run(&restore(2)).await;
        log.run("UPDATE audit_checkpoints SET at = at + 1 WHERE number = 1").await;
        let (seq, difference) = log.place().await;
        assert!(seq == 50 && difference.contains("signature of checkpoint 1"), "{engine}: {difference}");
        log.run("UPDATE audit_checkpoints SET at = at - 1 WHERE number = 1").await;
        assert_eq!(log.fault().await, None, "{engine}");

        assert_eq!(log.fault_from(111, true).await, None, "{engine}");
        let beyond = log.fault_from(112, true).await.unwrap();
        assert!(beyond.difference.contains("the log ends at event 110"), "{engine}: {beyond:?}");

        log.run("DELETE FROM audit_events WHERE seq > 108").await;
        let cut = log.fault_from(111, true).await.unwrap();
        assert_eq!((cut.seq, cut.difference.as_str()), (110, "the row is missing"), "{engine}");
        let (seq, difference) = log.place().await;
        assert!(seq == 109 && difference.contains("it has 110 events"), "{engine}: {difference}");
        // The head is cut too: the last checkpoint remains.
        log.run("DELETE FROM audit_events WHERE seq > 90").await;
        let end = log.rows(90).await.remove(0).hash.unwrap();
        log.run(&format!("UPDATE audit_head SET seq = 90, hash = '{end}'")).await;
        let (seq, difference) = log.place().await;
        assert!(seq == 91 && difference.contains("checkpoint 2"), "{engine}: {difference}");
        for with_last in [true, false] {
            let cut = log.fault_from(100, with_last).await.unwrap();
            assert_eq!((cut.seq, cut.difference.as_str()), (99, "the row is missing"), "{engine}");
        }
        log.run("DELETE FROM audit_events WHERE seq = 30").await;
        assert_eq!(log.place().await, (30, "the row is missing".to_owned()), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_portal_signs_nothing_after_a_cut_of_its_last_checkpoint() {
    for log in Log::all("audit_resign").await {
        remove_triggers(&log.location).await;
        let (engine, audit_log) = (log.engine, &log.t.portal.audit_log);
        let last = std::fs::read(log.file(LastCheckpoint::FILE)).unwrap();
        log.run("DELETE FROM audit_events WHERE seq > 50").await;
        log.run("DELETE FROM audit_checkpoints WHERE number = 2").await;
        let end = log.rows(50).await.remove(0).hash.unwrap();
        log.run(&format!("UPDATE audit_head SET seq = 50, hash = '{end}'")).await;
        let refused = audit_log.sign().await.unwrap_err();
        assert!(refused.contains("checkpoint 2") && refused.contains("audit.last"), "{engine}: {refused}");
        assert_eq!(log.place().await, (100, "checkpoint 2 is missing".to_owned()), "{engine}");

        // New events do not replace the missing checkpoint.
        append(&log.db, 111..121).await;
        assert!(audit_log.sign().await.is_err(), "{engine}");
        assert_eq!(log.checkpoints().await.len(), 1, "{engine}");
        log.run("DELETE FROM audit_checkpoints").await;
        assert!(audit_log.sign().await.is_err(), "{engine}: the numbers do not begin again");
        assert_eq!(log.checkpoints().await, [], "{engine}");
        assert_eq!(std::fs::read(log.file(LastCheckpoint::FILE)).unwrap(), last, "{engine}");
        assert_eq!(log.place().await, (100, "checkpoint 2 is missing".to_owned()), "{engine}");

        // The operator accepts a restored backup.
        std::fs::remove_file(log.file(LastCheckpoint::FILE)).unwrap();
        audit_log.sign().await.unwrap();
        assert_eq!((log.checkpoints().await.len(), log.fault().await), (1, None), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_are_written_anew_differ_from_their_checkpoint() {
    for log in Log::all("audit_anew").await {
        remove_triggers(&log.location).await;
        let mut hash = log.rows(19).await.remove(0).hash.unwrap();
        for (seq, mut row) in (20..).zip(log.rows(20).await) {
            if seq == 20 {
                row.detail = "nothing".to_owned();
            }
            hash = row.hash_after(&hash, seq);
            let detail = &row.detail;
            log.run(&format!(
                "UPDATE audit_events SET detail = '{detail}', hash = '{hash}' WHERE seq = {seq}"
            ))
            .await;
        }
        log.run(&format!("UPDATE audit_head SET hash = '{hash}'")).await;
        let (seq, difference) = log.place().await;
        assert!(seq == 50 && difference.contains("checkpoint 1"), "{}: {seq} {difference}", log.engine);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_earlier_versions_are_chained_once() {
    for (engine, db, location) in engines("audit_old").await {
        let old: Vec<String> = (1..=501)
            .map(|n| format!("('aud_{n:026}', '', {n}, 'Ada', 'quota.set', 'default', 'old')"))
            .collect();
        let sql = format!(
            "INSERT INTO audit_events (id, org_id, at, actor, action, subject, detail) VALUES {}",
            old.join(", ")
        );
        run(&location, &sql).await.unwrap();
        let t = TestPortal::on(db.clone());
        let key = t.portal.audit_log.key().unwrap();
        let fault = verify(&db, &key, None, 1).await.unwrap().fault.unwrap();
        assert_eq!(fault.difference, "the row has no number", "{engine}");
        let changed = run(&location, "UPDATE audit_events SET seq = 1, detail = 'new' WHERE at = 1").await;
        assert!(changed.is_err(), "{engine}: the place in the chain is the only change");
        for _ in 0..2 {
            db.chain_audit_events().await.unwrap();
            let report = verify(&db, &key, None, 1).await.unwrap();
            assert_eq!((report.events, report.fault), (501, None), "{engine}");
        }
        append(&db, 1_000..1_020).await;
        assert_eq!(verify(&db, &key, None, 1).await.unwrap().events, 521, "{engine}");
    }
}

#[tokio::test]
async fn the_program_verifies_the_log_and_fails_at_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let db = crate::common::new_sqlite(&dir.path().join("berth.db")).await;
    let t = TestPortal::with(db.clone(), |settings| berth_foundation::Settings {
        data: dir.path().to_owned(),
        ..settings
    });
    append(&db, 1..31).await;
    t.portal.audit_log.sign().await.unwrap();
    let data = dir.path().to_owned();
    let run_program = |from: &'static str| {
        let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_berth-portal"));
        program.args(["audit", "verify", "--from", from, "--data"]).arg(&data);
        async move { program.output().await.unwrap() }
    };
    let done = run_program("1").await;
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && text.contains("Events: 30, checkpoints: 1"), "{text}");
    let location = StoreLocation::Sqlite(dir);
    remove_triggers(&location).await;
    run(&location, "UPDATE audit_events SET detail = 'other' WHERE seq = 7").await.unwrap();
    let done = run_program("1").await;
    let text = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{text}");
    assert!(text.contains("event 7 (aud_") && text.contains("the content was changed"), "{text}");
    assert!(run_program("8").await.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_verifies_only_an_existing_database_of_its_version() {
    let verify_in = async |data: &std::path::Path, database: Option<&str>| {
        let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_berth-portal"));
        program.args(["audit", "verify", "--data"]).arg(data);
        if let Some(url) = database {
            program.args(["--database", url]);
        }
        let done = program.output().await.unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    let empty = tempfile::tempdir().unwrap();
    let absent = empty.path().join("absent");
    for data in [empty.path(), absent.as_path()] {
        let (code, text) = verify_in(data, None).await;
        assert!(code == Some(1) && text.contains("berth.db does not exist"), "{text}");
    }
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0, "nothing was created");

    for (engine, db, location) in engines("audit_older").await {
        drop(db);
        let last = "DELETE FROM _sqlx_migrations WHERE version = (SELECT MAX(version) FROM _sqlx_migrations)";
        assert_eq!(run(&location, last).await.unwrap(), 1, "{engine}");
        let (code, text) = match &location {
            StoreLocation::Sqlite(dir) => verify_in(dir.path(), None).await,
            StoreLocation::Postgres(url) => verify_in(empty.path(), Some(url.as_str())).await,
        };
        assert!(code == Some(1) && text.contains("schema of this version"), "{engine}: {text}");
    }
}
