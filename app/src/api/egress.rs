//! Named networks and the egress policies of organizations.

use std::future::Future;

use berth_types::Page;
use berth_types::egress::{EgressPolicy, NamedNetwork, PutEgressPolicy, PutNetwork};
use berth_types::ids::OrgId;

use super::escape::escaped;
use super::{Answer, get, list_all, send};

/// Lists the named networks, for operators.
pub fn list() -> impl Future<Output = Answer<Page<NamedNetwork>>> + Send + 'static {
    list_all("/operator/networks".to_owned())
}

/// Adds a named network, or replaces its ranges.
pub fn put(name: &str, input: &PutNetwork) -> impl Future<Output = Answer<NamedNetwork>> + Send + 'static {
    send("PUT", format!("/operator/networks/{}", escaped(name)), input, None)
}

/// Removes a named network.
pub fn remove(name: &str) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/operator/networks/{}", escaped(name)), &(), None)
}

/// Gets the egress policy of an organization, for its members.
pub fn policy(org: OrgId) -> impl Future<Output = Answer<EgressPolicy>> + Send + 'static {
    get(format!("/orgs/{org}/egress-policy"))
}

/// Gets the egress policy of any organization, for operators.
pub fn of_org(org: OrgId) -> impl Future<Output = Answer<EgressPolicy>> + Send + 'static {
    get(format!("/operator/orgs/{org}/egress-policy"))
}

/// Replaces the egress policy of an organization.
pub fn set(
    org: OrgId,
    input: &PutEgressPolicy,
) -> impl Future<Output = Answer<EgressPolicy>> + Send + 'static {
    send("PUT", format!("/operator/orgs/{org}/egress-policy"), input, None)
}
