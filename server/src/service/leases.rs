//! Leases: which nodes still hold what they run, and what becomes of it when one no longer does.
//!
//! A worker's heartbeats renew them; they are counted by a clock that nobody sets, in memory. What a
//! portal that starts does not know it takes to be as late as it can have been. What a lost node ran ends
//! here as any attempt does, by a report: only that it is the portal's own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_core::lease::{Holder, Terms};
use berth_proto as proto;
use berth_types::evidence::Evidence;
use berth_types::ids::{AuditEventId, NodeId};
use berth_types::nodes::{Node, Silence, SilenceState};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::time::{Timestamp, duration_text};
use futures::FutureExt;
use serde::Deserialize;

use super::Caller;
use super::attempts::parse;
use super::ranks::RankEnd;
use crate::portal::Portal;
use crate::store::attempts::AttemptRow;
use crate::store::jobs::JobRow;
use crate::store::leases::{NodeLeaseRow, UnendedCount, UnendedRow};
use crate::store::{self, StoreError};

/// Between two looks for nodes that were silent for too long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Looks for lost nodes for as long as the portal runs.
pub async fn run(portal: Portal) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        if let Err(error) = portal.tick_leases().await {
            tracing::error!(%error, "a look for lost nodes failed; the next one tries again");
        }
    }
}

/// What is known of every node since this portal began.
#[derive(Debug)]
pub(crate) struct Leases {
    began_ms: i64,
    nodes: Mutex<HashMap<NodeId, Holder>>,
}

impl Leases {
    pub(crate) fn since(began_ms: i64) -> Self {
        Self { began_ms, nodes: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<NodeId, Holder>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, node: NodeId, change: impl FnOnce(&mut Holder) -> T) -> T {
        change(self.all().entry(node).or_insert_with(|| Holder::new(self.began_ms)))
    }

    /// How a node stands; nothing is remembered of one that was never here.
    fn holder(&self, node: NodeId) -> Holder {
        self.all().get(&node).copied().unwrap_or(Holder::new(self.began_ms))
    }

    /// Begins to take a node's work, if [`Holder::take`] lets it.
    fn take(self: &Arc<Self>, node: NodeId, after_ms: Option<i64>, now_ms: i64) -> Option<Taking> {
        let taking = self.with(node, |holder| holder.take(after_ms, now_ms));
        taking.then(|| Taking { leases: self.clone(), node })
    }
}

/// While this is held the node's worker is spoken with, and nothing is taken from it.
#[derive(Debug)]
pub struct Held {
    leases: Arc<Leases>,
    node: NodeId,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.leases.with(self.node, Holder::leave);
    }
}

/// While this is held the node's work is taken from it, and its worker is not spoken with.
struct Taking {
    leases: Arc<Leases>,
    node: NodeId,
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.leases.with(self.node, Holder::taken);
    }
}

/// What a submission says of its lease; the rest of it, files above all, is passed over.
#[derive(Deserialize)]
struct Chosen {
    #[serde(default)]
    lease_s: Option<u32>,
}

/// How long the lease of a job's attempts is: what it chose, or else `usual_ms`.
pub(super) fn length_ms(job: &JobRow, usual_ms: i64) -> Result<i64, StoreError> {
    let chosen: Chosen = serde_json::from_str(&job.spec).map_err(|_| StoreError::Corrupt(job.id.clone()))?;
    Ok(chosen.lease_s.map_or(usual_ms, |s| i64::from(s) * 1_000))
}

/// Puts an attempt's lease into what its worker is told.
pub(super) fn impose(assignment: &mut proto::Assignment, lease_ms: i64) {
    if lease_ms > 0 {
        let terms = Terms::new(lease_ms);
        assignment.lease_ms = terms.lease_ms;
        assignment.lease_answer_ms = terms.answer_ms;
        assignment.lease_grace_ms = terms.grace_ms;
    }
}

/// The report that a lost node cannot make: it ended, and nothing more is known than was proved before.
fn last_words(row: &UnendedRow, why: &str) -> Result<proto::Status, StoreError> {
    let corrupt = || StoreError::Corrupt(format!("an attempt of {}", row.job_id));
    let seen: Option<Evidence> =
        row.evidence.as_deref().map(serde_json::from_str).transpose().map_err(|_| corrupt())?;
    let number = u32::try_from(row.number).map_err(|_| corrupt())?;
    Ok(proto::Status {
        attempt: Some(proto::AttemptId::new(&row.job_id, number)),
        phase: proto::Phase::Ended.into(),
        failure: Some(proto::Failure { code: "node.lost".to_owned(), detail: why.to_owned() }),
        evidence: seen.map(|e| proto::Evidence {
            process_ms: e.process_ms,
            device_ms: e.device_ms,
            lost_ms: e.lost_ms,
            busy_ms: e.busy_ms,
            // When that was is known already.
            lost: Vec::new(),
        }),
        ..proto::Status::default()
    })
}

/// Records, once for each attempt, that a worker speaks of one that counts as lost: its words are about what
/// may run elsewhere by now, and change neither job nor charge.
pub(super) async fn note_late(
    tx: &mut store::Tx<'_>,
    portal: &Portal,
    node: NodeId,
    attempt: &mut AttemptRow,
    status: &proto::Status,
    now: Timestamp,
) -> Result<(), StoreError> {
    // Those words are the portal's own.
    if !attempt.ended || status.failure.as_ref().is_some_and(|f| f.code == "node.lost") {
        return Ok(());
    }
    let end = attempt.outcome.as_deref().and_then(|text| serde_json::from_str::<RankEnd>(text).ok());
    let Some(end) = end.and_then(RankEnd::heard_late) else { return Ok(()) };
    attempt.outcome = serde_json::to_string(&end).ok();
    let name = store::leases::find_node(tx, node).await?.map_or_else(|| node.to_string(), |row| row.name);
    let over = matches!(status.phase(), proto::Phase::Ended | proto::Phase::Clean);
    let phase = if over { "has ended" } else { "still runs" };
    let org = parse(&attempt.org_id)?;
    let event = AuditEvent {
        id: portal.new_id::<AuditEventId>(now),
        at: now,
        actor: "The portal".to_owned(),
        action: "attempt.late".to_owned(),
        subject: attempt.job_id.clone(),
        detail: format!(
            "The node {name} says that attempt {} {phase}, which had counted as lost. That changes nothing.",
            attempt.number
        ),
    };
    store::quotas::insert_audit(tx, Some(org), &event).await
}

fn node_id(row: &NodeLeaseRow) -> Result<NodeId, StoreError> {
    row.id.parse().map_err(|_| StoreError::Corrupt(row.id.clone()))
}

/// How a node that does not speak stands, for operators.
pub(super) struct Silences {
    rows: HashMap<String, NodeLeaseRow>,
    unended: HashMap<String, UnendedCount>,
}

impl Silences {
    pub(super) async fn read(tx: &mut store::Tx<'_>) -> Result<Self, StoreError> {
        let rows = store::leases::list_nodes(tx).await?;
        let unended = store::leases::count_unended(tx).await?;
        Ok(Self {
            rows: rows.into_iter().map(|row| (row.id.clone(), row)).collect(),
            unended: unended.into_iter().map(|count| (count.node_id.clone(), count)).collect(),
        })
    }

    /// `None` for a node that speaks, or never did.
    pub(super) fn of(&self, portal: &Portal, node: NodeId) -> Option<Silence> {
        let id = node.to_string();
        let row = self.rows.get(&id).filter(|row| row.last_seen_at.is_some())?;
        let holder = portal.leases.holder(node);
        if !holder.is_silent() {
            return None;
        }
        let count = self.unended.get(&id);
        let attempts = count.map_or(0, |count| u32::try_from(count.ranks).unwrap_or(u32::MAX));
        if let Some(at) = row.lost_at {
            let lost_at = Some(Timestamp::from_micros(at));
            return Some(Silence { state: SilenceState::Lost, attempts, lost_at, why: row.lost_why.clone() });
        }
        let leased = row.leased && count.is_none_or(|count| count.shortest_ms > 0);
        let lease_ms = count.map_or(portal.settings.lease_ms, |count| count.longest_ms);
        let left_ms = holder.left_ms(Terms::new(lease_ms).lost_after_ms(), portal.monotonic_ms());
        let lost_at = leased.then(|| portal.now().plus_millis(left_ms.max(0)));
        Some(Silence { state: SilenceState::Suspect, attempts, lost_at, why: None })
    }
}

impl Portal {
    /// A worker's session begins. `None` while its node's work is being taken: it may come again.
    pub fn hold_lease(&self, node: NodeId) -> Option<Held> {
        let entered = self.leases.with(node, Holder::enter);
        entered.then(|| Held { leases: self.leases.clone(), node })
    }

    /// To be called before a heartbeat is acknowledged.
    pub fn renew_lease(&self, node: NodeId) {
        let now_ms = self.monotonic_ms();
        self.leases.with(node, |holder| holder.renew(now_ms));
    }

    /// Whether a node's worker is spoken with, from its hello on.
    pub(super) fn is_heard(&self, node: NodeId) -> bool {
        !self.leases.holder(node).is_silent()
    }

    /// Records that a node's worker is there, whether it keeps leases, and whether its host is about to go.
    pub async fn node_returned(&self, node: NodeId, leased: bool, leaving: bool) -> Result<(), StoreError> {
        let event = self.own_audit(node, "node.returned", "Its worker is back after it was lost.");
        self.db
            .write(move |tx| {
                let event = event.clone();
                async move {
                    if store::leases::returned(tx, node, leased).await? {
                        store::quotas::insert_audit(tx, None, &event).await?;
                    }
                    if !leaving {
                        super::drains::host_returned(tx, node).await?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await
    }

    pub(super) fn own_audit(&self, node: NodeId, action: &str, detail: &str) -> AuditEvent {
        let at = self.now();
        AuditEvent {
            id: self.new_id::<AuditEventId>(at),
            at,
            actor: "The portal".to_owned(),
            action: action.to_owned(),
            subject: node.to_string(),
            detail: detail.to_owned(),
        }
    }

    /// Ends what ran on nodes that were silent for longer than its lease and margin; says how many ranks.
    pub async fn tick_leases(&self) -> Result<usize, StoreError> {
        let rows = {
            let mut conn = self.db.read().await?;
            store::leases::list_nodes(&mut conn.tx()).await?
        };
        let mut ended = 0;
        for row in rows {
            let node = node_id(&row)?;
            let ends = row.lost_at.is_some() || row.leased;
            if row.last_seen_at.is_some() && ends && self.leases.holder(node).is_silent() {
                ended += self.look_after(node).await?;
            }
        }
        Ok(ended)
    }

    /// Ends what of a silent node's work is due, and marks the node when nothing is left.
    async fn look_after(&self, node: NodeId) -> Result<usize, StoreError> {
        // Listed before it is known that nobody speaks, and that the node is still lost if it was: what it is
        // given after that is not among them.
        let (unended, row) = {
            let mut conn = self.db.read().await?;
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
            let after_ms = (!lost).then(|| Terms::new(attempt.lease_ms).lost_after_ms());
            let Some(_taking) = self.leases.take(node, after_ms, self.monotonic_ms()) else { continue };
            self.lose(attempt, node, &row.name, lost).await?;
            ended += 1;
        }
        let after_ms = Terms::new(self.settings.lease_ms).lost_after_ms();
        if !lost
            && ended == unended.len()
            && let Some(_taking) = self.leases.take(node, Some(after_ms), self.monotonic_ms())
        {
            let why = format!(
                "Its worker was silent for longer than {}, so what ran there has ended.",
                duration_text(self.settings.lease_ms)
            );
            let event = self.own_audit(node, "node.lost", &why);
            self.mark_lost(node, why, event).await?;
            self.touch_boards();
        }
        Ok(ended)
    }

    async fn lose(
        &self,
        attempt: &UnendedRow,
        node: NodeId,
        name: &str,
        lost: bool,
    ) -> Result<(), StoreError> {
        let why = match lost {
            true => format!("The node {name} is lost. It is charged for what was proved before."),
            false => format!(
                "The node {name} was silent for longer than the job's lease of {}, so it has ended there. It is charged for what was proved before.",
                duration_text(attempt.lease_ms)
            ),
        };
        tracing::warn!(%node, job = attempt.job_id, number = attempt.number, "an attempt is lost with its node");
        self.apply_status(node, last_words(attempt, &why)?).await
    }

    async fn mark_lost(&self, node: NodeId, why: String, event: AuditEvent) -> Result<(), StoreError> {
        let now = self.now();
        self.db
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

    /// An operator says that nothing runs on a node any more: what ran there ends at once, without waiting
    /// for its lease. Only of a node that does not speak.
    pub async fn declare_lost(&self, caller: &Caller, node: NodeId) -> Result<Node, Problem> {
        self.authorise_operator(caller)?;
        let found = {
            let mut conn = self.db.read().await?;
            store::leases::find_node(&mut conn.tx(), node).await?
        };
        let Some(row) = found else { return Err(Problem::not_found()) };
        let Some(taking) = self.leases.take(node, None, self.monotonic_ms()) else {
            let detail = "Its worker is connected, so what runs there can be stopped in order: cordon the node and cancel its jobs, or power the host off first.";
            return Err(Problem::conflict("node.connected", "The node is not lost", detail));
        };
        let why = format!("{} declared it lost.", caller.user.name);
        let event = self.audit_event(caller, "node.declared_lost", row.id.clone(), row.name.clone());
        self.mark_lost(node, why, event).await?;
        // Marked first: a portal that dies now ends the rest when it looks for lost nodes again.
        let unended = {
            let mut conn = self.db.read().await?;
            store::leases::list_unended(&mut conn.tx(), node).await?
        };
        for attempt in &unended {
            self.lose(attempt, node, &row.name, true).await?;
        }
        drop(taking);
        self.touch_boards();
        let known = self.nodes(None).await?.into_iter().find(|known| known.id == node);
        known.ok_or_else(Problem::not_found)
    }
}
