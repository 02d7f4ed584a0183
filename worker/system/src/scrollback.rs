//! The last output of a shell. Offsets count from the shell's start. Pure.

use std::collections::VecDeque;

#[derive(Debug)]
pub struct Scrollback {
    bytes: VecDeque<u8>,
    end: u64,
    most: usize,
}

impl Scrollback {
    /// An empty scrollback for the last `most` bytes.
    pub const fn new(most: usize) -> Self {
        Self { bytes: VecDeque::new(), end: 0, most }
    }

    /// Adds output, and drops the oldest bytes beyond the limit.
    pub fn push(&mut self, data: &[u8]) {
        self.end = self.end.saturating_add(data.len() as u64);
        let kept = data.get(data.len().saturating_sub(self.most)..).unwrap_or_default();
        let over = (self.bytes.len() + kept.len()).saturating_sub(self.most);
        self.bytes.drain(..over.min(self.bytes.len()));
        self.bytes.extend(kept);
    }

    /// The offset of the first byte.
    pub fn start(&self) -> u64 {
        self.end - self.bytes.len() as u64
    }

    /// The offset of the next byte.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// At most `most` bytes from this offset; none for an offset outside.
    pub fn copy(&self, from: u64, most: usize) -> Vec<u8> {
        let skipped = from.checked_sub(self.start()).and_then(|n| usize::try_from(n).ok());
        skipped.map_or_else(Vec::new, |n| self.bytes.iter().skip(n).take(most).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_end_of_everything(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20),
                                       most in 1usize..64, from in 0u64..400, wanted in 0usize..80) {
            let (mut whole, mut kept) = (Vec::new(), Scrollback::new(most));
            for piece in &pieces {
                whole.extend_from_slice(piece);
                kept.push(piece);
            }
            prop_assert_eq!(kept.end(), whole.len() as u64);
            prop_assert_eq!(kept.start(), whole.len().saturating_sub(most) as u64);
            let copy = kept.copy(from, wanted);
            if from < kept.start() || from > kept.end() {
                prop_assert!(copy.is_empty());
            } else {
                let from = usize::try_from(from).unwrap();
                prop_assert_eq!(&copy[..], &whole[from..whole.len().min(from + wanted)]);
            }
        }
    }
}
