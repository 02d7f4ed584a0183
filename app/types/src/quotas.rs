//! What an organization may use, what it uses, and how it asks for more.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{AuditEventId, OrgId, QuotaRequestId};
use crate::time::Timestamp;

/// Limits; an absent one does not limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Thousandths of whole boards held at once: a slice or share counts as its part of one. A job
    /// beyond it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boards_milli: Option<i64>,
    /// Devices at once by the slug of their offering. A job beyond it waits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, i64>,
    /// A job beyond it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_jobs: Option<i64>,
    /// A submission beyond it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_jobs: Option<i64>,
    /// What running jobs may cost an hour together. A job beyond it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spend_per_hour_micros: Option<i64>,
    /// Whole-board hours of jobs submitted in a calendar month (UTC), each counted at its longest until
    /// it has ended. A submission beyond it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board_hours_per_month: Option<i64>,
    /// Thousandths of whole boards in reservations at any one time. A reservation beyond it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_boards_milli: Option<i64>,
    /// While it holds less than this it comes before all others of its priority, whatever it used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guaranteed_boards_milli: Option<i64>,
    /// Its weight for fair share, in thousandths; 1000 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_milli: Option<i64>,
}

impl Limits {
    /// These with what `other` says in their place.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        self.boards_milli = other.boards_milli.or(self.boards_milli);
        self.running_jobs = other.running_jobs.or(self.running_jobs);
        self.queued_jobs = other.queued_jobs.or(self.queued_jobs);
        self.spend_per_hour_micros = other.spend_per_hour_micros.or(self.spend_per_hour_micros);
        self.board_hours_per_month = other.board_hours_per_month.or(self.board_hours_per_month);
        self.reserved_boards_milli = other.reserved_boards_milli.or(self.reserved_boards_milli);
        self.guaranteed_boards_milli = other.guaranteed_boards_milli.or(self.guaranteed_boards_milli);
        self.weight_milli = other.weight_milli.or(self.weight_milli);
        self.devices.extend(other.devices.iter().map(|(slug, most)| (slug.clone(), *most)));
        self
    }
}

/// What counts against limits now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Used {
    pub boards_milli: i64,
    /// Thousandths of devices by the slug of their offering.
    #[serde(default)]
    pub devices_milli: BTreeMap<String, i64>,
    pub running_jobs: i64,
    pub queued_jobs: i64,
    pub spend_per_hour_micros: i64,
    /// Thousandths of whole-board hours counted for this month.
    pub board_hours_milli: i64,
    /// The most that is reserved at any one time from now on.
    pub reserved_boards_milli: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quota {
    pub org: OrgId,
    pub limits: Limits,
    /// The limits are those of every organization without its own.
    pub is_default: bool,
    pub used: Used,
    /// The month that is counted, such as `2026-11`.
    pub month: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewQuotaRequest {
    /// The limits that should be others; what is absent stays.
    pub limits: Limits,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum QuotaRequestState {
    Pending,
    Granted,
    Declined,
}

impl QuotaRequestState {
    pub const ALL: [Self; 3] = [Self::Pending, Self::Granted, Self::Declined];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Granted => "granted",
            Self::Declined => "declined",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QuotaRequest {
    pub id: QuotaRequestId,
    pub org: OrgId,
    pub org_name: String,
    pub limits: Limits,
    pub reason: String,
    pub state: QuotaRequestState,
    pub created_at: Timestamp,
    pub created_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Timestamp>,
    /// What the operator says to it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DecideQuotaRequest {
    pub grant: bool,
    /// Granted in place of what was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    #[serde(default)]
    pub note: String,
}

/// Who did what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditEvent {
    pub id: AuditEventId,
    pub at: Timestamp,
    pub actor: String,
    /// `quota.set`, `price.set`, `credit.granted`, …
    pub action: String,
    /// The id of what it was done to.
    pub subject: String,
    pub detail: String,
}
