//! Drains of nodes: a cordon at once, a stop of the remaining jobs at the deadline, and the progress until
//! then.
//!
//! `berth_core::drains` decides the stops. A cancelled drain takes no stop back.

pub mod routes;

use std::collections::HashMap;

use berth_core::drains::{NodeAttempt, decide, grace_s, is_requeued};
use berth_core::jobs::MachineEvent;
use berth_types::ids::{AuditEventId, NodeId};
use berth_types::jobs::JobState;
use berth_types::operations::{Drain, NewDrain};
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::{AuditContext, AuditEvent};
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::attempts::Attempts;
use berth_fleet::leases::node_audit;
use berth_foundation::Caller;
use berth_foundation::{Change, Context};
use berth_store::operations::{StoredDrain, StoredOperatorRank};
use berth_store::{self as store, StoreError, Tx};

/// The latest deadline of a drain, in seconds from now.
const MAX_DEADLINE_S: i64 = 366 * 86_400;
/// A deadline at most this long ago means now, in seconds.
const LATE_S: i64 = 60;
/// The worker's default grace in seconds.
const DEFAULT_GRACE_S: i64 = 10;

fn number(n: i64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn grace(row: &StoredDrain) -> Option<u32> {
    row.grace_s.map(number)
}

/// The reason of a drain for the owners of the stopped jobs.
fn reason_text(row: &StoredDrain) -> String {
    if row.by_host {
        return format!("Node {} is being shut down", row.node_name);
    }
    format!("Node {} is being drained by the operator ({}): {}", row.node_name, row.started_by, row.reason)
}

/// The latest end of a rank: at the time limit of its job, or at the drain's deadline with the grace. `None`
/// if its devices are unclean.
fn ends_by(drain: &StoredDrain, row: &StoredOperatorRank, now: Timestamp) -> Option<Timestamp> {
    let ended = row.ended || row.number != row.latest;
    let runs = matches!(row.state, JobState::Assigned | JobState::Starting | JobState::Running);
    if ended || !runs {
        // The rank stops or is being cleaned. Unclean devices wait for an operator, so they have no latest
        // end.
        return row.unclean.is_none().then(|| now.plus_seconds(row.grace_s.max(DEFAULT_GRACE_S)));
    }
    let begun = row.started_at.unwrap_or(now);
    let limit = begun.plus_seconds(row.max_duration_s.saturating_sub(row.metered_before_ms / 1_000));
    let own = u32::try_from(row.grace_s).ok();
    let grace_s = i64::from(grace_s(own, grace(drain)));
    let stopped = drain.deadline_at.map(|at| at.max(now).plus_seconds(grace_s));
    Some(stopped.map_or(limit, |stopped| limit.min(stopped)))
}

fn drain_from_row(row: StoredDrain, open: &[StoredOperatorRank], now: Timestamp) -> Drain {
    let last: Option<Vec<Timestamp>> = open.iter().map(|rank| ends_by(&row, rank, now)).collect();
    let stopping = open.iter().filter(|r| r.number == r.latest && r.state == JobState::Stopping);
    Drain {
        node: row.node_id,
        deadline_at: row.deadline_at,
        grace_s: grace(&row),
        attempts: u32::try_from(open.len()).unwrap_or(u32::MAX),
        stopping: u32::try_from(stopping.count()).unwrap_or(u32::MAX),
        ends_by: last.and_then(|all| all.into_iter().max()),
        node_name: row.node_name,
        reason: row.reason,
        started_by: row.started_by,
        by_host: row.by_host,
        started_at: row.started_at,
        emptied_at: row.emptied_at,
    }
}

/// Checks a drain. The deadline of the present drain is accepted although it is over, so that a repeated request
/// succeeds.
fn check(input: &NewDrain, present: Option<Timestamp>, now: Timestamp) -> Result<(), Problem> {
    let mut errors = Vec::new();
    let mut refuse = |pointer: &str, detail: &str| errors.push(FieldError::new(pointer, detail));
    match input.deadline_at {
        Some(at) if at < now.plus_seconds(-LATE_S) && present != Some(at) => {
            refuse("/deadline_at", "The time is in the past.")
        }
        Some(at) if at > now.plus_seconds(MAX_DEADLINE_S) => {
            refuse("/deadline_at", "Choose a time within a year.");
        }
        _ => {}
    }
    if input.grace_s.is_some_and(|s| !(1..=3_600).contains(&s)) {
        refuse("/grace_s", "Enter 1 to 3600 seconds.");
    }
    let (reason, length) = (&input.reason, input.reason.chars().count());
    if reason.trim().is_empty() || length > 200 || reason.chars().any(char::is_control) {
        refuse(
            "/reason",
            "Enter a reason of 1 to 200 characters on one line. Members with jobs on the node see it.",
        );
    }
    if errors.is_empty() { Ok(()) } else { Err(Problem::invalid(errors)) }
}

/// The draining nodes, each with a notice for the jobs that run there.
pub(crate) async fn list_notices(tx: &mut Tx<'_>) -> Result<Vec<(NodeId, String)>, StoreError> {
    let notice = |row: StoredDrain| {
        let until = match row.deadline_at {
            Some(at) => format!("Jobs still running there at {} are stopped.", at.minute()),
            None => "Running jobs continue to their end.".to_owned(),
        };
        (row.node_id, format!("{} {until}", with_full_stop(&reason_text(&row))))
    };
    Ok(store::operations::list_drains(tx).await?.into_iter().map(notice).collect())
}

/// The text with a full stop at its end.
pub(super) fn with_full_stop(text: &str) -> String {
    let text = text.trim();
    if text.ends_with(['.', '!', '?']) { text.to_owned() } else { format!("{text}.") }
}

/// The drains of nodes.
#[derive(Clone)]
pub struct Drains {
    context: Context,
    attempts: Attempts,
}

impl Drains {
    pub fn new(context: Context, attempts: Attempts) -> Self {
        Self { context, attempts }
    }

    /// The draining nodes, each with its progress.
    pub async fn list_drains(&self, caller: &Caller) -> Result<Vec<Drain>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let now = self.context.now();
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let rows = store::operations::list_drains(&mut tx).await?;
        let nodes: Vec<NodeId> = rows.iter().map(|row| row.node_id).collect();
        let mut open: HashMap<NodeId, Vec<StoredOperatorRank>> = HashMap::new();
        for rank in store::operations::list_open_on(&mut tx, &nodes).await? {
            open.entry(rank.node_id).or_default().push(rank);
        }
        let drain = |row: StoredDrain| {
            let ranks = open.remove(&row.node_id).unwrap_or_default();
            drain_from_row(row, &ranks, now)
        };
        Ok(rows.into_iter().map(drain).collect())
    }

    /// Begins the drain of a node, or changes a present one.
    ///
    /// # Errors
    /// The node is unknown, or the deadline, grace or reason is invalid.
    pub async fn drain_node(&self, caller: &Caller, node: NodeId, input: NewDrain) -> Result<Drain, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        let now = self.context.now();
        let present = {
            let mut conn = self.context.db.read().await?;
            store::operations::find_drain(&mut conn.tx(), node).await?
        };
        check(&input, present.and_then(|row| row.deadline_at), now)?;
        let reason = input.reason.trim().to_owned();
        let until = input.deadline_at.map_or_else(|| "without a deadline".to_owned(), |at| at.minute());
        let event = self.context.audit_event(
            caller,
            "node.drain_set",
            node.to_string(),
            format!("{until}: {reason}"),
        );
        let row = StoredDrain {
            node_id: node,
            node_name: String::new(),
            reason,
            deadline_at: input.deadline_at,
            grace_s: input.grace_s.map(i64::from),
            was_cordoned: false,
            started_by: caller.user.name.clone(),
            started_at: now,
            emptied_at: None,
            by_host: false,
        };
        let done = self.context.db.write(move |tx| {
            let (row, event) = (row.clone(), event.clone());
            async move {
                let found = store::operations::put_drain(tx, node, &row).await?;
                if found {
                    store::quotas::insert_audit(tx, None, &event).await?;
                }
                Ok(found)
            }
            .boxed()
        });
        if !done.await? {
            return Err(Problem::not_found());
        }
        self.context.publish(Change::Boards);
        let drain = self.list_drains(caller).await?.into_iter().find(|d| d.node == node);
        drain.ok_or_else(Problem::not_found)
    }

    /// Cancels a drain: the node gets back its earlier cordon. Attempts that stop already go on stopping.
    ///
    /// # Errors
    /// The node has no drain.
    pub async fn cancel_drain(&self, caller: &Caller, node: NodeId) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        let event =
            self.context.audit_event(caller, "node.drain_called_off", node.to_string(), String::new());
        let done = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let Some(row) = store::operations::find_drain(tx, node).await? else { return Ok(false) };
                store::operations::delete_drain(tx, node).await?;
                store::nodes::set_cordoned(tx, node, row.was_cordoned).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(true)
            }
            .boxed()
        });
        if !done.await? {
            return Err(Problem::not_found());
        }
        self.context.publish(Change::Boards);
        Ok(())
    }

    /// Drains a node at once for the shutdown of its host, until its worker is back. An operator's drain of
    /// the node stays, with the deadline now.
    pub async fn drain_for_shutdown(&self, node: NodeId) -> Result<(), StoreError> {
        let now = self.context.now();
        let row = StoredDrain {
            node_id: node,
            node_name: String::new(),
            reason: "The host is shutting down.".to_owned(),
            deadline_at: Some(now),
            grace_s: None,
            was_cordoned: false,
            started_by: "The host".to_owned(),
            started_at: now,
            emptied_at: None,
            by_host: true,
        };
        let event = node_audit(&self.context, node, "node.shutdown", "The host is shutting down.");
        let work = self.context.db.write(move |tx| {
            let (row, event) = (row.clone(), event.clone());
            async move {
                match store::operations::find_drain(tx, node).await? {
                    Some(drain) if drain.by_host => return Ok(()),
                    Some(_) => store::operations::shorten_drain_deadline(tx, node, now).await?,
                    None => {
                        store::operations::put_drain(tx, node, &row).await?;
                    }
                }
                store::quotas::insert_audit(tx, None, &event).await
            }
            .boxed()
        });
        work.await?;
        self.context.publish(Change::Boards);
        Ok(())
    }

    /// Stops the attempts at the deadline of their drain, and records the empty nodes.
    pub async fn tick_drains(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        let rows = {
            let mut conn = self.context.db.read().await?;
            store::operations::list_drains(&mut conn.tx()).await?
        };
        for row in rows.into_iter().filter(|row| row.emptied_at.is_none()) {
            // A failure on one node does not stop the drains of the others.
            if let Err(error) = self.tick_drain(&row, now).await {
                tracing::error!(%error, node = %row.node_id, "a drain cannot continue on this node; trying again");
            }
        }
        Ok(())
    }

    async fn tick_drain(&self, row: &StoredDrain, now: Timestamp) -> Result<(), StoreError> {
        let open = {
            let mut conn = self.context.db.read().await?;
            store::operations::list_open(&mut conn.tx(), Some(row.node_id)).await?
        };
        let attempt = |(job, rank): (usize, &StoredOperatorRank)| NodeAttempt {
            job,
            attempt: number(rank.number),
            latest: number(rank.latest),
            state: rank.state,
        };
        let attempts: Vec<NodeAttempt<usize>> = open.iter().enumerate().map(attempt).collect();
        let actions = decide(row.deadline_at, now, &attempts);
        for (index, attempt) in actions.stop {
            let Some(rank) = open.get(index) else { continue };
            let again = is_requeued(rank.preemptible, rank.spec.retry.as_ref());
            let grace_s = grace_s(rank.spec.checkpoint.as_ref().map(|c| c.grace_s), grace(row));
            let event = MachineEvent::Drain { attempt, again, grace_s };
            let detail = with_full_stop(&reason_text(row));
            let job = rank.job_id;
            if let Err(error) = self.attempts.apply_event(job, None, event, detail).await {
                tracing::error!(%job, %error, "a job cannot be stopped for a drain; trying again");
            }
        }
        if actions.empty {
            self.record_emptied(row, now).await?;
        }
        Ok(())
    }

    async fn record_emptied(&self, row: &StoredDrain, now: Timestamp) -> Result<(), StoreError> {
        let node = row.node_id;
        let id: AuditEventId = self.context.new_id(now);
        let event = AuditEvent {
            id,
            at: now,
            actor: row.started_by.clone(),
            action: "node.drained".to_owned(),
            subject: node.to_string(),
            detail: "The node is empty.".to_owned(),
            context: AuditContext::default(),
        };
        let done = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                // The drain may be cancelled meanwhile, or the node may have an attempt again.
                if store::operations::set_emptied(tx, node, now).await? {
                    store::quotas::insert_audit(tx, None, &event).await?;
                }
                Ok(())
            }
            .boxed()
        });
        done.await
    }
}

/// Ends the drain for a shutdown after the return of the host: the node gets back its earlier cordon.
pub(super) async fn end_shutdown_drain(tx: &mut Tx<'_>, node: NodeId) -> Result<(), StoreError> {
    if let Some(row) = store::operations::find_drain(tx, node).await?.filter(|row| row.by_host) {
        store::operations::delete_drain(tx, node).await?;
        store::nodes::set_cordoned(tx, node, row.was_cordoned).await?;
    }
    Ok(())
}
