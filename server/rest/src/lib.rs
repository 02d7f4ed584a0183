//! The common parts of the REST routes: extractors, answers, lists, and the description of operations.
//!
//! The routes of a part are beside the part. A handler reads the request, calls one method of its part and
//! writes the answer. It has no rules and no SQL.

pub mod answers;
pub mod authentication;
pub mod columns;
pub mod csv;
pub mod disconnect;
pub mod downloads;
pub mod extract;
pub mod failed;
mod faults;
pub mod lists;
pub mod operations;
pub mod origins;
pub mod scopes;
pub mod sender;
pub mod streams;

pub use authentication::Signed;
pub use disconnect::Disconnect;
pub use extract::{Json, Path, Query};
pub use failed::Failed;
pub use sender::Sender;
