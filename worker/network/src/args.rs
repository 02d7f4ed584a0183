//! The operator's choices for the networks of jobs.

use std::net::IpAddr;

use clap::{Args, ValueEnum};
use ipnet::{IpNet, Ipv4Net};

use super::places::parse_subnet;

/// The most ranges of private addresses that jobs may reach.
const MOST_REACH: usize = 64;

/// The network of jobs on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JobNetworkKind {
    /// A network for each job, with access to the internet only.
    Own,
    /// The network of this host.
    Host,
}

/// The network between the ranks of a job on several nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GangNetworkKind {
    /// Encrypted packets of WireGuard.
    Wireguard,
    /// Plain packets of VXLAN, for a network that only nodes use.
    Vxlan,
    /// The network of this host.
    Host,
}

#[derive(Debug, Clone, Args)]
pub struct NetworkArgs {
    /// The network of jobs on one node. By default `own` for a worker that is root and has a sandbox.
    #[arg(long, env = "BERTH_JOB_NETWORK", value_enum)]
    pub job_network: Option<JobNetworkKind>,
    /// The addresses of jobs with networks of their own. They must be unused on the host and in its networks.
    #[arg(long, env = "BERTH_JOB_SUBNET", value_name = "RANGE", default_value = "100.125.0.0/16", value_parser = parse_subnet)]
    pub job_subnet: Ipv4Net,
    /// A resolver of names for jobs with networks of their own. By default the resolvers of the host. Repeatable.
    #[arg(long, env = "BERTH_JOB_RESOLVER", value_name = "ADDRESS", value_delimiter = ',')]
    pub job_resolver: Vec<IpAddr>,
    /// A range of private addresses that jobs with networks of their own may reach. Repeatable, at most 64.
    #[arg(long, env = "BERTH_JOB_REACH", value_name = "RANGE", value_delimiter = ',')]
    pub job_reach: Vec<IpNet>,
    /// The network between the ranks of a job on several nodes. By default `wireguard` where jobs have networks of
    /// their own. All nodes of a job need the same kind.
    #[arg(long, env = "BERTH_GANG_NETWORK", value_enum)]
    pub gang_network: Option<GangNetworkKind>,
    /// The first of 1,024 UDP ports for these networks. The other nodes must reach them.
    #[arg(long, env = "BERTH_GANG_PORT", default_value_t = 51_821, value_parser = clap::value_parser!(u16).range(1_024..=64_000))]
    pub gang_port: u16,
}

impl NetworkArgs {
    /// # Errors
    /// There are too many ranges.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.job_reach.len() > MOST_REACH {
            return Err(format!("--job-reach has more than {MOST_REACH} ranges"));
        }
        Ok(())
    }
}
