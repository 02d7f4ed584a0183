//! The program of the portal: REST, pages, the gRPC service for workers, webhooks, metrics and loops.
//!
//! `portal` assembles the parts. `rest` puts their routes together; `workers` exchanges messages with
//! the hosts. Must not decide: rules are in the parts, SQL is in `berth-store`.

pub mod arguments;
mod audit_destinations;
mod audit_log;
mod change_requests;
pub mod connections;
pub mod install;
pub mod loops;
mod metrics;
pub mod openapi;
mod overview;
mod parts;
mod places;
pub mod portal;
pub mod rest;
pub mod serve;
pub mod tls;
mod volume_lists;
pub use berth_web as web;
pub mod workers;
