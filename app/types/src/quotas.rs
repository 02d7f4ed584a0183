//! Types of quotas, quota requests and audit events.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{AuditEventId, OrgId, QuotaRequestId, RequestId, TokenId, UserId};
use crate::time::Timestamp;

/// The limits of an organization. An absent limit does not apply. Each number is at most 10^12.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The limit of simultaneous boards in thousandths of a whole board; a slice or a share counts as its
    /// part. A job beyond it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000_000_000_i64)))]
    pub boards_milli: Option<i64>,
    /// The limit of simultaneous devices by the slug of an existing offering, at most 200 slugs of at most 100
    /// bytes. A job beyond it waits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(extend(
            "maxProperties" = 200,
            "propertyNames" = { "minLength": 1, "maxLength": 100 },
            "additionalProperties" = {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "maximum": 1_000_000_000_000_i64
            }
        ))
    )]
    pub devices: BTreeMap<String, i64>,
    /// The limit of running jobs. A job beyond it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000_000_000_i64)))]
    pub running_jobs: Option<i64>,
    /// The limit of waiting jobs. The portal refuses a submission beyond it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000_000_000_i64)))]
    pub queued_jobs: Option<i64>,
    /// The limit of the expense of all running jobs in micro-units of the currency an hour. A job beyond it
    /// waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000_000_000_i64)))]
    pub spend_per_hour_micros: Option<i64>,
    /// The limit of whole-board hours of jobs submitted in a calendar month (UTC). A job counts with its time
    /// limit until it ends. The portal refuses a submission beyond it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000_000_000_i64)))]
    pub board_hours_per_month: Option<i64>,
    /// The limit of simultaneously reserved boards in thousandths of a whole board. The portal refuses a
    /// reservation beyond it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000_000_000_i64)))]
    pub reserved_boards_milli: Option<i64>,
    /// The guaranteed capacity in thousandths of a whole board. An organization below it goes first among
    /// jobs of the same priority, despite its past use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000_000_000_i64)))]
    pub guaranteed_boards_milli: Option<i64>,
    /// The weight for fair share in thousandths, at least 1; 1000 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000_000_000_i64)))]
    pub weight_milli: Option<i64>,
}

impl Limits {
    /// Returns these limits, replaced by the limits present in `other`.
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

/// The present use that counts against the limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Used {
    /// Held boards in thousandths of a whole board.
    pub boards_milli: i64,
    /// Held devices in thousandths by the slug of the offering.
    #[serde(default)]
    pub devices_milli: BTreeMap<String, i64>,
    /// The number of running jobs.
    pub running_jobs: i64,
    /// The number of waiting jobs.
    pub queued_jobs: i64,
    /// The expense of all running jobs in micro-units of the currency an hour.
    pub spend_per_hour_micros: i64,
    /// Counted whole-board hours of this month in thousandths.
    pub board_hours_milli: i64,
    /// The maximum of simultaneously reserved boards from now on, in thousandths of a whole board.
    pub reserved_boards_milli: i64,
}

/// The limits and the present use of an organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quota {
    /// The organization.
    pub org: OrgId,
    /// The limits in force.
    pub limits: Limits,
    /// True if the limits are the default for organizations without their own.
    pub is_default: bool,
    /// The present use.
    pub used: Used,
    /// The counted month, such as `2026-11`.
    pub month: String,
}

/// The body of a request for other limits or for credit. An organization has at most 20 pending requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewQuotaRequest {
    /// The requested limits, at least one without `credit_micros`; absent limits stay. Only an operator sets
    /// `guaranteed_boards_milli` and `weight_milli`.
    #[serde(default)]
    pub limits: Limits,
    /// The requested credit in micro-units of the currency: more than 0, at most 10^15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(range(min = 1, max = 1_000_000_000_000_000_i64), example = 25_000_000)
    )]
    pub credit_micros: Option<i64>,
    /// 1 to 1000 characters without the white space around them.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 1000), regex(pattern = crate::patterns::NOT_BLANK))
    )]
    pub reason: String,
}

/// The state of a quota request.
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

/// A request for other limits or for credit, with its decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QuotaRequest {
    /// The id of the request.
    pub id: QuotaRequestId,
    /// The requesting organization.
    pub org: OrgId,
    /// The name of the organization.
    pub org_name: String,
    /// The requested limits.
    pub limits: Limits,
    /// The requested credit in micro-units of the currency; absent in a request for limits only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit_micros: Option<i64>,
    /// The reason of the organization.
    pub reason: String,
    /// The state of the request.
    pub state: QuotaRequestState,
    /// The time of the request.
    pub created_at: Timestamp,
    /// The name of the requesting user.
    pub created_by: String,
    /// The time of the decision; absent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Timestamp>,
    /// The granted limits; absent until the grant, and in grants of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_limits: Option<Limits>,
    /// The granted credit in micro-units of the currency; absent where `granted_limits` is, and without credit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_micros: Option<i64>,
    /// The operator's note about the decision.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// The body of the decision about a quota request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DecideQuotaRequest {
    /// True to grant the request, false to decline it.
    pub grant: bool,
    /// The granted limits, if different from the requested ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The granted credit in micro-units of the currency, if different from the requested one: more than 0, at
    /// most 10^15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000_000_000_000_i64)))]
    pub credit_micros: Option<i64>,
    /// At most 1000 characters.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 1000)))]
    pub note: String,
}

/// All actions of audit events. An action never changes its meaning.
pub const AUDIT_ACTIONS: &[&str] = &[
    "access.denied",
    "account.deleted",
    "account.disabled",
    "account.enabled",
    "account.renamed",
    "attempt.late",
    "attempt.meter_refused",
    "attempt.start_refused",
    "auto_recharge.set",
    "billing_details.set",
    "billing_settings.set",
    "budget.created",
    "budget.deleted",
    "change_policy.set",
    "change_request.approved",
    "change_request.created",
    "change_request.rejected",
    "change_request.withdrawn",
    "credit.granted",
    "credit.taken_back",
    "credit_limit.set",
    "email.verification_asked",
    "email.verified",
    "factor.added",
    "factor.codes_replaced",
    "factor.removed",
    "file.removed",
    "gateway.added",
    "gateway.removed",
    "gateway.token_replaced",
    "gpu.approved",
    "gpu.check_asked",
    "gpu.cleared",
    "gpu.mode_asked",
    "gpu.quarantined",
    "gpu.released",
    "gpu.reset_asked",
    "inference_key.created",
    "inference_key.revoked",
    "inference_pool.set",
    "invitation.created",
    "invitation.resent",
    "invitation.withdrawn",
    "invoice.paid",
    "invoice.voided",
    "job.access_opened",
    "job.cancelled",
    "jobs.stopped",
    "join_token.created",
    "maintenance.planned",
    "member.joined",
    "member.left",
    "member.removed",
    "member.role_changed",
    "metrics_token.created",
    "metrics_token.revoked",
    "network.removed",
    "network.set",
    "node.approved",
    "node.boards_left_out",
    "node.cloned",
    "node.cordoned",
    "node.declared_lost",
    "node.dedicated",
    "node.drain_called_off",
    "node.drain_set",
    "node.drained",
    "node.labels_set",
    "node.lost",
    "node.pool_set",
    "node.released",
    "node.removed",
    "node.returned",
    "node.revoked",
    "node.shutdown",
    "node.uncordoned",
    "operator.added",
    "operator.removed",
    "operator.role_changed",
    "org.egress_set",
    "org.own_nodes_set",
    "org.rdma_set",
    "passkey.added",
    "passkey.removed",
    "passkey.renamed",
    "password.changed",
    "password.reset",
    "password.reset_asked",
    "port.opened",
    "portal.set_up",
    "portal_logo.removed",
    "portal_logo.set",
    "portal_settings.set",
    "price.set",
    "price.withdrawn",
    "quota.cleared",
    "promise.changed",
    "promise.created",
    "promise.retired",
    "quota.declined",
    "quota.granted",
    "quota.requested",
    "quota.set",
    "rack.budget_removed",
    "rack.budget_set",
    "request.refused",
    "request.throttled",
    "reservation.approved",
    "reservation.cancelled",
    "reservation.declined",
    "reservation.extended",
    "reservation_policy.set",
    "retention.removed",
    "retention.set",
    "revision.created",
    "scim.group_changed",
    "scim.group_created",
    "scim.group_deleted",
    "scim.user_changed",
    "scim.user_created",
    "scim.user_deleted",
    "secret.created",
    "secret.deleted",
    "secret.replaced",
    "service.changed",
    "service.created",
    "service.deleted",
    "service.promise_set",
    "service.rolled_back",
    "service.traffic_set",
    "service_account.created",
    "service_account.deleted",
    "service_account.disabled",
    "service_account.enabled",
    "service_host.confirmed",
    "service_host.missing",
    "service_host.refused",
    "service_host.unconfirmed",
    "session.ended",
    "session.proved",
    "session.refused",
    "session.started",
    "sessions.ended",
    "sign_in_policy.set",
    "sso.domain_confirmed",
    "sso.domain_missing",
    "sso.domain_refused",
    "sso.domain_unconfirmed",
    "sso.ended",
    "sso.linked",
    "sso.provider_removed",
    "sso.provider_set",
    "sso.refused",
    "storage_class.declared",
    "storage_class.deleted",
    "storage_class.granted",
    "storage_class.revoked",
    "terminal.closed",
    "terminal.opened",
    "token.created",
    "token.refused",
    "token.revoked",
    "token_price.set",
    "user.signed_up",
    "volume.created",
    "volume.deleted",
    "volume.file_put",
    "volume.file_removed",
    "webhook.created",
    "webhook.deleted",
    "webhook.passed_on",
    "webhook.stopped",
];

/// The record of one deliberate act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditEvent {
    /// The id of the audit event.
    pub id: AuditEventId,
    /// The time of the act.
    pub at: Timestamp,
    /// The name of the user; `The portal` for an act of the portal itself, `A visitor` without a known user.
    pub actor: String,
    /// A stable code, such as `quota.set`, `price.set` or `credit.granted`.
    pub action: String,
    /// The id or name of the object of the act.
    pub subject: String,
    /// A text about the act.
    pub detail: String,
    /// The circumstances of the act and the place of the event in the chain.
    #[serde(flatten)]
    pub context: AuditContext,
}

/// The most bytes of [`AuditContext::before`] and of [`AuditContext::after`].
pub const MAX_AUDIT_CHANGE_BYTES: usize = 4_096;

/// The circumstances of an audit event and its place in the chain. An event of an earlier version of Berth has
/// only the organization and its place.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditContext {
    /// The organization of the act; absent for an act of the operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<OrgId>,
    /// The id of the user; absent for an act of the portal itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_id: Option<UserId>,
    /// The API token of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<TokenId>,
    /// A short name of the session of the request. It gives no access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The IP address of the sender of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The id of the request, as in its header `X-Request-Id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The state before the act as JSON text: at most 4096 bytes. Absent without a change of a state, or if it is
    /// longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The state after the act as JSON text: at most 4096 bytes. Absent without a change of a state, or if it is
    /// longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The number of the event among all events of the portal: from 1 on, without gaps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<i64>,
    /// The SHA-256 hash of the event and of the hash of the event before it, in 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

impl AuditEvent {
    /// Adds the states before and after the act as JSON text.
    #[must_use]
    pub fn with_change(mut self, before: Option<String>, after: Option<String>) -> Self {
        let bounded = |text: Option<String>| text.filter(|text| text.len() <= MAX_AUDIT_CHANGE_BYTES);
        self.context.before = bounded(before);
        self.context.after = bounded(after);
        self
    }
}

/// The filter of a list of audit events. A text without characters accepts all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct AuditFilter {
    /// The whole action.
    pub action: String,
    /// The name or the id of the user.
    pub actor: String,
    /// The whole id or name of the object.
    pub subject: String,
    /// The earliest time.
    pub since: Option<Timestamp>,
    /// The end, which is not included.
    pub until: Option<Timestamp>,
}
