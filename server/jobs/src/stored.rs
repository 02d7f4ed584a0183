//! The parsing of stored texts.

use std::str::FromStr;

use berth_store::StoreError;

/// Parses a stored text, such as an id.
///
/// # Errors
/// The text has not the form of a `T`.
pub(crate) fn parse<T: FromStr>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt(text.to_owned()))
}
