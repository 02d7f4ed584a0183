//! The loops of the portal, supervised: each has a name, a period and the outcome of its last run.
//!
//! A loop that fails tries again. A loop that panics ends the process, which a supervisor such as systemd starts again:
//! a portal without one of its loops looks healthy and is not.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_types::time::Timestamp;
use futures::future::BoxFuture;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::clock::Clock;

/// The exit status of a process that a loop ended (`EX_SOFTWARE` of sysexits.h).
const EXIT_PANICKED: i32 = 70;
/// Characters of an error that are kept.
const MAX_ERROR_CHARS: usize = 300;

/// The times of a loop.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// From the end of a run to the next, unless it is woken.
    pub every: Duration,
    /// From the begin of a run to the next, at least.
    pub pace: Duration,
    /// From a failed run to the next.
    pub after_failure: Duration,
    /// Before the first run.
    pub first_after: Duration,
}

impl Schedule {
    pub const fn every(every: Duration) -> Self {
        Self { every, pace: Duration::ZERO, after_failure: every, first_after: Duration::ZERO }
    }
}

/// A run that asks for another time than the schedule's.
#[derive(Debug, Clone, Copy)]
pub struct Next {
    pub within: Duration,
    pub pace: Duration,
}

/// A loop as an operator sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoopStatus {
    pub period_ms: i64,
    pub runs: u64,
    pub failures: u64,
    /// The begin of the last run that has ended.
    pub last_run_at: Option<Timestamp>,
    pub last_took_ms: i64,
    /// The last failure, which a later success does not remove.
    pub last_error: Option<(Timestamp, String)>,
}

/// A cause to run before the period is over.
pub type Wake = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The loops of a portal.
#[derive(Clone)]
pub struct Loops {
    clock: Arc<dyn Clock>,
    statuses: Arc<Mutex<BTreeMap<&'static str, LoopStatus>>>,
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Loops {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, statuses: Arc::default() }
    }

    fn statuses(&self) -> MutexGuard<'_, BTreeMap<&'static str, LoopStatus>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every loop by its name.
    pub fn list(&self) -> Vec<(&'static str, LoopStatus)> {
        self.statuses().iter().map(|(name, status)| (*name, status.clone())).collect()
    }

    fn record<T, E: Display>(&self, name: &'static str, began: (Timestamp, Instant), result: &Result<T, E>) {
        let mut statuses = self.statuses();
        let status = statuses.entry(name).or_default();
        status.runs += 1;
        status.last_run_at = Some(began.0);
        status.last_took_ms = millis(began.1.elapsed());
        if let Err(error) = result {
            let text: String = error.to_string().chars().take(MAX_ERROR_CHARS).collect();
            tracing::error!(name, error = text, "a loop failed; its next run tries again");
            status.failures += 1;
            status.last_error = Some((began.0, text));
        }
    }

    /// Runs `work` again and again, for as long as the runtime lives. `wake` resolves when a run is due before the
    /// period is over. The handle ends the loop.
    pub fn spawn<F, Fut, E>(
        &self,
        name: &'static str,
        schedule: Schedule,
        wake: Option<Wake>,
        work: F,
    ) -> AbortHandle
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<Next>, E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        self.statuses().entry(name).or_default().period_ms = millis(schedule.every);
        let loops = self.clone();
        let running = tokio::spawn(async move {
            tokio::time::sleep(schedule.first_after).await;
            loop {
                let began = (loops.clock.now(), Instant::now());
                let result = work().await;
                loops.record(name, began, &result);
                let next = match result {
                    Ok(next) => next.unwrap_or(Next { within: schedule.every, pace: schedule.pace }),
                    Err(_) => Next { within: schedule.after_failure, pace: schedule.pace },
                };
                match &wake {
                    // Whether it was woken or time has passed makes no difference.
                    Some(wake) => drop(tokio::time::timeout(next.within, wake()).await),
                    None => tokio::time::sleep(next.within).await,
                }
                tokio::time::sleep_until(began.1 + next.pace).await;
            }
        });
        let handle = running.abort_handle();
        tokio::spawn(async move {
            let ended: Result<(), tokio::task::JoinError> = running.await;
            if ended.is_err_and(|error| error.is_panic()) {
                tracing::error!(name, "a loop panicked; the portal ends");
                std::process::exit(EXIT_PANICKED);
            }
        });
        handle
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::sync::Notify;

    use super::*;

    struct Still;
    impl Clock for Still {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(7_000_000)
        }
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    /// Waits until a loop has run so often.
    async fn ran(loops: &Loops, runs: u64) -> LoopStatus {
        loop {
            let (_, status) = loops.list().pop().unwrap();
            if status.runs >= runs {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_loop_runs_by_its_period_and_keeps_its_last_error() {
        let loops = Loops::new(Arc::new(Still));
        let turn = AtomicU64::new(0);
        loops.spawn("test", Schedule::every(Duration::from_millis(2)), None, move || {
            let turn = turn.fetch_add(1, Ordering::SeqCst);
            async move { if turn == 1 { Err("it broke") } else { Ok(None) } }
        });
        let third = ran(&loops, 3).await;
        assert_eq!(third.period_ms, 2);
        let at = Timestamp::from_micros(7_000_000);
        assert_eq!((third.failures, third.last_error), (1, Some((at, "it broke".to_owned()))));
        assert_eq!(third.last_run_at, Some(at));
    }

    #[tokio::test]
    async fn a_loop_is_woken_but_keeps_its_pace() {
        let loops = Loops::new(Arc::new(Still));
        let bell = Arc::new(Notify::new());
        let ring = bell.clone();
        let wake: Wake = Arc::new(move || {
            let bell = bell.clone();
            Box::pin(async move { bell.notified().await })
        });
        let pace = Duration::from_millis(40);
        let schedule = Schedule { pace, ..Schedule::every(HOUR) };
        let began = Instant::now();
        loops.spawn("test", schedule, Some(wake), || async { Ok::<_, String>(None) });
        ran(&loops, 1).await;
        ring.notify_one();
        // Within the period of an hour only the wake-up can bring it.
        ran(&loops, 2).await;
        assert!(began.elapsed() >= pace);
    }
}
