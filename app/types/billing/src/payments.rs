//! Types of payments by card.

use serde::{Deserialize, Serialize};

use berth_values::ids::PaymentId;
use berth_values::time::Timestamp;

/// The body of a payment for the balance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewTopUp {
    /// The amount in micro-units of the currency: 10^6 to 10^11, a multiple of `step_micros` of the payment
    /// settings.
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 1_000_000, max = 100_000_000_000_i64), example = 25_000_000)
    )]
    pub amount_micros: i64,
    /// True to save the card at Stripe for automatic recharges.
    #[serde(default)]
    pub save_card: bool,
}

/// The payment page for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PayHere {
    /// The id of the payment.
    pub payment: PaymentId,
    /// The address of Stripe's payment page.
    pub url: String,
}

/// The state of a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PaymentState {
    /// Started, without a result from Stripe yet.
    Open,
    /// Paid, with the credit in the balance.
    Paid,
    /// Failed or expired, without a credit.
    Failed,
}

impl PaymentState {
    pub const ALL: [Self; 3] = [Self::Open, Self::Paid, Self::Failed];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Paid => "paid",
            Self::Failed => "failed",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }
}

/// A payment by card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Payment {
    /// The id of the payment.
    pub id: PaymentId,
    /// `checkout` for a payment page, `recharge` for an automatic charge of the saved card.
    pub kind: String,
    /// The state of the payment.
    pub state: PaymentState,
    /// The amount in micro-units of the currency.
    pub amount_micros: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The start of the payment.
    pub created_at: Timestamp,
    /// The name of the paying user; `automatic recharge` for a recharge.
    pub created_by: String,
    /// The time of the result; absent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_at: Option<Timestamp>,
    /// A sentence about a failure; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure: String,
}

/// The rule for automatic charges of the saved card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AutoRecharge {
    /// The threshold of the available money in micro-units of the currency, 0 to 10^11; less money causes a
    /// charge.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100_000_000_000_i64)))]
    pub below_micros: i64,
    /// The amount of a charge in micro-units of the currency: 10^6 to 10^11, a multiple of `step_micros` of
    /// the payment settings; 0 for no automatic charges.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100_000_000_000_i64)))]
    pub amount_micros: i64,
    /// The maximum number of charges in a day (UTC): 1 to 24, or 0 to 24 if `amount_micros` is 0.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 24)))]
    pub most_a_day: i64,
}

/// The payment settings of an organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PaymentSettings {
    /// True if the portal accepts cards; otherwise only the operator grants credit.
    pub enabled: bool,
    /// True if Stripe has a card for automatic recharges.
    pub card_saved: bool,
    /// The rule for automatic recharges.
    pub auto_recharge: AutoRecharge,
    /// The smallest payable unit of the currency in micro-units.
    pub step_micros: i64,
}
