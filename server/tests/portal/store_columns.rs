//! Tests of the schema: the names in its columns, its indexes, and the errors of corrupt rows.

use std::collections::BTreeMap;

use crate::common::{StoreLocation, engines};
use crate::fleet::{job, now, org, with_jobs, write};
use berth_service_types::revisions::RevisionState;
use berth_service_types::services::{ServiceAccess, ServiceProtocol, ServiceState};
use berth_store::payments::{PaymentKind, StoredPayment};
use berth_store::people::LinkPurpose;
use berth_store::types::JsonColumn;
use berth_store::usage::UsageMode;
use berth_store::webhooks::{Channel, StoredWebhook};
use berth_store::{self as store, StoreError};
use berth_types::accounts::{Role, User};
use berth_types::budgets::AtLimit;
use berth_types::change_requests::{ChangeAction, ChangeState};
use berth_types::events::JobEvent;
use berth_types::files::{FileKind, FileState};
use berth_types::health::GpuTaskKind;
use berth_types::ids::{PaymentId, UserId, WebhookId};
use berth_types::invoices::{InvoiceKind, InvoiceState};
use berth_types::jobs::{JobState, Topology};
use berth_types::ledger::TransferKind;
use berth_types::lists::ListOptions;
use berth_types::operations::AuditDestinationKind;
use berth_types::payments::PaymentState;
use berth_types::quotas::{Limits, QuotaRequestState};
use berth_types::reservations::ReservationState;
use berth_types::volumes::BlobKind;
use berth_types::webhooks::DeliveryState;
use futures::FutureExt;
use sqlx::{AssertSqlSafe, Connection, Row};
use uuid::Uuid;

const MIGRATIONS: [&str; 23] = [
    include_str!("../../../migrations/0001_accounts.sql"),
    include_str!("../../../migrations/0002_billing.sql"),
    include_str!("../../../migrations/0003_notifications.sql"),
    include_str!("../../../migrations/0004_nodes.sql"),
    include_str!("../../../migrations/0005_jobs.sql"),
    include_str!("../../../migrations/0006_storage.sql"),
    include_str!("../../../migrations/0007_tokens.sql"),
    include_str!("../../../migrations/0008_people.sql"),
    include_str!("../../../migrations/0009_audit.sql"),
    include_str!("../../../migrations/0010_nodes.sql"),
    include_str!("../../../migrations/0011_factors.sql"),
    include_str!("../../../migrations/0012_retention.sql"),
    include_str!("../../../migrations/0013_tokens.sql"),
    include_str!("../../../migrations/0014_audit_push.sql"),
    include_str!("../../../migrations/0015_dedicated.sql"),
    include_str!("../../../migrations/0016_sso.sql"),
    include_str!("../../../migrations/0017_passkeys.sql"),
    include_str!("../../../migrations/0019_change_requests.sql"),
    include_str!("../../../migrations/0022_invoice_details.sql"),
    include_str!("../../../migrations/0024_operator_changes.sql"),
    include_str!("../../../migrations/0033_services.sql"),
    include_str!("../../../migrations/0035_promises.sql"),
    include_str!("../../../migrations/0048_price_withdrawals.sql"),
];

/// Names of columns for one of a few values.
const NAMED: [&str; 9] =
    ["role", "kind", "state", "mode", "at_limit", "channel", "topology", "task_kind", "stop_cause"];
/// Such columns without a fixed list: families of notices, and events of Stripe.
const OPEN: [&str; 2] = ["notices.kind", "stripe_events.kind"];

/// The migration that replaces the column `gpus.task_kind`.
const TASK_KINDS: &str = include_str!("../../../migrations/0028_reset.sql");

/// Returns the sorted names in a list after ` IN (`.
fn names_in(list: &'static str) -> Vec<&'static str> {
    let list = list.split_once(')').unwrap().0;
    let mut names: Vec<&str> = list.split(',').map(|name| name.trim().trim_matches('\'')).collect();
    names.sort_unstable();
    names
}

/// Returns the sorted names in the CHECK of each column with a list of names.
fn checked_names() -> BTreeMap<String, Vec<&'static str>> {
    let mut found = BTreeMap::new();
    for table in MIGRATIONS.into_iter().flat_map(|text| text.split("CREATE TABLE ").skip(1)) {
        let (table, columns) = table.split_once(" (\n").unwrap();
        // A later migration replaces a table.
        found.retain(|column: &String, _| column.split_once('.').is_none_or(|(name, _)| name != table));
        let columns = columns.split_once("\n);").unwrap().0;
        for check in columns.split("CHECK (").skip(1) {
            let Some((column, list)) = check.split_once(" IN (") else { continue };
            let before = found.insert(format!("{table}.{column}"), names_in(list));
            assert!(before.is_none(), "{table}.{column}");
        }
        for column in columns.lines().filter_map(|line| line.trim().split_once(" TEXT")) {
            let name = format!("{table}.{}", column.0);
            let is_checked = found.contains_key(&name) || OPEN.contains(&name.as_str());
            assert!(!NAMED.contains(&column.0) || is_checked, "{name} accepts every text");
        }
    }
    found.insert("gpus.task_kind".to_owned(), names_in(TASK_KINDS.split_once(" IN (").unwrap().1));
    found
}

fn names<T: Copy>(all: &[T], name: fn(T) -> &'static str) -> Vec<&'static str> {
    let mut names: Vec<&str> = all.iter().map(|value| name(*value)).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_column_accepts_the_names_of_its_type_alone() {
    let roles = names(&Role::ALL, Role::name);
    let states = names(&JobState::ALL, JobState::name);
    let tasks = [GpuTaskKind::Check, GpuTaskKind::MigOn, GpuTaskKind::MigOff, GpuTaskKind::Reset];
    let blobs = [BlobKind::Upload, BlobKind::File, BlobKind::Listing];
    let blob_states = [FileState::Partial, FileState::Complete, FileState::Gone];
    let file_states = [FileState::Partial, FileState::Complete, FileState::Refused, FileState::Gone];
    let stops = ["cancelled", "drained", "halted", "idle", "preempted", "rank_failed", "timed_out"];
    let expected = [
        ("audit_marks.destination", names(&AuditDestinationKind::ALL, AuditDestinationKind::name)),
        ("members.role", roles.clone()),
        ("sso_providers.default_role", roles.clone()),
        ("invitations.role", roles.clone()),
        ("tokens.role", roles),
        ("service_accounts.role", names(&[Role::Billing, Role::Member, Role::Viewer], Role::name)),
        ("mail_links.purpose", names(&LinkPurpose::ALL, LinkPurpose::name)),
        ("transfers.kind", names(&TransferKind::ALL, TransferKind::name)),
        ("usage_days.mode", names(&UsageMode::ALL, UsageMode::name)),
        ("change_requests.action", names(&ChangeAction::ALL, ChangeAction::name)),
        ("change_requests.state", names(&ChangeState::ALL, ChangeState::name)),
        ("quota_requests.state", names(&QuotaRequestState::ALL, QuotaRequestState::name)),
        ("budgets.at_limit", names(&AtLimit::ALL, AtLimit::name)),
        ("invoices.kind", names(&InvoiceKind::ALL, InvoiceKind::name)),
        ("invoices.state", names(&InvoiceState::ALL, InvoiceState::name)),
        ("payments.kind", names(&PaymentKind::ALL, PaymentKind::name)),
        ("payments.state", names(&PaymentState::ALL, PaymentState::name)),
        ("deliveries.channel", names(&Channel::ALL, Channel::name)),
        ("deliveries.state", names(&DeliveryState::ALL, DeliveryState::name)),
        ("gpus.task_kind", names(&tasks, GpuTaskKind::name)),
        ("reservations.state", names(&ReservationState::ALL, ReservationState::name)),
        ("reservations.topology", names(&Topology::ALL, Topology::name)),
        ("jobs.state", states.clone()),
        ("jobs.stop_cause", stops.to_vec()),
        ("job_events.state", states),
        ("job_files.kind", names(&[FileKind::Checkpoint, FileKind::Artifact], FileKind::name)),
        ("job_files.state", names(&file_states, FileState::name)),
        ("services.protocol", names(&ServiceProtocol::ALL, ServiceProtocol::name)),
        ("services.access", names(&ServiceAccess::ALL, ServiceAccess::name)),
        ("services.state", names(&ServiceState::ALL, ServiceState::name)),
        ("service_revisions.state", names(&RevisionState::ALL, RevisionState::name)),
        ("volume_blobs.kind", names(&blobs, BlobKind::name)),
        ("volume_blobs.state", names(&blob_states, FileState::name)),
    ];
    let expected: BTreeMap<String, Vec<&str>> =
        expected.into_iter().map(|(column, names)| (column.to_owned(), names)).collect();
    assert_eq!(checked_names(), expected);
}

/// The plan of SQLite for a statement.
async fn plan(conn: &mut sqlx::SqliteConnection, sql: &str) -> Vec<String> {
    let sql = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
    let steps = sqlx::query(sql).fetch_all(conn).await.unwrap();
    steps.iter().map(|step| step.try_get("detail").unwrap()).collect()
}

/// Each statement has the condition and the order of a frequent statement of the store.
#[tokio::test]
async fn a_list_of_one_organization_and_the_queue_read_no_other_rows() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("berth.db");
    drop(store::Db::sqlite(&file).await.unwrap());
    let mut conn = sqlx::SqliteConnection::connect(&format!("sqlite:{}", file.display())).await.unwrap();
    let mut statements: Vec<(String, String)> = [
        ("jobs_by_org", "SELECT spec FROM jobs WHERE org_id = 'o' AND id < 'c' ORDER BY id DESC LIMIT 9"),
        (
            "jobs_by_state",
            "SELECT spec FROM jobs WHERE org_id = 'o' AND state = 'failed' ORDER BY id LIMIT 9",
        ),
        ("jobs_by_state", "SELECT COUNT(*) FROM jobs WHERE org_id = 'o' AND state = 'queued'"),
        (
            "jobs_queued",
            "SELECT spec FROM jobs WHERE state = 'queued' ORDER BY priority DESC, created_at, id LIMIT 9",
        ),
        ("jobs_open", "SELECT SUM(cost_micros) FROM jobs WHERE org_id = 'o' AND ended_at IS NULL"),
        ("jobs_open", "SELECT labels FROM jobs WHERE org_id = 'o' AND ended_at IS NULL ORDER BY id"),
        (
            "jobs_kept",
            "SELECT spec FROM jobs WHERE ended_at IS NOT NULL AND removed_at IS NULL AND log_bytes IS NOT NULL \
             AND ended_at < 9 ORDER BY ended_at, id LIMIT 9",
        ),
        (
            "jobs_kept_by_org",
            "SELECT spec FROM jobs WHERE ended_at IS NOT NULL AND removed_at IS NULL AND log_bytes IS NOT NULL \
             AND ended_at < 9 AND org_id = 'o' ORDER BY ended_at, id LIMIT 9",
        ),
        (
            "audit_events_by_subject",
            "SELECT detail FROM audit_events WHERE subject = 's' AND id < 'c' ORDER BY id DESC LIMIT 9",
        ),
        (
            "jobs_by_reservation",
            "SELECT state FROM jobs WHERE reservation_id = 'r' AND ended_at IS NULL ORDER BY id",
        ),
    ]
    .map(|(index, sql)| (index.to_owned(), sql.to_owned()))
    .to_vec();
    for table in ["audit_events", "budgets", "quota_requests", "reservations", "tokens", "webhooks"] {
        let sql = format!(
            "SELECT * FROM {table} WHERE org_id = 'o' AND ('c' = '' OR id < 'c') ORDER BY id LIMIT 9"
        );
        statements.push((format!("{table}_by_org"), sql));
    }
    let invoices = "SELECT * FROM invoices WHERE org_id = 'o' ORDER BY number DESC LIMIT 9";
    statements.push(("invoices_by_org".to_owned(), invoices.to_owned()));
    for (index, sql) in statements {
        let steps = plan(&mut conn, &sql).await;
        assert_eq!(steps.len(), 1, "{sql}: {steps:?}");
        let is_search = steps[0].starts_with("SEARCH") && steps[0].contains(&format!(" INDEX {index} ("));
        assert!(is_search, "{sql}: {steps:?}");
    }
}

/// The statements have the joins of the evidence of promises.
#[tokio::test]
async fn the_charges_of_a_window_read_no_other_transfers() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("berth.db");
    drop(store::Db::sqlite(&file).await.unwrap());
    let mut conn = sqlx::SqliteConnection::connect(&format!("sqlite:{}", file.display())).await.unwrap();
    let jobs = "SELECT SUM(t.amount_micros) FROM service_jobs j CROSS JOIN transfers t WHERE j.service_id = 's' \
                AND t.source IN ('job', 'evidence') AND t.source_id = j.job_id AND t.kind IN ('usage', 'credit') \
                AND t.at >= 1 AND t.at < 2";
    let blocks = "SELECT SUM(t.amount_micros) FROM transfers h CROSS JOIN transfers t WHERE h.debit = 'a' \
                  AND h.kind = 'hold' AND h.source = 'credit_block' AND h.at >= 1 AND h.at < 2 \
                  AND t.source = 'credit_block' AND t.source_id = h.source_id AND t.kind = 'usage'";
    let tokens = "SELECT SUM(u.token_nanos) FROM inference_keys k CROSS JOIN service_use u WHERE k.org_id = 'o' \
                  AND u.key_id = k.id AND u.hour_at >= 1 AND u.hour_at < 2";
    for (sql, first, second) in [
        (jobs, "INDEX service_jobs_by_service (service_id=?)", "(source=? AND source_id=? AND kind=?)"),
        (blocks, "INDEX transfers_lent (debit=? AND at>? AND at<?)", "(source=? AND source_id=? AND kind=?)"),
        (tokens, "INDEX inference_keys_all_of_org (org_id=?)", "INDEX service_use_by_key (key_id=?"),
    ] {
        let steps = plan(&mut conn, sql).await;
        assert_eq!(steps.len(), 2, "{sql}: {steps:?}");
        assert!(steps[0].contains(first) && steps[1].contains(second), "{sql}: {steps:?}");
    }
}

/// Stores a text in a column of a row, also against the CHECK of the column.
async fn set(location: &StoreLocation, table: &str, (key, id): (&str, &str), column: &str, text: &str) {
    let sql = AssertSqlSafe(format!("UPDATE {table} SET {column} = '{text}' WHERE {key} = '{id}'"));
    let changed = match location {
        StoreLocation::Sqlite(dir) => {
            let url = format!("sqlite://{}", dir.path().join("berth.db").display());
            let mut raw = sqlx::SqliteConnection::connect(&url).await.unwrap();
            sqlx::query("PRAGMA ignore_check_constraints = ON").execute(&mut raw).await.unwrap();
            sqlx::query(sql).execute(&mut raw).await.unwrap().rows_affected()
        }
        StoreLocation::Postgres(url) => {
            let mut raw = sqlx::PgConnection::connect(url).await.unwrap();
            let drop = format!("ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {table}_{column}_check");
            sqlx::query(AssertSqlSafe(drop)).execute(&mut raw).await.unwrap();
            sqlx::query(sql).execute(&mut raw).await.unwrap().rows_affected()
        }
    };
    assert_eq!(changed, 1, "{table}.{column} of {id}");
}

/// Asserts that a read finds a corrupt row and begins its error with the table, the id and the column.
macro_rules! assert_corrupt {
    ($engine:expr, $db:expr, $row:expr, $f:expr $(, $arg:expr)* $(,)?) => {{
        let read = $f(&mut $db.read().await.unwrap().tx() $(, $arg)*).await;
        let Err(StoreError::Corrupt(error)) = read else { panic!("{}: {} was read", $engine, $row) };
        assert!(error.starts_with(&format!("{}: ", $row)), "{}: {error}", $engine);
    }};
}

fn user() -> User {
    let id = UserId::from_uuid(Uuid::from_u128(1));
    User { id, email: "a@b".to_owned(), name: "A".to_owned(), operator: false }
}

fn webhook() -> StoredWebhook {
    StoredWebhook {
        id: WebhookId::from_uuid(Uuid::from_u128(1)),
        org_id: org(),
        url: "https://example.org".to_owned(),
        secret: "sealed".to_owned(),
        kinds: JsonColumn(vec!["job.*".to_owned(), "budget.passed".to_owned()]),
        created_by: "A".to_owned(),
        created_by_id: None,
        created_at: now(),
    }
}

fn payment() -> StoredPayment {
    StoredPayment {
        id: PaymentId::from_uuid(Uuid::from_u128(1)),
        org_id: org(),
        kind: PaymentKind::Recharge,
        amount_micros: 5,
        invoice_id: None,
        state: PaymentState::Open,
        session: None,
        intent: None,
        created_by: "A".to_owned(),
        created_at: now(),
        done_at: None,
        failure: String::new(),
    }
}

#[tokio::test]
async fn the_error_of_a_corrupt_row_names_its_table_its_id_and_its_column() {
    for (engine, db, location) in engines("columns_corrupt").await {
        with_jobs(&db).await;
        write(&db, |tx| {
            async move {
                let (job, state, detail) = (job(1), JobState::Queued, String::new());
                let event = JobEvent { job, seq: 1, at: now(), state, attempt: 0, detail };
                store::job_events::insert_event(tx, org(), &event).await?;
                store::accounts::insert_user(tx, &user(), "hash", now()).await?;
                store::accounts::insert_member(tx, org(), user().id, Role::Viewer).await?;
                store::quotas::put(tx, Some(org()), &Limits::default()).await?;
                store::webhooks::insert(tx, &webhook()).await?;
                store::payments::insert(tx, &payment()).await
            }
            .boxed()
        })
        .await;
        assert_eq!(read!(db, store::webhooks::list, Some(org()))[0].kinds, webhook().kinds, "{engine}");
        assert_eq!(read!(db, store::payments::find, payment().id).unwrap().kind, PaymentKind::Recharge);
        let (first, second) = (job(1).to_string(), job(2).to_string());
        let (own, member) = (org().to_string(), user().id.to_string());
        let (hook, paid) = (webhook().id.to_string(), payment().id.to_string());
        for (table, key, column, text) in [
            ("jobs", ("id", &first), "state", "lost"),
            ("jobs", ("id", &second), "hold_id", "hold"),
            ("job_events", ("job_id", &first), "state", "lost"),
            ("members", ("user_id", &member), "role", "guest"),
            ("quotas", ("org_id", &own), "limits", "{"),
            ("webhooks", ("id", &hook), "kinds", "job.*,budget.passed"),
            ("payments", ("id", &paid), "kind", "gift"),
        ] {
            set(&location, table, (key.0, key.1.as_str()), column, text).await;
        }
        let row = |table: &str, id: &str, column: &str| format!("{table} {id}: {column}");
        assert_corrupt!(engine, db, row("jobs", &first, "state"), store::jobs::find_any, job(1));
        assert_corrupt!(engine, db, row("jobs", &second, "hold_id"), store::jobs::list_any, &[job(2)]);
        let event = row("job_events", &first, "state");
        assert_corrupt!(engine, db, event, store::job_events::list_org_events, org(), now(), 9);
        let role = row("members", &member, "role");
        assert_corrupt!(engine, db, role, store::accounts::find_role, org(), user().id);
        assert_corrupt!(engine, db, row("quotas", &own, "limits"), store::quotas::find, Some(org()));
        let (kinds, page) = (row("webhooks", &hook, "kinds"), ListOptions::newest(10));
        assert_corrupt!(engine, db, kinds, store::webhooks::list_page, org(), &page);
        assert!(
            read!(db, store::webhooks::list, Some(org())).is_empty(),
            "{engine}: it stops no other webhook"
        );
        assert_corrupt!(engine, db, row("payments", &paid, "kind"), store::payments::find, payment().id);
    }
}
