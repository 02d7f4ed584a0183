//! Types of operators: their roles, the rights of a role, and changes of operators.

use serde::{Deserialize, Serialize};

use crate::ids::UserId;
use crate::time::Timestamp;

/// The rights of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OperatorRole {
    /// All rights, with the operators and the settings of the portal.
    Owner,
    /// Rights to change nodes and boards, and to stop work.
    Fleet,
    /// Rights to change prices, credit and invoices.
    Billing,
    /// Rights to change limits and accounts, to stop work, and to read people and the audit log.
    Support,
    /// Rights to read everything.
    Auditor,
}

impl OperatorRole {
    pub const ALL: [Self; 5] = [Self::Owner, Self::Fleet, Self::Billing, Self::Support, Self::Auditor];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Fleet => "fleet",
            Self::Billing => "billing",
            Self::Support => "support",
            Self::Auditor => "auditor",
        }
    }

    /// Returns the description of the rights.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Owner => "All rights, including operators, tokens and settings of the portal.",
            Self::Fleet => "Changes nodes, boards and maintenance; stops jobs.",
            Self::Billing => "Changes prices, credit, invoices and terms of reservations.",
            Self::Support => "Changes limits and accounts; stops and enters jobs; reads all.",
            Self::Auditor => "Reads all, with people and the audit log. Changes nothing.",
        }
    }

    /// Returns true if the role has a right that another role lacks.
    pub fn exceeds(self, other: Self) -> bool {
        OperatorRight::ALL.into_iter().any(|right| right.is_granted_to(self) && !right.is_granted_to(other))
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// A right of operators. Each request of an operator needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorRight {
    /// Read nodes, work, organizations, money, limits and the state of the portal.
    View,
    /// Read people, operators, tokens, domains of single sign-on and the audit log.
    Inspect,
    /// Change nodes, boards, racks and maintenance.
    ManageFleet,
    /// Stop jobs; approve, decline and cancel reservations.
    ManageWork,
    /// Change prices, credit, invoices and the terms of reservations.
    ManageMoney,
    /// Decide requests of organizations. Requests for credit also need [`ManageMoney`](Self::ManageMoney), and those
    /// for limits [`ManageOrgs`](Self::ManageOrgs).
    DecideRequests,
    /// Change limits of organizations and accounts of people.
    ManageOrgs,
    /// Enter the jobs of organizations by terminals and ports.
    EnterJobs,
    /// Change operators, their accounts and tokens, settings of the portal and domains of single sign-on.
    ManagePortal,
}

impl OperatorRight {
    pub const ALL: [Self; 9] = [
        Self::View,
        Self::Inspect,
        Self::ManageFleet,
        Self::ManageWork,
        Self::ManageMoney,
        Self::DecideRequests,
        Self::ManageOrgs,
        Self::EnterJobs,
        Self::ManagePortal,
    ];

    pub const fn is_granted_to(self, role: OperatorRole) -> bool {
        use OperatorRole::{Auditor, Billing, Fleet, Owner, Support};
        match self {
            Self::View => true,
            Self::Inspect => matches!(role, Owner | Support | Auditor),
            Self::ManageFleet => matches!(role, Owner | Fleet),
            Self::ManageWork => matches!(role, Owner | Fleet | Support),
            Self::ManageMoney => matches!(role, Owner | Billing),
            Self::DecideRequests => matches!(role, Owner | Billing | Support),
            Self::ManageOrgs | Self::EnterJobs => matches!(role, Owner | Support),
            Self::ManagePortal => matches!(role, Owner),
        }
    }

    /// Returns the right as a part of a sentence after "the right to".
    pub const fn name(self) -> &'static str {
        match self {
            Self::View => "read the state of the portal",
            Self::Inspect => "read people and the audit log",
            Self::ManageFleet => "change nodes and boards",
            Self::ManageWork => "stop jobs and decide reservations",
            Self::ManageMoney => "change money",
            Self::DecideRequests => "decide requests of organizations",
            Self::ManageOrgs => "change limits and accounts",
            Self::EnterJobs => "enter jobs",
            Self::ManagePortal => "change operators and settings of the portal",
        }
    }

    /// Returns the names of the roles with this right, such as `owner or fleet`.
    pub fn roles_text(self) -> String {
        let roles = OperatorRole::ALL.into_iter().filter(|role| self.is_granted_to(*role));
        roles.map(OperatorRole::name).collect::<Vec<_>>().join(" or ")
    }
}

/// An operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Operator {
    /// The user.
    pub user: UserId,
    /// The user's name.
    pub name: String,
    /// The e-mail address for the sign-in.
    pub email: String,
    /// The role.
    pub role: OperatorRole,
    /// True if the account has a second factor.
    pub second_factor: bool,
    /// The time at which an operator disabled the account; absent for an enabled account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_at: Option<Timestamp>,
    /// The time of the last request of a session that has not ended; absent without a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
}

/// The body of a new operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewOperator {
    /// The address of an account with a password, at most 254 bytes with the white space around it.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 3, max = 254), regex(pattern = crate::patterns::PADDED_EMAIL))
    )]
    pub email: String,
    /// The role.
    pub role: OperatorRole,
    /// The reason for the audit log: 1 to 300 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 300), regex(pattern = crate::patterns::NAME))
    )]
    pub reason: String,
}

/// The body of a change of an operator's role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ChangeOperator {
    /// The new role.
    pub role: OperatorRole,
    /// The reason for the audit log: 1 to 300 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 300), regex(pattern = crate::patterns::NAME))
    )]
    pub reason: String,
}

/// The body of the removal of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RemoveOperator {
    /// The reason for the audit log: 1 to 300 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 300), regex(pattern = crate::patterns::NAME))
    )]
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::OperatorRight as Right;
    use super::*;

    #[test]
    fn each_role_has_the_rights_of_the_table() {
        let table = [
            (OperatorRole::Owner, Right::ALL.to_vec()),
            (OperatorRole::Fleet, vec![Right::View, Right::ManageFleet, Right::ManageWork]),
            (OperatorRole::Billing, vec![Right::View, Right::ManageMoney, Right::DecideRequests]),
            (
                OperatorRole::Support,
                vec![
                    Right::View,
                    Right::Inspect,
                    Right::ManageWork,
                    Right::DecideRequests,
                    Right::ManageOrgs,
                    Right::EnterJobs,
                ],
            ),
            (OperatorRole::Auditor, vec![Right::View, Right::Inspect]),
        ];
        assert_eq!(table.iter().map(|(role, _)| *role).collect::<Vec<_>>(), OperatorRole::ALL);
        for (role, rights) in table {
            for right in Right::ALL {
                assert_eq!(right.is_granted_to(role), rights.contains(&right), "{role:?} {right:?}");
            }
        }
    }

    #[test]
    fn only_a_lower_role_gives_no_further_right() {
        let lower = |from: OperatorRole| {
            let all = OperatorRole::ALL.into_iter().filter(move |to| !to.exceeds(from));
            all.map(OperatorRole::name).collect::<Vec<_>>()
        };
        assert_eq!(lower(OperatorRole::Owner), ["owner", "fleet", "billing", "support", "auditor"]);
        assert_eq!(lower(OperatorRole::Support), ["support", "auditor"]);
        for role in [OperatorRole::Fleet, OperatorRole::Billing, OperatorRole::Auditor] {
            assert_eq!(lower(role), [role.name()]);
        }
    }

    #[test]
    fn names_are_those_of_the_api_and_parse_back() {
        for role in OperatorRole::ALL {
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
            assert_eq!(OperatorRole::parse(role.name()), Some(role));
        }
        assert_eq!(OperatorRole::parse("operator"), None);
        assert_eq!(OperatorRight::ManageFleet.roles_text(), "owner or fleet");
    }
}
