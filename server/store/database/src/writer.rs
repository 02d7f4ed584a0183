//! The group commit for SQLite. One thread owns the connection for writes and commits all queued writes with
//! one durable COMMIT.
//!
//! After a failed write, the thread undoes the group and runs each write again in its own savepoint. Each
//! caller gets its answer after the COMMIT, also the caller of a failed write. A write finishes even if its
//! caller has gone.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{mpsc, oneshot};

use crate::audit::{AuditSignal, Audited, run_audited};
use crate::tx::{StoreError, Tx, Work};

const GROUP: usize = 256;
const GROUP_TIME: Duration = Duration::from_millis(20);
const WORK_TIME: Duration = Duration::from_secs(10);

/// A queued write with its caller, without the type of its result.
trait QueuedWrite: Send {
    /// Runs the work; returns true if it succeeded.
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> BoxFuture<'a, bool>;
    /// True after a timeout or a panic; the write does not run again.
    fn is_broken(&self) -> bool;
    fn answer(self: Box<Self>, committed: bool);
}

struct PendingWrite<T, W> {
    work: W,
    result: Option<Result<Audited<T>, StoreError>>,
    broken: bool,
    signal: AuditSignal,
    caller: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, W: Work<T>> QueuedWrite for PendingWrite<T, W> {
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let work = AssertUnwindSafe(run_audited(&self.work, tx)).catch_unwind();
            let failed = |event: &str| Err(StoreError::Engine(format!("a write {event}")));
            let (broken, result) = match tokio::time::timeout(WORK_TIME, work).await {
                Ok(Ok(result)) => (false, result),
                Ok(Err(_)) => (true, failed("panicked")),
                Err(_) => (true, failed("ran out of time")),
            };
            self.broken = broken;
            let ok = result.is_ok();
            self.result = Some(result);
            ok
        })
    }

    fn is_broken(&self) -> bool {
        self.broken
    }

    fn answer(self: Box<Self>, committed: bool) {
        let result = match self.result {
            Some(Ok(_)) if !committed => Err(StoreError::Unknown),
            Some(Ok(Audited { value, has_events })) => {
                if has_events {
                    self.signal.notify();
                }
                Ok(value)
            }
            Some(Err(error)) => Err(error),
            None => Err(StoreError::Unknown),
        };
        // A failure to send means that the caller has gone.
        let _ = self.caller.send(result);
    }
}

/// The handle of the thread for writes. The thread ends after the drop of the last handle.
pub struct Writer {
    queue: mpsc::Sender<Box<dyn QueuedWrite>>,
    signal: AuditSignal,
}

impl Writer {
    pub(crate) fn start(options: SqliteConnectOptions, signal: AuditSignal) -> Result<Self, StoreError> {
        let (queue, writes) = mpsc::channel(GROUP * 4);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| StoreError::Engine(e.to_string()))?;
        std::thread::Builder::new()
            .name("sqlite-writer".to_owned())
            .spawn(move || {
                pin_to_one_core();
                runtime.block_on(serve(options, writes));
            })
            .map_err(|e| StoreError::Engine(e.to_string()))?;
        Ok(Self { queue, signal })
    }

    /// Resolves after the end of the thread. A panic of a write does not end it.
    pub async fn ended(&self) {
        self.queue.closed().await;
    }

    pub async fn run<T: Send + 'static>(&self, work: impl Work<T>) -> Result<T, StoreError> {
        let (caller, answer) = oneshot::channel();
        let signal = self.signal.clone();
        let write = Box::new(PendingWrite { work, result: None, broken: false, signal, caller });
        self.queue.send(write).await.map_err(|_| StoreError::Unknown)?;
        answer.await.map_err(|_| StoreError::Unknown)?
    }
}

/// Pins this thread to one core. The thread of the SQLite connection inherits the affinity; both on one core
/// save a cross-core wake-up for each statement.
fn pin_to_one_core() {
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;
    let this = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this) else { return };
    let last = (0..CpuSet::count()).rev().find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    if let Some(cpu) = last
        && one.set(cpu).is_ok()
        && sched_setaffinity(this, &one).is_err()
    {
        tracing::debug!("the database writer runs unpinned");
    }
}

async fn serve(options: SqliteConnectOptions, mut writes: mpsc::Receiver<Box<dyn QueuedWrite>>) {
    let mut connection: Option<SqliteConnection> = None;
    while let Some(first) = writes.recv().await {
        let mut conn = match connection.take() {
            Some(conn) => conn,
            None => match options.connect().await {
                Ok(conn) => conn,
                Err(error) => {
                    tracing::error!(%error, "the database cannot be opened for writing");
                    first.answer(false);
                    continue;
                }
            },
        };
        let mut group = Vec::new();
        let done = run_group(&mut conn, first, &mut writes, &mut group).await;
        let committed = done.is_ok();
        for write in group {
            write.answer(committed);
        }
        match done {
            Ok(()) => connection = Some(conn),
            // The transaction state of the connection is uncertain after a failed COMMIT, ROLLBACK or
            // SAVEPOINT.
            Err(error) => {
                tracing::error!(%error, "a group of writes was not committed");
                let _ = conn.close().await;
            }
        }
    }
}

async fn execute(conn: &mut SqliteConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::query(sql).execute(conn).await.map(|_| ())
}

/// Runs the queued writes in one transaction. After a failure the transaction is undone, and each write of
/// the group runs again in its own savepoint. Most writes succeed, so the first run saves the two savepoint
/// statements of each write.
async fn run_group(
    conn: &mut SqliteConnection,
    first: Box<dyn QueuedWrite>,
    writes: &mut mpsc::Receiver<Box<dyn QueuedWrite>>,
    group: &mut Vec<Box<dyn QueuedWrite>>,
) -> Result<(), sqlx::Error> {
    let began = Instant::now();
    let mut next = Some(first);
    let mut good = true;
    let opened = execute(conn, "BEGIN IMMEDIATE").await;
    while let Some(mut write) = next.take() {
        good = opened.is_ok() && write.run(&mut Tx::sqlite(conn)).await;
        group.push(write);
        if good && group.len() < GROUP && began.elapsed() < GROUP_TIME {
            next = writes.try_recv().ok();
        }
    }
    opened?;
    if good {
        return execute(conn, "COMMIT").await;
    }
    execute(conn, "ROLLBACK").await?;
    if group.len() > 1 { run_in_savepoints(conn, group).await } else { Ok(()) }
}

async fn run_in_savepoints(
    conn: &mut SqliteConnection,
    group: &mut [Box<dyn QueuedWrite>],
) -> Result<(), sqlx::Error> {
    execute(conn, "BEGIN IMMEDIATE").await?;
    for write in group.iter_mut().filter(|write| !write.is_broken()) {
        execute(conn, "SAVEPOINT pending_write").await?;
        if !write.run(&mut Tx::sqlite(conn)).await {
            execute(conn, "ROLLBACK TO pending_write").await?;
        }
        execute(conn, "RELEASE pending_write").await?;
    }
    execute(conn, "COMMIT").await
}
