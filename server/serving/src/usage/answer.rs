//! The usage of a whole answer in JSON.

use super::members::MemberScanner;
use super::{BYTES_PER_TOKEN, Report, Sent, Tokens, Usage, settle};

/// Reads the usage of one answer. It keeps a few kilobytes, however large the answer is.
#[derive(Debug)]
pub struct AnswerMeter {
    worst: Tokens,
    body_bytes: u64,
    scanner: MemberScanner,
    bytes: u64,
}

impl AnswerMeter {
    /// For a request with this worst case and this many bytes in its body.
    pub const fn new(worst: Tokens, body_bytes: u64) -> Self {
        Self { worst, body_bytes, scanner: MemberScanner::new("usage"), bytes: 0 }
    }

    /// Reads the next part of the body of the answer.
    pub fn push(&mut self, part: &[u8]) {
        self.bytes = self.bytes.saturating_add(part.len() as u64);
        self.scanner.push(part);
    }

    /// The usage of what came. `is_whole` says that the answer ended as its protocol demands; a broken one
    /// counts what was sent.
    pub fn finish(self, is_whole: bool) -> Usage {
        let report: Option<Report> =
            self.scanner.value().and_then(|value| serde_json::from_slice(value).ok());
        let sent = Sent { tokens: self.bytes.div_ceil(BYTES_PER_TOKEN), at_least: 0, is_whole };
        settle(self.worst, self.body_bytes, report.as_ref(), sent)
    }
}
