//! The overwriting of all free memory of a device, and its proof by samples.

use std::time::Instant;

use super::messages::{Cleared, Progress};

/// The largest and the smallest allocation in bytes.
const LARGEST: u64 = 1 << 30;
const SMALLEST: u64 = 2 << 20;
/// The bytes of a word.
const WORD: u64 = 4;
/// The random words of each allocation that are read back, beside the first and the last.
const RANDOM_SAMPLES: u64 = 2;
/// The part of the memory that may stay with the driver: a thirty-second, and a gigabyte of a small device.
const DRIVER_PART: u64 = 32;
const DRIVER_BYTES: u64 = 1 << 30;

/// The memory of one device, with errors as parts of a sentence.
pub(crate) trait DeviceMemory {
    /// Allocates memory and returns its address. `None`: there is no free memory of this size.
    fn allocate(&self, bytes: u64) -> Result<Option<u64>, String>;
    /// Fills memory with a word, possibly after the return.
    fn fill(&self, at: u64, word: u32, words: u64) -> Result<(), String>;
    /// Waits for the end of all fills.
    fn synchronize(&self) -> Result<(), String>;
    fn read_word(&self, at: u64) -> Result<u32, String>;
    fn free(&self, at: u64) -> Result<(), String>;
}

/// An allocation.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    at: u64,
    bytes: u64,
}

impl Chunk {
    const fn words(self) -> u64 {
        self.bytes / WORD
    }
}

/// Pseudo-random numbers for patterns and places of samples (splitmix64).
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Overwrites all free memory with patterns, proves that by samples, and overwrites it with zeros. `total_bytes` is the
/// memory of the device; `seed` chooses patterns and samples.
///
/// # Errors
/// A call of the driver fails, a sample differs, or too little memory is free.
pub(crate) fn overwrite(
    memory: &impl DeviceMemory,
    total_bytes: u64,
    seed: u64,
    began: Instant,
    mut progress: impl FnMut(Progress),
) -> Result<Cleared, String> {
    let chunks = allocate_all(memory, total_bytes)?;
    let cleared_bytes = chunks.iter().map(|chunk| chunk.bytes).sum::<u64>();
    check_part(cleared_bytes, total_bytes)?;
    let mut random = Random(seed);
    // Each chunk has a pattern of its own, so that two addresses of the same memory are found. The lowest bit keeps a
    // pattern from zero.
    let first = random.draw();
    let pattern = |number: u64| (Random(first ^ number).draw() >> 32) as u32 | 1;
    let mut done = 0;
    for (number, chunk) in (0..).zip(&chunks) {
        memory.fill(chunk.at, pattern(number), chunk.words())?;
        memory.synchronize()?;
        done += chunk.bytes;
        progress(Progress { cleared_bytes: done, total_bytes: cleared_bytes });
    }
    let mut samples = verify(memory, &chunks, &mut random, pattern)?;
    for chunk in &chunks {
        memory.fill(chunk.at, 0, chunk.words())?;
    }
    memory.synchronize()?;
    samples += verify(memory, &chunks, &mut random, |_| 0)?;
    for chunk in &chunks {
        memory.free(chunk.at)?;
    }
    let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Cleared { cleared_bytes, total_bytes, samples, took_ms })
}

/// Allocates until no memory is free.
fn allocate_all(memory: &impl DeviceMemory, total_bytes: u64) -> Result<Vec<Chunk>, String> {
    let (mut chunks, mut taken, mut bytes) = (Vec::new(), 0, LARGEST);
    // A device cannot give more than its memory.
    while bytes >= SMALLEST && taken < total_bytes {
        match memory.allocate(bytes)? {
            Some(at) => {
                chunks.push(Chunk { at, bytes });
                taken += bytes;
            }
            None => bytes /= 2,
        }
    }
    Ok(chunks)
}

/// Checks that nobody but the driver kept memory.
fn check_part(cleared_bytes: u64, total_bytes: u64) -> Result<(), String> {
    let kept = total_bytes.saturating_sub(cleared_bytes);
    if kept <= (total_bytes / DRIVER_PART).max(DRIVER_BYTES) && cleared_bytes > 0 {
        return Ok(());
    }
    Err(format!("only {} of {} MiB are free", cleared_bytes >> 20, total_bytes >> 20))
}

/// Reads samples of each chunk and compares them. Returns their number.
fn verify(
    memory: &impl DeviceMemory,
    chunks: &[Chunk],
    random: &mut Random,
    expected: impl Fn(u64) -> u32,
) -> Result<u64, String> {
    let mut samples = 0;
    for (number, chunk) in (0..).zip(chunks) {
        let words = chunk.words();
        let mut places = vec![0, words.saturating_sub(1)];
        places.extend((0..RANDOM_SAMPLES).map(|_| random.draw() % words.max(1)));
        for place in places {
            if memory.read_word(chunk.at + place * WORD)? != expected(number) {
                return Err("a word that was read back differs from the word that was written".to_owned());
            }
            samples += 1;
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    /// A device that keeps one word for each chunk.
    struct Fake {
        free_bytes: RefCell<u64>,
        words: RefCell<BTreeMap<u64, u32>>,
        /// Fills after this number have no effect.
        fills: RefCell<u32>,
        next: RefCell<u64>,
    }

    impl Fake {
        fn with(free_bytes: u64, fills: u32) -> Self {
            Self {
                free_bytes: RefCell::new(free_bytes),
                words: RefCell::default(),
                fills: RefCell::new(fills),
                next: RefCell::new(0),
            }
        }
    }

    impl DeviceMemory for Fake {
        fn allocate(&self, bytes: u64) -> Result<Option<u64>, String> {
            if *self.free_bytes.borrow() < bytes {
                return Ok(None);
            }
            *self.free_bytes.borrow_mut() -= bytes;
            let at = self.next.replace_with(|next| *next + bytes);
            // The data of somebody else.
            self.words.borrow_mut().insert(at, 0xdead);
            Ok(Some(at))
        }

        fn fill(&self, at: u64, word: u32, _words: u64) -> Result<(), String> {
            let fills = self.fills.replace_with(|fills| fills.saturating_sub(1));
            if fills > 0 {
                self.words.borrow_mut().insert(at, word);
            }
            Ok(())
        }

        fn synchronize(&self) -> Result<(), String> {
            Ok(())
        }

        fn read_word(&self, at: u64) -> Result<u32, String> {
            Ok(self.words.borrow().range(..=at).next_back().map_or(0, |(_, word)| *word))
        }

        fn free(&self, at: u64) -> Result<(), String> {
            self.words.borrow_mut().remove(&at).map(|_| ()).ok_or_else(|| "unknown".to_owned())
        }
    }

    const GIB: u64 = 1 << 30;

    fn run(memory: &Fake, total_bytes: u64) -> Result<Cleared, String> {
        overwrite(memory, total_bytes, 7, Instant::now(), |_| ())
    }

    #[test]
    fn all_free_memory_is_overwritten_and_freed() {
        let memory = Fake::with(5 * GIB + (7 << 20), u32::MAX);
        let cleared = run(&memory, 6 * GIB).unwrap();
        // Five of 1 GiB, then 4 and 2 MiB: one MiB is below the smallest allocation.
        assert_eq!(cleared.cleared_bytes, 5 * GIB + (6 << 20));
        assert_eq!((cleared.total_bytes, cleared.samples), (6 * GIB, 2 * 7 * 4));
        assert!(memory.words.borrow().is_empty(), "nothing stays allocated");
    }

    #[test]
    fn the_progress_reaches_the_whole() {
        let (memory, mut seen) = (Fake::with(2 * GIB, u32::MAX), Vec::new());
        overwrite(&memory, 2 * GIB, 1, Instant::now(), |progress| seen.push(progress.cleared_bytes)).unwrap();
        assert_eq!(seen, [GIB, 2 * GIB]);
    }

    #[test]
    fn memory_of_another_process_fails() {
        let failure = run(&Fake::with(60 * GIB, u32::MAX), 80 * GIB).unwrap_err();
        assert_eq!(failure, "only 61440 of 81920 MiB are free");
        assert!(run(&Fake::with(0, u32::MAX), GIB).is_err(), "nothing is free");
    }

    #[test]
    fn a_write_without_effect_is_found() {
        // The second chunk keeps its data; then the zeros of the last chunk are missing.
        for fills in [1, 3] {
            assert!(run(&Fake::with(2 * GIB, fills), 2 * GIB).is_err(), "{fills}");
        }
        assert!(run(&Fake::with(2 * GIB, 4), 2 * GIB).is_ok());
    }
}
