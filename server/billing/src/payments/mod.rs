//! Money by card: a person pays on Stripe's page, or a saved card is charged by rule. What was paid is
//! what Stripe's signed events say (`events`); the ledger is the record.
//!
//! Every payment is recorded before Stripe is asked, and its id is the idempotency key, so an answer
//! that never came is asked for again and nothing is charged twice.

mod events;

use berth_types::Page;
use berth_types::ids::{InvoiceId, OrgId, PaymentId};
use berth_types::invoices::{InvoiceDocument, InvoiceState};
use berth_types::money::money_text;
use berth_types::payments::{AutoRecharge, NewTopUp, PayHere, Payment, PaymentSettings, PaymentState};
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use futures::FutureExt;
use std::sync::Arc;

use crate::stripe::{Checkout, Stripe, StripeError, minor_unit_micros, payable_step_micros};
use berth_foundation::Context;
use berth_foundation::days::day_of;
use berth_foundation::{Caller, Right, idempotency};
use berth_store::payments::{PaymentRow, ProfileRow};
use berth_store::{self as store, StoreError};

/// The smallest and the largest payment, in units of the currency.
const LEAST_UNITS: i64 = 1;
const MOST_UNITS: i64 = 100_000;
/// Stripe forgets an idempotency key after a day; under a forgotten one nothing is asked for again. What was
/// paid all the same is credited by its event.
const KEY_S: i64 = 20 * 3_600;
/// After so many failures in a row the saved card is left alone until the rule is set again.
const FAILURES: i64 = 3;

fn off() -> Problem {
    Problem::new(
        409,
        "payments.off",
        "This portal takes no cards",
        "Credit comes from the operator here; ask them for more.",
    )
}

fn unanswered(error: &StripeError) -> Problem {
    match error {
        StripeError::Refused(why) => {
            Problem::new(402, "payments.refused", "The payment was refused", format!("Stripe says: {why}"))
        }
        StripeError::Unknown(_) => Problem::unavailable(
            "Stripe does not answer now. Nothing was charged by this; try again in a moment.",
            5,
        ),
    }
}

/// Cards, invoices paid by card and automatic recharge.
#[derive(Clone)]
pub struct Payments {
    context: Context,
    /// Absent: no cards are taken.
    stripe: Option<Arc<Stripe>>,
}

impl Payments {
    pub const fn new(context: Context, stripe: Option<Arc<Stripe>>) -> Self {
        Self { context, stripe }
    }

    /// True if cards are taken.
    pub const fn enabled(&self) -> bool {
        self.stripe.is_some()
    }

    fn card_taker(&self) -> Result<&Stripe, Problem> {
        self.stripe.as_deref().ok_or_else(off)
    }

    pub async fn payment_settings(&self, caller: &Caller, org: OrgId) -> Result<PaymentSettings, Problem> {
        self.context.authorise(caller, org, Right::SeeMoney).await?;
        let mut conn = self.context.db.read().await?;
        let profile = store::payments::find_profile(&mut conn.tx(), org).await?;
        let rule = profile.as_ref().map(|p| AutoRecharge {
            below_micros: p.below_micros,
            amount_micros: p.amount_micros,
            most_a_day: p.most_a_day,
        });
        Ok(PaymentSettings {
            enabled: self.stripe.is_some(),
            card_saved: profile.is_some_and(|p| p.payment_method.is_some()),
            auto_recharge: rule.unwrap_or_default(),
            step_micros: payable_step_micros(&self.context.settings.currency),
        })
    }

    /// What can be paid: between a unit and a hundred thousand, in whole smallest units.
    fn check_amount(&self, pointer: &str, micros: i64) -> Option<FieldError> {
        let step = payable_step_micros(&self.context.settings.currency);
        let whole = micros % step == 0;
        let inside = (LEAST_UNITS * 1_000_000..=MOST_UNITS * 1_000_000).contains(&micros);
        let currency = &self.context.settings.currency;
        (!whole || !inside).then(|| {
            let detail = format!(
                "Choose between {} and {}, in steps of {}.",
                money_text(LEAST_UNITS * 1_000_000, currency),
                money_text(MOST_UNITS * 1_000_000, currency),
                money_text(step, currency)
            );
            FieldError::new(pointer, detail)
        })
    }

    /// Begins a payment for the balance; the answer says where to pay.
    pub async fn top_up(&self, caller: &Caller, org: OrgId, input: NewTopUp) -> Result<PayHere, Problem> {
        self.context.authorise(caller, org, Right::Pay).await?;
        self.card_taker()?;
        if let Some(error) = self.check_amount("/amount_micros", input.amount_micros) {
            return Err(Problem::invalid(vec![error]));
        }
        self.checkout(caller, org, input.amount_micros, None, input.save_card, "Berth credit").await
    }

    /// Begins the payment of an open invoice.
    pub async fn pay_invoice_by_card(
        &self,
        caller: &Caller,
        org: OrgId,
        id: InvoiceId,
    ) -> Result<PayHere, Problem> {
        self.context.authorise(caller, org, Right::Pay).await?;
        self.card_taker()?;
        let mut conn = self.context.db.read().await?;
        let row = store::invoices::find_any(&mut conn.tx(), id).await?;
        drop(conn);
        let row = row.filter(|r| r.org_id == org.to_string()).ok_or_else(Problem::not_found)?;
        if row.kind != "invoice" || row.state != InvoiceState::Open.name() {
            let detail = format!("It is {}; only an open invoice can be paid.", row.state);
            return Err(Problem::conflict("invoice.closed", "The invoice is closed", detail));
        }
        // A card takes whole smallest units: what is less than one is let go.
        let step = payable_step_micros(&self.context.settings.currency);
        let amount = row.total_micros / step * step;
        if amount <= 0 {
            let detail = "It is less than the smallest amount that a card takes; the operator can close it.";
            return Err(Problem::conflict("invoice.too_small", "The invoice is too small", detail));
        }
        self.checkout(caller, org, amount, Some(id), false, &format!("Invoice {}", row.number)).await
    }

    async fn checkout(
        &self,
        caller: &Caller,
        org: OrgId,
        amount_micros: i64,
        invoice: Option<InvoiceId>,
        save_card: bool,
        what: &str,
    ) -> Result<PayHere, Problem> {
        let stripe = self.card_taker()?;
        let customer = self.customer(stripe, org).await?;
        let now = self.context.now();
        let fresh = PaymentRow {
            id: self.context.new_id::<PaymentId>(now).to_string(),
            org_id: org.to_string(),
            kind: "checkout".to_owned(),
            amount_micros,
            invoice_id: invoice.map(|i| i.to_string()),
            state: PaymentState::Open.name().to_owned(),
            session: None,
            intent: None,
            created_by: caller.user.name.clone(),
            created_at: now.micros(),
            done_at: None,
            failure: String::new(),
        };
        let mut row = match caller.done_before() {
            Some(made) => self.asked_before(made).await?,
            None => self.begin_checkout(caller, fresh).await?,
        };
        let payment: PaymentId = row.id.parse().map_err(|_| Problem::internal())?;
        let currency = &self.context.settings.currency;
        let back = |state: &str| format!("{}/billing?payment={state}", self.context.settings.public_url);
        let session = stripe
            .create_checkout(&Checkout {
                payment: &row.id,
                customer: &customer,
                what,
                minor_units: amount_micros / minor_unit_micros(currency),
                currency,
                save_card,
                success_url: back("done"),
                cancel_url: back("cancelled"),
            })
            .await;
        match session {
            Ok(session) => {
                // Once somebody was sent there, what becomes of it is for Stripe's events to say.
                if row.session.is_none() {
                    row.session = Some(session.id);
                    row.state = PaymentState::Open.name().to_owned();
                    row.failure = String::new();
                    self.keep_payment(&row).await?;
                }
                let url = session.url.ok_or_else(Problem::internal)?;
                Ok(PayHere { payment, url })
            }
            Err(error) => {
                // Nobody was sent anywhere to pay, so nothing can come of it.
                if row.session.is_none() {
                    row.state = PaymentState::Failed.name().to_owned();
                    row.failure = "Stripe gave no page to pay on.".to_owned();
                    self.keep_payment(&row).await?;
                }
                Err(unanswered(&error))
            }
        }
    }

    async fn begin_checkout(&self, caller: &Caller, row: PaymentRow) -> Result<PaymentRow, StoreError> {
        let (once, now) = (caller.once.clone(), self.context.now());
        self.context
            .db
            .write(move |tx| {
                let (row, once) = (row.clone(), once.clone());
                async move {
                    idempotency::claim(tx, once.as_ref(), &row.id, now).await?;
                    store::payments::insert(tx, &row).await?;
                    Ok(row)
                }
                .boxed()
            })
            .await
    }

    /// The payment that an earlier request with the same key began. Asked for again, Stripe gives the same
    /// page, for as long as it remembers.
    async fn asked_before(&self, made: &str) -> Result<PaymentRow, Problem> {
        let id: PaymentId = made.parse().map_err(|_| Problem::internal())?;
        let mut conn = self.context.db.read().await?;
        let row = store::payments::find(&mut conn.tx(), id).await?.ok_or_else(Problem::not_found)?;
        let open = row.state == PaymentState::Open.name();
        let decided = row.state == PaymentState::Paid.name() || (row.session.is_some() && !open);
        if decided || row.created_at < self.context.now().plus_seconds(-KEY_S).micros() {
            let detail = "The payment that was begun under this Idempotency-Key is over or too old; the list of payments says what became of it. Use a new key for a new payment.";
            return Err(Problem::conflict("payments.over", "That payment is over", detail));
        }
        Ok(row)
    }

    async fn keep_payment(&self, row: &PaymentRow) -> Result<(), StoreError> {
        let row = row.clone();
        self.context
            .db
            .write(move |tx| {
                let row = row.clone();
                async move { store::payments::update(tx, &row).await }.boxed()
            })
            .await
    }

    /// Who the organization is at Stripe.
    async fn customer(&self, stripe: &Stripe, org: OrgId) -> Result<String, Problem> {
        let (known, name) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let known = store::payments::find_profile(&mut tx, org).await?;
            let name = store::accounts::find_org(&mut tx, org).await?.map(|o| o.name);
            (known, name.unwrap_or_default())
        };
        if let Some(profile) = known {
            return Ok(profile.customer);
        }
        let made = stripe.create_customer(&org.to_string(), &name).await.map_err(|e| unanswered(&e))?;
        let kept = self.context.db.write(move |tx| {
            let id = made.id.clone();
            async move {
                store::payments::put_customer(tx, org, &id).await?;
                let profile = store::payments::find_profile(tx, org).await?;
                profile.map(|p| p.customer).ok_or(StoreError::Unknown)
            }
            .boxed()
        });
        Ok(kept.await?)
    }

    /// Stripe's own page with receipts and cards.
    pub async fn billing_portal(&self, caller: &Caller, org: OrgId) -> Result<String, Problem> {
        self.context.authorise(caller, org, Right::Pay).await?;
        let stripe = self.card_taker()?;
        let customer = self.customer(stripe, org).await?;
        let key: PaymentId = self.context.new_id(self.context.now());
        let back = format!("{}/billing", self.context.settings.public_url);
        let session = stripe.create_portal(&customer, &back, &key.to_string()).await;
        session.map_err(|e| unanswered(&e))?.url.ok_or_else(Problem::internal)
    }

    /// Sets when the saved card is charged by itself.
    pub async fn set_auto_recharge(
        &self,
        caller: &Caller,
        org: OrgId,
        rule: AutoRecharge,
    ) -> Result<PaymentSettings, Problem> {
        self.context.authorise(caller, org, Right::Pay).await?;
        self.card_taker()?;
        let mut errors = Vec::new();
        if rule.amount_micros != 0 {
            errors.extend(self.check_amount("/amount_micros", rule.amount_micros));
            if !(0..=MOST_UNITS * 1_000_000).contains(&rule.below_micros) {
                errors.push(FieldError::new("/below_micros", "Choose a threshold from zero on."));
            }
            if !(1..=24).contains(&rule.most_a_day) {
                errors.push(FieldError::new("/most_a_day", "Choose 1 to 24 a day."));
            }
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let known = self
            .context
            .db
            .write(move |tx| async move { store::payments::set_recharge(tx, org, rule).await }.boxed());
        if !known.await? && rule.amount_micros != 0 {
            let detail = "Top up once and save the card; then it can be charged by itself.";
            return Err(Problem::conflict("payments.no_card", "No card is saved", detail));
        }
        self.payment_settings(caller, org).await
    }

    pub async fn list_payments(
        &self,
        caller: &Caller,
        org: OrgId,
        limit: u32,
    ) -> Result<Page<Payment>, Problem> {
        self.context.authorise(caller, org, Right::SeeMoney).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::payments::list(&mut conn.tx(), org, i64::from(limit)).await?;
        let payment = |row: PaymentRow| {
            let corrupt = || StoreError::Corrupt(row.id.clone());
            Ok::<_, StoreError>(Payment {
                id: row.id.parse().map_err(|_| corrupt())?,
                state: PaymentState::parse(&row.state).ok_or_else(corrupt)?,
                kind: row.kind,
                amount_micros: row.amount_micros,
                currency: self.context.settings.currency.clone(),
                created_at: Timestamp::from_micros(row.created_at),
                created_by: row.created_by,
                done_at: row.done_at.map(Timestamp::from_micros),
                failure: row.failure,
            })
        };
        Ok(Page::whole(rows.into_iter().map(payment).collect::<Result<_, _>>()?))
    }

    /// Works through what Stripe told, and charges saved cards whose rule says so.
    pub async fn tick_payments(&self) -> Result<(), StoreError> {
        self.process_events().await?;
        let Some(stripe) = self.stripe.clone() else { return Ok(()) };
        let (open, due) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            (
                store::payments::open_recharges(&mut tx).await?,
                store::payments::to_recharge(&mut tx, FAILURES).await?,
            )
        };
        // What nobody knows the end of is asked for again, under its own key.
        for row in open {
            if row.intent.is_some() {
                // It is under way at the bank; an event says what becomes of it.
                continue;
            }
            if row.created_at < self.context.now().plus_seconds(-KEY_S).micros() {
                self.recharge_failed(row, "Stripe did not say what became of it.").await?;
                continue;
            }
            self.charge_saved(&stripe, row).await?;
        }
        for profile in due {
            if let Some(row) = self.begin_recharge(&profile).await? {
                self.charge_saved(&stripe, row).await?;
            }
        }
        Ok(())
    }

    /// Records a recharge, unless one is open or the day has had enough of them.
    async fn begin_recharge(&self, profile: &ProfileRow) -> Result<Option<PaymentRow>, StoreError> {
        let now = self.context.now();
        let today = day_of(now) * 86_400_000_000;
        let row = PaymentRow {
            id: self.context.new_id::<PaymentId>(now).to_string(),
            org_id: profile.org_id.clone(),
            kind: "recharge".to_owned(),
            amount_micros: profile.amount_micros,
            invoice_id: None,
            state: PaymentState::Open.name().to_owned(),
            session: None,
            intent: None,
            created_by: "automatic recharge".to_owned(),
            created_at: now.micros(),
            done_at: None,
            failure: String::new(),
        };
        let (most, below) = (profile.most_a_day, profile.below_micros);
        self.context
            .db
            .write(move |tx| {
                let row = row.clone();
                async move {
                    let (count, open) = store::payments::recharges(tx, &row.org_id, today).await?;
                    // What was asked for a moment ago may have come meanwhile.
                    let org: OrgId = row.org_id.parse().map_err(|_| StoreError::Corrupt(row.id.clone()))?;
                    let enough = store::ledger::available(tx, org).await? >= below;
                    if open || enough || count >= most {
                        return Ok(None);
                    }
                    store::payments::insert(tx, &row).await?;
                    Ok(Some(row))
                }
                .boxed()
            })
            .await
    }

    async fn charge_saved(&self, stripe: &Stripe, mut row: PaymentRow) -> Result<(), StoreError> {
        let org: OrgId = row.org_id.parse().map_err(|_| StoreError::Corrupt(row.id.clone()))?;
        let profile = {
            let mut conn = self.context.db.read().await?;
            store::payments::find_profile(&mut conn.tx(), org).await?
        };
        let Some((customer, method)) = profile.and_then(|p| Some((p.customer, p.payment_method?))) else {
            return self.recharge_failed(row, "No card is saved any more.").await;
        };
        let currency = &self.context.settings.currency;
        let minor = row.amount_micros / minor_unit_micros(currency);
        match stripe.charge_saved(&row.id, (&customer, &method), (minor, currency)).await {
            Ok(intent) => {
                row.intent = Some(intent.id.clone());
                if intent.status == "succeeded" {
                    return self.paid(&row.id, &intent.id).await;
                }
                if intent.status == "processing" {
                    // An event will say what became of it.
                    return self.keep_payment(&row).await;
                }
                self.recharge_failed(row, "The bank wants the card's owner to confirm it.").await
            }
            Err(StripeError::Refused(why)) => self.recharge_failed(row, &why).await,
            Err(StripeError::Unknown(why)) => {
                tracing::warn!(
                    payment = row.id,
                    why,
                    "it is not known whether a card was charged; it is asked for again"
                );
                Ok(())
            }
        }
    }

    async fn recharge_failed(&self, mut row: PaymentRow, why: &str) -> Result<(), StoreError> {
        row.state = PaymentState::Failed.name().to_owned();
        row.failure = why.to_owned();
        row.done_at = Some(self.context.now().micros());
        let subject = "The saved card could not be charged".to_owned();
        let amount = money_text(row.amount_micros, &self.context.settings.currency);
        let detail = format!("{amount} were to be added to the balance. {why}");
        let data = serde_json::json!({"payment": row.id, "amount_micros": row.amount_micros});
        let notice = self.context.notice(&row.org_id, "invoice.payment_failed", subject, detail, &data);
        self.context
            .db
            .write(move |tx| {
                let (row, notice) = (row.clone(), notice.clone());
                async move {
                    let org: OrgId = row.org_id.parse().map_err(|_| StoreError::Corrupt(row.id.clone()))?;
                    let failures = store::payments::find_profile(tx, org).await?.map_or(0, |p| p.failures);
                    store::payments::set_failures(tx, &row.org_id, failures + 1).await?;
                    store::payments::update(tx, &row).await?;
                    store::budgets::insert_notice(tx, &notice).await
                }
                .boxed()
            })
            .await
    }
}

/// What an invoice owes, as its document says.
fn owed(document: &str) -> Result<InvoiceDocument, StoreError> {
    serde_json::from_str(document).map_err(|_| StoreError::Corrupt("invoice".to_owned()))
}
