//! Lost nodes: the end of the attempts on a node that is silent for longer than their leases.
//!
//! The portal applies a status report for each such attempt in the place of the worker.

pub mod routes;

use std::sync::Arc;

use berth_core::lease::LeaseLimits;
use berth_types::ids::NodeId;
use berth_types::jobs::Failure;
use berth_types::nodes::Node;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::time::duration_text;
use futures::FutureExt;

use crate::attempts::Attempts;
use crate::reports::{AttemptPhase, AttemptReport, ReportedEvidence};
use berth_fleet::Cluster;
use berth_fleet::leases::{Leases, node_audit};
use berth_foundation::Caller;
use berth_foundation::{Change, Context};
use berth_store::leases::UnendedAttempt;
use berth_store::{self as store, StoreError};

/// The report of an attempt's end in the place of a lost node. The evidence is the evidence stored before.
fn lost_report(row: &UnendedAttempt, why: &str) -> Result<AttemptReport, StoreError> {
    let corrupt = || StoreError::Corrupt(format!("an attempt of {}", row.job_id));
    let number = u32::try_from(row.number).map_err(|_| corrupt())?;
    Ok(AttemptReport {
        failure: Some(Failure { code: "node.lost".to_owned(), detail: why.to_owned() }),
        evidence: row.evidence.as_ref().map(|stored| ReportedEvidence {
            process_ms: stored.evidence.process_ms,
            device_ms: stored.evidence.device_ms,
            lost_ms: stored.evidence.lost_ms,
            busy_ms: stored.evidence.busy_ms,
            // The stored evidence has the times of the losses already.
            losses: Vec::new(),
            memory_clearing: stored.evidence.memory_clearing,
        }),
        ..AttemptReport::new(row.job_id, number, AttemptPhase::Ended)
    })
}

/// The watch for nodes that are silent for longer than their leases.
#[derive(Clone)]
pub struct LostNodes {
    context: Context,
    leases: Arc<Leases>,
    cluster: Cluster,
    attempts: Attempts,
}

impl LostNodes {
    pub fn new(context: Context, leases: Arc<Leases>, cluster: Cluster, attempts: Attempts) -> Self {
        Self { context, leases, cluster, attempts }
    }

    /// Records a node's new session. `leased`: its worker keeps leases. `leaving`: its host is shutting down.
    pub async fn node_returned(&self, node: NodeId, leased: bool, leaving: bool) -> Result<(), StoreError> {
        let event = node_audit(
            &self.context,
            node,
            "node.returned",
            "The worker reconnected after the loss of its node.",
        );
        self.context
            .db
            .write(move |tx| {
                let event = event.clone();
                async move {
                    if store::leases::mark_returned(tx, node, leased).await? {
                        store::quotas::insert_audit(tx, None, &event).await?;
                    }
                    if !leaving {
                        crate::drains::end_shutdown_drain(tx, node).await?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await
    }

    /// Ends the attempts on nodes that were silent for longer than the lease with its margin. Returns the
    /// number of ended ranks.
    pub async fn tick_leases(&self) -> Result<usize, StoreError> {
        let rows = {
            let mut conn = self.context.db.read().await?;
            store::leases::list_nodes(&mut conn.tx()).await?
        };
        let mut ended = 0;
        for row in rows {
            let ends = row.lost_at.is_some() || row.leased;
            if row.last_seen_at.is_some() && ends && self.leases.node_lease(row.id).is_silent() {
                ended += self.end_overdue(row.id).await?;
            }
        }
        Ok(ended)
    }

    /// Ends the attempts of a silent node with an overdue lease, and marks the node as lost after the last
    /// one.
    async fn end_overdue(&self, node: NodeId) -> Result<usize, StoreError> {
        // The list comes before the checks that the node has no session and is still lost. So it has no
        // attempt that the node got after these checks.
        let (unended, row) = {
            let mut conn = self.context.db.read().await?;
            let unended = store::leases::list_unended(&mut conn.tx(), node).await?;
            (unended, store::leases::find_node(&mut conn.tx(), node).await?)
        };
        let Some(row) = row else { return Ok(0) };
        let lost = row.lost_at.is_some();
        let mut ended = 0;
        for attempt in &unended {
            if !lost && attempt.lease_ms <= 0 {
                continue;
            }
            let after_ms = (!lost).then(|| LeaseLimits::new(attempt.lease_ms).lost_after_ms());
            let now_ms = self.context.monotonic_ms();
            let Some(_takeover) = self.leases.begin_takeover(node, after_ms, now_ms) else {
                continue;
            };
            self.end_as_lost(attempt, node, &row.name, lost).await?;
            ended += 1;
        }
        let after_ms = LeaseLimits::new(self.context.settings.lease_ms).lost_after_ms();
        if !lost
            && ended == unended.len()
            && let Some(_takeover) =
                self.leases.begin_takeover(node, Some(after_ms), self.context.monotonic_ms())
        {
            let why = format!(
                "The worker was silent for longer than {}. The attempts on the node have ended.",
                duration_text(self.context.settings.lease_ms)
            );
            let event = node_audit(&self.context, node, "node.lost", &why);
            self.mark_lost(node, why, event).await?;
            self.context.publish(Change::Boards);
        }
        Ok(ended)
    }

    async fn end_as_lost(
        &self,
        attempt: &UnendedAttempt,
        node: NodeId,
        name: &str,
        lost: bool,
    ) -> Result<(), StoreError> {
        let why = match lost {
            true => format!("Node {name} is lost. The job is charged only for its proved run time."),
            false => format!(
                "Node {name} was silent for longer than the lease of {}, so the job has ended on it. The job is charged only for its proved run time.",
                duration_text(attempt.lease_ms)
            ),
        };
        tracing::warn!(%node, job = %attempt.job_id, number = attempt.number, "an attempt is lost with its node");
        self.attempts.apply_status(node, lost_report(attempt, &why)?).await
    }

    async fn mark_lost(&self, node: NodeId, why: String, event: AuditEvent) -> Result<(), StoreError> {
        let now = self.context.now();
        self.context
            .db
            .write(move |tx| {
                let (why, event) = (why.clone(), event.clone());
                async move {
                    if store::leases::mark_lost(tx, node, now, &why).await? {
                        store::quotas::insert_audit(tx, None, &event).await?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await
    }

    /// Ends the attempts of a silent node at once, without a wait for their leases: an operator declares that
    /// no process runs there any more.
    ///
    /// # Errors
    /// The node is unknown or its worker is connected.
    pub async fn declare_lost(&self, caller: &Caller, node: NodeId) -> Result<Node, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        let found = {
            let mut conn = self.context.db.read().await?;
            store::leases::find_node(&mut conn.tx(), node).await?
        };
        let Some(row) = found else { return Err(Problem::not_found()) };
        let Some(takeover) = self.leases.begin_takeover(node, None, self.context.monotonic_ms()) else {
            let detail = "The worker of the node is connected. Cordon the node and stop its jobs, or power off its host first.";
            return Err(Problem::conflict("node.connected", "Node connected", detail));
        };
        let why = format!("{} declared the node lost.", caller.user.name);
        let event =
            self.context.audit_event(caller, "node.declared_lost", row.id.to_string(), row.name.clone());
        self.mark_lost(node, why, event).await?;
        // The mark comes first: after a crash of the portal the next check of lost nodes ends the rest.
        let unended = {
            let mut conn = self.context.db.read().await?;
            store::leases::list_unended(&mut conn.tx(), node).await?
        };
        for attempt in &unended {
            self.end_as_lost(attempt, node, &row.name, true).await?;
        }
        drop(takeover);
        self.context.publish(Change::Boards);
        let known = self.cluster.nodes(None).await?.into_iter().find(|known| known.id == node);
        known.ok_or_else(Problem::not_found)
    }
}
