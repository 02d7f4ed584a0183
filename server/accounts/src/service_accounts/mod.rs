//! Service accounts: accounts of an organization for programs.
//!
//! A service account has a role and tokens. It has no password, no mail address and no membership, so sign-ins, mails,
//! second factors and lists of people have nothing to do with it. It stays when its creator leaves.

pub mod routes;

use berth_core::admission::check_name;
use berth_foundation::{Caller, Change, Context, Right, idempotency};
use berth_store as store;
use berth_types::Page;
use berth_types::accounts::Role;
use berth_types::ids::{OrgId, UserId};
use berth_types::lists::ListOptions;
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::AuditEvent;
use berth_types::service_accounts::{
    MAX_SERVICE_ACCOUNTS, NewServiceAccount, PatchServiceAccount, ServiceAccount,
};
use futures::FutureExt;

use crate::members::recheck_manage_right;

/// The service accounts of organizations.
#[derive(Clone)]
pub struct ServiceAccounts {
    context: Context,
}

impl ServiceAccounts {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// A page of the service accounts of an organization by their creation.
    pub async fn list_accounts(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<UserId>,
    ) -> Result<Page<ServiceAccount>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::service_accounts::list(&mut conn.tx(), org, options).await?;
        Ok(options.page(rows, |account| account.id))
    }

    /// Creates a service account.
    ///
    /// # Errors
    /// 403 for others than owners, and without a fresh proof. 422 for an invalid name, for the role `owner`, and for
    /// more than [`MAX_SERVICE_ACCOUNTS`].
    pub async fn create_account(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewServiceAccount,
    ) -> Result<ServiceAccount, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        self.context.check_proof(caller)?;
        if let Some(id) = caller.already_created() {
            let id: UserId = id.parse().map_err(|_| Problem::not_found())?;
            let mut conn = self.context.db.read().await?;
            let found = store::service_accounts::find(&mut conn.tx(), org, id).await?;
            return found.ok_or_else(Problem::not_found);
        }
        let mut errors = Vec::new();
        check_name("/name", &input.name, &mut errors);
        if input.role == Role::Owner {
            let detail = "A service account is no owner. Choose billing, member or viewer.";
            errors.push(FieldError::new("/role", detail));
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let account = ServiceAccount {
            id: self.context.new_id(now),
            name: input.name.trim().to_owned(),
            role: input.role,
            created_by: caller.user.name.clone(),
            created_at: now,
            disabled_at: None,
            tokens: 0,
        };
        let detail = format!("{} with the role {}", account.name, account.role.name());
        let action = "service_account.created";
        let event = self.context.audit_event(caller, action, account.id.to_string(), detail);
        let (by, key, new) = (caller.user.id, caller.idempotency_key.clone(), account.clone());
        let done = self.context.db.try_write(move |tx| {
            let (new, key, event) = (new.clone(), key.clone(), event.clone());
            async move {
                recheck_manage_right(tx, org, by).await?;
                if store::service_accounts::count(tx, org).await? >= MAX_SERVICE_ACCOUNTS {
                    let detail =
                        format!("An organization has at most {MAX_SERVICE_ACCOUNTS} service accounts.");
                    return Err(Problem::invalid_field("/name", detail).into());
                }
                idempotency::claim(tx, key.as_ref(), &new.id.to_string(), now).await?;
                store::service_accounts::insert(tx, org, &new).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        Ok(account)
    }

    /// Disables or enables a service account. The tokens of a disabled account are refused and its streams end; its
    /// jobs continue.
    ///
    /// # Errors
    /// 403 for others than owners, and without a fresh proof. 404 for an unknown account.
    pub async fn change_account(
        &self,
        caller: &Caller,
        org: OrgId,
        account: UserId,
        input: PatchServiceAccount,
    ) -> Result<ServiceAccount, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        self.context.check_proof(caller)?;
        let action = if input.disabled { "service_account.disabled" } else { "service_account.enabled" };
        let event = self.context.audit_event(caller, action, account.to_string(), String::new());
        let (by, now) = (caller.user.id, event.at);
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                recheck_manage_right(tx, org, by).await?;
                let Some(before) = store::service_accounts::find(tx, org, account).await? else {
                    return Err(Problem::not_found().into());
                };
                if before.disabled_at.is_some() == input.disabled {
                    return Ok((before, Vec::new()));
                }
                let disabled_at = input.disabled.then_some(now);
                store::service_accounts::set_disabled(tx, account, disabled_at).await?;
                let event = AuditEvent { detail: before.name.clone(), ..event };
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                // The tokens stay for an enabled account; their streams end now.
                let tokens = store::people::list_token_ids(tx, account).await?;
                Ok((ServiceAccount { disabled_at, ..before }, tokens))
            }
            .boxed()
        });
        let (changed, tokens) = done.await?;
        if changed.disabled_at.is_some() {
            tokens.into_iter().for_each(|token| self.context.publish(Change::TokenRevoked(token)));
        }
        Ok(changed)
    }

    /// Deletes a service account with its tokens. Its jobs continue and keep its name.
    ///
    /// # Errors
    /// 403 for others than owners. 404 for an unknown account.
    pub async fn delete_account(&self, caller: &Caller, org: OrgId, account: UserId) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let action = "service_account.deleted";
        let event = self.context.audit_event(caller, action, account.to_string(), String::new());
        let (by, now) = (caller.user.id, event.at);
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                recheck_manage_right(tx, org, by).await?;
                let Some(before) = store::service_accounts::find(tx, org, account).await? else {
                    return Err(Problem::not_found().into());
                };
                let tokens = store::service_accounts::delete(tx, account, now).await?;
                let detail = format!("{}; also revoked: tokens {}", before.name, tokens.len());
                store::quotas::insert_audit(tx, Some(org), &AuditEvent { detail, ..event }).await?;
                Ok(tokens)
            }
            .boxed()
        });
        for token in done.await? {
            self.context.publish(Change::TokenRevoked(token));
        }
        Ok(())
    }
}
