//! Invitations into an organization. Owners create them, the portal mails them, and each works once.
//!
//! The secret of a link is only in the mail, or in the one answer that shows the link. It is not part of a
//! notice, since the database stores notices. The mail is therefore sent during the request. If the mail
//! fails, or the portal stops before it, the invitation has no `mailed_at`. A repeated invitation has a new
//! secret.

pub mod routes;

use berth_core::admission::is_email;
use berth_rest::Disconnect;
use berth_types::Page;
use berth_types::accounts::User;
use berth_types::ids::{InvitationId, OrgId, UserId};
use berth_types::lists::ListOptions;
use berth_types::members::{
    AcceptInvitation, Invitation, InvitationInfo, Joined, NewInvitation, SentInvitation,
};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::accounts::{INVALID_EMAIL, MAX_EMAIL_BYTES, account_exists, check_new_user, hash_secret};
use super::members::recheck_manage_right;
use crate::context_words;
use crate::grants::{end_without_provider, publish_ended};
use crate::passwords::Hasher;
use crate::throttle::InvitationThrottle;
use crate::webhook_heirs::pass_on_webhooks;
use berth_foundation::Context;
use berth_foundation::credentials::{fingerprint, new_opaque};
use berth_foundation::delivery::Transport;
use berth_foundation::{Caller, Refusal, Right, record_refusal, unverified};
use berth_store::members::InvitationRecord;
use berth_store::{self as store, StoreError, Tx, WriteError};
use std::sync::Arc;

/// Lifetime of a link: seven days.
const LIFETIME_S: i64 = 7 * 86_400;
/// Open invitations of one organization.
const MAX_OPEN: usize = 100;

/// The common answer for unknown, accepted, withdrawn and expired invitations. It does not reveal the
/// difference.
fn not_valid() -> Problem {
    Problem::new(
        404,
        "invitation.not_valid",
        "This invitation is not valid",
        "The invitation was accepted, was withdrawn, has expired, or was resent with another link. Ask the inviting owner to resend it.",
    )
}

fn invited_already() -> Problem {
    Problem::conflict(
        "invitation.open",
        "The address already has an invitation",
        "The address already has an open invitation. Resend or withdraw it.",
    )
}

fn member_already() -> Problem {
    Problem::conflict("members.already", "Already a member", "A member with this address already exists.")
}

fn throttled(wait_s: u64) -> Problem {
    let detail = "Too many invitations from this organization or to this address. Wait, then send it again.";
    Problem::throttled(detail, wait_s)
}

/// Checks that an owner of the organization has a verified address. Returns true if the address of `inviter` is
/// verified too.
async fn check_verified(tx: &mut Tx<'_>, org: OrgId, inviter: UserId) -> Result<bool, WriteError> {
    if !store::people::has_verified_owner(tx, org).await? {
        return Err(unverified().into());
    }
    Ok(store::people::find_verified_at(tx, inviter).await?.is_some())
}

/// The name of the inviting user in a mail. Anyone can choose the name of an account without a verified address.
fn inviter_name(caller: &Caller, verified: bool) -> &str {
    if verified { &caller.user.name } else { "An owner" }
}

/// The open invitation of a secret: neither accepted nor expired.
async fn find_open(
    tx: &mut Tx<'_>,
    hash: &str,
    now: Timestamp,
) -> Result<Option<InvitationRecord>, StoreError> {
    let found = store::members::find_by_secret(tx, hash).await?;
    Ok(found.filter(|invited| invited.accepted_by.is_none() && invited.invitation.expires_at > now))
}

/// Makes the user a member and writes the audit event. An owner also gets the webhooks that stopped without one.
async fn insert_member(
    tx: &mut Tx<'_>,
    context: &Context,
    invited: &InvitationRecord,
    user: &User,
    event: &AuditEvent,
) -> Result<(), StoreError> {
    store::members::join(tx, invited.org, user.id, invited.invitation.role, event.at).await?;
    let Invitation { role, created_by, .. } = &invited.invitation;
    let detail = format!("{}: {}, invited by {created_by}", user.email, role.name());
    store::quotas::insert_audit(tx, Some(invited.org), &AuditEvent { detail, ..event.clone() }).await?;
    pass_on_webhooks(tx, context, (invited.org, user.id), event).await
}

/// The invitations of organizations.
#[derive(Clone)]
pub struct Invitations {
    context: Context,
    hasher: Hasher,
    transport: Arc<Transport>,
    throttle: Arc<InvitationThrottle>,
}

impl Invitations {
    pub fn new(context: Context, hasher: Hasher, transport: Arc<Transport>) -> Self {
        Self { context, hasher, transport, throttle: Arc::default() }
    }

    /// Invites an e-mail address into an organization.
    ///
    /// # Errors
    /// 403 without an owner with a verified address. 409 if the address has an open invitation or belongs to a member.
    /// 429 after too many invitations.
    pub async fn invite(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewInvitation,
    ) -> Result<SentInvitation, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        self.context.check_proof(caller)?;
        let email = input.email.trim().to_lowercase();
        if input.email.len() > MAX_EMAIL_BYTES || !is_email(&email) {
            return Err(Problem::invalid_field("/email", INVALID_EMAIL));
        }
        if let Some(wait_s) = self.throttle.count_invitation(org, &email) {
            return Err(throttled(wait_s));
        }
        let now = self.context.now();
        let new = InvitationRecord {
            invitation: Invitation {
                id: self.context.new_id(now),
                email,
                role: input.role,
                created_at: now,
                created_by: caller.user.name.clone(),
                expires_at: now.plus_seconds(LIFETIME_S),
                mailed_at: None,
            },
            org,
            created_by_id: caller.user.id,
            accepted_by: None,
        };
        let secret = self.context.random(new_opaque);
        let detail = format!("{}: {}", new.invitation.email, input.role.name());
        let event =
            self.context.audit_event(caller, "invitation.created", new.invitation.id.to_string(), detail);
        let (hash, row) = (fingerprint(&secret), new.clone());
        let done = self.context.db.try_write(move |tx| {
            let (row, hash, event) = (row.clone(), hash.clone(), event.clone());
            async move {
                recheck_manage_right(tx, org, row.created_by_id).await?;
                let verified = check_verified(tx, org, row.created_by_id).await?;
                let Some(organization) = store::accounts::find_org(tx, org).await? else {
                    return Err(Problem::not_found().into());
                };
                let email = &row.invitation.email;
                if store::members::has_address(tx, org, email).await? {
                    return Err(member_already().into());
                }
                let open = store::members::list_invitations(tx, org).await?;
                if open.iter().any(|other| other.invitation.email == *email) {
                    return Err(invited_already().into());
                }
                if open.len() >= MAX_OPEN {
                    let detail = "An organization has at most 100 open invitations. Withdraw some first.";
                    return Err(Problem::invalid_field("/email", detail).into());
                }
                store::members::insert_invitation(tx, &row, &hash).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok((organization.name, verified))
            }
            .boxed()
        });
        let (organization, verified) = match done.await {
            // A concurrent request invited the same address.
            Err(WriteError::Store(StoreError::Duplicate)) => return Err(invited_already()),
            other => other?,
        };
        let inviter = inviter_name(caller, verified);
        Ok(self.mail_invitation(new.invitation, &organization, inviter, &secret).await)
    }

    /// A page of the invitations that are not accepted yet, including expired ones.
    pub async fn list_invitations(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<InvitationId>,
    ) -> Result<Page<Invitation>, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::members::list_invitations_page(&mut conn.tx(), org, options).await?;
        Ok(options.page(rows, |row| row.invitation.id).map(|row| row.invitation))
    }

    /// Withdraws an invitation. Its link is not valid any more.
    pub async fn withdraw_invitation(
        &self,
        caller: &Caller,
        org: OrgId,
        id: InvitationId,
    ) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let by = caller.user.id;
        let event = self.context.audit_event(caller, "invitation.withdrawn", id.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                recheck_manage_right(tx, org, by).await?;
                let Some(found) = store::members::find_invitation(tx, org, id).await? else {
                    return Err(Problem::not_found().into());
                };
                store::members::withdraw(tx, org, id).await?;
                let event = AuditEvent { detail: found.invitation.email, ..event };
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        Ok(done.await?)
    }

    /// Sends an invitation again with a new link for another seven days.
    ///
    /// # Errors
    /// 403 without a fresh proof, or without an owner with a verified address. 429 after too many invitations.
    pub async fn resend_invitation(
        &self,
        caller: &Caller,
        org: OrgId,
        id: InvitationId,
    ) -> Result<SentInvitation, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        self.context.check_proof(caller)?;
        let known = {
            let mut conn = self.context.db.read().await?;
            store::members::find_invitation(&mut conn.tx(), org, id).await?
        };
        let known = known.ok_or_else(Problem::not_found)?;
        if let Some(wait_s) = self.throttle.count_invitation(org, &known.invitation.email) {
            return Err(throttled(wait_s));
        }
        let by = caller.user.id;
        let expires_at = self.context.now().plus_seconds(LIFETIME_S);
        let secret = self.context.random(new_opaque);
        let hash = fingerprint(&secret);
        let detail = known.invitation.email.clone();
        let event = self.context.audit_event(caller, "invitation.resent", id.to_string(), detail);
        let done = self.context.db.try_write(move |tx| {
            let (hash, event) = (hash.clone(), event.clone());
            async move {
                recheck_manage_right(tx, org, by).await?;
                let verified = check_verified(tx, org, by).await?;
                let Some(organization) = store::accounts::find_org(tx, org).await? else {
                    return Err(Problem::not_found().into());
                };
                // The invitation may have been accepted or withdrawn since the read above.
                if !store::members::renew_invitation(tx, id, &hash, expires_at).await? {
                    return Err(Problem::not_found().into());
                }
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok((organization.name, verified))
            }
            .boxed()
        });
        let (organization, verified) = done.await?;
        let invitation = Invitation { expires_at, mailed_at: None, ..known.invitation };
        Ok(self.mail_invitation(invitation, &organization, inviter_name(caller, verified), &secret).await)
    }

    /// Mails a stored invitation. Without a mail server the result contains the link, and the inviting owner
    /// has to pass it on.
    async fn mail_invitation(
        &self,
        mut invitation: Invitation,
        organization: &str,
        inviter: &str,
        secret: &str,
    ) -> SentInvitation {
        let link = format!("{}/join#{secret}", self.context.settings.public_url.trim_end_matches('/'));
        let subject = format!("{inviter} invites you to {organization} on Berth");
        // Short lines keep the mail readable in a file, where it goes without a mail server.
        let text = format!(
            "{inviter} invites you to the organization\n{organization}\nwith the role {role}: {rights}\n\n\
             To accept the invitation, open this link before {until}:\n\n\
             {link}\n\n\
             The link works once. Anyone with the link can accept the invitation:\n\
             do not forward this mail.\n\n\
             If you did not expect this invitation, ignore this mail.\n\n\
             Berth\n",
            role = invitation.role.name(),
            rights = invitation.role.description(),
            until = invitation.expires_at.minute(),
        );
        match self.transport.send_mail(&invitation.email, &subject, text).await {
            // Without a mail server the mail is a file for the operator, and nobody gets it.
            Ok(()) if self.context.settings.smtp.is_none() => {}
            Ok(()) => {
                let (id, hash, now) = (invitation.id, fingerprint(secret), self.context.now());
                let marked = self.context.db.write(move |tx| {
                    let hash = hash.clone();
                    async move { store::members::mark_mailed(tx, id, &hash, now).await }.boxed()
                });
                if let Err(error) = marked.await {
                    tracing::warn!(%error, "an invitation was mailed, but appears as not mailed");
                }
                invitation.mailed_at = Some(now);
            }
            Err(error) => tracing::warn!(why = error.reason, "an invitation could not be mailed"),
        }
        let link = self.context.settings.smtp.is_none().then_some(link);
        SentInvitation { invitation, link }
    }

    /// The details of an open invitation, for the holder of its secret.
    ///
    /// # Errors
    /// 404 if the invitation is not open. 422 if the secret is too long.
    pub async fn get_invitation_info(&self, token: &str) -> Result<InvitationInfo, Problem> {
        let hash = hash_secret(token)?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let found = find_open(&mut tx, &hash, self.context.now()).await?;
        let found = found.ok_or_else(not_valid)?;
        let org = store::accounts::find_org(&mut tx, found.org).await?.ok_or_else(not_valid)?;
        let Invitation { email, role, expires_at, .. } = found.invitation;
        Ok(InvitationInfo { organization: org.name, email, role, expires_at })
    }

    /// Accepts an invitation as the caller, or as a new user if the input has a name or a password.
    ///
    /// # Errors
    /// 403 if the invitation is for another address. 404 if it is not open. 409 if the address has an account
    /// or belongs to a member. 422 if the secret, the name or the password is invalid.
    pub async fn accept_invitation(
        &self,
        caller: Option<&Caller>,
        input: AcceptInvitation,
        sender: &Disconnect,
    ) -> Result<Joined, Problem> {
        let hash = hash_secret(&input.token)?;
        match (input.name, input.password) {
            (None, None) => {
                let caller = caller.ok_or_else(Problem::unauthenticated)?;
                self.accept_as(caller, hash).await
            }
            (name, password) => {
                let (name, password) = (name.unwrap_or_default(), password.unwrap_or_default());
                self.accept_as_new(hash, name, password, sender).await
            }
        }
    }

    async fn accept_as(&self, caller: &Caller, hash: String) -> Result<Joined, Problem> {
        if caller.token.is_some() {
            record_refusal(&self.context, caller, Refusal::Token);
            return Err(Problem::forbidden(
                "A token acts within one organization. Sign in to accept an invitation.",
            ));
        }
        let now = self.context.now();
        let user = caller.user.clone();
        let event = self.context.audit_event(caller, "member.joined", user.id.to_string(), String::new());
        let verified = self.context.audit_event(caller, "email.verified", user.id.to_string(), String::new());
        let context = self.context.clone();
        let done = self.context.db.try_write(move |tx| {
            let (hash, user, context) = (hash.clone(), user.clone(), context.clone());
            let (event, verified) = (event.clone(), verified.clone());
            async move {
                let Some(found) = store::members::find_by_secret(tx, &hash).await? else {
                    return Err(not_valid().into());
                };
                let Some(organization) = store::accounts::find_org(tx, found.org).await? else {
                    return Err(not_valid().into());
                };
                let member = store::accounts::find_role(tx, found.org, user.id).await?;
                if let Some(role) = member.filter(|_| found.accepted_by == Some(user.id)) {
                    // A repeated request after a lost answer.
                    return Ok((Joined { organization, role }, Vec::new()));
                }
                if found.accepted_by.is_some() || found.invitation.expires_at <= now {
                    return Err(not_valid().into());
                }
                if found.invitation.email != user.email {
                    let detail = format!(
                        "The invitation is for {}, and you are signed in as {}. Sign out, then open the link again as {}.",
                        found.invitation.email, user.email, found.invitation.email
                    );
                    let title = "The invitation is for another address";
                    return Err(Problem::new(403, "invitation.for_another", title, detail).into());
                }
                if member.is_some() {
                    return Err(member_already().into());
                }
                if !store::members::accept(tx, found.invitation.id, user.id, now).await? {
                    return Err(not_valid().into());
                }
                // The link of the invitation proves the address.
                if store::people::verify_email(tx, user.id, now).await? {
                    store::quotas::insert_audit(tx, None, &verified).await?;
                }
                insert_member(tx, &context, &found, &user, &event).await?;
                // The organization may permit single sign-on only.
                let ended = end_without_provider(tx, found.org).await?;
                Ok((Joined { organization, role: found.invitation.role }, ended))
            }
            .boxed()
        });
        let (joined, ended) = done.await?;
        publish_ended(&self.context, &ended);
        Ok(joined)
    }

    /// Creates the account for the invited address, also while sign-up is closed.
    async fn accept_as_new(
        &self,
        hash: String,
        name: String,
        password: String,
        sender: &Disconnect,
    ) -> Result<Joined, Problem> {
        let now = self.context.now();
        let (email, texts) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let found = find_open(&mut tx, &hash, now).await?.ok_or_else(not_valid)?;
            let email = found.invitation.email;
            // Checked before the expensive hash of the password.
            if store::accounts::find_login(&mut tx, &email).await?.is_some() {
                return Err(account_exists());
            }
            let mut texts = context_words::read(&mut tx, &self.context.settings).await?;
            texts.extend(store::accounts::find_org(&mut tx, found.org).await?.map(|org| org.name));
            (email, texts)
        };
        let errors = check_new_user(&email, &name, &password, &texts);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let user =
            User { id: self.context.new_id(now), email, name: name.trim().to_owned(), operator: false };
        let password_hash = self.hasher.hash(password, self.context.salt(), sender).await?;
        let event = self.context.user_event(&user, "member.joined", user.id.to_string(), String::new());
        let verified = self.context.user_event(&user, "email.verified", user.id.to_string(), String::new());
        let context = self.context.clone();
        let done = self.context.db.try_write(move |tx| {
            let (hash, password_hash, context) = (hash.clone(), password_hash.clone(), context.clone());
            let (user, event, verified) = (user.clone(), event.clone(), verified.clone());
            async move {
                let Some(found) = find_open(tx, &hash, now).await? else {
                    return Err(not_valid().into());
                };
                let Some(organization) = store::accounts::find_org(tx, found.org).await? else {
                    return Err(not_valid().into());
                };
                if !store::members::accept(tx, found.invitation.id, user.id, now).await? {
                    return Err(not_valid().into());
                }
                store::accounts::insert_user(tx, &user, &password_hash, now).await?;
                // The link of the invitation proves the address.
                store::quotas::insert_audit(tx, None, &verified).await?;
                insert_member(tx, &context, &found, &user, &event).await?;
                Ok(Joined { organization, role: found.invitation.role })
            }
            .boxed()
        });
        match done.await {
            // A concurrent sign-up used the address. The new user can still accept the invitation.
            Err(WriteError::Store(StoreError::Duplicate)) => Err(account_exists()),
            other => Ok(other?),
        }
    }
}
