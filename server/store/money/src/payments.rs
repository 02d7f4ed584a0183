//! Payments by card, payment profiles of organizations, and webhook events of Stripe.

use berth_types::ids::{InvoiceId, OrgId, PaymentId};
use berth_types::ledger::TransferKind;
use berth_types::lists::ListOptions;
use berth_types::payments::{AutoRecharge, PaymentState};
use berth_types::time::Timestamp;

use super::{StoreError, Tx};

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredProfile {
    pub org_id: OrgId,
    pub customer: String,
    pub payment_method: Option<String>,
    pub below_micros: i64,
    pub amount_micros: i64,
    pub most_a_day: i64,
    /// The number of consecutive failed recharges.
    pub failures: i64,
}

/// The origin of a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaymentKind {
    /// A person on the payment page.
    Checkout,
    /// The rule for automatic recharges.
    Recharge,
}

impl PaymentKind {
    pub const ALL: [Self; 2] = [Self::Checkout, Self::Recharge];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Checkout => "checkout",
            Self::Recharge => "recharge",
        }
    }
}

impl TryFrom<String> for PaymentKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == text);
        kind.ok_or_else(|| format!("{text:?} is no kind of a payment"))
    }
}

#[derive(Debug, Clone, sqlx::FromRow)]
pub struct StoredPayment {
    pub id: PaymentId,
    pub org_id: OrgId,
    #[sqlx(try_from = "String")]
    pub kind: PaymentKind,
    pub amount_micros: i64,
    pub invoice_id: Option<InvoiceId>,
    pub state: PaymentState,
    pub session: Option<String>,
    pub intent: Option<String>,
    pub created_by: String,
    pub created_at: Timestamp,
    pub done_at: Option<Timestamp>,
    pub failure: String,
}

macro_rules! select_payments {
    ($rest:literal) => {
        concat!(
            "SELECT id, org_id, kind, amount_micros, invoice_id, state, session, intent, created_by, created_at, done_at, \
             failure FROM payments ",
            $rest
        )
    };
}

pub async fn find_profile(tx: &mut Tx<'_>, org: OrgId) -> Result<Option<StoredProfile>, StoreError> {
    let sql = "SELECT org_id, customer, payment_method, below_micros, amount_micros, most_a_day, failures \
               FROM payment_profiles WHERE org_id = $1";
    find!(tx, StoredProfile, sql, org)
}

/// Stores the Stripe customer of an organization, unless one is stored.
pub async fn put_customer(tx: &mut Tx<'_>, org: OrgId, customer: &str) -> Result<(), StoreError> {
    let sql =
        "INSERT INTO payment_profiles (org_id, customer) VALUES ($1, $2) ON CONFLICT (org_id) DO NOTHING";
    exec!(tx, sql, org, customer).map(|_| ())
}

pub async fn set_method(tx: &mut Tx<'_>, org: OrgId, method: &str) -> Result<(), StoreError> {
    let sql = "UPDATE payment_profiles SET payment_method = $2, failures = 0 WHERE org_id = $1";
    exec!(tx, sql, org, method).map(|_| ())
}

/// Sets the rule for automatic recharges. Returns true if the organization has a saved card.
pub async fn set_recharge(tx: &mut Tx<'_>, org: OrgId, rule: AutoRecharge) -> Result<bool, StoreError> {
    let sql = "UPDATE payment_profiles SET below_micros = $2, amount_micros = $3, most_a_day = $4, failures = 0 \
               WHERE org_id = $1 AND payment_method IS NOT NULL";
    Ok(exec!(tx, sql, org, rule.below_micros, rule.amount_micros, rule.most_a_day)? == 1)
}

/// Removes the saved card and the rule for automatic recharges.
pub async fn forget_card(tx: &mut Tx<'_>, org: OrgId) -> Result<(), StoreError> {
    let sql = "UPDATE payment_profiles SET payment_method = NULL, amount_micros = 0 WHERE org_id = $1";
    exec!(tx, sql, org).map(|_| ())
}

pub async fn set_failures(tx: &mut Tx<'_>, org: OrgId, failures: i64) -> Result<(), StoreError> {
    exec!(tx, "UPDATE payment_profiles SET failures = $2 WHERE org_id = $1", org, failures).map(|_| ())
}

/// Lists the profiles with a saved card and a recharge rule whose available money is below the rule's
/// threshold.
pub async fn list_to_recharge(tx: &mut Tx<'_>, most_failures: i64) -> Result<Vec<StoredProfile>, StoreError> {
    let sql = "SELECT p.org_id, p.customer, p.payment_method, p.below_micros, p.amount_micros, p.most_a_day, p.failures \
               FROM payment_profiles p JOIN accounts a ON a.org_id = p.org_id \
               WHERE p.payment_method IS NOT NULL AND p.amount_micros > 0 AND p.failures < $1 AND \
               a.posted_micros - a.held_micros + a.credit_limit_micros < p.below_micros ORDER BY p.org_id";
    list!(tx, StoredProfile, sql, most_failures)
}

/// Counts the recharges of an organization since a time. The flag is true if a recharge is open.
pub async fn count_recharges(
    tx: &mut Tx<'_>,
    org: OrgId,
    since: Timestamp,
) -> Result<(i64, bool), StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(CASE WHEN created_at >= $2 THEN 1 ELSE 0 END), 0) AS BIGINT), \
               CAST(COALESCE(SUM(CASE WHEN state = 'open' THEN 1 ELSE 0 END), 0) AS BIGINT) \
               FROM payments WHERE org_id = $1 AND kind = 'recharge'";
    Ok(find!(tx, (i64, i64), sql, org, since)?.map_or((0, false), |(count, open)| (count, open > 0)))
}

pub async fn insert(tx: &mut Tx<'_>, row: &StoredPayment) -> Result<(), StoreError> {
    let sql = "INSERT INTO payments (id, org_id, kind, amount_micros, invoice_id, state, session, intent, created_by, \
               created_at, failure) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    exec!(
        tx,
        sql,
        row.id,
        row.org_id,
        row.kind.name(),
        row.amount_micros,
        row.invoice_id,
        row.state,
        &row.session,
        &row.intent,
        &row.created_by,
        row.created_at,
        &row.failure
    )
    .map(|_| ())
}

pub async fn find(tx: &mut Tx<'_>, id: PaymentId) -> Result<Option<StoredPayment>, StoreError> {
    find!(tx, StoredPayment, select_payments!("WHERE id = $1"), id)
}

pub async fn find_by_intent(tx: &mut Tx<'_>, intent: &str) -> Result<Option<StoredPayment>, StoreError> {
    find!(tx, StoredPayment, select_payments!("WHERE intent = $1 ORDER BY id LIMIT 1"), intent)
}

/// Lists a page of the payments of an organization by id.
pub async fn list(
    tx: &mut Tx<'_>,
    org: OrgId,
    options: &ListOptions<PaymentId>,
) -> Result<Vec<StoredPayment>, StoreError> {
    let sql = page_sql!(options.sort, [select_payments!("WHERE org_id = $1")], "id", "$2", "$3");
    list!(tx, StoredPayment, sql, org, options.cursor_text(), options.rows())
}

/// Lists the recharges without a known result.
pub async fn list_open_recharges(tx: &mut Tx<'_>) -> Result<Vec<StoredPayment>, StoreError> {
    list!(
        tx,
        StoredPayment,
        select_payments!("WHERE state = 'open' AND kind = 'recharge' ORDER BY id LIMIT 100")
    )
}

pub async fn update(tx: &mut Tx<'_>, row: &StoredPayment) -> Result<(), StoreError> {
    let sql =
        "UPDATE payments SET state = $2, session = $3, intent = $4, done_at = $5, failure = $6 WHERE id = $1";
    exec!(tx, sql, row.id, row.state, &row.session, &row.intent, row.done_at, &row.failure).map(|_| ())
}

/// Sums the transfers of one kind for an object at Stripe, in micros.
pub async fn posted(tx: &mut Tx<'_>, source_id: &str, kind: TransferKind) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COALESCE(SUM(amount_micros), 0) AS BIGINT) FROM transfers \
               WHERE source = 'stripe' AND source_id = $1 AND kind = $2";
    Ok(find!(tx, (i64,), sql, source_id, kind)?.map_or(0, |(n,)| n))
}

/// Stores an event of Stripe, unless it is stored.
pub async fn insert_event(
    tx: &mut Tx<'_>,
    id: &str,
    kind: &str,
    payload: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO stripe_events (id, kind, payload, received_at, tries, next_at) \
               VALUES ($1, $2, $3, $4, 0, $4) ON CONFLICT (id) DO NOTHING";
    exec!(tx, sql, id, kind, payload, now).map(|_| ())
}

/// Lists the due events: (id, kind, payload, tries).
pub async fn list_due_events(
    tx: &mut Tx<'_>,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<(String, String, String, i64)>, StoreError> {
    let sql = "SELECT id, kind, payload, tries FROM stripe_events WHERE done_at IS NULL AND next_at <= $1 \
               ORDER BY received_at, id LIMIT $2";
    list!(tx, (String, String, String, i64), sql, now, limit)
}

pub async fn mark_event_done(tx: &mut Tx<'_>, id: &str, now: Timestamp) -> Result<(), StoreError> {
    exec!(tx, "UPDATE stripe_events SET done_at = $2 WHERE id = $1", id, now).map(|_| ())
}

/// Records a failed try of an event and the time of its next try.
pub async fn postpone_event(tx: &mut Tx<'_>, id: &str, next_at: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE stripe_events SET tries = tries + 1, next_at = $2 WHERE id = $1";
    exec!(tx, sql, id, next_at).map(|_| ())
}
