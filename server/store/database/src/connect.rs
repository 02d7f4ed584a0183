//! The handle of the database, [`Db`]: migrations, connections for reads, and write transactions.

use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::Either;
use sqlx::migrate::MigrateError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgSslMode};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Postgres, Sqlite};
use tokio::sync::{RwLock, watch};

use crate::audit::{AuditSignal, Audited, CHAIN_BATCH, chain_batch, run_audited};
use crate::tx::{RefusableWork, StoreError, Tx, Work, WriteError, engine_text};
use crate::writer::Writer;

#[derive(Clone)]
enum DatabaseKind {
    Sqlite { readers: SqlitePool, writer: Arc<Writer> },
    Postgres { pool: PgPool, write_lock: Arc<RwLock<()>> },
}

/// A handle of the database; clones share its connections.
#[derive(Clone)]
pub struct Db(DatabaseKind, AuditSignal);

/// A connection for reads.
pub enum ReadConn {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
}

impl ReadConn {
    pub fn tx(&mut self) -> Tx<'_> {
        match self {
            Self::Sqlite(c) => Tx::sqlite(&mut *c),
            Self::Postgres(c) => Tx::postgres(&mut *c),
        }
    }
}

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../../migrations");

fn not_migrated(error: MigrateError) -> StoreError {
    StoreError::Engine(match error {
        MigrateError::VersionMissing(_) | MigrateError::VersionMismatch(_) => {
            "the database belongs to another version of Berth; use that version, or an empty database"
                .to_owned()
        }
        MigrateError::Execute(error) => engine_text(&error),
        MigrateError::ExecuteMigration(error, version) => {
            format!("migration {version}: {}", engine_text(&error))
        }
        other => other.to_string(),
    })
}

/// The version of the last migration of a database.
const LAST_MIGRATION: &str =
    "SELECT CAST(COALESCE(MAX(version), 0) AS BIGINT) FROM _sqlx_migrations WHERE success";

/// Checks the last migration of a database that is opened without a change of its schema.
fn check_schema(version: i64) -> Result<(), StoreError> {
    if MIGRATIONS.iter().map(|migration| migration.version).max() == Some(version) {
        return Ok(());
    }
    Err(StoreError::Engine(
        "the database does not have the schema of this version of Berth; use the version of its portal, or run \
         berth-portal migrate first"
            .to_owned(),
    ))
}

/// The options of a Postgres URL. The URL has a password, so the error has no part of it.
pub fn postgres_options(url: &str) -> Result<PgConnectOptions, StoreError> {
    let has_scheme = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let options = PgConnectOptions::from_str(url).ok().filter(|_| has_scheme);
    options.ok_or_else(|| {
        StoreError::Engine(
            "the URL in --database must begin with postgres://. Without the option the database is SQLite"
                .to_owned(),
        )
    })
}

/// True for a URL of Postgres on this host, or with the verification of its certificate and host name: nobody on the
/// network reads or changes the data.
///
/// # Errors
/// [`StoreError::Engine`] if the URL is not of Postgres.
pub fn is_protected_url(url: &str) -> Result<bool, StoreError> {
    let options = postgres_options(url)?;
    let host = options.get_host().trim_matches(['[', ']']);
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let is_here =
        options.get_socket().is_some() || host.starts_with('/') || host == "localhost" || is_loopback;
    Ok(is_here || matches!(options.get_ssl_mode(), PgSslMode::VerifyFull))
}

fn sqlite_options(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(Duration::from_secs(5))
        .pragma("cache_size", "-65536")
        .pragma("temp_store", "memory")
        // SQLite also clears replaced content, such as a sealed secret, from the free space of its page.
        .pragma("secure_delete", "FAST")
        .pragma("wal_autocheckpoint", "4000")
        .pragma("journal_size_limit", "67108864")
}

/// Copies an SQLite database into a new file, in its state at the begin, while others read and write it.
///
/// # Errors
/// The file exists already, or a file cannot be read or written.
pub async fn copy_sqlite(file: &Path, copy: &Path) -> Result<(), StoreError> {
    let Some(copy) = copy.to_str() else {
        return Err(StoreError::Engine("the path of the copy is not UTF-8".to_owned()));
    };
    let options = SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(5));
    let mut connection = options.connect().await?;
    sqlx::query("VACUUM INTO $1").bind(copy).execute(&mut connection).await?;
    Ok(connection.close().await?)
}

impl Db {
    /// Opens the SQLite database in `file` and applies the migrations.
    ///
    /// # Errors
    /// [`StoreError::Engine`] if another version of Berth made the database.
    pub async fn sqlite(file: &Path) -> Result<Self, StoreError> {
        let migrate = SqlitePoolOptions::new().max_connections(1).connect_with(sqlite_options(file)).await?;
        MIGRATIONS.run(&migrate).await.map_err(not_migrated)?;
        sqlx::raw_sql(include_str!("../../../../migrations/guards/sqlite.sql")).execute(&migrate).await?;
        migrate.close().await;
        let readers = SqlitePoolOptions::new()
            .max_connections(4)
            .connect_with(sqlite_options(file).pragma("query_only", "on"))
            .await?;
        let signal = AuditSignal::new();
        let writer = Arc::new(Writer::start(sqlite_options(file), signal.clone())?);
        Ok(Self(DatabaseKind::Sqlite { readers, writer }, signal))
    }

    /// Opens the Postgres database at `url` and applies the migrations.
    ///
    /// # Errors
    /// [`StoreError::Engine`] if the URL is not of Postgres, or another version of Berth made the database.
    pub async fn postgres(url: &str) -> Result<Self, StoreError> {
        let pool = PgPoolOptions::new().max_connections(16).connect_with(postgres_options(url)?).await?;
        MIGRATIONS.run(&pool).await.map_err(not_migrated)?;
        sqlx::raw_sql(include_str!("../../../../migrations/guards/postgres.sql")).execute(&pool).await?;
        Ok(Self(DatabaseKind::Postgres { pool, write_lock: Arc::default() }, AuditSignal::new()))
    }

    /// Opens an existing SQLite database without a change of its schema.
    ///
    /// # Errors
    /// [`StoreError::Engine`] if there is no such file, or the database has the schema of another version of Berth.
    pub async fn existing_sqlite(file: &Path) -> Result<Self, StoreError> {
        let options = sqlite_options(file).create_if_missing(false);
        let readers = SqlitePoolOptions::new()
            .max_connections(4)
            .connect_with(options.clone().pragma("query_only", "on"))
            .await?;
        check_schema(sqlx::query_scalar::<_, i64>(LAST_MIGRATION).fetch_one(&readers).await?)?;
        let signal = AuditSignal::new();
        let writer = Arc::new(Writer::start(options, signal.clone())?);
        Ok(Self(DatabaseKind::Sqlite { readers, writer }, signal))
    }

    /// Opens an existing Postgres database without a change of its schema.
    ///
    /// # Errors
    /// [`StoreError::Engine`] if the URL is not of Postgres, or the database has the schema of another version of
    /// Berth.
    pub async fn existing_postgres(url: &str) -> Result<Self, StoreError> {
        let pool = PgPoolOptions::new().max_connections(16).connect_with(postgres_options(url)?).await?;
        check_schema(sqlx::query_scalar::<_, i64>(LAST_MIGRATION).fetch_one(&pool).await?)?;
        Ok(Self(DatabaseKind::Postgres { pool, write_lock: Arc::default() }, AuditSignal::new()))
    }

    /// Resolves after the end of the thread for writes. On Postgres there is no such thread.
    pub async fn writer_ended(&self) {
        match &self.0 {
            DatabaseKind::Sqlite { writer, .. } => writer.ended().await,
            DatabaseKind::Postgres { .. } => std::future::pending().await,
        }
    }

    /// Returns a connection for reads.
    pub async fn read(&self) -> Result<ReadConn, StoreError> {
        Ok(match &self.0 {
            DatabaseKind::Sqlite { readers, .. } => ReadConn::Sqlite(readers.acquire().await?),
            DatabaseKind::Postgres { pool, .. } => ReadConn::Postgres(pool.acquire().await?),
        })
    }

    /// Runs `work` in one transaction and returns after the transaction is durable.
    ///
    /// SQLite: the transactions of many callers share one commit. Postgres: the transaction is SERIALIZABLE
    /// and runs again after a conflict.
    pub async fn write<T: Send + 'static>(&self, work: impl Work<T>) -> Result<T, StoreError> {
        match &self.0 {
            DatabaseKind::Sqlite { writer, .. } => writer.run(work).await,
            DatabaseKind::Postgres { pool, write_lock } => {
                postgres_write((pool, &self.1), write_lock, SHARED_TRIES, work).await
            }
        }
    }

    /// [`Db::write`] for work that may refuse.
    ///
    /// # Errors
    ///
    /// The refusal, or the failure of the store.
    pub async fn try_write<T: Send + 'static>(&self, work: impl RefusableWork<T>) -> Result<T, WriteError> {
        let work = Arc::new(work);
        let done = self.write(move |tx| {
            let work = work.clone();
            Box::pin(async move {
                match work(tx).await {
                    Ok(value) => Ok(Ok(value)),
                    // On SQLite the undo of one write repeats the group of writes, so it is only for changes.
                    Err(WriteError::Refused(problem)) if tx.has_written() => {
                        Err(StoreError::Undone(Box::new(problem)))
                    }
                    Err(WriteError::Refused(problem)) => Ok(Err(problem)),
                    Err(WriteError::Store(error)) => Err(error),
                }
            })
        });
        match done.await {
            Ok(done) => done.map_err(WriteError::Refused),
            Err(StoreError::Undone(problem)) => Err(WriteError::Refused(*problem)),
            Err(error) => Err(error.into()),
        }
    }

    /// [`Db::write`] for work on rows of many other writes. On Postgres it runs alone in this process from
    /// its first try, because it would lose its conflicts with the other writes.
    pub async fn write_alone<T: Send + 'static>(&self, work: impl Work<T>) -> Result<T, StoreError> {
        match &self.0 {
            DatabaseKind::Sqlite { writer, .. } => writer.run(work).await,
            DatabaseKind::Postgres { pool, write_lock } => {
                postgres_write((pool, &self.1), write_lock, 0, work).await
            }
        }
    }

    /// Chains the audit events of earlier versions of Berth, in the order of their ids and in batches.
    pub async fn chain_audit_events(&self) -> Result<(), StoreError> {
        while self.write(|tx| chain_batch(tx).boxed()).await? == CHAIN_BATCH {}
        Ok(())
    }

    /// A receiver that changes after each commit of audit events in this process.
    pub fn subscribe_audit(&self) -> watch::Receiver<u64> {
        self.1.subscribe()
    }

    /// Checks that the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let mut conn = self.read().await?;
        let row: Option<(i64,)> =
            find!(&mut conn.tx(), (i64,), "SELECT CAST(COUNT(*) AS BIGINT) FROM settings")?;
        row.map(|_| ()).ok_or(StoreError::Unknown)
    }
}

/// The number of lost conflicts; it gives each of them another delay.
static LOST_CONFLICTS: AtomicU64 = AtomicU64::new(0);

/// The first statements of each write. After a sequential scan of a table, each concurrent write to the table
/// conflicts; after an index scan, only a write to the pages of that scan conflicts. Postgres prefers the
/// sequential scan for a small table, so `random_page_cost` makes index scans cheap.
const BEGIN: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL random_page_cost = 0.1";

/// The number of tries beside other writes. After these a write runs alone in this process.
const SHARED_TRIES: u32 = 4;

/// Runs `work` on Postgres. A try holds `write_lock` shared. After `shared_tries` lost conflicts a try holds
/// the lock exclusively: it waits for the running writes, and new writes wait for it. So a long write
/// succeeds beside any number of short writes.
async fn postgres_write<T: Send>(
    (pool, signal): (&PgPool, &AuditSignal),
    write_lock: &RwLock<()>,
    shared_tries: u32,
    work: impl Work<T>,
) -> Result<T, StoreError> {
    const MAX_TRIES: u32 = 20;
    let mut tries = 0;
    loop {
        tries += 1;
        let guard = match tries <= shared_tries {
            true => Either::Left(write_lock.read().await),
            false => Either::Right(write_lock.write().await),
        };
        let mut tx = pool.begin_with(BEGIN).await?;
        let result = run_audited(&work, &mut Tx::postgres(&mut tx)).await;
        let outcome = match result {
            Ok(Audited { value, has_events }) => match tx.commit().await.map_err(StoreError::from) {
                Ok(()) => {
                    if has_events {
                        signal.notify();
                    }
                    return Ok(value);
                }
                Err(StoreError::Contended) => StoreError::Contended,
                Err(_) => return Err(StoreError::Unknown),
            },
            Err(error) => {
                tx.rollback().await?;
                error
            }
        };
        drop(guard);
        match outcome {
            StoreError::Contended if tries < MAX_TRIES => {
                // The delay grows with each try, and it differs between the writes that lost to the same
                // write.
                let random =
                    LOST_CONFLICTS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48;
                let range_ms = u64::from(tries) * 6;
                tokio::time::sleep(Duration::from_millis(range_ms / 2 + random % range_ms)).await;
            }
            error => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_on_another_host_needs_verified_tls() {
        for (url, protected) in [
            ("postgres://u:p@127.0.0.1:5432/d", true),
            ("postgres://u@localhost/d", true),
            ("postgres://u@[::1]/d", true),
            ("postgres:///d?host=/var/run/postgresql", true),
            ("postgres://u@db.example/d?sslmode=verify-full", true),
            ("postgres://u@db.example/d", false),
            ("postgres://u@10.0.0.5/d?sslmode=require", false),
            ("postgres://u@db.example/d?sslmode=verify-ca", false),
        ] {
            assert_eq!(is_protected_url(url).ok(), Some(protected), "{url}");
        }
        assert!(is_protected_url("mysql://u@127.0.0.1/d").is_err());
    }
}
