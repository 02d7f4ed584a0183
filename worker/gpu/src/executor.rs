//! A thread per board for its calls, and a deadline per call.
//!
//! A library call cannot be ended from outside. A hanging call keeps its thread, and further calls for the same board
//! fail at once until it returns.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use berth_system::sync::lock;

type QueuedCall = Box<dyn FnOnce() + Send>;

/// The begin and the time limit of the present call.
type RunningCall = Arc<Mutex<Option<(Instant, Duration)>>>;

struct Executor {
    queue: mpsc::Sender<QueuedCall>,
    running: RunningCall,
    thread: JoinHandle<()>,
}

/// A call in the queue of its executor, or running.
pub struct PendingCall<T> {
    result: mpsc::Receiver<T>,
    /// The call has begun, or was given up.
    taken: Arc<AtomicBool>,
    running: RunningCall,
    limit: Duration,
}

impl<T> PendingCall<T> {
    /// The result. `None`: the call was not done in time. It never begins then, or it hangs together with its
    /// executor.
    fn wait(self) -> Option<T> {
        match self.result.recv_timeout(self.limit) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if !self.taken.swap(true, Ordering::SeqCst) {
            return None;
        }
        // The call began late, behind another one, and has its full time limit.
        self.result.recv_timeout(time_left(&self.running).unwrap_or(Duration::ZERO)).ok()
    }

    /// The result, if it comes by then. A call that has begun goes on with its own time limit, and its result is
    /// lost.
    pub fn wait_until(self, at: Instant) -> Option<T> {
        let result = self.result.recv_timeout(at.saturating_duration_since(Instant::now())).ok();
        self.taken.store(true, Ordering::SeqCst);
        result
    }
}

/// The executors, by name.
#[derive(Default)]
pub struct BoardExecutors {
    executors: Mutex<HashMap<String, Executor>>,
}

/// The time left for the present call; zero if it is late. `None`: no call runs.
fn time_left(running: &RunningCall) -> Option<Duration> {
    lock(running).map(|(since, limit)| limit.saturating_sub(since.elapsed()))
}

fn start_executor(name: &str) -> Option<Executor> {
    let (queue, calls) = mpsc::channel::<QueuedCall>();
    let work = move || {
        for call in calls {
            call();
        }
    };
    let thread = std::thread::Builder::new().name(format!("gpu {name}")).spawn(work).ok()?;
    Some(Executor { queue, running: RunningCall::default(), thread })
}

impl BoardExecutors {
    /// True if a call on this executor is late.
    pub fn is_stuck(&self, name: &str) -> bool {
        let late = |executor: &Executor| {
            !executor.thread.is_finished() && time_left(&executor.running) == Some(Duration::ZERO)
        };
        lock(&self.executors).get(name).is_some_and(late)
    }

    /// The queue of an executor. `None`: it is stuck, or the host has no thread for it.
    fn queue(&self, name: &str) -> Option<(mpsc::Sender<QueuedCall>, RunningCall)> {
        let mut executors = lock(&self.executors);
        // A panic in a call ends its thread; the next call gets a new one.
        if executors.get(name).is_none_or(|executor| executor.thread.is_finished()) {
            executors.insert(name.to_owned(), start_executor(name)?);
        }
        let executor = executors.get(name)?;
        if time_left(&executor.running) == Some(Duration::ZERO) {
            return None;
        }
        Some((executor.queue.clone(), executor.running.clone()))
    }

    /// Runs a call after those in the queue. `None`: the call was not done in time. It never begins then, or it hangs
    /// together with its executor.
    pub fn run<T: Send + 'static>(
        &self,
        name: &str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.start(name, limit, call)?.wait()
    }

    /// Puts a call into the queue. `None`: the executor is stuck.
    pub fn start<T: Send + 'static>(
        &self,
        name: &str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<PendingCall<T>> {
        let (queue, running) = self.queue(name)?;
        let (sender, result) = mpsc::sync_channel(1);
        let taken = Arc::new(AtomicBool::new(false));
        let (begun, busy) = (taken.clone(), running.clone());
        let queued: QueuedCall = Box::new(move || {
            // A call that was given up must not happen later.
            if begun.swap(true, Ordering::SeqCst) {
                return;
            }
            *lock(&busy) = Some((Instant::now(), limit));
            let value = call();
            *lock(&busy) = None;
            // A caller that gave up misses the result.
            let _ = sender.send(value);
        });
        queue.send(queued).ok()?;
        Some(PendingCall { result, taken, running, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(60);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_call_that_hangs_holds_up_its_own_board_only() {
        let executors = BoardExecutors::default();
        assert_eq!(executors.run("a", LONG, || 7), Some(7));
        let (go, gate) = mpsc::channel::<()>();
        let hung = executors.run("a", SHORT, move || gate.recv().is_ok());
        assert_eq!((hung, executors.is_stuck("a"), executors.is_stuck("b")), (None, true, false));
        let begun = Instant::now();
        assert_eq!(executors.run("a", LONG, || 8), None, "said at once");
        assert!(begun.elapsed() < LONG);
        assert_eq!(executors.run("b", LONG, || 9), Some(9));
        go.send(()).unwrap();
        let deadline = Instant::now() + LONG;
        while executors.is_stuck("a") && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(executors.run("a", LONG, || 10), Some(10), "it answers again");
    }

    #[test]
    fn what_was_given_up_while_it_waited_never_happens() {
        let executors = Arc::new(BoardExecutors::default());
        let (go, gate) = mpsc::channel::<()>();
        let (begun, first_began) = mpsc::channel::<()>();
        let other = executors.clone();
        let first = std::thread::spawn(move || {
            other.run("a", LONG, move || {
                begun.send(()).unwrap();
                gate.recv().is_ok()
            })
        });
        first_began.recv().unwrap();
        let happened = Arc::new(AtomicBool::new(false));
        let flag = happened.clone();
        assert_eq!(executors.run("a", SHORT, move || flag.store(true, Ordering::SeqCst)), None);
        assert!(!executors.is_stuck("a"), "the first has its time");
        go.send(()).unwrap();
        assert_eq!(first.join().unwrap(), Some(true));
        assert_eq!(executors.run("a", LONG, || 1), Some(1));
        assert!(!happened.load(Ordering::SeqCst));
    }

    #[test]
    fn a_late_board_does_not_delay_the_others() {
        let executors = BoardExecutors::default();
        let (go, gate) = mpsc::channel::<()>();
        let (begun, began) = mpsc::channel::<()>();
        let hold = move || {
            begun.send(()).unwrap();
            gate.recv().is_ok()
        };
        let slow = executors.start("a", LONG, hold).unwrap();
        began.recv().unwrap();
        let behind = Arc::new(AtomicBool::new(false));
        let flag = behind.clone();
        let second = executors.start("a", LONG, move || flag.store(true, Ordering::SeqCst)).unwrap();
        let other = executors.start("b", LONG, || 3).unwrap();
        assert_eq!(other.wait_until(Instant::now() + LONG), Some(3));
        let at = Instant::now() + SHORT;
        assert_eq!((slow.wait_until(at), second.wait_until(at)), (None, None));
        assert!(!executors.is_stuck("a"), "it has its time");
        go.send(()).unwrap();
        assert_eq!(executors.run("a", LONG, || 4), Some(4));
        assert!(!behind.load(Ordering::SeqCst), "nobody wanted it any more");
    }

    #[test]
    fn an_executor_survives_a_call_that_panics() {
        let executors = BoardExecutors::default();
        let broken: Option<u8> =
            executors.run("a", LONG, || -> u8 { std::panic::resume_unwind(Box::new("broken")) });
        assert_eq!(broken, None);
        let deadline = Instant::now() + LONG;
        let mut after = None;
        while after.is_none() && Instant::now() < deadline {
            after = executors.run("a", LONG, || 2);
        }
        assert_eq!(after, Some(2));
    }
}
