//! The description of the API (OpenAPI 3.1), from the descriptions of all routes.

mod document;
mod problem_codes;

pub use document::{document, routes};
