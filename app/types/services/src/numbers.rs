//! Numbers of bodies. One outside of the type of its field becomes the greatest of the type, so that the check of the
//! portal refuses it with the permitted range.

use serde::{Deserialize, Deserializer};

pub(crate) fn read_u8<'de, D: Deserializer<'de>>(input: D) -> Result<u8, D::Error> {
    Ok(u8::try_from(i64::deserialize(input)?).unwrap_or(u8::MAX))
}

pub(crate) fn read_u32<'de, D: Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
    Ok(u32::try_from(i64::deserialize(input)?).unwrap_or(u32::MAX))
}
