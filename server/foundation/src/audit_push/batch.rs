//! A batch of audit events as JSON, with the fields of the list of audit events.

use berth_store::audit::StoredEvent;
use berth_types::time::Timestamp;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// The most events of a batch.
pub const MAX_EVENTS: i64 = 500;
/// The most bytes of the JSON of a batch. An event beyond it is a batch of its own.
pub const MAX_BYTES: usize = 1 << 20;

/// The JSON of an event. It is made from the stored texts without an interpretation, so that a row with a changed
/// value does not stop the delivery of the others.
struct EventJson<'a>(&'a StoredEvent);

impl Serialize for EventJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &row.id)?;
        map.serialize_entry("at", &Timestamp::from_micros(row.at))?;
        map.serialize_entry("actor", &row.actor)?;
        map.serialize_entry("action", &row.action)?;
        map.serialize_entry("subject", &row.subject)?;
        map.serialize_entry("detail", &row.detail)?;
        for (name, text) in [
            ("org", Some(row.org_id.as_str()).filter(|org| !org.is_empty())),
            ("actor_id", row.actor_id.as_deref()),
            ("token_id", row.token_id.as_deref()),
            ("session", row.session.as_deref()),
            ("address", row.address.as_deref()),
            ("request_id", row.request_id.as_deref()),
            ("before", row.before_json.as_deref()),
            ("after", row.after_json.as_deref()),
        ] {
            entry_if_present(&mut map, name, text)?;
        }
        map.serialize_entry("seq", &row.seq.unwrap_or_default())?;
        entry_if_present(&mut map, "hash", row.hash.as_deref())?;
        map.end()
    }
}

fn entry_if_present<M: SerializeMap>(map: &mut M, name: &str, text: Option<&str>) -> Result<(), M::Error> {
    match text {
        Some(text) => map.serialize_entry(name, text),
        None => Ok(()),
    }
}

/// An event with its number and its JSON.
#[derive(Debug, Clone)]
pub struct BatchEvent {
    pub seq: i64,
    pub json: String,
    pub row: StoredEvent,
}

impl BatchEvent {
    fn new(row: StoredEvent) -> Result<Self, serde_json::Error> {
        let seq = row.seq.unwrap_or_default();
        let json = serde_json::to_string(&EventJson(&row))?;
        Ok(Self { seq, json, row })
    }
}

/// The first events of `rows` that fit into one batch, at least one.
///
/// # Errors
/// An event cannot be written as JSON.
pub fn first_batch(rows: Vec<StoredEvent>) -> Result<Vec<BatchEvent>, serde_json::Error> {
    let (mut batch, mut bytes) = (Vec::new(), 0usize);
    for row in rows {
        let event = BatchEvent::new(row)?;
        bytes = bytes.saturating_add(event.json.len());
        if bytes > MAX_BYTES && !batch.is_empty() {
            break;
        }
        batch.push(event);
    }
    Ok(batch)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An event with this number, actor and detail.
    pub fn event(seq: i64, actor: &str, detail: &str) -> StoredEvent {
        StoredEvent {
            id: format!("aud_{seq}"),
            seq: Some(seq),
            hash: Some("ab".to_owned()),
            org_id: String::new(),
            at: 1_795_000_000_123_456,
            actor: actor.to_owned(),
            action: "quota.set".to_owned(),
            subject: "default".to_owned(),
            detail: detail.to_owned(),
            actor_id: None,
            token_id: None,
            session: None,
            address: None,
            request_id: None,
            before_json: None,
            after_json: Some("{}".to_owned()),
        }
    }

    #[test]
    fn an_event_has_its_present_fields_alone() {
        let batch = first_batch(vec![event(7, "Ada \"L\"", "")]).unwrap();
        let json: serde_json::Value = serde_json::from_str(&batch[0].json).unwrap();
        let expected = serde_json::json!({
            "id": "aud_7", "at": "2026-11-18T11:06:40.123456Z", "actor": "Ada \"L\"", "action": "quota.set",
            "subject": "default", "detail": "", "after": "{}", "seq": 7, "hash": "ab",
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn a_batch_has_at_most_a_mebibyte_and_at_least_one_event() {
        let large = "x".repeat(MAX_BYTES / 2);
        let numbers = |rows: Vec<StoredEvent>| -> Vec<i64> {
            first_batch(rows).unwrap().iter().map(|event| event.seq).collect()
        };
        assert_eq!(numbers(vec![event(1, "A", ""), event(2, "A", &large), event(3, "A", &large)]), [1, 2]);
        let huge = "x".repeat(MAX_BYTES * 2);
        assert_eq!(numbers(vec![event(1, "A", &huge), event(2, "A", "")]), [1]);
        assert_eq!(numbers(Vec::new()), [] as [i64; 0]);
    }
}
