//! The description of the API (OpenAPI 3.1), from the descriptions of all routes.

mod document;
mod parameters;
mod problem_codes;
mod scopes;
mod texts;

pub use document::{document, routes};
pub use scopes::find_scope;
