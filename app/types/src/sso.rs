//! Types of single sign-on by OpenID Connect: providers, domains, identities, and failures of a sign-in.

use serde::{Deserialize, Serialize};

use crate::accounts::Role;
use crate::ids::OrgId;
use crate::scim::Provisioning;
use crate::time::Timestamp;

/// The most roles of groups.
pub const MAX_GROUPS: usize = 100;
/// The most domains of an organization.
pub const MAX_DOMAINS: usize = 20;
/// Characters of an issuer.
pub const MAX_ISSUER_CHARS: usize = 500;
/// Characters of a client id, of a claim and of a group.
pub const MAX_TEXT_CHARS: usize = 200;
/// Characters of a client secret.
pub const MAX_SECRET_CHARS: usize = 500;
/// Characters of a domain.
pub const MAX_DOMAIN_CHARS: usize = 253;

/// The role of the members of a group at the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupRole {
    /// The group in the claim: 1 to 200 printable characters.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 200), regex(pattern = crate::patterns::NAME))
    )]
    pub group: String,
    /// The role. A person in several listed groups has the first of owner, billing, member and viewer.
    pub role: Role,
}

/// A domain of e-mail addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SsoDomain {
    /// The domain in lower case.
    pub domain: String,
    /// The value of the TXT record at `_berth.` and the domain; absent until an old provider is set again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// True if the record confirmed the domain, false if an operator did or nobody yet.
    pub by_dns: bool,
    /// The time of the confirmation; absent before it. Only confirmed domains sign in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed_at: Option<Timestamp>,
    /// The first check without the record of a confirmed domain. The confirmation ends seven days later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_since: Option<Timestamp>,
    /// The time of the last check of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
    /// The failure of the last check in one or two sentences; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The provider of an organization. The secret of the client is in no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SsoProvider {
    /// The issuer of the ID tokens.
    pub issuer: String,
    /// The id of the client at the provider.
    pub client_id: String,
    /// The claim with the groups of a person.
    pub group_claim: String,
    /// The roles by group; empty if groups have no effect.
    pub roles: Vec<GroupRole>,
    /// The role of a person without a listed group; absent: such a person is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_role: Option<Role>,
    /// True if a first sign-in creates the account and the membership.
    pub create_members: bool,
    /// True if members with an address of a confirmed domain have no sign-in by password, except owners.
    pub required: bool,
    /// The domains of e-mail addresses.
    pub domains: Vec<SsoDomain>,
}

/// The single sign-on of an organization, with the addresses for the registration of the portal at the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SsoSettings {
    /// The provider; absent without single sign-on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<SsoProvider>,
    /// The redirect URI of the portal for this organization.
    pub callback_url: String,
    /// The address for back-channel logout.
    pub logout_url: String,
    /// The address that begins a sign-in.
    pub start_url: String,
    /// The provisioning of members by SCIM.
    pub provisioning: Provisioning,
}

/// The body of the provider of an organization.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutSsoProvider {
    /// The issuer: an address with https, at most 500 characters, without user name, query and fragment.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 500), regex(pattern = crate::patterns::PRINTABLE))
    )]
    pub issuer: String,
    /// The id of the client: 1 to 200 printable characters.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 200), regex(pattern = crate::patterns::NAME))
    )]
    pub client_id: String,
    /// The secret of the client: 1 to 500 printable characters. Absent: the stored one stays, as long as the issuer
    /// and the client stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 500), regex(pattern = crate::patterns::NAME))
    )]
    pub client_secret: Option<String>,
    /// The claim with the groups of a person, such as `groups`: 1 to 200 printable characters.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 200), regex(pattern = crate::patterns::NAME))
    )]
    pub group_claim: String,
    /// The roles by group, at most 100; empty if groups have no effect.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub roles: Vec<GroupRole>,
    /// The role of a person without a listed group; absent: such a person is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_role: Option<Role>,
    /// True if a first sign-in creates the account and the membership.
    #[serde(default)]
    pub create_members: bool,
    /// True if members with an address of a confirmed domain have no sign-in by password, except owners.
    #[serde(default)]
    pub required: bool,
    /// The domains of e-mail addresses, 1 to 20 of at most 253 characters. A kept domain keeps its confirmation.
    #[cfg_attr(
        feature = "schema",
        schemars(
            length(min = 1, max = 20),
            inner(length(min = 3, max = 253), regex(pattern = "^[A-Za-z0-9.-]+$"))
        )
    )]
    pub domains: Vec<String>,
}

/// A domain in the list of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClaimedDomain {
    /// The domain in lower case.
    pub domain: String,
    /// The organization.
    pub organization: OrgId,
    /// The name of the organization.
    pub organization_name: String,
    /// The time of the request.
    pub created_at: Timestamp,
    /// The time of the confirmation; absent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed_at: Option<Timestamp>,
}

/// Domains of organizations: at most 200 without a confirmation, then at most 200 with one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClaimedDomains {
    /// The domains.
    pub domains: Vec<ClaimedDomain>,
}

/// The body of the confirmation of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConfirmDomain {
    /// A domain that the organization names, at most 253 characters.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 3, max = 253), regex(pattern = "^[A-Za-z0-9.-]+$"))
    )]
    pub domain: String,
    /// True if the domain belongs to the organization; false takes the confirmation back.
    pub confirmed: bool,
}

/// The body of a check of the record of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckDomain {
    /// A domain that the organization names, at most 253 characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 3, max = 253)))]
    pub domain: String,
}

/// An identity of the caller at a provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Identity {
    /// The issuer of the provider.
    pub issuer: String,
    /// The time of the link with the account.
    pub created_at: Timestamp,
    /// The time of the last sign-in.
    pub last_used_at: Timestamp,
}

/// The identities of the caller, at most 200.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Identities {
    /// The identities, oldest first.
    pub identities: Vec<Identity>,
}

/// The cause of a failed single sign-on, as `sso` in the address of the sign-in page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SsoFailure {
    /// No provider is set for the address or the organization.
    NoProvider,
    /// The provider does not answer, or its answer is wrong.
    Provider,
    /// The provider refused the sign-in.
    Denied,
    /// The sign-in is too old, was completed before, or began in another browser.
    Expired,
    /// The ID token is not valid.
    Token,
    /// The provider did not verify the e-mail address.
    Email,
    /// The domain of the address is not confirmed for the organization.
    Domain,
    /// An account with the address exists, and is no member or has another identity at the provider.
    AccountExists,
    /// First sign-ins do not create members.
    NotMember,
    /// No group of the person has a role.
    NoRole,
    /// The account is an operator's.
    Operator,
    /// The account is disabled.
    Disabled,
    /// There were too many sign-ins.
    Throttled,
    /// The portal failed.
    Internal,
}

impl SsoFailure {
    pub const ALL: [Self; 14] = [
        Self::NoProvider,
        Self::Provider,
        Self::Denied,
        Self::Expired,
        Self::Token,
        Self::Email,
        Self::Domain,
        Self::AccountExists,
        Self::NotMember,
        Self::NoRole,
        Self::Operator,
        Self::Disabled,
        Self::Throttled,
        Self::Internal,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::NoProvider => "no-provider",
            Self::Provider => "provider",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Token => "token",
            Self::Email => "email",
            Self::Domain => "domain",
            Self::AccountExists => "account-exists",
            Self::NotMember => "not-member",
            Self::NoRole => "no-role",
            Self::Operator => "operator",
            Self::Disabled => "disabled",
            Self::Throttled => "throttled",
            Self::Internal => "internal",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|failure| failure.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::SsoFailure;

    #[test]
    fn each_failure_has_its_own_name() {
        for failure in SsoFailure::ALL {
            assert_eq!(SsoFailure::parse(failure.name()), Some(failure));
        }
        assert_eq!(SsoFailure::parse("other"), None);
    }
}
