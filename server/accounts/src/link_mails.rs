//! Mails with links to the pages of an account, and the mail after a change of the password.

use berth_foundation::Context;
use berth_foundation::credentials::{fingerprint, new_opaque};
use berth_store as store;
use berth_store::people::LinkPurpose;
use berth_types::accounts::User;
use berth_types::ids::UserId;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::mails::{Mail, MailPlace, Mails};

/// Lifetime of a link that verifies an address: seven days.
const LIFETIME_S: i64 = 7 * 86_400;

/// The refusal of a link beyond the limits of its address or its network.
pub fn throttled(wait_s: u64) -> Problem {
    let detail = "Too many links were sent to this address or requested from your network. Wait before the next request. The links in the earlier mails are valid until their expiry.";
    Problem::throttled(detail, wait_s)
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
    let event = match purpose {
        // Anyone can request a link for an address.
        LinkPurpose::PasswordReset => context.visitor_event(action, id.to_string(), String::new()),
        LinkPurpose::Verification => context.user_event(user, action, id.to_string(), String::new()),
    };
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
pub fn start_verification(context: &Context, mails: &Mails, place: MailPlace, user: User) {
    let context = context.clone();
    mails.start(place, async move {
        let now = context.now();
        let expires_at = now.plus_seconds(LIFETIME_S);
        let secret = record_link(&context, LinkPurpose::Verification, &user, (now, expires_at)).await?;
        let text = format!(
            "This address was used for a new account on Berth.\n\n\
             To verify the address, open this link before {until}:\n\n\
             {link}\n\n\
             If you did not create the account, ignore this mail. Until the\n\
             verification Berth sends only links that somebody requests.\n\n\
             Berth\n",
            until = expires_at.minute(),
            link = link(&context, "verify", &secret),
        );
        Some(Mail { to: user.email, subject: "Verify your e-mail address", text })
    });
}

/// Mails a notice to a user, after the answer to the request, if the address is verified.
fn start_notice(context: &Context, mails: &Mails, user: User, subject: &'static str, text: String) {
    let context = context.clone();
    mails.start_notice(async move {
        let verified = async {
            let mut conn = context.db.read().await?;
            store::people::find_verified_at(&mut conn.tx(), user.id).await
        };
        match verified.await {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) => {
                tracing::error!(%error, "a notice of an account was not mailed");
                return None;
            }
        }
        Some(Mail { to: user.email, subject, text })
    });
}

/// The address of the page for a new password.
fn forgot_page(context: &Context) -> String {
    format!("{}/forgot", context.settings.public_url.trim_end_matches('/'))
}

/// Mails a notice of a changed password, after the answer to the request, if the address is verified. With
/// `tokens_removed` the change removed the second factor and the API tokens.
pub fn start_password_notice(context: &Context, mails: &Mails, user: User, tokens_removed: bool) {
    let tokens = if tokens_removed {
        "The second\nfactor and the API tokens from before are removed."
    } else {
        "API tokens and\npasskeys are unchanged."
    };
    let text = format!(
        "Your password on Berth was changed at {at}.\n\n\
         Every other session of your account has ended. {tokens}\n\n\
         If this was not you, set another password now:\n\n\
         {page}\n\n\
         and revoke the tokens and remove the passkeys that you do not know.\n\n\
         Berth\n",
        at = context.now().minute(),
        page = forgot_page(context),
    );
    start_notice(context, mails, user, "Your password was changed", text);
}

/// A change of the second factor of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FactorChange {
    Added,
    /// By the user.
    Removed,
    /// By an operator.
    RemovedByOperator,
    PasskeyAdded,
    /// By the user.
    PasskeyRemoved,
}

/// Mails a notice of a changed second factor, after the answer to the request, if the address is verified.
pub fn start_factor_notice(context: &Context, mails: &Mails, user: User, change: FactorChange) {
    let (subject, what) = match change {
        FactorChange::Added => {
            ("A second factor was added", "An authenticator app was added to your account on Berth")
        }
        FactorChange::Removed => {
            ("Your second factor was removed", "The authenticator app of your account on Berth was removed")
        }
        FactorChange::RemovedByOperator => (
            "Your second factor was removed",
            "An operator removed the authenticator app, the passkeys and the\nrecovery codes of your account on Berth",
        ),
        FactorChange::PasskeyAdded => (
            "A passkey was added",
            "A passkey, which signs in without the password, was added to your\naccount on Berth",
        ),
        FactorChange::PasskeyRemoved => {
            ("A passkey was removed", "A passkey of your account on Berth was removed")
        }
    };
    let also = if change == FactorChange::PasskeyAdded {
        "A new password does not remove the passkey: remove it on the page\nSecond factor, "
    } else {
        ""
    };
    let text = format!(
        "{what}\nat {at}.\n\n\
         If you did not expect this, set another password now:\n\n\
         {page}\n\n\
         {also}and write to the operator of the portal.\n\n\
         Berth\n",
        at = context.now().minute(),
        page = forgot_page(context),
    );
    start_notice(context, mails, user, subject, text);
}
