//! Access to running jobs: terminals, and ports in the browser. Both use tunnels that workers dial.

pub mod operator_access;
pub mod ports;
mod terminal_access;
pub mod terminals;
pub mod tunnels;

pub use ports::Ports;
pub use terminals::Terminals;
pub use tunnels::Tunnels;

/// The routes of each part, without their state.
pub mod routes {
    pub use crate::ports::routes::routes as ports;
    pub use crate::terminals::routes::routes as terminals;
}
