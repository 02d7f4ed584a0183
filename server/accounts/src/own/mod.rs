//! A person's own account: password, sessions, verification of the address, deletion.

pub mod routes;

use std::net::IpAddr;

use berth_foundation::{Caller, Change, SessionKey};
use berth_store as store;
use berth_store::people::{LinkPurpose, SoleOwnership};
use berth_types::Page;
use berth_types::accounts::Membership;
use berth_types::ids::SessionId;
use berth_types::lists::ListOptions;
use berth_types::people::{BrowserSession, ChangePassword, DELETED_NAME, DeleteAccount, EndedSessions};
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use crate::accounts::Accounts;
use crate::context_words;
use crate::factors::{ProofOrigin, WRONG_PASSWORD};
use crate::link_mails::{start_password_notice, start_verification, throttled};
use crate::passwords;
use crate::webhook_heirs::pass_on_webhooks;

/// The refusal of a wrong present password in this field.
fn wrong_password(pointer: &str) -> Problem {
    let detail = "This is not your present password. Nothing was changed.";
    let problem = Problem::new(401, "auth.wrong_password", "Wrong password", detail);
    Problem { errors: vec![FieldError::new(pointer, detail)], ..problem }
}

/// The reason why an organization keeps its only owner; `None` if the owner can go.
fn need_of_owner(org: &SoleOwnership) -> Option<String> {
    let name = &org.name;
    if org.open_jobs > 0 {
        return Some(format!(
            "You are the only owner of {name}, which has {} open jobs. Stop the jobs, or make another member an owner.",
            org.open_jobs
        ));
    }
    if org.open_reservations > 0 {
        return Some(format!(
            "You are the only owner of {name}, which has {} open reservations. Cancel the reservations, or make another member an owner.",
            org.open_reservations
        ));
    }
    if org.posted_micros != 0 || org.held_micros != 0 {
        return Some(format!(
            "You are the only owner of {name}, which has a balance. Make another member an owner, or ask the operator to settle the balance."
        ));
    }
    (org.others > 0).then(|| {
        format!(
            "You are the only owner of {name}, which has other members. Make one of them an owner, or remove them."
        )
    })
}

/// The accounts of the callers themselves.
#[derive(Clone)]
pub struct OwnAccount {
    accounts: Accounts,
}

impl OwnAccount {
    pub const fn new(accounts: Accounts) -> Self {
        Self { accounts }
    }

    /// Checks the present password, counted like a sign-in. Returns its stored hash.
    async fn check_password(
        &self,
        caller: &Caller,
        password: String,
        pointer: &str,
        from: &ProofOrigin,
    ) -> Result<String, Problem> {
        if password.chars().count() > passwords::MAX_CHARS {
            return Err(Problem::invalid_field(pointer, "Use at most 1024 characters."));
        }
        let email = &caller.user.email;
        // Reserved before the count: a full queue uses up no attempt.
        let place = self.accounts.hasher.reserve()?;
        if let Some(wait_s) = self.accounts.factors.throttle.count_attempt(email, from.address) {
            let detail = "Too many passwords were tried for this account or from your network. Nothing was changed. Wait before the next try.";
            return Err(Problem::throttled(detail, wait_s));
        }
        let mut conn = self.accounts.context.db.read().await?;
        let hash = store::people::find_password(&mut conn.tx(), caller.user.id).await?;
        drop(conn);
        let hash = hash.filter(|hash| !hash.is_empty());
        let correct = self.accounts.hasher.verify(place, password, hash.clone(), &from.disconnect).await?;
        let Some(hash) = hash.filter(|_| correct) else {
            let (user, detail) = (caller.user.id.to_string(), WRONG_PASSWORD.to_owned());
            let event = self.accounts.context.audit_event(caller, "session.refused", user, detail);
            self.accounts.factors.record_refusal(event).await;
            return Err(wrong_password(pointer));
        };
        self.accounts.factors.throttle.record_success(email, from.address);
        Ok(hash)
    }

    /// Ends the streams of sessions that are deleted already.
    fn publish_ended(&self, hashes: &[String]) {
        for hash in hashes {
            self.accounts.context.publish(Change::SignedOut(SessionKey::from_hash(hash)));
        }
    }

    /// Changes the caller's password. All other sessions of the person end; API tokens stay valid.
    ///
    /// # Errors
    /// 401 for a wrong present password. 403 for a token. 422 for a new password that is too short or easy to guess.
    /// 429 after too many attempts. 503 if too many passwords wait for their verification.
    pub async fn change_password(
        &self,
        caller: &Caller,
        input: ChangePassword,
        from: &ProofOrigin,
    ) -> Result<EndedSessions, Problem> {
        let kept = caller.own_session(&self.accounts.context)?.hash().to_owned();
        let user = caller.user.id;
        let texts = {
            let mut conn = self.accounts.context.db.read().await?;
            context_words::read_of_person(&mut conn.tx(), &self.accounts.context.settings, user).await?
        };
        let own = [caller.user.email.as_str(), caller.user.name.as_str()];
        let known: Vec<&str> = own.into_iter().chain(texts.iter().map(String::as_str)).collect();
        if let Some(error) = passwords::check("/new", &input.new, &known) {
            return Err(Problem::invalid(vec![error]));
        }
        let before = self.check_password(caller, input.current, "/current", from).await?;
        let context = &self.accounts.context;
        let hash = self.accounts.hasher.hash(input.new, context.salt(), &from.disconnect).await?;
        let event = context.audit_event(caller, "password.changed", user.to_string(), String::new());
        let done = context.db.try_write(move |tx| {
            let (before, hash) = (before.clone(), hash.clone());
            let (kept, event) = (kept.clone(), event.clone());
            async move {
                // Another request changed the password since the verification.
                if !store::people::replace_password(tx, user, &before, &hash).await? {
                    return Err(wrong_password("/current").into());
                }
                store::people::delete_links(tx, LinkPurpose::PasswordReset, user).await?;
                let ended = store::people::end_sessions(tx, user, &kept).await?;
                let detail = format!("other sessions ended: {}", ended.len());
                store::quotas::insert_audit(tx, None, &AuditEvent { detail, ..event }).await?;
                Ok(ended)
            }
            .boxed()
        });
        let ended = done.await?;
        self.publish_ended(&ended);
        start_password_notice(context, &self.accounts.mails, caller.user.clone(), false);
        Ok(EndedSessions { ended_sessions: u64::try_from(ended.len()).unwrap_or(u64::MAX) })
    }

    /// A page of the caller's sessions by their sign-in.
    pub async fn list_sessions(
        &self,
        caller: &Caller,
        options: &ListOptions<SessionId>,
    ) -> Result<Page<BrowserSession>, Problem> {
        let current = caller.own_session(&self.accounts.context)?.hash();
        let context = &self.accounts.context;
        let now = context.now();
        let valid = (now, now.plus_seconds(-context.settings.session_idle_s));
        let mut conn = context.db.read().await?;
        let rows =
            store::people::list_sessions(&mut conn.tx(), caller.user.id, current, valid, options).await?;
        Ok(options.page(rows, |session| session.id))
    }

    /// Ends one session of the caller, with its streams, terminals and ports.
    ///
    /// # Errors
    /// 403 for a token, and without a fresh proof. 404 if the caller has no such session.
    pub async fn end_session(&self, caller: &Caller, session: SessionId) -> Result<(), Problem> {
        caller.own_session(&self.accounts.context)?;
        let (context, user) = (&self.accounts.context, caller.user.id);
        context.check_person(caller)?;
        let event = context.audit_event(caller, "session.ended", session.to_string(), String::new());
        let done = context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let ended = store::people::end_session(tx, user, session).await?;
                if ended.is_some() {
                    store::quotas::insert_audit(tx, None, &event).await?;
                }
                Ok(ended)
            }
            .boxed()
        });
        let hash = done.await?.ok_or_else(Problem::not_found)?;
        self.publish_ended(&[hash]);
        Ok(())
    }

    /// Ends all sessions of the caller, the present one too.
    ///
    /// # Errors
    /// 403 for a token, and without a fresh proof.
    pub async fn end_sessions(&self, caller: &Caller) -> Result<(), Problem> {
        caller.own_session(&self.accounts.context)?;
        let (context, user) = (&self.accounts.context, caller.user.id);
        context.check_person(caller)?;
        let event = context.audit_event(caller, "sessions.ended", user.to_string(), String::new());
        let done = context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let ended = store::people::end_sessions(tx, user, "").await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(ended)
            }
            .boxed()
        });
        let ended = done.await?;
        self.publish_ended(&ended);
        Ok(())
    }

    /// Mails the caller another link that verifies the address. A verified address gets none.
    ///
    /// # Errors
    /// 403 for a token. 429 after too many links. 503 if too many mails wait.
    pub async fn send_verification(&self, caller: &Caller, address: Option<IpAddr>) -> Result<(), Problem> {
        caller.own_session(&self.accounts.context)?;
        let context = &self.accounts.context;
        let mut conn = context.db.read().await?;
        let verified_at = store::people::find_verified_at(&mut conn.tx(), caller.user.id).await?;
        drop(conn);
        if verified_at.is_some() {
            return Ok(());
        }
        let place = self.accounts.mails.reserve()?;
        if let Some(wait_s) = self.accounts.links.count_link(&caller.user.email, address) {
            return Err(throttled(wait_s));
        }
        start_verification(context, &self.accounts.mails, place, caller.user.clone());
        Ok(())
    }

    /// Deletes the caller's account: name, address, password, second factors, sessions, memberships and tokens. The
    /// ledger, invoices, jobs and audit events stay. The webhooks pass to owners of their organizations. An organization
    /// without any other member loses its saved card, its automatic recharge and its webhooks.
    ///
    /// # Errors
    /// 401 for a wrong password. 403 for a token. 409 for an operator, and for the only owner of an organization with
    /// open jobs, open reservations, a balance or other members. 429 after too many attempts.
    pub async fn delete_account(
        &self,
        caller: &Caller,
        input: DeleteAccount,
        from: &ProofOrigin,
    ) -> Result<(), Problem> {
        caller.own_session(&self.accounts.context)?;
        if caller.user.operator {
            return Err(Problem::conflict(
                "account.operator",
                "Operator's account",
                "An operator's account cannot be deleted. Nothing was changed. An owner removes the operator on the page Operators first.",
            ));
        }
        self.check_password(caller, input.password, "/password", from).await?;
        let (context, user) = (&self.accounts.context, caller.user.id);
        let event = context.audit_event(caller, "account.deleted", user.to_string(), String::new());
        // The event must not keep the name.
        let event = AuditEvent { actor: DELETED_NAME.to_owned(), ..event };
        let now = event.at;
        let own_context = context.clone();
        let done = context.db.try_write(move |tx| {
            let (context, event) = (own_context.clone(), event.clone());
            async move {
                let owned = store::people::list_sole_ownerships(tx, user).await?;
                if let Some(detail) = owned.iter().find_map(need_of_owner) {
                    let detail = format!("{detail} Nothing was changed.");
                    return Err(Problem::conflict("account.in_use", "Account in use", detail).into());
                }
                for org in &owned {
                    store::payments::forget_card(tx, org.id).await?;
                    store::billing_details::set_left(tx, org.id, now).await?;
                    store::webhooks::delete_all(tx, org.id).await?;
                }
                let memberships = store::accounts::list_memberships(tx, user).await?;
                for Membership { org, role } in &memberships {
                    let left = AuditEvent {
                        id: context.new_id(now),
                        action: "member.left".to_owned(),
                        detail: role.name().to_owned(),
                        ..event.clone()
                    };
                    store::quotas::insert_audit(tx, Some(org.id), &left).await?;
                }
                let tokens = store::people::list_token_ids(tx, user).await?;
                let sessions = store::people::end_sessions(tx, user, "").await?;
                store::people::delete_person(tx, user, now).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                for membership in &memberships {
                    pass_on_webhooks(tx, &context, (membership.org.id, user), &event).await?;
                }
                Ok((memberships, tokens, sessions))
            }
            .boxed()
        });
        let (memberships, tokens, sessions) = done.await?;
        self.publish_ended(&sessions);
        tokens.into_iter().for_each(|token| context.publish(Change::TokenRevoked(token)));
        for membership in memberships {
            context.publish(Change::Member { org: membership.org.id, user });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use berth_types::ids::OrgId;

    use super::*;

    #[test]
    fn an_organization_in_use_keeps_its_only_owner() {
        let empty = SoleOwnership {
            id: OrgId::from_uuid(uuid::Uuid::nil()),
            name: "Lab".to_owned(),
            others: 0,
            open_jobs: 0,
            open_reservations: 0,
            posted_micros: 0,
            held_micros: 0,
        };
        assert_eq!(need_of_owner(&empty), None);
        for (org, reason) in [
            (SoleOwnership { open_jobs: 2, ..empty.clone() }, "2 open jobs"),
            (SoleOwnership { open_reservations: 1, ..empty.clone() }, "1 open reservations"),
            (SoleOwnership { posted_micros: -1, ..empty.clone() }, "a balance"),
            (SoleOwnership { held_micros: 1, ..empty.clone() }, "a balance"),
            (SoleOwnership { others: 1, ..empty.clone() }, "other members"),
        ] {
            assert!(need_of_owner(&org).is_some_and(|text| text.contains(reason)), "{org:?}");
        }
    }
}
