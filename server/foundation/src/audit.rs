//! The events of the audit log besides those of callers, its lists, and its signed checkpoints.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use berth_store::audit::Checkpoint;
use berth_store::{StoreError, Tx};
use berth_types::Page;
use berth_types::accounts::User;
use berth_types::ids::{AuditEventId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::{AuditContext, AuditEvent, AuditFilter};
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::audit_key::{AuditKey, LastCheckpoint};
use crate::callers::{Caller, Right, Scope};
use crate::context::Context;
use crate::source::RequestSource;

impl Context {
    /// An event of the present request by `actor`.
    fn request_event(&self, actor: &str, action: &str, subject: String, detail: String) -> AuditEvent {
        let (at, source) = (self.now(), RequestSource::present());
        let id: AuditEventId = self.new_id(at);
        let context = AuditContext {
            address: source.address.map(|address| address.to_string()),
            request_id: source.request_id,
            ..AuditContext::default()
        };
        AuditEvent { id, at, actor: actor.to_owned(), action: action.to_owned(), subject, detail, context }
    }

    /// A record of an act without a known user. The transaction of the act has to write it.
    pub fn visitor_event(&self, action: &str, subject: String, detail: String) -> AuditEvent {
        self.request_event("A visitor", action, subject, detail)
    }

    /// A record of an act of a user without a session. The transaction of the act has to write it.
    pub fn user_event(&self, user: &User, action: &str, subject: String, detail: String) -> AuditEvent {
        let mut event = self.request_event(&user.name, action, subject, detail);
        event.context.actor_id = Some(user.id);
        event
    }

    /// Writes an event that can occur at any rate: at most once in `window_ms` for each `cause`, with a count. A
    /// failure goes to the log, so that it does not change the answer to the request.
    pub async fn record_repeated(&self, cause: &str, window_ms: i64, org: Option<OrgId>, event: AuditEvent) {
        if let Some(event) = self.repeated.admit(cause, window_ms, org, event)
            && let Err(error) = self.write_events(vec![(org, event)]).await
        {
            tracing::error!(%error, "an audit event was not written");
        }
    }

    /// Writes the counts of repeated events whose window is over.
    pub async fn record_omitted(&self) -> Result<(), StoreError> {
        let due = self.repeated.end_windows(self.now());
        if due.is_empty() { Ok(()) } else { self.write_events(due).await }
    }

    async fn write_events(&self, events: Vec<(Option<OrgId>, AuditEvent)>) -> Result<(), StoreError> {
        let done = self.db.write(move |tx| {
            let events = events.clone();
            async move {
                for (org, event) in &events {
                    berth_store::quotas::insert_audit(tx, *org, event).await?;
                }
                Ok(())
            }
            .boxed()
        });
        done.await
    }
}

/// The most bytes of a text in a filter.
const MAX_FILTER_BYTES: usize = 200;

/// The lists of audit events, and the signed checkpoints.
#[derive(Clone)]
pub struct AuditLog {
    context: Context,
    /// Opened at the first use.
    key: Arc<Mutex<Option<Arc<AuditKey>>>>,
}

impl AuditLog {
    pub fn new(context: Context) -> Self {
        Self { context, key: Arc::default() }
    }

    /// A page of the audit events of a scope.
    ///
    /// # Errors
    /// A text of the filter is too long.
    pub async fn list_events(
        &self,
        caller: &Caller,
        scope: Scope,
        filter: &AuditFilter,
        options: &ListOptions<AuditEventId>,
    ) -> Result<Page<AuditEvent>, Problem> {
        let org =
            self.context.authorise_scope(caller, scope, (Right::Manage, OperatorRight::Inspect)).await?;
        for (name, text) in
            [("action", &filter.action), ("actor", &filter.actor), ("subject", &filter.subject)]
        {
            if text.len() > MAX_FILTER_BYTES {
                return Err(Problem::malformed(format!("`{name}` has at most {MAX_FILTER_BYTES} bytes.")));
            }
        }
        let mut conn = self.context.db.read().await?;
        let rows = berth_store::quotas::list_audit(&mut conn.tx(), org, filter, options).await?;
        Ok(options.page(rows, |event| event.id))
    }

    /// The key for signatures. A missing file is created.
    ///
    /// # Errors
    /// The key file cannot be read or created, or has no key.
    pub fn key(&self) -> Result<Arc<AuditKey>, String> {
        let mut opened = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = opened.as_ref() {
            return Ok(key.clone());
        }
        let key = Arc::new(AuditKey::open(&self.context.settings.audit_key_file())?);
        *opened = Some(key.clone());
        Ok(key)
    }

    /// Opens the key at the start of the portal.
    ///
    /// # Errors
    /// The key file cannot be read or created, or is missing though the log has checkpoints: a new key would hide the
    /// loss.
    pub async fn check_key(&self) -> Result<(), String> {
        let last = {
            let mut conn = self.context.db.read().await.map_err(|e| e.to_string())?;
            berth_store::audit::find_last_checkpoint(&mut conn.tx()).await.map_err(|e| e.to_string())?
        };
        if last.is_some() {
            let file = self.context.settings.audit_key_file();
            AuditKey::read(&file).map_err(|e| format!("the key of the audit log: {e}. Restore this file"))?;
        }
        self.key().map(drop)
    }

    /// The file with the last checkpoint, outside of the database.
    fn last_file(&self) -> PathBuf {
        self.context.settings.data.join(LastCheckpoint::FILE)
    }

    /// Signs the end of the chain if it has new events, and stores the last checkpoint outside of the database.
    ///
    /// # Errors
    /// The database or a file cannot be read or written, or the database does not have the last checkpoint of the
    /// file: a signature would hide the loss, so nothing is signed or written.
    pub async fn sign(&self) -> Result<(), String> {
        let key = self.key()?;
        let now = self.context.now();
        let file = self.last_file();
        let reading = tokio::task::spawn_blocking(move || LastCheckpoint::find(&file));
        let known = reading.await.map_err(|e| e.to_string())??;
        let done = self.context.db.write(move |tx| {
            let (key, known) = (key.clone(), known.clone());
            async move {
                if let Some(known) = known
                    && !has_checkpoint(tx, &known).await?
                {
                    return Ok(Err(known.number));
                }
                sign_end(tx, &key, now).await.map(Ok)
            }
            .boxed()
        });
        let file = self.last_file();
        let last = match done.await.map_err(|e| e.to_string())? {
            Ok(Some(last)) => last,
            Ok(None) => return Ok(()),
            Err(number) => {
                return Err(format!(
                    "the database does not have checkpoint {number} of {}: the end of the audit log was removed, or \
                     a backup was restored. New events are recorded, but not signed. After the restoration of a \
                     backup remove this file; in any other case compare the log with a copy",
                    file.display()
                ));
            }
        };
        let written = tokio::task::spawn_blocking(move || LastCheckpoint::from(&last).put(&file)).await;
        written.map_err(|e| e.to_string())?
    }
}

/// Returns true if the database has this checkpoint with the same signature.
async fn has_checkpoint(tx: &mut Tx<'_>, known: &LastCheckpoint) -> Result<bool, StoreError> {
    let stored = berth_store::audit::list_checkpoints(tx, known.number.saturating_sub(1), 1).await?;
    Ok(stored.iter().any(|stored| stored.number == known.number && stored.signature == known.signature))
}

/// Signs the end of the chain if it is after the last checkpoint. Returns the last checkpoint.
async fn sign_end(tx: &mut Tx<'_>, key: &AuditKey, now: Timestamp) -> Result<Option<Checkpoint>, StoreError> {
    let head = berth_store::audit::get_head(tx).await?;
    let last = berth_store::audit::find_last_checkpoint(tx).await?;
    if head.seq == last.as_ref().map_or(0, |last| last.seq) {
        return Ok(last);
    }
    let (number, before) = last.map_or((1, String::new()), |last| (last.number + 1, last.signature));
    let unsigned =
        Checkpoint { number, seq: head.seq, hash: head.hash, at: now.micros(), signature: String::new() };
    let checkpoint = Checkpoint { signature: key.sign(&unsigned, &before), ..unsigned };
    berth_store::audit::insert_checkpoint(tx, &checkpoint).await?;
    Ok(Some(checkpoint))
}
