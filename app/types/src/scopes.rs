//! The scopes of API tokens.

use serde::{Deserialize, Serialize};

/// The most networks of a token.
pub const MAX_TOKEN_NETWORKS: usize = 16;
/// Characters of a network of a token: an IPv6 address with the length of its prefix.
pub const MAX_NETWORK_CHARS: usize = 43;

/// The requests that a token may send. A scope for writing includes the scope for reading of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ApiScope {
    /// Jobs with their logs, readings and explanations, offerings, quotas and templates.
    #[serde(rename = "jobs:read")]
    JobsRead,
    /// Submission and stop of jobs, terminals and ports.
    #[serde(rename = "jobs:write")]
    JobsWrite,
    /// Artifacts, volumes, the names of secrets, and stored bytes.
    #[serde(rename = "storage:read")]
    StorageRead,
    /// Changes of files, volumes, secrets and the retention.
    #[serde(rename = "storage:write")]
    StorageWrite,
    /// Reservations, the calendar and the capacity.
    #[serde(rename = "reservations:read")]
    ReservationsRead,
    /// Quotes, reservations and their changes.
    #[serde(rename = "reservations:write")]
    ReservationsWrite,
    /// Services with their revisions and use, inference keys, and the addresses of gateways.
    #[serde(rename = "services:read")]
    ServicesRead,
    /// Changes of services, revisions, traffic and inference keys.
    #[serde(rename = "services:write")]
    ServicesWrite,
    /// Members, service accounts, invitations, tokens, webhooks and audit events.
    #[serde(rename = "members:read")]
    MembersRead,
    /// Balance, transfers, usage, budgets, invoices and prices.
    #[serde(rename = "billing:read")]
    BillingRead,
    /// Payments, budgets, credit, invoices and prices.
    #[serde(rename = "billing:write")]
    BillingWrite,
    /// Nodes and boards with their health, and the state of the portal.
    #[serde(rename = "fleet:read")]
    FleetRead,
    /// Changes of nodes, boards and racks.
    #[serde(rename = "fleet:write")]
    FleetWrite,
    /// The people and groups of an organization by SCIM. The token names this scope itself: `admin` is not enough.
    #[serde(rename = "scim")]
    Scim,
    /// All that the owner of the token may do.
    #[serde(rename = "admin")]
    Admin,
}

impl ApiScope {
    pub const ALL: [Self; 15] = [
        Self::JobsRead,
        Self::JobsWrite,
        Self::StorageRead,
        Self::StorageWrite,
        Self::ReservationsRead,
        Self::ReservationsWrite,
        Self::ServicesRead,
        Self::ServicesWrite,
        Self::MembersRead,
        Self::BillingRead,
        Self::BillingWrite,
        Self::FleetRead,
        Self::FleetWrite,
        Self::Scim,
        Self::Admin,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::JobsRead => "jobs:read",
            Self::JobsWrite => "jobs:write",
            Self::StorageRead => "storage:read",
            Self::StorageWrite => "storage:write",
            Self::ReservationsRead => "reservations:read",
            Self::ReservationsWrite => "reservations:write",
            Self::ServicesRead => "services:read",
            Self::ServicesWrite => "services:write",
            Self::MembersRead => "members:read",
            Self::BillingRead => "billing:read",
            Self::BillingWrite => "billing:write",
            Self::FleetRead => "fleet:read",
            Self::FleetWrite => "fleet:write",
            Self::Scim => "scim",
            Self::Admin => "admin",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    /// Returns true if a token with this scope may send the requests of `other`.
    pub fn includes(self, other: Self) -> bool {
        self == other
            || match self {
                Self::Admin => true,
                Self::JobsWrite => other == Self::JobsRead,
                Self::StorageWrite => other == Self::StorageRead,
                Self::ReservationsWrite => other == Self::ReservationsRead,
                Self::ServicesWrite => other == Self::ServicesRead,
                Self::BillingWrite => other == Self::BillingRead,
                Self::FleetWrite => other == Self::FleetRead,
                Self::JobsRead
                | Self::StorageRead
                | Self::ReservationsRead
                | Self::ServicesRead
                | Self::MembersRead
                | Self::BillingRead
                | Self::FleetRead
                | Self::Scim => false,
            }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// A set of scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ApiScopes(u16);

impl ApiScopes {
    /// The set of a token without limits.
    pub const EVERYTHING: Self = Self(ApiScope::Admin.bit());

    /// Returns true if a token with these scopes may send the requests of a scope.
    pub fn include(self, scope: ApiScope) -> bool {
        self.iter().any(|own| own.includes(scope))
    }

    /// The scopes in the order of [`ApiScope::ALL`].
    pub fn iter(self) -> impl Iterator<Item = ApiScope> {
        ApiScope::ALL.into_iter().filter(move |scope| self.0 & scope.bit() != 0)
    }

    /// The names of the scopes with a space between them.
    pub fn to_text(self) -> String {
        self.iter().map(ApiScope::name).collect::<Vec<_>>().join(" ")
    }

    /// Parses the names of scopes with a space between them.
    pub fn from_text(text: &str) -> Option<Self> {
        text.split_ascii_whitespace().map(ApiScope::parse).collect()
    }
}

impl FromIterator<ApiScope> for ApiScopes {
    fn from_iter<I: IntoIterator<Item = ApiScope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_includes_reading_and_admin_includes_all() {
        for scope in ApiScope::ALL {
            assert!(ApiScopes::EVERYTHING.include(scope), "{scope:?}");
            let only: ApiScopes = [scope].into_iter().collect();
            for other in ApiScope::ALL {
                let read = scope.name().replace(":write", ":read");
                let expected = scope == ApiScope::Admin || other == scope || other.name() == read;
                assert_eq!(only.include(other), expected, "{scope:?} {other:?}");
            }
        }
        assert!(!ApiScopes::default().include(ApiScope::JobsRead));
    }

    #[test]
    fn names_are_those_of_the_api_and_parse_back() {
        for scope in ApiScope::ALL {
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.name());
            assert_eq!(ApiScope::parse(scope.name()), Some(scope));
        }
        let all: ApiScopes = ApiScope::ALL.into_iter().collect();
        assert_eq!(ApiScopes::from_text(&all.to_text()), Some(all));
        assert_eq!(ApiScopes::from_text(""), Some(ApiScopes::default()));
        assert_eq!(ApiScopes::from_text("jobs:read all"), None);
    }
}
