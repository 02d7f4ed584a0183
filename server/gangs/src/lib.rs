//! The networks between the ranks of jobs on several nodes: their keys and ports, and the measured links of their nodes.
//!
//! This crate decides neither a placement nor the end of an attempt.

pub mod links;
pub mod networks;
