//! The membership of a person of the provider.

use berth_accounts::members::remove_in_act;
use berth_accounts::membership_rules::keeps_an_owner;
use berth_oidc::{domain_of, role_of_groups};
use berth_sso::membership::{list_group_names, put_member};
use berth_store::scim::StoredScimUser;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::accounts::Role;

use crate::act::{Act, Effects};
use crate::refusals::{account_refused, no_provider, unproved_domain};

/// The cause of a change of a membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The provider creates, activates, deactivates or deletes the person. What is impossible is refused.
    Person,
    /// The groups of the person change. What is impossible leaves the membership as it is, because one person must not
    /// hold up the others of a group.
    Groups,
}

/// The role that an active person has by the rules of single sign-on; `None` without one.
async fn find_role(
    tx: &mut Tx<'_>,
    act: &Act,
    row: &StoredScimUser,
    (before, cause): (Option<Role>, Cause),
) -> Result<Option<Role>, WriteError> {
    let rules = store::sso::find_provider(tx, act.org).await?.ok_or_else(no_provider)?;
    let groups = list_group_names(tx, act.org, row.user_id).await?;
    let listed = role_of_groups(&groups, &rules.roles, None);
    // Without listed groups the role of a member stays, and so does that of a member whose listed groups come at
    // sign-ins, or who has the role from an owner.
    if before.is_some() && (rules.roles.is_empty() || (listed.is_none() && cause == Cause::Person)) {
        return Ok(before);
    }
    Ok(listed.or(rules.default_role))
}

/// Brings the membership of a person to the state of the record: a member with the role of the groups, or none. A
/// removal ends the API tokens of the member there, and the sessions by the provider.
///
/// # Errors
/// 400 for a domain that is not confirmed. 409 for the last owner, and without single sign-on.
pub(crate) async fn align(
    tx: &mut Tx<'_>,
    act: &Act,
    (row, cause): (&StoredScimUser, Cause),
    effects: &mut Effects,
) -> Result<(), WriteError> {
    let (org, id) = (act.org, row.user_id);
    let before = store::accounts::find_role(tx, org, id).await?;
    let role = if row.active { find_role(tx, act, row, (before, cause)).await? } else { None };
    match (before, role) {
        (None, None) => {}
        (Some(before), None) => {
            let owners = store::members::count_owners(tx, org).await?;
            if cause == Cause::Groups && !keeps_an_owner(before, None, owners) {
                return Ok(());
            }
            let event = act.event("member.removed", id.to_string(), String::new());
            remove_in_act(tx, &act.context, (org, id), event).await?;
            effects.sessions.extend(store::scim::end_sessions(tx, org, id).await?);
            effects.people.push(id);
        }
        (before, Some(role)) => {
            let user = store::accounts::find_user(tx, id).await?.ok_or(StoreError::Unknown)?;
            if before.is_none() {
                let holder = store::sso::find_domain_org(tx, &domain_of(&user.email)).await?;
                let refusal = match (user.operator, holder == Some(org)) {
                    (true, _) => Some(account_refused()),
                    (false, false) => Some(unproved_domain()),
                    (false, true) => None,
                };
                match (refusal, cause) {
                    (Some(refusal), Cause::Person) => return Err(refusal.into()),
                    (Some(_), Cause::Groups) => return Ok(()),
                    (None, _) => {}
                }
            }
            let event = act.event("", id.to_string(), String::new());
            let roles = (before, Some(role));
            if put_member(tx, &act.context, (org, &user), roles, (event, "by SCIM")).await? {
                effects.people.push(id);
            }
        }
    }
    Ok(())
}
