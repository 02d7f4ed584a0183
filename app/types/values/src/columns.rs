//! The columns of a database for ids and times: text or an integer, parsed once at the read.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::{Database, Decode, Encode, Type};

use crate::time::Timestamp;

/// Implements a text column for a type with `to_text` and `from_text`.
#[macro_export]
macro_rules! text_column {
    ($name:ty, $to_text:expr, $from_text:expr) => {
        impl<DB: $crate::sqlx::Database> $crate::sqlx::Type<DB> for $name
        where
            String: $crate::sqlx::Type<DB>,
        {
            fn type_info() -> DB::TypeInfo {
                <String as $crate::sqlx::Type<DB>>::type_info()
            }
            fn compatible(info: &DB::TypeInfo) -> bool {
                <String as $crate::sqlx::Type<DB>>::compatible(info)
            }
        }
        impl<'r, DB: $crate::sqlx::Database> $crate::sqlx::Decode<'r, DB> for $name
        where
            &'r str: $crate::sqlx::Decode<'r, DB>,
        {
            fn decode(value: DB::ValueRef<'r>) -> Result<Self, $crate::sqlx::error::BoxDynError> {
                let text = <&str as $crate::sqlx::Decode<'r, DB>>::decode(value)?;
                let parsed: Option<Self> = $from_text(text);
                parsed.ok_or_else(|| format!("invalid {}: {text:?}", stringify!($name)).into())
            }
        }
        impl<'q, DB: $crate::sqlx::Database> $crate::sqlx::Encode<'q, DB> for $name
        where
            String: $crate::sqlx::Encode<'q, DB>,
        {
            fn encode_by_ref(
                &self,
                buf: &mut DB::ArgumentBuffer,
            ) -> Result<$crate::sqlx::encode::IsNull, $crate::sqlx::error::BoxDynError> {
                let text: String = $to_text(self);
                <String as $crate::sqlx::Encode<'q, DB>>::encode(text, buf)
            }
        }
    };
}

macro_rules! ids {
    ($($name:ident)*) => {
        $(text_column!(crate::ids::$name, |id: &crate::ids::$name| id.to_string(), |text: &str| text.parse().ok());)*
    };
}

ids! {
    UserId OrgId InvitationId TokenId OfferingId NodeId JoinTokenId JobId FileId VolumeId TransferId BudgetId
    InvoiceId PaymentId WebhookId DeliveryId NoticeId TerminalId QuoteId ReservationId QuotaRequestId
    AuditEventId RequestId ServiceId RevisionId InferenceKeyId GatewayId PromiseId SessionId PasskeyId
    ChangeRequestId ScimGroupId
}

text_column!(
    crate::node_pools::NodePool,
    |pool: &crate::node_pools::NodePool| pool.name().to_owned(),
    crate::node_pools::NodePool::parse
);

impl<DB: Database> Type<DB> for Timestamp
where
    i64: Type<DB>,
{
    fn type_info() -> DB::TypeInfo {
        <i64 as Type<DB>>::type_info()
    }
    fn compatible(info: &DB::TypeInfo) -> bool {
        <i64 as Type<DB>>::compatible(info)
    }
}

impl<'r, DB: Database> Decode<'r, DB> for Timestamp
where
    i64: Decode<'r, DB>,
{
    fn decode(value: DB::ValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self::from_micros(<i64 as Decode<'r, DB>>::decode(value)?))
    }
}

impl<'q, DB: Database> Encode<'q, DB> for Timestamp
where
    i64: Encode<'q, DB>,
{
    fn encode_by_ref(&self, buf: &mut DB::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<'q, DB>>::encode(self.micros(), buf)
    }
}
