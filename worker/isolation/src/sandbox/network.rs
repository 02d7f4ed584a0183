//! The networks of attempts, as the sandbox and containers need them.

use std::path::PathBuf;

use super::BindMount;

/// The network of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxNetwork<'a> {
    /// Only a loopback interface.
    None,
    /// The host's.
    Host,
    /// A namespace that exists already.
    Own(&'a NetworkNamespace),
}

impl<'a> SandboxNetwork<'a> {
    /// The network of an attempt with this namespace, or of one that has no network.
    pub const fn new(namespace: Option<&'a NetworkNamespace>, no_network: bool) -> Self {
        match namespace {
            _ if no_network => Self::None,
            Some(namespace) => Self::Own(namespace),
            None => Self::Host,
        }
    }
}

/// A network namespace of the host for an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkNamespace {
    /// The file that holds the namespace.
    pub path: PathBuf,
    /// The program that enters it.
    pub nsenter: PathBuf,
    /// The file with the resolvers of names. `None`: the host has no such file.
    pub resolv_conf: Option<BindMount>,
    /// The file with the names of the ranks of a gang. `None`: the job sees the host's.
    pub hosts: Option<BindMount>,
}
