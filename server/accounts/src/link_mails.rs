//! Mails with links to the pages of an account, and the mail after a change of the password.

use berth_foundation::credentials::{fingerprint, new_opaque};
use berth_foundation::{Caller, Context};
use berth_store as store;
use berth_store::people::LinkPurpose;
use berth_types::accounts::User;
use berth_types::ids::UserId;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::mails::{Mail, Mails};

/// Lifetime of a link that verifies an address: seven days.
const LIFETIME_S: i64 = 7 * 86_400;

/// The refusal of a link beyond the limits of its address or its network.
pub fn throttled(wait_s: u64) -> Problem {
    let detail = "Too many links were sent to this address or requested from your network. Wait before the next request. The links in the earlier mails are valid until their expiry.";
    Problem::throttled(detail, wait_s)
}

/// The caller of an act that a person does by a link in a mail, without a session.
pub fn person(user: User) -> Caller {
    Caller { user, token: None, session: None, expires_at: None, proof: None, idempotency_key: None }
}

/// The address of a page of the portal with a secret after the `#`, which browsers do not send.
pub fn link(context: &Context, page: &str, secret: &str) -> String {
    format!("{}/{page}#{secret}", context.settings.public_url.trim_end_matches('/'))
}

/// Records a new link of a user with an audit event. Returns the secret of the link, or `None` after a failure, which
/// goes to the log.
pub async fn record_link(
    context: &Context,
    purpose: LinkPurpose,
    user: &User,
    (now, expires_at): (Timestamp, Timestamp),
) -> Option<String> {
    let secret = context.random(new_opaque);
    let hash = fingerprint(&secret);
    let action = match purpose {
        LinkPurpose::PasswordReset => "password.reset_asked",
        LinkPurpose::Verification => "email.verification_asked",
    };
    let id: UserId = user.id;
    let event = context.audit_event(&person(user.clone()), action, id.to_string(), String::new());
    let insert = context.db.write(move |tx| {
        let (hash, event) = (hash.clone(), event.clone());
        async move {
            store::people::insert_link(tx, purpose, id, &hash, now, expires_at).await?;
            store::quotas::insert_audit(tx, None, &event).await
        }
        .boxed()
    });
    match insert.await {
        Ok(()) => Some(secret),
        Err(error) => {
            tracing::error!(%error, "a link in a mail was not recorded");
            None
        }
    }
}

/// Mails a link that verifies the address of a user, after the answer to the request. The mail quotes no name, because
/// anyone can sign up with the address of somebody else.
///
/// # Errors
/// 503 if too many mails wait.
pub fn start_verification(context: &Context, mails: &Mails, user: User) -> Result<(), Problem> {
    let context = context.clone();
    mails.start(async move {
        let now = context.now();
        let expires_at = now.plus_seconds(LIFETIME_S);
        let secret = record_link(&context, LinkPurpose::Verification, &user, (now, expires_at)).await?;
        let text = format!(
            "This address was used for a new account on Berth.\n\n\
             To verify the address, open this link before {until}:\n\n\
             {link}\n\n\
             If you did not create the account, ignore this mail. Berth sends\n\
             nothing else to an address that is not verified.\n\n\
             Berth\n",
            until = expires_at.minute(),
            link = link(&context, "verify", &secret),
        );
        Some(Mail { to: user.email, subject: "Verify your e-mail address", text })
    })
}

/// Mails a notice of a changed password, after the answer to the request, if the address is verified.
///
/// # Errors
/// 503 if too many mails wait.
pub fn start_password_notice(context: &Context, mails: &Mails, user: User) -> Result<(), Problem> {
    let context = context.clone();
    let changed_at = context.now();
    mails.start(async move {
        let verified = async {
            let mut conn = context.db.read().await?;
            store::people::find_verified_at(&mut conn.tx(), user.id).await
        };
        match verified.await {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) => {
                tracing::error!(%error, "a changed password was not mailed");
                return None;
            }
        }
        let text = format!(
            "Your password on Berth was changed at {at}.\n\n\
             Every other session of your account has ended. API tokens are\n\
             unchanged.\n\n\
             If this was not you, set another password now:\n\n\
             {page}\n\n\
             and revoke the tokens that you do not know.\n\n\
             Berth\n",
            at = changed_at.minute(),
            page = format_args!("{}/forgot", context.settings.public_url.trim_end_matches('/')),
        );
        Some(Mail { to: user.email, subject: "Your password was changed", text })
    })
}
