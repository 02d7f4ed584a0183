//! Who is in an organization, and what they may do there.
//!
//! Rights are looked up at each request, so a change holds from the next one on. What somebody made in the
//! organization's name, and the streams that they have open, end with the change itself.

use crate::membership_rules::{keeps_what_was_made, leaves_an_owner};
use berth_types::Page;
use berth_types::accounts::Role;
use berth_types::ids::{OrgId, UserId};
use berth_types::members::{ChangeMember, Member};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use berth_foundation::{Caller, Right, forbidden_for};
use berth_foundation::{Change, Context};
use berth_store::{self as store, StoreError, Tx};

fn last_owner() -> Problem {
    Problem::conflict(
        "members.last_owner",
        "An organization keeps an owner",
        "This is the organization's only owner. Make somebody else an owner first; nothing was changed.",
    )
}

/// Looks once more, in the transaction that writes, whether somebody still manages the organization: they
/// may have lost it since they were authorised.
pub(crate) async fn manages_no_more(
    tx: &mut Tx<'_>,
    org: OrgId,
    by: UserId,
) -> Result<Option<Problem>, StoreError> {
    Ok(match store::accounts::find_role(tx, org, by).await? {
        Some(role) if Right::Manage.held_by(role) => None,
        Some(role) => Some(forbidden_for(role)),
        None => Some(Problem::not_found()),
    })
}

/// Ends what somebody made in the organization's name, where a change to `to` ends it; in words.
async fn end_what_was_made(
    tx: &mut Tx<'_>,
    org: OrgId,
    user: UserId,
    to: Option<Role>,
) -> Result<String, StoreError> {
    if keeps_what_was_made(to) {
        return Ok(String::new());
    }
    let tokens = store::members::end_tokens(tx, org, user).await?;
    let invitations = store::members::withdraw_all(tx, org, user).await?;
    Ok(if tokens + invitations == 0 {
        String::new()
    } else {
        format!("; ended with it: tokens {tokens}, invitations {invitations}")
    })
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

    /// The members of an organization, oldest account first.
    pub async fn list_members(
        &self,
        caller: &Caller,
        org: OrgId,
        after: Option<UserId>,
        limit: u32,
    ) -> Result<Page<Member>, Problem> {
        self.context.authorise(caller, org, Right::Look).await?;
        let after = after.map_or_else(String::new, |user| user.to_string());
        let mut conn = self.context.db.read().await?;
        let items = store::members::list(&mut conn.tx(), org, &after, i64::from(limit)).await?;
        let full = items.len() == limit as usize;
        let next_cursor = items.last().filter(|_| full).map(|member| member.user.to_string());
        Ok(Page { items, next_cursor })
    }

    /// Gives a member another role.
    pub async fn change_member(
        &self,
        caller: &Caller,
        org: OrgId,
        user: UserId,
        input: ChangeMember,
    ) -> Result<Member, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let (by, to) = (caller.user.id, input.role);
        let event = self.context.audit_event(caller, "member.role_changed", user.to_string(), String::new());
        let done = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                if let Some(problem) = manages_no_more(tx, org, by).await? {
                    return Ok(Err(problem));
                }
                let Some(before) = store::members::find(tx, org, user).await? else {
                    return Ok(Err(Problem::not_found()));
                };
                if before.role == to {
                    return Ok(Ok((before, false)));
                }
                let owners = store::members::count_owners(tx, org).await?;
                if !leaves_an_owner(before.role, Some(to), owners) {
                    return Ok(Err(last_owner()));
                }
                store::members::set_role(tx, org, user, to).await?;
                let ended = end_what_was_made(tx, org, user, Some(to)).await?;
                let detail = format!("{}: {}, before {}{ended}", before.email, to.name(), before.role.name());
                store::quotas::insert_audit(tx, Some(org), &AuditEvent { detail, ..event }).await?;
                Ok(Ok((Member { role: to, ..before }, true)))
            }
            .boxed()
        });
        let (member, changed) = done.await??;
        if changed {
            self.context.publish(Change::Member { org, user });
        }
        Ok(member)
    }

    /// Takes somebody out of an organization; oneself, whatever the role: leaves it.
    pub async fn remove_member(&self, caller: &Caller, org: OrgId, user: UserId) -> Result<(), Problem> {
        // A token acts for the organization, so it takes nobody out without the right to.
        let leaves = user == caller.user.id && caller.token.is_none();
        self.context.authorise(caller, org, if leaves { Right::Look } else { Right::Manage }).await?;
        let by = caller.user.id;
        let action = if leaves { "member.left" } else { "member.removed" };
        let event = self.context.audit_event(caller, action, user.to_string(), String::new());
        let done = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                if !leaves && let Some(problem) = manages_no_more(tx, org, by).await? {
                    return Ok(Err(problem));
                }
                let Some(before) = store::members::find(tx, org, user).await? else {
                    return Ok(Err(Problem::not_found()));
                };
                let owners = store::members::count_owners(tx, org).await?;
                if !leaves_an_owner(before.role, None, owners) {
                    return Ok(Err(last_owner()));
                }
                store::members::remove(tx, org, user).await?;
                let ended = end_what_was_made(tx, org, user, None).await?;
                let detail = format!("{}: {}{ended}", before.email, before.role.name());
                store::quotas::insert_audit(tx, Some(org), &AuditEvent { detail, ..event }).await?;
                Ok(Ok(()))
            }
            .boxed()
        });
        done.await??;
        self.context.publish(Change::Member { org, user });
        Ok(())
    }
}
