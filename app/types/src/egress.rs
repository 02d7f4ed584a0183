//! Egress policies: the addresses that the jobs of an organization may reach, and the networks that they name.

use serde::{Deserialize, Serialize};

use crate::ids::OrgId;

/// The most named networks of the portal.
pub const MAX_NETWORKS: usize = 100;
/// The most ranges of one version of IP in a named network.
pub const MAX_RANGES: usize = 32;
/// The most named networks of an organization.
pub const MAX_ORG_NETWORKS: usize = 16;
/// The most characters of the name of a network.
pub const MAX_NETWORK_NAME: usize = 63;

/// The body of a named network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutNetwork {
    /// The ranges of addresses, such as `10.8.0.0/16` or `fd00:8::/32`: at most 32 of each version of IP. None may
    /// have loopback, link-local, multicast or unspecified addresses, or version 6 addresses that contain one of
    /// version 4.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 64), inner(length(min = 1, max = 64))))]
    pub ranges: Vec<String>,
}

/// An organization whose policy names a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkOrg {
    /// The id of the organization.
    pub id: OrgId,
    /// The name of the organization.
    pub name: String,
}

/// A named network, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamedNetwork {
    /// The name of the network.
    pub name: String,
    /// The ranges of addresses.
    pub ranges: Vec<String>,
    /// The number of organizations whose policies name it.
    pub org_count: u32,
    /// The first of these organizations by name, at most 20.
    pub orgs: Vec<NetworkOrg>,
}

/// The body of an egress policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutEgressPolicy {
    /// True if the jobs of the organization reach the internet.
    pub internet: bool,
    /// The names of the networks that its jobs may reach in addition, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), inner(length(min = 1, max = 63))))]
    pub networks: Vec<String>,
    /// True if its jobs may ask for the network of their node, which nothing separates from the host.
    #[serde(default)]
    pub host_network: bool,
}

/// A network that the jobs of an organization may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenNetwork {
    /// The name of the network.
    pub name: String,
    /// The ranges of addresses.
    pub ranges: Vec<String>,
}

/// The addresses that the jobs of an organization may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EgressPolicy {
    /// True if its jobs reach the internet.
    pub internet: bool,
    /// The networks that its jobs may reach in addition, by name.
    pub networks: Vec<OpenNetwork>,
    /// True if its jobs may ask for the network of their node, which nothing separates from the host.
    pub host_network: bool,
}

impl EgressPolicy {
    /// True for the policy of a new organization: the internet and nothing else.
    pub fn is_default(&self) -> bool {
        self.internet && self.networks.is_empty()
    }
}
