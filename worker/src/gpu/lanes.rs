//! Calls that must not hold up whoever makes them: each board has a thread of its own for its calls, and
//! each call a deadline.
//!
//! A library call cannot be ended from outside. One that hangs keeps its thread, and everybody else who
//! asks for the same board is told at once that it does not answer, until the call has come back. Knows
//! nothing of what is called.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// When the call that a lane makes at present began, and how long it may take.
type Running = Arc<Mutex<Option<(Instant, Duration)>>>;

struct Lane {
    queue: mpsc::Sender<Job>,
    running: Running,
    thread: JoinHandle<()>,
}

/// A call that its lane was handed.
pub struct Pending<T> {
    answered: mpsc::Receiver<T>,
    /// It has begun, or is not wanted any more.
    taken: Arc<AtomicBool>,
    running: Running,
    limit: Duration,
}

impl<T> Pending<T> {
    /// Its answer. `None` when it was not done in time: then it either never begins, or hangs and its lane
    /// with it.
    fn wait(self) -> Option<T> {
        match self.answered.recv_timeout(self.limit) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if !self.taken.swap(true, Ordering::SeqCst) {
            return None;
        }
        // It began late, behind another: it has the whole of its own time.
        self.answered.recv_timeout(left(&self.running).unwrap_or(Duration::ZERO)).ok()
    }

    /// Its answer, if that comes by then. One that has begun goes on unheard, with the time that it has.
    pub fn by(self, at: Instant) -> Option<T> {
        let answer = self.answered.recv_timeout(at.saturating_duration_since(Instant::now())).ok();
        self.taken.store(true, Ordering::SeqCst);
        answer
    }
}

/// A thread for each name.
#[derive(Default)]
pub struct Lanes {
    lanes: Mutex<HashMap<String, Lane>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long the running call may still take; zero when it is late. `None`: none runs.
fn left(running: &Running) -> Option<Duration> {
    lock(running).map(|(since, limit)| limit.saturating_sub(since.elapsed()))
}

fn open(name: &str) -> Option<Lane> {
    let (queue, jobs) = mpsc::channel::<Job>();
    let work = move || {
        for job in jobs {
            job();
        }
    };
    let thread = std::thread::Builder::new().name(format!("gpu {name}")).spawn(work).ok()?;
    Some(Lane { queue, running: Running::default(), thread })
}

impl Lanes {
    /// Whether a call in this lane is late.
    pub fn is_stuck(&self, name: &str) -> bool {
        let late = |lane: &Lane| !lane.thread.is_finished() && left(&lane.running) == Some(Duration::ZERO);
        lock(&self.lanes).get(name).is_some_and(late)
    }

    /// The queue of a lane; `None` while it is stuck, and when the host gives no thread.
    fn lane(&self, name: &str) -> Option<(mpsc::Sender<Job>, Running)> {
        let mut lanes = lock(&self.lanes);
        // A thread that died took its call with it, by a panic; the next call gets a new one.
        if lanes.get(name).is_none_or(|lane| lane.thread.is_finished()) {
            lanes.insert(name.to_owned(), open(name)?);
        }
        let lane = lanes.get(name)?;
        if left(&lane.running) == Some(Duration::ZERO) {
            return None;
        }
        Some((lane.queue.clone(), lane.running.clone()))
    }

    /// Makes a call in its lane, after those that are there already. `None` when it was not done in time:
    /// then it either never begins, or hangs and its lane with it.
    pub fn run<T: Send + 'static>(
        &self,
        name: &str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.start(name, limit, call)?.wait()
    }

    /// Hands a call to its lane, after those that are there already. `None` while the lane is stuck.
    pub fn start<T: Send + 'static>(
        &self,
        name: &str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Pending<T>> {
        let (queue, running) = self.lane(name)?;
        let (answer, answered) = mpsc::sync_channel(1);
        let taken = Arc::new(AtomicBool::new(false));
        let (claim, busy) = (taken.clone(), running.clone());
        let job: Job = Box::new(move || {
            // Nobody waits any more: what is not wanted must not happen later.
            if claim.swap(true, Ordering::SeqCst) {
                return;
            }
            *lock(&busy) = Some((Instant::now(), limit));
            let result = call();
            *lock(&busy) = None;
            // Who gave up does not hear it.
            let _ = answer.send(result);
        });
        queue.send(job).ok()?;
        Some(Pending { answered, taken, running, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(60);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_call_that_hangs_holds_up_its_own_lane_only() {
        let lanes = Lanes::default();
        assert_eq!(lanes.run("a", LONG, || 7), Some(7));
        let (go, gate) = mpsc::channel::<()>();
        let hung = lanes.run("a", SHORT, move || gate.recv().is_ok());
        assert_eq!((hung, lanes.is_stuck("a"), lanes.is_stuck("b")), (None, true, false));
        let begun = Instant::now();
        assert_eq!(lanes.run("a", LONG, || 8), None, "said at once");
        assert!(begun.elapsed() < LONG);
        assert_eq!(lanes.run("b", LONG, || 9), Some(9));
        go.send(()).unwrap();
        let deadline = Instant::now() + LONG;
        while lanes.is_stuck("a") && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(lanes.run("a", LONG, || 10), Some(10), "it answers again");
    }

    #[test]
    fn what_was_given_up_while_it_waited_never_happens() {
        let lanes = Arc::new(Lanes::default());
        let (go, gate) = mpsc::channel::<()>();
        let (begun, first_began) = mpsc::channel::<()>();
        let other = lanes.clone();
        let first = std::thread::spawn(move || {
            other.run("a", LONG, move || {
                begun.send(()).unwrap();
                gate.recv().is_ok()
            })
        });
        first_began.recv().unwrap();
        let happened = Arc::new(AtomicBool::new(false));
        let flag = happened.clone();
        assert_eq!(lanes.run("a", SHORT, move || flag.store(true, Ordering::SeqCst)), None);
        assert!(!lanes.is_stuck("a"), "the first has its time");
        go.send(()).unwrap();
        assert_eq!(first.join().unwrap(), Some(true));
        assert_eq!(lanes.run("a", LONG, || 1), Some(1));
        assert!(!happened.load(Ordering::SeqCst));
    }

    #[test]
    fn who_has_no_patience_hears_the_others() {
        let lanes = Lanes::default();
        let (go, gate) = mpsc::channel::<()>();
        let (begun, began) = mpsc::channel::<()>();
        let hold = move || {
            begun.send(()).unwrap();
            gate.recv().is_ok()
        };
        let slow = lanes.start("a", LONG, hold).unwrap();
        began.recv().unwrap();
        let behind = Arc::new(AtomicBool::new(false));
        let flag = behind.clone();
        let second = lanes.start("a", LONG, move || flag.store(true, Ordering::SeqCst)).unwrap();
        let other = lanes.start("b", LONG, || 3).unwrap();
        assert_eq!(other.by(Instant::now() + LONG), Some(3));
        let at = Instant::now() + SHORT;
        assert_eq!((slow.by(at), second.by(at)), (None, None));
        assert!(!lanes.is_stuck("a"), "it has its time");
        go.send(()).unwrap();
        assert_eq!(lanes.run("a", LONG, || 4), Some(4));
        assert!(!behind.load(Ordering::SeqCst), "nobody wanted it any more");
    }

    #[test]
    fn a_lane_survives_a_call_that_panics() {
        let lanes = Lanes::default();
        let broken: Option<u8> =
            lanes.run("a", LONG, || -> u8 { std::panic::resume_unwind(Box::new("broken")) });
        assert_eq!(broken, None);
        let deadline = Instant::now() + LONG;
        let mut after = None;
        while after.is_none() && Instant::now() < deadline {
            after = lanes.run("a", LONG, || 2);
        }
        assert_eq!(after, Some(2));
    }
}
