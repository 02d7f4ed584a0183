//! The memberships that a provider makes and changes, at sign-ins and by SCIM.

use berth_accounts::members::{end_tokens_and_invitations, role_state};
use berth_accounts::membership_rules::keeps_an_owner;
use berth_accounts::webhook_heirs::pass_on_webhooks;
use berth_foundation::Context;
use berth_store::{self as store, StoreError, Tx};
use berth_types::accounts::{Role, User};
use berth_types::ids::{OrgId, UserId};
use berth_types::quotas::AuditEvent;

/// The stored hash of an account without a password.
pub const NO_PASSWORD: &str = "";

/// Lists the names of the groups of a person by SCIM, and their ids at the provider. Roles of groups name either.
///
/// # Errors
/// The database cannot be read.
pub async fn list_group_names(tx: &mut Tx<'_>, org: OrgId, user: UserId) -> Result<Vec<String>, StoreError> {
    let groups = store::scim::list_user_groups(tx, org, user).await?;
    let names = groups.into_iter().flat_map(|group| [Some(group.display_name), group.external_id]);
    Ok(names.flatten().collect())
}

/// Makes a member, or changes the role of one, in the transaction of an act. The only owner stays. Webhooks that stopped
/// without an owner pass to one. `event` gets its action, its detail and its states here; `cause` is the end of the
/// detail of a new member, such as `by single sign-on`. Returns true after a change.
///
/// # Errors
/// The database cannot be read or written.
pub async fn put_member(
    tx: &mut Tx<'_>,
    context: &Context,
    (org, user): (OrgId, &User),
    (before, role): (Option<Role>, Option<Role>),
    (event, cause): (AuditEvent, &str),
) -> Result<bool, StoreError> {
    let Some(role) = role.filter(|role| before != Some(*role)) else { return Ok(false) };
    let event = match before {
        None => {
            store::members::join(tx, org, user.id, role, event.at).await?;
            let detail = format!("{}: {}, {cause}", user.email, role.name());
            AuditEvent { action: "member.joined".to_owned(), detail, ..event }
                .with_change(None, role_state(role))
        }
        Some(before) => {
            let owners = store::members::count_owners(tx, org).await?;
            if !keeps_an_owner(before, Some(role), owners) {
                return Ok(false);
            }
            store::members::set_role(tx, org, user.id, role).await?;
            let ended = end_tokens_and_invitations(tx, org, user.id, Some(role)).await?;
            let detail = format!(
                "{}: {}, before {}, by the groups of the provider{ended}",
                user.email,
                role.name(),
                before.name()
            );
            AuditEvent { action: "member.role_changed".to_owned(), detail, ..event }
                .with_change(role_state(before), role_state(role))
        }
    };
    store::quotas::insert_audit(tx, Some(org), &event).await?;
    pass_on_webhooks(tx, context, (org, user.id), &event).await?;
    Ok(true)
}
