//! The nodes that the work of an organization may use, as a hard rule.
//!
//! A dedicated node takes the work of its organization alone. The work of an organization with the setting "own
//! nodes only" goes to its dedicated nodes alone. [`Tenancy::admits`] decides for every view of a node.

/// The index for which there is no organization: a node that is dedicated to it takes no work.
pub const NOBODY: u16 = u16::MAX;

/// The nodes that a request may use. Organizations without dedicated nodes and without the setting have one
/// tenancy in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tenancy {
    /// The index of the organization in the cluster, counted from one; 0 without use of dedicated nodes.
    pub org: u16,
    /// True if only nodes that are dedicated to the organization suit.
    pub own_only: bool,
}

impl Tenancy {
    /// All nodes that are not dedicated.
    pub const COMMON: Self = Self { org: 0, own_only: false };

    /// True if a node suits that is dedicated to the organization with this index; 0 for a node without one.
    pub const fn admits(self, dedicated_to: u16) -> bool {
        match dedicated_to {
            0 => !self.own_only,
            NOBODY => false,
            org => org == self.org,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenancy_admits_by_dedication_and_by_the_setting() {
        let open = Tenancy { org: 1, own_only: false };
        let closed = Tenancy { org: 1, own_only: true };
        for (tenancy, dedicated_to, expected) in [
            (Tenancy::COMMON, 0, true),
            (Tenancy::COMMON, 1, false),
            (Tenancy::COMMON, NOBODY, false),
            (open, 0, true),
            (open, 1, true),
            (open, 2, false),
            (closed, 0, false),
            (closed, 1, true),
            (closed, 2, false),
            (Tenancy { org: NOBODY, own_only: true }, NOBODY, false),
        ] {
            assert_eq!(tenancy.admits(dedicated_to), expected, "{tenancy:?}, {dedicated_to}");
        }
    }
}
