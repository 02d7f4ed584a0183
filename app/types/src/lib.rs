//! Wire types of Berth for the REST API, the pages and the layers of the portal.
//!
//! This crate does no IO, reads no clock and depends on no framework, because the browser uses it too.

pub mod accounts;
pub mod budgets;
#[cfg(feature = "columns")]
mod columns;
pub mod events;
pub mod evidence;
#[cfg(feature = "schema")]
pub mod examples;
pub mod files;
pub mod health;
pub mod ids;
pub mod invoices;
pub mod jobs;
pub mod ledger;
pub mod members;
pub mod metrics;
pub mod money;
pub mod nodes;
pub mod offerings;
pub mod operations;
pub mod paths;
#[cfg(feature = "schema")]
mod patterns;
pub mod payments;
pub mod ports;
pub mod problems;
pub mod quotas;
pub mod reservations;
pub mod secrets;
pub mod terminals;
pub mod time;
pub mod usage;
pub mod volumes;
pub mod webhooks;

use serde::{Deserialize, Serialize};

/// One page of a list, newest first unless the route says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Page<T> {
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
}
