//! The webhooks of people who leave an organization, or whose accounts are disabled or deleted. They pass to an owner
//! with their secrets. Without an owner they stop until the organization has one.

use berth_foundation::Context;
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::{OrgId, UserId};
use berth_types::quotas::AuditEvent;
use serde_json::json;

/// The notice about webhooks of a former member.
const KIND: &str = "webhook.passed_on";

/// Gives the webhooks without an enabled creator to the owner who joined first, and writes the notice to the owners.
/// Runs in the transaction of an act on `user` with the audit event `act`.
pub async fn pass_on_webhooks(
    tx: &mut Tx<'_>,
    context: &Context,
    (org, user): (OrgId, UserId),
    act: &AuditEvent,
) -> Result<(), StoreError> {
    let stopped = store::webhooks::list_stopped(tx, org).await?;
    if stopped.is_empty() {
        return Ok(());
    }
    let owner = store::members::find_first_owner(tx, org).await?;
    for hook in &stopped {
        let (action, detail) = match &owner {
            Some((id, name)) => {
                store::webhooks::set_creator(tx, hook.id, (*id, name.as_str())).await?;
                (KIND, format!("To the owner {name}."))
            }
            None if hook.created_by_id == Some(user) => {
                ("webhook.stopped", "The organization has no owner with an enabled account.".to_owned())
            }
            None => continue,
        };
        let event = AuditEvent {
            id: context.new_id(act.at),
            action: action.to_owned(),
            subject: hook.id.to_string(),
            detail,
            ..act.clone()
        };
        store::quotas::insert_audit(tx, Some(org), &event).await?;
    }
    let Some((_, name)) = owner else { return Ok(()) };
    let subject = match stopped.len() {
        1 => format!("1 webhook passed to {name}"),
        count => format!("{count} webhooks passed to {name}"),
    };
    let detail = format!(
        "{subject}. The person who had created them left the organization, or the account was disabled or deleted. \
         The receivers still get events, signed with the same secrets. Delete the webhooks that the organization \
         does not need on the page Webhooks."
    );
    let ids: Vec<String> = stopped.iter().map(|hook| hook.id.to_string()).collect();
    let notice = context.notice(org, KIND, subject, detail, &json!({ "webhooks": ids }));
    store::budgets::insert_notice(tx, &notice).await
}
