//! What can be ordered, and at what price.

use serde::{Deserialize, Serialize};

use crate::ids::OfferingId;
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Price {
    pub nano_per_second: i64,
    pub per_hour_micros: i64,
    pub currency: String,
    /// Counts up by one with every change; 0 means that no price was set and nothing can be ordered.
    pub version: i64,
    /// While reserved, where that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_per_hour_micros: Option<i64>,
    /// For preemptible jobs, where that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible_per_hour_micros: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Offering {
    pub id: OfferingId,
    /// `h100-80gb`, `h100-80gb.1g.10gb`.
    pub slug: String,
    pub gpu_model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
    pub memory_mib: i64,
    /// Memory slices taken, of `board_cells`.
    pub cells: u32,
    pub board_cells: u32,
    pub simulated: bool,
    /// How many could be placed right now, if only these were ordered.
    pub available: u32,
    /// How many an empty, healthy fleet could hold.
    pub capacity: u32,
    pub price: Price,
}

/// One dated version of a price. Versions are never edited.
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

/// What a price would have cost over the last thirty days, had it held then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PricePreview {
    pub offering: String,
    pub since: Timestamp,
    pub jobs: i64,
    pub charged_micros: i64,
    pub would_micros: i64,
    pub currency: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewPrice {
    /// The slug of an offering.
    pub offering: String,
    /// Micro-units of the portal's currency for one device and hour.
    pub per_hour_micros: i64,
    /// While reserved; as on demand when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_per_hour_micros: Option<i64>,
    /// For preemptible jobs; as on demand when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible_per_hour_micros: Option<i64>,
    /// From now on when absent; never in the past.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_from: Option<Timestamp>,
}
