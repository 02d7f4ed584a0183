//! Second factors: authenticator apps, recovery codes, the second step of a sign-in, and proofs of identity.
//!
//! A kind of factor is a variant of `FactorKind`, with its own table. Apps are here, and passkeys in `passkeys`.

mod challenges;
mod other_sessions;
mod policy;
mod proofs;
mod renewal;
mod reseal;
pub mod routes;
mod totp;

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::Uri;
use berth_foundation::credentials::{fingerprint, new_recovery_code, new_totp_key};
use berth_foundation::delivery::Transport;
use berth_foundation::envelope::{EnvelopeError, Keys, SealingContext};
use berth_foundation::{Caller, Context};
use berth_rest::Disconnect;
use berth_store::factors::StoredTotp;
use berth_store::{self as store, StoreError, Tx};
use berth_types::factors::{RecoveryCodes, SecondFactors as Factors, TotpEnrolment, TotpFactor};
use berth_types::ids::UserId;
use berth_types::problems::{FieldError, Problem};
use futures::FutureExt;

use crate::link_mails::{FactorChange, start_factor_notice};
use crate::mails::Mails;
use crate::passwords::Hasher;
use crate::throttle::{CodeThrottle, SignInThrottle};
use challenges::Challenges;
pub use challenges::Pending;
pub(crate) use other_sessions::{end_others, kept_session, publish_ended};
pub(crate) use proofs::{check_challenge, get_session};
pub(crate) use renewal::RenewedCookie;
use totp::{TotpKey, qr_svg};

/// Recovery codes of one user.
const RECOVERY_CODES: usize = 10;
/// Characters of a code with its spaces and hyphens.
const MAX_CODE_CHARS: usize = 40;
/// The details of refusals in the audit log.
const WRONG_CODE: &str = "Wrong code.";
pub const WRONG_PASSWORD: &str = "Wrong password.";
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

pub fn challenge_ended() -> Problem {
    Problem::new(
        401,
        "auth.challenge",
        "Sign-in expired",
        "The first step of this sign-in is more than five minutes old, had five wrong codes, or came before a change of the account. Enter the password again.",
    )
}

fn no_app() -> Problem {
    Problem::conflict(
        "factor.missing",
        "No authenticator app",
        "Your account has no authenticator app. Nothing was changed. Add an authenticator app first.",
    )
}

pub(crate) fn no_second_factor() -> Problem {
    Problem::conflict(
        "factor.missing",
        "No second factor",
        "The account has neither a passkey nor an authenticator app. Nothing was changed. Add one of them first.",
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

/// The name of the portal in an authenticator app.
fn issuer(public_url: &str) -> String {
    let url: Option<Uri> = public_url.parse().ok();
    let host = url.as_ref().and_then(Uri::host).unwrap_or_default();
    // A colon separates the issuer from the account.
    format!("Berth {}", host.replace(':', ".")).trim().to_owned()
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
    pub throttle: Arc<SignInThrottle>,
    pub mails: Mails,
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

    /// The second factors of the caller.
    ///
    /// # Errors
    /// 403 for a token.
    pub async fn list(&self, caller: &Caller) -> Result<Factors, Problem> {
        caller.own_session(&self.context)?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let totp = store::factors::find_totp(&mut tx, caller.user.id).await?;
        let totp = totp.and_then(|row| row.confirmed_at).map(|confirmed_at| TotpFactor { confirmed_at });
        let passkeys = store::passkeys::count(&mut tx, caller.user.id).await?;
        let recovery_codes = store::factors::count_recovery_codes(&mut tx, caller.user.id).await?;
        Ok(Factors { totp, passkeys, recovery_codes })
    }

    /// Makes the secret of a new app. It has no effect before [`confirm`](Self::confirm).
    ///
    /// # Errors
    /// 403 without a fresh proof. 409 if the caller has an app.
    pub async fn enrol(&self, caller: &Caller) -> Result<TotpEnrolment, Problem> {
        self.context.check_person(caller)?;
        let (user, now) = (caller.user.id, self.context.now());
        let made = TotpKey::new(
            self.context.random(new_totp_key),
            &issuer(&self.context.settings.public_url),
            &caller.user.email,
        );
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
        let row = self.find_totp(user).await?.ok_or_else(no_app)?;
        if row.confirmed_at.is_some() {
            return Err(factor_exists());
        }
        let step = self.open_key(&row)?.find_step(&normal_code(code), now).ok_or_else(|| {
            let detail =
                "The code does not fit. Enter the present code of the app, and check the clock of its device.";
            Problem::invalid_field("/code", detail)
        })?;
        self.codes.record_success(user);
        let (codes, hashes) = new_recovery_codes(&self.context);
        let event = self.context.audit_event(caller, "factor.added", user.to_string(), String::new());
        let kept = kept_session(caller);
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
                end_others(tx, user, &kept, event).await
            }
            .boxed()
        });
        publish_ended(&self.context, &confirmed.await?);
        start_factor_notice(&self.context, &self.mails, caller.user.clone(), FactorChange::Added);
        Ok(codes)
    }

    /// Removes the app, and the recovery codes of an account without passkeys. Ends all other sessions of the caller.
    ///
    /// # Errors
    /// 403 without a fresh proof. 409 without an app.
    pub async fn remove(&self, caller: &Caller) -> Result<(), Problem> {
        self.context.check_person(caller)?;
        let user = caller.user.id;
        let event = self.context.audit_event(caller, "factor.removed", user.to_string(), String::new());
        let kept = kept_session(caller);
        let removed = self.context.db.try_write(move |tx| {
            let (event, kept) = (event.clone(), kept.clone());
            async move {
                if !store::factors::delete_totp(tx, user).await? {
                    return Err(no_app().into());
                }
                forget_codes_of_no_factor(tx, user).await?;
                end_others(tx, user, &kept, event).await
            }
            .boxed()
        });
        publish_ended(&self.context, &removed.await?);
        start_factor_notice(&self.context, &self.mails, caller.user.clone(), FactorChange::Removed);
        Ok(())
    }

    /// Replaces the recovery codes, and ends all other sessions of the caller.
    ///
    /// # Errors
    /// 403 without a fresh proof. 409 without a second factor.
    pub async fn renew_codes(&self, caller: &Caller) -> Result<RecoveryCodes, Problem> {
        self.context.check_person(caller)?;
        let user = caller.user.id;
        let (codes, hashes) = new_recovery_codes(&self.context);
        let event =
            self.context.audit_event(caller, "factor.codes_replaced", user.to_string(), String::new());
        let kept = kept_session(caller);
        let replaced = self.context.db.try_write(move |tx| {
            let (hashes, event, kept) = (hashes.clone(), event.clone(), kept.clone());
            async move {
                if !store::factors::has_factor(tx, user).await? {
                    return Err(no_second_factor().into());
                }
                store::factors::replace_recovery_codes(tx, user, &hashes).await?;
                end_others(tx, user, &kept, event).await
            }
            .boxed()
        });
        publish_ended(&self.context, &replaced.await?);
        Ok(codes)
    }
}

/// New recovery codes with their hashes.
pub(crate) fn new_recovery_codes(context: &Context) -> (RecoveryCodes, Vec<String>) {
    let codes: Vec<String> = (0..RECOVERY_CODES).map(|_| context.random(new_recovery_code)).collect();
    let hashes = codes.iter().map(|code| fingerprint(&normal_code(code))).collect();
    (RecoveryCodes { codes }, hashes)
}

/// Deletes the recovery codes of a user without a second factor.
pub(crate) async fn forget_codes_of_no_factor(tx: &mut Tx<'_>, user: UserId) -> Result<(), StoreError> {
    if store::factors::has_factor(tx, user).await? {
        return Ok(());
    }
    store::factors::replace_recovery_codes(tx, user, &[]).await
}

fn seal_error(error: EnvelopeError) -> StoreError {
    StoreError::Engine(format!("the secret of an authenticator app cannot be sealed: {error}"))
}
