//! Group commit for SQLite: one thread owns the writing connection, and everything that waits when it
//! comes round shares one durable COMMIT.
//!
//! A piece of work that fails undoes only itself: then each is run again by itself. Every caller,
//! failed ones too, is answered only after the COMMIT. A caller that goes away changes nothing: its
//! work finishes.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{mpsc, oneshot};

use crate::tx::{StoreError, Tx, Work};

const GROUP: usize = 256;
const GROUP_TIME: Duration = Duration::from_millis(20);
const WORK_TIME: Duration = Duration::from_secs(10);

/// A queued piece of work with its caller, whatever its type.
trait Queued: Send {
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> BoxFuture<'a, bool>;
    /// It took too long, or panicked: it is not tried again.
    fn is_broken(&self) -> bool;
    fn answer(self: Box<Self>, committed: bool);
}

struct Piece<T, W> {
    work: W,
    result: Option<Result<T, StoreError>>,
    broken: bool,
    caller: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, W: Work<T>> Queued for Piece<T, W> {
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let work = AssertUnwindSafe((self.work)(tx)).catch_unwind();
            let broke = |how: &str| Err(StoreError::Engine(format!("a write {how}")));
            let (broken, result) = match tokio::time::timeout(WORK_TIME, work).await {
                Ok(Ok(result)) => (false, result),
                Ok(Err(_)) => (true, broke("panicked")),
                Err(_) => (true, broke("ran out of time")),
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
            Some(result) => result,
            None => Err(StoreError::Unknown),
        };
        // A caller that left does not need the answer.
        let _ = self.caller.send(result);
    }
}

/// The handle to the writing thread; the thread ends when the last handle is dropped.
pub struct Writer {
    queue: mpsc::Sender<Box<dyn Queued>>,
}

impl Writer {
    pub fn start(options: SqliteConnectOptions) -> Result<Self, StoreError> {
        let (queue, pieces) = mpsc::channel(GROUP * 4);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| StoreError::Engine(e.to_string()))?;
        std::thread::Builder::new()
            .name("sqlite-writer".to_owned())
            .spawn(move || {
                pin_to_one_core();
                runtime.block_on(serve(options, pieces));
            })
            .map_err(|e| StoreError::Engine(e.to_string()))?;
        Ok(Self { queue })
    }

    pub async fn run<T: Send + 'static>(&self, work: impl Work<T>) -> Result<T, StoreError> {
        let (caller, answer) = oneshot::channel();
        let piece = Box::new(Piece { work, result: None, broken: false, caller });
        self.queue.send(piece).await.map_err(|_| StoreError::Unknown)?;
        answer.await.map_err(|_| StoreError::Unknown)?
    }
}

/// The engine's own thread inherits the affinity; both on one core saves a cross-core wake-up for
/// every statement.
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

async fn serve(options: SqliteConnectOptions, mut pieces: mpsc::Receiver<Box<dyn Queued>>) {
    let mut connection: Option<SqliteConnection> = None;
    while let Some(first) = pieces.recv().await {
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
        let done = run_group(&mut conn, first, &mut pieces, &mut group).await;
        let committed = done.is_ok();
        for piece in group {
            piece.answer(committed);
        }
        match done {
            Ok(()) => connection = Some(conn),
            // After a failed COMMIT, ROLLBACK or SAVEPOINT the connection's own book-keeping is not to be trusted.
            Err(error) => {
                tracing::error!(%error, "a group of writes was not committed");
                let _ = conn.close().await;
            }
        }
    }
}

async fn say(conn: &mut SqliteConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::query(sql).execute(conn).await.map(|_| ())
}

/// Runs everything that waits in one transaction. Where one of several fails it is undone and run again, each in
/// a savepoint of its own: most never fail, and are spared the two statements.
async fn run_group(
    conn: &mut SqliteConnection,
    first: Box<dyn Queued>,
    pieces: &mut mpsc::Receiver<Box<dyn Queued>>,
    group: &mut Vec<Box<dyn Queued>>,
) -> Result<(), sqlx::Error> {
    let began = Instant::now();
    let mut next = Some(first);
    let mut good = true;
    let opened = say(conn, "BEGIN IMMEDIATE").await;
    while let Some(mut piece) = next.take() {
        good = opened.is_ok() && piece.run(&mut Tx::Sqlite(conn)).await;
        group.push(piece);
        if good && group.len() < GROUP && began.elapsed() < GROUP_TIME {
            next = pieces.try_recv().ok();
        }
    }
    opened?;
    if good {
        return say(conn, "COMMIT").await;
    }
    say(conn, "ROLLBACK").await?;
    if group.len() > 1 { run_apart(conn, group).await } else { Ok(()) }
}

async fn run_apart(conn: &mut SqliteConnection, group: &mut [Box<dyn Queued>]) -> Result<(), sqlx::Error> {
    say(conn, "BEGIN IMMEDIATE").await?;
    for piece in group.iter_mut().filter(|piece| !piece.is_broken()) {
        say(conn, "SAVEPOINT piece").await?;
        if !piece.run(&mut Tx::Sqlite(conn)).await {
            say(conn, "ROLLBACK TO piece").await?;
        }
        say(conn, "RELEASE piece").await?;
    }
    say(conn, "COMMIT").await
}
