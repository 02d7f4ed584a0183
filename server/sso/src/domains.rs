//! The confirmation of domains by operators.

use berth_foundation::Caller;
use berth_store::{self as store, StoreError, WriteError};
use berth_types::ids::OrgId;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::sso::{ClaimedDomains, ConfirmDomain};
use futures::FutureExt;

use super::Providers;
use super::provider::normal_domain;
use berth_accounts::grants::end_without_provider;

/// Characters of the filter of a list.
const MAX_FILTER_CHARS: usize = 100;

impl Providers {
    /// The domains of all organizations with `text` in the domain or in the name of the organization, for operators.
    ///
    /// # Errors
    /// 404 for all other callers. 422 for a text of more than 100 characters.
    pub async fn claimed_domains(&self, caller: &Caller, text: &str) -> Result<ClaimedDomains, Problem> {
        let context = &self.context;
        context.authorise_operator(caller, OperatorRight::Inspect).await?;
        if text.chars().count() > MAX_FILTER_CHARS {
            return Err(Problem::invalid_field("/text", "Use at most 100 characters."));
        }
        self.list_domains(text).await
    }

    async fn list_domains(&self, text: &str) -> Result<ClaimedDomains, Problem> {
        let mut conn = self.context.db.read().await?;
        let domains = store::sso::list_claimed_domains(&mut conn.tx(), text).await?;
        Ok(ClaimedDomains { domains })
    }

    /// Confirms a domain for an organization, or takes the confirmation back. The record of the domain has another value
    /// then. Returns the domains with this text.
    ///
    /// # Errors
    /// 404 for all callers but operators, and if the organization does not name the domain. 403 without a fresh proof.
    /// 409 if the domain is confirmed for another organization.
    pub async fn confirm_domain(
        &self,
        caller: &Caller,
        org: OrgId,
        input: ConfirmDomain,
    ) -> Result<ClaimedDomains, Problem> {
        let context = &self.context;
        context.authorise_operator(caller, OperatorRight::ManagePortal).await?;
        context.check_proof(caller)?;
        let domain = normal_domain(&input.domain)
            .ok_or_else(|| Problem::invalid_field("/domain", "Enter a domain, such as example.org."))?;
        let at = input.confirmed.then(|| context.now());
        let action = if input.confirmed { "sso.domain_confirmed" } else { "sso.domain_refused" };
        let event = context.audit_event(caller, action, org.to_string(), domain.clone());
        let (listed, proof) = (domain.clone(), self.new_proof());
        let done = context.db.try_write(move |tx| {
            let (domain, proof, event) = (domain.clone(), proof.clone(), event.clone());
            async move {
                if let Some(other) = store::sso::find_domain_org(tx, &domain).await?
                    && other != org
                    && at.is_some()
                {
                    return Err(WriteError::from(StoreError::Duplicate));
                }
                if !store::sso_domains::confirm(tx, org, (&domain, &proof), at).await? {
                    return Err(Problem::not_found().into());
                }
                let ended = end_without_provider(tx, org).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(ended)
            }
            .boxed()
        });
        let ended = match done.await {
            Err(WriteError::Store(StoreError::Duplicate)) => {
                return Err(Problem::conflict(
                    "sso.domain_taken",
                    "Domain of another organization",
                    "The domain is confirmed for another organization. Nothing was changed. Take that confirmation back first.",
                ));
            }
            other => other?,
        };
        self.publish_ended(&ended);
        self.list_domains(&listed).await
    }
}
