//! Sign-ins by password and second factor, and sign-outs.

use std::net::IpAddr;

use berth_foundation::credentials::{fingerprint, new_opaque};
use berth_foundation::proxies::network;
use berth_foundation::{Change, SessionKey};
use berth_rest::Disconnect;
use berth_store::accounts::NewSession;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::accounts::{SignIn, User};
use berth_types::factors::{FactorKind, SecondFactorSignIn, SignInChallenge};
use berth_types::ids::UserId;
use berth_types::problems::{FieldError, Problem};
use futures::FutureExt;

use super::{Accounts, MAX_EMAIL_BYTES};
use crate::factors::{Pending, WRONG_PASSWORD, challenge_ended};
use crate::grants::{NewGrant, check_password_sign_in, next_refresh};
use crate::passwords;
use crate::refusals::{account_disabled, passkey_refused, too_many_sign_ins, wrong_password};
use crate::user_agent::browser_head;

/// The circumstances of a sign-in.
#[derive(Default)]
pub struct SignInOrigin {
    /// The IP address of the sender.
    pub address: Option<IpAddr>,
    pub disconnect: Disconnect,
    /// The header `User-Agent`, of any length.
    pub browser: String,
    /// The value of the session cookie in the request.
    pub former: Option<String>,
}

/// The result of a sign-in with the right password.
pub enum SignInStep {
    /// The value of the session cookie, and the user.
    Session(String, User),
    /// The account has a second factor.
    Challenge(SignInChallenge),
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

/// The factors of a sign-in, for the audit log.
fn factors_text(grant: Option<&NewGrant>, verified: Option<FactorKind>, by_passkey: bool) -> String {
    if by_passkey {
        return "passkey".to_owned();
    }
    let first = match grant {
        None => "password".to_owned(),
        Some(grant) if grant.second_factor => {
            format!("single sign-on with a second factor by {}", grant.issuer)
        }
        Some(grant) => format!("single sign-on by {}", grant.issuer),
    };
    match verified {
        None => first,
        Some(FactorKind::Passkey) => format!("{first} and passkey"),
        Some(FactorKind::Totp) => format!("{first} and code"),
        Some(FactorKind::Recovery) => format!("{first} and recovery code"),
    }
}

/// Refuses the sign-in of a grant whose provider was removed or changed meanwhile, and of a person who became an operator
/// meanwhile: no organization decides about operators.
async fn check_provider(tx: &mut Tx<'_>, grant: &NewGrant, user: &User) -> Result<(), WriteError> {
    let Some(org) = grant.org else { return Ok(()) };
    let row = store::sso::find_provider(tx, org).await?;
    let is_same = row.is_some_and(|row| row.issuer == grant.issuer && row.client_id == grant.client_id);
    if is_same && !user.operator { Ok(()) } else { Err(challenge_ended().into()) }
}

impl Accounts {
    /// Checks a password and opens a session in place of the `former` one, or a challenge for an account with a second
    /// factor.
    ///
    /// # Errors
    /// 401 for a wrong address or password, and if the account gets a second factor meanwhile. 403 for a disabled
    /// account. 422 for a longer address or password than any account has. 429 after too many attempts. 503 if too many
    /// passwords wait for their verification.
    pub async fn sign_in(&self, input: SignIn, from: SignInOrigin) -> Result<SignInStep, Problem> {
        let errors = check_sign_in(&input);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let email = input.email.trim().to_lowercase();
        // Reserved before the count: a full queue uses up no attempt.
        let place = self.hasher.reserve()?;
        if let Some(wait_s) = self.factors.throttle.count_sender(&email, from.address) {
            return Err(too_many_sign_ins(wait_s));
        }
        let mut conn = self.context.db.read().await?;
        let login = store::accounts::find_login(&mut conn.tx(), &email).await?;
        drop(conn);
        if login.is_some()
            && let Some(wait_s) = self.factors.throttle.count_account(&email, from.address)
        {
            return Err(too_many_sign_ins(wait_s));
        }
        let (user, hash) = login.clone().unzip();
        // An account of a single sign-on has no password.
        let hash = hash.filter(|hash| !hash.is_empty());
        let correct = self.hasher.verify(place, input.password, hash, &from.disconnect).await?;
        let Some((user, password_hash)) = login.filter(|_| correct) else {
            self.record_refused_sign_in(user).await;
            return Err(wrong_password());
        };
        let pending = Pending { user, email, password_hash, grant: None, passkey: None };
        if let Some(challenge) = self.factors.open_challenge(pending.clone()).await? {
            return Ok(SignInStep::Challenge(challenge));
        }
        let (cookie, user) = self.finish_sign_in(pending, None, from).await?;
        Ok(SignInStep::Session(cookie, user))
    }

    /// Completes a sign-in by a code, and opens a session in place of the `former` one. Returns the value of the
    /// session cookie and the user.
    ///
    /// # Errors
    /// 401 for a wrong code, and for a challenge that has ended. 422 for longer texts than the portal makes. 429
    /// after too many attempts.
    pub async fn sign_in_with_code(
        &self,
        input: SecondFactorSignIn,
        from: SignInOrigin,
    ) -> Result<(String, User), Problem> {
        let (pending, kind) = self.factors.complete_challenge(&input, from.address).await?;
        self.finish_sign_in(pending, Some(kind), from).await
    }

    /// Opens the session of a sign-in whose proofs are complete, in place of the `former` one. `verified` is the kind
    /// of the verified factor; `None` without a second factor.
    pub async fn finish_sign_in(
        &self,
        done: Pending,
        verified: Option<FactorKind>,
        from: SignInOrigin,
    ) -> Result<(String, User), Problem> {
        self.factors.throttle.record_success(&done.email, from.address);
        if let Some(former) = &from.former {
            self.sign_out(former).await?;
        }
        self.open_session(done, verified, &from).await
    }

    /// Records a wrong password, or a sign-in to an address without an account. The entered address is not recorded:
    /// it can be a password.
    async fn record_refused_sign_in(&self, user: Option<UserId>) {
        let (subject, detail) = match user {
            Some(user) => (user.to_string(), WRONG_PASSWORD),
            None => ("unknown".to_owned(), "No account has the address."),
        };
        let cause = format!("refused {subject} {detail}");
        let event = self.context.visitor_event("session.refused", subject, detail.to_owned());
        self.refusals.record(&self.context, cause, event).await;
    }

    /// Opens a session, unless the user has another password by now, a second factor by now without a verified one, or
    /// no such passkey any more. Returns the value of its cookie and the user.
    async fn open_session(
        &self,
        done: Pending,
        verified: Option<FactorKind>,
        from: &SignInOrigin,
    ) -> Result<(String, User), Problem> {
        let Pending { user, password_hash, grant, passkey, .. } = done;
        let has_proof = verified.is_some() || grant.as_ref().is_some_and(|grant| grant.second_factor);
        let (cookie, now) = (self.context.random(new_opaque), self.context.now());
        let new = NewSession {
            id: self.context.new_id(now),
            hash: fingerprint(&cookie),
            user,
            network: from.address.map(|address| network(address).to_string()).unwrap_or_default(),
            browser: browser_head(&from.browser),
        };
        let longest_s = self.context.settings.session_absolute_s;
        let longest_s = grant.as_ref().map_or(longest_s, |grant| longest_s.min(grant.longest_s()));
        let expires_at = now.plus_seconds(longest_s);
        let detail = factors_text(grant.as_ref(), verified, passkey.is_some());
        let mut event = self.context.visitor_event("session.started", user.to_string(), detail);
        event.context.session = Some(SessionKey::from_cookie(&cookie).short_name());
        let user = self
            .context
            .db
            .try_write(move |tx| {
                let (new, hash, mut event) = (new.clone(), password_hash.clone(), event.clone());
                let grant = grant.clone();
                async move {
                    if store::people::find_password(tx, user).await?.as_ref() != Some(&hash) {
                        return Err(wrong_password().into());
                    }
                    if !has_proof && store::factors::has_factor(tx, user).await? {
                        return Err(challenge_ended().into());
                    }
                    if let Some(passkey) = passkey
                        && store::passkeys::find(tx, user, passkey).await?.is_none()
                    {
                        return Err(passkey_refused().into());
                    }
                    if let Some(reason) = store::people::find_disabled_reason(tx, user).await? {
                        return Err(account_disabled(&reason).into());
                    }
                    let user = store::accounts::find_user(tx, user).await?.ok_or(StoreError::Unknown)?;
                    match &grant {
                        None => check_password_sign_in(tx, &user, &hash).await?,
                        Some(grant) => check_provider(tx, grant, &user).await?,
                    }
                    store::accounts::insert_session(tx, &new, now, expires_at).await?;
                    if let Some(grant) = grant {
                        let (grant, next_at) = (grant.for_session(&new.hash, now), next_refresh(now));
                        store::sso::insert_grant(tx, &grant, next_at).await?;
                    }
                    event.actor.clone_from(&user.name);
                    event.context.actor_id = Some(user.id);
                    store::quotas::insert_audit(tx, None, &event).await?;
                    Ok(user)
                }
                .boxed()
            })
            .await?;
        Ok((cookie, user))
    }

    /// Ends the session of a cookie. A cookie without a session costs no write.
    pub async fn sign_out(&self, cookie: &str) -> Result<(), Problem> {
        let now = self.context.now();
        let mut conn = self.context.db.read().await?;
        let known = store::factors::find_session_of_cookie(&mut conn.tx(), &fingerprint(cookie), now).await?;
        drop(conn);
        let Some(hash) = known.map(|known| known.key) else { return Ok(()) };
        let session = SessionKey::from_hash(&hash);
        let idle_since = now.plus_seconds(-self.context.settings.session_idle_s);
        let mut event = self.context.visitor_event("session.ended", String::new(), String::new());
        event.context.session = Some(session.short_name());
        let done = self.context.db.write(move |tx| {
            let (hash, mut event) = (hash.clone(), event.clone());
            async move {
                if let Some(found) = store::accounts::find_session(tx, &hash, now, idle_since).await? {
                    event.actor = found.user.name;
                    event.subject = found.user.id.to_string();
                    event.context.actor_id = Some(found.user.id);
                    store::quotas::insert_audit(tx, None, &event).await?;
                }
                store::accounts::delete_session(tx, &hash).await
            }
            .boxed()
        });
        done.await?;
        // Published after the deletion: before it the session could still get a new ticket.
        self.context.publish(Change::SignedOut(session));
        Ok(())
    }
}
