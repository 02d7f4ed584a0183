//! First set-up, sign-up, sessions and API tokens.

mod name;
mod refused;
pub mod routes;
mod sign_in;
mod tokens;

pub use sign_in::{SignInOrigin, SignInStep};
use tokens::check_sender;

use std::net::IpAddr;

use axum::http::HeaderMap;
use berth_core::admission::{check_name, is_email};
use berth_passkeys::RelyingParty;
use berth_rest::Disconnect;
use berth_rest::authentication::{bearer_token, session_cookie};
use berth_types::accounts::{Me, Org, PortalInfo, Role, Setup, SignUp, SignedUp, User};
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::context_words;
use crate::factors::SecondFactors;
use crate::link_mails::start_verification;
use crate::mails::Mails;
use crate::passwords::{self, Hasher};
use crate::slugs::free_slug;
use crate::throttle::{LinkThrottle, RequestThrottle, SignUpThrottle};
use berth_foundation::credentials::{fingerprint, looks_like_api_token, new_opaque};
use berth_foundation::{Caller, Refusal, SessionProof, TokenScope, record_refusal};
use berth_foundation::{Change, Context, SessionKey};
use berth_store::factors::SessionOfCookie;
use berth_store::{self as store, StoreError, Tx, WriteError};
use refused::Refusals;
use std::sync::Arc;

const SETUP_TOKEN: &str = "setup_token";
/// Bytes of an e-mail address, with the white space around it.
pub(crate) const MAX_EMAIL_BYTES: usize = 254;
/// Characters of a set-up token or of the secret of an invitation, with the white space around it. The portal
/// makes secrets of 43 characters.
const MAX_SECRET_CHARS: usize = 100;
/// Precision of the recorded last use of a token.
const LAST_USE_PRECISION_MS: i64 = 60_000;
/// Seconds for which an organization without members keeps its billing details. The invoice of its last month comes
/// before.
const DETAILS_S: i64 = 40 * 86_400;
/// The time of a proof that is never fresh.
const NO_PROOF: Timestamp = Timestamp::from_micros(0);

/// The text for an invalid e-mail address.
pub(crate) const INVALID_EMAIL: &str = "Enter an e-mail address, such as ada@example.org.";

/// Checks the data of a new user. `texts` are those of the portal and of the organization. Returns the invalid fields.
pub(crate) fn check_new_user(email: &str, name: &str, password: &str, texts: &[String]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !is_email(email) {
        errors.push(FieldError::new("/email", INVALID_EMAIL));
    }
    check_name("/name", name, &mut errors);
    let mut known: Vec<&str> = if errors.is_empty() { vec![email, name] } else { vec![] };
    known.extend(texts.iter().map(String::as_str));
    errors.extend(passwords::check("/password", password, &known));
    errors
}

/// Checks the length of a set-up token or of the secret of an invitation.
///
/// # Errors
/// The text is longer than every secret of the portal.
fn check_secret(secret: &str) -> Result<(), FieldError> {
    if secret.chars().count() > MAX_SECRET_CHARS {
        return Err(FieldError::new("/token", "Use at most 100 characters."));
    }
    Ok(())
}

/// The stored hash of the secret in a request.
///
/// # Errors
/// The text is longer than every secret.
pub(crate) fn hash_secret(secret: &str) -> Result<String, Problem> {
    check_secret(secret).map_err(|error| Problem::invalid(vec![error]))?;
    Ok(fingerprint(secret.trim()))
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
    pub(crate) context: Context,
    pub(crate) hasher: Hasher,
    pub factors: SecondFactors,
    sign_ups: Arc<SignUpThrottle>,
    requests: Arc<RequestThrottle>,
    pub(crate) links: Arc<LinkThrottle>,
    refusals: Refusals,
    pub(crate) mails: Mails,
}

impl berth_rest::authentication::Accounts for Accounts {
    fn find_caller<'a>(
        &'a self,
        headers: &'a HeaderMap,
        sender: Option<IpAddr>,
    ) -> BoxFuture<'a, Result<Option<Caller>, Problem>> {
        async move {
            let found = match bearer_token(headers) {
                Some(Some(token)) => self.caller_by_token(token, sender).await?,
                Some(None) => None,
                None => match session_cookie(headers, self.context.settings.https) {
                    Some(cookie) => self.caller_by_session(&cookie).await?,
                    None => None,
                },
            };
            if let Some(caller) = &found
                && let Some(wait_s) =
                    self.requests.count_request(caller.user.id, caller.token.map(|token| token.id))
            {
                let detail = "Too many requests of this account or API token. Nothing was changed. Wait before the next request.";
                return Err(Problem::throttled(detail, wait_s));
            }
            Ok(found)
        }
        .boxed()
    }

    fn record_refusal(&self, caller: &Caller, refusal: Refusal) {
        record_refusal(&self.context, caller, refusal);
    }
}

impl Accounts {
    pub fn new(context: Context, hasher: Hasher, factors: SecondFactors) -> Self {
        let mails = factors.mails.clone();
        let requests = Arc::new(RequestThrottle::new(context.settings.caller_requests_per_s));
        Self {
            context,
            hasher,
            factors,
            sign_ups: Arc::default(),
            requests,
            links: Arc::default(),
            refusals: Refusals::default(),
            mails,
        }
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
        let mut tx = conn.tx();
        let sso =
            self.context.settings.operator_provider.is_some() || store::sso::provider_exists(&mut tx).await?;
        Ok(PortalInfo {
            needs_setup: !store::accounts::operator_exists(&mut tx).await?,
            sso,
            passkeys: RelyingParty::from_url(&self.context.settings.public_url).is_some(),
            sign_up_open: self.context.settings.sign_up_open,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ports: self.context.settings.ports_origin.is_some(),
        })
    }

    /// Creates the first operator. The request must have the setup token.
    ///
    /// # Errors
    /// 409 if there is an operator already. 422 for a wrong token. 503 if too many passwords wait for their hashes.
    pub async fn set_up(&self, input: Setup, sender: &Disconnect) -> Result<User, Problem> {
        let texts = context_words::read_at_once(&self.context).await?;
        let mut errors = check_new_user(&input.email, &input.name, &input.password, &texts);
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
        // Checked before the expensive hash of the password, and again in the write.
        {
            let mut conn = self.context.db.read().await?;
            check_setup(&mut conn.tx(), &given).await?;
        }
        let hash = self.hasher.hash(input.password, self.context.salt(), sender).await?;
        let event = self.context.user_event(&user, "portal.set_up", user.id.to_string(), String::new());
        let done = self
            .context
            .db
            .try_write(move |tx| {
                let (user, given, hash) = (user.clone(), given.clone(), hash.clone());
                let event = event.clone();
                async move {
                    check_setup(tx, &given).await?;
                    store::accounts::insert_user(tx, &user, &hash, now).await?;
                    store::accounts::delete_setting(tx, SETUP_TOKEN).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
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
    /// 403 if sign-up is closed. 409 if the address has an account. 429 after many sign-ups from one
    /// network. 503 if too many passwords wait for their hashes.
    pub async fn sign_up(
        &self,
        input: SignUp,
        address: Option<IpAddr>,
        sender: &Disconnect,
    ) -> Result<SignedUp, Problem> {
        if !self.context.settings.sign_up_open {
            return Err(Problem::forbidden(
                "Sign-up is closed. Ask the operator or an organization for an invitation.",
            ));
        }
        if let Some(wait_s) = self.sign_ups.count_sign_up(address) {
            let detail = "Too many sign-ups from your network. Wait before the next try.";
            return Err(Problem::throttled(detail, wait_s));
        }
        let mut texts = context_words::read_at_once(&self.context).await?;
        texts.push(input.organization.clone());
        let mut errors = check_new_user(&input.email, &input.name, &input.password, &texts);
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
        let hash = self.hasher.hash(input.password, self.context.salt(), sender).await?;
        let detail = format!("Organization {}", org.name);
        let event = self.context.user_event(&user, "user.signed_up", user.id.to_string(), detail);
        let new_user = user.clone();
        let verification = self.context.settings.verify_email;
        let done = self
            .context
            .db
            .write(move |tx| {
                let (user, mut org, hash) = (user.clone(), org.clone(), hash.clone());
                let event = event.clone();
                async move {
                    store::accounts::insert_user(tx, &user, &hash, now).await?;
                    if verification {
                        store::people::unverify_email(tx, user.id).await?;
                    }
                    org.slug = free_slug(tx, &org).await?;
                    store::accounts::insert_org(tx, &org).await?;
                    store::accounts::insert_member(tx, org.id, user.id, Role::Owner).await?;
                    store::ledger::open_accounts(tx, org.id).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(org)
                }
                .boxed()
            })
            .await;
        match done {
            Ok(organization) => {
                // The planner must apply the common limits to the new organization.
                self.context.publish(Change::Orgs);
                if verification {
                    self.mail_first_verification(&new_user, address);
                }
                Ok(SignedUp { user: new_user, organization })
            }
            Err(StoreError::Duplicate) => Err(account_exists()),
            Err(error) => Err(error.into()),
        }
    }

    /// Mails the first link to the address of a new user. Without the mail the user requests another link.
    fn mail_first_verification(&self, user: &User, from: Option<IpAddr>) {
        match self.mails.reserve() {
            Ok(place) if self.links.count_link(&user.email, from).is_none() => {
                start_verification(&self.context, &self.mails, place, user.clone());
            }
            Ok(_) => {}
            Err(problem) => tracing::warn!(%problem, "the verification of a new address was not mailed"),
        }
    }

    /// The caller of a valid session cookie.
    pub async fn caller_by_session(&self, cookie: &str) -> Result<Option<Caller>, Problem> {
        let now = self.context.now();
        let idle_since = now.plus_seconds(-self.context.settings.session_idle_s);
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let known = store::factors::find_session_of_cookie(&mut tx, &fingerprint(cookie), now).await?;
        let Some(SessionOfCookie { key: hash, is_former }) = known else { return Ok(None) };
        let session = SessionKey::from_hash(&hash);
        let found = store::accounts::find_session(&mut tx, &hash, now, idle_since).await?;
        drop(conn);
        let Some(found) = found else { return Ok(None) };
        // A precision of one minute is enough for an idle limit of hours and avoids a write per request.
        if now.millis_since(found.last_seen_at) > 60_000 {
            let touch = self.context.db.write(move |tx| {
                let hash = hash.clone();
                async move { store::accounts::touch_session(tx, &hash, now).await }.boxed()
            });
            touch.await?;
        }
        let required = self.context.settings.require_factor.applies_to_session(&found);
        let proof = SessionProof {
            // A thief with a copy of the former cookie must not use the proof of the person.
            proved_at: if is_former { NO_PROOF } else { found.proved_at },
            has_factor: found.has_factor,
            must_enrol: required && !found.has_factor,
        };
        Ok(Some(Caller {
            user: found.user,
            operator_role: found.operator_role,
            token: None,
            session: Some(session),
            expires_at: Some(found.expires_at),
            proof: Some(proof),
            idempotency_key: None,
        }))
    }

    /// The caller of a valid API token, in a request from this sender.
    ///
    /// # Errors
    /// 403 if the sender is outside the networks of the token.
    pub async fn caller_by_token(
        &self,
        secret: &str,
        sender: Option<IpAddr>,
    ) -> Result<Option<Caller>, Problem> {
        if !looks_like_api_token(secret) {
            return Ok(None);
        }
        let mut conn = self.context.db.read().await?;
        let now = self.context.now();
        let found = store::accounts::find_token(&mut conn.tx(), &fingerprint(secret), now).await?;
        drop(conn);
        let Some(grant) = found else { return Ok(None) };
        check_sender(&self.context, &grant, sender).await?;
        if grant.last_used_at.is_none_or(|at| now.millis_since(at) > LAST_USE_PRECISION_MS) {
            let id = grant.id;
            let touch = self
                .context
                .db
                .write(move |tx| async move { store::accounts::touch_token(tx, id, now).await }.boxed());
            touch.await?;
        }
        let token = Some(TokenScope { id: grant.id, org: grant.org, role: grant.role, scopes: grant.scopes });
        Ok(Some(Caller {
            user: grant.user,
            operator_role: grant.operator_role,
            token,
            session: None,
            expires_at: grant.expires_at,
            proof: None,
            idempotency_key: None,
        }))
    }

    pub async fn me(&self, caller: &Caller) -> Result<Me, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut memberships = store::accounts::list_memberships(&mut conn.tx(), caller.user.id).await?;
        if let Some(token) = caller.token {
            memberships.retain(|m| Some(m.org.id) == token.org);
            memberships.iter_mut().for_each(|m| m.role = token.role);
        }
        let email_verified_at = store::people::find_verified_at(&mut conn.tx(), caller.user.id).await?;
        Ok(Me {
            user: caller.user.clone(),
            // The token of an organization has no rights of operators.
            operator_role: caller.acting_operator_role(),
            memberships,
            currency: self.context.settings.currency.clone(),
            email_verified_at,
            second_factor: caller.proof.is_some_and(|proof| proof.has_factor),
            second_factor_required: caller.proof.is_some_and(|proof| proof.must_enrol),
        })
    }

    /// The number of hashes of passwords that were computed since the start.
    pub fn password_hashes(&self) -> u64 {
        self.hasher.hashes()
    }

    /// Waits for the mails that are not sent yet.
    pub async fn mails_sent(&self) {
        self.mails.finished().await;
    }

    /// Waits for the events of refused sign-ins that are not written yet.
    pub async fn refusals_written(&self) {
        self.refusals.written().await;
    }

    /// Deletes expired sessions, links in mails, and the billing details of organizations after their last invoice.
    pub async fn forget_old(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        let idle_since = now.plus_seconds(-self.context.settings.session_idle_s);
        let left_before = now.plus_seconds(-DETAILS_S);
        self.context
            .db
            .write(move |tx| {
                async move {
                    store::people::forget_links(tx, now).await?;
                    store::billing_details::forget_left(tx, left_before).await?;
                    store::accounts::forget_sessions(tx, now, idle_since).await?;
                    store::sso::forget_grants(tx).await
                }
                .boxed()
            })
            .await
    }
}
