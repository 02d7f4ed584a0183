//! Payments by card: a person pays on a page of Stripe, or a rule charges a saved card. The signed events of
//! Stripe decide the result (`events`), and the ledger records it.
//!
//! A payment is stored before the request to Stripe. Its id is the idempotency key, so a request without an
//! answer is repeated and charges nothing twice.

pub mod routes;

mod events;
mod pages;

use berth_types::Page;
use berth_types::ids::{InvoiceId, OrgId, PaymentId};
use berth_types::invoices::{InvoiceKind, InvoiceState};
use berth_types::lists::ListOptions;
use berth_types::money::money_text;
use berth_types::payments::{AutoRecharge, NewTopUp, PayHere, Payment, PaymentSettings, PaymentState};
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use futures::FutureExt;
use std::sync::Arc;

use berth_foundation::Context;
use berth_foundation::days::day_of;
use berth_foundation::{Caller, Right, idempotency};
use berth_store::payments::{PaymentKind, StoredPayment, StoredProfile};
use berth_store::{self as store, StoreError};
use berth_stripe::{Checkout, Stripe, StripeError, minor_unit_micros, payable_step_micros};

use pages::get_billing_page;

/// The smallest and the largest payment, in units of the currency.
const MIN_UNITS: i64 = 1;
const MAX_UNITS: i64 = 100_000;
/// Seconds during which a request may be repeated with its idempotency key. Stripe forgets a key after a day.
/// An event credits a payment that succeeds later.
const KEY_LIFETIME_S: i64 = 20 * 3_600;
/// Consecutive failures that stop automatic recharges until the rule is set again.
const MAX_FAILURES: i64 = 3;

fn cards_disabled() -> Problem {
    let detail = "This portal takes no cards. Ask the operator for credit.";
    Problem::new(409, "payments.off", "Card payments disabled", detail)
}

fn stripe_problem(error: &StripeError) -> Problem {
    match error {
        StripeError::Refused(why) => {
            Problem::new(402, "payments.refused", "Payment refused", format!("Answer of Stripe: {why}"))
        }
        StripeError::Unknown(_) => Problem::unavailable(
            "Stripe does not answer. This request charged nothing. Try again in a moment.",
            5,
        ),
    }
}

/// Cards, invoices paid by card and automatic recharge.
#[derive(Clone)]
pub struct Payments {
    context: Context,
    /// `None` if this portal takes no cards.
    stripe: Option<Arc<Stripe>>,
}

impl Payments {
    pub const fn new(context: Context, stripe: Option<Arc<Stripe>>) -> Self {
        Self { context, stripe }
    }

    /// True if this portal takes cards.
    pub const fn enabled(&self) -> bool {
        self.stripe.is_some()
    }

    fn require_stripe(&self) -> Result<&Stripe, Problem> {
        self.stripe.as_deref().ok_or_else(cards_disabled)
    }

    pub async fn payment_settings(&self, caller: &Caller, org: OrgId) -> Result<PaymentSettings, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
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

    /// Checks an amount: between one and a hundred thousand units, in whole payable steps.
    fn check_amount(&self, pointer: &str, micros: i64) -> Option<FieldError> {
        let step = payable_step_micros(&self.context.settings.currency);
        let whole = micros % step == 0;
        let inside = (MIN_UNITS * 1_000_000..=MAX_UNITS * 1_000_000).contains(&micros);
        let currency = &self.context.settings.currency;
        (!whole || !inside).then(|| {
            let detail = format!(
                "Enter {} to {}, in steps of {}.",
                money_text(MIN_UNITS * 1_000_000, currency),
                money_text(MAX_UNITS * 1_000_000, currency),
                money_text(step, currency)
            );
            FieldError::new(pointer, detail)
        })
    }

    /// Begins a payment for the balance and returns the address of its page.
    pub async fn top_up(&self, caller: &Caller, org: OrgId, input: NewTopUp) -> Result<PayHere, Problem> {
        self.context.authorise(caller, org, Right::Pay).await?;
        self.require_stripe()?;
        if let Some(error) = self.check_amount("/amount_micros", input.amount_micros) {
            return Err(Problem::invalid(vec![error]));
        }
        self.checkout(caller, org, input.amount_micros, None, input.save_card, "Berth credit").await
    }

    /// Begins the payment of an open invoice and returns the address of its page.
    ///
    /// # Errors
    /// The invoice is not open, or its total is below the smallest payable amount.
    pub async fn pay_invoice_by_card(
        &self,
        caller: &Caller,
        org: OrgId,
        id: InvoiceId,
    ) -> Result<PayHere, Problem> {
        self.context.authorise(caller, org, Right::Pay).await?;
        self.require_stripe()?;
        let mut conn = self.context.db.read().await?;
        let row = store::invoices::find_any(&mut conn.tx(), id).await?;
        drop(conn);
        let row = row.filter(|r| r.org_id == org).ok_or_else(Problem::not_found)?;
        if row.kind != InvoiceKind::Invoice || row.state != InvoiceState::Open {
            let detail = format!(
                "The invoice is {}. Only an open invoice can be paid. Nothing was charged.",
                row.state.name()
            );
            return Err(Problem::conflict("invoice.closed", "Invoice not open", detail));
        }
        // A card payment has whole steps. The remainder is waived.
        let step = payable_step_micros(&self.context.settings.currency);
        let amount = row.total_micros / step * step;
        if amount <= 0 {
            let detail =
                "The amount is below the smallest card payment. Ask the operator to close the invoice.";
            return Err(Problem::conflict("invoice.too_small", "Invoice too small", detail));
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
        item_name: &str,
    ) -> Result<PayHere, Problem> {
        let stripe = self.require_stripe()?;
        let customer = self.customer(stripe, org).await?;
        let page = get_billing_page(&self.context, org).await?;
        let now = self.context.now();
        let new = StoredPayment {
            id: self.context.new_id(now),
            org_id: org,
            kind: PaymentKind::Checkout,
            amount_micros,
            invoice_id: invoice,
            state: PaymentState::Open,
            session: None,
            intent: None,
            created_by: caller.user.name.clone(),
            created_at: now,
            done_at: None,
            failure: String::new(),
        };
        let mut row = match caller.already_created() {
            Some(id) => self.get_begun_payment(id).await?,
            None => self.begin_checkout(caller, new).await?,
        };
        let payment = row.id;
        let currency = &self.context.settings.currency;
        let back = |state: &str| format!("{page}?payment={state}");
        let session = stripe
            .create_checkout(&Checkout {
                payment: &payment.to_string(),
                customer: &customer,
                item_name,
                minor_units: amount_micros / minor_unit_micros(currency),
                currency,
                save_card,
                success_url: back("done"),
                cancel_url: back("cancelled"),
            })
            .await;
        match session {
            Ok(session) => {
                // After the first page only the events of Stripe decide the state of the payment.
                if row.session.is_none() {
                    row.session = Some(session.id);
                    row.state = PaymentState::Open;
                    row.failure = String::new();
                    self.update_payment(&row).await?;
                }
                let url = session.url.ok_or_else(Problem::internal)?;
                Ok(PayHere { payment, url })
            }
            Err(error) => {
                // Without a page nobody can pay, so the payment has failed.
                if row.session.is_none() {
                    row.state = PaymentState::Failed;
                    row.failure = "Stripe returned no payment page.".to_owned();
                    self.update_payment(&row).await?;
                }
                Err(stripe_problem(&error))
            }
        }
    }

    async fn begin_checkout(&self, caller: &Caller, row: StoredPayment) -> Result<StoredPayment, StoreError> {
        let (key, now) = (caller.idempotency_key.clone(), self.context.now());
        self.context
            .db
            .write(move |tx| {
                let (row, key) = (row.clone(), key.clone());
                async move {
                    idempotency::claim(tx, key.as_ref(), &row.id.to_string(), now).await?;
                    store::payments::insert(tx, &row).await?;
                    Ok(row)
                }
                .boxed()
            })
            .await
    }

    /// The payment of an earlier request with the same idempotency key. Stripe returns the same page for it.
    ///
    /// # Errors
    /// The payment has ended, or its key at Stripe may be forgotten.
    async fn get_begun_payment(&self, id: &str) -> Result<StoredPayment, Problem> {
        let id: PaymentId = id.parse().map_err(|_| Problem::internal())?;
        let mut conn = self.context.db.read().await?;
        let row = store::payments::find(&mut conn.tx(), id).await?.ok_or_else(Problem::not_found)?;
        let open = row.state == PaymentState::Open;
        let decided = row.state == PaymentState::Paid || (row.session.is_some() && !open);
        if decided || row.created_at < self.context.now().plus_seconds(-KEY_LIFETIME_S) {
            let detail = "The payment with this Idempotency-Key has ended or is too old. The list of payments has its result. Use a new key for a new payment.";
            return Err(Problem::conflict("payments.over", "Payment ended", detail));
        }
        Ok(row)
    }

    async fn update_payment(&self, row: &StoredPayment) -> Result<(), StoreError> {
        let row = row.clone();
        self.context
            .db
            .write(move |tx| {
                let row = row.clone();
                async move { store::payments::update(tx, &row).await }.boxed()
            })
            .await
    }

    /// The id of an organization's customer at Stripe. Creates the customer on first use.
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
        let customer =
            stripe.create_customer(&org.to_string(), &name).await.map_err(|e| stripe_problem(&e))?;
        let stored = self.context.db.write(move |tx| {
            let id = customer.id.clone();
            async move {
                store::payments::put_customer(tx, org, &id).await?;
                let profile = store::payments::find_profile(tx, org).await?;
                profile.map(|p| p.customer).ok_or(StoreError::Unknown)
            }
            .boxed()
        });
        Ok(stored.await?)
    }

    /// The address of a page at Stripe with receipts and cards.
    pub async fn billing_portal(&self, caller: &Caller, org: OrgId) -> Result<String, Problem> {
        self.context.authorise(caller, org, Right::Pay).await?;
        let stripe = self.require_stripe()?;
        let customer = self.customer(stripe, org).await?;
        let key: PaymentId = self.context.new_id(self.context.now());
        let back = get_billing_page(&self.context, org).await?;
        let session = stripe.create_portal(&customer, &back, &key.to_string()).await;
        session.map_err(|e| stripe_problem(&e))?.url.ok_or_else(Problem::internal)
    }

    /// Sets the rule for automatic charges of the saved card.
    ///
    /// # Errors
    /// No card is saved, or a number is out of its range.
    pub async fn set_auto_recharge(
        &self,
        caller: &Caller,
        org: OrgId,
        rule: AutoRecharge,
    ) -> Result<PaymentSettings, Problem> {
        self.context.authorise(caller, org, Right::Pay).await?;
        self.context.check_proof(caller)?;
        self.require_stripe()?;
        let mut errors = Vec::new();
        let is_on = rule.amount_micros != 0;
        if is_on {
            errors.extend(self.check_amount("/amount_micros", rule.amount_micros));
        }
        if !(0..=MAX_UNITS * 1_000_000).contains(&rule.below_micros) {
            let most = money_text(MAX_UNITS * 1_000_000, &self.context.settings.currency);
            let detail = format!("Enter a threshold from zero to {most}.");
            errors.push(FieldError::new("/below_micros", detail));
        }
        if !(i64::from(is_on)..=24).contains(&rule.most_a_day) {
            errors.push(FieldError::new("/most_a_day", "Enter 1 to 24 a day."));
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let known = self
            .context
            .db
            .write(move |tx| async move { store::payments::set_recharge(tx, org, rule).await }.boxed());
        if !known.await? && rule.amount_micros != 0 {
            let detail = "Add credit by card once and save the card. Then automatic recharge can use it.";
            return Err(Problem::conflict("payments.no_card", "No saved card", detail));
        }
        self.payment_settings(caller, org).await
    }

    pub async fn list_payments(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<PaymentId>,
    ) -> Result<Page<Payment>, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::payments::list(&mut conn.tx(), org, options).await?;
        let payment = |row: StoredPayment| Payment {
            id: row.id,
            state: row.state,
            kind: row.kind.name().to_owned(),
            amount_micros: row.amount_micros,
            currency: self.context.settings.currency.clone(),
            created_at: row.created_at,
            created_by: row.created_by,
            done_at: row.done_at,
            failure: row.failure,
        };
        Ok(options.page(rows, |row| row.id).map(payment))
    }

    /// Applies stored events of Stripe and charges saved cards by their rules.
    pub async fn tick_payments(&self) -> Result<(), StoreError> {
        self.process_events().await?;
        let Some(stripe) = self.stripe.clone() else { return Ok(()) };
        let (open, due) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            (
                store::payments::list_open_recharges(&mut tx).await?,
                store::payments::list_to_recharge(&mut tx, MAX_FAILURES).await?,
            )
        };
        // A recharge with an unknown outcome is requested again with its own key.
        for row in open {
            if row.intent.is_some() {
                // The bank has the payment. An event will report the result.
                continue;
            }
            if row.created_at < self.context.now().plus_seconds(-KEY_LIFETIME_S) {
                self.recharge_failed(row, "Stripe did not report the result.").await?;
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

    /// Stores a recharge. `None` if one is open, the daily limit is reached or the balance suffices.
    async fn begin_recharge(&self, profile: &StoredProfile) -> Result<Option<StoredPayment>, StoreError> {
        let now = self.context.now();
        let today = Timestamp::from_micros(day_of(now) * 86_400_000_000);
        let row = StoredPayment {
            id: self.context.new_id(now),
            org_id: profile.org_id,
            kind: PaymentKind::Recharge,
            amount_micros: profile.amount_micros,
            invoice_id: None,
            state: PaymentState::Open,
            session: None,
            intent: None,
            created_by: "automatic recharge".to_owned(),
            created_at: now,
            done_at: None,
            failure: String::new(),
        };
        let (most, below) = (profile.most_a_day, profile.below_micros);
        self.context
            .db
            .write(move |tx| {
                let row = row.clone();
                async move {
                    let (count, open) = store::payments::count_recharges(tx, row.org_id, today).await?;
                    // A payment may have arrived since the rule was read.
                    let suffices = store::ledger::available(tx, row.org_id).await? >= below;
                    if open || suffices || count >= most {
                        return Ok(None);
                    }
                    store::payments::insert(tx, &row).await?;
                    Ok(Some(row))
                }
                .boxed()
            })
            .await
    }

    async fn charge_saved(&self, stripe: &Stripe, mut row: StoredPayment) -> Result<(), StoreError> {
        let profile = {
            let mut conn = self.context.db.read().await?;
            store::payments::find_profile(&mut conn.tx(), row.org_id).await?
        };
        let Some((customer, method)) = profile.and_then(|p| Some((p.customer, p.payment_method?))) else {
            return self.recharge_failed(row, "There is no saved card.").await;
        };
        let currency = &self.context.settings.currency;
        let minor = row.amount_micros / minor_unit_micros(currency);
        match stripe.charge_saved(&row.id.to_string(), (&customer, &method), (minor, currency)).await {
            Ok(intent) => {
                row.intent = Some(intent.id.clone());
                if intent.status == "succeeded" {
                    return self.credit_paid(row.id, &intent.id).await;
                }
                if intent.status == "processing" {
                    // An event will report the result.
                    return self.update_payment(&row).await;
                }
                self.recharge_failed(row, "The bank requires a confirmation by the cardholder.").await
            }
            Err(StripeError::Refused(why)) => self.recharge_failed(row, &why).await,
            Err(StripeError::Unknown(why)) => {
                tracing::warn!(
                    payment = %row.id,
                    why,
                    "the result of a card charge is unknown; trying again"
                );
                Ok(())
            }
        }
    }

    async fn recharge_failed(&self, mut row: StoredPayment, why: &str) -> Result<(), StoreError> {
        row.state = PaymentState::Failed;
        row.failure = why.to_owned();
        row.done_at = Some(self.context.now());
        let subject = "Charge of the saved card failed".to_owned();
        let amount = money_text(row.amount_micros, &self.context.settings.currency);
        let detail = format!("Automatic recharge of {amount} failed; the balance did not change. {why}");
        let data = serde_json::json!({"payment": row.id, "amount_micros": row.amount_micros});
        let notice = self.context.notice(row.org_id, "invoice.payment_failed", subject, detail, &data);
        self.context
            .db
            .write(move |tx| {
                let (row, notice) = (row.clone(), notice.clone());
                async move {
                    let profile = store::payments::find_profile(tx, row.org_id).await?;
                    let failures = profile.map_or(0, |p| p.failures);
                    store::payments::set_failures(tx, row.org_id, failures + 1).await?;
                    store::payments::update(tx, &row).await?;
                    store::budgets::insert_notice(tx, &notice).await
                }
                .boxed()
            })
            .await
    }
}
