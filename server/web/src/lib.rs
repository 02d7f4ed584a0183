//! The pages and the documents of the portal over HTTP. This crate calls the REST routes and has no rules of its own.

mod docs;
mod web;

pub use web::{Assets, router};
