//! Services: models and other servers of an organization behind one address, with replicas that are jobs.

pub mod loads;
pub mod promises;

pub use loads::LoadBoard;
pub mod hosts;
pub mod rollouts;
pub mod routes;
pub mod schedules;

mod addresses;
mod canary_keys;
mod checks;
mod gateway_admin;
mod keys;
mod retention;
mod revisions;
mod services;
mod show;

pub use services::Services;
pub mod gateways;

pub use gateways::GatewaySync;
