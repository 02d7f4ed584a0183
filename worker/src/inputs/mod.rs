//! Files that an attempt gets before its start: its last checkpoint and its volumes.

pub mod checkpoint;
pub mod volumes;
