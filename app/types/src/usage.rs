//! What was used and what it cost, by day.

use serde::{Deserialize, Serialize};

/// By what use is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GroupBy {
    #[default]
    Day,
    Offering,
    Mode,
    Member,
    /// By the values of one label.
    Label,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsageRow {
    /// `2026-11-21`.
    pub day: String,
    /// What it is grouped by; empty for days alone.
    pub key: String,
    /// Device-milliseconds that were charged; a share counts as its part.
    pub device_ms: i64,
    pub cost_micros: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usage {
    pub currency: String,
    /// First and last day, both counted.
    pub from: String,
    pub until: String,
    pub rows: Vec<UsageRow>,
    pub device_ms: i64,
    pub cost_micros: i64,
    /// Device-milliseconds of reservations in which no job ran, since the first day.
    pub idle_reserved_device_ms: i64,
    /// What the hours cost in which devices of running jobs stood idle, as they were pointed out.
    #[serde(default)]
    pub underused_micros: i64,
    /// Hours until what is available is spent at the present rate; absent when nothing is being spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runway_hours: Option<i64>,
    /// What this month comes to if the rest of it is as the last seven days.
    pub forecast_month_micros: i64,
    pub month_to_date_micros: i64,
}
