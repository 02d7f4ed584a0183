//! Tells others what happened: spreads notices over webhooks and mail, and delivers them until they
//! are taken or too many tries were made.

use std::collections::HashSet;

use berth_types::Page;
use berth_types::ids::{DeliveryId, OrgId, WebhookId};
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use berth_types::webhooks::{Delivery, DeliveryState, NewWebhook, Webhook};
use futures::{FutureExt, StreamExt};

use berth_foundation::credentials::new_opaque;
use berth_foundation::delivery::{Transport, Undelivered};
use berth_foundation::{Caller, Right, idempotency};
use berth_foundation::{Change, Context};
use berth_storage::Secrets;
use berth_store::webhooks::{DeliveryRow, WebhookRow};
use berth_store::{self as store, StoreError};
use std::sync::Arc;

/// Notices and deliveries that are looked at in one go.
const BATCH: i64 = 200;
/// Requests under way at once.
const AT_ONCE: usize = 8;
/// Tries until a delivery is given up: with the waits between them, about a day.
const TRIES: i64 = 12;
const MOST: usize = 20;
/// Families of notices that are mailed too.
const MAILED: [&str; 4] = ["budget.", "credit.", "invoice.", "reservation."];

/// Whether a webhook wants a kind of notice.
fn wants(kinds: &str, kind: &str) -> bool {
    kinds.split(',').any(|k| match k.strip_suffix('*') {
        Some(family) => kind.starts_with(family),
        None => k == kind,
    })
}

/// Seconds until the next try: 10, 20, 40, … up to six hours.
fn wait_s(tries: i64) -> i64 {
    (10i64 << tries.clamp(0, 11)).min(6 * 3_600)
}

fn webhook(row: WebhookRow, secret: Option<String>) -> Result<Webhook, StoreError> {
    Ok(Webhook {
        id: row.id.parse().map_err(|_| StoreError::Corrupt(row.id.clone()))?,
        url: row.url,
        kinds: row.kinds.split(',').map(str::to_owned).collect(),
        created_at: Timestamp::from_micros(row.created_at),
        created_by: row.created_by,
        secret,
    })
}

/// The webhooks of organizations, and the delivery of notices.
#[derive(Clone)]
pub struct Webhooks {
    context: Context,
    secrets: Secrets,
    transport: Arc<Transport>,
}

impl Webhooks {
    pub const fn new(context: Context, secrets: Secrets, transport: Arc<Transport>) -> Self {
        Self { context, secrets, transport }
    }

    pub async fn create_webhook(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewWebhook,
    ) -> Result<Webhook, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        if caller.done_before().is_some() {
            return Err(idempotency::shown_once());
        }
        let mut errors = Vec::new();
        if let Err(why) = self.transport.check_url(&input.url) {
            errors.push(FieldError::new("/url", why));
        }
        let named = |k: &String| {
            let good = |c: char| c.is_ascii_lowercase() || matches!(c, '.' | '_' | '*');
            !k.is_empty() && k.len() <= 60 && k.chars().all(good)
        };
        if input.kinds.is_empty() || input.kinds.len() > 40 || !input.kinds.iter().all(named) {
            let detail =
                "Name what it is to hear of, such as job.*, reservation.*, budget.passed; * for everything.";
            errors.push(FieldError::new("/kinds", detail));
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let row = WebhookRow {
            id: self.context.new_id::<WebhookId>(now).to_string(),
            org_id: org.to_string(),
            url: input.url,
            secret: format!("whsec_{}", self.context.random(new_opaque)),
            kinds: input.kinds.join(","),
            created_by: caller.user.name.clone(),
            created_at: now.micros(),
        };
        let secret = row.secret.clone();
        let row = self.secrets.seal_hook(row)?;
        let event = self.context.audit_event(caller, "webhook.created", row.id.clone(), row.url.clone());
        let (new, once) = (row.clone(), caller.once.clone());
        let done = self.context.db.write(move |tx| {
            let (row, event, once) = (new.clone(), event.clone(), once.clone());
            async move {
                if store::webhooks::list(tx, &row.org_id).await?.len() >= MOST {
                    return Ok(Some(Problem::invalid_field(
                        "/url",
                        "An organization has at most 20 webhooks.",
                    )));
                }
                idempotency::claim(tx, once.as_ref(), "", now).await?;
                store::webhooks::insert(tx, &row).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(None)
            }
            .boxed()
        });
        if let Some(problem) = done.await? {
            return Err(problem);
        }
        self.hear_webhooks().await?;
        Ok(webhook(row, Some(secret))?)
    }

    pub async fn list_webhooks(&self, caller: &Caller, org: OrgId) -> Result<Page<Webhook>, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::webhooks::list(&mut conn.tx(), &org.to_string()).await?;
        Ok(Page::whole(rows.into_iter().map(|row| webhook(row, None)).collect::<Result<_, _>>()?))
    }

    pub async fn delete_webhook(&self, caller: &Caller, org: OrgId, id: WebhookId) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let event = self.context.audit_event(caller, "webhook.deleted", id.to_string(), String::new());
        let known = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let known = store::webhooks::delete(tx, org, id).await?;
                if known {
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                Ok(known)
            }
            .boxed()
        });
        if !known.await? {
            return Err(Problem::not_found());
        }
        self.hear_webhooks().await?;
        Ok(())
    }

    pub async fn list_deliveries(
        &self,
        caller: &Caller,
        org: OrgId,
        hook: WebhookId,
        limit: u32,
    ) -> Result<Page<Delivery>, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::webhooks::list_deliveries(&mut conn.tx(), org, hook, i64::from(limit)).await?;
        let delivery = |row: DeliveryRow| {
            let corrupt = || StoreError::Corrupt(row.id.clone());
            let state = DeliveryState::parse(&row.state).ok_or_else(corrupt)?;
            Ok::<_, StoreError>(Delivery {
                id: row.id.parse().map_err(|_| corrupt())?,
                kind: row.kind,
                subject: row.subject,
                state,
                tries: row.tries,
                last_status: row.last_status,
                last_error: row.last_error,
                created_at: Timestamp::from_micros(row.created_at),
                next_at: (state == DeliveryState::Pending).then(|| Timestamp::from_micros(row.next_at)),
                done_at: row.done_at.map(Timestamp::from_micros),
            })
        };
        Ok(Page::whole(rows.into_iter().map(delivery).collect::<Result<_, _>>()?))
    }

    /// Sends a delivery again, from its first try on.
    pub async fn redeliver(&self, caller: &Caller, org: OrgId, id: DeliveryId) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let now = self.context.now();
        let known = self
            .context
            .db
            .write(move |tx| async move { store::webhooks::again(tx, org, id, now).await }.boxed());
        if known.await? { Ok(()) } else { Err(Problem::not_found()) }
    }

    /// Learns which organizations want to hear of jobs, so that others cost nothing.
    pub async fn hear_webhooks(&self) -> Result<(), StoreError> {
        let rows = {
            let mut conn = self.context.db.read().await?;
            store::webhooks::list(&mut conn.tx(), "").await?
        };
        let jobs =
            |row: &WebhookRow| row.kinds.split(',').any(|k| k.starts_with("job.") || k.starts_with('*'));
        let wanting: HashSet<String> = rows.into_iter().filter(jobs).map(|r| r.org_id).collect();
        self.context.publish(Change::Webhooks(wanting));
        Ok(())
    }

    /// Makes deliveries of what happened, and sends those that are due.
    pub async fn deliver(&self) -> Result<(), StoreError> {
        let fresh = {
            let mut conn = self.context.db.read().await?;
            store::webhooks::to_spread(&mut conn.tx(), BATCH).await?
        };
        for (notice, org, kind) in fresh {
            self.spread(notice, org, kind).await?;
        }
        let due = {
            let mut conn = self.context.db.read().await?;
            store::webhooks::due(&mut conn.tx(), self.context.now(), BATCH).await?
        };
        let mut sending = futures::stream::iter(due)
            .map(|row| async move {
                let outcome = self.send(&row).await;
                (row, outcome)
            })
            .buffer_unordered(AT_ONCE);
        while let Some((row, outcome)) = sending.next().await {
            self.record(row, outcome).await?;
        }
        Ok(())
    }

    async fn spread(&self, notice: String, org: String, kind: String) -> Result<(), StoreError> {
        let (context, now) = (self.context.clone(), self.context.now());
        self.context
            .db
            .write(move |tx| {
                let (context, notice, org, kind) =
                    (context.clone(), notice.clone(), org.clone(), kind.clone());
                async move {
                    if !store::webhooks::spread(tx, &notice).await? {
                        return Ok(());
                    }
                    for hook in
                        store::webhooks::list(tx, &org).await?.iter().filter(|h| wants(&h.kinds, &kind))
                    {
                        let (id, target) = (context.new_id(now), ("webhook", hook.id.as_str()));
                        store::webhooks::insert_delivery(tx, id, (&notice, &org), target, now).await?;
                    }
                    if MAILED.iter().any(|family| kind.starts_with(family)) {
                        for address in store::webhooks::billing_addresses(tx, &org).await? {
                            let (id, target) = (context.new_id(now), ("mail", address.as_str()));
                            store::webhooks::insert_delivery(tx, id, (&notice, &org), target, now).await?;
                        }
                    }
                    Ok(())
                }
                .boxed()
            })
            .await
    }

    async fn send(&self, row: &DeliveryRow) -> Result<Option<u16>, Undelivered> {
        if row.channel == "mail" {
            let text = format!("{}\n\nBerth\n", row.detail);
            return self.transport.mail(&row.target, &row.subject, text).await.map(|()| None);
        }
        let gone = |why: &str| Undelivered { status: None, why: why.to_owned() };
        let mut conn = self.context.db.read().await.map_err(|_| gone("the portal's store did not answer"))?;
        let hooks = store::webhooks::list(&mut conn.tx(), &row.org_id).await;
        drop(conn);
        let hook = hooks.map_err(|_| gone("the portal's store did not answer"))?;
        let hook =
            hook.into_iter().find(|h| h.id == row.target).ok_or_else(|| gone("The webhook was removed."))?;
        let secret = self
            .secrets
            .signing_secret(&hook)
            .ok_or_else(|| gone("The portal cannot open the webhook's secret; make the webhook again."))?;
        let data: serde_json::Value = serde_json::from_str(&row.data).unwrap_or_default();
        let body = serde_json::json!({
            "id": row.notice_id, "type": row.kind, "at": Timestamp::from_micros(row.at), "org": row.org_id,
            "subject": row.subject, "detail": row.detail, "data": data,
        });
        let at_s = self.context.now().micros() / 1_000_000;
        self.transport.call(&hook.url, &secret, body.to_string(), at_s).await.map(Some)
    }

    async fn record(
        &self,
        mut row: DeliveryRow,
        outcome: Result<Option<u16>, Undelivered>,
    ) -> Result<(), StoreError> {
        let now = self.context.now();
        row.tries += 1;
        match outcome {
            Ok(status) => {
                row.state = DeliveryState::Delivered.name().to_owned();
                (row.last_status, row.last_error) = (status.map(i64::from), String::new());
                row.done_at = Some(now.micros());
            }
            Err(Undelivered { status, why }) => {
                (row.last_status, row.last_error) = (status.map(i64::from), why);
                row.next_at = now.plus_seconds(wait_s(row.tries - 1)).micros();
                if row.tries >= TRIES {
                    row.state = DeliveryState::Failed.name().to_owned();
                }
            }
        }
        self.context
            .db
            .write(move |tx| {
                let row = row.clone();
                async move { store::webhooks::update(tx, &row).await }.boxed()
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_wanted_by_name_or_family() {
        assert!(wants("job.*,budget.passed", "job.succeeded"));
        assert!(wants("budget.passed", "budget.passed"));
        assert!(wants("*", "invoice.issued"));
        assert!(!wants("job.*", "jobs.succeeded") && !wants("", "job.failed"));
    }

    #[test]
    fn waits_grow_and_end() {
        assert_eq!((wait_s(0), wait_s(1), wait_s(5), wait_s(50)), (10, 20, 320, 20_480));
    }
}
