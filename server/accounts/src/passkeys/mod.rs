//! Passkeys: their registration, the sign-in by a passkey alone or as the second factor, and proofs of identity.
//!
//! Each ceremony requires a verified user, so a passkey alone is two factors: the device, and its PIN or biometry.

pub mod routes;

use std::net::IpAddr;
use std::sync::Arc;

use berth_core::admission::check_name;
use berth_foundation::{Caller, Context};
use berth_passkeys::{
    Begun, Ceremonies, Credential, CredentialState, PasskeyError, Registration, RegistrationState,
    RelyingParty, SignIn, SignInState,
};
use berth_store::passkeys::StoredPasskey;
use berth_store::{self as store, StoreError, WriteError};
use berth_types::accounts::User;
use berth_types::factors::FactorKind;
use berth_types::ids::{PasskeyId, UserId};
use berth_types::passkeys::{
    AddedPasskey, MAX_ANSWER_CHARS, MAX_PASSKEYS, NewPasskey, Passkey, PasskeyOptions, PasskeyProof,
    PasskeySignIn, Passkeys as Listed, RenamePasskey,
};
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use crate::accounts::{Accounts, SignInOrigin};
use crate::factors::{
    Pending, RenewedCookie, SecondFactors, check_challenge, end_others, forget_codes_of_no_factor,
    get_session, kept_session, new_recovery_codes, publish_ended,
};
use crate::link_mails::{FactorChange, start_factor_notice};
use crate::refusals::{passkey_refused, too_many_sign_ins};
use crate::throttle::PasskeyThrottle;

/// Open registrations, one of each user: no account displaces those of the others.
const REGISTRATIONS: usize = 4_096;
/// Open sign-ins and proofs. Visitors begin them without a proof.
const SIGN_INS: usize = 1 << 16;
/// The details of refusals in the audit log.
const REFUSED_PASSKEY: &str = "Refused passkey.";

fn unavailable() -> Problem {
    Problem::conflict(
        "passkey.unavailable",
        "Passkeys not available",
        "Browsers have passkeys only at an https address with a domain name, and this portal has another one. Nothing was changed. Use an authenticator app, or ask the operator for such an address.",
    )
}

fn too_many() -> Problem {
    Problem::conflict(
        "passkey.limit",
        "Too many passkeys",
        "Your account has 20 passkeys, the most of an account. Nothing was changed. Remove one first.",
    )
}

fn passkey_exists() -> Problem {
    Problem::conflict(
        "passkey.exists",
        "Passkey exists",
        "The portal has this passkey already. Nothing was changed. Use another device, or remove the passkey first.",
    )
}

/// The refusal of a registration.
fn not_registered() -> Problem {
    Problem::invalid_field(
        "/credential",
        "The answer of the browser does not fit this portal, or its request is more than five minutes old. Begin again.",
    )
}

/// The refusal of a text that is no answer of a browser.
fn unreadable(error: &PasskeyError) -> Problem {
    tracing::info!(%error, "the answer of a browser with a passkey cannot be read");
    Problem::invalid_field("/credential", "This is not the answer of a browser with a passkey.")
}

fn broken(error: &PasskeyError) -> Problem {
    tracing::error!(%error, "a ceremony of a passkey cannot begin");
    Problem::internal()
}

/// Checks the length of the answer of a browser.
fn check_answer(credential: &str) -> Result<(), FieldError> {
    // Bytes are at least as many as characters, and the count of bytes costs nothing.
    if credential.len() > MAX_ANSWER_CHARS {
        return Err(FieldError::new("/credential", "Use at most 16384 characters."));
    }
    Ok(())
}

fn credential_of(row: &StoredPasskey) -> Credential {
    Credential {
        id: row.credential_id.clone(),
        public_key: row.public_key.clone(),
        state: CredentialState(row.credential_state.clone()),
        transports: row.transports,
    }
}

/// The passkeys of all users.
#[derive(Clone)]
pub struct Passkeys {
    pub(crate) accounts: Accounts,
    /// Absent at an address without passkeys.
    party: Option<Arc<RelyingParty>>,
    /// By user, with the challenge.
    registrations: Arc<Ceremonies<(u128, RegistrationState)>>,
    sign_ins: Arc<Ceremonies<SignInState>>,
    throttle: Arc<PasskeyThrottle>,
}

impl Passkeys {
    pub fn new(accounts: Accounts) -> Self {
        let party = RelyingParty::from_url(&accounts.context.settings.public_url).map(Arc::new);
        Self {
            accounts,
            party,
            registrations: Arc::new(Ceremonies::new(REGISTRATIONS)),
            sign_ins: Arc::new(Ceremonies::new(SIGN_INS)),
            throttle: Arc::default(),
        }
    }

    fn context(&self) -> &Context {
        &self.accounts.context
    }

    fn factors(&self) -> &SecondFactors {
        &self.accounts.factors
    }

    fn party(&self) -> Result<&RelyingParty, Problem> {
        self.party.as_deref().ok_or_else(unavailable)
    }

    /// Counts a step of a ceremony.
    fn count_step(&self, address: Option<IpAddr>) -> Result<(), Problem> {
        match self.throttle.count_step(address) {
            None => Ok(()),
            Some(wait_s) => Err(too_many_sign_ins(wait_s)),
        }
    }

    /// The passkeys of the caller.
    ///
    /// # Errors
    /// 403 for a token.
    pub async fn list(&self, caller: &Caller) -> Result<Listed, Problem> {
        caller.own_session(self.context())?;
        let mut conn = self.context().db.read().await?;
        let rows = store::passkeys::list(&mut conn.tx(), caller.user.id).await?;
        let passkeys = rows.into_iter().map(Passkey::from).collect();
        Ok(Listed { available: self.party.is_some(), passkeys })
    }

    /// Begins the registration of a passkey.
    ///
    /// # Errors
    /// 403 without a fresh proof. 409 at an address without passkeys, and beyond their number. 429 after too many
    /// requests from one network.
    pub async fn begin_registration(
        &self,
        caller: &Caller,
        address: Option<IpAddr>,
    ) -> Result<PasskeyOptions, Problem> {
        let context = self.context();
        context.check_person(caller)?;
        let party = self.party()?;
        self.count_step(address)?;
        let mut conn = context.db.read().await?;
        let rows = store::passkeys::list(&mut conn.tx(), caller.user.id).await?;
        drop(conn);
        let known: Vec<Credential> = rows.iter().map(credential_of).collect();
        if i64::try_from(known.len()).unwrap_or(i64::MAX) >= MAX_PASSKEYS {
            return Err(too_many());
        }
        let begun = party.begin_registration(&caller.user, &known).map_err(|error| broken(&error))?;
        let Begun { challenge, state, options } = begun;
        let user = caller.user.id.uuid().as_u128();
        let expires_at = self.registrations.open(user, (challenge, state), context.now());
        Ok(PasskeyOptions { options, expires_at })
    }

    /// Verifies the new passkey of a browser.
    fn verify_new(&self, caller: &Caller, input: NewPasskey) -> Result<StoredPasskey, Problem> {
        let (party, now) = (self.party()?, self.context().now());
        let mut errors = Vec::new();
        check_name("/name", &input.name, &mut errors);
        errors.extend(check_answer(&input.credential).err());
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let answer = Registration::parse(&input.credential).map_err(|error| unreadable(&error))?;
        let open = self.registrations.end(caller.user.id.uuid().as_u128(), now);
        let open = open.filter(|(challenge, _)| *challenge == answer.challenge);
        let (_, state) = open.ok_or_else(not_registered)?;
        let made = party.finish_registration(state, &answer, caller.user.id).map_err(|error| {
            tracing::info!(%error, "a new passkey is refused");
            not_registered()
        })?;
        Ok(StoredPasskey {
            id: self.context().new_id(now),
            user_id: caller.user.id,
            name: input.name.trim().to_owned(),
            credential_id: made.id,
            public_key: made.public_key,
            credential_state: made.state.0,
            transports: made.transports,
            created_at: now,
            last_used_at: None,
        })
    }

    /// Adds a passkey. The first second factor of an account ends its other sessions, because a password opened them,
    /// and brings recovery codes.
    ///
    /// # Errors
    /// 403 without a fresh proof. 409 for a known passkey, beyond their number, and at an address without passkeys. 422
    /// for an answer that does not fit.
    pub async fn register(&self, caller: &Caller, input: NewPasskey) -> Result<AddedPasskey, Problem> {
        let context = self.context();
        context.check_person(caller)?;
        let row = self.verify_new(caller, input)?;
        let (codes, hashes) = new_recovery_codes(context);
        let event = context.audit_event(caller, "passkey.added", row.id.to_string(), row.name.clone());
        let kept = kept_session(caller);
        let (user, new) = (caller.user.id, row.clone());
        let added = context.db.try_write(move |tx| {
            let (new, hashes, event) = (new.clone(), hashes.clone(), event.clone());
            let kept = kept.clone();
            async move {
                if store::passkeys::count(tx, user).await? >= MAX_PASSKEYS {
                    return Err(too_many().into());
                }
                let is_first = !store::factors::has_factor(tx, user).await?;
                store::passkeys::insert(tx, &new).await?;
                let mut ended = Vec::new();
                if is_first {
                    store::factors::replace_recovery_codes(tx, user, &hashes).await?;
                    ended = store::people::end_sessions(tx, user, &kept).await?;
                }
                let detail = format!("{}; other sessions ended: {}", event.detail, ended.len());
                store::quotas::insert_audit(tx, None, &AuditEvent { detail, ..event }).await?;
                Ok((is_first, ended))
            }
            .boxed()
        });
        let (is_first, ended) = match added.await {
            Err(WriteError::Store(StoreError::Duplicate)) => return Err(passkey_exists()),
            other => other?,
        };
        publish_ended(context, &ended);
        start_factor_notice(context, &self.accounts.mails, caller.user.clone(), FactorChange::PasskeyAdded);
        let recovery_codes = if is_first { codes.codes } else { Vec::new() };
        Ok(AddedPasskey { passkey: row.into(), recovery_codes })
    }

    /// Renames a passkey.
    ///
    /// # Errors
    /// 403 for a token. 404 for a passkey that the caller does not have. 422 for an invalid name.
    pub async fn rename(
        &self,
        caller: &Caller,
        id: PasskeyId,
        input: RenamePasskey,
    ) -> Result<Passkey, Problem> {
        caller.own_session(self.context())?;
        let mut errors = Vec::new();
        check_name("/name", &input.name, &mut errors);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let (user, name) = (caller.user.id, input.name.trim().to_owned());
        let event = self.context().audit_event(caller, "passkey.renamed", id.to_string(), name.clone());
        let renamed = self.context().db.try_write(move |tx| {
            let (name, event) = (name.clone(), event.clone());
            async move {
                if !store::passkeys::rename(tx, user, id, &name).await? {
                    return Err(Problem::not_found().into());
                }
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(store::passkeys::find(tx, user, id).await?.ok_or_else(Problem::not_found)?)
            }
            .boxed()
        });
        let row: StoredPasskey = renamed.await?;
        Ok(row.into())
    }

    /// Removes a passkey, and the recovery codes with the last second factor. Ends all other sessions of the caller.
    ///
    /// # Errors
    /// 403 without a fresh proof. 404 for a passkey that the caller does not have.
    pub async fn remove(&self, caller: &Caller, id: PasskeyId) -> Result<(), Problem> {
        let context = self.context();
        context.check_person(caller)?;
        let user = caller.user.id;
        let event = context.audit_event(caller, "passkey.removed", id.to_string(), String::new());
        let kept = kept_session(caller);
        let removed = context.db.try_write(move |tx| {
            let (event, kept) = (event.clone(), kept.clone());
            async move {
                let row = store::passkeys::find(tx, user, id).await?.ok_or_else(Problem::not_found)?;
                store::passkeys::delete(tx, user, id).await?;
                forget_codes_of_no_factor(tx, user).await?;
                end_others(tx, user, &kept, AuditEvent { detail: row.name, ..event }).await
            }
            .boxed()
        });
        publish_ended(context, &removed.await?);
        start_factor_notice(context, &self.accounts.mails, caller.user.clone(), FactorChange::PasskeyRemoved);
        Ok(())
    }

    /// Begins a sign-in or a proof by a passkey.
    ///
    /// # Errors
    /// 409 at an address without passkeys. 429 after too many requests from one network.
    pub fn begin_sign_in(&self, address: Option<IpAddr>) -> Result<PasskeyOptions, Problem> {
        let party = self.party()?;
        self.count_step(address)?;
        let begun = party.begin_sign_in().map_err(|error| broken(&error))?;
        let Begun { challenge, state, options } = begun;
        Ok(PasskeyOptions { options, expires_at: self.sign_ins.open(challenge, state, self.context().now()) })
    }

    /// Verifies the answer of a browser and records the use of the passkey. Returns the passkey with its user. With
    /// `owner` only passkeys of this user are accepted. `caller` is the sender of a proof.
    async fn verify(
        &self,
        credential: &str,
        (owner, caller): (Option<UserId>, Option<&Caller>),
        address: Option<IpAddr>,
    ) -> Result<(StoredPasskey, User), Problem> {
        let (party, context) = (self.party()?, self.context());
        let (answer, now) = (SignIn::parse(credential).map_err(|error| unreadable(&error))?, context.now());
        let state = self.sign_ins.end(answer.challenge, now).ok_or_else(passkey_refused)?;
        let mut conn = context.db.read().await?;
        let row = store::passkeys::find_credential(&mut conn.tx(), &answer.credential_id).await?;
        let row = row.filter(|row| owner.is_none_or(|owner| row.user_id == owner));
        let user = match &row {
            Some(row) => store::accounts::find_user(&mut conn.tx(), row.user_id).await?,
            None => None,
        };
        drop(conn);
        let Some((row, user)) = row.zip(user) else {
            self.record_refusal("unknown".to_owned(), caller).await;
            return Err(passkey_refused());
        };
        self.factors().count_attempt(&user.email, address)?;
        let next = party.finish_sign_in(state, &answer, (user.id, &credential_of(&row)));
        let next = match next {
            Ok(next) => next,
            Err(error) => {
                tracing::info!(%error, user = %user.id, "the answer of a passkey is refused");
                self.record_refusal(user.id.to_string(), caller).await;
                return Err(passkey_refused());
            }
        };
        let used = row.clone();
        let recorded = context.db.write(move |tx| {
            let (used, next) = (used.clone(), next.clone());
            async move { store::passkeys::record_use(tx, &used, &next.0, now).await }.boxed()
        });
        if recorded.await? { Ok((row, user)) } else { Err(passkey_refused()) }
    }

    async fn record_refusal(&self, subject: String, caller: Option<&Caller>) {
        let (action, detail) = ("session.refused", REFUSED_PASSKEY.to_owned());
        let event = match caller {
            Some(caller) => self.context().audit_event(caller, action, subject, detail),
            None => self.context().visitor_event(action, subject, detail),
        };
        self.factors().record_refusal(event).await;
    }

    /// Signs in by a passkey: alone, or as the second factor of a challenge. Opens a session in place of the `former`
    /// one. Returns the value of the session cookie and the user.
    ///
    /// # Errors
    /// 401 for a passkey that is refused, and for a challenge that has ended. 403 for a disabled account, for one with
    /// single sign-on only, and for an operator without a password by the passkey alone. 409 at an address without
    /// passkeys. 422 for a text that is no answer of a browser. 429 after too many attempts.
    pub async fn sign_in(&self, input: PasskeySignIn, from: SignInOrigin) -> Result<(String, User), Problem> {
        self.count_step(from.address)?;
        let mut errors: Vec<FieldError> = check_answer(&input.credential).err().into_iter().collect();
        errors.extend(input.challenge.as_deref().and_then(|challenge| check_challenge(challenge).err()));
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let pending = match &input.challenge {
            Some(challenge) => {
                let pending = self.factors().find_challenge(challenge)?;
                self.verify(&input.credential, (Some(pending.user), None), from.address).await?;
                self.factors().end_challenge(challenge, &pending).await?;
                pending
            }
            None => {
                let (row, user) = self.verify(&input.credential, (None, None), from.address).await?;
                let mut conn = self.context().db.read().await?;
                let hash = store::people::find_password(&mut conn.tx(), user.id).await?;
                drop(conn);
                let password_hash = hash.ok_or_else(passkey_refused)?;
                Pending {
                    user: user.id,
                    email: user.email,
                    password_hash,
                    grant: None,
                    passkey: Some(row.id),
                }
            }
        };
        self.accounts.finish_sign_in(pending, Some(FactorKind::Passkey), from).await
    }

    /// Proves the identity of the caller's session by a passkey. Returns the new cookie of the session.
    ///
    /// # Errors
    /// 401 for a passkey that is refused. 403 for a token. 409 at an address without passkeys. 422 for a text that is
    /// no answer of a browser. 429 after too many attempts.
    pub async fn prove(
        &self,
        caller: &Caller,
        input: PasskeyProof,
        address: Option<IpAddr>,
    ) -> Result<RenewedCookie, Problem> {
        let session = get_session(self.context(), caller)?;
        self.count_step(address)?;
        check_answer(&input.credential).map_err(|error| Problem::invalid(vec![error]))?;
        self.verify(&input.credential, (Some(caller.user.id), Some(caller)), address).await?;
        self.factors().record_proof(caller, session, "passkey", address).await
    }
}
