//! Usage: the tokens of a request and its answer.
//!
//! [`request`] reads a body and gives the worst case, which is held. [`answer`] reads the usage of a whole
//! answer, [`stream`] that of a stream of events. Both read parts as they come, in bounded memory. [`settle`]
//! decides what counts: no more than the worst case, and no less than the tokens that were seen.

pub mod answer;
mod members;
pub mod request;
pub mod stream;

use serde::Deserialize;
use serde_json::Value;

/// Bytes of a token where nothing else is known.
const BYTES_PER_TOKEN: u64 = 4;

/// The tokens of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tokens {
    pub prompt: u64,
    pub completion: u64,
}

impl Tokens {
    pub const fn total(self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }
}

/// A fault of a replica's usage. Each is counted for the owner of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A whole answer has no usage.
    Missing,
    /// A count is negative, a fraction, or no number.
    NotACount,
    /// A count is above the worst case of the request.
    AboveWorstCase,
    /// The completion has fewer tokens than the stream had events with text.
    BelowSent,
}

/// The counted tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub tokens: Tokens,
    /// False if the tokens follow from what was sent, in place of the replica's word.
    pub is_reported: bool,
    pub fault: Option<Fault>,
}

/// The usage as a replica reports it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Report {
    prompt_tokens: Option<Value>,
    completion_tokens: Option<Value>,
}

/// The observed part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sent {
    /// The tokens of the completion, by events of a stream or by bytes.
    tokens: u64,
    /// Tokens that were certainly sent.
    at_least: u64,
    is_whole: bool,
}

/// Decides what counts. An absent or impossible count becomes an estimate: of the prompt one token for each
/// four bytes of the body, of the completion what was sent.
fn settle(worst: Tokens, body_bytes: u64, report: Option<&Report>, sent: Sent) -> Usage {
    let estimate =
        Tokens { prompt: body_bytes.div_ceil(BYTES_PER_TOKEN).min(worst.prompt), completion: sent.tokens };
    let Some(report) = report else {
        let tokens = Tokens { completion: estimate.completion.min(worst.completion), ..estimate };
        return Usage { tokens, is_reported: false, fault: sent.is_whole.then_some(Fault::Missing) };
    };
    let mut fault = None;
    let prompt = count(report.prompt_tokens.as_ref(), worst.prompt, estimate.prompt, &mut fault);
    let mut completion = match &report.completion_tokens {
        // Embeddings have none.
        None if worst.completion == 0 => 0,
        reported => count(reported.as_ref(), worst.completion, estimate.completion, &mut fault),
    };
    let at_least = sent.at_least.min(worst.completion);
    if completion < at_least {
        fault = fault.or(Some(Fault::BelowSent));
        completion = at_least;
    }
    Usage { tokens: Tokens { prompt, completion }, is_reported: fault.is_none(), fault }
}

/// A reported count within the worst case, with its fault. The first fault stays.
fn count(reported: Option<&Value>, worst: u64, estimate: u64, fault: &mut Option<Fault>) -> u64 {
    let found = match reported {
        None | Some(Value::Null) => Err(Fault::Missing),
        Some(value) => value.as_u64().ok_or(Fault::NotACount),
    };
    let (value, found) = match found {
        Ok(value) if value > worst => (worst, Some(Fault::AboveWorstCase)),
        Ok(value) => (value, None),
        Err(found) => (estimate.min(worst), Some(found)),
    };
    *fault = fault.or(found);
    value
}

#[cfg(test)]
mod tests;
