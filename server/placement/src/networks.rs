//! The networks that requests need and that nodes give, as a hard rule.

/// The network of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum NetworkNeed {
    /// Any node suits.
    #[default]
    Any,
    /// The egress policy of the organization counts. In a request: if the policy differs from the default one.
    Policy,
    /// The ranks are on several nodes, which must have one kind of network between ranks.
    Gang,
    /// Both: the policy holds in the network between the ranks.
    GangPolicy,
    /// The network of the node.
    Host,
}

impl NetworkNeed {
    /// True if all nodes of a request must have one kind of network between ranks.
    pub const fn is_gang(self) -> bool {
        matches!(self, Self::Gang | Self::GangPolicy)
    }
}

/// The network between the ranks of a job on several nodes, the safest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum GangKind {
    /// The network of the host.
    #[default]
    Host,
    /// A network of the job without encryption.
    Plain,
    /// A network of the job with encryption.
    Encrypted,
}

/// The networks that a node gives to jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeNetworks {
    /// True if its worker keeps an egress policy that differs from the default one.
    pub policy: bool,
    /// True if its worker gives a single job the network of the node.
    pub host: bool,
    /// The network of ranks on the node.
    pub gang: GangKind,
    /// True if the node is set aside: it takes no rank of a job on several nodes.
    pub aside: bool,
}

impl NodeNetworks {
    /// All networks.
    pub const ALL: Self = Self { policy: true, host: true, gang: GangKind::Encrypted, aside: false };

    /// True if the node suits a request with this need.
    pub const fn meets(self, need: NetworkNeed) -> bool {
        match need {
            NetworkNeed::Any | NetworkNeed::Gang => true,
            NetworkNeed::Policy => self.policy,
            // No policy limits the network of the host.
            NetworkNeed::GangPolicy => self.policy && !matches!(self.gang, GangKind::Host),
            NetworkNeed::Host => self.host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_meets_the_needs_that_its_worker_supports() {
        let none = NodeNetworks::default();
        let policy = NodeNetworks { policy: true, ..none };
        for (networks, need, expected) in [
            (none, NetworkNeed::Any, true),
            (none, NetworkNeed::Policy, false),
            (none, NetworkNeed::Host, false),
            (policy, NetworkNeed::Policy, true),
            (policy, NetworkNeed::Host, false),
            (none, NetworkNeed::Gang, true),
            (policy, NetworkNeed::GangPolicy, false),
            (NodeNetworks { gang: GangKind::Plain, ..policy }, NetworkNeed::GangPolicy, true),
            (NodeNetworks::ALL, NetworkNeed::Host, true),
        ] {
            assert_eq!(networks.meets(need), expected, "{networks:?}, {need:?}");
        }
    }
}
