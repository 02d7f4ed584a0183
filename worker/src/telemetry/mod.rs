//! Readings of boards and slices, once a second: for the portal, and for Prometheus on this host.

mod host_telemetry;
pub mod metrics_server;
mod sampling;

pub use host_telemetry::{BoardReading, Telemetry};
pub use sampling::{HostSample, sample};
