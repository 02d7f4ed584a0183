//! SCIM 2.0 (RFC 7643 and RFC 7644): an identity provider keeps people and groups in its organization.
//!
//! A person of the provider is the record of an account. An active person is a member, with the role of the groups by the
//! rules of single sign-on. The provider makes and removes memberships of addresses of confirmed domains only. It neither
//! deletes accounts nor removes the last owner.

mod act;
mod discovery;
mod filter;
mod forms;
mod group_patch;
mod groups;
mod membership;
mod refusals;
pub mod routes;
mod texts;
mod turns;
mod user_change;
mod users;

use berth_foundation::{Caller, Context, Refusal, Right, record_refusal};
use berth_store as store;
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;

use crate::turns::Turns;

pub use self::forms::give_scim_form;

/// The people and groups of the providers of organizations.
#[derive(Clone)]
pub struct Scim {
    context: Context,
    turns: Turns,
}

impl Scim {
    pub fn new(context: Context) -> Self {
        Self { context, turns: Turns::default() }
    }

    /// The base address of the resources of an organization.
    fn base_url(&self, org: OrgId) -> String {
        let portal = self.context.settings.public_url.trim_end_matches('/');
        format!("{portal}/api/v1/scim/{org}/v2")
    }

    /// Checks that the caller may see the abilities of the service.
    async fn authorise_discovery(&self, caller: &Caller, org: OrgId) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::View).await.map(|_| ())
    }

    /// Checks that the caller is the provider of an organization: a service account with a token for SCIM. The scope
    /// `admin` of a token without a choice is not enough, because the roles of people go beyond that of the account.
    async fn authorise(&self, caller: &Caller, org: OrgId) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let account = store::service_accounts::find(&mut conn.tx(), org, caller.user.id).await?;
        drop(conn);
        if account.is_none() {
            return Err(refusals::no_service_account());
        }
        let own = caller.token.map(|token| token.scopes);
        if own.is_some_and(|scopes| scopes.iter().any(|scope| scope == ApiScope::Scim)) {
            return Ok(());
        }
        record_refusal(&self.context, caller, Refusal::Scope(ApiScope::Scim));
        Err(refusals::no_scope())
    }
}
