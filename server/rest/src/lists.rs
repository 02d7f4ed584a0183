//! The parameters that all lists share.

use berth_types::problems::Problem;
use serde::Deserialize;

use crate::failed::Failed;

/// The query of a list without filters.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<u32>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl ListQuery {
    /// # Errors
    /// The limit is out of range.
    pub fn limit(&self) -> Result<u32, Failed> {
        limit(self.limit)
    }

    /// # Errors
    /// The text is no cursor of this list.
    pub fn cursor<T: std::str::FromStr>(&self) -> Result<Option<T>, Failed> {
        cursor(self.cursor.clone())
    }
}

/// The `limit` of a list: 1 to 200, or 50 when absent.
///
/// # Errors
/// The limit is out of range.
pub fn limit(asked: Option<u32>) -> Result<u32, Failed> {
    match asked.unwrap_or(50) {
        limit @ 1..=200 => Ok(limit),
        _ => Err(Failed(Problem::malformed("`limit` is between 1 and 200."))),
    }
}

/// Parses the `cursor` of a list.
///
/// # Errors
/// The text is no cursor of this list.
pub fn cursor<T: std::str::FromStr>(text: Option<String>) -> Result<Option<T>, Failed> {
    text.map(|t| {
        t.parse().map_err(|_| Failed(Problem::malformed("This cursor was not given out by this list.")))
    })
    .transpose()
}
