//! A text column with JSON, parsed once at the read.

use std::ops::Deref;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::{Database, Decode, Encode, Type};

/// A value in a text column, as JSON. A row with another text is corrupt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JsonColumn<T>(pub T);

impl<T> Deref for JsonColumn<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<DB: Database, T> Type<DB> for JsonColumn<T>
where
    String: Type<DB>,
{
    fn type_info() -> DB::TypeInfo {
        <String as Type<DB>>::type_info()
    }
    fn compatible(info: &DB::TypeInfo) -> bool {
        <String as Type<DB>>::compatible(info)
    }
}

impl<'r, DB: Database, T: DeserializeOwned> Decode<'r, DB> for JsonColumn<T>
where
    &'r str: Decode<'r, DB>,
{
    fn decode(value: DB::ValueRef<'r>) -> Result<Self, BoxDynError> {
        let text = <&str as Decode<'r, DB>>::decode(value)?;
        // The text of the error may quote the value, which may be secret.
        let cause = |e: serde_json::Error| {
            format!("{:?} error at line {} column {}", e.classify(), e.line(), e.column())
        };
        Ok(Self(serde_json::from_str(text).map_err(cause)?))
    }
}

impl<'q, DB: Database, T: Serialize> Encode<'q, DB> for JsonColumn<T>
where
    String: Encode<'q, DB>,
{
    fn encode_by_ref(&self, buf: &mut DB::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let text = serde_json::to_string(&self.0)?;
        <String as Encode<'q, DB>>::encode(text, buf)
    }
}
