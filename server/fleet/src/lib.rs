//! Nodes and boards: enrolment, reports, health, leases, inventory, offerings and prices.

pub mod authority;
pub mod clone_detection;
pub mod cluster;
pub mod enrolment;
mod health;
mod host_differences;
mod inventory;
pub mod leases;
mod nodes;
mod offerings;
mod stuck;

pub use cluster::Cluster;
pub use enrolment::Enrolment;
pub use health::Health;
pub use inventory::Inventory;
pub use leases::Leases;
pub use nodes::Nodes;
pub use offerings::Offerings;
