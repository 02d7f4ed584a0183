//! The lock for the one portal of a Postgres database. On SQLite the lock of the data directory serves.
//!
//! It is no fence: while its connection is lost, for some seconds, another portal could get it. The first one then ends.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use tokio::time::timeout;

use crate::connect::postgres_options;
use crate::tx::StoreError;

/// The number of the advisory lock: "berth" in ASCII.
const KEY: i64 = 0x62_65_72_74_68;
/// The time between two checks of the connection, and between two attempts to connect again.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Postgres ends the session of a host that is gone after some 25 seconds, and with it the lock.
const SESSION: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; \
                       SET tcp_user_timeout = 25000; SET statement_timeout = 0";
/// The longest wait for a Postgres that starts at the same time, and the time between two attempts.
const START_WAIT: Duration = Duration::from_secs(30);
const START_STEP: Duration = Duration::from_millis(500);

/// The lock. It ends with its connection.
pub struct DatabaseLock {
    options: PgConnectOptions,
    session: Session,
}

/// A session of Postgres that has the lock.
struct Session {
    connection: PgConnection,
    id: SessionId,
}

/// The number of a session, which a restart of Postgres gives again, and its begin.
#[derive(sqlx::FromRow)]
struct SessionId {
    pid: i32,
    began: String,
}

impl DatabaseLock {
    /// Locks the database of this URL. Waits at most `wait` for the end of another lock; `None` after that.
    ///
    /// # Errors
    /// [`StoreError::Engine`] if the URL is not of Postgres. Otherwise the database cannot be reached.
    pub async fn lock(url: &str, wait: Duration) -> Result<Option<Self>, StoreError> {
        let options = postgres_options(url)?;
        let session = locked(started(&options).await?, None, wait).await?;
        Ok(session.map(|session| Self { options, session }))
    }

    /// Connects anew, and ends the lost session: Postgres may not know yet that its connection is lost.
    async fn lock_again(&self) -> Result<Option<Session>, StoreError> {
        locked(self.options.connect().await?, Some(&self.session.id), CHECK_EVERY).await
    }

    /// Resolves when another portal has the lock: this connection was lost before.
    pub async fn lost(&mut self) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            // A host that is gone answers nothing at all.
            if matches!(timeout(CHECK_EVERY, self.session.connection.ping()).await, Ok(Ok(()))) {
                continue;
            }
            tracing::warn!("the connection with the lock of the database was lost");
            match timeout(2 * CHECK_EVERY, self.lock_again()).await {
                Ok(Ok(Some(session))) => self.session = session,
                Ok(Ok(None)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "the database cannot be locked again yet"),
                Err(_) => tracing::warn!("the database does not answer yet"),
            }
        }
    }
}

/// Connects to a Postgres that may just start.
async fn started(options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    let began = Instant::now();
    loop {
        match options.connect().await {
            Err(error) if is_starting(&error) && began.elapsed() < START_WAIT => {
                tracing::warn!(%error, "the database does not answer yet");
                tokio::time::sleep(START_STEP).await;
            }
            connected => return Ok(connected?),
        }
    }
}

/// True if Postgres is not there yet, starts, or has too many connections.
fn is_starting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() == ErrorKind::ConnectionRefused,
        sqlx::Error::Database(error) => matches!(error.code().as_deref(), Some("57P03" | "53300")),
        _ => false,
    }
}

/// The session if it has the lock; `None` if another portal keeps it for longer than `wait`. Ends the session `lost` first.
async fn locked(
    mut connection: PgConnection,
    lost: Option<&SessionId>,
    wait: Duration,
) -> Result<Option<Session>, StoreError> {
    sqlx::raw_sql(SESSION).execute(&mut connection).await?;
    let id: SessionId = sqlx::query_as(OWN).fetch_one(&mut connection).await?;
    if let Some(lost) = lost {
        sqlx::query(END_LOST).bind(lost.pid).bind(&lost.began).execute(&mut connection).await?;
    }
    let is_locked: bool =
        sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(KEY).fetch_one(&mut connection).await?;
    if is_locked {
        return Ok(Some(Session { connection, id }));
    }
    // To Postgres 0 ms are no limit.
    if wait.as_millis() == 0 {
        return Ok(None);
    }
    tracing::warn!("another portal uses the database; waiting for its end");
    let limit = format!("{}ms", wait.as_millis());
    sqlx::query("SELECT set_config('lock_timeout', $1, false)").bind(limit).execute(&mut connection).await?;
    match sqlx::query("SELECT pg_advisory_lock($1)").bind(KEY).execute(&mut connection).await {
        Ok(_) => Ok(Some(Session { connection, id })),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

const OWN: &str = "SELECT pid, extract(epoch FROM backend_start)::TEXT AS began FROM pg_stat_activity \
                   WHERE pid = pg_backend_pid()";
/// Ends the session with this number and begin if it has the lock of this database.
const END_LOST: &str = "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                        JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.pid = $1 \
                        AND extract(epoch FROM a.backend_start)::TEXT = $2 AND l.locktype = 'advisory' \
                        AND l.granted AND d.datname = current_database()";
/// The code of Postgres for a lock that was not free in time.
const LOCK_NOT_AVAILABLE: &str = "55P03";
