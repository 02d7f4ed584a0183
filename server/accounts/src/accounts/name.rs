//! The name of the caller's own account.

use berth_core::admission::check_name;
use berth_foundation::{Caller, Context};
use berth_store as store;
use berth_types::accounts::User;
use berth_types::problems::Problem;
use futures::FutureExt;
use serde_json::json;

/// The refusal of another name for an account whose name a provider keeps.
fn kept_by_provider() -> Problem {
    Problem::forbidden(
        "The identity provider of your organization keeps your name. Nothing was changed. Change the name there, or ask an administrator of the provider.",
    )
}

/// The name for an audit event.
fn state(name: &str) -> Option<String> {
    Some(json!({ "name": name }).to_string())
}

/// Changes the name of the caller. Earlier records keep the former name.
///
/// # Errors
/// 403 for a token, and for an account without a password that a provider keeps by SCIM. 422 for an invalid name.
pub async fn rename(context: &Context, caller: &Caller, name: &str) -> Result<User, Problem> {
    caller.own_session(context)?;
    let mut errors = Vec::new();
    check_name("/name", name, &mut errors);
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let (user, name) = (caller.user.id, name.trim().to_owned());
    let event = context.audit_event(caller, "account.renamed", user.to_string(), name.clone());
    let renamed = context.db.try_write(move |tx| {
        let (name, event) = (name.clone(), event.clone());
        async move {
            let before = store::accounts::find_user(tx, user).await?.ok_or_else(Problem::not_found)?;
            if !store::people::rename(tx, user, &name).await? {
                return Err(kept_by_provider().into());
            }
            if before.name != name {
                let event = event.with_change(state(&before.name), state(&name));
                store::quotas::insert_audit(tx, None, &event).await?;
            }
            Ok(User { name, ..before })
        }
        .boxed()
    });
    Ok(renamed.await?)
}
