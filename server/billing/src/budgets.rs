//! What may be spent in a month: told at thresholds, and kept where that is wanted.
//!
//! A budget that refuses counts what runs, waits and is reserved at its longest, so what runs can never
//! exceed it.

use std::collections::BTreeMap;

use berth_types::Page;
use berth_types::budgets::{AtLimit, Budget, NewBudget};
use berth_types::ids::{BudgetId, JobId, OrgId};
use berth_types::money::money_text;
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::Context;
use berth_foundation::days::{day_of, month_of};
use berth_foundation::{Caller, Right, idempotency};
use berth_store::budgets::BudgetRow;
use berth_store::{self as store, StoreError, Tx};

/// Of what is spent, in percent.
const THRESHOLDS: [i64; 3] = [100, 75, 50];
const MOST: usize = 100;
const MAX_MICROS: i64 = 1_000_000_000_000_000;

/// The first day of the month, and today.
fn days(now: Timestamp) -> (i64, i64) {
    let first = format!("{}-01T00:00:00Z", month_of(now)).parse().map_or(now, |t: Timestamp| t);
    (day_of(first), day_of(now))
}

/// The begin of a month and of the next one.
fn month_around(at: Timestamp) -> (Timestamp, Timestamp) {
    let (first, _) = days(at);
    let next = (first + 28..first + 32).find(|day| month_of(at_day(*day)) != month_of(at));
    (at_day(first), at_day(next.unwrap_or(first + 31)))
}

/// The begin of a day.
fn at_day(day: i64) -> Timestamp {
    Timestamp::from_micros(day.saturating_mul(86_400_000_000))
}

fn in_scope(row: &BudgetRow, labels: &BTreeMap<String, String>) -> bool {
    row.label.is_empty() || labels.get(&row.label) == Some(&row.value)
}

/// What a budget's month has come to.
struct Standing {
    /// Charged, and used but not charged yet.
    spent: i64,
    /// Held beyond that, at its longest.
    committed: i64,
    jobs: Vec<JobId>,
}

/// A job that has not ended: id, labels, held, used but not charged yet.
type OpenJob = (JobId, BTreeMap<String, String>, i64, i64);

async fn open_jobs(tx: &mut Tx<'_>, org: &str) -> Result<Vec<OpenJob>, StoreError> {
    let rows = store::budgets::open_jobs(tx, org).await?;
    rows.into_iter()
        .map(|(id, labels, held, accrued)| {
            let job = id.parse().map_err(|_| StoreError::Corrupt(id.clone()))?;
            Ok((job, serde_json::from_str(&labels).unwrap_or_default(), held, accrued))
        })
        .collect()
}

async fn standing(
    tx: &mut Tx<'_>,
    row: &BudgetRow,
    open: &[OpenJob],
    (now, at): (Timestamp, Timestamp),
) -> Result<Standing, StoreError> {
    let (first, next) = month_around(at);
    // What began earlier still holds something.
    let from = if month_of(at) == month_of(now) { Timestamp::from_micros(0) } else { first };
    let scope = (row.label.as_str(), row.value.as_str());
    let mut out = Standing {
        spent: store::budgets::spent(tx, &row.org_id, scope, days(at)).await?,
        committed: 0,
        jobs: Vec::new(),
    };
    for (job, _, held, accrued) in open.iter().filter(|(_, labels, ..)| in_scope(row, labels)) {
        out.spent += accrued;
        out.committed += held - accrued;
        out.jobs.push(*job);
    }
    if row.label.is_empty() {
        out.committed += store::budgets::reserved(tx, &row.org_id, (from, next)).await?;
    }
    Ok(out)
}

/// Costs by the month in which each begins: the first begin, and the sum.
pub fn by_month(costs: impl Iterator<Item = (Timestamp, i64)>) -> Vec<(Timestamp, i64)> {
    let mut months: BTreeMap<String, (Timestamp, i64)> = BTreeMap::new();
    for (begins, micros) in costs {
        let month = months.entry(month_of(begins)).or_insert((begins, 0));
        *month = (month.0.min(begins), month.1.saturating_add(micros));
    }
    months.into_values().collect()
}

/// The budget that something new would exceed at its longest. What begins in a later month is of that
/// month's budget (`begins`).
pub async fn exceeded(
    tx: &mut Tx<'_>,
    org: OrgId,
    labels: &BTreeMap<String, String>,
    worst_micros: i64,
    currency: &str,
    (now, begins): (Timestamp, Timestamp),
) -> Result<Option<Problem>, StoreError> {
    let at = begins.max(now);
    let mut rows = store::budgets::list(tx, &org.to_string()).await?;
    rows.retain(|row| row.at_limit != AtLimit::Notify.name() && in_scope(row, labels));
    // Read once for all of them.
    let later = rows.is_empty() || month_of(at) != month_of(now);
    let open = if later { Vec::new() } else { open_jobs(tx, &org.to_string()).await? };
    for row in rows {
        let standing = standing(tx, &row, &open, (now, at)).await?;
        let left = row.limit_micros - standing.spent - standing.committed;
        if worst_micros > left {
            let detail = format!(
                "This can cost {} at its longest, and of the budget {} ({} a month) {} is left after what is spent and set aside. Shorten it, or raise the budget.",
                money_text(worst_micros, currency),
                row.name,
                money_text(row.limit_micros, currency),
                money_text(left.max(0), currency)
            );
            return Ok(Some(Problem::new(403, "budget.exceeded", "Beyond a budget", detail)));
        }
    }
    Ok(None)
}

/// The outcome of a check of all budgets.
#[derive(Debug, Default)]
pub struct Checked {
    /// The jobs that a spent budget stops, each with the reason.
    pub stopped: Vec<(JobId, String)>,
    /// The first failure.
    pub failed: Option<StoreError>,
}

/// The budgets of organizations.
#[derive(Clone)]
pub struct Budgets {
    context: Context,
}

impl Budgets {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    pub async fn create_budget(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewBudget,
    ) -> Result<Budget, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        if let Some(made) = caller.done_before() {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let rows = store::budgets::list(&mut tx, &org.to_string()).await?;
            let row = rows.into_iter().find(|row| row.id == made).ok_or_else(Problem::not_found)?;
            return Ok(self.budget(&mut tx, row).await?);
        }
        let mut errors = Vec::new();
        berth_core::admission::check_name("/name", &input.name, &mut errors);
        if !(1..=MAX_MICROS).contains(&input.limit_micros) {
            errors.push(FieldError::new("/limit_micros", "Choose more than zero and at most a billion."));
        }
        if input.label.is_empty() != input.value.is_empty() {
            errors.push(FieldError::new("/value", "Give a label with its value, or neither."));
        }
        if input.label.len() > 63 || input.value.len() > 63 {
            errors.push(FieldError::new("/label", "A label's key and value have at most 63 characters."));
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let row = BudgetRow {
            id: self.context.new_id::<BudgetId>(now).to_string(),
            org_id: org.to_string(),
            name: input.name.trim().to_owned(),
            label: input.label,
            value: input.value,
            limit_micros: input.limit_micros,
            at_limit: input.at_limit.name().to_owned(),
            told: 0,
            told_month: String::new(),
            created_by: caller.user.name.clone(),
            created_at: now.micros(),
        };
        let event = self.context.audit_event(
            caller,
            "budget.created",
            row.id.clone(),
            format!("{}: {}", row.name, money_text(row.limit_micros, &self.context.settings.currency)),
        );
        let (new, once) = (row.clone(), caller.once.clone());
        let done = self.context.db.write(move |tx| {
            let (row, event, once) = (new.clone(), event.clone(), once.clone());
            async move {
                if store::budgets::list(tx, &row.org_id).await?.len() >= MOST {
                    return Ok(Some(Problem::invalid_field(
                        "/name",
                        "An organization has at most 100 budgets.",
                    )));
                }
                idempotency::claim(tx, once.as_ref(), &row.id, now).await?;
                store::budgets::insert(tx, &row).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(None)
            }
            .boxed()
        });
        if let Some(problem) = done.await? {
            return Err(problem);
        }
        let mut conn = self.context.db.read().await?;
        Ok(self.budget(&mut conn.tx(), row).await?)
    }

    async fn budget(&self, tx: &mut Tx<'_>, row: BudgetRow) -> Result<Budget, StoreError> {
        let now = self.context.now();
        let open = open_jobs(tx, &row.org_id).await?;
        let standing = standing(tx, &row, &open, (now, now)).await?;
        let corrupt = || StoreError::Corrupt(row.id.clone());
        Ok(Budget {
            id: row.id.parse().map_err(|_| corrupt())?,
            at_limit: AtLimit::parse(&row.at_limit).ok_or_else(corrupt)?,
            passed_percent: if row.told_month == month_of(now) { row.told } else { 0 },
            name: row.name,
            label: row.label,
            value: row.value,
            limit_micros: row.limit_micros,
            currency: self.context.settings.currency.clone(),
            spent_micros: standing.spent,
            committed_micros: standing.committed,
            created_at: Timestamp::from_micros(row.created_at),
            created_by: row.created_by,
        })
    }

    pub async fn list_budgets(&self, caller: &Caller, org: OrgId) -> Result<Page<Budget>, Problem> {
        self.context.authorise(caller, org, Right::SeeMoney).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let mut items = Vec::new();
        for row in store::budgets::list(&mut tx, &org.to_string()).await? {
            items.push(self.budget(&mut tx, row).await?);
        }
        Ok(Page::whole(items))
    }

    pub async fn delete_budget(&self, caller: &Caller, org: OrgId, id: BudgetId) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let event = self.context.audit_event(caller, "budget.deleted", id.to_string(), String::new());
        let known = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let known = store::budgets::delete(tx, org, id).await?;
                if known {
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                Ok(known)
            }
            .boxed()
        });
        if known.await? { Ok(()) } else { Err(Problem::not_found()) }
    }

    /// Records the thresholds that were passed, and names the jobs that spent budgets stop.
    ///
    /// # Errors
    /// The budgets could not be listed. A failure of one of them keeps no other from its check.
    pub async fn check(&self) -> Result<Checked, StoreError> {
        let rows = {
            let mut conn = self.context.db.read().await?;
            store::budgets::list(&mut conn.tx(), "").await?
        };
        let mut checked = Checked::default();
        for row in rows {
            match self.check_one(&row).await {
                Ok(stopped) => checked.stopped.extend(stopped),
                Err(error) => checked.failed = checked.failed.or(Some(error)),
            }
        }
        Ok(checked)
    }

    async fn check_one(&self, row: &BudgetRow) -> Result<Vec<(JobId, String)>, StoreError> {
        let now = self.context.now();
        let standing = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let open = open_jobs(&mut tx, &row.org_id).await?;
            standing(&mut tx, row, &open, (now, now)).await?
        };
        let percent = i64::try_from(i128::from(standing.spent) * 100 / i128::from(row.limit_micros.max(1)))
            .unwrap_or(i64::MAX);
        let Some(passed) = THRESHOLDS.into_iter().find(|t| percent >= *t) else { return Ok(Vec::new()) };
        self.tell_budget(row, passed, standing.spent, now).await?;
        if passed < 100 || row.at_limit != AtLimit::Stop.name() {
            return Ok(Vec::new());
        }
        let reason = format!("The budget {} is spent.", row.name);
        Ok(standing.jobs.into_iter().map(|job| (job, reason.clone())).collect())
    }

    async fn tell_budget(
        &self,
        row: &BudgetRow,
        passed: i64,
        spent: i64,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let month = month_of(now);
        if row.told_month == month && row.told >= passed {
            return Ok(());
        }
        let currency = &self.context.settings.currency;
        let subject = format!("{passed} % of the budget {} is spent", row.name);
        let what_next = match (AtLimit::parse(&row.at_limit), passed) {
            (Some(AtLimit::Notify), _) => "Nothing is stopped or refused by it.",
            (Some(AtLimit::Refuse), _) => "What could go beyond it is refused when it is submitted.",
            (_, 100) => "What runs under it is stopped now.",
            _ => "When it is spent, what runs under it is stopped.",
        };
        let detail = format!(
            "{} of {} were spent in {month}. {what_next}",
            money_text(spent, currency),
            money_text(row.limit_micros, currency)
        );
        let data = serde_json::json!({
            "budget": row.id, "percent": passed, "spent_micros": spent, "limit_micros": row.limit_micros, "month": month,
        });
        let notice = self.context.notice(&row.org_id, "budget.passed", subject, detail, &data);
        let id = row.id.clone();
        self.context
            .db
            .write(move |tx| {
                let (id, month, notice) = (id.clone(), month.clone(), notice.clone());
                async move {
                    if store::budgets::tell(tx, &id, passed, &month).await? {
                        store::budgets::insert_notice(tx, &notice).await?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await
    }
}
