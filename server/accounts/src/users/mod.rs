//! The accounts of all people, for operators.

pub mod routes;

use berth_foundation::{Caller, Change, Context, SessionKey};
use berth_store::people::LinkPurpose;
use berth_store::{self as store, StoreError, Tx};
use berth_types::Page;
use berth_types::ids::UserId;
use berth_types::lists::ListOptions;
use berth_types::people::{DisableUser, MAX_REASON_CHARS, Person};
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use crate::webhook_heirs::pass_on_webhooks;

/// Checks the reason for a disabled account. Returns it without the white space around it.
fn check_reason(reason: &str) -> Result<String, Problem> {
    let fits = reason.chars().count() <= MAX_REASON_CHARS && !reason.chars().any(char::is_control);
    match reason.trim() {
        trimmed if fits && !trimmed.is_empty() => Ok(trimmed.to_owned()),
        _ => Err(Problem::invalid_field("/reason", "Enter 1 to 300 printable characters on one line.")),
    }
}

/// [`pass_on_webhooks`] in each organization of a user.
async fn pass_on_in_all(
    tx: &mut Tx<'_>,
    context: &Context,
    user: UserId,
    act: &AuditEvent,
) -> Result<(), StoreError> {
    for membership in store::accounts::list_memberships(tx, user).await? {
        pass_on_webhooks(tx, context, (membership.org.id, user), act).await?;
    }
    Ok(())
}

/// The accounts of all people.
#[derive(Clone)]
pub struct Users {
    context: Context,
}

impl Users {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// A page of all users by their creation. With `text` only users with this text in their name or address.
    ///
    /// # Errors
    /// 404 for everyone but operators.
    pub async fn list_people(
        &self,
        caller: &Caller,
        text: &str,
        options: &ListOptions<UserId>,
    ) -> Result<Page<Person>, Problem> {
        self.context.authorise_operator(caller)?;
        let mut conn = self.context.db.read().await?;
        let rows = store::people::list_people(&mut conn.tx(), text.trim(), options).await?;
        Ok(options.page(rows, |person| person.user.id))
    }

    /// Disables an account: its sessions, streams, terminals and ports end, its tokens and its password are refused.
    /// Jobs continue. Its webhooks pass to owners of their organizations. A repeated request changes the reason.
    ///
    /// # Errors
    /// 404 if there is no such account. 409 for the caller's own account. 422 for an invalid reason.
    pub async fn disable(
        &self,
        caller: &Caller,
        user: UserId,
        input: DisableUser,
    ) -> Result<Person, Problem> {
        self.context.authorise_operator(caller)?;
        let reason = check_reason(&input.reason)?;
        if user == caller.user.id {
            return Err(Problem::conflict(
                "account.operator",
                "Operator's account",
                "You cannot disable your own account. Nothing was changed. Another operator can disable it.",
            ));
        }
        let event = self.context.audit_event(caller, "account.disabled", user.to_string(), reason.clone());
        let now = event.at;
        let context = self.context.clone();
        let done = self.context.db.try_write(move |tx| {
            let (context, reason, event) = (context.clone(), reason.clone(), event.clone());
            async move {
                let is_repeated = store::people::find_disabled_reason(tx, user).await?.is_some();
                if !store::people::disable(tx, user, &reason, now).await? {
                    return Err(Problem::not_found().into());
                }
                let sessions = store::people::end_sessions(tx, user, "").await?;
                store::people::delete_links(tx, LinkPurpose::PasswordReset, user).await?;
                let tokens = store::people::list_token_ids(tx, user).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                if !is_repeated {
                    pass_on_in_all(tx, &context, user, &event).await?;
                }
                let person = store::people::find_person(tx, user).await?.ok_or_else(Problem::not_found)?;
                Ok((person, sessions, tokens))
            }
            .boxed()
        });
        let (person, sessions, tokens) = done.await?;
        for hash in &sessions {
            self.context.publish(Change::SignedOut(SessionKey::from_hash(hash)));
        }
        // The tokens stay for an enabled account; their streams end now.
        tokens.into_iter().for_each(|token| self.context.publish(Change::TokenRevoked(token)));
        Ok(person)
    }

    /// Enables an account. The person signs in again; tokens are valid again. Webhooks that stopped without an owner
    /// go on if the person is an owner.
    ///
    /// # Errors
    /// 404 if there is no such account. An account that is not disabled is no error.
    pub async fn enable(&self, caller: &Caller, user: UserId) -> Result<Person, Problem> {
        self.context.authorise_operator(caller)?;
        let event = self.context.audit_event(caller, "account.enabled", user.to_string(), String::new());
        let context = self.context.clone();
        let done = self.context.db.try_write(move |tx| {
            let (context, event) = (context.clone(), event.clone());
            async move {
                if store::people::enable(tx, user).await? {
                    store::quotas::insert_audit(tx, None, &event).await?;
                    pass_on_in_all(tx, &context, user, &event).await?;
                }
                let person = store::people::find_person(tx, user).await?;
                Ok(person.ok_or_else(Problem::not_found)?)
            }
            .boxed()
        });
        Ok(done.await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(check_reason(" Unpaid invoices. ").ok().as_deref(), Some("Unpaid invoices."));
        for bad in ["", "  ", "two\nlines", &"x".repeat(MAX_REASON_CHARS + 1)] {
            assert!(check_reason(bad).is_err(), "{bad:?}");
        }
    }
}
