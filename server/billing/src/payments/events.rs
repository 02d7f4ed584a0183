//! Stripe's events: their storage and their effect on payments and the ledger.
//!
//! Events arrive late, repeatedly and in any order. The posted transfers decide the effect of each event, so
//! all orders end in the same ledger.

use berth_types::ids::PaymentId;
use berth_types::invoices::{InvoiceDocument, InvoiceState};
use berth_types::ledger::TransferKind;
use berth_types::payments::PaymentState;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde::Deserialize;

use super::Payments;
use berth_foundation::Context;
use berth_foundation::fault;
use berth_store::invoices::StoredInvoice;
use berth_store::ledger::Posting;
use berth_store::payments::{PaymentKind, StoredPayment};
use berth_store::{self as store, StoreError, Tx};
use berth_stripe::minor_unit_micros;

const BATCH: i64 = 100;
/// The number of tries for an event of an unknown payment.
const MAX_TRIES: i64 = 16;

/// An event of Stripe, with the used fields only.
#[derive(Deserialize)]
struct StripeEvent {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    data: EventData,
}

#[derive(Deserialize)]
struct EventData {
    object: EventObject,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct EventObject {
    id: String,
    metadata: EventMetadata,
    payment_intent: Option<String>,
    payment_status: String,
    payment_method: Option<String>,
    setup_future_usage: Option<String>,
    status: String,
    amount: i64,
    amount_refunded: i64,
    last_payment_error: Option<PaymentError>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct EventMetadata {
    payment: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PaymentError {
    message: String,
}

/// The result of an application of an event.
enum Applied {
    Done,
    /// The payment of the event is not known yet, or not credited yet.
    Later,
}

/// Finds a payment by its own id or by its payment intent.
async fn find_payment(
    tx: &mut Tx<'_>,
    payment: Option<&str>,
    intent: Option<&str>,
) -> Result<Option<StoredPayment>, StoreError> {
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
    row: &StoredPayment,
    (kind, amount_micros): (TransferKind, i64),
    (source_id, seq): (&str, i64),
    (memo, at): (&str, Timestamp),
) -> Posting {
    Posting {
        id: context.new_id(at),
        org: row.org_id,
        kind,
        amount_micros,
        pending: None,
        source: "stripe",
        source_id: source_id.to_owned(),
        seq,
        memo: memo.to_owned(),
        at,
    }
}

/// Reads the stored document of an invoice.
fn parse_document(invoice: &StoredInvoice) -> Result<InvoiceDocument, StoreError> {
    let corrupt = |error| StoreError::corrupt("invoices", invoice.id, "document", error);
    serde_json::from_str(&invoice.document).map_err(corrupt)
}

/// Credits a payment once. A payment of an open invoice also closes the invoice.
async fn credit(
    tx: &mut Tx<'_>,
    context: &Context,
    mut row: StoredPayment,
    intent: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    if row.state == PaymentState::Paid {
        return Ok(());
    }
    let mut amount = row.amount_micros;
    let mut memo = "Paid by card".to_owned();
    if let Some(id) = row.invoice_id
        && let Some(invoice) = store::invoices::find_any(tx, id).await?
    {
        let states = (InvoiceState::Open, InvoiceState::Paid);
        // A second payment of the same invoice becomes credit.
        if store::invoices::set_state(tx, id, states, Some(now)).await? {
            amount = parse_document(&invoice)?.subtotal_micros;
            memo = format!("Invoice {} paid by card", invoice.number);
        }
    }
    if amount > 0 {
        let kind = (TransferKind::Credit, amount);
        let credit = posting(context, &row, kind, (&row.id.to_string(), 1), (&memo, now));
        store::ledger::post(tx, &credit).await?;
    }
    row.state = PaymentState::Paid;
    (row.intent, row.done_at, row.failure) = (Some(intent.to_owned()), Some(now), String::new());
    store::payments::update(tx, &row).await?;
    if row.kind == PaymentKind::Recharge {
        store::payments::set_failures(tx, row.org_id, 0).await?;
    }
    Ok(())
}

/// A function from an amount of this payment to its credited part, in micros. A payment of an invoice was
/// credited without the tax. `None` before the credit.
async fn credited_part(
    tx: &mut Tx<'_>,
    row: &StoredPayment,
) -> Result<Option<impl Fn(i64) -> i64 + use<>>, StoreError> {
    if row.state != PaymentState::Paid {
        return Ok(None);
    }
    let credited = store::payments::posted(tx, &row.id.to_string(), TransferKind::Credit).await?;
    let paid = row.amount_micros;
    Ok(Some(move |micros: i64| {
        let part = i128::from(micros.min(paid)) * i128::from(credited) / i128::from(paid.max(1));
        i64::try_from(part).unwrap_or(credited)
    }))
}

async fn apply(
    tx: &mut Tx<'_>,
    context: &Context,
    event: &StripeEvent,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let object = &event.data.object;
    match event.kind.as_str() {
        "checkout.session.completed" | "checkout.session.async_payment_succeeded" => {
            complete_checkout(tx, context, object, now).await
        }
        "payment_intent.succeeded" => complete_intent(tx, context, object, now).await,
        "checkout.session.expired" | "checkout.session.async_payment_failed" => {
            fail_payment(tx, object, false, now).await
        }
        "payment_intent.payment_failed" => fail_payment(tx, object, true, now).await,
        "charge.refunded" => refund(tx, context, object, now).await,
        "charge.dispute.created"
        | "charge.dispute.updated"
        | "charge.dispute.funds_withdrawn"
        | "charge.dispute.closed" => dispute(tx, context, object, now).await,
        _ => Ok(Applied::Done),
    }
}

/// Credits the payment of a checkout session that is paid.
async fn complete_checkout(
    tx: &mut Tx<'_>,
    context: &Context,
    object: &EventObject,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let payment_id = object.metadata.payment.as_deref();
    if object.payment_status != "paid" {
        return Ok(Applied::Done);
    }
    let Some(row) = find_payment(tx, payment_id, object.payment_intent.as_deref()).await? else {
        return Ok(Applied::Later);
    };
    let intent = object.payment_intent.as_deref().unwrap_or(&object.id);
    credit(tx, context, row, intent, now).await?;
    Ok(Applied::Done)
}

/// Credits the payment of an intent, and stores its card if Stripe may charge it later.
async fn complete_intent(
    tx: &mut Tx<'_>,
    context: &Context,
    object: &EventObject,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let payment_id = object.metadata.payment.as_deref();
    let Some(row) = find_payment(tx, payment_id, Some(&object.id)).await? else {
        return Ok(Applied::Later);
    };
    let org = row.org_id;
    credit(tx, context, row, &object.id, now).await?;
    if object.setup_future_usage.as_deref() == Some("off_session")
        && let Some(method) = &object.payment_method
    {
        store::payments::set_method(tx, org, method).await?;
    }
    Ok(Applied::Done)
}

/// Marks an open payment as failed. `is_one_try`: the event is about one try with one card.
async fn fail_payment(
    tx: &mut Tx<'_>,
    object: &EventObject,
    is_one_try: bool,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let payment_id = object.metadata.payment.as_deref();
    let row = find_payment(tx, payment_id, object.payment_intent.as_deref().or(Some(&object.id))).await?;
    // A person can try another card on Stripe's page, so one failed try does not decide.
    if let Some(mut row) =
        row.filter(|r| r.state == PaymentState::Open && !(is_one_try && r.kind == PaymentKind::Checkout))
    {
        row.state = PaymentState::Failed;
        row.failure = object.last_payment_error.as_ref().map_or_else(
            || "The payment page expired without a payment.".to_owned(),
            |reason| reason.message.clone(),
        );
        row.done_at = Some(now);
        store::payments::update(tx, &row).await?;
    }
    Ok(Applied::Done)
}

/// Debits the credited part of a refund.
async fn refund(
    tx: &mut Tx<'_>,
    context: &Context,
    object: &EventObject,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let micros = |minor: i64| minor.saturating_mul(minor_unit_micros(&context.settings.currency));
    let payment_id = object.metadata.payment.as_deref();
    let Some(row) = find_payment(tx, payment_id, object.payment_intent.as_deref()).await? else {
        return Ok(Applied::Later);
    };
    let Some(part) = credited_part(tx, &row).await? else { return Ok(Applied::Later) };
    // The event has the total of all refunds of the charge.
    let refund_id = format!("{}:refund", row.id);
    let total = part(micros(object.amount_refunded));
    let more = total - store::payments::posted(tx, &refund_id, TransferKind::Debit).await?;
    if more > 0 {
        let kind = (TransferKind::Debit, more);
        let debit = posting(context, &row, kind, (&refund_id, total), ("Refunded to the card", now));
        store::ledger::post_forced(tx, &debit).await?;
    }
    Ok(Applied::Done)
}

/// Debits the credited part of a disputed charge, and credits it again if the dispute is won.
async fn dispute(
    tx: &mut Tx<'_>,
    context: &Context,
    object: &EventObject,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let micros = |minor: i64| minor.saturating_mul(minor_unit_micros(&context.settings.currency));
    let payment_id = object.metadata.payment.as_deref();
    // An inquiry takes no money. It can become a dispute.
    if object.status.starts_with("warning_") || object.status == "prevented" {
        return Ok(Applied::Done);
    }
    let Some(row) = find_payment(tx, payment_id, object.payment_intent.as_deref()).await? else {
        return Ok(Applied::Later);
    };
    let Some(part) = credited_part(tx, &row).await? else { return Ok(Applied::Later) };
    let amount = part(micros(object.amount));
    let dispute_id = object.id.as_str();
    let posted =
        async |tx: &mut Tx<'_>, kind: TransferKind| store::payments::posted(tx, dispute_id, kind).await;
    if posted(tx, TransferKind::Debit).await? == 0 && amount > 0 {
        let debit = posting(
            context,
            &row,
            (TransferKind::Debit, amount),
            (dispute_id, 1),
            ("Disputed at the bank", now),
        );
        store::ledger::post_forced(tx, &debit).await?;
    }
    if object.status == "won" && posted(tx, TransferKind::Credit).await? == 0 && amount > 0 {
        let credit = posting(
            context,
            &row,
            (TransferKind::Credit, amount),
            (dispute_id, 1),
            ("The dispute was won", now),
        );
        store::ledger::post(tx, &credit).await?;
    }
    Ok(Applied::Done)
}

impl Payments {
    /// Stores an event of Stripe without interpreting it.
    ///
    /// # Errors
    /// The signature is not Stripe's, or the body is no event.
    pub async fn receive_stripe_event(&self, signature: &str, body: &[u8]) -> Result<(), Problem> {
        let stripe = self.stripe.as_deref().ok_or_else(Problem::not_found)?;
        let now = self.context.now();
        let text = std::str::from_utf8(body).map_err(|_| Problem::malformed("This is no text."))?.to_owned();
        if !stripe.verify(signature, &text, now.micros() / 1_000_000) {
            let detail = "The signature is not Stripe's, or too old. Nothing was kept.";
            return Err(Problem::new(400, "stripe.signature", "The signature is refused", detail));
        }
        let malformed = |_| Problem::malformed("This is no event of Stripe's.");
        #[derive(Deserialize)]
        struct EventHead {
            id: String,
            #[serde(rename = "type")]
            kind: String,
        }
        let head: EventHead = serde_json::from_str(&text).map_err(malformed)?;
        let keep = self.context.db.write(move |tx| {
            let (id, kind, text) = (head.id.clone(), head.kind.clone(), text.clone());
            async move { store::payments::insert_event(tx, &id, &kind, &text, now).await }.boxed()
        });
        keep.await?;
        fault::point("payment.event.stored");
        Ok(())
    }

    /// Applies stored events. An event of an unknown payment is tried again later.
    pub(super) async fn process_events(&self) -> Result<(), StoreError> {
        let due = {
            let mut conn = self.context.db.read().await?;
            store::payments::list_due_events(&mut conn.tx(), self.context.now(), BATCH).await?
        };
        for (id, _kind, payload, tries) in due {
            let now = self.context.now();
            let Ok(event) = serde_json::from_str::<StripeEvent>(&payload) else {
                self.abandon_event(&id, "It cannot be read.").await?;
                continue;
            };
            let context = self.context.clone();
            let event = std::sync::Arc::new(event);
            let done = self.context.db.write(move |tx| {
                let (context, event) = (context.clone(), event.clone());
                async move {
                    let applied = apply(tx, &context, &event, now).await?;
                    if matches!(applied, Applied::Done) {
                        store::payments::mark_event_done(tx, &event.id, now).await?;
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
                Ok(false) if tries + 1 >= MAX_TRIES => {
                    self.abandon_event(&id, "Nobody here knows this payment.").await?
                }
                Ok(false) => {
                    tracing::info!(event = id, tries, "an event of Stripe's names an unknown payment");
                    self.defer_event(&id, tries).await?
                }
                Err(error) => {
                    tracing::error!(event = id, %error, "an event of Stripe's could not be applied");
                    self.defer_event(&id, tries).await?;
                }
            }
        }
        Ok(())
    }

    async fn defer_event(&self, id: &str, tries: i64) -> Result<(), StoreError> {
        let next_at = self.context.now().plus_seconds((5i64 << tries.clamp(0, 12)).min(6 * 3_600));
        let id = id.to_owned();
        self.context
            .db
            .write(move |tx| {
                let id = id.clone();
                async move { store::payments::postpone_event(tx, &id, next_at).await }.boxed()
            })
            .await
    }

    async fn abandon_event(&self, id: &str, why: &'static str) -> Result<(), StoreError> {
        tracing::warn!(event = id, why, "an event of Stripe's is left");
        let (id, now) = (id.to_owned(), self.context.now());
        self.context
            .db
            .write(move |tx| {
                let id = id.clone();
                async move {
                    store::payments::postpone_event(tx, &id, now).await?;
                    store::payments::mark_event_done(tx, &id, now).await
                }
                .boxed()
            })
            .await
    }

    /// Credits a payment after a direct answer of Stripe reported its success.
    pub(super) async fn credit_paid(&self, id: PaymentId, intent: &str) -> Result<(), StoreError> {
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
