//! The model of a cluster and of requests for its devices, and the scores of places, as pure functions.
//!
//! The engine decides with it. Like the engine, this crate has no clocks, randomness, IO or threads on
//! purpose.

pub mod assignment;
pub mod calendar;
pub mod cluster;
pub mod demand;
pub mod fair_share;
pub mod finder;
pub mod networks;
pub mod obstacle_times;
pub mod pools;
pub mod power;
pub mod queue;
pub mod quotas;
pub mod request;
pub mod scoring;
pub mod shape;
pub mod tenancy;
pub mod timeline;

#[cfg(test)]
mod small_cluster;
#[cfg(test)]
mod tests;
