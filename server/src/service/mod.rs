//! What the portal does: authorise the caller, apply the rules of core, write once, answer.
//!
//! The only room that decides who may do what.

pub mod accounts;
pub mod attempts;
pub mod books;
pub mod budgets;
pub mod cluster;
pub mod drains;
pub mod enrolment;
pub mod everyone;
mod evidence;
mod expiry;
pub mod files;
pub mod fleet;
pub mod health;
pub mod invitations;
pub mod invoices;
pub mod jobs;
pub mod keys;
pub mod leases;
pub mod ledger;
mod logs;
pub mod members;
mod metrics;
pub mod nodes;
pub mod offerings;
pub mod payments;
pub mod planner;
pub mod ports;
mod prepared;
pub mod quotas;
mod ranks;
pub mod reservations;
pub mod secrets;
mod starts;
pub mod terminals;
pub mod underuse;
pub mod usage;
pub mod volumes;
pub mod webhooks;

use berth_types::accounts::{Role, User};
use berth_types::ids::{OrgId, TokenId};
use berth_types::problems::Problem;

use crate::portal::Portal;
use crate::store::{self, StoreError};

/// Who calls, as proved by a session or an API token.
#[derive(Debug, Clone)]
pub struct Caller {
    pub user: User,
    /// Set when an API token speaks: its organization (`None`: an operator's token) and its role.
    pub token: Option<TokenScope>,
    /// Set when the request came with an Idempotency-Key.
    pub once: Option<keys::Once>,
}

#[derive(Debug, Clone, Copy)]
pub struct TokenScope {
    pub id: TokenId,
    pub org: Option<OrgId>,
    pub role: Role,
}

/// What a caller wants to do in an organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// See jobs.
    Look,
    /// Submit and stop jobs.
    Run,
    /// See balance and statement.
    SeeMoney,
    /// Pay, and say how it is paid.
    Pay,
    /// Make and remove tokens, webhooks, secrets and volumes.
    Manage,
}

impl Right {
    const fn held_by(self, role: Role) -> bool {
        match self {
            Self::Look => true,
            Self::Run => matches!(role, Role::Owner | Role::Member),
            Self::SeeMoney => matches!(role, Role::Owner | Role::Billing | Role::Member),
            Self::Pay => matches!(role, Role::Owner | Role::Billing),
            Self::Manage => matches!(role, Role::Owner),
        }
    }
}

/// What somebody hears whose role lacks the right.
fn not_with(role: Role) -> Problem {
    Problem::forbidden(format!("Your role here is {}. Ask an owner of the organization.", role.name()))
}

impl From<StoreError> for Problem {
    /// The cause goes to the log, never into the answer.
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "store");
        match error {
            StoreError::Contended | StoreError::Stale => {
                Problem::unavailable("The portal is busy with the same object; try again.", 1)
            }
            StoreError::Unknown => Problem::unavailable(
                "It is not known whether this took effect. Send it again with the same Idempotency-Key.",
                1,
            ),
            _ => Problem::internal(),
        }
    }
}

impl Portal {
    /// The caller's role in an organization, if it has `right` there. To a caller from outside the
    /// organization does not exist.
    pub async fn authorise(&self, caller: &Caller, org: OrgId, right: Right) -> Result<Role, Problem> {
        let mut conn = self.db.read().await?;
        let member = store::accounts::find_role(&mut conn.tx(), org, caller.user.id).await?;
        let role = match (caller.token, member) {
            (_, None) => return Err(Problem::not_found()),
            (Some(token), Some(_)) if token.org != Some(org) => return Err(Problem::not_found()),
            (Some(token), Some(member)) if right.held_by(member) => token.role,
            (_, Some(member)) => member,
        };
        if right.held_by(role) { Ok(role) } else { Err(not_with(role)) }
    }

    /// Refuses everyone but operators. To others the operator's side does not exist.
    pub fn authorise_operator(&self, caller: &Caller) -> Result<(), Problem> {
        let by_token = caller.token.is_none_or(|t| t.org.is_none());
        if caller.user.operator && by_token { Ok(()) } else { Err(Problem::not_found()) }
    }
}
