//! The accounts of all people, for operators.

pub mod routes;

use berth_foundation::{Caller, Change, Context, Gate, OperatorAct, SessionKey};
use berth_store::people::LinkPurpose;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::Page;
use berth_types::change_requests::{ChangeAction, Outcome};
use berth_types::ids::{ChangeRequestId, UserId};
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRight;
use berth_types::people::{DisableUser, Person};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use crate::accounts::Accounts;
use crate::factors::no_second_factor;
use crate::link_mails::{FactorChange, start_factor_notice};
use crate::mails::Mails;
use crate::operators::{check_other_owner, operator_act};
use crate::reasons::check_reason;
use crate::webhook_heirs::pass_on_webhooks;

/// [`pass_on_webhooks`] in each organization of a user.
async fn pass_on_in_all(
    tx: &mut Tx<'_>,
    context: &Context,
    user: UserId,
    act: &AuditEvent,
) -> Result<(), StoreError> {
    for membership in store::accounts::list_memberships(tx, user).await? {
        pass_on_webhooks(tx, context, (membership.org.id, user), act).await?;
    }
    Ok(())
}

/// The accounts of all people.
#[derive(Clone)]
pub struct Users {
    context: Context,
    mails: Mails,
}

/// Removes the second factors of a user and ends all sessions of the user. Returns the hashes of their cookies.
async fn remove_factors(tx: &mut Tx<'_>, user: UserId, event: AuditEvent) -> Result<Vec<String>, WriteError> {
    if !store::factors::has_factor(tx, user).await? {
        return Err(no_second_factor().into());
    }
    store::factors::delete_totp(tx, user).await?;
    store::passkeys::delete_all(tx, user).await?;
    store::factors::replace_recovery_codes(tx, user, &[]).await?;
    let ended = store::people::end_sessions(tx, user, "").await?;
    let detail = format!("{}sessions ended: {}", event.detail, ended.len());
    store::quotas::insert_audit(tx, None, &AuditEvent { detail, ..event }).await?;
    Ok(ended)
}

/// The enabling of an account as an act that needs a second operator. `None` for the account of a person who is no
/// operator, and for an enabled one, unless a change request is approved.
async fn enabling_act(
    tx: &mut Tx<'_>,
    user: UserId,
    is_approval: bool,
) -> Result<Option<OperatorAct>, StoreError> {
    let operator = store::operators::find(tx, user).await?;
    let disabled = store::people::find_disabled_reason(tx, user).await?;
    let detail = match (operator, disabled) {
        (Some(operator), Some(reason)) => {
            format!("{}: {}; disabled: {reason}", operator.email, operator.role.name())
        }
        _ if is_approval => "the account is enabled, or is no operator's".to_owned(),
        _ => return Ok(None),
    };
    Ok(Some(operator_act(ChangeAction::EnableOperator, user, "", detail)))
}

impl Users {
    pub fn new(accounts: &Accounts) -> Self {
        Self { context: accounts.context.clone(), mails: accounts.mails.clone() }
    }

    /// Checks the right to change the account of a person. Only owners change accounts of operators, since a change
    /// could lead to the rights of the operator.
    ///
    /// # Errors
    /// 404 for everyone but operators. 403 for a role without the right, and without a fresh proof.
    async fn authorise_change(&self, caller: &Caller, user: UserId) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageOrgs).await?;
        let mut conn = self.context.db.read().await?;
        let role = store::operators::find_role(&mut conn.tx(), user).await?;
        drop(conn);
        if role.is_some() && user != caller.user.id {
            self.context.authorise_operator(caller, OperatorRight::ManagePortal).await?;
        }
        self.context.check_proof(caller)
    }

    /// A page of all users by their creation. With `text` only users with this text in their name or address.
    ///
    /// # Errors
    /// 404 for everyone but operators.
    pub async fn list_people(
        &self,
        caller: &Caller,
        text: &str,
        options: &ListOptions<UserId>,
    ) -> Result<Page<Person>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::Inspect).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::people::list_people(&mut conn.tx(), text.trim(), options).await?;
        Ok(options.page(rows, |person| person.user.id))
    }

    /// Disables an account: its sessions, streams, terminals and ports end, its tokens and its password are refused.
    /// Jobs continue. Its webhooks pass to owners of their organizations. A repeated request changes the reason.
    ///
    /// # Errors
    /// 403 without a fresh proof, and for the account of an operator if the caller is no owner. 404 if there is no such
    /// account. 409 for the caller's own account and for the last owner of the portal. 422 for an invalid reason.
    pub async fn disable(
        &self,
        caller: &Caller,
        user: UserId,
        input: DisableUser,
    ) -> Result<Person, Problem> {
        self.authorise_change(caller, user).await?;
        let reason = check_reason(&input.reason)?;
        if user == caller.user.id {
            return Err(Problem::conflict(
                "account.operator",
                "Operator's account",
                "You cannot disable your own account, because the portal needs its operator. Nothing was changed.",
            ));
        }
        let event = self.context.audit_event(caller, "account.disabled", user.to_string(), reason.clone());
        let now = event.at;
        let context = self.context.clone();
        let done = self.context.db.try_write(move |tx| {
            let (context, reason, event) = (context.clone(), reason.clone(), event.clone());
            async move {
                check_other_owner(tx, user).await?;
                let is_repeated = store::people::find_disabled_reason(tx, user).await?.is_some();
                if !store::people::disable(tx, user, &reason, now).await? {
                    return Err(Problem::not_found().into());
                }
                let sessions = store::people::end_sessions(tx, user, "").await?;
                store::people::delete_links(tx, LinkPurpose::PasswordReset, user).await?;
                // The last grant stays while it shows the end of API tokens, and is not refreshed before the enabling.
                store::sso::forget_grants(tx).await?;
                let tokens = store::people::list_token_ids(tx, user).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                if !is_repeated {
                    pass_on_in_all(tx, &context, user, &event).await?;
                }
                let person = store::people::find_person(tx, user).await?.ok_or_else(Problem::not_found)?;
                Ok((person, sessions, tokens))
            }
            .boxed()
        });
        let (person, sessions, tokens) = done.await?;
        for hash in &sessions {
            self.context.publish(Change::SignedOut(SessionKey::from_hash(hash)));
        }
        // The tokens stay for an enabled account; their streams end now.
        tokens.into_iter().for_each(|token| self.context.publish(Change::TokenRevoked(token)));
        Ok(person)
    }

    /// Enables an account. The person signs in again; tokens are valid again. Webhooks that stopped without an owner
    /// go on if the person is an owner. With the rule for a second operator the account of an operator waits for an
    /// approval; `approved` is the change request that the caller approves.
    ///
    /// # Errors
    /// 403 without a fresh proof. 404 if there is no such account. An account that is not disabled is no error. The
    /// refusals of [`Gate::pass`].
    pub async fn enable(
        &self,
        caller: &Caller,
        user: UserId,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Person>, Problem> {
        self.authorise_change(caller, user).await?;
        let gate = Gate::new(&self.context, caller, approved, &())?;
        let event = self.context.audit_event(caller, "account.enabled", user.to_string(), String::new());
        let context = self.context.clone();
        let done = self.context.db.try_write(move |tx| {
            let (context, event, gate) = (context.clone(), event.clone(), gate.clone());
            async move {
                if let Some(act) = enabling_act(tx, user, approved.is_some()).await?
                    && let Some(request) = gate.pass(tx, &act).await?
                {
                    return Ok(Outcome::Requested(request));
                }
                if store::people::enable(tx, user).await? {
                    store::quotas::insert_audit(tx, None, &event).await?;
                    pass_on_in_all(tx, &context, user, &event).await?;
                }
                let person = store::people::find_person(tx, user).await?;
                Ok(Outcome::Done(person.ok_or_else(Problem::not_found)?))
            }
            .boxed()
        });
        Ok(done.await?)
    }

    /// Removes the second factors of a person who lost them and the recovery codes, and ends the sessions of the
    /// person. The password alone signs in afterwards.
    ///
    /// # Errors
    /// 403 without a fresh proof. 404 if there is no such account. 409 without a second factor.
    pub async fn remove_factors(&self, caller: &Caller, user: UserId) -> Result<Person, Problem> {
        self.authorise_change(caller, user).await?;
        let event = self.context.audit_event(caller, "factor.removed", user.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                if store::people::find_person(tx, user).await?.is_none() {
                    return Err(Problem::not_found().into());
                }
                let sessions = remove_factors(tx, user, event).await?;
                let person = store::people::find_person(tx, user).await?.ok_or_else(Problem::not_found)?;
                Ok((person, sessions))
            }
            .boxed()
        });
        let (person, sessions) = done.await?;
        for hash in &sessions {
            self.context.publish(Change::SignedOut(SessionKey::from_hash(hash)));
        }
        let change = FactorChange::RemovedByOperator;
        start_factor_notice(&self.context, &self.mails, person.user.clone(), change);
        Ok(person)
    }

    /// Removes the second factor of the account with an address, for the command of the program. No mail is sent.
    ///
    /// # Errors
    /// No account has the address, or it has no second factor.
    pub async fn remove_factors_by_command(&self, email: &str) -> Result<(), String> {
        let email = email.trim().to_lowercase();
        let event = self.context.visitor_event("factor.removed", String::new(), "by a command; ".to_owned());
        let done = self.context.db.try_write(move |tx| {
            let (email, event) = (email.clone(), event.clone());
            async move {
                let login = store::accounts::find_login(tx, &email).await?;
                let (user, _) = login.ok_or_else(Problem::not_found)?;
                let event = AuditEvent { actor: "The portal".to_owned(), subject: user.to_string(), ..event };
                remove_factors(tx, user, event).await.map(drop)
            }
            .boxed()
        });
        match done.await {
            Ok(()) => Ok(()),
            Err(WriteError::Refused(problem)) if problem.status == 404 => {
                Err("no account has this address; nothing was changed".to_owned())
            }
            Err(WriteError::Refused(_)) => {
                Err("the account has no second factor; nothing was changed".to_owned())
            }
            Err(WriteError::Store(error)) => Err(error.to_string()),
        }
    }
}
