//! Balance and the rows of the ledger as a tenant sees them.

use serde::{Deserialize, Serialize};

use crate::ids::{OrgId, TransferId};
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Balance {
    pub currency: String,
    /// Credits less all posted charges.
    pub posted_micros: i64,
    /// Set aside for jobs that wait or run.
    pub held_micros: i64,
    /// Used by running jobs since their last posted charge; inside `held_micros`.
    pub accrued_micros: i64,
    /// How far below nothing the account may go: paid afterwards, by invoice.
    #[serde(default)]
    pub credit_limit_micros: i64,
    /// What a new job can draw on: posted and the credit limit, less held.
    pub available_micros: i64,
    /// What is spent an hour at this moment.
    pub burn_per_hour_micros: i64,
    /// Credit that is going to expire, soonest first; at most twenty of them. Inside `posted_micros`.
    #[serde(default)]
    pub expiring: Vec<ExpiringCredit>,
}

/// What is left of a grant that expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExpiringCredit {
    pub amount_micros: i64,
    pub expires_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TransferKind {
    /// Credit granted by the operator.
    Credit,
    /// Money set aside; moves nothing.
    Hold,
    /// The unused rest of a hold, given back.
    Release,
    /// A charge for proved use.
    Usage,
    /// Money that leaves the account unspent: a refund, or credit that has expired.
    Debit,
}

impl TransferKind {
    pub const ALL: [Self; 5] = [Self::Credit, Self::Hold, Self::Release, Self::Usage, Self::Debit];
    pub const fn name(self) -> &'static str {
        match self {
            Self::Credit => "credit",
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Usage => "usage",
            Self::Debit => "debit",
        }
    }
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// One immutable row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Transfer {
    pub id: TransferId,
    pub kind: TransferKind,
    /// Signed as the balance feels it: credits above zero, charges below; holds and releases as
    /// they change what is available.
    pub amount_micros: i64,
    pub currency: String,
    /// What caused it: `job`, `grant`, `expiry`; `evidence` for what a job's evidence does not bear out.
    pub source: String,
    /// The id of the cause, such as a job's.
    pub source_id: String,
    /// The cause's name, for people.
    pub memo: String,
    pub at: Timestamp,
    /// When what is left of it is taken back, for a grant that expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewCredit {
    pub amount_micros: i64,
    /// Shown to the tenant in the statement.
    #[serde(default)]
    pub memo: String,
    /// When what is left of it is taken back: later than now, within ten years. Absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// One of many grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewGrant {
    pub organization: OrgId,
    pub amount_micros: i64,
    /// Shown to the tenant in the statement.
    #[serde(default)]
    pub memo: String,
}

/// Grants to many organizations at once, such as a month's credit for every group; all or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewCredits {
    /// 1 to 10,000.
    pub grants: Vec<NewGrant>,
}

/// What was granted at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Granted {
    pub organizations: i64,
    pub total_micros: i64,
    pub currency: String,
}

/// Money taken back from an account: a refund to a card, or a correction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewDebit {
    pub amount_micros: i64,
    /// Shown to the tenant in the statement.
    pub memo: String,
}

/// How far below nothing an account may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreditLimit {
    pub credit_limit_micros: i64,
}

/// Whether the books are right, as of a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reconciliation {
    pub at: Timestamp,
    /// What does not add up; empty when everything does.
    pub mismatches: Vec<String>,
    pub transfers: i64,
    pub took_ms: i64,
}
