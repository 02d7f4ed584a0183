//! Types of quotes, reservations, maintenance windows and the calendar.

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, OrgId, QuoteId, ReservationId};
use crate::jobs::{Device, Placement, Topology};
use crate::time::Timestamp;

/// A period from `starts_at` until just before `ends_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Window {
    /// The start of the period.
    pub starts_at: Timestamp,
    /// The end of the period, itself outside.
    pub ends_at: Timestamp,
}

/// The period of a repetition.
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

/// A repetition of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// The period of the repetition.
    pub every: Every,
    /// The number of windows with the first one, 2 to 52.
    #[cfg_attr(feature = "schema", schemars(range(min = 2, max = 52)))]
    pub count: u32,
}

/// The body of a quote. A window lasts from 60 seconds to 366 days.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewQuote {
    /// The slug of an existing offering.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub offering: String,
    /// The number of nodes, 1 to 1024.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1024)))]
    pub nodes: u32,
    /// The number of devices on each node, 1 to 64.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 64)))]
    pub gpus_per_node: u32,
    /// The start, not in the past and within 366 days.
    pub starts_at: Timestamp,
    /// The end, 60 seconds to 366 days after the start.
    pub ends_at: Timestamp,
    /// The required nearness of the devices; `any` when absent.
    #[serde(default, skip_serializing_if = "Topology::is_any")]
    pub topology: Topology,
    /// The repetition; each window is at most as long as the period, and the last one starts within 366 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<Repeat>,
}

fn one() -> u32 {
    1
}

/// The kind of a span in the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// A reservation of an organization.
    Reservation,
    /// A maintenance window.
    Maintenance,
    /// A running job, up to its time limit.
    Job,
    /// A future start, kept for a waiting job.
    HeldStart,
}

/// A span in the way of a quote. Its owner is visible only to members of the owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Conflict {
    /// The kind of the span.
    pub kind: SpanKind,
    /// The start of the span.
    pub starts_at: Timestamp,
    /// The end; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// The reservation, if it belongs to the caller's organization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// The name of the span; empty for another organization.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// The terms of reservations: the rules for cancellation, return, disuse and approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReservationPolicy {
    /// The last time of a free cancellation, in seconds before the start of the reservation, 0 to 31622400
    /// (366 days).
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 31_622_400)))]
    pub cancel_free_before_s: i64,
    /// The fee of a later cancellation before the start, in percent of the price, 0 to 100.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub late_cancel_percent: i64,
    /// The fee of a return of a running reservation, in percent of the price of the remaining time, 0 to 100.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub early_release_percent: i64,
    /// Seconds after the start until the portal returns an unused reservation, 60 to 31622400 (366 days); no
    /// such return when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 60, max = 31_622_400)))]
    pub no_show_after_s: Option<i64>,
    /// The size that needs no approval by the operator, in thousandths of a whole board, 0 to 10^9; no
    /// approval at all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000_000)))]
    pub approval_above_boards_milli: Option<i64>,
    /// The validity of a quote in seconds, 10 to 2592000.
    #[cfg_attr(feature = "schema", schemars(range(min = 10, max = 2_592_000)))]
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

/// A price for windows, fixed until its expiry despite changes of the offering's price.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quote {
    /// The id of the quote.
    pub id: QuoteId,
    /// The slug of the offering.
    pub offering: String,
    /// The number of nodes.
    pub nodes: u32,
    /// The number of devices on each node.
    pub gpus_per_node: u32,
    /// The required nearness of the devices.
    pub topology: Topology,
    /// The windows: one, or several with a repetition.
    pub windows: Vec<Window>,
    /// The price of all windows in micro-units of the currency.
    pub total_micros: i64,
    /// The rate of all devices in nano-units of the currency a second.
    pub nano_per_second: i64,
    /// The rate of all devices in micro-units of the currency an hour.
    pub per_hour_micros: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The number of the price version.
    pub price_version: i64,
    /// The available money in micro-units of the currency.
    pub available_micros: i64,
    /// True if the available money covers the price of all windows.
    pub affordable: bool,
    /// The expiry of the quote.
    pub expires_at: Timestamp,
    /// True if devices for all windows were free at the time of the quote. A quote keeps a price, not
    /// devices.
    pub feasible: bool,
    /// Sentences about refusals other than conflicts, such as a limit of the organization or a power budget.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
    /// The spans in the way.
    pub conflicts: Vec<Conflict>,
    /// The nearest free windows of the same length, earlier and later.
    pub alternatives: Vec<Window>,
    /// The terms at the time of the quote.
    pub policy: ReservationPolicy,
    /// True if an operator must approve the reservation.
    pub needs_approval: bool,
}

/// The body of the confirmation of a quote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewReservation {
    /// The quote of the reservation, valid and unused.
    pub quote: QuoteId,
    /// 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
}

/// The state of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReservationState {
    /// Waiting for the operator's approval, with held devices.
    Pending,
    /// Approved, before its start.
    Scheduled,
    /// Between its start and its end.
    Active,
    /// Over after its start.
    Ended,
    /// Cancelled before its start.
    Cancelled,
    /// Not approved before its start.
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

    /// Returns true if a reservation in this state keeps its devices.
    pub const fn holds(self) -> bool {
        matches!(self, Self::Pending | Self::Scheduled | Self::Active)
    }
}

/// A reservation or a maintenance window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reservation {
    /// The id of the reservation.
    pub id: ReservationId,
    /// The organization; absent for maintenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<OrgId>,
    /// The name of the organization; empty for maintenance.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub org_name: String,
    /// `reservation` or `maintenance`.
    pub kind: SpanKind,
    /// The name of the reservation.
    pub name: String,
    /// The state of the reservation.
    pub state: ReservationState,
    /// The cause of an end before `ends_at`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// The slug of the offering; empty for maintenance.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub offering: String,
    /// The number of nodes.
    pub nodes: u32,
    /// The number of devices on each node.
    pub gpus_per_node: u32,
    /// The required nearness of the devices.
    pub topology: Topology,
    /// The start of the window.
    pub starts_at: Timestamp,
    /// The end of the window.
    pub ends_at: Timestamp,
    /// The time of the end, a cancellation or a return; absent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// The id of the series, equal for all reservations of one confirmation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub series: String,
    /// The unusable part of the devices at present, in thousandths.
    pub degraded_milli: u32,
    /// The reserved devices.
    pub devices: Vec<Device>,
    /// The rate of all devices in nano-units of the currency a second.
    pub nano_per_second: i64,
    /// The number of the price version.
    pub price_version: i64,
    /// The ISO 4217 code of the currency.
    pub currency: String,
    /// The price of the whole window in micro-units of the currency.
    pub total_micros: i64,
    /// The hold for the rest of the price, in micro-units of the currency.
    pub held_micros: i64,
    /// The charge so far in micro-units of the currency.
    pub posted_micros: i64,
    /// Credits for unusable devices in micro-units of the currency.
    pub credited_micros: i64,
    /// Device-milliseconds since the start of the reservation.
    pub elapsed_device_ms: i64,
    /// Device-milliseconds with a running job.
    pub used_device_ms: i64,
    /// The fee of a cancellation or a return now, beyond `posted_micros`, in micro-units of the currency.
    pub cancel_fee_micros: i64,
    /// The time of the confirmation.
    pub created_at: Timestamp,
    /// The name of the confirming user.
    pub created_by: String,
    /// The number of the latest change.
    pub generation: i64,
    /// The terms at the time of the quote.
    pub policy: ReservationPolicy,
}

/// The body of an extension of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExtendReservation {
    /// The new end, at least one second later than the present end and within 366 days of the start.
    pub ends_at: Timestamp,
}

/// The body of a maintenance window: boards of a node without jobs for a period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewMaintenance {
    /// The node of the boards.
    pub node: NodeId,
    /// The UUIDs of the boards, each once: at most 64 of at most 256 characters; all boards of the node when
    /// empty.
    #[serde(default)]
    #[cfg_attr(
        feature = "schema",
        schemars(length(max = 64), inner(length(min = 1, max = 256)), extend("uniqueItems" = true))
    )]
    pub gpus: Vec<String>,
    /// The start, not in the past and within 366 days.
    pub starts_at: Timestamp,
    /// The end, 60 seconds to 366 days after the start.
    pub ends_at: Timestamp,
    /// The name of the window: 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub reason: String,
}

/// A span of the calendar on one board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Span {
    /// The kind of the span.
    pub kind: SpanKind,
    /// The start of the span.
    pub starts_at: Timestamp,
    /// The end of the span; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// The memory slices; absent for the whole board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// True if the span belongs to the caller's organization.
    pub own: bool,
    /// The id of the reservation or job, if the caller may see it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// The name of the reservation or job; empty if the caller may not see it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// The spans of one board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalendarRow {
    /// The node of the board.
    pub node: NodeId,
    /// The name of the node.
    pub node_name: String,
    /// The UUID of the board.
    pub gpu_uuid: String,
    /// The number of the board on its node, from 0.
    pub gpu_index: u32,
    /// The model of the board.
    pub model: String,
    /// The number of memory slices of the board.
    pub cells: u32,
    /// The spans in the order of their starts.
    pub spans: Vec<Span>,
}

/// The calendar of all boards for a period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Calendar {
    /// The start of the period.
    pub from: Timestamp,
    /// The end of the period.
    pub until: Timestamp,
    /// The portal's time.
    pub now: Timestamp,
    /// One row for each board.
    pub rows: Vec<CalendarRow>,
}
