//! The groups of a provider. Their names give roles by the rules of single sign-on.

use std::collections::BTreeSet;

use berth_foundation::Caller;
use berth_store::scim::StoredScimGroup;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::ids::{OrgId, ScimGroupId, UserId};
use berth_types::problems::Problem;
use berth_types::scim::{
    GROUP_SCHEMA, LIST_MESSAGE, MAX_SCIM_GROUPS, PutScimGroup, ScimGroup, ScimList, ScimMeta, ScimPatch,
    ScimReference,
};
use futures::FutureExt;
use serde_json::json;

use crate::Scim;
use crate::act::{Act, Effects};
use crate::filter::{Window, read_filter};
use crate::group_patch::GroupChange;
use crate::membership::{Cause, align};
use crate::refusals::{group_exists, invalid_filter, invalid_value, too_many};

/// The readable filters of groups.
const FILTERS: &str = "displayName eq \"NAME\" or externalId eq \"ID\"";

/// The state of a group in audit events.
fn state(row: &StoredScimGroup, members: usize) -> Option<String> {
    let state =
        json!({ "display_name": row.display_name, "external_id": row.external_id, "members": members });
    Some(state.to_string())
}

/// The group after a change. An unchanged group keeps the time of the last change.
fn apply(
    change: &GroupChange,
    before: &StoredScimGroup,
    (are_members_new, act): (bool, &Act),
) -> StoredScimGroup {
    let external_id = match &change.external_id {
        Some(new) => Some(new.clone()).filter(|id| !id.is_empty()),
        None => before.external_id.clone(),
    };
    let display_name = change.display_name.as_ref().unwrap_or(&before.display_name).clone();
    let after = StoredScimGroup { display_name, external_id, ..before.clone() };
    let is_same = after == *before && !are_members_new;
    StoredScimGroup { updated_at: if is_same { before.updated_at } else { act.now }, ..after }
}

/// Refuses the name and the external id of another group.
async fn check_free(tx: &mut Tx<'_>, row: &StoredScimGroup) -> Result<(), WriteError> {
    let is_other = |found: Option<StoredScimGroup>| found.is_some_and(|found| found.id != row.id);
    let mut taken = is_other(store::scim::find_group_by_name(tx, row.org_id, &row.display_name).await?);
    if let Some(id) = &row.external_id {
        taken |= is_other(store::scim::find_group_by_external_id(tx, row.org_id, id).await?);
    }
    if taken { Err(group_exists().into()) } else { Ok(()) }
}

async fn list_member_ids(tx: &mut Tx<'_>, group: ScimGroupId) -> Result<BTreeSet<UserId>, StoreError> {
    Ok(store::scim::list_members(tx, group).await?.into_iter().map(|(user, _)| user).collect())
}

/// Refuses a member that is no person of the provider.
async fn check_people(tx: &mut Tx<'_>, org: OrgId, people: &[UserId]) -> Result<(), WriteError> {
    for user in people {
        if store::scim::find_user(tx, org, *user).await?.is_none() {
            let detail = format!("The provider has no person with the id {user}.");
            return Err(invalid_value(&detail).into());
        }
    }
    Ok(())
}

/// Brings the memberships of people to the state of their groups, after a change of a group with these states. A group
/// that no line of the roles names decides nothing.
async fn align_people(
    tx: &mut Tx<'_>,
    act: &Act,
    (group, people): ([&StoredScimGroup; 2], &BTreeSet<UserId>),
) -> Result<Effects, WriteError> {
    let mut effects = Effects::default();
    if let Some(rules) = store::sso::find_provider(tx, act.org).await? {
        let is_listed = |name: &String| rules.roles.iter().any(|line| line.group == *name);
        let decides = |row: &&StoredScimGroup| {
            is_listed(&row.display_name) || row.external_id.as_ref().is_some_and(is_listed)
        };
        if !group.iter().any(decides) {
            return Ok(effects);
        }
    }
    for user in people {
        if let Some(row) = store::scim::find_user(tx, act.org, *user).await? {
            align(tx, act, (&row, Cause::Groups), &mut effects).await?;
        }
    }
    effects.end_excluded(tx, act.org).await?;
    Ok(effects)
}

/// Writes a changed group with its members, and brings the memberships of the affected people to its state. `before` is
/// absent for a new group, and `blank` is the group before the change.
async fn put(
    tx: &mut Tx<'_>,
    act: &Act,
    (before, blank, change): (Option<&StoredScimGroup>, &StoredScimGroup, &GroupChange),
) -> Result<(StoredScimGroup, Effects), WriteError> {
    let known = list_member_ids(tx, blank.id).await?;
    let members = change.apply_members(&known)?;
    let row = apply(change, blank, (members != known, act));
    let added: Vec<UserId> = members.difference(&known).copied().collect();
    let removed: Vec<UserId> = known.difference(&members).copied().collect();
    check_free(tx, &row).await?;
    check_people(tx, act.org, &added).await?;
    match before {
        Some(before) if *before == row && members == known => return Ok((row, Effects::default())),
        Some(_) => store::scim::update_group(tx, &row).await?,
        None => store::scim::insert_group(tx, &row).await?,
    }
    for user in &added {
        store::scim::add_member(tx, act.org, row.id, *user).await?;
    }
    for user in &removed {
        store::scim::remove_member(tx, row.id, *user).await?;
    }
    let action = if before.is_some() { "scim.group_changed" } else { "scim.group_created" };
    let (name, more, less) = (&row.display_name, added.len(), removed.len());
    let detail = format!("{name}: members added {more}, removed {less}");
    let former = before.and_then(|before| state(before, known.len()));
    let event = act.event(action, row.id.to_string(), detail).with_change(former, state(&row, members.len()));
    store::quotas::insert_audit(tx, Some(act.org), &event).await?;
    let mut affected: BTreeSet<UserId> = added.into_iter().chain(removed).collect();
    let is_renamed = blank.display_name != row.display_name || blank.external_id != row.external_id;
    if is_renamed {
        // Another name may give all members another role.
        affected.extend(&members);
    }
    let effects = align_people(tx, act, ([blank, &row], &affected)).await?;
    Ok((row, effects))
}

async fn create(
    tx: &mut Tx<'_>,
    act: &Act,
    (id, change): (ScimGroupId, &GroupChange),
) -> Result<(StoredScimGroup, Effects), WriteError> {
    if store::scim::count_groups(tx, act.org).await? >= MAX_SCIM_GROUPS {
        return Err(too_many("1,000 groups of its provider").into());
    }
    let blank = StoredScimGroup {
        id,
        org_id: act.org,
        display_name: String::new(),
        external_id: None,
        created_at: act.now,
        updated_at: act.now,
    };
    put(tx, act, (None, &blank, change)).await
}

async fn change_row(
    tx: &mut Tx<'_>,
    act: &Act,
    (group, change): (ScimGroupId, &GroupChange),
) -> Result<(StoredScimGroup, Effects), WriteError> {
    let before = store::scim::find_group(tx, act.org, group).await?.ok_or_else(Problem::not_found)?;
    put(tx, act, (Some(&before), &before, change)).await
}

async fn delete(tx: &mut Tx<'_>, act: &Act, group: ScimGroupId) -> Result<Effects, WriteError> {
    let row = store::scim::find_group(tx, act.org, group).await?.ok_or_else(Problem::not_found)?;
    let members = list_member_ids(tx, group).await?;
    store::scim::delete_group(tx, group).await?;
    let event = act.event("scim.group_deleted", group.to_string(), row.display_name.clone());
    let event = event.with_change(state(&row, members.len()), None);
    store::quotas::insert_audit(tx, Some(act.org), &event).await?;
    align_people(tx, act, ([&row, &row], &members)).await
}

impl Scim {
    fn show_group(&self, row: StoredScimGroup, members: Option<Vec<(UserId, String)>>) -> ScimGroup {
        let reference =
            |(user, name): (UserId, String)| ScimReference { value: user.to_string(), display: name };
        ScimGroup {
            schemas: vec![GROUP_SCHEMA.to_owned()],
            id: row.id,
            external_id: row.external_id,
            display_name: row.display_name,
            members: members.map(|members| members.into_iter().map(reference).collect()),
            meta: ScimMeta {
                resource_type: "Group".to_owned(),
                created: row.created_at,
                last_modified: row.updated_at,
                location: format!("{}/Groups/{}", self.base_url(row.org_id), row.id),
            },
        }
    }

    async fn show_with_members(&self, row: StoredScimGroup) -> Result<ScimGroup, Problem> {
        let mut conn = self.context.db.read().await?;
        let members = store::scim::list_members(&mut conn.tx(), row.id).await?;
        Ok(self.show_group(row, Some(members)))
    }

    /// A part of the groups of the provider by their creation, or the one that matches a filter.
    ///
    /// # Errors
    /// 400 for another filter than those of the name and of the external id.
    pub async fn list_groups(
        &self,
        caller: &Caller,
        org: OrgId,
        (filter, start_index, count): (Option<&str>, Option<i64>, Option<i64>),
    ) -> Result<ScimList<ScimGroup>, Problem> {
        self.authorise(caller, org).await?;
        let window = Window::new(start_index, count);
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let (total, rows) = match filter {
            None => {
                let total = store::scim::count_groups(&mut tx, org).await?;
                (total, store::scim::list_groups(&mut tx, org, window.limits()).await?)
            }
            Some(text) => {
                let wanted = read_filter(text).ok_or_else(|| invalid_filter(FILTERS))?;
                let value = wanted.value.as_str();
                window.cut(match wanted.attribute.as_str() {
                    "displayname" => store::scim::find_group_by_name(&mut tx, org, value).await?,
                    "externalid" => store::scim::find_group_by_external_id(&mut tx, org, value).await?,
                    _ => return Err(invalid_filter(FILTERS)),
                })
            }
        };
        let resources: Vec<ScimGroup> = rows.into_iter().map(|row| self.show_group(row, None)).collect();
        Ok(ScimList {
            schemas: vec![LIST_MESSAGE.to_owned()],
            total_results: total,
            start_index: window.start,
            items_per_page: i64::try_from(resources.len()).unwrap_or(i64::MAX),
            resources,
        })
    }

    /// A group of the provider, without its members if `excludes_members`.
    ///
    /// # Errors
    /// 404 for an unknown group.
    pub async fn get_group(
        &self,
        caller: &Caller,
        (org, group): (OrgId, ScimGroupId),
        excludes_members: bool,
    ) -> Result<ScimGroup, Problem> {
        self.authorise(caller, org).await?;
        let mut conn = self.context.db.read().await?;
        let found = store::scim::find_group(&mut conn.tx(), org, group).await?;
        drop(conn);
        let row = found.ok_or_else(Problem::not_found)?;
        if excludes_members { Ok(self.show_group(row, None)) } else { self.show_with_members(row).await }
    }

    /// Creates a group.
    ///
    /// # Errors
    /// 400 for an invalid field or an unknown member. 409 for a known group, and without single sign-on.
    pub async fn create_group(
        &self,
        caller: &Caller,
        org: OrgId,
        input: &PutScimGroup,
    ) -> Result<ScimGroup, Problem> {
        self.authorise(caller, org).await?;
        let change = GroupChange::read_resource(input)?;
        let _turn = self.turns.wait(org).await?;
        let act = Act::new(&self.context, caller, org);
        let id: ScimGroupId = self.context.new_id(act.now);
        let done = self.context.db.try_write(move |tx| {
            let (act, change) = (act.clone(), change.clone());
            async move { create(tx, &act, (id, &change)).await }.boxed()
        });
        let (row, effects) = or_exists(done.await)?;
        effects.publish(&self.context, org);
        self.show_with_members(row).await
    }

    /// Replaces a group with its members.
    ///
    /// # Errors
    /// 400 for an invalid field or an unknown member. 404 for an unknown group. 409 for the name or the external id of
    /// another one.
    pub async fn replace_group(
        &self,
        caller: &Caller,
        (org, group): (OrgId, ScimGroupId),
        input: &PutScimGroup,
    ) -> Result<ScimGroup, Problem> {
        self.authorise(caller, org).await?;
        self.change_group(caller, (org, group), GroupChange::read_resource(input)?).await
    }

    /// Changes a group by operations.
    ///
    /// # Errors
    /// The same as those of a replacement, and 400 for an invalid operation.
    pub async fn patch_group(
        &self,
        caller: &Caller,
        (org, group): (OrgId, ScimGroupId),
        patch: &ScimPatch,
    ) -> Result<ScimGroup, Problem> {
        self.authorise(caller, org).await?;
        self.change_group(caller, (org, group), GroupChange::read_patch(patch)?).await
    }

    async fn change_group(
        &self,
        caller: &Caller,
        (org, group): (OrgId, ScimGroupId),
        change: GroupChange,
    ) -> Result<ScimGroup, Problem> {
        let _turn = self.turns.wait(org).await?;
        let act = Act::new(&self.context, caller, org);
        let done = self.context.db.try_write(move |tx| {
            let (act, change) = (act.clone(), change.clone());
            async move { change_row(tx, &act, (group, &change)).await }.boxed()
        });
        let (row, effects) = or_exists(done.await)?;
        effects.publish(&self.context, org);
        self.show_with_members(row).await
    }

    /// Deletes a group. Its members get the role of their other groups, or lose the membership without one.
    ///
    /// # Errors
    /// 404 for an unknown group.
    pub async fn delete_group(&self, caller: &Caller, org: OrgId, group: ScimGroupId) -> Result<(), Problem> {
        self.authorise(caller, org).await?;
        let _turn = self.turns.wait(org).await?;
        let act = Act::new(&self.context, caller, org);
        let done = self.context.db.try_write(move |tx| {
            let act = act.clone();
            async move { delete(tx, &act, group).await }.boxed()
        });
        done.await?.publish(&self.context, org);
        Ok(())
    }
}

/// The result of a write. Another request with the same name was first if the row exists.
fn or_exists<T>(done: Result<T, WriteError>) -> Result<T, Problem> {
    match done {
        Err(WriteError::Store(StoreError::Duplicate)) => Err(group_exists()),
        other => Ok(other?),
    }
}
