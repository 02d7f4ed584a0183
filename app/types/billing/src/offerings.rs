//! Types of offerings and their prices.

use serde::{Deserialize, Serialize};

use berth_values::ids::OfferingId;
use berth_values::time::Timestamp;

/// The present price of one device of an offering.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Price {
    /// The rate in nano-units of the currency a second.
    pub nano_per_second: i64,
    /// The rate in micro-units of the currency an hour.
    pub per_hour_micros: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The number of the price version; 0 without a price, and then the offering cannot be ordered.
    pub version: i64,
    /// The rate of a reserved device in micro-units of the currency an hour, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_per_hour_micros: Option<i64>,
    /// The rate for preemptible jobs in micro-units of the currency an hour, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible_per_hour_micros: Option<i64>,
}

/// A board model or a MIG profile on sale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Offering {
    /// The id of the offering.
    pub id: OfferingId,
    /// The name in requests, such as `h100-80gb` or `h100-80gb.1g.10gb`.
    pub slug: String,
    /// The model of the board.
    pub gpu_model: String,
    /// The MIG profile, such as `1g.10gb`; absent for a whole board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
    /// The memory of one device in MiB.
    pub memory_mib: i64,
    /// The number of memory slices of one device, out of `board_cells`.
    pub cells: u32,
    /// The number of memory slices of the whole board.
    pub board_cells: u32,
    /// True for simulated boards.
    pub simulated: bool,
    /// The number of devices that could start now without orders for other offerings: on the nodes of all organizations,
    /// or in the list of an organization on those that it may use.
    pub available: u32,
    /// The number of devices on the same nodes in an empty, healthy cluster.
    pub capacity: u32,
    /// The present price of one device.
    pub price: Price,
}

/// One immutable, dated version of a price.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PriceVersion {
    /// The slug of the offering.
    pub offering: String,
    /// The number of the price version, from 1.
    pub version: i64,
    /// The rate in nano-units of the currency a second.
    pub nano_per_second: i64,
    /// The rate in micro-units of the currency an hour.
    pub per_hour_micros: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The rate of a reserved device in micro-units of the currency an hour, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_per_hour_micros: Option<i64>,
    /// The rate for preemptible jobs in micro-units of the currency an hour, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible_per_hour_micros: Option<i64>,
    /// The start of the price.
    pub effective_from: Timestamp,
    /// The name of the operator who set the price.
    pub set_by: String,
    /// The time of the withdrawal before the start; absent without one. A withdrawn price never applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn_at: Option<Timestamp>,
    /// The name of the operator who withdrew the price; absent without a withdrawal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn_by: Option<String>,
}

/// The effect of a price on the jobs of the last 30 days.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PricePreview {
    /// The slug of the offering.
    pub offering: String,
    /// The start of the 30 days.
    pub since: Timestamp,
    /// The number of jobs with a charge.
    pub jobs: i64,
    /// The real charges in micro-units of the currency.
    pub charged_micros: i64,
    /// The charges at the previewed price in micro-units of the currency.
    pub would_micros: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
}

/// The body of a new price.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewPrice {
    /// The slug of an existing offering.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub offering: String,
    /// The price of one device in micro-units of the currency an hour, 0 to 10^12.
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 0, max = 1_000_000_000_000_i64), example = 2_500_000)
    )]
    pub per_hour_micros: i64,
    /// The price of a reserved device in micro-units of the currency an hour, 0 to 10^12; `per_hour_micros`
    /// when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 0, max = 1_000_000_000_000_i64), example = 2_000_000)
    )]
    pub reserved_per_hour_micros: Option<i64>,
    /// The price for preemptible jobs in micro-units of the currency an hour, 0 to 10^12; `per_hour_micros`
    /// when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 0, max = 1_000_000_000_000_i64), example = 1_500_000)
    )]
    pub preemptible_per_hour_micros: Option<i64>,
    /// The start of the price, not in the past and within 366 days; now when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_from: Option<Timestamp>,
}
