//! The Berth portal: REST, service and store.
//!
//! `rest` reads a request and writes an answer, `service` decides, `store` remembers. Authorisation
//! lives in `service` and nowhere else; SQL lives in `store` and nowhere else.

pub mod clock;
mod passwords;
pub mod portal;
pub mod rest;
mod secrets;
pub mod service;
pub mod store;
