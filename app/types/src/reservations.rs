//! Capacity promised for a time: quotes, reservations, maintenance, and the calendar of both.

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, OrgId, QuoteId, ReservationId};
use crate::jobs::{Device, Placement, Topology};
use crate::time::Timestamp;

/// Half open: it is over at `ends_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Window {
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Every {
    Day,
    Week,
}

impl Every {
    pub const fn seconds(self) -> i64 {
        match self {
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
        }
    }
}

/// The same window again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    pub every: Every,
    /// Windows in all, the first among them: 2 to 52.
    pub count: u32,
}

/// What is to be priced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewQuote {
    pub offering: String,
    #[serde(default = "one")]
    pub nodes: u32,
    /// Devices on each node.
    #[serde(default = "one")]
    pub gpus_per_node: u32,
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    #[serde(default, skip_serializing_if = "Topology::is_any")]
    pub topology: Topology,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<Repeat>,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    Reservation,
    Maintenance,
    /// A job that runs, up to its limit.
    Job,
    /// A start that is held for a job which waits.
    HeldStart,
}

/// Something that is in the way; whose it is only where the caller may know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Conflict {
    pub kind: SpanKind,
    pub starts_at: Timestamp,
    /// Absent: nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// Present where it is the caller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// What holds for a reservation besides its price.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReservationPolicy {
    /// Cancelled up to so many seconds before it begins it costs nothing.
    pub cancel_free_before_s: i64,
    /// Cancelled later, before it begins, it costs this part of its price.
    pub late_cancel_percent: i64,
    /// Given back while it runs, what is left of it costs this part of its price.
    pub early_release_percent: i64,
    /// Not used for so many seconds after its begin it is given back by itself; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_show_after_s: Option<i64>,
    /// Larger ones, in thousandths of whole boards, wait for the operator's approval; absent: none do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_above_boards_milli: Option<i64>,
    /// A quote holds for so many seconds.
    pub quote_valid_s: i64,
}

impl Default for ReservationPolicy {
    fn default() -> Self {
        Self {
            cancel_free_before_s: 86_400,
            late_cancel_percent: 50,
            early_release_percent: 50,
            no_show_after_s: None,
            approval_above_boards_milli: None,
            quote_valid_s: 900,
        }
    }
}

/// A price that holds until it expires, whatever prices become meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quote {
    pub id: QuoteId,
    pub offering: String,
    pub nodes: u32,
    pub gpus_per_node: u32,
    pub topology: Topology,
    /// One, or several when it repeats.
    pub windows: Vec<Window>,
    /// What all of it costs at most.
    pub total_micros: i64,
    /// Of all devices together.
    pub nano_per_second: i64,
    pub per_hour_micros: i64,
    pub currency: String,
    pub price_version: i64,
    pub available_micros: i64,
    pub affordable: bool,
    pub expires_at: Timestamp,
    /// There was room for all of it when it was asked for. A quote holds a price, not a place.
    pub feasible: bool,
    /// Why it is not: limits of the organization, a rack that cannot feed all of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
    pub conflicts: Vec<Conflict>,
    /// The nearest windows of the same length that are free, on either side.
    pub alternatives: Vec<Window>,
    pub policy: ReservationPolicy,
    pub needs_approval: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewReservation {
    pub quote: QuoteId,
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReservationState {
    /// Waits for the operator's approval; its capacity is held meanwhile.
    Pending,
    Scheduled,
    Active,
    Ended,
    Cancelled,
    /// Nobody approved it in time.
    Expired,
}

impl ReservationState {
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Scheduled, Self::Active, Self::Ended, Self::Cancelled, Self::Expired];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Scheduled => "scheduled",
            Self::Active => "active",
            Self::Ended => "ended",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Its capacity is nobody else's.
    pub const fn holds(self) -> bool {
        matches!(self, Self::Pending | Self::Scheduled | Self::Active)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reservation {
    pub id: ReservationId,
    /// Absent for maintenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<OrgId>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub org_name: String,
    pub kind: SpanKind,
    pub name: String,
    pub state: ReservationState,
    /// Why it ended otherwise than by its time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub offering: String,
    pub nodes: u32,
    pub gpus_per_node: u32,
    pub topology: Topology,
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// The others that were confirmed together with it have the same.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub series: String,
    /// Thousandths of it that are out of order now.
    pub degraded_milli: u32,
    pub devices: Vec<Device>,
    pub nano_per_second: i64,
    pub price_version: i64,
    pub currency: String,
    /// What it costs when it runs to its end.
    pub total_micros: i64,
    pub held_micros: i64,
    pub posted_micros: i64,
    /// Given back for devices that were out of order.
    pub credited_micros: i64,
    /// Device-milliseconds so far, and those in which jobs ran.
    pub elapsed_device_ms: i64,
    pub used_device_ms: i64,
    /// What cancelling it, or giving it back, would cost now beyond what is posted.
    pub cancel_fee_micros: i64,
    pub created_at: Timestamp,
    pub created_by: String,
    pub generation: i64,
    pub policy: ReservationPolicy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExtendReservation {
    /// Later than now.
    pub ends_at: Timestamp,
}

/// Boards of a node that nobody may use for a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewMaintenance {
    pub node: NodeId,
    /// UUIDs; all boards of the node when empty.
    #[serde(default)]
    pub gpus: Vec<String>,
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    pub reason: String,
}

/// A span on a board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Span {
    pub kind: SpanKind,
    pub starts_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// Absent: the whole board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    pub own: bool,
    /// Of the reservation or job, where the caller may know.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalendarRow {
    pub node: NodeId,
    pub node_name: String,
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub model: String,
    pub cells: u32,
    pub spans: Vec<Span>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Calendar {
    pub from: Timestamp,
    pub until: Timestamp,
    pub now: Timestamp,
    pub rows: Vec<CalendarRow>,
}
