//! The second step of a sign-in, and proofs of identity.

use std::net::IpAddr;

use berth_foundation::credentials::{fingerprint, new_opaque};
use berth_foundation::repeated::MINUTE_MS;
use berth_foundation::{Caller, Context, Refusal, SessionKey, record_refusal};
use berth_store as store;
use berth_types::factors::{FactorKind, NewProof, SecondFactorSignIn, SignInChallenge};
use berth_types::ids::UserId;
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use super::{
    MAX_CHALLENGE_CHARS, Pending, ProofOrigin, RenewedCookie, SecondFactors, WRONG_CODE, WRONG_PASSWORD,
    challenge_ended, check_code, normal_code, wrong_code,
};
use crate::passwords;
use crate::refusals::too_many_sign_ins;

/// Checks the length of a challenge.
pub(crate) fn check_challenge(challenge: &str) -> Result<(), FieldError> {
    if challenge.chars().count() > MAX_CHALLENGE_CHARS {
        return Err(FieldError::new("/challenge", "Use at most 100 characters."));
    }
    Ok(())
}

/// The session of a person.
///
/// # Errors
/// 403 for a token.
pub(crate) fn get_session(context: &Context, caller: &Caller) -> Result<SessionKey, Problem> {
    caller.session.clone().ok_or_else(|| {
        record_refusal(context, caller, Refusal::Token);
        Problem::forbidden("A token needs no proof of identity. Only the session of a person has one.")
    })
}

impl SecondFactors {
    /// Counts a code of a user before its verification.
    pub(super) fn count_code(&self, user: UserId) -> Result<(), Problem> {
        match self.codes.count_code(user) {
            None => Ok(()),
            Some(wait_s) => {
                let detail = "Too many codes for this account. Wait before the next try. The account is not locked. If you did not enter them, somebody knows your password: change it.";
                Err(Problem::throttled(detail, wait_s))
            }
        }
    }

    /// Counts a password or a code of an account before its verification.
    pub(crate) fn count_attempt(&self, email: &str, address: Option<IpAddr>) -> Result<(), Problem> {
        match self.throttle.count_attempt(email, address) {
            None => Ok(()),
            Some(wait_s) => Err(too_many_sign_ins(wait_s)),
        }
    }

    /// Verifies a code and uses it up. Each code is right at most once. Returns the kind of a right code.
    async fn verify_code(&self, user: UserId, code: &str) -> Result<Option<FactorKind>, Problem> {
        self.count_code(user)?;
        let (code, now) = (normal_code(code), self.context.now());
        let is_totp = code.len() == 6 && code.bytes().all(|c| c.is_ascii_digit());
        let kind = if is_totp { FactorKind::Totp } else { FactorKind::Recovery };
        let right = if is_totp {
            let row = self.find_totp(user).await?;
            let Some(row) = row.filter(|row| row.confirmed_at.is_some()) else { return Ok(None) };
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
    pub async fn record_refusal(&self, event: AuditEvent) {
        let cause = format!("refused {} {}", event.subject, event.detail);
        self.context.record_repeated(&cause, MINUTE_MS, None, event).await;
    }

    /// Opens the second step of a sign-in after its right password. `None` if the user has no second factor.
    pub async fn open_challenge(&self, pending: Pending) -> Result<Option<SignInChallenge>, Problem> {
        let mut conn = self.context.db.read().await?;
        let app = store::factors::find_totp(&mut conn.tx(), pending.user).await?;
        let has_app = app.is_some_and(|row| row.confirmed_at.is_some());
        let has_passkey = store::passkeys::count(&mut conn.tx(), pending.user).await? > 0;
        drop(conn);
        if !has_app && !has_passkey {
            return Ok(None);
        }
        let challenge = self.context.random(new_opaque);
        let expires_at = self.challenges.open(&challenge, pending, self.context.now());
        let kinds =
            [(has_passkey, FactorKind::Passkey), (has_app, FactorKind::Totp), (true, FactorKind::Recovery)];
        let second_factor = kinds.into_iter().filter_map(|(offered, kind)| offered.then_some(kind)).collect();
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
        errors.extend(check_challenge(&input.challenge).err());
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let pending = self.find_challenge(&input.challenge)?;
        self.count_attempt(&pending.email, address)?;
        if !self.challenges.count_try(&input.challenge, now) {
            return Err(challenge_ended());
        }
        let Some(kind) = self.verify_code(pending.user, &input.code).await? else {
            let (user, detail) = (pending.user.to_string(), WRONG_CODE.to_owned());
            self.record_refusal(self.context.visitor_event("session.refused", user, detail)).await;
            return Err(wrong_code());
        };
        self.end_challenge(&input.challenge, &pending).await?;
        Ok((pending, kind))
    }

    /// The sign-in of an open challenge.
    ///
    /// # Errors
    /// 401 for a challenge that has ended.
    pub(crate) fn find_challenge(&self, challenge: &str) -> Result<Pending, Problem> {
        self.challenges.find(challenge, self.context.now()).ok_or_else(challenge_ended)
    }

    /// Ends a challenge after the verification of its factor.
    ///
    /// # Errors
    /// 401 for a challenge that has ended, and after a change of the password.
    pub(crate) async fn end_challenge(&self, challenge: &str, pending: &Pending) -> Result<(), Problem> {
        let mut conn = self.context.db.read().await?;
        let hash = store::people::find_password(&mut conn.tx(), pending.user).await?;
        drop(conn);
        let unchanged = hash.as_ref() == Some(&pending.password_hash);
        let is_open = self.challenges.end(challenge);
        if is_open && unchanged { Ok(()) } else { Err(challenge_ended()) }
    }

    /// Proves the identity of the caller's session: by a code for a person with a second factor, else by the password.
    /// Returns the new cookie of the session.
    ///
    /// # Errors
    /// 401 for a wrong password or code. 403 for a token. 422 unless the input has one of the two, and for the password
    /// of a person with a second factor. 429 after too many attempts. 503 if too many passwords wait for their
    /// verification.
    pub async fn prove(
        &self,
        caller: &Caller,
        input: NewProof,
        from: ProofOrigin,
    ) -> Result<RenewedCookie, Problem> {
        let session = get_session(&self.context, caller)?;
        let email = &caller.user.email;
        let refused = |detail: &str| {
            let user = caller.user.id.to_string();
            self.context.audit_event(caller, "session.refused", user, detail.to_owned())
        };
        let factor = match (input.password, input.code) {
            // The password alone must not remove the second factor.
            (Some(_), None) if caller.proof.is_some_and(|proof| proof.has_factor) => {
                let detail =
                    "Your account has a second factor. Use a passkey, a code of the app, or a recovery code.";
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
                "password"
            }
            (None, Some(code)) => {
                check_code(&code).map_err(|error| Problem::invalid(vec![error]))?;
                self.count_attempt(email, from.address)?;
                let Some(kind) = self.verify_code(caller.user.id, &code).await? else {
                    self.record_refusal(refused(WRONG_CODE)).await;
                    return Err(wrong_code());
                };
                match kind {
                    FactorKind::Totp => "code",
                    FactorKind::Recovery => "recovery code",
                    FactorKind::Passkey => "passkey",
                }
            }
            _ => return Err(Problem::invalid_field("", "Send either the password or a code.")),
        };
        self.record_proof(caller, session, factor, from.address).await
    }

    /// Records a proof of the caller's session by a factor, and returns the new cookie of the session.
    pub(crate) async fn record_proof(
        &self,
        caller: &Caller,
        session: SessionKey,
        factor: &str,
        address: Option<IpAddr>,
    ) -> Result<RenewedCookie, Problem> {
        self.throttle.record_success(&caller.user.email, address);
        self.renew_cookie(caller, &session, factor).await
    }
}
