//! The rules of Berth, as pure functions.
//!
//! This crate has no clocks, randomness, IO or threads on purpose. `now` is a parameter and a decision is
//! returned as data, so a test of a rule builds its state in a few lines.

pub mod admission;
pub mod assignment;
pub mod calendar;
pub mod cluster;
pub mod demand;
pub mod engine;
pub mod expiry;
pub mod fair_share;
pub mod finder;
pub mod images;
pub mod jobs;
pub mod lease;
pub mod ports;
pub mod power;
pub mod queue;
pub mod quotas;
pub mod rating;
pub mod request;
pub mod scoring;
pub mod secrets;
pub mod shape;
pub mod timeline;
pub mod volumes;
