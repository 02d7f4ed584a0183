//! API tokens of organizations and operators.

use std::net::IpAddr;

use berth_core::admission::check_name;
use berth_foundation::credentials::{fingerprint, new_api_token};
use berth_foundation::proxies::network;
use berth_foundation::repeated::HOUR_MS;
use berth_foundation::{
    Caller, Change, Context, Refusal, Right, SessionKey, idempotency, recheck_operator_right, record_refusal,
};
use berth_store::accounts::TokenGrant;
use berth_store::{self as store, Tx, WriteError};
use berth_types::Page;
use berth_types::accounts::{CreatedToken, MAX_TOKENS, NewOperatorToken, NewToken, Role, Token};
use berth_types::ids::{OrgId, TokenId, UserId};
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRight;
use berth_types::portal::PortalSettings;
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::AuditEvent;
use berth_types::scopes::{ApiScope, ApiScopes};
use berth_types::service_accounts::ServiceAccount;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::Accounts;
use crate::members::recheck_manage_right;
use crate::networks::{accept, are_within, parse_networks};

/// The names of deleted tokens in one audit event.
const MAX_NAMES: usize = 10;

/// Refuses a token beyond the number of an organization, or (`None`) of operators.
async fn check_number(tx: &mut Tx<'_>, org: Option<OrgId>) -> Result<(), WriteError> {
    if store::accounts::count_tokens(tx, org).await? < MAX_TOKENS {
        return Ok(());
    }
    let detail = format!(
        "There are {MAX_TOKENS} API tokens already. Nothing was created. Revoke tokens that have expired or are not in use."
    );
    Err(Problem::invalid_field("/name", detail).into())
}

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

/// A new token before its checks.
struct TokenOrder {
    /// The organization; `None` for the operators.
    org: Option<OrgId>,
    /// The service account; the caller's own token without one.
    service_account: Option<UserId>,
    name: String,
    role: Role,
    scopes: Vec<ApiScope>,
    networks: Vec<String>,
    expires_at: Option<Timestamp>,
}

impl TokenOrder {
    /// Checks the scopes, within those of the caller's own token.
    fn check_scopes(&self, caller: &Caller, errors: &mut Vec<FieldError>) {
        let own = caller.token.map(|token| token.scopes);
        if self.scopes.is_empty() || self.scopes.len() > ApiScope::ALL.len() {
            errors.push(FieldError::new("/scopes", "Choose at least one scope, and each one once."));
        } else if let Some(scope) =
            self.scopes.iter().find(|scope| own.is_some_and(|own| !own.include(**scope)))
        {
            let detail =
                format!("Your own token lacks the scope {}. Choose scopes within its own.", scope.name());
            errors.push(FieldError::new("/scopes", detail));
        } else if self.org.is_some()
            && self.service_account.is_none()
            && self.scopes.contains(&ApiScope::Scim)
        {
            let detail =
                "The scope scim works for service accounts only. Choose a service account, or other scopes.";
            errors.push(FieldError::new("/scopes", detail));
        }
    }

    /// Checks the networks, within those of the caller's own token. Returns them in their stored form.
    fn check_networks(&self, own: &[String], errors: &mut Vec<FieldError>) -> Vec<String> {
        let before = errors.len();
        let networks = parse_networks(&self.networks, errors);
        if errors.len() == before && !are_within(&networks, own) {
            let detail =
                format!("Your own token is limited to {}. Choose networks within it.", own.join(", "));
            errors.push(FieldError::new("/networks", detail));
        }
        networks.iter().map(ToString::to_string).collect()
    }

    /// Checks the expiry against the operator's policy and the caller's own token.
    fn check_expiry(
        &self,
        caller: &Caller,
        policy: &PortalSettings,
        now: Timestamp,
        errors: &mut Vec<FieldError>,
    ) {
        let mut refuse = |detail: String| errors.push(FieldError::new("/expires_at", detail));
        let days = policy.max_token_days;
        // A token must not outlive the token that creates it.
        if let Some(end) = caller.expires_at.filter(|_| caller.token.is_some())
            && self.expires_at.is_none_or(|at| at > end)
        {
            refuse(format!("Your own token ends at {end}. Choose this time or an earlier one."));
        }
        match self.expires_at {
            Some(at) if at <= now => refuse("Choose a time in the future, or omit the field.".to_owned()),
            Some(at) if at > now.plus_seconds(days.saturating_mul(86_400)) => {
                refuse(format!("Tokens of this portal last at most {days} days. Choose an earlier time."));
            }
            None if policy.token_expiry_required => {
                refuse(format!("Tokens of this portal need an expiry. Choose a time within {days} days."));
            }
            _ => {}
        }
    }
}

/// The service account of a new token with this role.
///
/// # Errors
/// 422 for an unknown account, and for a role that the account has not.
async fn get_service_account(
    tx: &mut Tx<'_>,
    org: Option<OrgId>,
    account: UserId,
    role: Role,
) -> Result<ServiceAccount, WriteError> {
    let found = match org {
        Some(org) => store::service_accounts::find(tx, org, account).await?,
        None => None,
    };
    let Some(found) = found else {
        let detail = "The organization has no such service account.";
        return Err(Problem::invalid_field("/service_account", detail).into());
    };
    if role != found.role && role != Role::Viewer {
        let detail =
            format!("The service account has the role {}. Choose this role or viewer.", found.role.name());
        return Err(Problem::invalid_field("/role", detail).into());
    }
    Ok(found)
}

/// Checks that the removal of a person at the provider of a session would end a token of this session.
///
/// # Errors
/// 409 for a session by a provider without a refresh token.
async fn check_refreshed(
    tx: &mut Tx<'_>,
    session: &SessionKey,
    org: Option<OrgId>,
) -> Result<(), WriteError> {
    let grant = store::sso::find_grant(tx, session.hash()).await?;
    if grant.is_none_or(|grant| grant.sealed_refresh.is_some()) {
        return Ok(());
    }
    let advice = match org {
        Some(_) => "Create it for a service account.",
        None => "Sign in with your password to create it.",
    };
    let detail = format!(
        "Your single sign-on service gave no refresh token, so your removal there would not end the token. No token was created. {advice}"
    );
    Err(Problem::conflict("sso.no_refresh", "No token in this session", detail).into())
}

/// The limits of a token as a text for the audit record.
fn audit_text(token: &Token) -> String {
    let scopes: Vec<&str> = token.scopes.iter().map(|scope| scope.name()).collect();
    let from = if token.networks.is_empty() { "everywhere".to_owned() } else { token.networks.join(", ") };
    format!("{} with the role {}; scopes {}; from {from}", token.name, token.role.name(), scopes.join(", "))
}

/// Checks a new token. Returns its networks in their stored form.
///
/// # Errors
/// 422 for invalid fields, or more than the caller's own token permits.
async fn check_order(
    context: &Context,
    caller: &Caller,
    order: &TokenOrder,
    now: Timestamp,
) -> Result<Vec<String>, Problem> {
    let mut conn = context.db.read().await?;
    let policy = store::accounts::portal_settings(&mut conn.tx()).await?;
    let own = match caller.token {
        Some(token) => store::accounts::find_networks(&mut conn.tx(), token.id)
            .await?
            .ok_or_else(Problem::unauthenticated)?,
        None => Vec::new(),
    };
    drop(conn);
    let mut errors = Vec::new();
    check_name("/name", &order.name, &mut errors);
    order.check_scopes(caller, &mut errors);
    let networks = order.check_networks(&own, &mut errors);
    order.check_expiry(caller, &policy, now, &mut errors);
    if errors.is_empty() { Ok(networks) } else { Err(Problem::invalid(errors)) }
}

/// Refuses a request from outside the networks of its token. The audit log has it once an hour for each token and
/// network of senders.
pub(super) async fn check_sender(
    context: &Context,
    grant: &TokenGrant,
    sender: Option<IpAddr>,
) -> Result<(), Problem> {
    if accept(&grant.networks, sender) {
        return Ok(());
    }
    let cause = format!("token {} {:?}", grant.id, sender.map(network));
    let detail = "A request from outside the networks of the token.".to_owned();
    let mut event = context.user_event(&grant.user, "token.refused", grant.id.to_string(), detail);
    event.context.token_id = Some(grant.id);
    context.record_repeated(&cause, HOUR_MS, grant.org, event).await;
    let from =
        sender.map_or_else(|| "an unknown address".to_owned(), |sender| sender.to_canonical().to_string());
    let detail = format!(
        "The token accepts no requests from {from}. Nothing was changed. Send the request from one of its networks, or use another token."
    );
    Err(Problem::new(403, "token.address", "Address not accepted", detail))
}

impl Accounts {
    /// Creates a token of the caller or of a service account.
    ///
    /// # Errors
    /// 403 for the token of a service account by a token. 409 in a session by a provider without a refresh token, except
    /// for a service account. 422 for invalid fields, or more than the caller's own token
    /// permits.
    pub async fn create_token(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewToken,
    ) -> Result<CreatedToken, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        // The token of a service account outlives its creator, so no token is its parent.
        if input.service_account.is_some() && caller.token.is_some() {
            record_refusal(&self.context, caller, Refusal::Token);
            return Err(Problem::forbidden(
                "A token creates no token of a service account. Sign in to create one.",
            ));
        }
        let NewToken { name, role, scopes, networks, expires_at, service_account } = input;
        let org = Some(org);
        self.make_token(caller, TokenOrder { org, service_account, name, role, scopes, networks, expires_at })
            .await
    }

    /// Creates a token for scripts with an operator's rights.
    pub async fn create_operator_token(
        &self,
        caller: &Caller,
        input: NewOperatorToken,
    ) -> Result<CreatedToken, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManagePortal).await?;
        let NewOperatorToken { name, scopes, networks, expires_at } = input;
        let (org, service_account, role) = (None, None, Role::Owner);
        self.make_token(caller, TokenOrder { org, service_account, name, role, scopes, networks, expires_at })
            .await
    }

    async fn make_token(&self, caller: &Caller, order: TokenOrder) -> Result<CreatedToken, Problem> {
        self.context.check_proof(caller)?;
        let now = self.context.now();
        let networks = check_order(&self.context, caller, &order, now).await?;
        if caller.already_created().is_some() {
            return Err(idempotency::shown_once());
        }
        let secret = self.context.random(new_api_token);
        let scopes: ApiScopes = order.scopes.iter().copied().collect();
        let token = Token {
            id: self.context.new_id(now),
            name: order.name.trim().to_owned(),
            role: order.role,
            scopes: scopes.iter().collect(),
            networks,
            service_account: None,
            hint: secret.chars().skip(38).collect(),
            created_at: now,
            expires_at: order.expires_at,
            last_used_at: None,
        };
        let (hash, by, key) = (fingerprint(&secret), caller.user.id, caller.idempotency_key.clone());
        let parent = caller.token.map(|token| token.id);
        let session = caller.session.clone();
        let (org, account) = (order.org, order.service_account);
        let detail = audit_text(&token);
        let event = self.context.audit_event(caller, "token.created", token.id.to_string(), detail);
        let insert = self.context.db.try_write(move |tx| {
            let (token, hash, key, event) = (token.clone(), hash.clone(), key.clone(), event.clone());
            let session = session.clone();
            async move {
                // The loss of the right ends all tokens of a user, so a token must not be created after it.
                match org {
                    Some(org) => recheck_manage_right(tx, org, by).await?,
                    None => recheck_operator_right(tx, by, OperatorRight::ManagePortal).await?,
                }
                check_number(tx, org).await?;
                // The revocation of a token ends the tokens that it created, so it creates none after it.
                if let Some(parent) = parent
                    && !store::accounts::token_exists(tx, parent, now).await?
                {
                    return Err(Problem::unauthenticated().into());
                }
                // The end of a session ends its tokens, so it creates none after it.
                if let Some(session) = &session
                    && !store::accounts::session_exists(tx, session.hash()).await?
                {
                    return Err(Problem::unauthenticated().into());
                }
                if account.is_none()
                    && let Some(session) = &session
                {
                    check_refreshed(tx, session, org).await?;
                }
                let account = match account {
                    Some(account) => Some(get_service_account(tx, org, account, token.role).await?),
                    None => None,
                };
                let user = account.as_ref().map_or(by, |account| account.id);
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                store::accounts::insert_token(tx, org, user, &token, &hash, parent).await?;
                // The removal of the person at the provider ends the token, but not that of a service account.
                if account.is_none() {
                    let hash = session.as_ref().map(SessionKey::hash);
                    store::sso::record_token(tx, token.id, hash, parent).await?;
                }
                store::quotas::insert_audit(tx, org, &event).await?;
                Ok(Token { service_account: account.map(|account| account.name), ..token })
            }
            .boxed()
        });
        let token = insert.await?;
        Ok(CreatedToken { secret, token })
    }

    /// A page of the tokens of an organization, or (`None`) of operators.
    pub async fn list_tokens(
        &self,
        caller: &Caller,
        org: Option<OrgId>,
        options: &ListOptions<TokenId>,
    ) -> Result<Page<Token>, Problem> {
        self.authorise_tokens(caller, org, OperatorRight::Inspect).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::accounts::list_tokens(&mut conn.tx(), org, options).await?;
        Ok(options.page(rows, |token| token.id))
    }

    /// Checks the right to manage the tokens of an organization, or (`None`) `right` for those of operators.
    async fn authorise_tokens(
        &self,
        caller: &Caller,
        org: Option<OrgId>,
        right: OperatorRight,
    ) -> Result<(), Problem> {
        match org {
            Some(org) => self.context.authorise(caller, org, Right::Manage).await.map(|_| ()),
            None => self.context.authorise_operator(caller, right).await,
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
        self.authorise_tokens(caller, org, OperatorRight::ManagePortal).await?;
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
