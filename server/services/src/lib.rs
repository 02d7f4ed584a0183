//! Services: models and other servers of an organization behind one address, with replicas that are jobs.

pub mod controller;
pub mod promises;

pub use controller::Controller;
pub use controller::inputs::LoadBoard;
pub mod hosts;
pub mod rollouts;
pub mod routes;

mod addresses;
mod checks;
mod gateway_admin;
mod keys;
mod retention;
mod revisions;
mod schedules;
mod services;
mod show;

pub use services::Services;
pub mod gateways;

pub use gateways::GatewaySync;
