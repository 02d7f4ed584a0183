//! Questions that many ask at the same time.
//!
//! A driver goes through all processes to say who is on a board, and of a shared one every attempt asks that ends
//! there. So those who ask while a question waits hear its answer, and one question follows another after a
//! while. Knows nothing of what is asked.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Between the beginnings of two questions about a board. All that wait are asked at the same time, so that what is
/// found out of several boards is told together.
const PACE: Duration = Duration::from_millis(100);

/// The questions about each board, whose answer is `T`.
#[derive(Debug)]
pub struct Questions<T> {
    /// Those that wait are asked when whole times of the pace have passed since then.
    since: Instant,
    boards: Mutex<HashMap<String, Question<T>>>,
}

#[derive(Debug)]
struct Question<T> {
    /// Who else hears the answer of the one that waits; `None` while none waits.
    shared: Option<Vec<mpsc::Sender<T>>>,
    not_before: Option<Instant>,
}

impl<T> Default for Questions<T> {
    fn default() -> Self {
        Self { since: Instant::now(), boards: Mutex::default() }
    }
}

impl<T> Default for Question<T> {
    fn default() -> Self {
        Self { shared: None, not_before: None }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Clone> Questions<T> {
    /// When those that wait now are asked.
    fn next(&self, now: Instant) -> Instant {
        let passed = now.saturating_duration_since(self.since);
        let over = Duration::from_nanos(u64::try_from(passed.as_nanos() % PACE.as_nanos()).unwrap_or(0));
        now + (PACE - over)
    }

    /// An answer to a question that is asked after this is called, by this caller or by another; `None` when that
    /// other one panicked.
    pub fn ask(&self, gpu_uuid: &str, ask: impl FnOnce() -> T) -> Option<T> {
        let now = Instant::now();
        let wait = {
            let mut questions = lock(&self.boards);
            let question = questions.entry(gpu_uuid.to_owned()).or_default();
            if let Some(shared) = &mut question.shared {
                let (tell, told) = mpsc::channel();
                shared.push(tell);
                drop(questions);
                return told.recv().ok();
            }
            question.shared = Some(Vec::new());
            question.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
        };
        std::thread::sleep(wait);
        let shared = {
            let mut questions = lock(&self.boards);
            let question = questions.entry(gpu_uuid.to_owned()).or_default();
            question.not_before = Some(self.next(Instant::now()));
            question.shared.take().unwrap_or_default()
        };
        let answer = ask();
        for one in shared {
            // It waits for nothing else.
            let _ = one.send(answer.clone());
        }
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn those_who_wait_hear_one_answer_that_was_asked_for_later() {
        let (questions, asked) = (Questions::default(), AtomicU32::new(0));
        let ask = |gpu: &str| questions.ask(gpu, || asked.fetch_add(1, Ordering::SeqCst));
        assert_eq!(ask("a"), Some(0));
        // The next one waits, and whoever comes meanwhile with it.
        let answers: Vec<Option<u32>> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| ask("a"))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|answer| *answer >= Some(1)), "not the answer of before: {answers:?}");
        assert_eq!(ask("b"), Some(asked.load(Ordering::SeqCst) - 1), "of another board");
    }

    #[test]
    fn all_boards_are_asked_at_the_same_time() {
        let questions = Questions::<u8>::default();
        let at = |ms: u64| questions.since + Duration::from_millis(ms);
        for (now, next) in [(0, 100), (1, 100), (99, 100), (100, 200), (1_234, 1_300)] {
            assert_eq!(questions.next(at(now)), at(next), "{now}");
        }
        let began = Instant::now();
        questions.ask("a", || 0);
        let next = questions.next(began);
        questions.ask("a", || 0);
        assert!(Instant::now() >= next, "the second waits");
    }

    #[test]
    fn whoever_asks_for_all_may_fail() {
        let questions = Questions::default();
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            questions.ask("a", || -> u8 { std::panic::resume_unwind(Box::new("broken")) })
        }));
        assert!(failed.is_err());
        assert_eq!(questions.ask("a", || 1), Some(1));
    }
}
