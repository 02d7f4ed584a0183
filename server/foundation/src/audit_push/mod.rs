//! The push of the audit log to destinations of the operator: a webhook, a syslog server and a bucket.
//!
//! The database has a mark for each destination: the number of its last delivered event. The mark moves after a
//! delivery, so a destination gets each event at least once, in the order of the log, also over a restart. No
//! transaction is open during a delivery.

mod batch;
mod syslog;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_store::audit::{self, Checkpoint};
use berth_store::audit_marks::{self, Mark};
use berth_store::{StoreError, Tx};
use berth_types::operations::{AuditDestination, AuditDestinationKind, LoopError};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use bytes::Bytes;
use futures::FutureExt;
use serde_json::json;
use tokio::sync::watch;

use crate::audit_targets::{AuditTargets, BucketTarget, WebhookTarget};
use crate::callers::Caller;
use crate::context::Context;
use crate::delivery::Transport;
use crate::objects::BucketWriter;

use batch::{BatchEvent, MAX_EVENTS, first_batch};
use syslog::SyslogSender;

/// The pause after the first failure. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a failure.
pub const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Characters of a kept error text.
const MAX_ERROR_CHARS: usize = 300;
/// Checkpoints in one delivery.
const MAX_CHECKPOINTS: i64 = 100;

/// The way to a destination.
enum Route {
    Webhook(Box<WebhookRoute>),
    Syslog(Box<SyslogSender>),
    Bucket(Box<BucketRoute>),
}

struct WebhookRoute {
    target: WebhookTarget,
    transport: Transport,
}

struct BucketRoute {
    target: BucketTarget,
    /// Opened at the first use.
    opened: Mutex<Option<BucketWriter>>,
}

impl BucketRoute {
    fn writer(&self) -> Result<BucketWriter, String> {
        let mut opened = lock(&self.opened);
        if let Some(writer) = opened.as_ref() {
            return Ok(writer.clone());
        }
        let writer = BucketWriter::open(&self.target.bucket).map_err(|e| e.to_string())?;
        *opened = Some(writer.clone());
        Ok(writer)
    }

    async fn send(&self, due: &Due) -> Result<(), String> {
        let writer = self.writer()?;
        let checkpoints = due.checkpoints.iter().map(checkpoint_object);
        let objects: Vec<(String, String)> =
            event_object(&due.events).into_iter().chain(checkpoints).collect();
        for (key, text) in objects {
            writer.put(&key, Bytes::from(text)).await.map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

/// The outcome of the last deliveries since the start of the portal.
#[derive(Debug, Clone, Default)]
struct Outcome {
    /// Failures since the last delivery.
    failures: u32,
    last_error: Option<LoopError>,
}

struct Destination {
    route: Route,
    address: String,
    outcome: Mutex<Outcome>,
    /// Changes with each commit of audit events.
    commits: tokio::sync::Mutex<watch::Receiver<u64>>,
}

/// The next part of the log for a destination.
struct Due {
    mark: Mark,
    /// The number of the last event of the log.
    head: i64,
    events: Vec<BatchEvent>,
    /// New checkpoints of delivered events, for a bucket.
    checkpoints: Vec<Checkpoint>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pause after this number of failures.
fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(MAX_PAUSE)
}

/// The body of a request: the numbers of the first and of the last event, and the events.
fn request_body(events: &[BatchEvent]) -> String {
    let (first, last) = (events.first().map_or(0, |e| e.seq), events.last().map_or(0, |e| e.seq));
    let events: Vec<&str> = events.iter().map(|event| event.json.as_str()).collect();
    format!("{{\"first\":{first},\"last\":{last},\"events\":[{}]}}", events.join(","))
}

/// The key and the content of the object with these events; `None` without events.
fn event_object(events: &[BatchEvent]) -> Option<(String, String)> {
    let (first, last) = (events.first()?, events.last()?);
    let at = berth_types::time::Timestamp::from_micros(first.row.at).to_string();
    let day = at.get(..10).unwrap_or("unknown");
    let key = format!(
        "audit/events/{day}/{:012}-{:012}_{}_{}.ndjson",
        first.seq, last.seq, first.row.id, last.row.id
    );
    let lines = events.iter().map(|event| format!("{}\n", event.json)).collect();
    Some((key, lines))
}

fn checkpoint_object(checkpoint: &Checkpoint) -> (String, String) {
    let Checkpoint { number, seq, hash, at, signature } = checkpoint;
    let text = json!({ "number": number, "seq": seq, "hash": hash, "at_us": at, "signature": signature });
    (format!("audit/checkpoints/{number:012}.json"), format!("{text}\n"))
}

impl Route {
    fn check(&self) -> Result<(), String> {
        match self {
            Self::Webhook(_) => Ok(()),
            Self::Syslog(sender) => sender.check(),
            Self::Bucket(route) => route.writer().map(drop),
        }
    }

    /// Sends a part of the log. `at_s` is the time of a signature in seconds.
    async fn send(&self, due: &Due, at_s: i64) -> Result<(), String> {
        match self {
            Self::Webhook(route) => {
                let WebhookTarget { url, secret } = &route.target;
                let sent = route.transport.send_webhook(url, secret, request_body(&due.events), at_s).await;
                sent.map(drop).map_err(|error| error.reason)
            }
            Self::Syslog(sender) => sender.send(&due.events).await,
            Self::Bucket(route) => route.send(due).await,
        }
    }
}

/// The name of this portal in messages: the host of its public URL.
fn hostname(public_url: &str) -> String {
    let url = reqwest::Url::parse(public_url).ok();
    let host = url.and_then(|url| url.host_str().map(|host| host.trim_matches(['[', ']']).to_owned()));
    host.unwrap_or_default()
}

/// The push of the audit log.
#[derive(Clone)]
pub struct AuditPush {
    context: Context,
    destinations: Arc<HashMap<&'static str, Destination>>,
}

impl AuditPush {
    /// The push to the destinations of the settings.
    pub fn new(context: Context) -> Self {
        let AuditTargets { webhook, syslog, bucket } = context.settings.audit_targets.clone();
        let mut destinations = HashMap::new();
        let mut add = |kind: AuditDestinationKind, address: String, route: Route| {
            let commits = tokio::sync::Mutex::new(context.db.subscribe_audit());
            let destination = Destination { route, address, outcome: Mutex::default(), commits };
            destinations.insert(kind.name(), destination);
        };
        if let Some(target) = webhook {
            let (address, transport) = (target.address(), Transport::for_operator());
            let route = Route::Webhook(Box::new(WebhookRoute { target, transport }));
            add(AuditDestinationKind::Webhook, address, route);
        }
        if let Some(target) = syslog {
            let address = target.address();
            let sender = SyslogSender::new(target, hostname(&context.settings.public_url));
            add(AuditDestinationKind::Syslog, address, Route::Syslog(Box::new(sender)));
        }
        if let Some(target) = bucket {
            let address = target.address.clone();
            let route = Route::Bucket(Box::new(BucketRoute { target, opened: Mutex::default() }));
            add(AuditDestinationKind::Bucket, address, route);
        }
        Self { context, destinations: Arc::new(destinations) }
    }

    /// Checks the settings of all destinations without a connection.
    ///
    /// # Errors
    /// The text for the operator about a destination that cannot be used.
    pub fn check(&self) -> Result<(), String> {
        for kind in self.kinds() {
            if let Some(destination) = self.destinations.get(kind.name()) {
                destination.route.check().map_err(|e| format!("the audit {}: {e}", kind.name()))?;
            }
        }
        Ok(())
    }

    /// The kinds of the destinations.
    pub fn kinds(&self) -> Vec<AuditDestinationKind> {
        let is_set = |kind: &AuditDestinationKind| self.destinations.contains_key(kind.name());
        AuditDestinationKind::ALL.into_iter().filter(is_set).collect()
    }

    /// Waits for new events, or after a failure for the end of the pause.
    pub async fn until_due(&self, kind: AuditDestinationKind) {
        let Some(destination) = self.destinations.get(kind.name()) else {
            return std::future::pending().await;
        };
        let failures = lock(&destination.outcome).failures;
        if failures > 0 {
            return tokio::time::sleep(pause_after(failures)).await;
        }
        let mut commits = destination.commits.lock().await;
        if commits.changed().await.is_err() {
            // The sender is in the handle of the database, so it outlives the wait.
            std::future::pending::<()>().await;
        }
    }

    /// Delivers the next batch to a destination and moves its mark. Returns true if more events wait.
    ///
    /// # Errors
    /// The reason without secrets. The mark has not moved.
    pub async fn deliver(&self, kind: AuditDestinationKind) -> Result<bool, String> {
        let Some(destination) = self.destinations.get(kind.name()) else { return Ok(false) };
        let delivered = self.try_deliver(kind, destination).await;
        let mut outcome = lock(&destination.outcome);
        match &delivered {
            Ok(_) => outcome.failures = 0,
            Err(error) => {
                outcome.failures = outcome.failures.saturating_add(1);
                let detail = error.chars().take(MAX_ERROR_CHARS).collect();
                outcome.last_error = Some(LoopError { at: self.context.now(), detail });
            }
        }
        delivered
    }

    async fn try_deliver(
        &self,
        kind: AuditDestinationKind,
        destination: &Destination,
    ) -> Result<bool, String> {
        let due = self.read_due(kind).await.map_err(|e| e.to_string())?;
        let last = due.events.last().map_or(due.mark.seq, |event| event.seq);
        if due.events.is_empty() && due.checkpoints.is_empty() {
            return Ok(false);
        }
        let at_s = self.context.now().micros() / 1_000_000;
        destination.route.send(&due, at_s).await?;
        let checkpoint = due.checkpoints.last().map_or(due.mark.checkpoint, |checkpoint| checkpoint.number);
        let mark = Mark { seq: last, checkpoint, delivered_at: Some(self.context.now()) };
        let moved =
            self.context.db.write(move |tx| async move { audit_marks::put(tx, kind, &mark).await }.boxed());
        moved.await.map_err(|e| e.to_string())?;
        Ok(last < due.head)
    }

    async fn read_due(&self, kind: AuditDestinationKind) -> Result<Due, StoreError> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let mark = audit_marks::find(&mut tx, kind).await?.unwrap_or_default();
        let head = audit::get_head(&mut tx).await?.seq;
        let rows = match mark.seq < head {
            true => audit::list_from(&mut tx, mark.seq.saturating_add(1), MAX_EVENTS).await?,
            false => Vec::new(),
        };
        let events = first_batch(rows).map_err(|e| StoreError::Corrupt(format!("audit_events: {e}")))?;
        let last = events.last().map_or(mark.seq, |event| event.seq);
        let mut checkpoints = Vec::new();
        if kind == AuditDestinationKind::Bucket {
            checkpoints = audit::list_checkpoints(&mut tx, mark.checkpoint, MAX_CHECKPOINTS).await?;
            checkpoints.retain(|checkpoint| checkpoint.seq <= last);
        }
        Ok(Due { mark, head, events, checkpoints })
    }

    /// All destinations with their delivered parts.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn states(&self, tx: &mut Tx<'_>) -> Result<Vec<AuditDestination>, StoreError> {
        let mut states = Vec::new();
        if self.destinations.is_empty() {
            return Ok(states);
        }
        let head = audit::get_head(tx).await?.seq;
        for kind in self.kinds() {
            let mark = audit_marks::find(tx, kind).await?.unwrap_or_default();
            let Some(destination) = self.destinations.get(kind.name()) else { continue };
            let outcome = lock(&destination.outcome).clone();
            states.push(AuditDestination {
                name: kind,
                address: destination.address.clone(),
                seq: mark.seq,
                // A delivery can move the mark between the two reads.
                events_behind: head.saturating_sub(mark.seq).max(0),
                delivered_at: mark.delivered_at,
                failing: outcome.failures > 0,
                last_error: outcome.last_error,
            });
        }
        Ok(states)
    }

    /// All destinations, for operators.
    ///
    /// # Errors
    /// 404 for all other callers.
    pub async fn list(&self, caller: &Caller) -> Result<Vec<AuditDestination>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        Ok(self.states(&mut conn.tx()).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::batch::tests::event;
    use super::*;

    #[test]
    fn pauses_double_from_one_second_to_five_minutes() {
        let pauses = [1, 2, 3, 9, 10, 1_000].map(|failures| pause_after(failures).as_secs());
        assert_eq!(pauses, [1, 2, 4, 256, 300, 300]);
    }

    #[test]
    fn a_request_and_an_object_name_their_first_and_last_event() {
        let events = first_batch(vec![event(7, "Ada", ""), event(8, "Ada", "")]).unwrap();
        let body: serde_json::Value = serde_json::from_str(&request_body(&events)).unwrap();
        assert_eq!(
            (&body["first"], &body["last"], &body["events"][1]["seq"]),
            (&json!(7), &json!(8), &json!(8))
        );
        let (key, text) = event_object(&events).unwrap();
        assert_eq!(key, "audit/events/2026-11-18/000000000007-000000000008_aud_7_aud_8.ndjson");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, [events[0].json.as_str(), events[1].json.as_str()]);
        assert_eq!(event_object(&[]), None);
    }

    #[test]
    fn messages_name_the_host_of_the_portal() {
        assert_eq!(hostname("https://berth.example.org:8443/x"), "berth.example.org");
        assert_eq!(hostname("http://[::1]:8080"), "::1");
        assert_eq!(hostname("nowhere"), "");
    }
}
