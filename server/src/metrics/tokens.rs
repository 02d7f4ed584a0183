//! The tokens for metrics. An operator's API token can read the metrics too.

use std::net::IpAddr;

use berth_core::admission::check_name;
use berth_rest::scopes::{find_missing_scope, missing_scope};
use berth_types::Page;
use berth_types::accounts::{CreatedToken, NewMetricsToken, Role, Token};
use berth_types::ids::TokenId;
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError, Problem};
use berth_types::scopes::ApiScope;
use futures::FutureExt;

use berth_foundation::credentials::{fingerprint, looks_like_api_token, new_api_token};
use berth_foundation::{Caller, Refusal, idempotency, recheck_operator_right, record_refusal};

use super::Metrics;
use berth_store as store;

/// The precision of the recorded last use of a token.
const USED_EVERY_MS: i64 = 60_000;

impl Metrics {
    /// Authorises a token for metrics, or an operator's API token with the scope `fleet:read` from this sender.
    ///
    /// # Errors
    /// 401 if the secret is no valid token, 403 if the token has other rights.
    pub async fn authorise_metrics(
        &self,
        secret: Option<&str>,
        sender: Option<IpAddr>,
    ) -> Result<(), Problem> {
        let Some(secret) = secret.filter(|secret| looks_like_api_token(secret)) else {
            return Err(Problem::unauthenticated());
        };
        let now = self.context.now();
        let mut conn = self.context.db.read().await?;
        let found = store::metrics_tokens::find(&mut conn.tx(), &fingerprint(secret), now).await?;
        drop(conn);
        if let Some(token) = found {
            if token.last_used_at.is_none_or(|at| now.millis_since(at) > USED_EVERY_MS) {
                let id = token.id;
                let touch = self
                    .context
                    .db
                    .write(move |tx| async move { store::metrics_tokens::touch(tx, id, now).await }.boxed());
                touch.await?;
            }
            return Ok(());
        }
        let caller = self.accounts.caller_by_token(secret, sender).await?;
        let caller = caller.ok_or_else(Problem::unauthenticated)?;
        if let Some(scope) = find_missing_scope(&caller, Some(ApiScope::FleetRead)) {
            record_refusal(&self.context, &caller, Refusal::Scope(scope));
            return Err(missing_scope(scope));
        }
        self.context.authorise_operator(&caller, OperatorRight::View).await.map_err(|_| {
            let detail = "Metrics cover all organizations. Ask the operator for a metrics token.";
            Problem::forbidden(detail)
        })
    }

    /// Creates a token for metrics. It has no other right.
    ///
    /// # Errors
    /// 404 for callers who are no operators; 422 for an invalid name or expiry.
    pub async fn create_metrics_token(
        &self,
        caller: &Caller,
        input: NewMetricsToken,
    ) -> Result<CreatedToken, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManagePortal).await?;
        self.context.check_proof(caller)?;
        let now = self.context.now();
        let mut errors = Vec::new();
        check_name("/name", &input.name, &mut errors);
        if input.expires_at.is_some_and(|at| at <= now) {
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
            name: input.name.trim().to_owned(),
            role: Role::Viewer,
            scopes: Vec::new(),
            networks: Vec::new(),
            service_account: None,
            hint: secret.chars().skip(38).collect(),
            created_at: now,
            expires_at: input.expires_at,
            last_used_at: None,
        };
        let created = CreatedToken { secret: secret.clone(), token: token.clone() };
        let (hash, user, key) = (fingerprint(&secret), caller.user.id, caller.idempotency_key.clone());
        let (id, name) = (token.id.to_string(), token.name.clone());
        let event = self.context.audit_event(caller, "metrics_token.created", id, name);
        let insert = self.context.db.try_write(move |tx| {
            let (token, hash, key, event) = (token.clone(), hash.clone(), key.clone(), event.clone());
            async move {
                recheck_operator_right(tx, user, OperatorRight::ManagePortal).await?;
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                store::metrics_tokens::insert(tx, &token, &hash, user).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(())
            }
            .boxed()
        });
        insert.await?;
        Ok(created)
    }

    /// A page of the tokens for the metrics.
    pub async fn list_metrics_tokens(
        &self,
        caller: &Caller,
        options: &ListOptions<TokenId>,
    ) -> Result<Page<Token>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::Inspect).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::metrics_tokens::list(&mut conn.tx(), options).await?;
        Ok(options.page(rows, |token| token.id))
    }

    pub async fn revoke_metrics_token(&self, caller: &Caller, token: TokenId) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManagePortal).await?;
        let event =
            self.context.audit_event(caller, "metrics_token.revoked", token.to_string(), String::new());
        let delete = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let existed = store::metrics_tokens::delete(tx, token).await?;
                if existed {
                    store::quotas::insert_audit(tx, None, &event).await?;
                }
                Ok(existed)
            }
            .boxed()
        });
        if delete.await? { Ok(()) } else { Err(Problem::not_found()) }
    }
}
