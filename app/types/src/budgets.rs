//! What may be spent in a month.

use serde::{Deserialize, Serialize};

use crate::ids::BudgetId;
use crate::time::Timestamp;

/// What happens when a budget is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AtLimit {
    /// It is told, and nothing else.
    #[default]
    Notify,
    /// What could go beyond it, at its longest, is refused when it is submitted. It is never exceeded.
    Refuse,
    /// The same; and what runs when it is spent all the same is stopped.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewBudget {
    pub name: String,
    /// Counts jobs with this label only; everything when absent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// For a calendar month, UTC.
    pub limit_micros: i64,
    #[serde(default)]
    pub at_limit: AtLimit,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Budget {
    pub id: BudgetId,
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    pub limit_micros: i64,
    pub at_limit: AtLimit,
    pub currency: String,
    /// Charged this month.
    pub spent_micros: i64,
    /// Set aside for what runs, waits or is reserved.
    pub committed_micros: i64,
    /// The highest threshold that was passed this month, of 50, 75 and 100 percent; 0 for none.
    pub passed_percent: i64,
    pub created_at: Timestamp,
    pub created_by: String,
}
