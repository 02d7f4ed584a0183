//! API tokens of organizations and operators.

use berth_core::admission::check_name;
use berth_foundation::credentials::{fingerprint, new_api_token};
use berth_foundation::{Caller, Change, Right, idempotency};
use berth_store as store;
use berth_types::Page;
use berth_types::accounts::{CreatedToken, NewOperatorToken, NewToken, Role, Token};
use berth_types::ids::{OrgId, TokenId};
use berth_types::lists::ListOptions;
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::Accounts;
use crate::members::recheck_manage_right;

/// The names of deleted tokens in one audit event.
const MAX_NAMES: usize = 10;

/// The names of the first deleted tokens, and the number of the others.
fn list_names(deleted: &[(TokenId, String)]) -> String {
    let names: Vec<&str> = deleted.iter().take(MAX_NAMES).map(|(_, name)| name.as_str()).collect();
    let names = names.join(", ");
    match deleted.len().saturating_sub(MAX_NAMES) {
        0 => names,
        1 => format!("{names} and 1 other token"),
        others => format!("{names} and {others} other tokens"),
    }
}

impl Accounts {
    pub async fn create_token(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewToken,
    ) -> Result<CreatedToken, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        self.make_token(caller, Some(org), input.name, input.role, input.expires_at).await
    }

    /// Creates a token for scripts with an operator's rights.
    pub async fn create_operator_token(
        &self,
        caller: &Caller,
        input: NewOperatorToken,
    ) -> Result<CreatedToken, Problem> {
        self.context.authorise_operator(caller)?;
        self.make_token(caller, None, input.name, Role::Owner, input.expires_at).await
    }

    async fn make_token(
        &self,
        caller: &Caller,
        org: Option<OrgId>,
        name: String,
        role: Role,
        expires_at: Option<Timestamp>,
    ) -> Result<CreatedToken, Problem> {
        self.context.check_proof(caller)?;
        let now = self.context.now();
        let mut errors = Vec::new();
        check_name("/name", &name, &mut errors);
        // A token must not outlive the token that creates it.
        if let Some(end) = caller.expires_at.filter(|_| caller.token.is_some())
            && expires_at.is_none_or(|at| at > end)
        {
            let detail = format!("Your own token ends at {end}. Choose this time or an earlier one.");
            errors.push(FieldError::new("/expires_at", detail));
        }
        if expires_at.is_some_and(|at| at <= now) {
            errors.push(FieldError::new("/expires_at", "Choose a time in the future, or omit the field."));
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        if caller.already_created().is_some() {
            return Err(idempotency::shown_once());
        }
        let secret = self.context.random(new_api_token);
        let token = Token {
            id: self.context.new_id(now),
            name: name.trim().to_owned(),
            role,
            hint: secret.chars().skip(38).collect(),
            created_at: now,
            expires_at,
            last_used_at: None,
        };
        let created = CreatedToken { secret: secret.clone(), token: token.clone() };
        let (hash, user, key) = (fingerprint(&secret), caller.user.id, caller.idempotency_key.clone());
        let parent = caller.token.map(|token| token.id);
        let session = caller.session.clone();
        let detail = format!("{} with the role {}", token.name, role.name());
        let event = self.context.audit_event(caller, "token.created", token.id.to_string(), detail);
        let insert = self.context.db.try_write(move |tx| {
            let (token, hash, key, event) = (token.clone(), hash.clone(), key.clone(), event.clone());
            let session = session.clone();
            async move {
                // The loss of the right ends all tokens of a user, so a token must not be created after it.
                if let Some(org) = org {
                    recheck_manage_right(tx, org, user).await?;
                }
                // The revocation of a token ends the tokens that it created, so it creates none after it.
                if let Some(parent) = parent
                    && !store::accounts::token_exists(tx, parent, now).await?
                {
                    return Err(Problem::unauthenticated().into());
                }
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                store::accounts::insert_token(tx, org, user, &token, &hash, parent).await?;
                // The removal of the person at the provider ends the token.
                let by = session.as_ref().map(|session| session.hash());
                store::sso::record_token(tx, token.id, by, parent).await?;
                store::quotas::insert_audit(tx, org, &event).await?;
                Ok(())
            }
            .boxed()
        });
        insert.await?;
        Ok(created)
    }

    /// A page of the tokens of an organization, or (`None`) of operators.
    pub async fn list_tokens(
        &self,
        caller: &Caller,
        org: Option<OrgId>,
        options: &ListOptions<TokenId>,
    ) -> Result<Page<Token>, Problem> {
        self.authorise_tokens(caller, org).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::accounts::list_tokens(&mut conn.tx(), org, options).await?;
        Ok(options.page(rows, |token| token.id))
    }

    async fn authorise_tokens(&self, caller: &Caller, org: Option<OrgId>) -> Result<(), Problem> {
        match org {
            Some(org) => self.context.authorise(caller, org, Right::Manage).await.map(|_| ()),
            None => self.context.authorise_operator(caller),
        }
    }

    /// Revokes a token and all tokens that it created.
    ///
    /// # Errors
    /// 404 if the organization has no such token.
    pub async fn revoke_token(
        &self,
        caller: &Caller,
        org: Option<OrgId>,
        token: TokenId,
    ) -> Result<(), Problem> {
        self.authorise_tokens(caller, org).await?;
        let event = self.context.audit_event(caller, "token.revoked", token.to_string(), String::new());
        let delete = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let deleted = store::accounts::delete_token(tx, org, token).await?;
                if !deleted.is_empty() {
                    let event = AuditEvent { detail: list_names(&deleted), ..event };
                    store::quotas::insert_audit(tx, org, &event).await?;
                }
                Ok(deleted)
            }
            .boxed()
        });
        let deleted = delete.await?;
        if deleted.is_empty() {
            return Err(Problem::not_found());
        }
        // The streams of the tokens end with them.
        for (token, _) in deleted {
            self.context.publish(Change::TokenRevoked(token));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revocation_names_ten_tokens_and_counts_the_others() {
        let tokens = |count: u128| -> Vec<(TokenId, String)> {
            let token = |n| (TokenId::from_uuid(uuid::Uuid::from_u128(n)), format!("t{n}"));
            (1..=count).map(token).collect()
        };
        assert_eq!(list_names(&tokens(2)), "t1, t2");
        assert!(list_names(&tokens(10)).ends_with("t9, t10"));
        assert!(list_names(&tokens(11)).ends_with("t10 and 1 other token"));
        assert!(list_names(&tokens(5_000)).ends_with("t10 and 4990 other tokens"));
    }
}
