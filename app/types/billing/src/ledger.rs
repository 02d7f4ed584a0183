//! Types of the balance and of the ledger, with credits and debits.

use serde::{Deserialize, Serialize};

use berth_values::ids::{OrgId, TransferId};
use berth_values::time::Timestamp;

/// The balance of an organization's account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Balance {
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// Credits less charges and debits, in micro-units of the currency.
    pub posted_micros: i64,
    /// Holds for waiting and running jobs and for reservations, in micro-units of the currency.
    pub held_micros: i64,
    /// Use of running jobs since their last posted charge, as a part of `held_micros`; in micro-units of the
    /// currency.
    pub accrued_micros: i64,
    /// The permitted debt of the account, paid later by invoice; in micro-units of the currency.
    #[serde(default)]
    pub credit_limit_micros: i64,
    /// The money for new jobs: `posted_micros` and `credit_limit_micros` less `held_micros`; in micro-units
    /// of the currency.
    pub available_micros: i64,
    /// The present expense in micro-units of the currency an hour.
    pub burn_per_hour_micros: i64,
    /// Expiring credits as parts of `posted_micros`, soonest first; at most 20.
    #[serde(default)]
    pub expiring: Vec<ExpiringCredit>,
}

/// The rest of an expiring credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExpiringCredit {
    /// The rest of the credit in micro-units of the currency.
    pub amount_micros: i64,
    /// The expiry of the rest.
    pub expires_at: Timestamp,
}

/// The kind of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TransferKind {
    /// Money for the account from a grant, a payment or a return.
    Credit,
    /// Money set aside, without a change of the posted balance.
    Hold,
    /// The return of the unused rest of a hold.
    Release,
    /// A charge for proved use.
    Usage,
    /// Money out of the account other than a charge: a refund or an expired credit.
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

/// One immutable row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Transfer {
    /// The id of the transfer.
    pub id: TransferId,
    /// The kind of the transfer.
    pub kind: TransferKind,
    /// The amount in micro-units of the currency with the sign of its effect on the available money: positive
    /// for a credit or a release, negative for a charge, a debit or a hold.
    pub amount_micros: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The kind of the cause, such as `job`, `grant`, `expiry`, or `evidence` for charges without evidence.
    pub source: String,
    /// The id of the cause, such as the id of a job.
    pub source_id: String,
    /// The name of the cause for people.
    pub memo: String,
    /// The time of the transfer.
    pub at: Timestamp,
    /// The expiry of the rest of an expiring credit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// The body of a credit for one organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewCredit {
    /// The amount in micro-units of the currency: more than 0, at most 10^15.
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 1, max = 1_000_000_000_000_000_i64), example = 25_000_000)
    )]
    pub amount_micros: i64,
    /// A text for the organization's statement, at most 200 printable characters; a standard text when blank.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 200), regex(pattern = berth_values::patterns::PRINTABLE)))]
    pub memo: String,
    /// The expiry of the unused rest: in the future and within ten years; no expiry when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// One grant of a bulk credit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewGrant {
    /// The organization; at most one grant for each.
    pub organization: OrgId,
    /// The amount in micro-units of the currency: more than 0, at most 10^15; the sum of all grants is less
    /// than 2^63.
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 1, max = 1_000_000_000_000_000_i64), example = 25_000_000)
    )]
    pub amount_micros: i64,
    /// A text for the organization's statement, at most 200 printable characters; a standard text when blank.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 200), regex(pattern = berth_values::patterns::PRINTABLE)))]
    pub memo: String,
}

/// The body of a bulk credit for many organizations. Either all grants are posted or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewCredits {
    /// 1 to 10000 grants.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 10_000)))]
    pub grants: Vec<NewGrant>,
}

/// The result of a bulk credit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Granted {
    /// The number of organizations.
    pub organizations: i64,
    /// The sum of all grants in micro-units of the currency.
    pub total_micros: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
}

/// The body of a debit: a refund to a card or a correction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewDebit {
    /// The amount in micro-units of the currency: more than 0, at most 10^15 and at most the available money.
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 1, max = 1_000_000_000_000_000_i64), example = 1_000_000)
    )]
    pub amount_micros: i64,
    /// A text for the organization's statement: 1 to 200 characters with the white space around them, and
    /// printable without it.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 200), regex(pattern = berth_values::patterns::NOT_BLANK))
    )]
    pub memo: String,
}

/// The permitted debt of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreditLimit {
    /// The permitted debt in micro-units of the currency, 0 to 10^15.
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 0, max = 1_000_000_000_000_000_i64), example = 100_000_000)
    )]
    pub credit_limit_micros: i64,
}

/// A check of the ledger against its sums at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reconciliation {
    /// The time of the check.
    pub at: Timestamp,
    /// One sentence for each difference; empty for a correct ledger.
    pub mismatches: Vec<String>,
    /// The number of checked transfers.
    pub transfers: i64,
    /// The length of the check in milliseconds.
    pub took_ms: i64,
}
