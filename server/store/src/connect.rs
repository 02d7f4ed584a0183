//! Opening the database, and the two ways to it: [`Db::read`] and [`Db::write`].

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::Either;
use sqlx::migrate::MigrateError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Postgres, Sqlite};
use tokio::sync::RwLock;

use crate::tx::{StoreError, Tx, Work};
use crate::writer::Writer;

#[derive(Clone)]
enum Engine {
    Sqlite { readers: SqlitePool, writer: Arc<Writer> },
    Postgres { pool: PgPool, turns: Arc<RwLock<()>> },
}

/// The database.
#[derive(Clone)]
pub struct Db(Engine);

/// A connection for reading.
pub enum ReadConn {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
}

impl ReadConn {
    pub fn tx(&mut self) -> Tx<'_> {
        match self {
            Self::Sqlite(c) => Tx::Sqlite(&mut *c),
            Self::Postgres(c) => Tx::Postgres(&mut *c),
        }
    }
}

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations");

fn not_migrated(error: MigrateError) -> StoreError {
    StoreError::Engine(match error {
        MigrateError::VersionMissing(_) | MigrateError::VersionMismatch(_) => {
            "the database was made by another version of Berth; give an empty one".to_owned()
        }
        other => other.to_string(),
    })
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
        // What is overwritten, such as a sealed secret, does not stay in the free room of its page.
        .pragma("secure_delete", "FAST")
        .pragma("wal_autocheckpoint", "4000")
        .pragma("journal_size_limit", "67108864")
}

impl Db {
    /// Opens the embedded database in `file`, migrated.
    pub async fn sqlite(file: &Path) -> Result<Self, StoreError> {
        let migrate = SqlitePoolOptions::new().max_connections(1).connect_with(sqlite_options(file)).await?;
        MIGRATIONS.run(&migrate).await.map_err(not_migrated)?;
        sqlx::raw_sql(include_str!("../../../migrations/guards/sqlite.sql")).execute(&migrate).await?;
        migrate.close().await;
        let readers = SqlitePoolOptions::new()
            .max_connections(4)
            .connect_with(sqlite_options(file).pragma("query_only", "on"))
            .await?;
        Ok(Self(Engine::Sqlite { readers, writer: Arc::new(Writer::start(sqlite_options(file))?) }))
    }

    /// Opens a Postgres database by URL, migrated.
    pub async fn postgres(url: &str) -> Result<Self, StoreError> {
        // The URL carries a password, so no part of it goes into the error.
        let known = url.starts_with("postgres://") || url.starts_with("postgresql://");
        let options = PgConnectOptions::from_str(url).ok().filter(|_| known);
        let options =
            options.ok_or_else(|| StoreError::Engine("the database URL is not postgres://…".to_owned()))?;
        let pool = PgPoolOptions::new().max_connections(16).connect_with(options).await?;
        MIGRATIONS.run(&pool).await.map_err(not_migrated)?;
        sqlx::raw_sql(include_str!("../../../migrations/guards/postgres.sql")).execute(&pool).await?;
        Ok(Self(Engine::Postgres { pool, turns: Arc::default() }))
    }

    /// A connection for reading.
    pub async fn read(&self) -> Result<ReadConn, StoreError> {
        Ok(match &self.0 {
            Engine::Sqlite { readers, .. } => ReadConn::Sqlite(readers.acquire().await?),
            Engine::Postgres { pool, .. } => ReadConn::Postgres(pool.acquire().await?),
        })
    }

    /// Runs `work` in one transaction; returns when it is durable.
    ///
    /// SQLite: transactions of many callers share one commit. Postgres: SERIALIZABLE, run again when
    /// it met another one.
    pub async fn write<T: Send + 'static>(&self, work: impl Work<T>) -> Result<T, StoreError> {
        match &self.0 {
            Engine::Sqlite { writer, .. } => writer.run(work).await,
            Engine::Postgres { pool, turns } => postgres_write(pool, turns, PATIENCE, work).await,
        }
    }

    /// [`Db::write`] for what touches rows of many others: it would only be undone by them, so it waits
    /// until it is alone at once.
    pub async fn write_alone<T: Send + 'static>(&self, work: impl Work<T>) -> Result<T, StoreError> {
        match &self.0 {
            Engine::Sqlite { writer, .. } => writer.run(work).await,
            Engine::Postgres { pool, turns } => postgres_write(pool, turns, 0, work).await,
        }
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let mut conn = self.read().await?;
        let row: Option<(i64,)> =
            find!(&mut conn.tx(), (i64,), "SELECT CAST(COUNT(*) AS BIGINT) FROM settings")?;
        row.map(|_| ()).ok_or(StoreError::Unknown)
    }
}

/// Numbers the conflicts, so that no two of them wait alike.
static TURN: AtomicU64 = AtomicU64::new(0);

/// How each write begins. A table that is read from end to end is locked against all writes of others that
/// come meanwhile, and of a small one Postgres thinks that the quickest; by an index it is only the pages
/// that were read. So indexes are made cheap.
const BEGIN: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL random_page_cost = 0.1";

/// After so many lost conflicts a write waits until it is alone in this process.
const PATIENCE: u32 = 4;

/// All writes hold `turns` together, and one that keeps losing holds it alone: it waits for those that
/// began before it, and others wait for it. So a long one comes through beside any number of short ones.
async fn postgres_write<T: Send>(
    pool: &PgPool,
    turns: &RwLock<()>,
    patience: u32,
    work: impl Work<T>,
) -> Result<T, StoreError> {
    const TRIES: u32 = 20;
    let mut tried = 0;
    loop {
        tried += 1;
        let turn = match tried <= patience {
            true => Either::Left(turns.read().await),
            false => Either::Right(turns.write().await),
        };
        let mut tx = pool.begin_with(BEGIN).await?;
        let result = work(&mut Tx::Postgres(&mut tx)).await;
        let outcome = match result {
            Ok(value) => match tx.commit().await.map_err(StoreError::from) {
                Ok(()) => return Ok(value),
                Err(StoreError::Contended) => StoreError::Contended,
                Err(_) => return Err(StoreError::Unknown),
            },
            Err(error) => {
                tx.rollback().await?;
                error
            }
        };
        drop(turn);
        match outcome {
            StoreError::Contended if tried < TRIES => {
                // The loser of a conflict steps aside a little longer each time, and not as long as the
                // others that lost to the same winner.
                let turn = TURN.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48;
                let most = u64::from(tried) * 6;
                tokio::time::sleep(Duration::from_millis(most / 2 + turn % most)).await;
            }
            error => return Err(error),
        }
    }
}
