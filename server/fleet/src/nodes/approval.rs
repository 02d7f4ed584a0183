//! The approval of nodes and boards: by the terms of a join token, or by an operator.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::approval::{
    BoardApproval, MAX_NODE_LABELS, approval_changes, is_label_text, is_node_label, waiting_reason,
};
use berth_foundation::{Caller, Change, idempotency};
use berth_store::nodes::NodeReport;
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::NodeId;
use berth_types::nodes::{ApproveNode, JoinTerms, Node};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::Nodes;
use crate::leases::node_audit;

/// The most boards of a node in an approval.
const MAX_SEEN_BOARDS: usize = 64;

/// The result of a recorded report.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// A sentence for each board that stays with another node.
    pub left_out: String,
    /// True if these sentences differ from those of the report before.
    pub has_new_left_out: bool,
    /// True for an approved node.
    pub is_approved: bool,
}

/// The refusal of a change that only nodes without an approval permit.
fn approved_already(detail: &str) -> Problem {
    Problem::conflict("node.approved", "The node is approved", detail)
}

/// Checks the labels that an operator gives a node, in a field of the request.
///
/// # Errors
/// They are too many, one has a key or value that is too long or not printable, or the rack has blanks only.
pub(crate) fn check_labels(pointer: &str, labels: &BTreeMap<String, String>) -> Result<(), Problem> {
    check_seen_labels(pointer, labels)?;
    if labels.iter().all(|(key, value)| is_node_label(key, value)) {
        return Ok(());
    }
    let detail = "The label rack has blanks only. Enter the name of the rack, or leave the label out.";
    Err(Problem::invalid_field(pointer, detail))
}

/// Checks the labels that an operator saw. A stored rack may have blanks only.
///
/// # Errors
/// They are too many, or one has a key or value that is too long or not printable.
pub(super) fn check_seen_labels(pointer: &str, labels: &BTreeMap<String, String>) -> Result<(), Problem> {
    if labels.len() > MAX_NODE_LABELS {
        return Err(Problem::invalid_field(pointer, "A node has at most 64 labels."));
    }
    if labels.iter().all(|(key, value)| is_label_text(key) && is_label_text(value)) {
        return Ok(());
    }
    let detail = "The key and the value of a label have 1 to 63 bytes of printable characters.";
    Err(Problem::invalid_field(pointer, detail))
}

/// Checks the form of an approval.
///
/// # Errors
/// It has more boards than a node can have.
fn check_seen_boards(input: &ApproveNode) -> Result<(), Problem> {
    match &input.boards {
        Some(boards) if boards.len() > MAX_SEEN_BOARDS => {
            Err(Problem::invalid_field("/boards", format!("Name at most {MAX_SEEN_BOARDS} boards.")))
        }
        Some(_) | None => Ok(()),
    }
}

/// The present boards of a node as a text, or the refusal of its approval.
async fn approved_boards(
    tx: &mut Tx<'_>,
    node: NodeId,
    input: &ApproveNode,
) -> Result<Result<String, Problem>, StoreError> {
    let Some(known) = store::approvals::find(tx, node).await? else { return Ok(Err(Problem::not_found())) };
    if known.approved_at.is_some() {
        return Ok(Err(approved_already("The node was approved in the meantime. Nothing was changed.")));
    }
    let boards = store::approvals::list_boards(tx, node).await?;
    let present: Vec<(&str, &str)> = boards
        .iter()
        .filter(|board| board.present)
        .map(|board| (board.uuid.as_str(), board.model.as_str()))
        .collect();
    if let Some(seen) = &input.boards {
        let seen: BTreeSet<(&str, &str)> =
            seen.iter().map(|board| (board.uuid.as_str(), board.model.as_str())).collect();
        let reported: BTreeSet<(&str, &str)> = present.iter().copied().collect();
        if seen != reported {
            let detail = "The node now reports other boards. Nothing was approved, and the node gets no work. Load the node again and compare its boards.";
            return Ok(Err(Problem::conflict("node.boards_changed", "The boards have changed", detail)));
        }
    }
    Ok(Ok(boards_text(&present)))
}

/// UUIDs and models of boards as a sentence.
fn boards_text(boards: &[(&str, &str)]) -> String {
    if boards.is_empty() {
        return "No boards.".to_owned();
    }
    let texts: Vec<String> = boards.iter().map(|(uuid, model)| format!("{uuid} ({model})")).collect();
    format!("Boards: {}.", texts.join(", "))
}

/// The name and the boards of a node before its removal, as sentences.
async fn removed_text(tx: &mut Tx<'_>, node: NodeId) -> Result<String, StoreError> {
    let name = store::leases::find_node(tx, node).await?.map(|row| row.name).unwrap_or_default();
    let rows = store::approvals::list_boards(tx, node).await?;
    let boards: Vec<(&str, &str)> = rows.iter().map(|row| (row.uuid.as_str(), row.model.as_str())).collect();
    Ok(format!("Node {name}. {}", boards_text(&boards)))
}

/// The refusal to remove an approved node that can return, or that present work names. `is_silent`: it has no session,
/// and none can begin.
async fn removal_refusal(
    tx: &mut Tx<'_>,
    node: NodeId,
    is_silent: bool,
) -> Result<Option<Problem>, StoreError> {
    let row = store::leases::find_node(tx, node).await?;
    let is_lost = is_silent && row.is_some_and(|row| row.lost_at.is_some());
    if !is_lost || store::certificates::is_certified(tx, node).await? {
        let detail = "An approved node can be removed once it is lost and its certificate is revoked. Revoke its certificate first, and declare it lost if it does not become lost by itself.";
        return Ok(Some(approved_already(detail)));
    }
    let in_use = |detail: String| Ok(Some(Problem::conflict("node.in_use", "Node in use", detail)));
    if !store::leases::list_unended(tx, node).await?.is_empty() {
        return in_use(
            "The portal still ends attempts of the node. Repeat the request in a minute.".to_owned(),
        );
    }
    let mut booked = Vec::new();
    for row in store::reservations::list_holding(tx).await? {
        if row.places()?.iter().any(|(place, _)| *place == node) {
            booked.push(row.name);
        }
    }
    if booked.is_empty() {
        return Ok(None);
    }
    in_use(format!(
        "Reservations or windows of maintenance hold boards of the node: {}. Cancel them or wait for their end first.",
        booked.join(", ")
    ))
}

impl Nodes {
    /// Records the report of a host and decides about its approval and that of its boards. A removed node has no
    /// record.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub(super) async fn record(
        &self,
        tx: &mut Tx<'_>,
        node: NodeId,
        mut report: NodeReport,
        now: Timestamp,
    ) -> Result<Recorded, StoreError> {
        let Some(known) = store::approvals::find(tx, node).await? else { return Ok(Recorded::default()) };
        let was_approved = known.approved_at.is_some();
        let mut left_out = Vec::new();
        for board in std::mem::take(&mut report.boards) {
            match self.left_out_reason(tx, node, was_approved, &board.uuid).await? {
                Some(reason) => left_out.push(reason),
                None => report.boards.push(board),
            }
        }
        let before = store::approvals::list_boards(tx, node).await?;
        store::nodes::record_report(tx, node, &report, now).await?;
        let left_out = left_out.join(" ");
        let has_new_left_out =
            store::nodes::set_gpus_left_out(tx, node, &left_out).await? && !left_out.is_empty();
        let is_approved = was_approved || self.approve_by_terms(tx, node, &known.terms, &report, now).await?;
        if !is_approved {
            // The rows of a stranger have a bound: its latest report.
            store::approvals::forget_missing_boards(tx, node).await?;
            return Ok(Recorded { left_out, has_new_left_out, is_approved });
        }
        // A node that is approved before its driver answers reports its first boards later.
        let are_first = known.terms.approve && (before.is_empty() || !was_approved);
        let known_boards: Vec<BoardApproval> = before
            .into_iter()
            .map(|row| BoardApproval { uuid: row.uuid, model: row.model, is_approved: !row.awaits_approval })
            .collect();
        let changes: Vec<BoardApproval> = if are_first {
            let first = |board: &store::nodes::GpuReport| BoardApproval {
                uuid: board.uuid.clone(),
                model: board.model.clone(),
                is_approved: true,
            };
            report.boards.iter().map(first).collect()
        } else {
            let reported: Vec<(&str, &str)> =
                report.boards.iter().map(|board| (board.uuid.as_str(), board.model.as_str())).collect();
            approval_changes(&known_boards, &reported)
        };
        if are_first && !changes.is_empty() {
            store::approvals::spend_terms(tx, node).await?;
        }
        for board in changes {
            store::approvals::set_awaits_approval(tx, &board.uuid, !board.is_approved).await?;
        }
        Ok(Recorded { left_out, has_new_left_out, is_approved })
    }

    /// Approves a node by the terms of its join token. Returns false if they do not approve it.
    async fn approve_by_terms(
        &self,
        tx: &mut Tx<'_>,
        node: NodeId,
        terms: &JoinTerms,
        report: &NodeReport,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let models: Vec<&str> = report.boards.iter().map(|board| board.model.as_str()).collect();
        if waiting_reason(terms, &models).is_some() {
            return Ok(false);
        }
        store::approvals::forget_missing_boards(tx, node).await?;
        store::approvals::approve(tx, node, now).await?;
        let event = node_audit(&self.context, node, "node.approved", "By its join token.");
        store::quotas::insert_audit(tx, None, &event).await?;
        Ok(true)
    }

    /// Approves a node with its present boards. Boards that it reports later wait for an approval of their own.
    ///
    /// # Errors
    /// The proof of identity is not fresh, there is no such node, it is approved already, or it reports other boards than
    /// `input` has.
    pub async fn approve_node(
        &self,
        caller: &Caller,
        node: NodeId,
        input: ApproveNode,
    ) -> Result<Node, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        if caller.already_created().is_some() {
            return self.get_node(caller, node).await;
        }
        check_seen_boards(&input)?;
        let (now, key) = (self.context.now(), caller.idempotency_key.clone());
        let event = self.context.audit_event(caller, "node.approved", node.to_string(), String::new());
        let refusal = self
            .context
            .db
            .write(move |tx| {
                let (key, event, input) = (key.clone(), event.clone(), input.clone());
                async move {
                    let detail = match approved_boards(tx, node, &input).await? {
                        Ok(detail) => detail,
                        Err(refusal) => return Ok(Some(refusal)),
                    };
                    let event = AuditEvent { detail, ..event };
                    idempotency::claim(tx, key.as_ref(), &node.to_string(), now).await?;
                    store::approvals::approve(tx, node, now).await?;
                    store::approvals::spend_terms(tx, node).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(None)
                }
                .boxed()
            })
            .await?;
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        self.offerings.offer_boards_of(node).await?;
        self.context.publish(Change::Boards);
        self.context.publish(Change::Assignments(node));
        self.get_node(caller, node).await
    }

    /// Removes a node with its boards, certificates and unused join tokens. Its session ends. An approved node must be
    /// lost, without a valid certificate and without work; the records of its jobs stay.
    ///
    /// # Errors
    /// There is no such node, or it is approved and can return, or present work names it.
    pub async fn remove_node(&self, caller: &Caller, node: NodeId) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        let event = self.context.audit_event(caller, "node.removed", node.to_string(), String::new());
        let now = self.context.now();
        // No session begins during the removal of a silent node.
        let takeover = self.leases.begin_takeover(node, None, self.context.monotonic_ms());
        let is_silent = takeover.is_some();
        let removed = self
            .context
            .db
            .write(move |tx| {
                let event = event.clone();
                async move {
                    let Some(known) = store::approvals::find(tx, node).await? else {
                        return Ok(Err(Problem::not_found()));
                    };
                    if known.approved_at.is_some()
                        && let Some(refusal) = removal_refusal(tx, node, is_silent).await?
                    {
                        return Ok(Err(refusal));
                    }
                    let event = AuditEvent { detail: removed_text(tx, node).await?, ..event };
                    let jobs = store::approvals::remove(tx, node, now).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(Ok(jobs))
                }
                .boxed()
            })
            .await?;
        drop(takeover);
        // The devices of their ranks are free.
        removed?.into_iter().for_each(|job| self.context.publish(Change::JobDevices(job)));
        self.diagnoses.remove(node);
        self.context.publish(Change::NodeRevoked(node));
        self.context.publish(Change::Boards);
        Ok(())
    }
}
