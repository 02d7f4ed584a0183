//! The operators and their roles. Only owners change operators, and the portal always keeps an owner.
//!
//! Each request reads the role, so a new role holds from the next request on. A change ends open streams, terminals and
//! ports of the operator; they connect again with the new role. With the rule for a second operator a change that gives
//! a right waits for the approval of another owner.

mod change_mails;
pub mod routes;

use berth_core::admission::is_email;
use berth_foundation::credentials::fingerprint;
use berth_foundation::{Caller, Change, Context, Gate, OperatorAct, SessionKey, recheck_operator_right};
use berth_store::{self as store, Tx, WriteError};
use berth_types::Page;
use berth_types::change_requests::{ChangeAction, ChangePolicy, Outcome};
use berth_types::ids::{ChangeRequestId, UserId};
use berth_types::lists::ListOptions;
use berth_types::operators::{
    ChangeOperator, NewOperator, Operator, OperatorRight, OperatorRole, RemoveOperator,
};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use futures::FutureExt;
use serde_json::json;

use crate::accounts::{Accounts, INVALID_EMAIL, MAX_EMAIL_BYTES};
use crate::grants::{end_without_provider, publish_ended};
use crate::mails::Mails;
use crate::reasons::check_reason;

/// The fewest active owners under the rule for a second operator: one asks, and one approves.
const MIN_OWNERS: i64 = 2;

fn last_owner() -> Problem {
    Problem::conflict(
        "operators.last_owner",
        "Owner required",
        "This operator is the only active owner of the portal. Nothing was changed. Make another operator an owner first.",
    )
}

fn last_approver() -> Problem {
    Problem::conflict(
        "operators.last_owner",
        "Owner required",
        "One active owner would be left, and nobody could approve a change request of an owner. Nothing was changed. Make another operator an owner first, or end the rule for a second operator. An owner can disable the account of another one at once.",
    )
}

fn no_candidate() -> Problem {
    Problem::conflict(
        "operators.account",
        "Account cannot be an operator's",
        "An operator needs an enabled account with a verified address and a password, and has one role. Nothing was changed. Check the account on the page People.",
    )
}

/// The state of an operator in audit events.
fn role_state(role: OperatorRole) -> Option<String> {
    Some(json!({ "role": role.name() }).to_string())
}

/// A change of an operator that needs a second operator. `detail` begins with the address of the person.
pub(crate) fn operator_act(action: ChangeAction, user: UserId, reason: &str, detail: String) -> OperatorAct {
    OperatorAct {
        action,
        org: None,
        target: user.to_string(),
        amount_micros: None,
        reason: reason.to_owned(),
        detail,
    }
}

/// Refuses an end of this user's access if the portal would have no active owner any more.
///
/// # Errors
/// 409 for the only active owner.
pub(crate) async fn check_other_owner(tx: &mut Tx<'_>, user: UserId) -> Result<(), WriteError> {
    let role = store::operators::find_role(tx, user).await?;
    if role == Some(OperatorRole::Owner) && store::operators::count_other_owners(tx, user).await? == 0 {
        return Err(last_owner().into());
    }
    Ok(())
}

/// Refuses the end of this user's rights as an owner if the portal would have no active owner any more, or, with the rule
/// for a second operator, one: nobody could approve a new owner or the end of the rule.
async fn check_approver(tx: &mut Tx<'_>, user: UserId) -> Result<(), WriteError> {
    check_other_owner(tx, user).await?;
    let is_active = store::operators::find_enabled_role(tx, user).await? == Some(OperatorRole::Owner);
    if is_active
        && store::change_requests::policy(tx).await?.second_operator
        && store::operators::count_other_owners(tx, user).await? < MIN_OWNERS
    {
        return Err(last_approver().into());
    }
    Ok(())
}

/// The operators.
#[derive(Clone)]
pub struct Operators {
    context: Context,
    mails: Mails,
}

impl Operators {
    pub fn new(accounts: &Accounts) -> Self {
        Self { context: accounts.context.clone(), mails: accounts.mails.clone() }
    }

    /// A page of the operators by the creation of their accounts.
    ///
    /// # Errors
    /// 404 for everyone but operators. 403 for a role that does not read people.
    pub async fn list_operators(
        &self,
        caller: &Caller,
        options: &ListOptions<UserId>,
    ) -> Result<Page<Operator>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::Inspect).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::operators::list(&mut conn.tx(), options).await?;
        Ok(options.page(rows, |operator| operator.user))
    }

    /// Makes the person with an address an operator. The sessions of the person end, since a sign-in of an operator can
    /// need a second factor and never the provider of an organization. A repeated request with the same role changes
    /// nothing. `approved` is the change request that the caller approves.
    ///
    /// # Errors
    /// 403 without a fresh proof. 409 for an account that cannot be an operator's, or has another role. 422 for an
    /// address without an account, and for an invalid reason. The refusals of [`Gate::pass`].
    pub async fn add(
        &self,
        caller: &Caller,
        input: NewOperator,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Operator>, Problem> {
        self.authorise_change(caller).await?;
        if let Some(request) = Gate::find_requested(&self.context, caller).await? {
            return Ok(Outcome::Requested(request));
        }
        let gate = Gate::new(&self.context, caller, approved, &input)?;
        let email = input.email.trim().to_lowercase();
        if input.email.len() > MAX_EMAIL_BYTES || !is_email(&email) {
            return Err(Problem::invalid_field("/email", INVALID_EMAIL));
        }
        let (reason, role, by) = (check_reason(&input.reason)?, input.role, caller.user.id);
        let detail = format!("{email}: {}; {reason}", role.name());
        let event = self.context.audit_event(caller, "operator.added", String::new(), detail);
        let done = self.context.db.try_write(move |tx| {
            let (email, reason, event, gate) = (email.clone(), reason.clone(), event.clone(), gate.clone());
            async move {
                recheck_operator_right(tx, by, OperatorRight::ManagePortal).await?;
                let Some((user, _)) = store::accounts::find_login(tx, &email).await? else {
                    let detail = "No account has this address. The person signs up first.";
                    return Err(Problem::invalid_field("/email", detail).into());
                };
                if let Some(present) = store::operators::find(tx, user).await? {
                    // An approval always makes an operator.
                    let same = present.role == role && approved.is_none();
                    let done = (Outcome::Done(present), Vec::new());
                    return if same { Ok(done) } else { Err(no_candidate().into()) };
                }
                if !store::operators::can_become_one(tx, user).await? {
                    return Err(no_candidate().into());
                }
                let act = operator_act(ChangeAction::AddOperator, user, &reason, event.detail.clone());
                if let Some(request) = gate.pass(tx, &act).await? {
                    return Ok((Outcome::Requested(request), Vec::new()));
                }
                store::operators::put_role(tx, user, Some(role)).await?;
                store::operators::forget_former(tx, &fingerprint(&email)).await?;
                let sessions = store::people::end_sessions(tx, user, "").await?;
                store::sso::forget_grants(tx).await?;
                let event = AuditEvent { subject: user.to_string(), ..event };
                let event = event.with_change(None, role_state(role));
                store::quotas::insert_audit(tx, None, &event).await?;
                let added = store::operators::find(tx, user).await?.ok_or_else(Problem::not_found)?;
                Ok((Outcome::Done(added), sessions))
            }
            .boxed()
        });
        let (outcome, sessions) = done.await?;
        for hash in &sessions {
            self.context.publish(Change::SignedOut(SessionKey::from_hash(hash)));
        }
        Ok(outcome)
    }

    /// Changes the role of an operator. Sessions and tokens stay, with the new role. A lower role counts at once, also
    /// with the rule for a second operator. `approved` is the change request that the caller approves.
    ///
    /// # Errors
    /// 403 without a fresh proof. 404 if the user is no operator. 409 for the only active owner, and for one of two with
    /// the rule for a second operator. 422 for an invalid reason. The refusals of [`Gate::pass`].
    pub async fn change(
        &self,
        caller: &Caller,
        user: UserId,
        input: ChangeOperator,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Operator>, Problem> {
        self.authorise_change(caller).await?;
        let gate = Gate::new(&self.context, caller, approved, &input)?;
        let (reason, to, by) = (check_reason(&input.reason)?, input.role, caller.user.id);
        let event = self.context.audit_event(caller, "operator.role_changed", user.to_string(), reason);
        let done = self.context.db.try_write(move |tx| {
            let (event, gate) = (event.clone(), gate.clone());
            async move {
                recheck_operator_right(tx, by, OperatorRight::ManagePortal).await?;
                let before = store::operators::find(tx, user).await?.ok_or_else(Problem::not_found)?;
                if before.role == to && approved.is_none() {
                    return Ok(Outcome::Done(before));
                }
                if to != OperatorRole::Owner {
                    check_approver(tx, user).await?;
                }
                let (name, old) = (to.name(), before.role.name());
                let detail = format!("{}: {name}, before {old}; {}", before.email, event.detail);
                if approved.is_some() || to.exceeds(before.role) {
                    let act = operator_act(ChangeAction::ChangeOperator, user, &event.detail, detail.clone());
                    if let Some(request) = gate.pass(tx, &act).await? {
                        return Ok(Outcome::Requested(request));
                    }
                }
                store::operators::put_role(tx, user, Some(to)).await?;
                let event =
                    AuditEvent { detail, ..event }.with_change(role_state(before.role), role_state(to));
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(Outcome::Done(Operator { role: to, ..before }))
            }
            .boxed()
        });
        let outcome = done.await?;
        if matches!(outcome, Outcome::Done(_)) {
            self.context.publish(Change::Operator(user));
        }
        Ok(outcome)
    }

    /// Removes an operator. The account and its memberships stay; its operator's tokens end, and so do its sessions
    /// without the provider that an organization requires.
    ///
    /// # Errors
    /// 403 without a fresh proof. 404 if the user is no operator. 409 for the only active owner, and for one of two with
    /// the rule for a second operator. 422 for an invalid reason.
    pub async fn remove(&self, caller: &Caller, user: UserId, input: RemoveOperator) -> Result<(), Problem> {
        self.authorise_change(caller).await?;
        let (reason, by) = (check_reason(&input.reason)?, caller.user.id);
        let event = self.context.audit_event(caller, "operator.removed", user.to_string(), reason);
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                recheck_operator_right(tx, by, OperatorRight::ManagePortal).await?;
                let before = store::operators::find(tx, user).await?.ok_or_else(Problem::not_found)?;
                check_approver(tx, user).await?;
                store::operators::put_role(tx, user, None).await?;
                let mut sessions = Vec::new();
                // The rules of organizations about sign-ins hold for the person from now on.
                for membership in store::accounts::list_memberships(tx, user).await? {
                    sessions.extend(end_without_provider(tx, membership.org.id).await?);
                }
                // Single sign-on makes a removed person no operator again.
                store::operators::put_former(tx, &fingerprint(&before.email), event.at).await?;
                let tokens = store::operators::end_tokens(tx, user).await?;
                let (role, ended) = (before.role.name(), tokens.len());
                let detail = format!("{}: {role}; {}; tokens ended: {ended}", before.email, event.detail);
                let event = AuditEvent { detail, ..event }.with_change(role_state(before.role), None);
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok((tokens, sessions))
            }
            .boxed()
        });
        let (tokens, sessions) = done.await?;
        publish_ended(&self.context, &sessions);
        tokens.into_iter().for_each(|token| self.context.publish(Change::TokenRevoked(token)));
        self.context.publish(Change::Operator(user));
        Ok(())
    }

    /// Ends the rule for a second operator by a command on the host of the portal: the way back of a portal with one owner.
    ///
    /// # Errors
    /// The portal has no such rule, or the database cannot be written.
    pub async fn end_policy_by_command(&self) -> Result<(), String> {
        let detail = "no second operator, by a command".to_owned();
        let event = self.context.visitor_event("change_policy.set", "portal".to_owned(), detail);
        let event = AuditEvent { actor: "The portal".to_owned(), ..event };
        let done = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let (before, after) = (store::change_requests::policy(tx).await?, ChangePolicy::default());
                if before == after {
                    return Ok(false);
                }
                store::change_requests::set_policy(tx, after).await?;
                let state = |policy: ChangePolicy| serde_json::to_string(&policy).ok();
                let event = event.with_change(state(before), state(after));
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(true)
            }
            .boxed()
        });
        match done.await {
            Ok(true) => Ok(()),
            Ok(false) => Err("the portal has no rule for a second operator; nothing was changed".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn authorise_change(&self, caller: &Caller) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManagePortal).await?;
        self.context.check_proof(caller)
    }
}
