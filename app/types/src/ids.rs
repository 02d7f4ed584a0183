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
    #[error("the id is not 26 characters of base 32 after its prefix")]
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
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
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
    /// A user.
    UserId = "user";
    /// An organization.
    OrgId = "org";
    /// An invitation.
    InvitationId = "invite";
    /// The record of an API token, without its secret.
    TokenId = "tok";
    /// An offering.
    OfferingId = "off";
    /// A host with a worker daemon.
    NodeId = "node";
    /// A join token.
    JoinTokenId = "join";
    /// A job.
    JobId = "job";
    /// A kept file of a job.
    FileId = "file";
    /// A volume.
    VolumeId = "vol";
    /// One row of the ledger.
    TransferId = "tr";
    /// A budget.
    BudgetId = "bud";
    /// An invoice.
    InvoiceId = "inv";
    /// A payment by card.
    PaymentId = "pay";
    /// A webhook.
    WebhookId = "hook";
    /// A delivery of a notice to a webhook.
    DeliveryId = "dlv";
    /// A notice.
    NoticeId = "note";
    /// A terminal.
    TerminalId = "term";
    /// A quote.
    QuoteId = "quote";
    /// A reservation or a maintenance window.
    ReservationId = "res";
    /// A request for higher limits.
    QuotaRequestId = "qreq";
    /// An audit event.
    AuditEventId = "aud";
    /// An HTTP request.
    RequestId = "req";
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
