//! Values that wire types share: ids, times, days, money, pages of lists, problems, limits of paths and RDMA ports.
//!
//! `berth-types` names all of them, so other crates use only that one.

#[cfg(feature = "columns")]
mod columns;
pub mod days;
pub mod gangs;
pub mod ids;
pub mod lists;
pub mod money;
pub mod node_pools;
pub mod paths;
#[cfg(feature = "schema")]
pub mod patterns;
pub mod problems;
pub mod rdma;
pub mod time;

// The macro for columns names it.
#[cfg(feature = "columns")]
#[doc(hidden)]
pub use sqlx;

use serde::{Deserialize, Serialize};

/// One page of a list, in the order of its parameter `sort`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Page<T> {
    /// The items of the page.
    pub items: Vec<T>,
    /// An opaque value for the parameter `cursor` of the next page. Absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// Creates the only page of a short list.
    pub fn whole(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }

    /// Changes each item.
    pub fn map<U>(self, change: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(change).collect(), next_cursor: self.next_cursor }
    }

    /// Changes each item, unless a change fails.
    ///
    /// # Errors
    /// The first failure of a change.
    pub fn try_map<U, E>(self, change: impl FnMut(T) -> Result<U, E>) -> Result<Page<U>, E> {
        let items = self.items.into_iter().map(change).collect::<Result<_, E>>()?;
        Ok(Page { items, next_cursor: self.next_cursor })
    }
}

/// The order of a list by its key: the creation for objects with ids, the name for objects with names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// The oldest object or the first name first.
    Asc,
    /// The newest object or the last name first.
    Desc,
}
