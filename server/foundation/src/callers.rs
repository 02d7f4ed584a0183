//! The caller of a request and its rights. Only this module decides about authorisation.

use std::time::Duration;

use berth_store::{StoreError, Tx, WriteError};
use berth_types::accounts::{Role, User};
use berth_types::ids::{OrgId, TokenId, UserId};
use berth_types::operators::{OperatorRight, OperatorRole};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::scopes::ApiScopes;
use berth_types::time::Timestamp;

use crate::context::Context;
use crate::credentials::SessionKey;
use crate::refusals::Refusal;
use crate::repeated::MINUTE_MS;

/// The idempotency key of the present request, and the object that an earlier request with this key created.
#[derive(Debug, Clone)]
pub struct IdempotencyKey {
    pub(crate) scope: String,
    pub(crate) key: String,
    pub(crate) request_hash: String,
    pub(crate) created: Option<String>,
}

/// A caller with a valid session or API token.
#[derive(Debug, Clone)]
pub struct Caller {
    pub user: User,
    /// The role of an operator; absent for all other users. It is read with each request.
    pub operator_role: Option<OperatorRole>,
    /// Set when the request carries an API token.
    pub token: Option<TokenScope>,
    /// The session of a person; absent for a token.
    pub session: Option<SessionKey>,
    /// The expiry of the session or token. A token can be without one.
    pub expires_at: Option<Timestamp>,
    /// The proof of the person's identity; absent for a token.
    pub proof: Option<SessionProof>,
    /// Set when the request carries an `Idempotency-Key`.
    pub idempotency_key: Option<IdempotencyKey>,
}

/// The proof of identity of a session, and the state of its user's second factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionProof {
    /// The time of the last proof: the sign-in, or a password or a code after it.
    pub proved_at: Timestamp,
    /// True if the user has a second factor.
    pub has_factor: bool,
    /// True if the user has no second factor and needs one.
    pub must_enrol: bool,
}

impl Caller {
    /// The role of an operator in a session or with an operator's token. `None` with a token of an organization.
    pub fn acting_operator_role(&self) -> Option<OperatorRole> {
        self.operator_role.filter(|_| self.token.is_none_or(|token| token.org.is_none()))
    }

    /// True if an operator's role has a right. Nothing is refused, so the audit log gets no event.
    pub fn has_operator_right(&self, right: OperatorRight) -> bool {
        self.acting_operator_role().is_some_and(|role| right.is_granted_to(role))
    }

    /// The object that an earlier request with the same key created. Set only if the answer of the earlier
    /// request was lost.
    pub fn already_created(&self) -> Option<&str> {
        self.idempotency_key.as_ref()?.created.as_deref()
    }

    /// The session of a person.
    ///
    /// # Errors
    /// 403 for a token, which acts for its organization and not for its person.
    pub fn own_session(&self, context: &Context) -> Result<&SessionKey, Problem> {
        self.session.as_ref().ok_or_else(|| {
            record_refusal(context, self, Refusal::Token);
            Problem::forbidden(
                "A token has no access to the account of its person. Sign in to see or change the account.",
            )
        })
    }
}

/// Seconds for which a proof of identity is fresh.
pub const PROOF_S: i64 = 15 * 60;

#[derive(Debug, Clone, Copy)]
pub struct TokenScope {
    pub id: TokenId,
    /// `None` for an operator's token.
    pub org: Option<OrgId>,
    pub role: Role,
    /// The requests that the token may send. `berth_rest` checks them before each route.
    pub scopes: ApiScopes,
}

/// A right in an organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// See jobs.
    View,
    /// Submit and stop jobs.
    Run,
    /// See balance and statement.
    ViewMoney,
    /// Pay, and choose the way of payment.
    Pay,
    /// Make and remove tokens, webhooks, secrets and volumes.
    Manage,
}

/// The organizations of a list, which decide who may read it.
#[derive(Debug, Clone, Copy)]
pub enum Scope {
    /// One organization, for its members.
    Org(OrgId),
    /// One organization or (`None`) all, for operators.
    Operator(Option<OrgId>),
}

impl Right {
    pub const fn is_granted_to(self, role: Role) -> bool {
        match self {
            Self::View => true,
            Self::Run => matches!(role, Role::Owner | Role::Member),
            Self::ViewMoney => matches!(role, Role::Owner | Role::Billing | Role::Member),
            Self::Pay => matches!(role, Role::Owner | Role::Billing),
            Self::Manage => matches!(role, Role::Owner),
        }
    }

    /// The right as a part of a sentence after "the right to".
    const fn name(self) -> &'static str {
        match self {
            Self::View => "see jobs",
            Self::Run => "submit and stop jobs",
            Self::ViewMoney => "see balance and statement",
            Self::Pay => "pay",
            Self::Manage => "manage the organization",
        }
    }
}

/// The refusal for an organization without an owner with a verified e-mail address.
pub fn unverified() -> Problem {
    Problem::new(
        403,
        "account.unverified",
        "No verified e-mail address",
        "No owner of the organization has a verified e-mail address. Nothing was changed. An owner opens the link in the portal's mail, or requests another one on the page Your account.",
    )
}

/// The refusal for a role without the necessary right.
pub fn forbidden_for(role: Role) -> Problem {
    Problem::forbidden(format!("Your role here is {}. Ask an owner of the organization.", role.name()))
}

/// The role of a caller that decides about a right: that of the token, unless its member lacks the right. `None` for
/// an organization that is not the caller's.
async fn find_deciding_role(
    context: &Context,
    caller: &Caller,
    org: OrgId,
    right: Right,
) -> Result<Option<Role>, Problem> {
    let mut conn = context.db.read().await?;
    let member = berth_store::accounts::find_role(&mut conn.tx(), org, caller.user.id).await?;
    Ok(match (caller.token, member) {
        (_, None) => None,
        (Some(token), Some(_)) if token.org != Some(org) => None,
        (Some(token), Some(member)) if right.is_granted_to(member) => Some(token.role),
        (_, Some(member)) => Some(member),
    })
}

/// True if a caller has a right in an organization. Nothing is refused, so the audit log gets no event.
///
/// # Errors
/// 404 if the caller is not a member.
pub async fn has_right(
    context: &Context,
    caller: &Caller,
    org: OrgId,
    right: Right,
) -> Result<bool, Problem> {
    let role = find_deciding_role(context, caller, org, right).await?;
    role.map(|role| right.is_granted_to(role)).ok_or_else(Problem::not_found)
}

/// The refusal for an organization that is not the caller's. The audit log of that organization does not have it:
/// strangers would fill it. Operators try it before they act by their own right.
fn refuse_foreign(context: &Context, caller: &Caller, org: OrgId) -> Problem {
    if !caller.user.operator {
        let detail = "The organization is not one of the caller.".to_owned();
        let event = context.audit_event(caller, "access.denied", org.to_string(), detail);
        context.repeated.defer(&format!("foreign {}", caller.user.id), MINUTE_MS, None, event);
    }
    Problem::not_found()
}

/// Records a refusal for another reason than a missing right: one audit event a minute for each reason and each token or person, with
/// their number. The organization of a token sees its events. Those of people have no organization.
pub fn record_refusal(context: &Context, caller: &Caller, refusal: Refusal) {
    let (subject, org) = match caller.token {
        Some(token) => (token.id.to_string(), token.org),
        None => (caller.user.id.to_string(), None),
    };
    let detail = refusal.detail();
    let cause = format!("{subject} {detail}");
    let event = context.audit_event(caller, "access.denied", subject, detail);
    context.repeated.defer(&cause, MINUTE_MS, org, event);
}

/// The refusal for an operator's role without the necessary right.
fn forbidden_for_operator(role: OperatorRole, right: OperatorRight) -> Problem {
    Problem::forbidden(format!(
        "Your operator role is {}. This needs the role {}. Nothing was changed. Ask an operator with this role.",
        role.name(),
        right.roles_text()
    ))
}

/// Checks the right of an operator once more in the transaction of a write, since the operator may have lost it after
/// the authorisation.
///
/// # Errors
/// 404 for a user who is no operator or is disabled. 403 if the role lacks the right.
pub async fn recheck_operator_right(
    tx: &mut Tx<'_>,
    user: UserId,
    right: OperatorRight,
) -> Result<(), WriteError> {
    match berth_store::operators::find_enabled_role(tx, user).await? {
        Some(role) if right.is_granted_to(role) => Ok(()),
        Some(role) => Err(forbidden_for_operator(role, right).into()),
        None => Err(Problem::not_found().into()),
    }
}

impl Context {
    /// The caller's role in an organization, provided that the role has `right`.
    ///
    /// # Errors
    /// 404 if the caller is not a member, as for an organization that does not exist. 403 if the role lacks
    /// the right.
    pub async fn authorise(&self, caller: &Caller, org: OrgId, right: Right) -> Result<Role, Problem> {
        let Some(role) = find_deciding_role(self, caller, org, right).await? else {
            return Err(refuse_foreign(self, caller, org));
        };
        if right.is_granted_to(role) {
            return Ok(role);
        }
        let detail = format!("The role {} lacks the right to {}.", role.name(), right.name());
        let event = self.audit_event(caller, "access.denied", org.to_string(), detail);
        let cause = format!("denied {org} {}", caller.user.id);
        self.record_repeated(&cause, MINUTE_MS, Some(org), event).await;
        Err(forbidden_for(role))
    }

    /// Refuses all callers but operators whose role has `right`.
    ///
    /// # Errors
    /// 404 for callers who are no operators, as for a route that does not exist. 403 if the role lacks the right.
    pub async fn authorise_operator(&self, caller: &Caller, right: OperatorRight) -> Result<(), Problem> {
        let Some(role) = caller.acting_operator_role() else {
            let detail = "Only operators have this right.".to_owned();
            let event = self.audit_event(caller, "access.denied", "operator".to_owned(), detail);
            self.repeated.defer(&format!("operator {}", caller.user.id), MINUTE_MS, None, event);
            return Err(Problem::not_found());
        };
        if right.is_granted_to(role) {
            return Ok(());
        }
        let detail = format!("The operator role {} lacks the right to {}.", role.name(), right.name());
        let event = self.audit_event(caller, "access.denied", "portal".to_owned(), detail);
        let cause = format!("denied operator {} {}", caller.user.id, right.name());
        self.record_repeated(&cause, MINUTE_MS, None, event).await;
        Err(forbidden_for_operator(role, right))
    }

    /// Requires a fresh proof of identity from a person with a second factor. Tokens pass, because no person is there to
    /// prove anything, and so do people without a second factor.
    ///
    /// # Errors
    /// 403 after a proof more than [`PROOF_S`] ago.
    pub fn check_proof(&self, caller: &Caller) -> Result<(), Problem> {
        match caller.proof {
            Some(proof) if proof.has_factor => self.check_fresh(caller, proof),
            _ => Ok(()),
        }
    }

    /// Requires the session of a person with a fresh proof of identity.
    ///
    /// # Errors
    /// 403 for a token, and after a proof more than [`PROOF_S`] ago.
    pub fn check_person(&self, caller: &Caller) -> Result<(), Problem> {
        let proof = caller.proof.ok_or_else(|| {
            record_refusal(self, caller, Refusal::Token);
            Problem::forbidden("A token cannot change the sign-in of a person. Sign in with the password.")
        })?;
        self.check_fresh(caller, proof)
    }

    fn check_fresh(&self, caller: &Caller, proof: SessionProof) -> Result<(), Problem> {
        if self.now() <= proof.proved_at.plus_seconds(PROOF_S) {
            return Ok(());
        }
        record_refusal(self, caller, Refusal::Proof);
        Err(Problem::new(
            403,
            "auth.proof_required",
            "Confirmation required",
            "This step needs your password, a passkey or a code again after 15 minutes. Nothing was changed. Confirm your identity, then repeat the request.",
        ))
    }

    /// Authorises a list: a member with the first right, or an operator with the second one. Returns the
    /// organization of the list, or `None` for all.
    ///
    /// # Errors
    /// The refusals of [`authorise`](Self::authorise) and [`authorise_operator`](Self::authorise_operator).
    pub async fn authorise_scope(
        &self,
        caller: &Caller,
        scope: Scope,
        (right, operator): (Right, OperatorRight),
    ) -> Result<Option<OrgId>, Problem> {
        match scope {
            Scope::Org(org) => self.authorise(caller, org, right).await.map(|_| Some(org)),
            Scope::Operator(org) => self.authorise_operator(caller, operator).await.map(|()| org),
        }
    }

    /// Resolves when the open streams, terminals and ports of a caller in an organization must end: after a change
    /// of the caller's rights, and at the sign-out, revocation or expiry of the session or token. Changes count from
    /// the call on, not from the first poll. An end between the authentication and the call is found in the database.
    pub fn access_end(
        &self,
        org: OrgId,
        caller: &Caller,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let changed = self.live.streams_end(
            org,
            caller.user.id,
            caller.token.map(|token| token.id),
            caller.session.clone(),
        );
        let (context, caller, now) = (self.clone(), caller.clone(), self.now());
        async move {
            let valid = async {
                let mut conn = context.db.read().await?;
                context.is_signed_in(&mut conn.tx(), &caller, now).await
            };
            // A fault of the database ends no stream.
            if let Ok(false) = valid.await {
                return;
            }
            let expired = async {
                match caller.expires_at {
                    Some(at) => context.wait_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = expired => {}
            }
        }
    }

    /// True if the session or token of a caller exists and is valid at `now`. A session without a required second
    /// factor has no access.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn is_signed_in(
        &self,
        tx: &mut Tx<'_>,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        if let Some(token) = caller.token {
            return berth_store::accounts::token_exists(tx, token.id, now).await;
        }
        let Some(session) = &caller.session else { return Ok(true) };
        let idle_since = now.plus_seconds(-self.settings.session_idle_s);
        let found = berth_store::accounts::find_session(tx, session.hash(), now, idle_since).await?;
        let rule = self.settings.require_factor;
        Ok(found.is_some_and(|found| found.has_factor || !rule.applies_to_session(&found)))
    }

    /// Waits until the portal's clock shows this time. The clock of the host can be set, so it is read once a second.
    pub async fn wait_until(&self, at: Timestamp) {
        while let left @ 1.. = at.millis_since(self.now()) {
            let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
            tokio::time::sleep(left.min(Duration::from_secs(1))).await;
        }
    }

    /// A record of this caller's action. The transaction of the action has to write it.
    pub fn audit_event(&self, caller: &Caller, action: &str, subject: String, detail: String) -> AuditEvent {
        let mut event = self.user_event(&caller.user, action, subject, detail);
        event.context.token_id = caller.token.map(|token| token.id);
        event.context.session = caller.session.as_ref().map(SessionKey::short_name);
        event
    }
}
