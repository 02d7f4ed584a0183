//! The supervisor of the portal's loops. Each loop has a name, a period and the outcome of its last run.
//!
//! A failed loop runs again. A panic in a loop ends the portal, and a supervisor such as systemd starts it
//! again: a portal without one of its loops would look healthy.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use berth_types::operations::{LoopError, PortalLoop};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use crate::callers::Caller;
use crate::context::Context;

/// Characters of a stored error text.
const MAX_ERROR_CHARS: usize = 300;

/// The times of a loop.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// The pause after a run without a wake-up.
    pub every: Duration,
    /// The least time between the starts of two runs.
    pub pace: Duration,
    /// The pause after a failed run without a wake-up.
    pub after_failure: Duration,
    /// Delay of the first run.
    pub first_after: Duration,
}

impl Schedule {
    pub const fn every(every: Duration) -> Self {
        Self { every, pace: Duration::ZERO, after_failure: every, first_after: Duration::ZERO }
    }
}

/// The time of the next run, in place of the schedule's.
#[derive(Debug, Clone, Copy)]
pub struct NextRun {
    pub within: Duration,
    pub pace: Duration,
}

/// Resolves when a run is due before the end of the period.
pub type Wake = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The loops of a portal.
#[derive(Clone)]
pub struct Loops {
    context: Context,
    /// Changes after each run.
    loops: Arc<watch::Sender<BTreeMap<&'static str, PortalLoop>>>,
    /// The name of a loop that panicked.
    panicked: Arc<watch::Sender<Option<&'static str>>>,
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Loops {
    pub fn new(context: Context) -> Self {
        let loops = Arc::new(watch::Sender::new(BTreeMap::new()));
        Self { context, loops, panicked: Arc::new(watch::Sender::new(None)) }
    }

    /// Resolves with the name of a loop when one has panicked.
    pub async fn panicked(&self) -> &'static str {
        let mut panicked = self.panicked.subscribe();
        match panicked.wait_for(Option::is_some).await.map(|name| *name) {
            Ok(Some(name)) => name,
            // The sender is in this struct, so it outlives the wait.
            _ => std::future::pending().await,
        }
    }

    /// All loops, in the order of their names.
    pub fn all(&self) -> Vec<PortalLoop> {
        self.loops.borrow().values().cloned().collect()
    }

    /// All loops, for operators.
    ///
    /// # Errors
    /// 404 for all other callers.
    pub async fn list(&self, caller: &Caller) -> Result<Vec<PortalLoop>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        Ok(self.all())
    }

    fn add(&self, name: &'static str, every: Duration) {
        let new = PortalLoop {
            name: name.to_owned(),
            period_ms: millis(every),
            runs: 0,
            failures: 0,
            last_run_at: None,
            last_took_ms: 0,
            last_failed: false,
            last_error: None,
        };
        self.loops.send_modify(|loops| drop(loops.insert(name, new)));
    }

    fn record<T, E: Display>(
        &self,
        name: &'static str,
        started: (Timestamp, Instant),
        result: &Result<T, E>,
    ) {
        self.loops.send_modify(|loops| {
            let Some(run) = loops.get_mut(name) else { return };
            run.runs += 1;
            run.last_run_at = Some(started.0);
            run.last_took_ms = millis(started.1.elapsed());
            run.last_failed = result.is_err();
            if let Err(error) = result {
                let detail: String = error.to_string().chars().take(MAX_ERROR_CHARS).collect();
                tracing::error!(name, error = detail, "a loop failed; its next run tries again");
                run.failures += 1;
                run.last_error = Some(LoopError { at: started.0, detail });
            }
        });
    }

    /// Runs `work` repeatedly until the runtime ends or the returned handle aborts the loop.
    pub fn spawn<F, Fut, E>(
        &self,
        name: &'static str,
        schedule: Schedule,
        wake: Option<Wake>,
        work: F,
    ) -> AbortHandle
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<NextRun>, E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        self.add(name, schedule.every);
        let loops = self.clone();
        let running: JoinHandle<()> = tokio::spawn(async move {
            tokio::time::sleep(schedule.first_after).await;
            loop {
                let started = (loops.context.now(), Instant::now());
                let result = work().await;
                loops.record(name, started, &result);
                let next = match result {
                    Ok(next) => next.unwrap_or(NextRun { within: schedule.every, pace: schedule.pace }),
                    Err(_) => NextRun { within: schedule.after_failure, pace: schedule.pace },
                };
                match &wake {
                    Some(wake) => drop(tokio::time::timeout(next.within, wake()).await),
                    None => tokio::time::sleep(next.within).await,
                }
                tokio::time::sleep_until(started.1 + next.pace).await;
            }
        });
        let handle = running.abort_handle();
        self.supervise(name, running);
        handle
    }

    /// Ends the portal after a panic of `task`, a task without periodic runs.
    pub fn supervise(&self, name: &'static str, task: JoinHandle<()>) {
        let panicked = self.panicked.clone();
        tokio::spawn(async move {
            if task.await.is_err_and(|error| error.is_panic()) {
                tracing::error!(name, "a loop panicked; the portal ends");
                panicked.send_replace(Some(name));
            }
        });
    }

    /// Ends the portal when `ended` resolves, for a thread that lives as long as the portal.
    pub fn end_with(&self, name: &'static str, ended: impl Future<Output = ()> + Send + 'static) {
        let panicked = self.panicked.clone();
        tokio::spawn(async move {
            ended.await;
            tracing::error!(name, "a thread ended; the portal ends");
            panicked.send_replace(Some(name));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use berth_store::Db;
    use futures::FutureExt;
    use rand::SeedableRng;
    use rand_chacha::ChaCha20Rng;
    use tokio::sync::Notify;

    use super::*;
    use crate::clock::Clock;
    use crate::settings::Settings;

    struct FixedClock;
    impl Clock for FixedClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(7_000_000)
        }
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    async fn loops(dir: &std::path::Path) -> Loops {
        let db = Db::sqlite(&dir.join("berth.db")).await.unwrap();
        Loops::new(Context::new(db, Settings::default(), Arc::new(FixedClock), ChaCha20Rng::seed_from_u64(1)))
    }

    /// Waits until the only loop has ended `runs` runs.
    async fn wait_for_runs(loops: &Loops, runs: u64) -> PortalLoop {
        let mut recorded = loops.loops.subscribe();
        let counted = recorded.wait_for(|loops| loops.values().all(|run| run.runs >= runs));
        let counted = tokio::time::timeout(Duration::from_secs(30), counted).await.unwrap().unwrap();
        counted.values().next().cloned().unwrap()
    }

    #[tokio::test]
    async fn a_loop_runs_by_its_period_and_keeps_its_last_error() {
        let dir = tempfile::tempdir().unwrap();
        let loops = loops(dir.path()).await;
        let turn = AtomicU64::new(0);
        loops.spawn("test", Schedule::every(Duration::from_millis(2)), None, move || {
            let turn = turn.fetch_add(1, Ordering::SeqCst);
            async move { if turn == 1 { Err("it broke") } else { Ok(None) } }
        });
        let third = wait_for_runs(&loops, 3).await;
        let at = Timestamp::from_micros(7_000_000);
        let error = LoopError { at, detail: "it broke".to_owned() };
        assert_eq!((third.period_ms, third.failures, third.last_error), (2, 1, Some(error)));
        assert_eq!((third.last_run_at, third.last_failed), (Some(at), false));
    }

    #[tokio::test]
    async fn the_last_run_of_a_loop_is_a_failure_until_a_later_one_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let loops = loops(dir.path()).await;
        let (gate, open) = (Arc::new(Notify::new()), Arc::new(AtomicU64::new(0)));
        let (wake_gate, turn) = (gate.clone(), open.clone());
        let wake: Wake = Arc::new(move || {
            let gate = wake_gate.clone();
            Box::pin(async move { gate.notified().await })
        });
        loops.spawn("test", Schedule::every(HOUR), Some(wake), move || {
            let first = turn.fetch_add(1, Ordering::SeqCst) == 0;
            async move { if first { Err("it broke") } else { Ok(None) } }
        });
        assert!(wait_for_runs(&loops, 1).await.last_failed);
        gate.notify_one();
        assert!(!wait_for_runs(&loops, 2).await.last_failed);
    }

    #[tokio::test]
    async fn a_loop_that_panics_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let loops = loops(dir.path()).await;
        loops.spawn("sound", Schedule::every(HOUR), None, || async { Ok::<_, String>(None) });
        assert!(loops.panicked().now_or_never().is_none());
        loops.spawn("broken", Schedule::every(HOUR), None, || async {
            panic!("on purpose") as Result<_, String>
        });
        assert_eq!(loops.panicked().await, "broken");
    }

    #[tokio::test]
    async fn a_task_that_panics_is_named_and_one_that_ends_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let loops = loops(dir.path()).await;
        loops.supervise("ended", tokio::spawn(async {}));
        loops.supervise("broken", tokio::spawn(async { panic!("on purpose") }));
        assert_eq!(loops.panicked().await, "broken");
    }

    #[tokio::test]
    async fn a_thread_that_ends_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let loops = loops(dir.path()).await;
        let (running, ended) = tokio::sync::oneshot::channel::<()>();
        loops.end_with("database writer", async move {
            let _ = ended.await;
        });
        assert!(loops.panicked().now_or_never().is_none());
        drop(running);
        assert_eq!(loops.panicked().await, "database writer");
    }

    #[tokio::test]
    async fn a_loop_is_woken_but_keeps_its_pace() {
        let dir = tempfile::tempdir().unwrap();
        let loops = loops(dir.path()).await;
        let notify = Arc::new(Notify::new());
        let waker = notify.clone();
        let wake: Wake = Arc::new(move || {
            let notify = notify.clone();
            Box::pin(async move { notify.notified().await })
        });
        let pace = Duration::from_millis(40);
        let schedule = Schedule { pace, ..Schedule::every(HOUR) };
        let began = Instant::now();
        loops.spawn("test", schedule, Some(wake), || async { Ok::<_, String>(None) });
        wait_for_runs(&loops, 1).await;
        waker.notify_one();
        // The period is an hour, so only the wake-up causes the second run.
        wait_for_runs(&loops, 2).await;
        assert!(began.elapsed() >= pace);
    }
}
