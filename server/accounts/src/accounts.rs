//! First set-up, sign-up, sessions and API tokens.

pub mod routes;

use std::net::IpAddr;

use axum::http::HeaderMap;
use berth_core::admission::{check_name, is_email};
use berth_rest::authentication::{bearer_token, session_cookie};
use berth_types::Page;
use berth_types::accounts::{
    CreatedToken, Me, NewOperatorToken, NewToken, Org, PortalInfo, Role, Setup, SignIn, SignUp, SignedUp,
    Token, User,
};
use berth_types::ids::{OrgId, TokenId};
use berth_types::lists::ListOptions;
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::members::recheck_manage_right;
use crate::passwords::{self, Hasher};
use crate::slugs::free_slug;
use crate::throttle::SignInThrottle;
use berth_foundation::credentials::{fingerprint, looks_like_api_token, new_api_token, new_opaque};
use berth_foundation::{Caller, Right, TokenScope, idempotency};
use berth_foundation::{Change, Context};
use berth_store::{self as store, StoreError, Tx, WriteError};
use std::sync::Arc;

const SETUP_TOKEN: &str = "setup_token";
/// Bytes of an e-mail address, with the white space around it.
pub(crate) const MAX_EMAIL_BYTES: usize = 254;
/// Characters of a set-up token or of the secret of an invitation, with the white space around it. The portal
/// makes secrets of 43 characters.
const MAX_SECRET_CHARS: usize = 100;
/// Precision of the recorded last use of a token.
const LAST_USE_PRECISION_MS: i64 = 60_000;

/// The text for an invalid e-mail address.
pub(crate) const INVALID_EMAIL: &str = "Enter an e-mail address, such as ada@example.org.";

/// Checks the data of a new user. Returns the invalid fields.
pub(crate) fn check_new_user(email: &str, name: &str, password: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !is_email(email) {
        errors.push(FieldError::new("/email", INVALID_EMAIL));
    }
    check_name("/name", name, &mut errors);
    let known: Vec<&str> = if errors.is_empty() { vec![email, name] } else { vec![] };
    errors.extend(passwords::check("/password", password, &known));
    errors
}

/// Checks the length of a set-up token or of the secret of an invitation.
///
/// # Errors
/// The text is longer than every secret of the portal.
pub(crate) fn check_secret(secret: &str) -> Result<(), FieldError> {
    if secret.chars().count() > MAX_SECRET_CHARS {
        return Err(FieldError::new("/token", "Use at most 100 characters."));
    }
    Ok(())
}

/// Checks the lengths of an address and a password. No account has longer ones.
fn check_sign_in(input: &SignIn) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if input.email.len() > MAX_EMAIL_BYTES {
        errors.push(FieldError::new("/email", "Use at most 254 bytes."));
    }
    if input.password.chars().count() > passwords::MAX_CHARS {
        errors.push(FieldError::new("/password", "Use at most 1024 characters."));
    }
    errors
}

pub(crate) fn account_exists() -> Problem {
    Problem::conflict(
        "account.exists",
        "Account exists",
        "An account with this address exists. Sign in instead.",
    )
}

/// Checks that there is no operator, and that the hash belongs to the setup token.
async fn check_setup(tx: &mut Tx<'_>, token_hash: &str) -> Result<(), WriteError> {
    if store::accounts::operator_exists(tx).await? {
        return Err(Problem::conflict(
            "setup.done",
            "Set-up complete",
            "This portal already has an operator. Sign in instead.",
        )
        .into());
    }
    if store::accounts::find_setting(tx, SETUP_TOKEN).await?.as_deref() != Some(token_hash) {
        return Err(Problem::invalid_field(
            "/token",
            "This is not the current setup token. The portal prints it at its start.",
        )
        .into());
    }
    Ok(())
}

/// Users, sessions and API tokens.
#[derive(Clone)]
pub struct Accounts {
    context: Context,
    hasher: Hasher,
    throttle: Arc<SignInThrottle>,
}

impl berth_rest::authentication::Accounts for Accounts {
    fn find_caller<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, Result<Option<Caller>, Problem>> {
        async move {
            match bearer_token(headers) {
                Some(Some(token)) => self.caller_by_token(token).await,
                Some(None) => Ok(None),
                None => match session_cookie(headers, self.context.settings.https) {
                    Some(cookie) => self.caller_by_session(&cookie).await,
                    None => Ok(None),
                },
            }
        }
        .boxed()
    }
}

impl Accounts {
    pub fn new(context: Context, hasher: Hasher) -> Self {
        Self { context, hasher, throttle: Arc::default() }
    }

    /// Makes a new setup token for a portal without an operator. Returns `None` if there is an operator.
    pub async fn open_setup(&self) -> Result<Option<String>, StoreError> {
        let token = self.context.random(new_opaque);
        let hash = fingerprint(&token);
        self.context
            .db
            .write(move |tx| {
                let (token, hash) = (token.clone(), hash.clone());
                async move {
                    if store::accounts::operator_exists(tx).await? {
                        return Ok(None);
                    }
                    store::accounts::put_setting(tx, SETUP_TOKEN, &hash).await?;
                    Ok(Some(token))
                }
                .boxed()
            })
            .await
    }

    pub async fn info(&self) -> Result<PortalInfo, Problem> {
        let mut conn = self.context.db.read().await?;
        Ok(PortalInfo {
            needs_setup: !store::accounts::operator_exists(&mut conn.tx()).await?,
            sign_up_open: self.context.settings.sign_up_open,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ports: self.context.settings.ports_origin.is_some(),
        })
    }

    /// Creates the first operator. The request must have the setup token.
    ///
    /// # Errors
    /// 409 if there is an operator already. 422 for a wrong token.
    pub async fn set_up(&self, input: Setup) -> Result<User, Problem> {
        let mut errors = check_new_user(&input.email, &input.name, &input.password);
        errors.extend(check_secret(&input.token).err());
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let user = User {
            id: self.context.new_id(now),
            email: input.email.trim().to_lowercase(),
            name: input.name.trim().to_owned(),
            operator: true,
        };
        let given = fingerprint(input.token.trim());
        let hash =
            self.hasher.hash(input.password, self.context.salt()).await.map_err(|_| Problem::internal())?;
        let done = self
            .context
            .db
            .try_write(move |tx| {
                let (user, given, hash) = (user.clone(), given.clone(), hash.clone());
                async move {
                    check_setup(tx, &given).await?;
                    store::accounts::insert_user(tx, &user, &hash, now).await?;
                    store::accounts::delete_setting(tx, SETUP_TOKEN).await?;
                    Ok(user)
                }
                .boxed()
            })
            .await;
        match done {
            Err(WriteError::Store(StoreError::Duplicate)) => Err(account_exists()),
            other => Ok(other?),
        }
    }

    /// Creates a user and a new organization with this user as owner.
    ///
    /// # Errors
    /// 403 if sign-up is closed. 409 if the address has an account.
    pub async fn sign_up(&self, input: SignUp) -> Result<SignedUp, Problem> {
        if !self.context.settings.sign_up_open {
            return Err(Problem::forbidden(
                "Sign-up is closed. Ask the operator or an organization for an invitation.",
            ));
        }
        let mut errors = check_new_user(&input.email, &input.name, &input.password);
        check_name("/organization", &input.organization, &mut errors);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let user = User {
            id: self.context.new_id(now),
            email: input.email.trim().to_lowercase(),
            name: input.name.trim().to_owned(),
            operator: false,
        };
        let name = input.organization.trim().to_owned();
        // The write chooses the slug.
        let org = Org { id: self.context.new_id(now), name, slug: String::new(), created_at: now };
        let hash =
            self.hasher.hash(input.password, self.context.salt()).await.map_err(|_| Problem::internal())?;
        let new_user = user.clone();
        let done = self
            .context
            .db
            .write(move |tx| {
                let (user, mut org, hash) = (user.clone(), org.clone(), hash.clone());
                async move {
                    store::accounts::insert_user(tx, &user, &hash, now).await?;
                    org.slug = free_slug(tx, &org).await?;
                    store::accounts::insert_org(tx, &org).await?;
                    store::accounts::insert_member(tx, org.id, user.id, Role::Owner).await?;
                    store::ledger::open_accounts(tx, org.id).await?;
                    Ok(org)
                }
                .boxed()
            })
            .await;
        match done {
            Ok(organization) => {
                // The planner must apply the common limits to the new organization.
                self.context.publish(Change::Orgs);
                Ok(SignedUp { user: new_user, organization })
            }
            Err(StoreError::Duplicate) => Err(account_exists()),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks a password and opens a session. Returns the value of the session cookie and the user. `from` is
    /// the IP address of the request.
    ///
    /// # Errors
    /// 401 for a wrong address or password. 422 for a longer address or password than any account has. 429
    /// after too many wrong passwords.
    pub async fn sign_in(&self, input: SignIn, from: Option<IpAddr>) -> Result<(String, User), Problem> {
        let errors = check_sign_in(&input);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let email = input.email.trim().to_lowercase();
        let mut conn = self.context.db.read().await?;
        let login = store::accounts::find_login(&mut conn.tx(), &email).await?;
        drop(conn);
        let (user, hash) = login.unzip();
        let correct = self.hasher.verify(input.password, hash).await.map_err(|_| Problem::internal())?;
        let Some(user) = user.filter(|_| correct) else {
            if let Some(wait_s) = self.throttle.count_failure(&email, from) {
                let detail = "Too many wrong passwords for this account from your address. Wait before the next try. The account is not locked.";
                return Err(Problem::throttled(detail, wait_s));
            }
            return Err(Problem::new(
                401,
                "auth.wrong_password",
                "Wrong address or password",
                "No account has this address with this password. Check both and try again.",
            ));
        };
        let (cookie, now) = (self.context.random(new_opaque), self.context.now());
        let hash = fingerprint(&cookie);
        let expires_at = now.plus_seconds(self.context.settings.session_absolute_s);
        let user = self
            .context
            .db
            .write(move |tx| {
                let hash = hash.clone();
                async move {
                    store::accounts::insert_session(tx, &hash, user, now, expires_at).await?;
                    store::accounts::find_user(tx, user).await?.ok_or(StoreError::Unknown)
                }
                .boxed()
            })
            .await?;
        Ok((cookie, user))
    }

    pub async fn sign_out(&self, cookie: &str) -> Result<(), Problem> {
        let caller = self.caller_by_session(cookie).await?;
        let hash = fingerprint(cookie);
        let done = self.context.db.write(move |tx| {
            let hash = hash.clone();
            async move { store::accounts::delete_session(tx, &hash).await }.boxed()
        });
        done.await?;
        // Published after the deletion: before it the session could still get a new ticket.
        if let Some(caller) = caller {
            self.context.publish(Change::SignedOut(caller.user.id));
        }
        Ok(())
    }

    /// The caller of a valid session cookie.
    pub async fn caller_by_session(&self, cookie: &str) -> Result<Option<Caller>, Problem> {
        let (now, hash) = (self.context.now(), fingerprint(cookie));
        let idle_since = now.plus_seconds(-self.context.settings.session_idle_s);
        let mut conn = self.context.db.read().await?;
        let found = store::accounts::find_session(&mut conn.tx(), &hash, now, idle_since).await?;
        drop(conn);
        let Some((user, last_seen)) = found else { return Ok(None) };
        // A precision of one minute is enough for an idle limit of hours and avoids a write per request.
        if now.millis_since(last_seen) > 60_000 {
            let touch = self.context.db.write(move |tx| {
                let hash = hash.clone();
                async move { store::accounts::touch_session(tx, &hash, now).await }.boxed()
            });
            touch.await?;
        }
        Ok(Some(Caller { user, token: None, idempotency_key: None }))
    }

    /// The caller of a valid API token.
    pub async fn caller_by_token(&self, secret: &str) -> Result<Option<Caller>, Problem> {
        if !looks_like_api_token(secret) {
            return Ok(None);
        }
        let mut conn = self.context.db.read().await?;
        let now = self.context.now();
        let found = store::accounts::find_token(&mut conn.tx(), &fingerprint(secret), now).await?;
        drop(conn);
        let Some(grant) = found else { return Ok(None) };
        if grant.last_used_at.is_none_or(|at| now.millis_since(at) > LAST_USE_PRECISION_MS) {
            let id = grant.id;
            let touch = self
                .context
                .db
                .write(move |tx| async move { store::accounts::touch_token(tx, id, now).await }.boxed());
            touch.await?;
        }
        let token = Some(TokenScope { id: grant.id, org: grant.org, role: grant.role });
        Ok(Some(Caller { user: grant.user, token, idempotency_key: None }))
    }

    pub async fn me(&self, caller: &Caller) -> Result<Me, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut memberships = store::accounts::list_memberships(&mut conn.tx(), caller.user.id).await?;
        if let Some(token) = caller.token {
            memberships.retain(|m| Some(m.org.id) == token.org);
            memberships.iter_mut().for_each(|m| m.role = token.role);
        }
        Ok(Me { user: caller.user.clone(), memberships, currency: self.context.settings.currency.clone() })
    }

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
        let now = self.context.now();
        let mut errors = Vec::new();
        check_name("/name", &name, &mut errors);
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
        let insert = self.context.db.try_write(move |tx| {
            let (token, hash, key) = (token.clone(), hash.clone(), key.clone());
            async move {
                // The loss of the right ends all tokens of a user, so a token must not be created after it.
                if let Some(org) = org {
                    recheck_manage_right(tx, org, user).await?;
                }
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                store::accounts::insert_token(tx, org, user, &token, &hash).await?;
                Ok(())
            }
            .boxed()
        });
        insert.await?;
        Ok(created)
    }

    /// The tokens of an organization, or the operators' tokens without an organization.
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

    pub async fn revoke_token(
        &self,
        caller: &Caller,
        org: Option<OrgId>,
        token: TokenId,
    ) -> Result<(), Problem> {
        self.authorise_tokens(caller, org).await?;
        let delete = self
            .context
            .db
            .write(move |tx| async move { store::accounts::delete_token(tx, org, token).await }.boxed());
        if !delete.await? {
            return Err(Problem::not_found());
        }
        // The streams of the token end with it.
        self.context.publish(Change::TokenRevoked(token));
        Ok(())
    }

    /// Deletes expired sessions.
    pub async fn forget_old(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        let idle_since = now.plus_seconds(-self.context.settings.session_idle_s);
        self.context
            .db
            .write(move |tx| {
                async move { store::accounts::forget_sessions(tx, now, idle_since).await }.boxed()
            })
            .await
    }
}
