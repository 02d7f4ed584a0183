//! Single sign-on: the provider of an organization, the domains for operators, and the identities of the user.

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::sso::{CheckDomain, ClaimedDomains, ConfirmDomain, Identities, PutSsoProvider, SsoSettings};

use super::escape::escaped;
use super::{Answer, get, send};

/// Returns the address that begins a sign-in, for an organization by its slug or else for an e-mail address.
pub fn start_address(org: Option<&str>, email: &str) -> String {
    match org {
        Some(slug) => format!("/api/v1/sso/start?org={}", escaped(slug)),
        None => format!("/api/v1/sso/start?email={}", escaped(email)),
    }
}

/// Gets the single sign-on of an organization.
pub fn settings(org: OrgId) -> impl Future<Output = Answer<SsoSettings>> + Send + 'static {
    get(format!("/orgs/{org}/sso-provider"))
}

/// Sets the provider of an organization.
pub fn put_provider(
    org: OrgId,
    input: &PutSsoProvider,
) -> impl Future<Output = Answer<SsoSettings>> + Send + 'static {
    send("PUT", format!("/orgs/{org}/sso-provider"), input, None)
}

/// Removes the provider of an organization.
pub fn delete_provider(org: OrgId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/orgs/{org}/sso-provider"), &(), None)
}

/// Checks the DNS record of a domain of an organization now. The answer has the new state.
pub fn check_domain(
    org: OrgId,
    input: &CheckDomain,
) -> impl Future<Output = Answer<SsoSettings>> + Send + 'static {
    send("POST", format!("/orgs/{org}/sso-domains/check"), input, None)
}

/// Lists the domains of all organizations with a text in the domain or in the name of the organization.
pub fn claimed_domains(text: &str) -> impl Future<Output = Answer<ClaimedDomains>> + Send + 'static + use<> {
    get(format!("/operator/sso-domains?text={}", escaped(text)))
}

/// Confirms a domain for an organization, or takes the confirmation back. The answer lists the domains with this text.
pub fn confirm_domain(
    org: OrgId,
    input: &ConfirmDomain,
) -> impl Future<Output = Answer<ClaimedDomains>> + Send + 'static {
    send("PUT", format!("/operator/orgs/{org}/sso-domains"), input, None)
}

/// Gets the identities of the user at providers.
pub fn identities() -> impl Future<Output = Answer<Identities>> + Send + 'static {
    get("/me/identities")
}
