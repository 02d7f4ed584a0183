//! One search for many callers.
//!
//! The driver walks through all processes to list those of a board, and every attempt that ends on a shared board
//! needs the list. So callers share the result of a search that has not begun yet, and searches keep a distance.

use std::collections::HashMap;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::sync::lock;

/// The distance between the begins of two searches of a board. All waiting searches begin at the same time, so the
/// results of several boards are reported together.
const PACE: Duration = Duration::from_millis(100);

/// The searches of each board with result `T`.
#[derive(Debug)]
pub struct SingleFlight<T> {
    /// Searches begin at multiples of the pace after this time.
    since: Instant,
    boards: Mutex<HashMap<String, BoardSearch<T>>>,
}

#[derive(Debug)]
struct BoardSearch<T> {
    /// The other callers of the waiting search. `None`: no search waits.
    shared: Option<Vec<mpsc::Sender<T>>>,
    not_before: Option<Instant>,
}

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self { since: Instant::now(), boards: Mutex::default() }
    }
}

impl<T> Default for BoardSearch<T> {
    fn default() -> Self {
        Self { shared: None, not_before: None }
    }
}

impl<T: Clone> SingleFlight<T> {
    /// The begin of the searches that wait now.
    fn next_begin(&self, now: Instant) -> Instant {
        let passed = now.saturating_duration_since(self.since);
        let over = Duration::from_nanos(u64::try_from(passed.as_nanos() % PACE.as_nanos()).unwrap_or(0));
        now + (PACE - over)
    }

    /// The result of a search that begins after this call, run by this caller or another. `None`: the other caller
    /// panicked.
    pub fn run(&self, gpu_uuid: &str, search: impl FnOnce() -> T) -> Option<T> {
        let now = Instant::now();
        let wait = {
            let mut boards = lock(&self.boards);
            let waiting = boards.entry(gpu_uuid.to_owned()).or_default();
            if let Some(shared) = &mut waiting.shared {
                let (sender, result) = mpsc::channel();
                shared.push(sender);
                drop(boards);
                return result.recv().ok();
            }
            waiting.shared = Some(Vec::new());
            waiting.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
        };
        std::thread::sleep(wait);
        let shared = {
            let mut boards = lock(&self.boards);
            let begun = boards.entry(gpu_uuid.to_owned()).or_default();
            begun.not_before = Some(self.next_begin(Instant::now()));
            begun.shared.take().unwrap_or_default()
        };
        let result = search();
        for caller in shared {
            // The caller waits only for this.
            let _ = caller.send(result.clone());
        }
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn waiting_callers_share_a_search_that_begins_later() {
        let (searches, asked) = (SingleFlight::default(), AtomicU32::new(0));
        let ask = |gpu: &str| searches.run(gpu, || asked.fetch_add(1, Ordering::SeqCst));
        assert_eq!(ask("a"), Some(0));
        // The next search waits, and later callers share it.
        let answers: Vec<Option<u32>> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| ask("a"))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|answer| *answer >= Some(1)), "not the answer of before: {answers:?}");
        assert_eq!(ask("b"), Some(asked.load(Ordering::SeqCst) - 1), "of another board");
    }

    #[test]
    fn searches_of_all_boards_begin_together() {
        let searches = SingleFlight::<u8>::default();
        let at = |ms: u64| searches.since + Duration::from_millis(ms);
        for (now, next) in [(0, 100), (1, 100), (99, 100), (100, 200), (1_234, 1_300)] {
            assert_eq!(searches.next_begin(at(now)), at(next), "{now}");
        }
        let began = Instant::now();
        searches.run("a", || 0);
        let next = searches.next_begin(began);
        searches.run("a", || 0);
        assert!(Instant::now() >= next, "the second waits");
    }

    #[test]
    fn a_caller_that_searches_for_all_may_panic() {
        let searches = SingleFlight::default();
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            searches.run("a", || -> u8 { std::panic::resume_unwind(Box::new("broken")) })
        }));
        assert!(failed.is_err());
        assert_eq!(searches.run("a", || 1), Some(1));
    }
}
