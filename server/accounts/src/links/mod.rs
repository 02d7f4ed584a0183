//! Acts by a link in a mail, without a session: a new password, and the verification of an address.
//!
//! The request for a link does nothing before its answer but count, so the answer is the same for an address with and
//! without an account. The secret of a link is only in the mail.

pub mod routes;

use std::net::IpAddr;

use berth_core::admission::is_email;
use berth_foundation::{Change, Context, SessionKey};
use berth_rest::Disconnect;
use berth_store as store;
use berth_store::StoreError;
use berth_store::people::LinkPurpose;
use berth_types::accounts::User;
use berth_types::people::{
    CompletePasswordReset, CompleteVerification, EndedSessions, NewPasswordReset, VerifiedEmail,
};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use crate::accounts::{Accounts, INVALID_EMAIL, MAX_EMAIL_BYTES, hash_secret};
use crate::context_words;
use crate::link_mails::{link, record_link, start_password_notice, throttled};
use crate::mails::Mail;
use crate::passwords;

/// Lifetime of a link to set a new password: 10 minutes.
const RESET_LIFETIME_S: i64 = 10 * 60;

/// The common answer for unknown, used and expired links. It does not reveal the difference.
fn not_valid() -> Problem {
    Problem::new(
        404,
        "link.not_valid",
        "This link is not valid",
        "The link was used, has expired, or is incomplete. Nothing was changed. Request another link.",
    )
}

/// Finds the user of an address with an enabled account. An operator without a password signs in at the provider of the
/// operators only: a link would outlast the removal there.
async fn find_receiver(context: &Context, email: &str) -> Result<Option<User>, StoreError> {
    let mut conn = context.db.read().await?;
    let mut tx = conn.tx();
    let Some((user, hash)) = store::accounts::find_login(&mut tx, email).await? else { return Ok(None) };
    if store::people::find_disabled_reason(&mut tx, user).await?.is_some() {
        return Ok(None);
    }
    let user = store::accounts::find_user(&mut tx, user).await?;
    Ok(user.filter(|user| !user.operator || !hash.is_empty()))
}

/// The mail with a new link for the owner of an address; `None` without an account. It quotes no name.
async fn reset_mail(context: &Context, email: &str) -> Option<Mail> {
    let user = match find_receiver(context, email).await {
        Ok(found) => found?,
        Err(error) => {
            tracing::error!(%error, "a link for a new password was not mailed");
            return None;
        }
    };
    let now = context.now();
    let expires_at = now.plus_seconds(RESET_LIFETIME_S);
    let secret = record_link(context, LinkPurpose::PasswordReset, &user, (now, expires_at)).await?;
    let text = format!(
        "A new password was requested for your account on Berth.\n\n\
         To set a new password, open this link before {until}:\n\n\
         {link}\n\n\
         The link works once. Do not forward this mail.\n\n\
         If you did not request it, ignore this mail: your password stays\n\
         as it is.\n\n\
         Berth\n",
        until = expires_at.minute(),
        link = link(context, "reset", &secret),
    );
    Some(Mail { to: user.email, subject: "Set a new password", text })
}

/// Acts by links in mails.
#[derive(Clone)]
pub struct MailLinks {
    accounts: Accounts,
}

impl MailLinks {
    pub const fn new(accounts: Accounts) -> Self {
        Self { accounts }
    }

    /// Mails a link for a new password, if the address has an enabled account. The mail proves the address, so an
    /// address that is not verified gets it too.
    ///
    /// # Errors
    /// 422 for an invalid address. 429 after too many requests for the address or from the network. 503 if too many
    /// mails wait.
    pub fn request_reset(&self, input: &NewPasswordReset, from: Option<IpAddr>) -> Result<(), Problem> {
        let email = input.email.trim().to_lowercase();
        if input.email.len() > MAX_EMAIL_BYTES || !is_email(&email) {
            return Err(Problem::invalid_field("/email", INVALID_EMAIL));
        }
        let place = self.accounts.mails.reserve()?;
        if let Some(wait_s) = self.accounts.links.count_link(&email, from) {
            return Err(throttled(wait_s));
        }
        let context = self.accounts.context.clone();
        self.accounts.mails.start(place, async move { reset_mail(&context, &email).await });
        Ok(())
    }

    /// Sets a new password by a link, and ends all sessions of the person. API tokens stay valid. The link proves the
    /// address. At the first proof of the address the second factors, the recovery codes and the API tokens are deleted:
    /// until then somebody else may have made them.
    ///
    /// # Errors
    /// 404 if the link is not valid. 422 for a password that is too short or easy to guess. 503 if too many passwords
    /// wait for their hashes.
    pub async fn complete_reset(
        &self,
        input: CompletePasswordReset,
        sender: &Disconnect,
    ) -> Result<EndedSessions, Problem> {
        let context = &self.accounts.context;
        let (secret, now) = (hash_secret(&input.token)?, context.now());
        // Checked before the expensive hash of the password, and again in the write.
        let (user, texts) = {
            let mut conn = context.db.read().await?;
            let mut tx = conn.tx();
            let user = store::people::find_link(&mut tx, LinkPurpose::PasswordReset, &secret, now).await?;
            let user = user.ok_or_else(not_valid)?;
            let texts = context_words::read_of_person(&mut tx, &context.settings, user.id).await?;
            (user, texts)
        };
        let own = [user.email.as_str(), user.name.as_str()];
        let known: Vec<&str> = own.into_iter().chain(texts.iter().map(String::as_str)).collect();
        if let Some(error) = passwords::check("/password", &input.password, &known) {
            return Err(Problem::invalid(vec![error]));
        }
        let hash = self.accounts.hasher.hash(input.password, context.salt(), sender).await?;
        let id = user.id;
        let event = context.user_event(&user, "password.reset", id.to_string(), String::new());
        let verified = context.user_event(&user, "email.verified", id.to_string(), String::new());
        let done = context.db.try_write(move |tx| {
            let (secret, hash) = (secret.clone(), hash.clone());
            let (event, verified) = (event.clone(), verified.clone());
            async move {
                let found = store::people::find_link(tx, LinkPurpose::PasswordReset, &secret, now).await?;
                if found.is_none() {
                    return Err(not_valid().into());
                }
                store::people::set_password(tx, id, &hash).await?;
                let is_first = store::people::verify_email(tx, id, now).await?;
                store::people::delete_links(tx, LinkPurpose::PasswordReset, id).await?;
                let ended = store::people::end_sessions(tx, id, "").await?;
                let mut detail = format!("sessions ended: {}", ended.len());
                let mut tokens = Vec::new();
                if is_first {
                    let had_app = store::factors::delete_totp(tx, id).await?;
                    let passkeys = store::passkeys::delete_all(tx, id).await?;
                    store::factors::replace_recovery_codes(tx, id, &[]).await?;
                    tokens = store::people::delete_tokens(tx, id).await?;
                    let app = if had_app { ", the authenticator app" } else { "" };
                    let keys = if passkeys > 0 { format!(", passkeys {passkeys}") } else { String::new() };
                    detail = format!(
                        "{detail}; removed at the first proof of the address: tokens {}{app}{keys}",
                        tokens.len()
                    );
                    store::quotas::insert_audit(tx, None, &verified).await?;
                }
                store::quotas::insert_audit(tx, None, &AuditEvent { detail, ..event }).await?;
                Ok((ended, tokens, is_first))
            }
            .boxed()
        });
        let (ended, tokens, is_first) = done.await?;
        for hash in &ended {
            context.publish(Change::SignedOut(SessionKey::from_hash(hash)));
        }
        tokens.into_iter().for_each(|token| context.publish(Change::TokenRevoked(token)));
        start_password_notice(context, &self.accounts.mails, user, is_first);
        Ok(EndedSessions { ended_sessions: u64::try_from(ended.len()).unwrap_or(u64::MAX) })
    }

    /// Verifies an address by a link.
    ///
    /// # Errors
    /// 404 if the link is not valid.
    pub async fn complete_verification(&self, input: CompleteVerification) -> Result<VerifiedEmail, Problem> {
        let context = &self.accounts.context;
        let (secret, now) = (hash_secret(&input.token)?, context.now());
        // Read before the write, so that a stranger's text starts no write.
        let user = {
            let mut conn = context.db.read().await?;
            store::people::find_link(&mut conn.tx(), LinkPurpose::Verification, &secret, now).await?
        };
        let user = user.ok_or_else(not_valid)?;
        let event = context.user_event(&user, "email.verified", user.id.to_string(), String::new());
        let id = user.id;
        let done = context.db.try_write(move |tx| {
            let (secret, event) = (secret.clone(), event.clone());
            async move {
                let found = store::people::find_link(tx, LinkPurpose::Verification, &secret, now).await?;
                if found.is_none() {
                    return Err(not_valid().into());
                }
                store::people::verify_email(tx, id, now).await?;
                store::people::delete_links(tx, LinkPurpose::Verification, id).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        Ok(VerifiedEmail { email: user.email })
    }
}
