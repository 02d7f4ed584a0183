//! The rules of Berth besides placement, as pure functions.
//!
//! This crate has no clocks, randomness, IO or threads on purpose. `now` is a parameter and a decision is
//! returned as data, so a test of a rule builds its state in a few lines.

pub mod admission;
pub mod approval;
pub mod capacity;
pub mod decision_mail;
pub mod dedicated;
pub mod domains;
pub mod drains;
pub mod egress;
pub mod evidence;
pub mod expiry;
pub mod gang_links;
pub mod images;
pub mod jobs;
pub mod lease;
pub mod ports;
pub mod rating;
pub mod secrets;
pub mod suggestions;
pub mod underuse;
pub mod volumes;
pub mod work_summary;
