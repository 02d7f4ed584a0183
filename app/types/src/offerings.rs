//! Types of offerings and their prices.

use serde::{Deserialize, Serialize};

use crate::ids::OfferingId;
use crate::time::Timestamp;

/// The present price of one device of an offering.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Price {
    pub nano_per_second: i64,
    pub per_hour_micros: i64,
    pub currency: String,
    /// The number of the price version; 0 without a price, and then the offering cannot be ordered.
    pub version: i64,
    /// The price of a reserved device, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_per_hour_micros: Option<i64>,
    /// The price for preemptible jobs, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible_per_hour_micros: Option<i64>,
}

/// A board model or a MIG profile on sale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Offering {
    pub id: OfferingId,
    /// The name in requests, such as `h100-80gb` or `h100-80gb.1g.10gb`.
    pub slug: String,
    pub gpu_model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
    pub memory_mib: i64,
    /// The memory slices of one device, out of `board_cells`.
    pub cells: u32,
    pub board_cells: u32,
    pub simulated: bool,
    /// The number of devices that could start now, without orders for other offerings.
    pub available: u32,
    /// The number of devices in an empty, healthy cluster.
    pub capacity: u32,
    pub price: Price,
}

/// One immutable, dated version of a price.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PriceVersion {
    pub offering: String,
    pub version: i64,
    pub nano_per_second: i64,
    pub per_hour_micros: i64,
    pub currency: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_per_hour_micros: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible_per_hour_micros: Option<i64>,
    pub effective_from: Timestamp,
    pub set_by: String,
}

/// The effect of a price on the jobs of the last 30 days.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PricePreview {
    pub offering: String,
    pub since: Timestamp,
    pub jobs: i64,
    /// The real charges in micro-units of the currency.
    pub charged_micros: i64,
    /// The charges at the previewed price in micro-units of the currency.
    pub would_micros: i64,
    pub currency: String,
}

/// The body of a new price.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewPrice {
    /// The slug of an offering.
    pub offering: String,
    /// Micro-units of the portal's currency for one device and hour, 0 to 10^12.
    pub per_hour_micros: i64,
    /// The same for a reserved device; `per_hour_micros` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_per_hour_micros: Option<i64>,
    /// The same for preemptible jobs; `per_hour_micros` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible_per_hour_micros: Option<i64>,
    /// The start of the price, not in the past; now when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_from: Option<Timestamp>,
}
