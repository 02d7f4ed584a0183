//! Named networks, and the egress policies of organizations.
//!
//! A change counts for the next starts of jobs. Running attempts keep the rules of their start.

pub mod routes;

use berth_core::egress::{check_ranges, is_network_name};
use berth_foundation::{Caller, Change, Context, Right};
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::egress::{
    EgressPolicy, MAX_NETWORKS, MAX_ORG_NETWORKS, NamedNetwork, PutEgressPolicy, PutNetwork,
};
use berth_types::ids::OrgId;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use futures::FutureExt;

/// The most organizations of a network in one answer.
const MAX_LISTED: i64 = 20;

/// Keeps the named networks and the egress policies of organizations.
#[derive(Clone)]
pub struct EgressPolicies {
    context: Context,
}

/// The ranges of a network for the audit log.
fn ranges_state(ranges: &[String]) -> Option<String> {
    serde_json::to_string(&PutNetwork { ranges: ranges.to_vec() }).ok()
}

/// The body that sets a policy, as its state in the audit log.
fn policy_body(policy: &EgressPolicy) -> PutEgressPolicy {
    PutEgressPolicy {
        internet: policy.internet,
        networks: policy.networks.iter().map(|network| network.name.clone()).collect(),
        host_network: policy.host_network,
    }
}

fn policy_state(body: &PutEgressPolicy) -> Option<String> {
    serde_json::to_string(body).ok()
}

/// A policy as a text, such as `no internet, networks: storage, host network`.
fn policy_text(body: &PutEgressPolicy) -> String {
    let mut text = if body.internet { "internet" } else { "no internet" }.to_owned();
    if !body.networks.is_empty() {
        text += &format!(", networks: {}", body.networks.join(" "));
    }
    if body.host_network {
        text += ", network of nodes";
    }
    text
}

/// Refuses the removal of a network that policies name.
fn network_in_use(name: &str, count: i64) -> Problem {
    let orgs = if count == 1 { "1 organization".to_owned() } else { format!("{count} organizations") };
    let detail = format!(
        "The jobs of {orgs} may reach the network {name}. Nothing was changed. Remove the network from their policies first."
    );
    Problem::conflict("network.in_use", "Network in use", detail)
}

/// A named network with the first organizations whose policies name it.
async fn named_network(
    tx: &mut Tx<'_>,
    name: String,
    ranges: Vec<String>,
) -> Result<NamedNetwork, StoreError> {
    let orgs = store::egress::list_orgs(tx, &name, MAX_LISTED).await?;
    let count = store::egress::count_orgs(tx, &name).await?;
    Ok(NamedNetwork { name, ranges, org_count: u32::try_from(count).unwrap_or(u32::MAX), orgs })
}

/// Refuses networks that do not exist, and too many of them.
async fn check_networks(tx: &mut Tx<'_>, body: &PutEgressPolicy) -> Result<(), WriteError> {
    for (index, name) in body.networks.iter().enumerate() {
        if !is_network_name(name) || store::egress::find_ranges(tx, name).await?.is_none() {
            let detail = "No network has this name. GET /api/v1/operator/networks lists them.";
            return Err(Problem::invalid_field(&format!("/networks/{index}"), detail).into());
        }
    }
    Ok(())
}

impl EgressPolicies {
    pub fn new(context: Context) -> Self {
        Self { context }
    }

    /// The named networks by name.
    ///
    /// # Errors
    /// The caller is no operator, or the database cannot be read.
    pub async fn list_networks(&self, caller: &Caller) -> Result<Vec<NamedNetwork>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let mut networks = Vec::new();
        for network in store::egress::list_networks(&mut tx).await? {
            networks.push(named_network(&mut tx, network.name, network.ranges).await?);
        }
        Ok(networks)
    }

    /// Adds a named network, or replaces its ranges.
    ///
    /// # Errors
    /// The proof of identity is not fresh, the name or a range is not valid, or there are too many networks.
    pub async fn put_network(
        &self,
        caller: &Caller,
        name: String,
        input: PutNetwork,
    ) -> Result<NamedNetwork, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        if !is_network_name(&name) {
            let detail =
                "A name has 1 to 63 lower-case letters, digits and hyphens and begins with no hyphen.";
            return Err(Problem::invalid_field("/name", detail));
        }
        let ranges = check_ranges(&input.ranges).map_err(Problem::invalid)?;
        let event = self.context.audit_event(caller, "network.set", name.clone(), ranges.join(" "));
        let done = self.context.db.try_write(move |tx| {
            let (event, name, ranges) = (event.clone(), name.clone(), ranges.clone());
            async move {
                let before = store::egress::find_ranges(tx, &name).await?;
                let most = i64::try_from(MAX_NETWORKS).unwrap_or(i64::MAX);
                if before.is_none() && store::egress::count_networks(tx).await? >= most {
                    let detail =
                        "The portal has 100 named networks. Nothing was changed. Remove a network first.";
                    return Err(Problem::conflict("network.limit", "Too many networks", detail).into());
                }
                if before.as_ref() != Some(&ranges) {
                    store::egress::put_network(tx, &name, &ranges).await?;
                    let event =
                        event.with_change(before.as_deref().and_then(ranges_state), ranges_state(&ranges));
                    store::quotas::insert_audit(tx, None, &event).await?;
                }
                Ok(named_network(tx, name, ranges).await?)
            }
            .boxed()
        });
        Ok(done.await?)
    }

    /// Removes a named network.
    ///
    /// # Errors
    /// The proof of identity is not fresh, the network does not exist, or a policy names it.
    pub async fn remove_network(&self, caller: &Caller, name: String) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        let event = self.context.audit_event(caller, "network.removed", name.clone(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let (event, name) = (event.clone(), name.clone());
            async move {
                let before = store::egress::find_ranges(tx, &name).await?.ok_or_else(Problem::not_found)?;
                let count = store::egress::count_orgs(tx, &name).await?;
                if count > 0 {
                    return Err(network_in_use(&name, count).into());
                }
                store::egress::delete_network(tx, &name).await?;
                let event = event.with_change(ranges_state(&before), None);
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        Ok(())
    }

    /// The egress policy of an organization, for its members.
    ///
    /// # Errors
    /// The caller is no member.
    pub async fn policy(&self, caller: &Caller, org: OrgId) -> Result<EgressPolicy, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        self.read_policy(org).await
    }

    /// The egress policy of any organization, for an operator.
    ///
    /// # Errors
    /// The organization does not exist.
    pub async fn any_policy(&self, caller: &Caller, org: OrgId) -> Result<EgressPolicy, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        self.read_policy(org).await
    }

    async fn read_policy(&self, org: OrgId) -> Result<EgressPolicy, Problem> {
        let mut conn = self.context.db.read().await?;
        store::egress::find_policy(&mut conn.tx(), org).await?.ok_or_else(Problem::not_found)
    }

    /// Replaces the egress policy of an organization.
    ///
    /// # Errors
    /// The proof of identity is not fresh, the organization or a network does not exist, or there are too many networks.
    pub async fn set_policy(
        &self,
        caller: &Caller,
        org: OrgId,
        mut input: PutEgressPolicy,
    ) -> Result<EgressPolicy, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        if input.networks.len() > MAX_ORG_NETWORKS {
            return Err(Problem::invalid_field("/networks", "Name at most 16 networks."));
        }
        input.networks.sort_unstable();
        input.networks.dedup();
        let event = self.context.audit_event(caller, "org.egress_set", org.to_string(), policy_text(&input));
        let done = self.context.db.try_write(move |tx| {
            let (event, input) = (event.clone(), input.clone());
            async move {
                let before = store::egress::find_policy(tx, org).await?.ok_or_else(Problem::not_found)?;
                let before = policy_body(&before);
                if before == input {
                    return Ok(());
                }
                check_networks(tx, &input).await?;
                let switches = (input.internet, input.host_network);
                store::egress::set_policy(tx, org, switches, &input.networks).await?;
                let event = event.with_change(policy_state(&before), policy_state(&input));
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        self.context.publish(Change::Orgs);
        self.read_policy(org).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_a_text_for_the_audit_log() {
        let body = |internet, networks: &[&str], host_network| PutEgressPolicy {
            internet,
            networks: networks.iter().map(|name| (*name).to_owned()).collect(),
            host_network,
        };
        assert_eq!(policy_text(&body(true, &[], false)), "internet");
        let text = "no internet, networks: backup storage, network of nodes";
        assert_eq!(policy_text(&body(false, &["backup", "storage"], true)), text);
    }
}
