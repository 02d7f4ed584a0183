//! What Stripe's events mean. They come in any order, twice, late: each is applied by what is posted
//! already, so that all orders end in the same ledger.

use berth_types::ids::{InvoiceId, PaymentId, TransferId};
use berth_types::invoices::InvoiceState;
use berth_types::ledger::TransferKind;
use berth_types::payments::PaymentState;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde::Deserialize;

use super::{Payments, owed};
use crate::stripe::minor_unit_micros;
use berth_foundation::Context;
use berth_foundation::fault;
use berth_store::ledger::Posting;
use berth_store::payments::PaymentRow;
use berth_store::{self as store, StoreError, Tx};

const BATCH: i64 = 100;
/// What speaks of a payment that nobody here knows is looked at so often, and then left.
const TRIES: i64 = 16;

/// An event as Stripe sends it; what is not needed is passed over.
#[derive(Deserialize)]
struct Event {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    object: Object,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    id: String,
    metadata: Metadata,
    payment_intent: Option<String>,
    payment_status: String,
    payment_method: Option<String>,
    setup_future_usage: Option<String>,
    status: String,
    amount: i64,
    amount_refunded: i64,
    last_payment_error: Option<Reason>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    payment: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Reason {
    message: String,
}

/// What came of an event.
enum Applied {
    Done,
    /// It speaks of something that is not known yet.
    Later,
}

async fn find(
    tx: &mut Tx<'_>,
    payment: Option<&str>,
    intent: Option<&str>,
) -> Result<Option<PaymentRow>, StoreError> {
    if let Some(id) = payment.and_then(|p| p.parse::<PaymentId>().ok()) {
        return store::payments::find(tx, id).await;
    }
    match intent {
        Some(intent) => store::payments::find_by_intent(tx, intent).await,
        None => Ok(None),
    }
}

fn posting(
    context: &Context,
    row: &PaymentRow,
    (kind, amount_micros): (TransferKind, i64),
    (source_id, seq): (&str, i64),
    (memo, at): (&str, Timestamp),
) -> Result<Posting, StoreError> {
    Ok(Posting {
        id: context.new_id::<TransferId>(at),
        org: row.org_id.parse().map_err(|_| StoreError::Corrupt(row.id.clone()))?,
        kind,
        amount_micros,
        pending: None,
        source: "stripe",
        source_id: source_id.to_owned(),
        seq,
        memo: memo.to_owned(),
        at,
    })
}

/// Credits a payment, once: to the balance, or to the invoice that it pays.
async fn credit(
    tx: &mut Tx<'_>,
    context: &Context,
    mut row: PaymentRow,
    intent: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    if row.state == PaymentState::Paid.name() {
        return Ok(());
    }
    let mut amount = row.amount_micros;
    let mut memo = "Paid by card".to_owned();
    if let Some(id) = row.invoice_id.as_deref().and_then(|i| i.parse::<InvoiceId>().ok())
        && let Some(invoice) = store::invoices::find_any(tx, id).await?
    {
        let states = (InvoiceState::Open.name(), InvoiceState::Paid.name());
        // Paid twice, the second time is credit.
        if store::invoices::set_state(tx, id, states, Some(now)).await? {
            amount = owed(&invoice.document)?.subtotal_micros;
            memo = format!("Invoice {} paid by card", invoice.number);
        }
    }
    if amount > 0 {
        let kind = (TransferKind::Credit, amount);
        let credit = posting(context, &row, kind, (&row.id, 1), (&memo, now))?;
        store::ledger::post(tx, &credit).await?;
    }
    row.state = PaymentState::Paid.name().to_owned();
    (row.intent, row.done_at, row.failure) = (Some(intent.to_owned()), Some(now.micros()), String::new());
    store::payments::update(tx, &row).await?;
    if row.kind == "recharge" {
        store::payments::set_failures(tx, &row.org_id, 0).await?;
    }
    Ok(())
}

/// What of an amount of this payment was credited: all of it, or for an invoice what it came to without
/// the tax. `None` while it is not credited.
async fn credited_part(
    tx: &mut Tx<'_>,
    row: &PaymentRow,
) -> Result<Option<impl Fn(i64) -> i64 + use<>>, StoreError> {
    if row.state != PaymentState::Paid.name() {
        return Ok(None);
    }
    let credited = store::payments::posted(tx, &row.id, TransferKind::Credit.name()).await?;
    let paid = row.amount_micros;
    Ok(Some(move |micros: i64| {
        let part = i128::from(micros.min(paid)) * i128::from(credited) / i128::from(paid.max(1));
        i64::try_from(part).unwrap_or(credited)
    }))
}

async fn apply(
    tx: &mut Tx<'_>,
    context: &Context,
    event: &Event,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let object = &event.data.object;
    let micros = |minor: i64| minor.saturating_mul(minor_unit_micros(&context.settings.currency));
    let named = object.metadata.payment.as_deref();
    match event.kind.as_str() {
        "checkout.session.completed" | "checkout.session.async_payment_succeeded" => {
            if object.payment_status != "paid" {
                return Ok(Applied::Done);
            }
            let Some(row) = find(tx, named, object.payment_intent.as_deref()).await? else {
                return Ok(Applied::Later);
            };
            let intent = object.payment_intent.as_deref().unwrap_or(&object.id);
            credit(tx, context, row, intent, now).await?;
        }
        "payment_intent.succeeded" => {
            let Some(row) = find(tx, named, Some(&object.id)).await? else { return Ok(Applied::Later) };
            let org = row.org_id.clone();
            credit(tx, context, row, &object.id, now).await?;
            if object.setup_future_usage.as_deref() == Some("off_session")
                && let Some(method) = &object.payment_method
            {
                store::payments::set_method(tx, &org, method).await?;
            }
        }
        "checkout.session.expired"
        | "checkout.session.async_payment_failed"
        | "payment_intent.payment_failed" => {
            let row = find(tx, named, object.payment_intent.as_deref().or(Some(&object.id))).await?;
            // On Stripe's page a person may try another card, so a single try decides nothing.
            let tried = event.kind.starts_with("payment_intent.");
            if let Some(mut row) =
                row.filter(|r| r.state == PaymentState::Open.name() && !(tried && r.kind == "checkout"))
            {
                row.state = PaymentState::Failed.name().to_owned();
                row.failure = object
                    .last_payment_error
                    .as_ref()
                    .map_or_else(|| "Nobody paid in time.".to_owned(), |reason| reason.message.clone());
                row.done_at = Some(now.micros());
                store::payments::update(tx, &row).await?;
            }
        }
        "charge.refunded" => {
            let Some(row) = find(tx, named, object.payment_intent.as_deref()).await? else {
                return Ok(Applied::Later);
            };
            let Some(part) = credited_part(tx, &row).await? else { return Ok(Applied::Later) };
            // The event says how much was refunded in all.
            let of = format!("{}:refund", row.id);
            let total = part(micros(object.amount_refunded));
            let more = total - store::payments::posted(tx, &of, TransferKind::Debit.name()).await?;
            if more > 0 {
                let kind = (TransferKind::Debit, more);
                let debit = posting(context, &row, kind, (&of, total), ("Refunded to the card", now))?;
                store::ledger::post_forced(tx, &debit).await?;
            }
        }
        "charge.dispute.created"
        | "charge.dispute.updated"
        | "charge.dispute.funds_withdrawn"
        | "charge.dispute.closed" => {
            // An inquiry takes nothing; it may become a dispute that does.
            if object.status.starts_with("warning_") || object.status == "prevented" {
                return Ok(Applied::Done);
            }
            let Some(row) = find(tx, named, object.payment_intent.as_deref()).await? else {
                return Ok(Applied::Later);
            };
            let Some(part) = credited_part(tx, &row).await? else { return Ok(Applied::Later) };
            let amount = part(micros(object.amount));
            let of = object.id.as_str();
            let done = async |tx: &mut Tx<'_>, kind: TransferKind| {
                store::payments::posted(tx, of, kind.name()).await
            };
            if done(tx, TransferKind::Debit).await? == 0 && amount > 0 {
                let debit = posting(
                    context,
                    &row,
                    (TransferKind::Debit, amount),
                    (of, 1),
                    ("Disputed at the bank", now),
                )?;
                store::ledger::post_forced(tx, &debit).await?;
            }
            if object.status == "won" && done(tx, TransferKind::Credit).await? == 0 && amount > 0 {
                let back = posting(
                    context,
                    &row,
                    (TransferKind::Credit, amount),
                    (of, 1),
                    ("The dispute was won", now),
                )?;
                store::ledger::post(tx, &back).await?;
            }
        }
        _ => {}
    }
    Ok(Applied::Done)
}

impl Payments {
    /// Takes what Stripe sends: checks who signed it, and keeps it as it is. What it means comes later.
    pub async fn take_stripe_event(&self, signature: &str, body: &[u8]) -> Result<(), Problem> {
        let stripe = self.stripe.as_deref().ok_or_else(Problem::not_found)?;
        let now = self.context.now();
        if !stripe.verify(signature, body, now.micros() / 1_000_000) {
            let detail = "The signature is not Stripe's, or too old. Nothing was kept.";
            return Err(Problem::new(400, "stripe.signature", "The signature is refused", detail));
        }
        let unread = |_| Problem::malformed("This is no event of Stripe's.");
        let text = std::str::from_utf8(body).map_err(|_| Problem::malformed("This is no text."))?.to_owned();
        #[derive(Deserialize)]
        struct Head {
            id: String,
            #[serde(rename = "type")]
            kind: String,
        }
        let head: Head = serde_json::from_str(&text).map_err(unread)?;
        let keep = self.context.db.write(move |tx| {
            let (id, kind, text) = (head.id.clone(), head.kind.clone(), text.clone());
            async move { store::payments::insert_event(tx, &id, &kind, &text, now).await }.boxed()
        });
        keep.await?;
        fault::point("payment.event.stored");
        Ok(())
    }

    /// Applies events that were kept. One that speaks of something unknown is looked at again later.
    pub(super) async fn process_events(&self) -> Result<(), StoreError> {
        let due = {
            let mut conn = self.context.db.read().await?;
            store::payments::due_events(&mut conn.tx(), self.context.now(), BATCH).await?
        };
        for (id, _kind, payload, tries) in due {
            let now = self.context.now();
            let Ok(event) = serde_json::from_str::<Event>(&payload) else {
                self.event_over(&id, "It cannot be read.").await?;
                continue;
            };
            let context = self.context.clone();
            let event = std::sync::Arc::new(event);
            let done = self.context.db.write(move |tx| {
                let (context, event) = (context.clone(), event.clone());
                async move {
                    let applied = apply(tx, &context, &event, now).await?;
                    if matches!(applied, Applied::Done) {
                        store::payments::event_done(tx, &event.id, now).await?;
                    }
                    fault::point("payment.event.applying");
                    Ok(matches!(applied, Applied::Done))
                }
                .boxed()
            });
            let done = done.await;
            fault::point("payment.event.applied");
            match done {
                Ok(true) => {}
                Ok(false) if tries + 1 >= TRIES => {
                    self.event_over(&id, "Nobody here knows this payment.").await?
                }
                Ok(false) => {
                    self.event_later(&id, tries, "It speaks of a payment that is not known yet.").await?
                }
                Err(error) => {
                    tracing::error!(event = id, %error, "an event of Stripe's could not be applied");
                    self.event_later(&id, tries, "It could not be applied.").await?;
                }
            }
        }
        Ok(())
    }

    async fn event_later(&self, id: &str, tries: i64, error: &'static str) -> Result<(), StoreError> {
        let next_at = self.context.now().plus_seconds((5i64 << tries.clamp(0, 12)).min(6 * 3_600));
        let id = id.to_owned();
        self.context
            .db
            .write(move |tx| {
                let id = id.clone();
                async move { store::payments::event_later(tx, &id, next_at, error).await }.boxed()
            })
            .await
    }

    async fn event_over(&self, id: &str, why: &'static str) -> Result<(), StoreError> {
        tracing::warn!(event = id, why, "an event of Stripe's is left");
        let (id, now) = (id.to_owned(), self.context.now());
        self.context
            .db
            .write(move |tx| {
                let id = id.clone();
                async move {
                    store::payments::event_later(tx, &id, now, why).await?;
                    store::payments::event_done(tx, &id, now).await
                }
                .boxed()
            })
            .await
    }

    /// Credits a payment of which Stripe's own answer says that it was paid.
    pub(super) async fn paid(&self, payment: &str, intent: &str) -> Result<(), StoreError> {
        let id: PaymentId = payment.parse().map_err(|_| StoreError::Corrupt(payment.to_owned()))?;
        let (context, intent, now) = (self.context.clone(), intent.to_owned(), self.context.now());
        self.context
            .db
            .write(move |tx| {
                let (context, intent) = (context.clone(), intent.clone());
                async move {
                    match store::payments::find(tx, id).await? {
                        Some(row) => credit(tx, &context, row, &intent, now).await,
                        None => Ok(()),
                    }
                }
                .boxed()
            })
            .await
    }
}
