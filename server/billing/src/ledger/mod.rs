//! The ledger of organizations: grants of credit, debits, credit limits, balances and statements.

pub mod routes;

use berth_core::admission::amount_text;
use berth_types::Page;
use berth_types::change_requests::{ChangeAction, ChangeRequest, Outcome};
use berth_types::ids::{ChangeRequestId, OrgId, TransferId};
use berth_types::ledger::{
    Balance, CreditLimit, ExpiringCredit, NewCredit, NewDebit, Transfer, TransferKind,
};
use berth_types::lists::ListOptions;
use berth_types::money::{money_text, per_hour_micros};
use berth_types::operators::OperatorRight;
use berth_types::overview::OrgWithoutCredit;
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::{Caller, Right, idempotency};
use berth_foundation::{Context, Gate, OperatorAct};
use berth_store as store;
use berth_store::ledger::{Posting, StoredTransfer};

mod batch;
mod currency;
mod orgs;

pub use currency::parse_currency;

/// The largest grant or debit: a billion units of the currency.
const MAX_GRANT_MICROS: i64 = 1_000_000_000_000_000;
/// The longest time until the expiry of credit: ten years, with three leap days.
const MAX_EXPIRY_S: i64 = 3_653 * 86_400;
/// The number of expiring credits in the answer with a balance.
const MAX_EXPIRING: i64 = 20;

/// Credit, balances and statements.
#[derive(Clone)]
pub struct Ledger {
    context: Context,
}

impl Ledger {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// Grants credit to an organization, as an operator. `approved` is the change request that the caller approves.
    pub async fn grant_credit(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewCredit,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Balance>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        let gate = Gate::new(&self.context, caller, approved, &input)?;
        if !(1..=MAX_GRANT_MICROS).contains(&input.amount_micros) {
            let detail = amount_text(1, MAX_GRANT_MICROS, &self.context.settings.currency);
            return Err(Problem::invalid_field("/amount_micros", detail));
        }
        if input.memo.chars().count() > 200 || input.memo.chars().any(char::is_control) {
            return Err(Problem::invalid_field("/memo", "Use at most 200 printable characters."));
        }
        let now = self.context.now();
        let expires_at = input.expires_at;
        if expires_at.is_some_and(|at| at <= now || at > now.plus_seconds(MAX_EXPIRY_S)) {
            let detail = "Choose an expiry later than now and within ten years.";
            return Err(Problem::invalid_field("/expires_at", detail));
        }
        let id: TransferId = self.context.new_id(now);
        let posting = Posting {
            id,
            org,
            kind: TransferKind::Credit,
            amount_micros: input.amount_micros,
            pending: None,
            source: "grant",
            source_id: id.to_string(),
            seq: 1,
            memo: if input.memo.trim().is_empty() {
                "Credit from the operator".to_owned()
            } else {
                input.memo
            },
            at: now,
        };
        let amount = money_text(posting.amount_micros, &self.context.settings.currency);
        let until = expires_at.map_or_else(String::new, |at| format!(" until {}", at.minute()));
        let detail = format!("{amount}{until}: {}", posting.memo);
        let event = self.context.audit_event(caller, "credit.granted", org.to_string(), detail);
        self.post_for(caller, org, (posting, expires_at), (event, gate)).await
    }

    /// Debits an organization, as an operator: a refund or a correction. `approved` is the change request that the
    /// caller approves.
    ///
    /// # Errors
    /// The amount is more than the available amount.
    pub async fn debit(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewDebit,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Balance>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        let gate = Gate::new(&self.context, caller, approved, &input)?;
        if !(1..=MAX_GRANT_MICROS).contains(&input.amount_micros) {
            let detail = amount_text(1, MAX_GRANT_MICROS, &self.context.settings.currency);
            return Err(Problem::invalid_field("/amount_micros", detail));
        }
        let memo = input.memo.trim().to_owned();
        if memo.is_empty() || input.memo.chars().count() > 200 || memo.chars().any(char::is_control) {
            return Err(Problem::invalid_field(
                "/memo",
                "Enter a reason of at most 200 printable characters.",
            ));
        }
        let now = self.context.now();
        let id: TransferId = self.context.new_id(now);
        let posting = Posting {
            id,
            org,
            kind: TransferKind::Debit,
            amount_micros: input.amount_micros,
            pending: None,
            source: "debit",
            source_id: id.to_string(),
            seq: 1,
            memo,
            at: now,
        };
        let amount = money_text(posting.amount_micros, &self.context.settings.currency);
        let event = self.context.audit_event(
            caller,
            "credit.taken_back",
            org.to_string(),
            format!("{amount}: {}", posting.memo),
        );
        self.post_for(caller, org, (posting, None), (event, gate)).await
    }

    /// The balance after an act of an operator, or the change request in its place.
    async fn outcome(
        &self,
        org: OrgId,
        requested: Option<Box<ChangeRequest>>,
    ) -> Result<Outcome<Balance>, Problem> {
        match requested {
            Some(request) => Ok(Outcome::Requested(request)),
            None => self.balance_of(org).await.map(Outcome::Done),
        }
    }

    /// Posts a transfer with its audit event, once per idempotency key.
    async fn post_for(
        &self,
        caller: &Caller,
        org: OrgId,
        (posting, expires_at): (Posting, Option<Timestamp>),
        (event, gate): (AuditEvent, Gate),
    ) -> Result<Outcome<Balance>, Problem> {
        if caller.already_created().is_some() {
            return self.outcome(org, Gate::find_requested(&self.context, caller).await?).await;
        }
        let key = caller.idempotency_key.clone();
        let is_debit = posting.kind == TransferKind::Debit;
        let act = OperatorAct {
            action: if is_debit { ChangeAction::Debit } else { ChangeAction::GrantCredit },
            org: Some(org),
            target: org.to_string(),
            amount_micros: Some(posting.amount_micros),
            reason: posting.memo.clone(),
            detail: event.detail.clone(),
        };
        let done = self
            .context
            .db
            .try_write(move |tx| {
                let (posting, event, key) = (posting.clone(), event.clone(), key.clone());
                let (gate, act) = (gate.clone(), act.clone());
                async move {
                    if store::accounts::find_org(tx, org).await?.is_none() {
                        return Err(Problem::not_found().into());
                    }
                    let available = store::ledger::available(tx, org).await?;
                    if posting.kind == TransferKind::Debit && posting.amount_micros > available {
                        let detail = "The amount exceeds the available credit. Money reserved for jobs and reservations cannot be debited. Nothing was changed.";
                        let title = "Not enough credit";
                        return Err(Problem::new(402, "funds.insufficient", title, detail).into());
                    }
                    if let Some(request) = gate.pass(tx, &act).await? {
                        return Ok(Some(request));
                    }
                    idempotency::claim(tx, key.as_ref(), "", posting.at).await?;
                    store::ledger::post(tx, &posting).await?;
                    if let Some(at) = expires_at {
                        store::ledger::lots::insert(tx, &posting, at).await?;
                    }
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                    Ok(None)
                }
                .boxed()
            });
        self.outcome(org, done.await?).await
    }

    /// Sets the permitted debt of an organization. With a limit above zero it pays by invoice. `approved` is the change
    /// request that the caller approves.
    ///
    /// # Errors
    /// The new limit is below the present debt and holds.
    pub async fn set_credit_limit(
        &self,
        caller: &Caller,
        org: OrgId,
        input: CreditLimit,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Balance>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        let gate = Gate::new(&self.context, caller, approved, &input)?;
        let micros = input.credit_limit_micros;
        if !(0..=MAX_GRANT_MICROS).contains(&micros) {
            let detail = amount_text(0, MAX_GRANT_MICROS, &self.context.settings.currency);
            return Err(Problem::invalid_field("/credit_limit_micros", detail));
        }
        let currency = self.context.settings.currency.clone();
        let limit = money_text(micros, &currency);
        let event = self.context.audit_event(caller, "credit_limit.set", org.to_string(), limit);
        let done = self.context.db.try_write(move |tx| {
            let (event, gate, currency) = (event.clone(), gate.clone(), currency.clone());
            async move {
                if store::accounts::find_org(tx, org).await?.is_none() {
                    return Err(Problem::not_found().into());
                }
                let (posted, held) = store::ledger::balance(tx, org).await?;
                if posted - held + micros < 0 {
                    let detail = "The organization already owes more than this limit. Nothing was changed. Lower the limit after a payment.";
                    let title = "Credit limit in use";
                    return Err(Problem::conflict("credit_limit.drawn", title, detail).into());
                }
                let before = store::ledger::credit_limit(tx, org).await?;
                let act = OperatorAct {
                    action: ChangeAction::SetCreditLimit,
                    org: Some(org),
                    target: org.to_string(),
                    amount_micros: Some(micros),
                    reason: String::new(),
                    detail: format!("from {} to {}", money_text(before, &currency), event.detail),
                };
                if let Some(request) = gate.pass(tx, &act).await? {
                    return Ok(Some(request));
                }
                store::ledger::set_credit_limit(tx, org, micros).await?;
                let [before, after] =
                    [before, micros].map(|micros| format!("{{\"credit_limit_micros\":{micros}}}"));
                let event = event.with_change(Some(before), Some(after));
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(None)
            }
            .boxed()
        });
        self.outcome(org, done.await?).await
    }

    pub async fn balance(&self, caller: &Caller, org: OrgId) -> Result<Balance, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        self.balance_of(org).await
    }

    async fn balance_of(&self, org: OrgId) -> Result<Balance, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let (posted, held) = store::ledger::balance(&mut tx, org).await?;
        let credit_limit_micros = store::ledger::credit_limit(&mut tx, org).await?;
        let (accrued, rate) = store::jobs::open_use(&mut tx, org).await?;
        let expiring =
            store::ledger::lots::list_expiring(&mut tx, org, self.context.now(), MAX_EXPIRING).await?;
        let expiring = expiring
            .into_iter()
            .map(|(amount_micros, expires_at)| ExpiringCredit { amount_micros, expires_at });
        Ok(Balance {
            currency: self.context.settings.currency.clone(),
            posted_micros: posted,
            held_micros: held,
            accrued_micros: accrued,
            credit_limit_micros,
            available_micros: posted - held + credit_limit_micros,
            burn_per_hour_micros: per_hour_micros(rate).unwrap_or(i64::MAX),
            expiring: expiring.collect(),
        })
    }

    /// A page of the transfers of an organization.
    pub async fn list_transfers(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<TransferId>,
    ) -> Result<Page<Transfer>, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::ledger::list(&mut conn.tx(), org, options).await?;
        Ok(options.page(rows, |row| row.id).map(|row| self.transfer(row)))
    }

    /// The number of organizations without available money, and at most `limit` of them, the lowest amount
    /// first, for an operator.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn list_orgs_without_credit(
        &self,
        caller: &Caller,
        limit: usize,
    ) -> Result<(u64, Vec<OrgWithoutCredit>), Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut conn = self.context.db.read().await?;
        let (count, rows) = store::ledger::list_without_credit(&mut conn.tx(), limit).await?;
        let row = |(org, org_name, available_micros)| OrgWithoutCredit { org, org_name, available_micros };
        Ok((u64::try_from(count).unwrap_or(0), rows.into_iter().map(row).collect()))
    }

    fn transfer(&self, row: StoredTransfer) -> Transfer {
        let sign = if matches!(row.kind, TransferKind::Credit | TransferKind::Release) { 1 } else { -1 };
        Transfer {
            id: row.id,
            kind: row.kind,
            amount_micros: sign * row.amount_micros,
            currency: self.context.settings.currency.clone(),
            source: row.source,
            source_id: row.source_id,
            memo: row.memo,
            at: row.at,
            expires_at: row.expires_at,
        }
    }
}
