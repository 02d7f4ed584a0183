//! The caller of a request, and its rights. Authorisation is decided here and nowhere else.

use berth_types::accounts::{Role, User};
use berth_types::ids::{AuditEventId, OrgId, TokenId};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;

use crate::context::Context;

/// The key of a request under way, and what an earlier one with it made.
#[derive(Debug, Clone)]
pub struct Once {
    pub(crate) scope: String,
    pub(crate) key: String,
    pub(crate) request_hash: String,
    pub(crate) made: Option<String>,
}

/// A caller, as a session or an API token proves it.
#[derive(Debug, Clone)]
pub struct Caller {
    pub user: User,
    /// Set when the request carries an API token.
    pub token: Option<TokenScope>,
    /// Set when the request carries an `Idempotency-Key`.
    pub once: Option<Once>,
}

impl Caller {
    /// What an earlier request with the same key made, if its answer was lost.
    pub fn done_before(&self) -> Option<&str> {
        self.once.as_ref()?.made.as_deref()
    }
}

#[derive(Debug, Clone, Copy)]
pub struct TokenScope {
    pub id: TokenId,
    /// `None`: an operator's token.
    pub org: Option<OrgId>,
    pub role: Role,
}

/// A right in an organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// See jobs.
    Look,
    /// Submit and stop jobs.
    Run,
    /// See balance and statement.
    SeeMoney,
    /// Pay, and choose how it is paid.
    Pay,
    /// Make and remove tokens, webhooks, secrets and volumes.
    Manage,
}

impl Right {
    pub const fn held_by(self, role: Role) -> bool {
        match self {
            Self::Look => true,
            Self::Run => matches!(role, Role::Owner | Role::Member),
            Self::SeeMoney => matches!(role, Role::Owner | Role::Billing | Role::Member),
            Self::Pay => matches!(role, Role::Owner | Role::Billing),
            Self::Manage => matches!(role, Role::Owner),
        }
    }
}

/// The refusal for a role that lacks a right.
pub fn forbidden_for(role: Role) -> Problem {
    Problem::forbidden(format!("Your role here is {}. Ask an owner of the organization.", role.name()))
}

impl Context {
    /// The caller's role in an organization in which it has `right`.
    ///
    /// # Errors
    /// 404 where the caller is not a member: to others the organization does not exist. 403 where the role
    /// lacks the right.
    pub async fn authorise(&self, caller: &Caller, org: OrgId, right: Right) -> Result<Role, Problem> {
        let mut conn = self.db.read().await?;
        let member = berth_store::accounts::find_role(&mut conn.tx(), org, caller.user.id).await?;
        let role = match (caller.token, member) {
            (_, None) => return Err(Problem::not_found()),
            (Some(token), Some(_)) if token.org != Some(org) => return Err(Problem::not_found()),
            (Some(token), Some(member)) if right.held_by(member) => token.role,
            (_, Some(member)) => member,
        };
        if right.held_by(role) { Ok(role) } else { Err(forbidden_for(role)) }
    }

    /// Refuses all callers but operators.
    ///
    /// # Errors
    /// 404: to others the operator's side does not exist.
    pub fn authorise_operator(&self, caller: &Caller) -> Result<(), Problem> {
        let by_token = caller.token.is_none_or(|t| t.org.is_none());
        if caller.user.operator && by_token { Ok(()) } else { Err(Problem::not_found()) }
    }

    /// A record of an action of this caller, to be written in the transaction of the action.
    pub fn audit_event(&self, caller: &Caller, action: &str, subject: String, detail: String) -> AuditEvent {
        let at = self.now();
        let (id, actor): (AuditEventId, _) = (self.new_id(at), caller.user.name.clone());
        AuditEvent { id, at, actor, action: action.to_owned(), subject, detail }
    }
}
