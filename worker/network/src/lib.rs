//! The networks of jobs: a network namespace for each attempt, connected to the host by a pair of virtual interfaces.
//!
//! The host translates the addresses of jobs. One table of nftables closes the host, private networks and other jobs
//! to them. The ranks of a job on several nodes have a second interface, towards each other. This crate runs `ip`,
//! `nft`, `wg` and `bridge` and knows neither a job nor the portal. All calls block.

mod args;
mod egress;
mod gang;
mod job_network;
mod places;
pub mod preflight;
mod programs;
mod resolvers;
mod rule_table;
mod rules;
pub mod tunnel;

pub use args::{GangNetworkKind, JobNetworkKind, NetworkArgs};
pub use egress::Egress;
pub use gang::{GangKey, GangNetwork, GangPeer, hosts_text};
pub use job_network::JobNetwork;
pub use places::parse_subnet;
