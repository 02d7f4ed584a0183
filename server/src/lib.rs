//! The portal's program: REST, pages, the workers' door, webhooks, metrics and the loops, over the parts of the portal.
//!
//! `portal` puts the parts together. `rest` reads a request and writes an answer, `workers` speaks with the hosts.
//! Must not decide: rules are in the parts, SQL is in `berth-store`.

pub mod install;
pub mod loops;
mod metrics;
pub mod portal;
pub mod rest;
pub mod serve;
pub mod tls;
pub mod web;
mod webhooks;
pub mod workers;
