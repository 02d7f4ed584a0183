//! Credit for requests: the portal lends blocks of the budgets to gateways, and gateways hold the worst case of each
//! request from their blocks.
//!
//! Amounts are exact integers in nano-units. A block counts in its budgets with its whole size, which only becomes
//! smaller, and its spent part only becomes larger. So a lost, repeated or late message changes no sum, and budgets
//! hold however many gateways are cut off from the portal.
//!
//! The one rounding of tokens is at the ledger: a posting is the difference of two sums, each rounded down to
//! micro-units ([`posted_micros`]).

mod blocks;
mod borrower;
mod lender;

use berth_types::ids::OrgId;
use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::GatewayId;
pub use borrower::{Borrower, BorrowerTerms, Entry, HoldAnswer, Settled};
pub use lender::{Account, Answer, Charge, Lender, LenderTerms, Lent, Period};

/// The id of an inference key. It is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyId(pub u64);

/// The accounts that pay for a request: the organization and its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Payer {
    pub org: OrgId,
    pub key: KeyId,
}

/// The price of a service: by second of a replica, by token, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    pub nano_per_second: u64,
    pub nano_per_prompt_token: u64,
    pub nano_per_completion_token: u64,
}

/// The use of a service: of one request, or its worst case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub replica_ms: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

impl Price {
    /// The charge in nano-units: tokens exactly, and time rounded down. `None` on overflow.
    pub fn charge_nanos(&self, usage: &Usage) -> Option<u64> {
        let part = |rate: u64, count: u64| u128::from(rate) * u128::from(count);
        let time = part(self.nano_per_second, usage.replica_ms) / 1_000;
        let prompt = part(self.nano_per_prompt_token, usage.prompt_tokens);
        let completion = part(self.nano_per_completion_token, usage.completion_tokens);
        let sum = time.checked_add(prompt)?.checked_add(completion)?;
        u64::try_from(sum).ok()
    }
}

/// The micro-units to post for charges that raise a sum from `before` to `after` nano-units.
pub const fn posted_micros(before: u64, after: u64) -> u64 {
    (after / 1_000).saturating_sub(before / 1_000)
}

/// The id of a block: the number of the ask within one life of a gateway. An ask has one block at most, so a repeated
/// ask lends nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockId {
    pub gateway: GatewayId,
    /// A higher number for each life of the gateway that begins without the journal of the last one.
    pub life: u64,
    pub number: u64,
}

/// The request of a gateway for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ask {
    pub block: BlockId,
    pub payer: Payer,
    /// The least useful size in nano-units.
    pub least: u64,
    /// The preferred size.
    pub wish: u64,
    /// A request waits for it. Only then the portal recalls other blocks.
    pub waits: bool,
}

/// The state of a block at its gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Report {
    pub block: BlockId,
    /// The size in nano-units without the returned part.
    pub size: u64,
    /// The settled charges.
    pub spent: u64,
    /// The block gets no new request.
    pub ending: bool,
}

/// A message of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Content {
    Ask(Ask),
    Report(Report),
}

/// A message of a gateway to the portal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ToPortal {
    pub content: Content,
    /// The least number of a block that the gateway still has; the portal forgets the blocks before it.
    pub oldest: u64,
}

/// A message of the portal to a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ToGateway {
    /// The answer to an ask. With the size 0 the ask is refused.
    Grant {
        block: BlockId,
        size: u64,
        /// The end of the block: no request begins with it afterwards.
        until: Timestamp,
    },
    /// The portal needs the unused part.
    Recall { block: BlockId },
    /// The portal has this report.
    Noted(Report),
}

impl ToGateway {
    /// The block of the message; its gateway is the receiver.
    pub const fn block(&self) -> BlockId {
        match self {
            Self::Grant { block, .. } | Self::Recall { block } => *block,
            Self::Noted(report) => report.block,
        }
    }
}

#[cfg(test)]
mod tests;
