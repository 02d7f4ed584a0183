//! Files that an attempt gets before its start: its last checkpoint, its volumes, and its directories on host mounts.

pub mod checkpoint;
pub mod host_mounts;
mod volume_files;
pub mod volumes;
