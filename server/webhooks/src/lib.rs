//! Webhooks and mail: makes deliveries of notices and sends each one until it succeeds or has too many tries.

pub mod routes;

use std::collections::HashSet;

use berth_types::Page;
use berth_types::ids::{DeliveryId, NoticeId, OrgId, WebhookId};
use berth_types::lists::ListOptions;
use berth_types::problems::{FieldError, Problem};
use berth_types::webhooks::{Delivery, DeliveryState, NewWebhook, Notice, Webhook, is_known_kind};
use futures::{FutureExt, StreamExt};

use berth_foundation::credentials::new_opaque;
use berth_foundation::delivery::{DeliveryError, Transport};
use berth_foundation::{Caller, Right, idempotency};
use berth_foundation::{Change, Context};
use berth_storage::Secrets;
use berth_store::types::JsonColumn;
use berth_store::webhooks::{Channel, DeliveryPart, StoredDelivery, StoredWebhook};
use berth_store::{self as store, StoreError};
use std::sync::Arc;

/// Notices, mails and deliveries to webhooks in one round.
const BATCH: i64 = 1_000;
/// Concurrent mails.
const MAILS_AT_ONCE: usize = 8;
/// Concurrent requests to webhooks.
const REQUESTS_AT_ONCE: usize = 32;
/// Deliveries to failing webhooks in one round, all at once: the round waits for their timeout once.
const FAILING_AT_ONCE: u16 = 64;
/// A delivery that has not begun after this time stays due, so new notices do not wait for a long round.
const ROUND_MS: i64 = 10_000;
/// Tries of a delivery before it counts as failed. The waits between them add up to 5 h 41 min.
const MAX_TRIES: i64 = 12;
/// Webhooks of an organization.
const MAX_WEBHOOKS: usize = 20;
/// Kinds of events of a webhook.
const MAX_KINDS: usize = 40;
/// The most characters of an unknown kind in an error.
const MAX_SHOWN_CHARS: usize = 80;
/// Characters of an address.
const MAX_URL_CHARS: usize = 2_048;
/// Prefixes of the kinds of notices that are also sent by mail.
const MAILED: [&str; 7] =
    ["budget.", "credit.", "invoice.", "reservation.", "service_host.", "sso.", "webhook."];
/// Notices of these families are mailed to owners, the others also to billing members.
const OWNERS_ONLY: [&str; 3] = ["service_host.", "sso.", "webhook."];

/// True if the kinds of a webhook include a kind of notice.
fn includes_kind(kinds: &[String], kind: &str) -> bool {
    kinds.iter().any(|k| match k.strip_suffix('*') {
        Some(family) => kind.starts_with(family),
        None => k == kind,
    })
}

fn check_kinds(kinds: &[String], errors: &mut Vec<FieldError>) {
    if kinds.is_empty() || kinds.len() > MAX_KINDS {
        errors.push(FieldError::new(
            "/kinds",
            "Enter 1 to 40 kinds of events, such as job.*, budget.passed, or * for all events.",
        ));
    }
    for (index, kind) in kinds.iter().take(MAX_KINDS).enumerate() {
        let detail = if !is_known_kind(kind) {
            let kind: String = kind.chars().take(MAX_SHOWN_CHARS).collect();
            format!(
                "No event has the kind {kind}. Enter a kind such as job.failed, a family such as job.*, or * for all events."
            )
        } else if kinds.iter().take(index).any(|other| other == kind) {
            "This kind is in the list already. Enter each kind once.".to_owned()
        } else {
            continue;
        };
        errors.push(FieldError::new(format!("/kinds/{index}"), detail));
    }
}

/// Seconds until the next try: 10, 20, 40, … up to six hours.
fn wait_s(tries: i64) -> i64 {
    (10i64 << tries.clamp(0, 11)).min(6 * 3_600)
}

fn webhook(row: StoredWebhook, secret: Option<String>) -> Webhook {
    Webhook {
        id: row.id,
        url: row.url,
        kinds: row.kinds.0,
        created_at: row.created_at,
        created_by: row.created_by,
        secret,
    }
}

fn delivery(row: StoredDelivery) -> Delivery {
    Delivery {
        id: row.id,
        kind: row.kind,
        subject: row.subject,
        state: row.state,
        tries: row.tries,
        last_status: row.last_status,
        last_error: row.last_error,
        created_at: row.created_at,
        next_at: (row.state == DeliveryState::Pending).then_some(row.next_at),
        done_at: row.done_at,
    }
}

/// The webhooks of organizations, and the delivery of notices.
#[derive(Clone)]
pub struct Webhooks {
    context: Context,
    secrets: Secrets,
    /// The transport of all messages of the portal.
    pub transport: Arc<Transport>,
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
        if caller.already_created().is_some() {
            return Err(idempotency::shown_once());
        }
        let mut errors = Vec::new();
        if input.url.chars().count() > MAX_URL_CHARS || input.url.chars().any(char::is_control) {
            errors.push(FieldError::new("/url", "Use at most 2048 printable characters."));
        } else if let Err(why) = self.transport.check_url(&input.url) {
            errors.push(FieldError::new("/url", why));
        }
        check_kinds(&input.kinds, &mut errors);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let row = StoredWebhook {
            id: self.context.new_id(now),
            org_id: org,
            url: input.url,
            secret: format!("whsec_{}", self.context.random(new_opaque)),
            kinds: JsonColumn(input.kinds),
            created_by: caller.user.name.clone(),
            created_by_id: Some(caller.user.id),
            created_at: now,
        };
        let secret = row.secret.clone();
        let row = self.secrets.seal_webhook(row)?;
        let event = self.context.audit_event(caller, "webhook.created", row.id.to_string(), row.url.clone());
        let (new, key) = (row.clone(), caller.idempotency_key.clone());
        let done = self.context.db.try_write(move |tx| {
            let (row, event, key) = (new.clone(), event.clone(), key.clone());
            async move {
                if store::webhooks::list(tx, Some(org)).await?.len() >= MAX_WEBHOOKS {
                    let detail = "An organization has at most 20 webhooks.";
                    return Err(Problem::invalid_field("/url", detail).into());
                }
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                store::webhooks::insert(tx, &row).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        self.publish_job_webhooks().await?;
        Ok(webhook(row, Some(secret)))
    }

    /// A page of the webhooks of an organization, without their secrets.
    pub async fn list_webhooks(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<WebhookId>,
    ) -> Result<Page<Webhook>, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::webhooks::list_page(&mut conn.tx(), org, options).await?;
        Ok(options.page(rows, |row| row.id).map(|row| webhook(row, None)))
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
        self.publish_job_webhooks().await?;
        Ok(())
    }

    /// A page of the deliveries of a webhook.
    pub async fn list_deliveries(
        &self,
        caller: &Caller,
        (org, hook): (OrgId, WebhookId),
        state: Option<DeliveryState>,
        options: &ListOptions<DeliveryId>,
    ) -> Result<Page<Delivery>, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        if !store::webhooks::list(&mut tx, Some(org)).await?.iter().any(|row| row.id == hook) {
            return Err(Problem::not_found());
        }
        let rows = store::webhooks::list_deliveries(&mut tx, org, hook, state, options).await?;
        Ok(options.page(rows, |row| row.id).map(delivery))
    }

    /// Sends a delivery again, from its first try on.
    pub async fn redeliver(&self, caller: &Caller, org: OrgId, id: DeliveryId) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let now = self.context.now();
        let known = self
            .context
            .db
            .write(move |tx| async move { store::webhooks::retry_delivery(tx, org, id, now).await }.boxed());
        if known.await? { Ok(()) } else { Err(Problem::not_found()) }
    }

    /// Publishes the organizations with webhooks for jobs. The jobs of other organizations need no notices.
    pub async fn publish_job_webhooks(&self) -> Result<(), StoreError> {
        let rows = {
            let mut conn = self.context.db.read().await?;
            store::webhooks::list(&mut conn.tx(), None).await?
        };
        let jobs =
            |row: &StoredWebhook| row.kinds.iter().any(|k| k.starts_with("job.") || k.starts_with('*'));
        let orgs: HashSet<OrgId> = rows.into_iter().filter(jobs).map(|r| r.org_id).collect();
        self.context.publish(Change::Webhooks(orgs));
        Ok(())
    }

    /// Makes deliveries of new notices, and sends the deliveries that are due.
    pub async fn deliver(&self) -> Result<(), StoreError> {
        let fresh = {
            let mut conn = self.context.db.read().await?;
            store::webhooks::list_new_notices(&mut conn.tx(), BATCH).await?
        };
        for (notice, org, kind) in fresh {
            self.create_deliveries(notice, org, kind).await?;
        }
        let mails = self.list_due(DeliveryPart::Mails, BATCH).await?;
        let webhooks = self.list_due(DeliveryPart::Webhooks, BATCH).await?;
        let failing = self.list_due(DeliveryPart::FailingWebhooks, i64::from(FAILING_AT_ONCE)).await?;
        let (mails, webhooks, failing) = futures::future::join3(
            self.send_all(mails, MAILS_AT_ONCE),
            self.send_all(webhooks, REQUESTS_AT_ONCE),
            self.send_all(failing, usize::from(FAILING_AT_ONCE)),
        )
        .await;
        mails.and(webhooks).and(failing)
    }

    async fn list_due(&self, part: DeliveryPart, limit: i64) -> Result<Vec<StoredDelivery>, StoreError> {
        let mut conn = self.context.db.read().await?;
        store::webhooks::list_due_deliveries(&mut conn.tx(), part, self.context.now(), limit).await
    }

    /// Sends deliveries in their order and records each. A failure of the database ends no other delivery.
    async fn send_all(&self, due: Vec<StoredDelivery>, at_once: usize) -> Result<(), StoreError> {
        let until_ms = self.context.monotonic_ms().saturating_add(ROUND_MS);
        let mut sending = futures::stream::iter(due)
            .map(|row| async move {
                if self.context.monotonic_ms() > until_ms {
                    return Ok(());
                }
                let outcome = self.send(&row).await;
                // Beside the other deliveries: a delivery that is not polled can hold a connection of the pool.
                self.record(row, outcome).await
            })
            .buffer_unordered(at_once);
        let mut all = Ok(());
        while let Some(recorded) = sending.next().await {
            all = all.and(recorded);
        }
        all
    }

    async fn create_deliveries(&self, notice: NoticeId, org: OrgId, kind: String) -> Result<(), StoreError> {
        let (context, now) = (self.context.clone(), self.context.now());
        self.context
            .db
            .write(move |tx| {
                let (context, kind) = (context.clone(), kind.clone());
                async move {
                    if !store::webhooks::mark_dispatched(tx, notice).await? {
                        return Ok(());
                    }
                    let hooks = store::webhooks::list_active(tx, org).await?;
                    for hook in hooks.iter().filter(|hook| includes_kind(&hook.kinds, &kind)) {
                        let (id, target) = (context.new_id(now), hook.id.to_string());
                        let target = (Channel::Webhook, target.as_str());
                        store::webhooks::insert_delivery(tx, id, (notice, org), target, now).await?;
                    }
                    if MAILED.iter().any(|family| kind.starts_with(family)) {
                        let addresses = match OWNERS_ONLY.iter().any(|family| kind.starts_with(family)) {
                            true => store::webhooks::owner_addresses(tx, org).await?,
                            false => store::webhooks::billing_addresses(tx, org).await?,
                        };
                        for address in addresses {
                            let (id, target) = (context.new_id(now), (Channel::Mail, address.as_str()));
                            store::webhooks::insert_delivery(tx, id, (notice, org), target, now).await?;
                        }
                    }
                    Ok(())
                }
                .boxed()
            })
            .await
    }

    async fn send(&self, row: &StoredDelivery) -> Result<Option<u16>, DeliveryError> {
        if row.channel == Channel::Mail {
            let text = format!("{}\n\nBerth\n", row.detail);
            return self.transport.send_mail(&row.target, &row.subject, text).await.map(|()| None);
        }
        let failure = |why: &str| DeliveryError { status: None, reason: why.to_owned() };
        let mut conn = self
            .context
            .db
            .read()
            .await
            .map_err(|_| failure("The database of the portal did not answer."))?;
        let hooks = store::webhooks::list_active(&mut conn.tx(), row.org_id).await;
        drop(conn);
        let hook = hooks.map_err(|_| failure("The database of the portal did not answer."))?;
        let hook = hook.into_iter().find(|hook| hook.id.to_string() == row.target).ok_or_else(|| {
            failure("The webhook was deleted, or it stopped because the organization has no owner.")
        })?;
        let secret = self
            .secrets
            .signing_secret(&hook)
            .ok_or_else(|| failure("The portal cannot decrypt the secret of the webhook. Delete the webhook and create it again."))?;
        let data: serde_json::Value = serde_json::from_str(&row.data).unwrap_or_default();
        let notice = Notice {
            id: row.notice_id,
            r#type: row.kind.clone(),
            at: row.at,
            org: row.org_id,
            subject: row.subject.clone(),
            detail: row.detail.clone(),
            data,
        };
        let body = serde_json::to_string(&notice).map_err(|_| failure("The notice cannot be written."))?;
        let at_s = self.context.now().micros() / 1_000_000;
        self.transport.send_webhook(&hook.url, &secret, body, at_s).await.map(Some)
    }

    async fn record(
        &self,
        mut row: StoredDelivery,
        outcome: Result<Option<u16>, DeliveryError>,
    ) -> Result<(), StoreError> {
        let now = self.context.now();
        row.tries += 1;
        match outcome {
            Ok(status) => {
                row.state = DeliveryState::Delivered;
                (row.last_status, row.last_error) = (status.map(i64::from), String::new());
                row.done_at = Some(now);
            }
            Err(DeliveryError { status, reason }) => {
                (row.last_status, row.last_error) = (status.map(i64::from), reason);
                row.next_at = now.plus_seconds(wait_s(row.tries - 1));
                if row.tries >= MAX_TRIES {
                    row.state = DeliveryState::Failed;
                }
            }
        }
        self.context
            .db
            .write(move |tx| {
                let row = row.clone();
                async move { store::webhooks::update_delivery(tx, &row).await }.boxed()
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use berth_types::webhooks::NOTICE_KINDS;

    use super::*;

    #[test]
    fn kinds_are_included_by_name_or_family() {
        for (kinds, kind, included) in [
            (vec!["job.*", "budget.passed"], "job.succeeded", true),
            (vec!["budget.passed"], "budget.passed", true),
            (vec!["*"], "invoice.issued", true),
            (vec!["job.*"], "jobs.succeeded", false),
            (vec![], "job.failed", false),
        ] {
            let kinds: Vec<String> = kinds.into_iter().map(str::to_owned).collect();
            assert_eq!(includes_kind(&kinds, kind), included, "{kinds:?} {kind}");
        }
    }

    #[test]
    fn an_unknown_kind_is_named_in_its_error() {
        let (long, mut errors) = ("x".repeat(100), Vec::new());
        check_kinds(&["job.*", "job.finished", long.as_str()].map(str::to_owned), &mut errors);
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/kinds/1", "/kinds/2"]);
        assert!(errors[0].detail.starts_with("No event has the kind job.finished. "), "{}", errors[0].detail);
        assert!(errors[1].detail.contains(&format!(" {}. ", "x".repeat(80))), "{}", errors[1].detail);
    }

    #[test]
    fn all_notices_but_those_of_jobs_are_mailed() {
        for (kind, _) in NOTICE_KINDS {
            let is_mailed = MAILED.iter().any(|family| kind.starts_with(family));
            assert_eq!(is_mailed, !kind.starts_with("job."), "{kind}");
        }
    }

    #[test]
    fn waits_grow_and_end() {
        assert_eq!((wait_s(0), wait_s(1), wait_s(5), wait_s(50)), (10, 20, 320, 20_480));
    }
}
