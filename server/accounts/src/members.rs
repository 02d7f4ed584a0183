//! The members of organizations and their roles.
//!
//! Each request looks up the rights, so a new role holds from the next request on. The change of a role
//! itself ends the member's open streams. The loss of the role of owner also ends the member's tokens and
//! invitations.

pub mod routes;

use crate::grants::{end_without_provider, publish_ended};
use crate::membership_rules::{keeps_an_owner, keeps_tokens_and_invitations};
use crate::webhook_heirs::pass_on_webhooks;
use berth_types::Page;
use berth_types::accounts::Role;
use berth_types::ids::{OrgId, UserId};
use berth_types::lists::ListOptions;
use berth_types::members::{ChangeMember, Member};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use futures::FutureExt;
use serde_json::json;

use berth_foundation::{Caller, Right, forbidden_for};
use berth_foundation::{Change, Context};
use berth_store::{self as store, StoreError, Tx, WriteError};

fn last_owner() -> Problem {
    Problem::conflict(
        "members.last_owner",
        "Owner required",
        "This member is the only owner of the organization. Nothing was changed. Make another member an owner first.",
    )
}

/// The state of a member in audit events.
pub fn role_state(role: Role) -> Option<String> {
    Some(json!({ "role": role.name() }).to_string())
}

/// Checks the right to manage once more in the transaction of the write, since the caller may have lost it
/// after the authorisation.
pub async fn recheck_manage_right(tx: &mut Tx<'_>, org: OrgId, caller: UserId) -> Result<(), WriteError> {
    match store::accounts::find_role(tx, org, caller).await? {
        Some(role) if Right::Manage.is_granted_to(role) => Ok(()),
        Some(role) => Err(forbidden_for(role).into()),
        None => Err(Problem::not_found().into()),
    }
}

/// Ends the tokens and invitations of a member if the change to `to` requires it. Returns text for the audit
/// log.
pub async fn end_tokens_and_invitations(
    tx: &mut Tx<'_>,
    org: OrgId,
    user: UserId,
    to: Option<Role>,
) -> Result<String, StoreError> {
    if keeps_tokens_and_invitations(to) {
        return Ok(String::new());
    }
    let tokens = store::members::end_tokens(tx, org, user).await?;
    let invitations = store::members::withdraw_all(tx, org, user).await?;
    Ok(if tokens + invitations == 0 {
        String::new()
    } else {
        format!("; also revoked: tokens {tokens}, invitations {invitations}")
    })
}

/// Removes a member in the transaction of an act. The webhooks of the member pass to an owner. `event` gets its detail
/// and its states here.
///
/// # Errors
/// 404 without such a member. 409 if the organization would lose its last owner.
pub async fn remove_in_act(
    tx: &mut Tx<'_>,
    context: &Context,
    (org, user): (OrgId, UserId),
    event: AuditEvent,
) -> Result<(), WriteError> {
    let Some(before) = store::members::find(tx, org, user).await? else {
        return Err(Problem::not_found().into());
    };
    let owners = store::members::count_owners(tx, org).await?;
    if !keeps_an_owner(before.role, None, owners) {
        return Err(last_owner().into());
    }
    store::members::remove(tx, org, user).await?;
    let ended = end_tokens_and_invitations(tx, org, user, None).await?;
    let detail = format!("{}: {}{ended}", before.email, before.role.name());
    let event = AuditEvent { detail, ..event }.with_change(role_state(before.role), None);
    store::quotas::insert_audit(tx, Some(org), &event).await?;
    Ok(pass_on_webhooks(tx, context, (org, user), &event).await?)
}

/// The members of organizations.
#[derive(Clone)]
pub struct Members {
    context: Context,
}

impl Members {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// A page of the members of an organization by the creation of their accounts.
    pub async fn list_members(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<UserId>,
    ) -> Result<Page<Member>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::members::list(&mut conn.tx(), org, options).await?;
        Ok(options.page(rows, |member| member.user))
    }

    /// Changes the role of a member.
    ///
    /// # Errors
    /// 409 if the organization would lose its last owner.
    pub async fn change_member(
        &self,
        caller: &Caller,
        org: OrgId,
        user: UserId,
        input: ChangeMember,
    ) -> Result<Member, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        self.context.check_proof(caller)?;
        let (by, to) = (caller.user.id, input.role);
        let event = self.context.audit_event(caller, "member.role_changed", user.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                recheck_manage_right(tx, org, by).await?;
                let Some(before) = store::members::find(tx, org, user).await? else {
                    return Err(Problem::not_found().into());
                };
                if before.role == to {
                    return Ok((before, false, Vec::new()));
                }
                let owners = store::members::count_owners(tx, org).await?;
                if !keeps_an_owner(before.role, Some(to), owners) {
                    return Err(last_owner().into());
                }
                store::members::set_role(tx, org, user, to).await?;
                let ended = end_tokens_and_invitations(tx, org, user, Some(to)).await?;
                let detail = format!("{}: {}, before {}{ended}", before.email, to.name(), before.role.name());
                let event =
                    AuditEvent { detail, ..event }.with_change(role_state(before.role), role_state(to));
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                // A former owner has no password by the rule of the organization.
                let sessions = end_without_provider(tx, org).await?;
                Ok((Member { role: to, ..before }, true, sessions))
            }
            .boxed()
        });
        let (member, changed, sessions) = done.await?;
        publish_ended(&self.context, &sessions);
        if changed {
            self.context.publish(Change::Member { org, user });
        }
        Ok(member)
    }

    /// Removes a member from an organization. Every member may leave without the right to manage. The webhooks of
    /// the member pass to an owner.
    ///
    /// # Errors
    /// 403 without a fresh proof. 409 if the organization would lose its last owner.
    pub async fn remove_member(&self, caller: &Caller, org: OrgId, user: UserId) -> Result<(), Problem> {
        // A token acts for the organization, so it needs the right to manage also for the removal of its own
        // user.
        let leaves = user == caller.user.id && caller.token.is_none();
        self.context.authorise(caller, org, if leaves { Right::View } else { Right::Manage }).await?;
        self.context.check_proof(caller)?;
        let by = caller.user.id;
        let action = if leaves { "member.left" } else { "member.removed" };
        let event = self.context.audit_event(caller, action, user.to_string(), String::new());
        let context = self.context.clone();
        let done = self.context.db.try_write(move |tx| {
            let (context, event) = (context.clone(), event.clone());
            async move {
                if !leaves {
                    recheck_manage_right(tx, org, by).await?;
                }
                remove_in_act(tx, &context, (org, user), event).await
            }
            .boxed()
        });
        done.await?;
        self.context.publish(Change::Member { org, user });
        Ok(())
    }
}
