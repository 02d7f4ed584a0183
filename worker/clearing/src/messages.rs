//! The messages of the helper process: one JSON value in each line of its output.

use serde::{Deserialize, Serialize};

/// The proof of a clearing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleared {
    /// The overwritten memory in bytes.
    pub cleared_bytes: u64,
    /// The memory of the device in bytes. The rest belongs to the driver.
    pub total_bytes: u64,
    /// The number of words that were read back and compared.
    pub samples: u64,
    /// The duration in milliseconds.
    pub took_ms: u64,
}

impl Cleared {
    /// The proof for two devices together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            cleared_bytes: self.cleared_bytes.saturating_add(other.cleared_bytes),
            total_bytes: self.total_bytes.saturating_add(other.total_bytes),
            samples: self.samples.saturating_add(other.samples),
            took_ms: self.took_ms.saturating_add(other.took_ms),
        }
    }
}

/// The progress of a clearing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The memory that is overwritten so far, in bytes.
    pub cleared_bytes: u64,
    /// The memory to overwrite, in bytes.
    pub total_bytes: u64,
}

impl Progress {
    /// The progress as a sentence, in gigabytes of 10⁹ bytes.
    pub fn text(self) -> String {
        let gb = |bytes: u64| bytes / 1_000_000_000;
        format!("Clearing the memory of the GPU: {} of {} GB.", gb(self.cleared_bytes), gb(self.total_bytes))
    }
}

/// A line of the helper's output. The last line is `Cleared`, `Ready` or `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// The device is open and has so many bytes of memory.
    Opened(u64),
    Progress(Progress),
    Cleared(Cleared),
    /// The library has all calls.
    Ready,
    /// The reason, as a part of a sentence.
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_has_whole_gigabytes() {
        let progress = Progress { cleared_bytes: 40_999_999_999, total_bytes: 80_000_000_000 };
        assert_eq!(progress.text(), "Clearing the memory of the GPU: 40 of 80 GB.");
    }

    #[test]
    fn a_message_is_one_line() {
        for message in [Message::Ready, Message::Failed("a\nb".to_owned())] {
            let line = serde_json::to_string(&message).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), message);
        }
    }
}
