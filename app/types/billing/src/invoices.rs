//! Types of invoices: the final bill or credit note of a month.

use serde::{Deserialize, Serialize};

use crate::ledger::TransferKind;
use berth_values::ids::{InvoiceId, OrgId};
use berth_values::time::Timestamp;

/// The kind of an invoice document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InvoiceKind {
    /// The bill of a month.
    Invoice,
    /// A cancellation of an invoice, or a month's credits for charges of earlier invoices.
    CreditNote,
}

impl InvoiceKind {
    pub const ALL: [Self; 2] = [Self::Invoice, Self::CreditNote];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Invoice => "invoice",
            Self::CreditNote => "credit_note",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }
}

/// The payment state of an invoice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InvoiceState {
    /// Not paid yet.
    Open,
    /// Paid from the balance, by card, or by another way that an operator has recorded.
    Paid,
    /// Cancelled by a credit note.
    Void,
    /// Written off.
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

/// One line of an invoice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InvoiceLine {
    /// The slug of an offering, or the text of another item.
    pub item: String,
    /// `on_demand`, `preemptible` or `reserved`; empty for other items.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// Charged device-milliseconds; 0 for an item without device time.
    pub device_ms: i64,
    /// The price of one device in nano-units a second, with the surcharge; absent for an item without device time, and for
    /// use without a recorded price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit_nano_per_second: Option<i64>,
    /// The surcharge of a promise of a service in that price, in basis points; absent without one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub surcharge_basis_points: u32,
    /// The amount in micro-units of the currency.
    pub amount_micros: i64,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A tax rate on the subtotal, such as a sales tax.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TaxRate {
    /// The name on the invoice: 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = berth_values::patterns::NAME))
    )]
    pub name: String,
    /// The rate in hundredths of a percent, 0 to 10000.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 10_000)))]
    pub basis_points: i64,
}

/// One tax of an invoice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TaxLine {
    /// The name of the tax.
    pub name: String,
    /// The rate in hundredths of a percent.
    pub basis_points: i64,
    /// The tax in micro-units of the currency.
    pub amount_micros: i64,
}

/// The settings of invoices. An invoice has the rates and the seller of its day of issue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BillingSettings {
    /// Name and address of the seller, with line breaks; at most 500 characters.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 500)))]
    pub seller: String,
    /// The tax number of the seller on one line, at most 50 printable characters; empty for none.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 50), regex(pattern = berth_values::patterns::PRINTABLE)))]
    pub seller_tax_id: String,
    /// The tax rates, at most 5.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 5)))]
    pub taxes: Vec<TaxRate>,
    /// Days from the issue of an open invoice to its due date, 0 to 365.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 365)))]
    pub due_days: i64,
}

/// The details of the customer on new invoices of an organization. An invoice keeps those of its day of issue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BillingDetails {
    /// The legal name on one line, at most 100 printable characters; empty for the name of the organization.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 100), regex(pattern = berth_values::patterns::PRINTABLE)))]
    pub name: String,
    /// The postal address, with line breaks; at most 500 characters, empty for none.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 500), regex(pattern = berth_values::patterns::LINES)))]
    pub address: String,
    /// The tax number on one line, at most 50 printable characters; empty for none.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 50), regex(pattern = berth_values::patterns::PRINTABLE)))]
    pub tax_id: String,
}

/// The issued text of an invoice. It never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InvoiceDocument {
    /// Name and address of the seller.
    pub seller: String,
    /// The tax number of the seller; absent without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub seller_tax_id: String,
    /// The legal name of the customer, or the name of the organization.
    pub buyer: String,
    /// The postal address of the customer; absent without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub buyer_address: String,
    /// The tax number of the customer; absent without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub buyer_tax_id: String,
    /// The billed items.
    pub lines: Vec<InvoiceLine>,
    /// The sum of the lines without taxes, in micro-units of the currency.
    pub subtotal_micros: i64,
    /// The taxes on the subtotal.
    pub taxes: Vec<TaxLine>,
    /// The sum of the lines and the taxes, in micro-units of the currency.
    pub total_micros: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
}

/// An invoice or a credit note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Invoice {
    /// The id of the invoice.
    pub id: InvoiceId,
    /// The number of the document, without gaps over the whole portal.
    pub number: i64,
    /// The kind of the document.
    pub kind: InvoiceKind,
    /// The billed organization.
    pub org: OrgId,
    /// The billed month, such as `2026-10`.
    pub month: String,
    /// The state of the payment.
    pub state: InvoiceState,
    /// The time of the issue.
    pub issued_at: Timestamp,
    /// The due date; absent if the balance paid the invoice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// The time of the payment; absent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paid_at: Option<Timestamp>,
    /// The invoice that a credit note cancels; absent on a credit note for a month's credits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrects: Option<InvoiceId>,
    /// The issued text.
    pub document: InvoiceDocument,
}

/// The sum of one month's credits or debits of one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatementEntry {
    /// `credit` or `debit`.
    pub kind: TransferKind,
    /// The kind of the cause, such as `grant`, `stripe`, `invoice`, `debit` or `expiry`.
    pub source: String,
    /// The number of transfers.
    pub count: i64,
    /// The sum in micro-units of the currency, positive for credits and negative for debits.
    pub amount_micros: i64,
}

/// The statement of an organization for a calendar month (UTC). It is no invoice: it has no number, no taxes
/// and no payment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MonthStatement {
    /// The month, such as `2026-11`.
    pub month: String,
    /// True after the end of the month.
    pub complete: bool,
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The charges by offering, mode and price, then the returned charges with negative amounts.
    pub lines: Vec<InvoiceLine>,
    /// The sum of the lines in micro-units of the currency.
    pub charged_micros: i64,
    /// The credits and debits by source, without returned charges.
    pub entries: Vec<StatementEntry>,
    /// The sum of the entries less `charged_micros`: the change of the balance in this month, in micro-units of
    /// the currency.
    pub change_micros: i64,
}
