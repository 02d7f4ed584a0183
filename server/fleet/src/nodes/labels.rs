//! Changes of the labels of a node.

use std::collections::BTreeMap;

use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::NodeId;
use berth_types::nodes::PatchNode;
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;

use super::approval::{check_labels, check_seen_labels};

type Labels = BTreeMap<String, String>;

/// The labels as a text: `rack=r12, switch=s1`.
fn labels_text(labels: &Labels) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

/// Labels as a state of the audit log.
fn labels_state(labels: Labels) -> Option<String> {
    serde_json::to_string(&PatchNode { labels: Some(labels), ..PatchNode::default() }).ok()
}

/// The part of a change of a node that is about its labels.
#[derive(Debug, Clone)]
pub(super) struct LabelChange {
    labels: Option<Labels>,
    adopts: Option<bool>,
    /// The labels that the operator saw.
    seen: Option<Labels>,
    event: AuditEvent,
}

impl LabelChange {
    /// The change of a request. `event` is its audit event, without a detail.
    ///
    /// # Errors
    /// The labels are invalid, or the request also adopts others.
    pub(super) fn from_patch(patch: &PatchNode, event: AuditEvent) -> Result<Self, Problem> {
        let PatchNode { labels, adopt_labels: adopts, seen_labels: seen, .. } = patch.clone();
        if let Some(seen) = &seen {
            check_seen_labels("/seen_labels", seen)?;
        }
        if let Some(labels) = &labels {
            check_labels("/labels", labels)?;
            if adopts == Some(true) {
                let detail = "Give labels, or adopt those of the worker, not both.";
                return Err(Problem::invalid_field("/adopt_labels", detail));
            }
        }
        Ok(Self { labels, adopts, seen, event })
    }

    /// The refusal of a change of labels that are not those that the operator saw.
    pub(super) async fn find_conflict(
        &self,
        tx: &mut Tx<'_>,
        node: NodeId,
    ) -> Result<Option<Problem>, StoreError> {
        let Some(seen) = &self.seen else { return Ok(None) };
        let present = store::approvals::find_labels(tx, node).await?;
        if present == *seen {
            return Ok(None);
        }
        let text = if present.is_empty() { "no labels".to_owned() } else { labels_text(&present) };
        let detail = format!(
            "The labels were changed in the meantime, and the node now has: {text}. Nothing was changed. Open the labels again and repeat your change."
        );
        Ok(Some(Problem::conflict("node.labels_changed", "The labels have changed", detail)))
    }

    /// Makes the change, with its audit event.
    pub(super) async fn apply(&self, tx: &mut Tx<'_>, node: NodeId) -> Result<(), StoreError> {
        let detail = match (&self.labels, self.adopts) {
            (Some(labels), _) => labels_text(labels),
            (None, Some(true)) => "adopted".to_owned(),
            (None, Some(false)) => "not adopted".to_owned(),
            (None, None) => return Ok(()),
        };
        let before = store::approvals::find_labels(tx, node).await?;
        if let Some(adopts) = self.adopts {
            store::approvals::set_adopts_labels(tx, node, adopts).await?;
        }
        if let Some(labels) = &self.labels {
            store::approvals::set_labels(tx, node, labels).await?;
        }
        let after = store::approvals::find_labels(tx, node).await?;
        let event = AuditEvent { detail, ..self.event.clone() };
        let event = event.with_change(labels_state(before), labels_state(after));
        store::quotas::insert_audit(tx, None, &event).await
    }
}
