//! The chain of audit events and its signed checkpoints.
//!
//! Each event has a number without gaps and a hash over its content and the hash before it, so a later change of
//! a row needs a change of all rows after it. A checkpoint has the signature of a hash.

use std::sync::Arc;

use berth_types::quotas::AuditEvent;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::tx::{StoreError, Tx, Work};

/// The hash before the first event.
pub const FIRST_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The name of the encoding that the hash covers.
const ENCODING: &[u8] = b"berth-audit-1";

/// The number of older events that one transaction chains.
pub(crate) const CHAIN_BATCH: i64 = 500;

/// An audit event as it is stored, without an interpretation of its texts.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredEvent {
    pub id: String,
    pub seq: Option<i64>,
    pub hash: Option<String>,
    pub org_id: String,
    /// Microseconds UTC.
    pub at: i64,
    pub actor: String,
    pub action: String,
    pub subject: String,
    pub detail: String,
    pub actor_id: Option<String>,
    pub token_id: Option<String>,
    pub session: Option<String>,
    pub address: Option<String>,
    pub request_id: Option<String>,
    pub before_json: Option<String>,
    pub after_json: Option<String>,
}

/// A value of the encoding: its presence, its length and its bytes, so that no two lists of values have the same
/// bytes.
fn add_value(sha: &mut Sha256, value: Option<&[u8]>) {
    match value {
        None => sha.update([0u8]),
        Some(bytes) => {
            sha.update([1u8]);
            sha.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
            sha.update(bytes);
        }
    }
}

impl StoredEvent {
    fn new(event: &AuditEvent) -> Self {
        let context = &event.context;
        Self {
            id: event.id.to_string(),
            seq: None,
            hash: None,
            org_id: context.org.map_or_else(String::new, |org| org.to_string()),
            at: event.at.micros(),
            actor: event.actor.clone(),
            action: event.action.clone(),
            subject: event.subject.clone(),
            detail: event.detail.clone(),
            actor_id: context.actor_id.map(|id| id.to_string()),
            token_id: context.token_id.map(|id| id.to_string()),
            session: context.session.clone(),
            address: context.address.clone(),
            request_id: context.request_id.map(|id| id.to_string()),
            before_json: context.before.clone(),
            after_json: context.after.clone(),
        }
    }

    /// The hash of the event as number `seq` after an event with the hash `previous`, in hexadecimal digits.
    pub fn hash_after(&self, previous: &str, seq: i64) -> String {
        let mut sha = Sha256::new();
        sha.update(ENCODING);
        add_value(&mut sha, Some(previous.as_bytes()));
        add_value(&mut sha, Some(&seq.to_be_bytes()));
        add_value(&mut sha, Some(&self.at.to_be_bytes()));
        for text in [&self.id, &self.org_id, &self.actor, &self.action, &self.subject, &self.detail] {
            add_value(&mut sha, Some(text.as_bytes()));
        }
        for text in [
            &self.actor_id,
            &self.token_id,
            &self.session,
            &self.address,
            &self.request_id,
            &self.before_json,
            &self.after_json,
        ] {
            add_value(&mut sha, text.as_ref().map(String::as_bytes));
        }
        hex::encode(sha.finalize())
    }
}

/// The signature of the chain up to one event.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Checkpoint {
    /// From 1 on, without gaps.
    pub number: i64,
    /// The number of the last event.
    pub seq: i64,
    /// The hash of the last event.
    pub hash: String,
    /// Microseconds UTC.
    pub at: i64,
    /// In hexadecimal digits.
    pub signature: String,
}

/// The end of the chain.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Head {
    /// The number of the last event; 0 without events.
    pub seq: i64,
    pub hash: String,
}

fn no_head() -> StoreError {
    StoreError::Corrupt("audit_head has no row".to_owned())
}

/// The signal to readers of the chain after the commit of new events. A signal without a reader is free.
#[derive(Clone)]
pub(crate) struct AuditSignal(Arc<watch::Sender<u64>>);

impl AuditSignal {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    pub(crate) fn notify(&self) {
        self.0.send_modify(|commits| *commits = commits.wrapping_add(1));
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// The result of a piece of work.
pub(crate) struct Audited<T> {
    pub(crate) value: T,
    /// True if the work has audit events.
    pub(crate) has_events: bool,
}

/// Runs a piece of work, then writes its audit events. All audited writes change the row of the head, so it is
/// the last row that a write locks.
pub(crate) async fn run_audited<T: Send>(
    work: &impl Work<T>,
    tx: &mut Tx<'_>,
) -> Result<Audited<T>, StoreError> {
    let value = work(tx).await?;
    let events = tx.take_audit_events();
    let has_events = !events.is_empty();
    if has_events {
        append(tx, &events).await?;
    }
    Ok(Audited { value, has_events })
}

/// Locks the head, moves it by `count` events, and returns it with its new number and its former hash.
async fn move_head(tx: &mut Tx<'_>, count: i64) -> Result<Head, StoreError> {
    let sql = "UPDATE audit_head SET seq = seq + $1 WHERE id = 1 RETURNING seq, hash";
    list!(tx, Head, sql, count)?.into_iter().next().ok_or_else(no_head)
}

async fn set_head_hash(tx: &mut Tx<'_>, hash: &str) -> Result<(), StoreError> {
    exec!(tx, "UPDATE audit_head SET hash = $1 WHERE id = 1", hash).map(|_| ())
}

async fn append(tx: &mut Tx<'_>, events: &[AuditEvent]) -> Result<(), StoreError> {
    let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
    let head = move_head(tx, count).await?;
    let mut hash = head.hash;
    for (seq, event) in (head.seq - count + 1..).zip(events) {
        let event = StoredEvent::new(event);
        hash = event.hash_after(&hash, seq);
        insert(tx, &event, seq, &hash).await?;
    }
    set_head_hash(tx, &hash).await
}

async fn insert(tx: &mut Tx<'_>, event: &StoredEvent, seq: i64, hash: &str) -> Result<(), StoreError> {
    let sql = "INSERT INTO audit_events (id, seq, hash, org_id, at, actor, action, subject, detail, actor_id, \
               token_id, session, address, request_id, before_json, after_json) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
    exec!(
        tx,
        sql,
        &event.id,
        seq,
        hash,
        &event.org_id,
        event.at,
        &event.actor,
        &event.action,
        &event.subject,
        &event.detail,
        &event.actor_id,
        &event.token_id,
        &event.session,
        &event.address,
        &event.request_id,
        &event.before_json,
        &event.after_json
    )
    .map(|_| ())
}

macro_rules! select_events {
    ($rest:literal) => {
        concat!(
            "SELECT id, seq, hash, org_id, at, actor, action, subject, detail, actor_id, token_id, session, \
             address, request_id, before_json, after_json FROM audit_events ",
            $rest
        )
    };
}

/// Chains the next events without a number. Returns their number.
pub(crate) async fn chain_batch(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let sql = select_events!("WHERE seq IS NULL ORDER BY id LIMIT $1");
    let events = list!(tx, StoredEvent, sql, CHAIN_BATCH)?;
    let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
    if count == 0 {
        return Ok(0);
    }
    let head = move_head(tx, count).await?;
    let mut hash = head.hash;
    for (seq, event) in (head.seq - count + 1..).zip(&events) {
        hash = event.hash_after(&hash, seq);
        exec!(tx, "UPDATE audit_events SET seq = $2, hash = $3 WHERE id = $1", &event.id, seq, &hash)?;
    }
    set_head_hash(tx, &hash).await?;
    Ok(count)
}

/// The end of the chain.
pub async fn get_head(tx: &mut Tx<'_>) -> Result<Head, StoreError> {
    find!(tx, Head, "SELECT seq, hash FROM audit_head WHERE id = 1")?.ok_or_else(no_head)
}

/// Lists at most `limit` events from number `from` on.
pub async fn list_from(tx: &mut Tx<'_>, from: i64, limit: i64) -> Result<Vec<StoredEvent>, StoreError> {
    let sql = select_events!("WHERE seq >= $1 ORDER BY seq LIMIT $2");
    list!(tx, StoredEvent, sql, from, limit)
}

/// Finds an event without a number. The portal chains such events at its start.
pub async fn find_unchained(tx: &mut Tx<'_>) -> Result<Option<StoredEvent>, StoreError> {
    find!(tx, StoredEvent, select_events!("WHERE seq IS NULL ORDER BY id LIMIT 1"))
}

/// Finds the last checkpoint.
pub async fn find_last_checkpoint(tx: &mut Tx<'_>) -> Result<Option<Checkpoint>, StoreError> {
    let sql = "SELECT number, seq, hash, at, signature FROM audit_checkpoints ORDER BY number DESC LIMIT 1";
    find!(tx, Checkpoint, sql)
}

/// Lists at most `limit` checkpoints after the one with this number.
pub async fn list_checkpoints(
    tx: &mut Tx<'_>,
    after: i64,
    limit: i64,
) -> Result<Vec<Checkpoint>, StoreError> {
    let sql = "SELECT number, seq, hash, at, signature FROM audit_checkpoints WHERE number > $1 \
               ORDER BY number LIMIT $2";
    list!(tx, Checkpoint, sql, after, limit)
}

pub async fn insert_checkpoint(tx: &mut Tx<'_>, checkpoint: &Checkpoint) -> Result<(), StoreError> {
    let sql = "INSERT INTO audit_checkpoints (number, seq, hash, at, signature) VALUES ($1, $2, $3, $4, $5)";
    exec!(tx, sql, checkpoint.number, checkpoint.seq, &checkpoint.hash, checkpoint.at, &checkpoint.signature)
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> StoredEvent {
        StoredEvent {
            id: "aud_1".to_owned(),
            seq: None,
            hash: None,
            org_id: String::new(),
            at: 7,
            actor: "Ada".to_owned(),
            action: "quota.set".to_owned(),
            subject: "default".to_owned(),
            detail: String::new(),
            actor_id: None,
            token_id: None,
            session: None,
            address: None,
            request_id: None,
            before_json: None,
            after_json: None,
        }
    }

    #[test]
    fn the_hash_covers_each_field_and_its_place() {
        let first = event().hash_after(FIRST_HASH, 1);
        assert_eq!(first.len(), 64);
        assert_eq!(first, event().hash_after(FIRST_HASH, 1));
        let others = [
            event().hash_after(&first, 1),
            event().hash_after(FIRST_HASH, 2),
            StoredEvent { at: 8, ..event() }.hash_after(FIRST_HASH, 1),
            // The same characters in other fields.
            StoredEvent { actor: String::new(), action: "Adaquota.set".to_owned(), ..event() }
                .hash_after(FIRST_HASH, 1),
            StoredEvent { token_id: Some(String::new()), ..event() }.hash_after(FIRST_HASH, 1),
            StoredEvent { session: Some(String::new()), ..event() }.hash_after(FIRST_HASH, 1),
            StoredEvent { after_json: Some("{}".to_owned()), ..event() }.hash_after(FIRST_HASH, 1),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(*other, first, "{index}");
            assert_eq!(others.iter().filter(|hash| *hash == other).count(), 1, "{index}");
        }
    }
}
