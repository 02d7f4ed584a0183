//! The rules of Berth, as functions from values to values.
//!
//! What is absent on purpose: clocks, randomness, IO, threads. `now` comes in as a parameter and a
//! decision goes out as data, so every rule is tested by building a world in a few lines.

pub mod admission;
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
pub mod plan;
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
