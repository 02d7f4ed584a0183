//! Typed, prefixed ids: `job_01h455vb4pex5vsknk084sn02q`.
//!
//! The suffix is a UUIDv7 in Crockford base 32, the encoding of the TypeID specification, so ids
//! sort by creation time as text. Making one needs a time and randomness, which come from outside.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Why a text is not an id of the wanted kind.
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
            /// What every id of this kind starts with, before the underscore.
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
    /// A person who signs in.
    UserId = "user";
    /// A tenant.
    OrgId = "org";
    /// Somebody who may become a member.
    InvitationId = "invite";
    /// An API token (its record, never its secret).
    TokenId = "tok";
    /// What can be ordered.
    OfferingId = "off";
    /// A host with a worker daemon.
    NodeId = "node";
    /// A one-time ticket for a worker.
    JoinTokenId = "join";
    /// What a tenant asked to run.
    JobId = "job";
    /// A file of a job that is kept.
    FileId = "file";
    /// What several jobs of an organization share.
    VolumeId = "vol";
    /// One row of the ledger.
    TransferId = "tr";
    /// What may be spent in a month.
    BudgetId = "bud";
    /// What was billed for a month.
    InvoiceId = "inv";
    /// Money that was asked for by card.
    PaymentId = "pay";
    /// Where an organization hears of what happens.
    WebhookId = "hook";
    /// One notice on its way to one place.
    DeliveryId = "dlv";
    /// Something that happened which somebody should hear of.
    NoticeId = "note";
    /// A shell in a running job.
    TerminalId = "term";
    /// A price for a time to come.
    QuoteId = "quote";
    /// Capacity promised for a time.
    ReservationId = "res";
    /// A request for higher limits.
    QuotaRequestId = "qreq";
    /// What somebody did.
    AuditEventId = "aud";
    /// One HTTP request, for support.
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
