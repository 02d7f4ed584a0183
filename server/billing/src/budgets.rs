//! Budgets: monthly limits on charges, notices at thresholds, and the refusal of new costs.
//!
//! A refusing budget counts running jobs, queued jobs and reservations at their worst-case price. Their
//! charges thus never exceed the budget.

pub mod routes;

use std::collections::{BTreeMap, HashMap, HashSet};

use berth_core::admission::{amount_text, check_name};
use berth_types::Page;
use berth_types::budgets::{AtLimit, Budget, NewBudget};
use berth_types::ids::{BudgetId, JobId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::money::money_text;
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::Context;
use berth_foundation::days::{day_of, month_of};
use berth_foundation::{Caller, Right, idempotency};
use berth_store::budgets::{OpenJob, StoredBudget};
use berth_store::{self as store, StoreError, Tx, WriteError};

/// Percentages of the limit, each with a notice, highest first.
const THRESHOLDS: [i64; 3] = [100, 75, 50];
const MAX_BUDGETS: usize = 100;
/// Bytes of the key of a label, and of its value.
pub(crate) const MAX_LABEL_BYTES: usize = 63;
const MAX_MICROS: i64 = 1_000_000_000_000_000;

/// The first day of the month of `now`, and the day of `now`, as day numbers.
fn days(now: Timestamp) -> (i64, i64) {
    let first = format!("{}-01T00:00:00Z", month_of(now)).parse().map_or(now, |t: Timestamp| t);
    (day_of(first), day_of(now))
}

/// The begin of the month of `at`, and the begin of the next month.
fn month_bounds(at: Timestamp) -> (Timestamp, Timestamp) {
    let (first, _) = days(at);
    let next = (first + 28..first + 32).find(|day| month_of(day_start(*day)) != month_of(at));
    (day_start(first), day_start(next.unwrap_or(first + 31)))
}

/// The begin of a day.
fn day_start(day: i64) -> Timestamp {
    Timestamp::from_micros(day.saturating_mul(86_400_000_000))
}

fn in_scope(row: &StoredBudget, labels: &BTreeMap<String, String>) -> bool {
    row.label.is_empty() || labels.get(&row.label) == Some(&row.value)
}

/// The state of a budget in one month, in micros.
struct BudgetStatus {
    /// Charges, and metered use without a charge yet.
    spent: i64,
    /// Holds of open jobs and reservations, less their part of `spent`.
    committed: i64,
    /// The open jobs in the scope of the budget.
    jobs: Vec<JobId>,
}

/// The use of an organization in one month, for the states of its budgets.
#[derive(Default)]
struct MonthUse {
    open: Vec<OpenJob>,
    /// The charges in the scope of each budget, in micros.
    spent: HashMap<BudgetId, i64>,
    /// The holds of the reservations, in micros.
    reserved: i64,
}

impl MonthUse {
    /// Reads the use in the month of `at` for budgets of one organization. Open jobs count in the current
    /// month only.
    async fn read(
        tx: &mut Tx<'_>,
        rows: &[StoredBudget],
        (now, at): (Timestamp, Timestamp),
    ) -> Result<Self, StoreError> {
        let Some(org) = rows.first().map(|row| row.org_id) else { return Ok(Self::default()) };
        let is_current = month_of(at) == month_of(now);
        let open = if is_current { store::budgets::open_jobs(tx, org).await? } else { Vec::new() };
        let ids: Vec<BudgetId> = rows.iter().map(|row| row.id).collect();
        let spent = store::budgets::list_spent(tx, &ids, days(at)).await?.into_iter().collect();
        let mut reserved = 0;
        if rows.iter().any(|row| row.label.is_empty()) {
            let (first, next) = month_bounds(at);
            // Reservations of earlier months can still have a hold.
            let from = if is_current { Timestamp::from_micros(0) } else { first };
            reserved = store::budgets::reserved(tx, org, (from, next)).await?;
        }
        Ok(Self { open, spent, reserved })
    }

    fn status(&self, row: &StoredBudget) -> BudgetStatus {
        let mut out = BudgetStatus {
            spent: self.spent.get(&row.id).copied().unwrap_or(0),
            committed: if row.label.is_empty() { self.reserved } else { 0 },
            jobs: Vec::new(),
        };
        for job in self.open.iter().filter(|job| in_scope(row, &job.labels)) {
            out.spent += job.uncharged_micros;
            out.committed += job.held_micros - job.uncharged_micros;
            out.jobs.push(job.id);
        }
        out
    }
}

/// Sums costs by the month of their begin. Each result has the first begin and the sum in micros.
pub fn by_month(costs: impl Iterator<Item = (Timestamp, i64)>) -> Vec<(Timestamp, i64)> {
    let mut months: BTreeMap<String, (Timestamp, i64)> = BTreeMap::new();
    for (begins, micros) in costs {
        let month = months.entry(month_of(begins)).or_insert((begins, 0));
        *month = (month.0.min(begins), month.1.saturating_add(micros));
    }
    months.into_values().collect()
}

/// Refuses a new cost that exceeds a refusing budget. `worst_micros` is the worst-case price. A cost with a
/// begin in a later month (`begins`) counts in the budget of that month.
pub async fn check_cost(
    tx: &mut Tx<'_>,
    org: OrgId,
    labels: &BTreeMap<String, String>,
    worst_micros: i64,
    currency: &str,
    (now, begins): (Timestamp, Timestamp),
) -> Result<(), WriteError> {
    let at = begins.max(now);
    let mut rows = store::budgets::list(tx, Some(org)).await?;
    rows.retain(|row| row.at_limit != AtLimit::Notify && in_scope(row, labels));
    let used = MonthUse::read(tx, &rows, (now, at)).await?;
    for row in rows {
        let status = used.status(&row);
        let left = row.limit_micros - status.spent - status.committed;
        if worst_micros > left {
            // Exact amounts: rounded ones can be equal.
            let detail = format!(
                "The maximum cost is {}. Budget {}: {} a month, {} left after spent and reserved money. Nothing was started or charged. Choose a shorter time limit. An owner can delete the budget and create a higher one.",
                money_text(worst_micros, currency),
                row.name,
                money_text(row.limit_micros, currency),
                money_text(left.max(0), currency)
            );
            return Err(Problem::new(403, "budget.exceeded", "Budget exceeded", detail).into());
        }
    }
    Ok(())
}

/// The least rest of the refusing budgets without a label in this month, in micros; absent without such a budget.
pub async fn find_room(tx: &mut Tx<'_>, org: OrgId, now: Timestamp) -> Result<Option<i64>, StoreError> {
    let mut rows = store::budgets::list(tx, Some(org)).await?;
    rows.retain(|row| row.at_limit != AtLimit::Notify && row.label.is_empty());
    let used = MonthUse::read(tx, &rows, (now, now)).await?;
    let left = |row: &StoredBudget| {
        let status = used.status(row);
        row.limit_micros - status.spent - status.committed
    };
    Ok(rows.iter().map(left).min())
}

/// The invalid fields of a new budget.
fn check(input: &NewBudget, currency: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_name("/name", &input.name, &mut errors);
    if !(1..=MAX_MICROS).contains(&input.limit_micros) {
        errors.push(FieldError::new("/limit_micros", amount_text(1, MAX_MICROS, currency)));
    }
    if input.label.is_empty() != input.value.is_empty() {
        errors.push(FieldError::new("/value", "Enter a label with its value, or neither."));
    }
    for (pointer, text) in [("/label", &input.label), ("/value", &input.value)] {
        if text.len() > MAX_LABEL_BYTES || text.chars().any(char::is_control) {
            let detail = "The key and the value of a label have at most 63 printable characters.";
            errors.push(FieldError::new(pointer, detail));
        }
    }
    errors
}

/// The outcome of a check of all budgets.
#[derive(Debug, Default)]
pub struct BudgetCheck {
    /// The jobs that a spent budget stops, each with the reason.
    pub stopped: Vec<(JobId, String)>,
    /// The first failed check.
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
        if let Some(id) = caller.already_created() {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let rows = store::budgets::list(&mut tx, Some(org)).await?;
            let row = rows.into_iter().find(|row| row.id.to_string() == id).ok_or_else(Problem::not_found)?;
            return Ok(self.budget(&mut tx, row).await?);
        }
        let errors = check(&input, &self.context.settings.currency);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let row = StoredBudget {
            id: self.context.new_id(now),
            org_id: org,
            name: input.name.trim().to_owned(),
            label: input.label,
            value: input.value,
            limit_micros: input.limit_micros,
            at_limit: input.at_limit,
            notified_percent: 0,
            notified_month: String::new(),
            created_by: caller.user.name.clone(),
            created_at: now,
        };
        let event = self.context.audit_event(
            caller,
            "budget.created",
            row.id.to_string(),
            format!("{}: {}", row.name, money_text(row.limit_micros, &self.context.settings.currency)),
        );
        let (new, key) = (row.clone(), caller.idempotency_key.clone());
        let done = self.context.db.try_write(move |tx| {
            let (row, event, key) = (new.clone(), event.clone(), key.clone());
            async move {
                let others = store::budgets::list(tx, Some(org)).await?;
                if others.len() >= MAX_BUDGETS {
                    let detail = "An organization has at most 100 budgets.";
                    return Err(Problem::invalid_field("/name", detail).into());
                }
                // Refusals and notices name the budget.
                if others.iter().any(|other| other.name == row.name) {
                    let detail = "A budget with this name exists. Enter another name, or delete that budget.";
                    return Err(Problem::invalid_field("/name", detail).into());
                }
                idempotency::claim(tx, key.as_ref(), &row.id.to_string(), now).await?;
                store::budgets::insert(tx, &row).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        let mut conn = self.context.db.read().await?;
        Ok(self.budget(&mut conn.tx(), row).await?)
    }

    async fn budget(&self, tx: &mut Tx<'_>, row: StoredBudget) -> Result<Budget, StoreError> {
        let now = self.context.now();
        let used = MonthUse::read(tx, std::slice::from_ref(&row), (now, now)).await?;
        Ok(self.budget_with_use(row, &used, now))
    }

    fn budget_with_use(&self, row: StoredBudget, used: &MonthUse, now: Timestamp) -> Budget {
        let status = used.status(&row);
        Budget {
            id: row.id,
            at_limit: row.at_limit,
            passed_percent: if row.notified_month == month_of(now) { row.notified_percent } else { 0 },
            name: row.name,
            label: row.label,
            value: row.value,
            limit_micros: row.limit_micros,
            currency: self.context.settings.currency.clone(),
            spent_micros: status.spent,
            committed_micros: status.committed,
            created_at: row.created_at,
            created_by: row.created_by,
        }
    }

    /// A page of the budgets of an organization, each with its use.
    pub async fn list_budgets(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<BudgetId>,
    ) -> Result<Page<Budget>, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let rows = store::budgets::list_page(&mut tx, org, options).await?;
        let page = options.page(rows, |row| row.id);
        let now = self.context.now();
        let used = MonthUse::read(&mut tx, &page.items, (now, now)).await?;
        Ok(page.map(|row| self.budget_with_use(row, &used, now)))
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

    /// Records passed thresholds of the budgets of these organizations (`None`: of all), and returns the jobs
    /// that spent budgets stop. A failure of one budget or organization does not prevent the checks of the
    /// others.
    ///
    /// # Errors
    /// The budgets cannot be listed.
    pub async fn check(&self, orgs: Option<&HashSet<OrgId>>) -> Result<BudgetCheck, StoreError> {
        let mut rows = {
            let mut conn = self.context.db.read().await?;
            store::budgets::list(&mut conn.tx(), None).await?
        };
        rows.retain(|row| orgs.is_none_or(|orgs| orgs.contains(&row.org_id)));
        let mut checked = BudgetCheck::default();
        for rows in rows.chunk_by(|row, next| row.org_id == next.org_id) {
            if let Err(error) = self.check_rows(rows, &mut checked).await {
                checked.failed = checked.failed.or(Some(error));
            }
        }
        Ok(checked)
    }

    /// Checks budgets of one organization.
    ///
    /// # Errors
    /// The use of the organization cannot be read.
    async fn check_rows(&self, rows: &[StoredBudget], checked: &mut BudgetCheck) -> Result<(), StoreError> {
        let now = self.context.now();
        let used = {
            let mut conn = self.context.db.read().await?;
            MonthUse::read(&mut conn.tx(), rows, (now, now)).await?
        };
        for row in rows {
            match self.check_one(row, used.status(row), now).await {
                Ok(stopped) => checked.stopped.extend(stopped),
                Err(error) => checked.failed = checked.failed.take().or(Some(error)),
            }
        }
        Ok(())
    }

    async fn check_one(
        &self,
        row: &StoredBudget,
        status: BudgetStatus,
        now: Timestamp,
    ) -> Result<Vec<(JobId, String)>, StoreError> {
        let percent = i64::try_from(i128::from(status.spent) * 100 / i128::from(row.limit_micros.max(1)))
            .unwrap_or(i64::MAX);
        let Some(passed) = THRESHOLDS.into_iter().find(|t| percent >= *t) else { return Ok(Vec::new()) };
        self.record_threshold(row, passed, status.spent, now).await?;
        if passed < 100 || row.at_limit != AtLimit::Stop {
            return Ok(Vec::new());
        }
        let reason = format!("The budget {} is spent.", row.name);
        Ok(status.jobs.into_iter().map(|job| (job, reason.clone())).collect())
    }

    async fn record_threshold(
        &self,
        row: &StoredBudget,
        passed: i64,
        spent: i64,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let month = month_of(now);
        if row.notified_month == month && row.notified_percent >= passed {
            return Ok(());
        }
        let currency = &self.context.settings.currency;
        let subject = format!("Budget {}: {passed} % spent", row.name);
        let consequence = match (row.at_limit, passed) {
            (AtLimit::Notify, _) => "The budget only sends notices; it refuses and stops nothing.",
            (AtLimit::Refuse, _) => {
                "Submissions with a maximum cost above the rest of the budget are refused."
            }
            (AtLimit::Stop, 100) => "Running and waiting jobs of the budget are stopped now.",
            (AtLimit::Stop, _) => "At 100 % the running and waiting jobs of the budget are stopped.",
        };
        let detail = format!(
            "{} of {} spent in {month} (UTC). {consequence}",
            money_text(spent, currency),
            money_text(row.limit_micros, currency)
        );
        let data = serde_json::json!({
            "budget": row.id, "percent": passed, "spent_micros": spent, "limit_micros": row.limit_micros, "month": month,
        });
        let notice = self.context.notice(row.org_id, "budget.passed", subject, detail, &data);
        let id = row.id;
        self.context
            .db
            .write(move |tx| {
                let (month, notice) = (month.clone(), notice.clone());
                async move {
                    if store::budgets::mark_reported(tx, id, passed, &month).await? {
                        store::budgets::insert_notice(tx, &notice).await?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await
    }
}
