//! Dedicated nodes: a node takes the work of all organizations, or of one alone. The work of an organization with the
//! setting "own nodes only" goes to its dedicated nodes alone.

use berth_types::ids::OrgId;

/// The nodes that an organization may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsableNodes {
    pub org: OrgId,
    /// True if only nodes suit that are dedicated to the organization.
    pub own_only: bool,
}

impl UsableNodes {
    /// True if the organization may use a node that is dedicated to an organization, or (`None`) to none.
    pub fn has(self, dedicated_to: Option<OrgId>) -> bool {
        dedicated_to.map_or(!self.own_only, |org| org == self.org)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dedication_and_the_setting_decide_about_a_node() {
        let org = |n: u128| OrgId::from_uuid(uuid::Uuid::from_u128(n));
        for (own_only, dedicated_to, expected) in [
            (false, None, true),
            (true, None, false),
            (false, Some(org(1)), true),
            (true, Some(org(1)), true),
            (false, Some(org(2)), false),
            (true, Some(org(2)), false),
        ] {
            let nodes = UsableNodes { org: org(1), own_only };
            assert_eq!(nodes.has(dedicated_to), expected, "{own_only}, {dedicated_to:?}");
        }
    }
}
