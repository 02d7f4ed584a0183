//! Second factors: authenticator apps, recovery codes, the second step of a sign-in, and proofs of identity.
//!
//! A kind of factor is a variant of `FactorKind`, with its own table and its own module here.

mod challenges;
mod policy;
mod reseal;
pub mod routes;
mod totp;

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::Uri;
use berth_foundation::credentials::{fingerprint, new_opaque, new_recovery_code, new_totp_key};
use berth_foundation::delivery::Transport;
use berth_foundation::envelope::{EnvelopeError, Keys, SealingContext};
use berth_foundation::repeated::MINUTE_MS;
use berth_foundation::{Caller, Change, Context, SessionKey};
use berth_rest::Disconnect;
use berth_store::factors::StoredTotp;
use berth_store::{self as store, StoreError};
use berth_types::factors::{
    FactorKind, NewProof, RecoveryCodes, SecondFactorSignIn, SecondFactors as Factors, SignInChallenge,
    TotpEnrolment, TotpFactor,
};
use berth_types::ids::UserId;
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use crate::link_mails::{FactorChange, start_factor_notice};
use crate::mails::Mails;
use crate::passwords::{self, Hasher};
use crate::refusals::too_many_sign_ins;
use crate::throttle::{CodeThrottle, SignInThrottle};
use challenges::Challenges;
pub(crate) use challenges::Pending;
use totp::{TotpKey, qr_svg};

/// Recovery codes of one user.
const RECOVERY_CODES: usize = 10;
/// Characters of a code with its spaces and hyphens.
const MAX_CODE_CHARS: usize = 40;
/// The details of refusals in the audit log.
const WRONG_CODE: &str = "Wrong code.";
pub(crate) const WRONG_PASSWORD: &str = "Wrong password.";
/// Characters of a challenge. The portal makes challenges of 43 characters.
const MAX_CHALLENGE_CHARS: usize = 100;

fn wrong_code() -> Problem {
    Problem::new(
        401,
        "auth.wrong_code",
        "Wrong code",
        "The code is wrong, or it was used before. Enter the next code of the app, or a recovery code.",
    )
}

pub(crate) fn challenge_ended() -> Problem {
    Problem::new(
        401,
        "auth.challenge",
        "Sign-in expired",
        "The first step of this sign-in is more than five minutes old, had five wrong codes, or came before a change of the account. Enter the password again.",
    )
}

pub(crate) fn no_factor() -> Problem {
    Problem::conflict(
        "factor.missing",
        "No authenticator app",
        "Your account has no authenticator app. Nothing was changed. Add an authenticator app first.",
    )
}

fn factor_exists() -> Problem {
    Problem::conflict(
        "factor.exists",
        "Authenticator app exists",
        "Your account has an authenticator app. Nothing was changed. Remove the app before you add another.",
    )
}

fn factor_replaced() -> Problem {
    Problem::conflict(
        "factor.missing",
        "App replaced",
        "Another request replaced or removed the new authenticator app. Nothing was confirmed. Load the page again, and enter a code of the present app.",
    )
}

/// A code without spaces and hyphens, in lower case.
fn normal_code(code: &str) -> String {
    code.chars().filter(|c| !c.is_whitespace() && *c != '-').collect::<String>().to_lowercase()
}

/// Checks the length of a code.
fn check_code(code: &str) -> Result<(), FieldError> {
    if code.chars().count() > MAX_CODE_CHARS {
        return Err(FieldError::new("/code", "Use at most 40 characters."));
    }
    Ok(())
}

/// Runs `work` with the sealing context of the secret of a user's app.
fn with_totp_context<T>(user: UserId, work: impl FnOnce(&SealingContext<'_>) -> T) -> T {
    let user = user.to_string();
    work(&SealingContext { kind: "totp", org: "", name: &user, version: 1 })
}

/// The sender of a password or code of a signed-in person.
#[derive(Default)]
pub struct ProofOrigin {
    /// The IP address of the sender.
    pub address: Option<IpAddr>,
    pub disconnect: Disconnect,
}

/// The second factors of all users.
#[derive(Clone)]
pub struct SecondFactors {
    context: Context,
    hasher: Hasher,
    challenges: Arc<Challenges>,
    codes: Arc<CodeThrottle>,
    pub(crate) throttle: Arc<SignInThrottle>,
    pub(crate) mails: Mails,
}

impl SecondFactors {
    pub fn new(context: Context, hasher: Hasher, transport: Arc<Transport>) -> Self {
        Self {
            context,
            hasher,
            challenges: Arc::default(),
            codes: Arc::default(),
            throttle: Arc::default(),
            mails: Mails::new(transport),
        }
    }

    fn keys(&self) -> Result<Arc<Keys>, Problem> {
        self.context.keys().map_err(|error| {
            tracing::error!(error, "no key for second factors is available");
            Problem::internal()
        })
    }

    async fn find_totp(&self, user: UserId) -> Result<Option<StoredTotp>, Problem> {
        let mut conn = self.context.db.read().await?;
        Ok(store::factors::find_totp(&mut conn.tx(), user).await?)
    }

    /// Opens the secret of an app.
    fn open_key(&self, row: &StoredTotp) -> Result<TotpKey, Problem> {
        let keys = self.keys()?;
        let opened = with_totp_context(row.user_id, |context| keys.open_sealed(context, &row.sealed));
        let opened = opened.inspect_err(
            |error| tracing::error!(user = %row.user_id, %error, "the secret of an authenticator app cannot be opened"),
        );
        opened.ok().and_then(|text| TotpKey::parse(&text)).ok_or_else(Problem::internal)
    }

    /// The name of the portal in an authenticator app.
    fn issuer(&self) -> String {
        let url: Option<Uri> = self.context.settings.public_url.parse().ok();
        let host = url.as_ref().and_then(Uri::host).unwrap_or_default();
        // A colon separates the issuer from the account.
        format!("Berth {}", host.replace(':', ".")).trim().to_owned()
    }

    /// The second factors of the caller.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn list(&self, caller: &Caller) -> Result<Factors, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let totp = store::factors::find_totp(&mut tx, caller.user.id).await?;
        let totp = totp.and_then(|row| row.confirmed_at).map(|confirmed_at| TotpFactor { confirmed_at });
        let recovery_codes = store::factors::count_recovery_codes(&mut tx, caller.user.id).await?;
        Ok(Factors { totp, recovery_codes })
    }

    /// Makes the secret of a new app. It has no effect before [`confirm`](Self::confirm).
    ///
    /// # Errors
    /// 403 without a fresh proof. 409 if the caller has an app.
    pub async fn enrol(&self, caller: &Caller) -> Result<TotpEnrolment, Problem> {
        self.context.check_person(caller)?;
        let (user, now) = (caller.user.id, self.context.now());
        let made = TotpKey::new(self.context.random(new_totp_key), &self.issuer(), &caller.user.email);
        let made = made.and_then(|key| Ok((key.to_base32(), key.to_url()?)));
        let (secret, url) = made.map_err(|error| {
            tracing::error!(%error, "an authenticator app cannot be made");
            Problem::internal()
        })?;
        let svg = qr_svg(&url).ok_or_else(Problem::internal)?;
        let keys = self.keys()?;
        let sealed = with_totp_context(user, |context| keys.seal(context, &secret)).map_err(seal_error)?;
        let stored = self.context.db.write(move |tx| {
            let sealed = sealed.clone();
            async move { store::factors::put_totp(tx, user, &sealed, now).await }.boxed()
        });
        if stored.await? { Ok(TotpEnrolment { secret, url, svg }) } else { Err(factor_exists()) }
    }

    /// New recovery codes with their hashes.
    fn new_recovery_codes(&self) -> (RecoveryCodes, Vec<String>) {
        let codes: Vec<String> =
            (0..RECOVERY_CODES).map(|_| self.context.random(new_recovery_code)).collect();
        let hashes = codes.iter().map(|code| fingerprint(&normal_code(code))).collect();
        (RecoveryCodes { codes }, hashes)
    }

    /// Confirms a new app by a code, and ends all other sessions of the caller, because a password opened them. Returns
    /// the recovery codes.
    ///
    /// # Errors
    /// 403 without a fresh proof. 409 without a new app, or if it is confirmed or replaced. 422 for a wrong code. 429
    /// after too many codes.
    pub async fn confirm(&self, caller: &Caller, code: &str) -> Result<RecoveryCodes, Problem> {
        self.context.check_person(caller)?;
        check_code(code).map_err(|error| Problem::invalid(vec![error]))?;
        let (user, now) = (caller.user.id, self.context.now());
        self.count_code(user)?;
        let row = self.find_totp(user).await?.ok_or_else(no_factor)?;
        if row.confirmed_at.is_some() {
            return Err(factor_exists());
        }
        let step = self.open_key(&row)?.find_step(&normal_code(code), now).ok_or_else(|| {
            let detail =
                "The code does not fit. Enter the present code of the app, and check the clock of its device.";
            Problem::invalid_field("/code", detail)
        })?;
        self.codes.record_success(user);
        let (codes, hashes) = self.new_recovery_codes();
        let event = self.context.audit_event(caller, "factor.added", user.to_string(), String::new());
        let kept = caller.session.as_ref().map(|session| session.hash().to_owned()).unwrap_or_default();
        let confirmed = self.context.db.try_write(move |tx| {
            let (row, hashes, event) = (row.clone(), hashes.clone(), event.clone());
            let kept = kept.clone();
            async move {
                if !store::factors::confirm_totp(tx, &row, step, now).await? {
                    let present = store::factors::find_totp(tx, user).await?;
                    let is_confirmed = present.is_some_and(|row| row.confirmed_at.is_some());
                    let refusal = if is_confirmed { factor_exists() } else { factor_replaced() };
                    return Err(refusal.into());
                }
                store::factors::replace_recovery_codes(tx, user, &hashes).await?;
                let ended = store::people::end_sessions(tx, user, &kept).await?;
                let detail = format!("other sessions ended: {}", ended.len());
                store::quotas::insert_audit(tx, None, &AuditEvent { detail, ..event }).await?;
                Ok(ended)
            }
            .boxed()
        });
        for hash in confirmed.await? {
            self.context.publish(Change::SignedOut(SessionKey::from_hash(&hash)));
        }
        start_factor_notice(&self.context, &self.mails, caller.user.clone(), FactorChange::Added);
        Ok(codes)
    }

    /// Removes the app and the recovery codes.
    ///
    /// # Errors
    /// 403 without a fresh proof. 409 without an app.
    pub async fn remove(&self, caller: &Caller) -> Result<(), Problem> {
        self.context.check_person(caller)?;
        let user = caller.user.id;
        let event = self.context.audit_event(caller, "factor.removed", user.to_string(), String::new());
        let removed = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                if !store::factors::delete_totp(tx, user).await? {
                    return Err(no_factor().into());
                }
                store::factors::replace_recovery_codes(tx, user, &[]).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(())
            }
            .boxed()
        });
        removed.await?;
        start_factor_notice(&self.context, &self.mails, caller.user.clone(), FactorChange::Removed);
        Ok(())
    }

    /// Replaces the recovery codes.
    ///
    /// # Errors
    /// 403 without a fresh proof. 409 without an app.
    pub async fn renew_codes(&self, caller: &Caller) -> Result<RecoveryCodes, Problem> {
        self.context.check_person(caller)?;
        let user = caller.user.id;
        let (codes, hashes) = self.new_recovery_codes();
        let event =
            self.context.audit_event(caller, "factor.codes_replaced", user.to_string(), String::new());
        let replaced = self.context.db.try_write(move |tx| {
            let (hashes, event) = (hashes.clone(), event.clone());
            async move {
                let row = store::factors::find_totp(tx, user).await?;
                if row.is_none_or(|row| row.confirmed_at.is_none()) {
                    return Err(no_factor().into());
                }
                store::factors::replace_recovery_codes(tx, user, &hashes).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(())
            }
            .boxed()
        });
        replaced.await?;
        Ok(codes)
    }

    /// Counts a code of a user before its verification.
    fn count_code(&self, user: UserId) -> Result<(), Problem> {
        match self.codes.count_code(user) {
            None => Ok(()),
            Some(wait_s) => {
                let detail = "Too many codes for this account. Wait before the next try. The account is not locked. If you did not enter them, somebody knows your password: change it.";
                Err(Problem::throttled(detail, wait_s))
            }
        }
    }

    /// Counts a password or a code of an account before its verification.
    fn count_attempt(&self, email: &str, address: Option<IpAddr>) -> Result<(), Problem> {
        match self.throttle.count_attempt(email, address) {
            None => Ok(()),
            Some(wait_s) => Err(too_many_sign_ins(wait_s)),
        }
    }

    /// Verifies a code and uses it up. Each code is right at most once. Returns the kind of a right code.
    async fn verify_code(&self, user: UserId, code: &str) -> Result<Option<FactorKind>, Problem> {
        self.count_code(user)?;
        let (code, now) = (normal_code(code), self.context.now());
        let row = self.find_totp(user).await?;
        let Some(row) = row.filter(|row| row.confirmed_at.is_some()) else { return Ok(None) };
        let is_totp = code.len() == 6 && code.bytes().all(|c| c.is_ascii_digit());
        let kind = if is_totp { FactorKind::Totp } else { FactorKind::Recovery };
        let right = if is_totp {
            let Some(step) = self.open_key(&row)?.find_step(&code, now) else { return Ok(None) };
            let accepted = self.context.db.write(move |tx| {
                let row = row.clone();
                async move { store::factors::accept_step(tx, &row, step).await }.boxed()
            });
            accepted.await?
        } else {
            let hash = fingerprint(&code);
            let used = self.context.db.write(move |tx| {
                let hash = hash.clone();
                async move { store::factors::use_recovery_code(tx, user, &hash, now).await }.boxed()
            });
            used.await?
        };
        if right {
            self.codes.record_success(user);
        }
        Ok(right.then_some(kind))
    }

    /// Records a wrong code or password of a user.
    pub(crate) async fn record_refusal(&self, event: AuditEvent) {
        let cause = format!("refused {} {}", event.subject, event.detail);
        self.context.record_repeated(&cause, MINUTE_MS, None, event).await;
    }

    /// Opens the second step of a sign-in after its right password. `None` if the user has no second factor.
    pub(crate) async fn open_challenge(&self, pending: Pending) -> Result<Option<SignInChallenge>, Problem> {
        let row = self.find_totp(pending.user).await?;
        if row.is_none_or(|row| row.confirmed_at.is_none()) {
            return Ok(None);
        }
        let challenge = self.context.random(new_opaque);
        let expires_at = self.challenges.open(&challenge, pending, self.context.now());
        let second_factor = vec![FactorKind::Totp, FactorKind::Recovery];
        Ok(Some(SignInChallenge { second_factor, challenge, expires_at }))
    }

    /// Verifies the code of the second step of a sign-in, and ends its challenge. Returns the kind of the code too.
    ///
    /// # Errors
    /// 401 for a wrong code, and for a challenge that has ended. 422 for longer texts than the portal makes. 429
    /// after too many attempts.
    pub(crate) async fn complete_challenge(
        &self,
        input: &SecondFactorSignIn,
        address: Option<IpAddr>,
    ) -> Result<(Pending, FactorKind), Problem> {
        let mut errors: Vec<FieldError> = check_code(&input.code).err().into_iter().collect();
        if input.challenge.chars().count() > MAX_CHALLENGE_CHARS {
            errors.push(FieldError::new("/challenge", "Use at most 100 characters."));
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let pending = self.challenges.find(&input.challenge, now).ok_or_else(challenge_ended)?;
        self.count_attempt(&pending.email, address)?;
        if !self.challenges.count_try(&input.challenge, now) {
            return Err(challenge_ended());
        }
        let Some(kind) = self.verify_code(pending.user, &input.code).await? else {
            let (user, detail) = (pending.user.to_string(), WRONG_CODE.to_owned());
            self.record_refusal(self.context.visitor_event("session.refused", user, detail)).await;
            return Err(wrong_code());
        };
        let mut conn = self.context.db.read().await?;
        let hash = store::people::find_password(&mut conn.tx(), pending.user).await?;
        drop(conn);
        let unchanged = hash.as_ref() == Some(&pending.password_hash);
        let is_open = self.challenges.end(&input.challenge);
        if is_open && unchanged { Ok((pending, kind)) } else { Err(challenge_ended()) }
    }

    /// Proves the identity of the caller's session: by a code for a person with a second factor, else by the password.
    ///
    /// # Errors
    /// 401 for a wrong password or code. 403 for a token. 422 unless the input has one of the two, and for the password
    /// of a person with a second factor. 429 after too many attempts. 503 if too many passwords wait for their
    /// verification.
    pub async fn prove(&self, caller: &Caller, input: NewProof, from: ProofOrigin) -> Result<(), Problem> {
        let session = caller.session.clone().ok_or_else(|| {
            Problem::forbidden("A token needs no proof of identity. Only the session of a person has one.")
        })?;
        let email = &caller.user.email;
        let refused = |detail: &str| {
            let user = caller.user.id.to_string();
            self.context.audit_event(caller, "session.refused", user, detail.to_owned())
        };
        match (input.password, input.code) {
            // The password alone must not remove the second factor.
            (Some(_), None) if caller.proof.is_some_and(|proof| proof.has_factor) => {
                let detail = "Your account has a second factor. Enter a code of the app, or a recovery code.";
                return Err(Problem::invalid_field("/password", detail));
            }
            (Some(password), None) => {
                if password.chars().count() > passwords::MAX_CHARS {
                    return Err(Problem::invalid_field("/password", "Use at most 1024 characters."));
                }
                // Reserved before the count: a full queue uses up no attempt.
                let place = self.hasher.reserve()?;
                self.count_attempt(email, from.address)?;
                let mut conn = self.context.db.read().await?;
                let hash = store::people::find_password(&mut conn.tx(), caller.user.id).await?;
                drop(conn);
                let hash = hash.filter(|hash| !hash.is_empty());
                if !self.hasher.verify(place, password, hash, &from.disconnect).await? {
                    self.record_refusal(refused(WRONG_PASSWORD)).await;
                    let detail = "This is not the password of your account. Check it and try again.";
                    return Err(Problem::new(401, "auth.wrong_password", "Wrong password", detail));
                }
            }
            (None, Some(code)) => {
                check_code(&code).map_err(|error| Problem::invalid(vec![error]))?;
                self.count_attempt(email, from.address)?;
                if self.verify_code(caller.user.id, &code).await?.is_none() {
                    self.record_refusal(refused(WRONG_CODE)).await;
                    return Err(wrong_code());
                }
            }
            _ => return Err(Problem::invalid_field("", "Send either the password or a code.")),
        }
        self.throttle.record_success(email, from.address);
        let now = self.context.now();
        let proved = self.context.db.write(move |tx| {
            let session = session.clone();
            async move { store::factors::prove_session(tx, session.hash(), now).await }.boxed()
        });
        Ok(proved.await?)
    }
}

fn seal_error(error: EnvelopeError) -> StoreError {
    StoreError::Engine(format!("the secret of an authenticator app cannot be sealed: {error}"))
}
