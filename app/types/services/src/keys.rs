//! Types of inference keys.

use berth_types::ids::InferenceKeyId;
use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::services::ServiceUse;

/// The body of a new inference key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewInferenceKey {
    /// 1 to 100 printable characters on one line.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub name: String,
    /// The names of models and of plain HTTP services, each once, at most 100; all when empty. They may come later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 100), inner(length(min = 1, max = 100))))]
    pub models: Vec<String>,
    /// Requests a minute at each gateway, 1 to 1000000; no limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub requests_per_minute: Option<u64>,
    /// Tokens a minute at each gateway, 1 to 1000000000; no limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000_000)))]
    pub tokens_per_minute: Option<u64>,
    /// The most micro-units of the currency for tokens on a day of UTC, 1 to 10^15; no limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000_000_000_000_i64)))]
    pub day_budget_micros: Option<i64>,
    /// The same for a month of UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000_000_000_000_i64)))]
    pub month_budget_micros: Option<i64>,
    /// The same in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000_000_000_000_i64)))]
    pub total_budget_micros: Option<i64>,
    /// The end of the key; absent for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// An inference key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InferenceKey {
    /// The id of the key.
    pub id: InferenceKeyId,
    #[serde(flatten)]
    pub spec: InferenceKeySpec,
    /// The last four characters of the secret.
    pub hint: String,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The name of the user who created the key.
    pub created_by: String,
    /// The time of the last request; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
    /// The use since the begin of the month of UTC.
    pub this_month: ServiceUse,
    /// The secret; present only in the answer to the creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// The limits of an inference key, as in its creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InferenceKeySpec {
    /// The name of the key.
    pub name: String,
    /// The names of models and of plain HTTP services; all when empty.
    pub models: Vec<String>,
    /// Requests a minute at each gateway; `null` without a limit, as all limits.
    pub requests_per_minute: Option<u64>,
    /// Tokens a minute at each gateway.
    pub tokens_per_minute: Option<u64>,
    /// The most micro-units of the currency for tokens on a day of UTC.
    pub day_budget_micros: Option<i64>,
    /// The same for a month of UTC.
    pub month_budget_micros: Option<i64>,
    /// The same in all.
    pub total_budget_micros: Option<i64>,
    /// The end of the key; `null` for none.
    pub expires_at: Option<Timestamp>,
}
