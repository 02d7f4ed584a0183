//! Types of budgets: monthly limits on charges.

use serde::{Deserialize, Serialize};

use berth_values::ids::BudgetId;
use berth_values::time::Timestamp;

/// The effect of a spent budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AtLimit {
    /// A notice only.
    #[default]
    Notify,
    /// Refusal of each submission whose worst-case price exceeds the rest. The budget is never exceeded.
    Refuse,
    /// The refusal, and a stop of running jobs when the budget is spent.
    Stop,
}

impl AtLimit {
    pub const ALL: [Self; 3] = [Self::Notify, Self::Refuse, Self::Stop];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Notify => "notify",
            Self::Refuse => "refuse",
            Self::Stop => "stop",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }
}

/// The body of a new budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewBudget {
    /// 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = berth_values::patterns::NAME))
    )]
    pub name: String,
    /// The key of a label, at most 63 bytes without control characters; the budget then counts only jobs with
    /// this label and requires `value`. All charges when absent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 63), regex(pattern = berth_values::patterns::PRINTABLE)))]
    pub label: String,
    /// The value of the label, at most 63 bytes without control characters; present exactly if `label` is
    /// present.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 63), regex(pattern = berth_values::patterns::PRINTABLE)))]
    pub value: String,
    /// The limit for a calendar month (UTC) in micro-units of the currency: more than 0, at most 10^15.
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 1, max = 1_000_000_000_000_000_i64), example = 500_000_000)
    )]
    pub limit_micros: i64,
    /// The effect of a spent budget; `notify` when absent.
    #[serde(default)]
    pub at_limit: AtLimit,
}

/// A budget with its sums of the present month.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Budget {
    /// The id of the budget.
    pub id: BudgetId,
    /// The budget's name.
    pub name: String,
    /// The key of the counted label; empty for all charges.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// The value of the counted label; empty for all charges.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// The limit for a calendar month (UTC) in micro-units of the currency.
    pub limit_micros: i64,
    /// The effect of a spent budget.
    pub at_limit: AtLimit,
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The charges of this month, in micro-units of the currency.
    pub spent_micros: i64,
    /// The holds for running and waiting jobs and for reservations, in micro-units of the currency.
    pub committed_micros: i64,
    /// The highest threshold passed this month in percent of the limit: 50, 75 or 100; 0 for none.
    pub passed_percent: i64,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The name of the user who created the budget.
    pub created_by: String,
}
