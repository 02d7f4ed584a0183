//! Types of columns with JSON.

mod json;
mod ranks;

pub use json::JsonColumn;
pub use ranks::{RankEnd, StoredEvidence};
