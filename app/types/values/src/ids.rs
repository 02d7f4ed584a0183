//! Typed, prefixed ids: `job_01h455vb4pex5vsknk084sn02q`.
//!
//! The suffix is a UUIDv7 in Crockford base 32, the encoding of the TypeID specification, so ids
//! sort by creation time as text. The caller provides the time and the randomness for a new id.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The reason why a text is no id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("expected an id that starts with `{0}_`")]
    Prefix(&'static str),
    #[error("expected 26 characters of base 32 after the prefix of the id")]
    Suffix,
}

fn encode(uuid: Uuid) -> String {
    let value = uuid.as_u128();
    (0..26)
        .rev()
        .map(|i| {
            let digit = usize::try_from((value >> (i * 5)) & 31).unwrap_or(0);
            ALPHABET.get(digit).map_or('0', |c| char::from(*c))
        })
        .collect()
}

fn decode(text: &str) -> Option<Uuid> {
    if text.len() != 26 || !matches!(text.as_bytes().first(), Some(b'0'..=b'7')) {
        return None;
    }
    text.bytes()
        .try_fold(0u128, |acc, c| {
            let digit = ALPHABET.iter().position(|a| *a == c)?;
            Some((acc << 5) | digit as u128)
        })
        .map(Uuid::from_u128)
}

macro_rules! ids {
    ($($(#[doc = $doc:literal])* $name:ident = $prefix:literal;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $name(Uuid);

        impl $name {
            /// The prefix of every id of this kind, without the underscore.
            pub const PREFIX: &'static str = $prefix;
            pub const fn from_uuid(uuid: Uuid) -> Self { Self(uuid) }
            pub const fn uuid(self) -> Uuid { self.0 }
        }
        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self { Self(uuid) }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}_{}", $prefix, encode(self.0))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(self, f) }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let rest = text
                    .strip_prefix($prefix)
                    .and_then(|rest| rest.strip_prefix('_'))
                    .ok_or(IdError::Prefix($prefix))?;
                decode(rest).map(Self).ok_or(IdError::Suffix)
            }
        }
        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> { stringify!($name).into() }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "description": concat!($($doc),*).trim_start(),
                    "pattern": concat!("^", $prefix, "_[0-7][0-9a-hjkmnp-tv-z]{25}$"),
                    "examples": [concat!($prefix, "_01h455vb4pex5vsknk084sn02q")],
                })
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> { text.parse() }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String { id.to_string() }
        }
    )*};
}

ids! {
    /// The id of a user.
    UserId = "user";
    /// The id of an organization.
    OrgId = "org";
    /// The id of an invitation.
    InvitationId = "invite";
    /// The id of an API token. It is no secret.
    TokenId = "tok";
    /// The id of a session of a browser. It is no secret.
    SessionId = "sess";
    /// The id of a passkey. It is no secret.
    PasskeyId = "pkey";
    /// The id of an offering.
    OfferingId = "off";
    /// The id of a node.
    NodeId = "node";
    /// The id of a join token. It is no secret.
    JoinTokenId = "join";
    /// The id of a job.
    JobId = "job";
    /// The id of a kept file of a job.
    FileId = "file";
    /// The id of a volume.
    VolumeId = "vol";
    /// The id of a transfer of the ledger.
    TransferId = "tr";
    /// The id of a budget.
    BudgetId = "bud";
    /// The id of an invoice.
    InvoiceId = "inv";
    /// The id of a payment by card.
    PaymentId = "pay";
    /// The id of a webhook.
    WebhookId = "hook";
    /// The id of a delivery of a notice.
    DeliveryId = "dlv";
    /// The id of a notice.
    NoticeId = "note";
    /// The id of a terminal.
    TerminalId = "term";
    /// The id of a quote.
    QuoteId = "quote";
    /// The id of a reservation or a maintenance window.
    ReservationId = "res";
    /// The id of a request for other limits.
    QuotaRequestId = "qreq";
    /// The id of a change request.
    ChangeRequestId = "chg";
    /// The id of a group of SCIM.
    ScimGroupId = "sgrp";
    /// The id of a service.
    ServiceId = "svc";
    /// The id of a revision of a service.
    RevisionId = "rev";
    /// The id of an inference key. It is no secret.
    InferenceKeyId = "ikey";
    /// The id of a gateway.
    GatewayId = "gw";
    /// The id of a class of promises of services.
    PromiseId = "prom";
    /// The id of an audit event.
    AuditEventId = "aud";
    /// The id of an HTTP request.
    RequestId = "req";
}

impl JobId {
    /// No job, for a place that needs an id.
    pub const NONE: Self = Self(Uuid::nil());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_id_survives_its_text(value: u128) {
            let id = JobId::from_uuid(Uuid::from_u128(value));
            prop_assert_eq!(id.to_string().parse::<JobId>().unwrap(), id);
        }

        #[test]
        fn any_text_is_an_id_or_an_error(text in ".{0,64}") {
            if let Ok(id) = text.parse::<JobId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }

        #[test]
        fn text_order_is_value_order(a: u128, b: u128) {
            let (a, b) = (Uuid::from_u128(a), Uuid::from_u128(b));
            prop_assert_eq!(a.cmp(&b), encode(a).cmp(&encode(b)));
        }
    }

    #[test]
    fn a_foreign_prefix_is_refused() {
        let org = OrgId::from_uuid(Uuid::from_u128(7)).to_string();
        assert_eq!(org.parse::<JobId>(), Err(IdError::Prefix("job")));
        assert_eq!("job_8zzzzzzzzzzzzzzzzzzzzzzzzz".parse::<JobId>(), Err(IdError::Suffix));
    }
}
