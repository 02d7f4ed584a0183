//! Types of the capacity: the boards of each model that are free over time.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The numbers of boards of a model from a time until the next step. Their sum is the number of all boards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapacityStep {
    /// The start of the step.
    pub at: Timestamp,
    /// The number of boards without any use.
    pub free: u32,
    /// The number of boards with reservations or jobs of the caller's organization only.
    pub own: u32,
    /// The number of boards with a reservation or a job of another organization.
    pub others: u32,
    /// The number of boards in maintenance, out of service, or on a node that takes no new work.
    pub unavailable: u32,
}

impl CapacityStep {
    /// True if both steps have the same numbers.
    pub const fn has_numbers_of(&self, other: &Self) -> bool {
        self.free == other.free
            && self.own == other.own
            && self.others == other.others
            && self.unavailable == other.unavailable
    }
}

/// The capacity of one board model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelCapacitySteps {
    /// The name of the board model, as in `gpu_model` of offerings.
    pub model: String,
    /// The number of boards.
    pub boards: u32,
    /// The largest number of boards on one node.
    pub boards_per_node: u32,
    /// The number of nodes with boards of this model.
    pub nodes: u32,
    /// The number of boards that are free at `now`, for each period.
    pub free_now: u32,
    /// True if each step has the numbers of the moment with the fewest free boards in an equal part of the period,
    /// because the period has too many changes.
    pub coarse: bool,
    /// The changes from the later of `from` and `now` until `until`, at most 400. Empty for a period in the past.
    #[cfg_attr(feature = "schema", schemars(length(max = 400)))]
    pub steps: Vec<CapacityStep>,
}

/// The capacity of all board models for a period. A board in use in part counts as in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Capacity {
    /// The start of the period.
    pub from: Timestamp,
    /// The end of the period.
    pub until: Timestamp,
    /// The portal's time.
    pub now: Timestamp,
    /// The board models by name.
    pub models: Vec<ModelCapacitySteps>,
}
