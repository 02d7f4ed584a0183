//! Invoices: what was used in a month, as it was billed.

use serde::{Deserialize, Serialize};

use crate::ids::{InvoiceId, OrgId};
use crate::time::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InvoiceKind {
    Invoice,
    /// Takes back an invoice; or says what came back in a month of charges that were billed before.
    CreditNote,
}

impl InvoiceKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invoice => "invoice",
            Self::CreditNote => "credit_note",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InvoiceState {
    /// To be paid.
    Open,
    Paid,
    /// A credit note takes it back.
    Void,
    Uncollectible,
}

impl InvoiceState {
    pub const ALL: [Self; 4] = [Self::Open, Self::Paid, Self::Void, Self::Uncollectible];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Paid => "paid",
            Self::Void => "void",
            Self::Uncollectible => "uncollectible",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InvoiceLine {
    /// The slug of an offering, or what else it is.
    pub item: String,
    /// `on_demand`, `preemptible` or `reserved`; empty for others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mode: String,
    pub device_ms: i64,
    pub amount_micros: i64,
}

/// A rate on the sum, such as a sales tax.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TaxRate {
    pub name: String,
    /// Hundredths of a percent.
    pub basis_points: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TaxLine {
    pub name: String,
    pub basis_points: i64,
    pub amount_micros: i64,
}

/// What the operator's invoices say. Rates and address are those of the day on which one is issued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BillingSettings {
    /// Who bills: name and address, lines apart.
    #[serde(default)]
    pub seller: String,
    #[serde(default)]
    pub taxes: Vec<TaxRate>,
    /// Days until an invoice is due, for those who pay afterwards.
    #[serde(default)]
    pub due_days: i64,
}

/// What is issued and never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InvoiceDocument {
    pub seller: String,
    pub buyer: String,
    pub lines: Vec<InvoiceLine>,
    pub subtotal_micros: i64,
    pub taxes: Vec<TaxLine>,
    pub total_micros: i64,
    pub currency: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Invoice {
    pub id: InvoiceId,
    /// Without gaps over the whole portal.
    pub number: i64,
    pub kind: InvoiceKind,
    pub org: OrgId,
    /// The month that it is for, such as `2026-10`.
    pub month: String,
    pub state: InvoiceState,
    pub issued_at: Timestamp,
    /// Absent where it was paid from the balance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paid_at: Option<Timestamp>,
    /// The invoice that a credit note takes back; absent on one that says what came back in a month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrects: Option<InvoiceId>,
    pub document: InvoiceDocument,
}
