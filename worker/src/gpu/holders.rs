//! Who is on a device. Knows nothing of whose processes they are.
//!
//! A driver goes through all processes to say it, and of a shared board every attempt asks that ends there. So
//! those who ask while a question waits hear its answer, and one question follows another after a while.

#![expect(
    unsafe_code,
    reason = "the wrapper asks how many they are before it asks who, and each is as much work"
)]

use std::collections::HashMap;
use std::mem::zeroed;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use super::library::{Library, lock};
use super::{GpuError, from_code};

/// For how many processes there is room at first, and for how many more than there were.
const ROOM: u32 = 64;
/// `NVML_ERROR_INSUFFICIENT_SIZE`.
const INSUFFICIENT_SIZE: u32 = 7;

/// Between the beginnings of two questions about a board.
const PACE: Duration = Duration::from_millis(50);

type Answer = Result<Vec<u32>, GpuError>;

/// The questions about each board.
#[derive(Default)]
pub(super) struct Questions(Mutex<HashMap<String, Question>>);

#[derive(Default)]
struct Question {
    /// Who else hears the answer of the one that waits; `None` while none waits.
    shared: Option<Vec<mpsc::Sender<Answer>>>,
    not_before: Option<Instant>,
}

impl Questions {
    /// An answer to a question that is asked after this is called, by this caller or by another.
    pub fn ask(&self, gpu_uuid: &str, ask: impl FnOnce() -> Answer) -> Answer {
        let now = Instant::now();
        let wait = {
            let mut questions = lock(&self.0);
            let question = questions.entry(gpu_uuid.to_owned()).or_default();
            if let Some(shared) = &mut question.shared {
                let (tell, told) = mpsc::channel();
                shared.push(tell);
                drop(questions);
                // Whoever asked is gone only by a panic.
                return told.recv().unwrap_or(Err(GpuError::Unresponsive));
            }
            question.shared = Some(Vec::new());
            question.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
        };
        std::thread::sleep(wait);
        let shared = {
            let mut questions = lock(&self.0);
            let question = questions.entry(gpu_uuid.to_owned()).or_default();
            question.not_before = Some(Instant::now() + PACE);
            question.shared.take().unwrap_or_default()
        };
        let answer = ask();
        for one in shared {
            // It waits for nothing else.
            let _ = one.send(answer.clone());
        }
        answer
    }
}

impl Library {
    /// The compute processes on a board, or on a MIG device.
    pub fn holders(&self, device_uuid: &str) -> Result<Vec<u32>, GpuError> {
        let device = self.device(device_uuid)?;
        let symbol = self.nvml.lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref();
        let symbol = symbol.map_err(|_| GpuError::Nvml("it cannot tell who is on a device".to_owned()))?;
        let mut room = ROOM;
        loop {
            // SAFETY: a plain C struct, for which zeroes are a value.
            let mut rows: Vec<nvmlProcessInfo_t> = vec![unsafe { zeroed() }; room as usize];
            let mut count = room;
            // SAFETY: the handle is used only for this call, and there is room for as many as it is told.
            let code = unsafe { symbol(device.handle(), &raw mut count, rows.as_mut_ptr()) };
            match code {
                0 => return Ok(rows.iter().take(count as usize).map(|row| row.pid).collect()),
                INSUFFICIENT_SIZE if count > room => room = count.saturating_add(ROOM),
                other => return Err(from_code(other)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn those_who_wait_hear_one_answer_that_was_asked_for_later() {
        let (questions, asked) = (Questions::default(), AtomicU32::new(0));
        let ask = |gpu: &str| questions.ask(gpu, || Ok(vec![asked.fetch_add(1, Ordering::SeqCst)]));
        let began = Instant::now();
        assert_eq!(ask("a"), Ok(vec![0]));
        // The next one waits, and whoever comes meanwhile with it.
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| ask("a"))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(began.elapsed() >= PACE);
        let numbers: Vec<u32> = answers.into_iter().map(|answer| answer.unwrap()[0]).collect();
        assert!(numbers.iter().all(|number| *number >= 1), "not the answer of before: {numbers:?}");
        assert_eq!(ask("b"), Ok(vec![asked.load(Ordering::SeqCst) - 1]), "of another board");
        let lost = |gpu: &str| questions.ask(gpu, || Err(GpuError::Lost));
        assert_eq!(lost("b"), Err(GpuError::Lost));
        assert!(ask("b").is_ok(), "a failure is nobody's for ever");
    }

    #[test]
    fn whoever_asks_for_all_may_fail() {
        let questions = Questions::default();
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            questions.ask("a", || std::panic::resume_unwind(Box::new("broken")))
        }));
        assert!(failed.is_err());
        assert_eq!(questions.ask("a", || Ok(vec![1])), Ok(vec![1]));
    }
}
