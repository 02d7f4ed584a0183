//! Nodes and boards: enrolment, reports, health, leases, inventory, offerings and prices.

pub mod authority;
pub mod board_history;
pub mod clone_detection;
pub mod cluster;
mod egress;
pub mod enrolment;
mod health;
mod host_differences;
mod inventory;
pub mod leases;
mod mig_differences;
mod nodes;
mod offerings;
pub mod reports;
mod stuck;

pub use cluster::Cluster;
pub use egress::EgressPolicies;
pub use enrolment::Enrolment;
pub use health::Health;
pub use inventory::Inventory;
pub use leases::Leases;
pub use nodes::Nodes;
pub use offerings::Offerings;

/// The routes of each part, without their state.
pub mod routes {
    pub use crate::cluster::routes::routes as cluster;
    pub use crate::egress::routes::routes as egress;
    pub use crate::enrolment::routes::routes as enrolment;
    pub use crate::health::routes::routes as health;
    pub use crate::inventory::routes::routes as inventory;
    pub use crate::nodes::routes::routes as nodes;
    pub use crate::offerings::routes::routes as offerings;
}
