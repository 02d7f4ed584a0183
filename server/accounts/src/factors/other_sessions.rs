//! The end of the other sessions of a person at a change of factors: a thief of one of them would keep it.

use berth_foundation::{Caller, Change, Context, SessionKey};
use berth_store::{self as store, Tx, WriteError};
use berth_types::ids::UserId;
use berth_types::quotas::AuditEvent;

/// The hash of the session of a caller, which stays.
pub fn kept_session(caller: &Caller) -> String {
    caller.session.as_ref().map(|session| session.hash().to_owned()).unwrap_or_default()
}

/// Ends the other sessions of a user, and records the change. Returns the hashes of the ended sessions.
pub async fn end_others(
    tx: &mut Tx<'_>,
    user: UserId,
    kept: &str,
    event: AuditEvent,
) -> Result<Vec<String>, WriteError> {
    let ended = store::people::end_sessions(tx, user, kept).await?;
    let about = if event.detail.is_empty() { String::new() } else { format!("{}; ", event.detail) };
    let detail = format!("{about}other sessions ended: {}", ended.len());
    store::quotas::insert_audit(tx, None, &AuditEvent { detail, ..event }).await?;
    Ok(ended)
}

/// Ends the streams of sessions that are deleted already.
pub fn publish_ended(context: &Context, hashes: &[String]) {
    for hash in hashes {
        context.publish(Change::SignedOut(SessionKey::from_hash(hash)));
    }
}
