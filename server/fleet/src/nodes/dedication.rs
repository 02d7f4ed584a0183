//! Dedicated nodes, and the organizations that use no others.
//!
//! A change is refused while a job or a reservation would be on a node that its organization may not use any more.

use std::collections::{HashMap, HashSet};

use berth_core::dedicated::UsableNodes;
use berth_foundation::{Caller, Change};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::nodes::{Dedication, Node, OrgNode, OrgNodes, PutOrgNodes};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::Nodes;

/// The most nodes of an organization in one answer.
const MAX_LISTED: i64 = 200;

/// The numbers of jobs and reservations that a change would leave on a node that is not theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Misplaced {
    jobs: usize,
    reservations: usize,
}

impl Misplaced {
    fn is_empty(self) -> bool {
        self.jobs == 0 && self.reservations == 0
    }

    /// The numbers as a text, such as `2 jobs and 1 reservation`.
    fn text(self) -> String {
        let counted = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
        format!("{} and {}", counted(self.jobs, "job"), counted(self.reservations, "reservation"))
    }
}

/// The refusal of a dedication that others' work on the node does not permit.
fn node_in_use(node_name: &str, misplaced: Misplaced) -> Problem {
    let detail = format!(
        "{} on node {node_name} belong to organizations that could not use the node any more. Nothing was changed. Drain the node or wait for the end of the jobs, and cancel the reservations first.",
        misplaced.text()
    );
    Problem::conflict("node.in_use", "Node in use", detail)
}

/// The refusal of the setting "own nodes only" while the organization has work on other nodes.
fn work_elsewhere(misplaced: Misplaced) -> Problem {
    let detail = format!(
        "{} of the organization are on nodes that are not dedicated to it. Nothing was changed. Stop the jobs or wait for their end, and cancel the reservations first.",
        misplaced.text()
    );
    Problem::conflict("org.work_elsewhere", "Work on other nodes", detail)
}

/// The state of a dedication for the audit log.
fn dedication_state(org: Option<OrgId>) -> Option<String> {
    serde_json::to_string(&Dedication { org }).ok()
}

/// The state of the setting for the audit log.
fn setting_state(own_nodes_only: bool) -> Option<String> {
    serde_json::to_string(&PutOrgNodes { own_nodes_only }).ok()
}

/// Counts the reservations that have not ended and hold a device on a node for which `is_misplaced` returns true.
async fn count_reservations(
    tx: &mut Tx<'_>,
    now: Timestamp,
    is_misplaced: impl Fn(OrgId, NodeId) -> bool,
) -> Result<usize, StoreError> {
    let mut count = 0;
    for row in store::reservations::list_holding(tx).await? {
        // Maintenance has no organization.
        let Some(org) = row.org_id.filter(|_| row.ends_at > now) else { continue };
        count += usize::from(row.places()?.iter().any(|(node, _)| is_misplaced(org, *node)));
    }
    Ok(count)
}

/// Counts the work on a node of organizations that could not use it after its dedication to `org`.
async fn misplaced_on(
    tx: &mut Tx<'_>,
    node: NodeId,
    org: Option<OrgId>,
    now: Timestamp,
) -> Result<Misplaced, StoreError> {
    let own_only: HashSet<OrgId> = store::dedicated::list_own_only(tx).await?.into_iter().collect();
    let is_misplaced = |other: OrgId| {
        let nodes = UsableNodes { org: other, own_only: own_only.contains(&other) };
        !nodes.has(org)
    };
    let jobs = store::dedicated::list_jobs_on(tx, node).await?;
    let jobs = jobs.iter().filter(|(_, other)| is_misplaced(*other)).count();
    let reservations = count_reservations(tx, now, |other, at| at == node && is_misplaced(other)).await?;
    Ok(Misplaced { jobs, reservations })
}

/// Counts the work of an organization on nodes that are not dedicated to it.
async fn misplaced_of(tx: &mut Tx<'_>, org: OrgId, now: Timestamp) -> Result<Misplaced, StoreError> {
    let dedicated: HashMap<NodeId, OrgId> = store::dedicated::list_dedicated(tx).await?.into_iter().collect();
    let nodes = UsableNodes { org, own_only: true };
    let is_misplaced = |node: NodeId| !nodes.has(dedicated.get(&node).copied());
    let jobs = store::dedicated::list_jobs_of(tx, org).await?;
    let jobs: HashSet<JobId> =
        jobs.into_iter().filter(|(_, node)| is_misplaced(*node)).map(|(job, _)| job).collect();
    let reservations = count_reservations(tx, now, |other, at| other == org && is_misplaced(at)).await?;
    Ok(Misplaced { jobs: jobs.len(), reservations })
}

/// The dedicated nodes of an organization and its setting.
async fn read_org_nodes(tx: &mut Tx<'_>, org: OrgId) -> Result<OrgNodes, Problem> {
    let own_nodes_only = store::dedicated::find_own_only(tx, org).await?.ok_or_else(Problem::not_found)?;
    let nodes = store::dedicated::list_nodes(tx, org, MAX_LISTED).await?;
    let count = store::dedicated::count_nodes(tx, org).await?;
    Ok(OrgNodes {
        own_nodes_only,
        node_count: u32::try_from(count).unwrap_or(u32::MAX),
        nodes: nodes.into_iter().map(|(id, name)| OrgNode { id, name }).collect(),
    })
}

impl Nodes {
    /// Dedicates a node to an organization, or opens it to all.
    ///
    /// # Errors
    /// The proof of identity is not fresh, the node or the organization does not exist, or work on the node belongs to organizations that could not use
    /// it any more.
    pub async fn dedicate_node(
        &self,
        caller: &Caller,
        node: NodeId,
        input: Dedication,
    ) -> Result<Node, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        let (org, now) = (input.org, self.context.now());
        let event = self.context.audit_event(caller, "node.dedicated", node.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                let found = store::dedicated::find_node(tx, node).await?;
                let (name, before) = found.ok_or_else(Problem::not_found)?;
                if before == org {
                    return Ok(());
                }
                let named = match org {
                    Some(org) => {
                        let known = store::accounts::find_org(tx, org).await?;
                        let detail = "No organization has this id. GET /api/v1/operator/orgs lists them.";
                        let known = known.ok_or_else(|| Problem::invalid_field("/org", detail))?;
                        format!("{name}: dedicated to {}", known.name)
                    }
                    None => format!("{name}: open to all organizations"),
                };
                let misplaced = misplaced_on(tx, node, org, now).await?;
                if !misplaced.is_empty() {
                    return Err(node_in_use(&name, misplaced).into());
                }
                store::dedicated::set_node(tx, node, org).await?;
                let mut event = event.with_change(dedication_state(before), dedication_state(org));
                event.detail = named;
                store::quotas::insert_audit(tx, org.or(before), &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        self.context.publish(Change::Boards);
        self.get_node(caller, node).await
    }

    /// The dedicated nodes of an organization and its setting, for an operator.
    ///
    /// # Errors
    /// The organization does not exist.
    pub async fn org_nodes(&self, caller: &Caller, org: OrgId) -> Result<OrgNodes, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        read_org_nodes(&mut conn.tx(), org).await
    }

    /// Sets the setting "own nodes only" of an organization.
    ///
    /// # Errors
    /// The proof of identity is not fresh, the organization does not exist, or it has work on nodes that are not dedicated to it.
    pub async fn set_org_nodes(
        &self,
        caller: &Caller,
        org: OrgId,
        input: PutOrgNodes,
    ) -> Result<OrgNodes, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        let (own_only, now) = (input.own_nodes_only, self.context.now());
        let detail = if own_only { "own nodes only" } else { "any node that is open to it" };
        let event = self.context.audit_event(caller, "org.own_nodes_set", org.to_string(), detail.to_owned());
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                let before = store::dedicated::find_own_only(tx, org).await?;
                let before = before.ok_or_else(Problem::not_found)?;
                if before == own_only {
                    return Ok(());
                }
                if own_only {
                    let misplaced = misplaced_of(tx, org, now).await?;
                    if !misplaced.is_empty() {
                        return Err(work_elsewhere(misplaced).into());
                    }
                }
                store::dedicated::set_own_only(tx, org, own_only).await?;
                let event = event.with_change(setting_state(before), setting_state(own_only));
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        self.context.publish(Change::Orgs);
        self.org_nodes(caller, org).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_numbers_of_jobs_and_reservations() {
        let text = |jobs, reservations| Misplaced { jobs, reservations }.text();
        assert_eq!(text(1, 0), "1 job and 0 reservations");
        assert_eq!(text(2, 1), "2 jobs and 1 reservation");
        assert!(Misplaced { jobs: 0, reservations: 0 }.is_empty());
        assert!(!Misplaced { jobs: 0, reservations: 1 }.is_empty());
        assert!(!Misplaced { jobs: 1, reservations: 0 }.is_empty());
    }
}
