//! Types of webhooks and deliveries.

use serde::{Deserialize, Serialize};

use crate::ids::{DeliveryId, NoticeId, OrgId, WebhookId};
use crate::time::Timestamp;

/// The kinds of notices, each with its description.
pub const NOTICE_KINDS: [(&str, &str); 21] = [
    ("job.running", "A job started to run."),
    ("job.succeeded", "A job ended with success."),
    ("job.failed", "A job failed."),
    ("job.cancelled", "A job was cancelled."),
    ("job.timed_out", "A job reached its maximum run time."),
    ("job.underused", "The devices of a running job were mostly idle for an hour."),
    ("reservation.started", "A reservation began."),
    ("reservation.degraded", "Devices of a reservation failed, or their number changed."),
    ("reservation.restored", "A reservation has all its devices again."),
    ("reservation.ending", "A reservation ends in 15 minutes."),
    ("reservation.ended", "A reservation ended."),
    ("reservation.expired", "A request for a reservation was not approved in time."),
    ("budget.passed", "The spend of a budget passed one of its thresholds."),
    ("credit.expiring", "Credit expires soon."),
    ("invoice.issued", "An invoice was issued."),
    ("invoice.payment_failed", "The payment of an invoice failed."),
    ("service_host.missing", "The DNS record of a confirmed host name of a service is missing."),
    ("service_host.unconfirmed", "A host name of a service without its DNS record is no longer confirmed."),
    ("sso.domain_missing", "The DNS record of a confirmed domain is missing."),
    ("sso.domain_unconfirmed", "A domain without its DNS record is no longer confirmed."),
    ("webhook.passed_on", "Webhooks of a person who left passed to an owner."),
];

/// True if a webhook may name this kind: a kind of notice, a family such as `job.*`, or `*`.
pub fn is_known_kind(kind: &str) -> bool {
    match kind.strip_suffix('*') {
        Some("") => true,
        Some(family) => {
            family.ends_with('.') && NOTICE_KINDS.iter().any(|(known, _)| known.starts_with(family))
        }
        None => NOTICE_KINDS.iter().any(|(known, _)| *known == kind),
    }
}

/// The body of a request to a webhook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Notice {
    /// The id of the notice. A repeated delivery has the same id.
    pub id: NoticeId,
    /// The kind of the notice, such as `job.succeeded`.
    pub r#type: String,
    /// The time of the event.
    pub at: Timestamp,
    /// The organization of the webhook.
    pub org: OrgId,
    /// The event in one line.
    pub subject: String,
    /// The event in one or more sentences.
    pub detail: String,
    /// Ids and figures of the event; the fields depend on the kind.
    pub data: serde_json::Value,
}

/// The body of a new webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    /// An `https://` address with public IP addresses only, without user name and password: at most 2048
    /// printable characters.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 2048), regex(pattern = crate::patterns::PRINTABLE))
    )]
    pub url: String,
    /// The kinds of notices, such as `job.succeeded`; `job.*` for a family, `*` for all kinds. 1 to 40 kinds
    /// of at most 60 characters.
    #[cfg_attr(
        feature = "schema",
        schemars(
            length(min = 1, max = 40),
            inner(length(min = 1, max = 60), regex(pattern = "^[a-z._*]+$"))
        )
    )]
    pub kinds: Vec<String>,
}

/// An address of an organization for signed notices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Webhook {
    /// The id of the webhook.
    pub id: WebhookId,
    /// The address of the receiver.
    pub url: String,
    /// The kinds of notices; `job.*` for a family, `*` for all kinds.
    pub kinds: Vec<String>,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The name of the user who created the webhook. After this user leaves, it is the name of an owner.
    pub created_by: String,
    /// The key of the signatures; present only in the answer to the creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// Before its first try, or between two tries.
    Pending,
    /// Accepted by the receiver.
    Delivered,
    /// Failed after the last try; the delivery can be requested again.
    Failed,
}

impl DeliveryState {
    pub const ALL: [Self; 3] = [Self::Pending, Self::Delivered, Self::Failed];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }
}

/// The delivery of one notice to one webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Delivery {
    /// The id of the delivery.
    pub id: DeliveryId,
    /// The kind of the notice, such as `job.succeeded`.
    pub kind: String,
    /// The subject line of the notice.
    pub subject: String,
    /// The state of the delivery.
    pub state: DeliveryState,
    /// The number of tries.
    pub tries: i64,
    /// The HTTP status of the last answer; absent without an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_status: Option<i64>,
    /// The error of the last try; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The time of the next try; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// The time of the last try of a finished delivery; absent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_a_notice_a_family_or_all() {
        for known in ["*", "job.*", "job.failed", "reservation.*", "invoice.payment_failed"] {
            assert!(is_known_kind(known), "{known}");
        }
        for unknown in ["", "job", "job.", "jo*", "jobs.*", "job.f*", "job.exploded", ".*", "**", "job.**"] {
            assert!(!is_known_kind(unknown), "{unknown}");
        }
    }
}
