//! The people of a provider.

use berth_foundation::Caller;
use berth_oidc::domain_of;
use berth_sso::membership::NO_PASSWORD;
use berth_store::scim::{StoredScimGroup, StoredScimUser};
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::accounts::User;
use berth_types::ids::{OrgId, UserId};
use berth_types::problems::Problem;
use berth_types::scim::{
    LIST_MESSAGE, MAX_SCIM_USERS, PutScimUser, ScimEmail, ScimFlag, ScimList, ScimMeta, ScimName, ScimPatch,
    ScimReference, ScimUser, USER_SCHEMA,
};
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde_json::json;

use crate::Scim;
use crate::act::{Act, Effects};
use crate::filter::{Window, read_filter};
use crate::membership::{Cause, align};
use crate::refusals::{account_refused, invalid_filter, too_many, unproved_domain, user_exists};
use crate::user_change::UserChange;

/// The readable filters of people.
const FILTERS: &str = "userName eq \"NAME\" or externalId eq \"ID\"";

/// The state of a person in audit events.
fn state(row: &StoredScimUser) -> Option<String> {
    let state = json!({
        "user_name": row.user_name, "external_id": row.external_id, "display_name": row.display_name,
        "given_name": row.given_name, "family_name": row.family_name, "active": row.active,
    });
    Some(state.to_string())
}

/// Refuses the name and the external id of another person.
async fn check_free(tx: &mut Tx<'_>, row: &StoredScimUser) -> Result<(), WriteError> {
    let is_other = |found: Option<StoredScimUser>| found.is_some_and(|found| found.user_id != row.user_id);
    let mut taken = is_other(store::scim::find_user_by_name(tx, row.org_id, &row.user_name).await?);
    if let Some(id) = &row.external_id {
        taken |= is_other(store::scim::find_user_by_external_id(tx, row.org_id, id).await?);
    }
    if taken { Err(user_exists().into()) } else { Ok(()) }
}

/// Finds the account with an address, if the provider may decide about it.
async fn find_account(tx: &mut Tx<'_>, act: &Act, email: &str) -> Result<Option<User>, WriteError> {
    if store::sso::find_domain_org(tx, &domain_of(email)).await? != Some(act.org) {
        return Err(unproved_domain().into());
    }
    let Some((id, password_hash)) = store::accounts::find_login(tx, email).await? else { return Ok(None) };
    let user = store::accounts::find_user(tx, id).await?.ok_or(StoreError::Unknown)?;
    let is_disabled = store::people::find_disabled_reason(tx, id).await?.is_some();
    let is_member = store::accounts::find_role(tx, act.org, id).await?.is_some();
    let is_own = password_hash != NO_PASSWORD || store::factors::has_factor(tx, id).await?;
    if user.operator || is_disabled || (is_own && !is_member) {
        return Err(account_refused().into());
    }
    Ok(Some(user))
}

/// A new person without names.
fn blank_person(org: OrgId, user: UserId, email: String, now: Timestamp) -> StoredScimUser {
    StoredScimUser {
        user_id: user,
        org_id: org,
        user_name: String::new(),
        external_id: None,
        display_name: String::new(),
        given_name: String::new(),
        family_name: String::new(),
        active: true,
        created_at: now,
        updated_at: now,
        email,
    }
}

/// Creates a person, and the account and the membership unless they exist.
async fn create(
    tx: &mut Tx<'_>,
    act: &Act,
    (new_id, change): (UserId, &UserChange),
) -> Result<(StoredScimUser, Effects), WriteError> {
    let org = act.org;
    if store::scim::count_users(tx, org).await? >= MAX_SCIM_USERS {
        return Err(too_many("10,000 people of its provider").into());
    }
    let email = change.address()?;
    let known = find_account(tx, act, &email).await?;
    let user_id = known.as_ref().map_or(new_id, |user| user.id);
    if store::scim::find_user(tx, org, user_id).await?.is_some() {
        return Err(user_exists().into());
    }
    let row = change.apply(&blank_person(org, user_id, email, act.now), act.now)?;
    check_free(tx, &row).await?;
    if known.is_none() {
        let (email, name) = (row.email.clone(), row.display_name.clone());
        let user = User { id: user_id, email, name, operator: false };
        store::accounts::insert_user(tx, &user, NO_PASSWORD, act.now).await?;
        let event = act.event("user.signed_up", user_id.to_string(), format!("{}, by SCIM", user.email));
        store::quotas::insert_audit(tx, Some(org), &event).await?;
    }
    store::scim::insert_user(tx, &row).await?;
    let event = act.event("scim.user_created", user_id.to_string(), row.email.clone());
    store::quotas::insert_audit(tx, Some(org), &event.with_change(None, state(&row))).await?;
    let mut effects = Effects::default();
    align(tx, act, (&row, Cause::Person), &mut effects).await?;
    effects.end_excluded(tx, org).await?;
    Ok((row, effects))
}

/// Changes a person. The membership follows if the change names `active`.
async fn change_row(
    tx: &mut Tx<'_>,
    act: &Act,
    (user, change): (UserId, &UserChange),
) -> Result<(StoredScimUser, Effects), WriteError> {
    let before = store::scim::find_user(tx, act.org, user).await?.ok_or_else(Problem::not_found)?;
    let row = change.apply(&before, act.now)?;
    check_free(tx, &row).await?;
    if row != before {
        store::scim::update_user(tx, &row).await?;
        let event = act.event("scim.user_changed", user.to_string(), row.email.clone());
        let event = event.with_change(state(&before), state(&row));
        store::quotas::insert_audit(tx, Some(act.org), &event).await?;
    }
    if row.display_name != before.display_name {
        store::scim::rename_account(tx, user, &row.display_name).await?;
    }
    let mut effects = Effects::default();
    if change.active.is_some() {
        align(tx, act, (&row, Cause::Person), &mut effects).await?;
        effects.end_excluded(tx, act.org).await?;
    }
    Ok((row, effects))
}

/// Deletes a person with the membership. The account stays.
async fn delete(tx: &mut Tx<'_>, act: &Act, user: UserId) -> Result<Effects, WriteError> {
    let row = store::scim::find_user(tx, act.org, user).await?.ok_or_else(Problem::not_found)?;
    let ended = StoredScimUser { active: false, ..row.clone() };
    let mut effects = Effects::default();
    align(tx, act, (&ended, Cause::Person), &mut effects).await?;
    store::scim::delete_user(tx, act.org, user).await?;
    let event = act.event("scim.user_deleted", user.to_string(), row.email.clone());
    store::quotas::insert_audit(tx, Some(act.org), &event.with_change(state(&row), None)).await?;
    Ok(effects)
}

impl Scim {
    fn show_user(&self, row: StoredScimUser, groups: Option<Vec<StoredScimGroup>>) -> ScimUser {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let reference = |group: StoredScimGroup| ScimReference {
            value: group.id.to_string(),
            display: group.display_name,
        };
        ScimUser {
            schemas: vec![USER_SCHEMA.to_owned()],
            id: row.user_id,
            external_id: row.external_id,
            user_name: row.user_name,
            name: ScimName {
                formatted: Some(row.display_name.clone()),
                given_name: some(row.given_name),
                family_name: some(row.family_name),
            },
            display_name: row.display_name,
            emails: vec![ScimEmail {
                value: Some(row.email),
                kind: Some("work".to_owned()),
                primary: Some(ScimFlag::Flag(true)),
            }],
            active: row.active,
            groups: groups.map(|groups| groups.into_iter().map(reference).collect()),
            meta: ScimMeta {
                resource_type: "User".to_owned(),
                created: row.created_at,
                last_modified: row.updated_at,
                location: format!("{}/Users/{}", self.base_url(row.org_id), row.user_id),
            },
        }
    }

    async fn show_with_groups(&self, row: StoredScimUser) -> Result<ScimUser, Problem> {
        let mut conn = self.context.db.read().await?;
        let groups = store::scim::list_user_groups(&mut conn.tx(), row.org_id, row.user_id).await?;
        Ok(self.show_user(row, Some(groups)))
    }

    /// A part of the people of the provider by their accounts' creation, or the one that matches a filter.
    ///
    /// # Errors
    /// 400 for another filter than those of the user name and of the external id.
    pub async fn list_users(
        &self,
        caller: &Caller,
        org: OrgId,
        (filter, start_index, count): (Option<&str>, Option<i64>, Option<i64>),
    ) -> Result<ScimList<ScimUser>, Problem> {
        self.authorise(caller, org).await?;
        let window = Window::new(start_index, count);
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let (total, rows) = match filter {
            None => {
                let total = store::scim::count_users(&mut tx, org).await?;
                (total, store::scim::list_users(&mut tx, org, window.limits()).await?)
            }
            Some(text) => {
                let wanted = read_filter(text).ok_or_else(|| invalid_filter(FILTERS))?;
                let value = wanted.value.as_str();
                window.cut(match wanted.attribute.as_str() {
                    "username" => store::scim::find_user_by_name(&mut tx, org, value).await?,
                    "externalid" => store::scim::find_user_by_external_id(&mut tx, org, value).await?,
                    _ => return Err(invalid_filter(FILTERS)),
                })
            }
        };
        let resources: Vec<ScimUser> = rows.into_iter().map(|row| self.show_user(row, None)).collect();
        Ok(ScimList {
            schemas: vec![LIST_MESSAGE.to_owned()],
            total_results: total,
            start_index: window.start,
            items_per_page: i64::try_from(resources.len()).unwrap_or(i64::MAX),
            resources,
        })
    }

    /// A person of the provider.
    ///
    /// # Errors
    /// 404 for an unknown person.
    pub async fn get_user(&self, caller: &Caller, org: OrgId, user: UserId) -> Result<ScimUser, Problem> {
        self.authorise(caller, org).await?;
        let mut conn = self.context.db.read().await?;
        let found = store::scim::find_user(&mut conn.tx(), org, user).await?;
        drop(conn);
        self.show_with_groups(found.ok_or_else(Problem::not_found)?).await
    }

    /// Creates a person, and the account and the membership unless they exist.
    ///
    /// # Errors
    /// 400 for an invalid field, and for a domain that is not confirmed. 409 for a known person, for an account that the
    /// provider does not decide about, and without single sign-on.
    pub async fn create_user(
        &self,
        caller: &Caller,
        org: OrgId,
        input: &PutScimUser,
    ) -> Result<ScimUser, Problem> {
        self.authorise(caller, org).await?;
        let change = UserChange::read_resource(input)?;
        let act = Act::new(&self.context, caller, org);
        let new_id: UserId = self.context.new_id(act.now);
        let done = self.context.db.try_write(move |tx| {
            let (act, change) = (act.clone(), change.clone());
            async move { create(tx, &act, (new_id, &change)).await }.boxed()
        });
        let (row, effects) = or_exists(done.await)?;
        effects.publish(&self.context, org);
        self.show_with_groups(row).await
    }

    /// Replaces a person.
    ///
    /// # Errors
    /// 400 for an invalid field or another address. 404 for an unknown person. 409 for the name or the external id of
    /// another one, and for the last owner.
    pub async fn replace_user(
        &self,
        caller: &Caller,
        (org, user): (OrgId, UserId),
        input: &PutScimUser,
    ) -> Result<ScimUser, Problem> {
        self.authorise(caller, org).await?;
        self.change_user(caller, (org, user), UserChange::read_resource(input)?).await
    }

    /// Changes a person by operations.
    ///
    /// # Errors
    /// The same as those of a replacement, and 400 for an invalid operation.
    pub async fn patch_user(
        &self,
        caller: &Caller,
        (org, user): (OrgId, UserId),
        patch: &ScimPatch,
    ) -> Result<ScimUser, Problem> {
        self.authorise(caller, org).await?;
        self.change_user(caller, (org, user), UserChange::read_patch(patch)?).await
    }

    async fn change_user(
        &self,
        caller: &Caller,
        (org, user): (OrgId, UserId),
        change: UserChange,
    ) -> Result<ScimUser, Problem> {
        let act = Act::new(&self.context, caller, org);
        let done = self.context.db.try_write(move |tx| {
            let (act, change) = (act.clone(), change.clone());
            async move { change_row(tx, &act, (user, &change)).await }.boxed()
        });
        let (row, effects) = or_exists(done.await)?;
        effects.publish(&self.context, org);
        self.show_with_groups(row).await
    }

    /// Deletes a person and the membership. The account stays.
    ///
    /// # Errors
    /// 404 for an unknown person. 409 for the last owner.
    pub async fn delete_user(&self, caller: &Caller, org: OrgId, user: UserId) -> Result<(), Problem> {
        self.authorise(caller, org).await?;
        let act = Act::new(&self.context, caller, org);
        let done = self.context.db.try_write(move |tx| {
            let act = act.clone();
            async move { delete(tx, &act, user).await }.boxed()
        });
        done.await?.publish(&self.context, org);
        Ok(())
    }
}

/// The result of a write. Another request with the same name was first if the row exists.
fn or_exists<T>(done: Result<T, WriteError>) -> Result<T, Problem> {
    match done {
        Err(WriteError::Store(StoreError::Duplicate)) => Err(user_exists()),
        other => Ok(other?),
    }
}
