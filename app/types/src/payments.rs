//! Paying by card.

use serde::{Deserialize, Serialize};

use crate::ids::PaymentId;
use crate::time::Timestamp;

/// Money for the balance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewTopUp {
    pub amount_micros: i64,
    /// The card is kept at Stripe for automatic recharge.
    #[serde(default)]
    pub save_card: bool,
}

/// Where a person goes to pay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PayHere {
    pub payment: PaymentId,
    pub url: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PaymentState {
    /// Asked for; Stripe has not said yet what became of it.
    Open,
    Paid,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Payment {
    pub id: PaymentId,
    /// `checkout` or `recharge`.
    pub kind: String,
    pub state: PaymentState,
    pub amount_micros: i64,
    pub currency: String,
    pub created_at: Timestamp,
    pub created_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure: String,
}

/// When the saved card is charged by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AutoRecharge {
    /// When less than this is available …
    pub below_micros: i64,
    /// … so much is charged; 0: never.
    pub amount_micros: i64,
    /// So often in a day (UTC) at most.
    pub most_a_day: i64,
}

/// How an organization can pay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PaymentSettings {
    /// This portal takes cards. When not, credit comes from the operator.
    pub enabled: bool,
    pub card_saved: bool,
    pub auto_recharge: AutoRecharge,
    /// The smallest step of the currency.
    pub step_micros: i64,
}
