//! Services: models and other servers of an organization behind one address, with replicas that are jobs.

pub mod controller;

pub use controller::Controller;
pub use controller::inputs::LoadBoard;
