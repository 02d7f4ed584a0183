//! Types of usage: charged device time and its cost by day.

use serde::{Deserialize, Serialize};

/// The key of the rows besides the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GroupBy {
    /// No key.
    #[default]
    Day,
    /// The slug of the offering.
    Offering,
    /// `on_demand`, `preemptible` or `reserved`.
    Mode,
    /// The name of the submitting user.
    Member,
    /// The values of one label, and the use without it.
    Label,
}

/// The usage of one day and key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsageRow {
    /// The day (UTC), such as `2026-11-21`.
    pub day: String,
    /// The value of the key; empty without a key, and for use without the label or with an empty value of it.
    pub key: String,
    /// Charged device-milliseconds; a share counts as its part.
    pub device_ms: i64,
    /// The charge in micro-units of the currency.
    pub cost_micros: i64,
}

/// The usage of an organization for a range of days.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usage {
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The first day, included.
    pub from: String,
    /// The last day, included.
    pub until: String,
    /// The rows, by day and key.
    pub rows: Vec<UsageRow>,
    /// Charged device-milliseconds of all rows.
    pub device_ms: i64,
    /// The charge of all rows in micro-units of the currency.
    pub cost_micros: i64,
    /// Device-milliseconds of reservations without a running job, from the first day to the end of the last one.
    pub idle_reserved_device_ms: i64,
    /// The cost of the reported hours with idle devices of running jobs, in micro-units of the currency.
    #[serde(default)]
    pub underused_micros: i64,
    /// The runway in hours: the time until the available money is spent at the present rate; absent without
    /// an expense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runway_hours: Option<i64>,
    /// The expected cost of this month: `month_to_date_micros`, and for the rest the larger of two amounts. One
    /// is the further charges of running jobs and active reservations, each at most its hold; the other is the
    /// mean of the month so far. In micro-units of the currency.
    pub forecast_month_micros: i64,
    /// The cost of this month so far in micro-units of the currency.
    pub month_to_date_micros: i64,
}
