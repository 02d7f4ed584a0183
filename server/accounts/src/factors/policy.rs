//! The rule of an organization for the sign-in of its members.

use berth_foundation::{Caller, Change, Right};
use berth_store as store;
use berth_types::factors::SignInPolicy;
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use futures::FutureExt;

use super::{SecondFactors, no_second_factor};
use crate::members::recheck_manage_right;

impl SecondFactors {
    /// The rule of an organization for the sign-in of its members.
    ///
    /// # Errors
    /// 404 for others than members.
    pub async fn policy(&self, caller: &Caller, org: OrgId) -> Result<SignInPolicy, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let since = store::factors::find_requirement(&mut conn.tx(), org).await?;
        Ok(SignInPolicy { require_second_factor: since.is_some() })
    }

    /// Sets the rule of an organization for the sign-in of its members. Streams, terminals and ports of members without a
    /// required factor end.
    ///
    /// # Errors
    /// 403 for others than owners, and without a fresh proof. 409 if the caller requires a factor without having one.
    pub async fn put_policy(
        &self,
        caller: &Caller,
        org: OrgId,
        input: SignInPolicy,
    ) -> Result<SignInPolicy, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        self.context.check_proof(caller)?;
        let (user, now) = (caller.user.id, self.context.now());
        let required = input.require_second_factor;
        let detail = if required { "required" } else { "not required" };
        let event =
            self.context.audit_event(caller, "sign_in_policy.set", org.to_string(), detail.to_owned());
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                recheck_manage_right(tx, org, user).await?;
                if store::factors::find_requirement(tx, org).await?.is_some() == required {
                    return Ok(Vec::new());
                }
                // The owner who sets the rule must not be its first victim.
                if required && !store::factors::has_factor(tx, user).await? {
                    return Err(no_second_factor().into());
                }
                store::factors::put_requirement(tx, org, required.then_some(now)).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                if required {
                    Ok(store::factors::list_members_without(tx, org).await?)
                } else {
                    Ok(Vec::new())
                }
            }
            .boxed()
        });
        for user in done.await? {
            self.context.publish(Change::Member { org, user });
        }
        Ok(input)
    }
}
