//! The lock for the one portal of a Postgres database. On SQLite the lock of the data directory serves.
//!
//! It is no fence: while its connection is lost, for some seconds, another portal could get it. The first one then ends.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};

use crate::connect::postgres_options;
use crate::tx::StoreError;

/// The number of the advisory lock: "berth" in ASCII.
const KEY: i64 = 0x62_65_72_74_68;
/// The time between two checks of the connection, and between two attempts to connect again.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Postgres ends the session of a host that is gone after some 25 seconds, and with it the lock.
const SESSION: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; \
                       SET idle_session_timeout = 0; SET statement_timeout = 0";

/// The lock. It ends with its connection.
pub struct DatabaseLock {
    options: PgConnectOptions,
    connection: PgConnection,
}

impl DatabaseLock {
    /// Locks the database of this URL. Waits at most `wait` for the end of another lock; `None` after that.
    ///
    /// # Errors
    /// [`StoreError::Engine`] if the URL is not of Postgres. Otherwise the database cannot be reached.
    pub async fn lock(url: &str, wait: Duration) -> Result<Option<Self>, StoreError> {
        let options = postgres_options(url)?;
        let connection = locked(&options, wait).await?;
        Ok(connection.map(|connection| Self { options, connection }))
    }

    /// Resolves when another portal has the lock: this connection was lost before.
    pub async fn lost(mut self) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            if self.connection.ping().await.is_ok() {
                continue;
            }
            tracing::warn!("the connection with the lock of the database was lost");
            match locked(&self.options, CHECK_EVERY).await {
                Ok(Some(connection)) => self.connection = connection,
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "the database cannot be locked again yet"),
            }
        }
    }
}

/// A connection that has the lock; `None` if another one keeps it for longer than `wait`.
async fn locked(options: &PgConnectOptions, wait: Duration) -> Result<Option<PgConnection>, StoreError> {
    let mut connection = options.connect().await?;
    sqlx::raw_sql(SESSION).execute(&mut connection).await?;
    let is_locked: bool =
        sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(KEY).fetch_one(&mut connection).await?;
    if is_locked {
        return Ok(Some(connection));
    }
    if wait.is_zero() {
        return Ok(None);
    }
    tracing::warn!("another portal uses the database; waiting for its end");
    let limit = format!("{}ms", wait.as_millis());
    sqlx::query("SELECT set_config('lock_timeout', $1, false)").bind(limit).execute(&mut connection).await?;
    match sqlx::query("SELECT pg_advisory_lock($1)").bind(KEY).execute(&mut connection).await {
        Ok(_) => Ok(Some(connection)),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The code of Postgres for a lock that was not free in time.
const LOCK_NOT_AVAILABLE: &str = "55P03";
