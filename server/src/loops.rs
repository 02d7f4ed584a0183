//! The loops of the portal, with their times.

use std::sync::Arc;
use std::time::Duration;

use berth_billing::Budgets;
use berth_core::jobs::Event;
use berth_foundation::loops::{Next, Schedule, Wake};
use berth_jobs::Attempts;
use berth_store::StoreError;

use tokio::task::AbortHandle;

use crate::portal::Portal;

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

/// A pass of the scheduler at least this often: what only time brings comes too.
const PASS_EVERY: Duration = Duration::from_secs(5);
/// Between the steps of a long search.
const STEP: Duration = Duration::from_millis(10);
/// From the begin of one pass to the next: changes of this time are decided together.
const PACE: Duration = Duration::from_millis(50);

const BUDGETS_EVERY: Duration = Duration::from_secs(30);
/// Charges of this time are checked against budgets together.
const BUDGETS_PACE: Duration = Duration::from_millis(200);
/// Credit is checked often, so that expired credit is gone before it is set aside anew.
const CREDIT_EVERY: Duration = Duration::from_secs(2);
const PAYMENTS_EVERY: Duration = Duration::from_secs(2);
const INVOICES_EVERY: Duration = Duration::from_secs(600);
const READINGS_EVERY: Duration = Duration::from_secs(60);
/// Workers come back first: a start of the portal alone loses none of their reservations.
const RESERVATIONS_AFTER: Duration = Duration::from_secs(15);

/// Starts every loop.
pub fn start(portal: &Portal) {
    start_scheduler(portal);
    start_budgets(portal);
    start_money(portal);
    start_reservations(portal);
    start_nodes(portal);
    start_housekeeping(portal);
}

/// Starts the loop of the scheduler: it runs after changes, when something ends or begins, and now and then.
pub fn start_scheduler(portal: &Portal) -> AbortHandle {
    let (scheduler, planner) = (portal.scheduler.clone(), portal.planner.clone());
    let wake: Wake = Arc::new(move || {
        let planner = planner.clone();
        Box::pin(async move { planner.changed().await })
    });
    let schedule = Schedule { pace: PACE, after_failure: PACE, ..Schedule::every(PASS_EVERY) };
    portal.loops.spawn("scheduler", schedule, Some(wake), move || {
        let scheduler = scheduler.clone();
        async move {
            let pass = scheduler.timed_pass().await?;
            let next = match pass.unfinished {
                true => Next { within: STEP, pace: STEP },
                false => Next { within: pass.next.unwrap_or(PASS_EVERY).min(PASS_EVERY), pace: PACE },
            };
            Ok::<_, StoreError>(Some(next))
        }
    })
}

/// Records passed thresholds, and stops the jobs of budgets that are spent.
///
/// # Errors
/// The database could not be read or written.
pub async fn check_budgets(budgets: &Budgets, attempts: &Attempts) -> Result<(), StoreError> {
    let checked = budgets.check().await?;
    for (job, reason) in checked.stopped {
        attempts.move_on(job, None, Event::Cancel, reason).await?;
    }
    checked.failed.map_or(Ok(()), Err)
}

/// Starts the loop of budgets: it runs after charges, and now and then.
pub fn start_budgets(portal: &Portal) -> AbortHandle {
    let (budgets, attempts) = (portal.budgets.clone(), portal.attempts.clone());
    let live = portal.context.live.clone();
    let wake: Wake = Arc::new(move || {
        let live = live.clone();
        Box::pin(async move { live.charged.notified().await })
    });
    let schedule = Schedule { pace: BUDGETS_PACE, ..Schedule::every(BUDGETS_EVERY) };
    portal.loops.spawn("budgets", schedule, Some(wake), move || {
        let (budgets, attempts) = (budgets.clone(), attempts.clone());
        async move { check_budgets(&budgets, &attempts).await.map(|()| None) }
    })
}

fn start_money(portal: &Portal) {
    let expiry = portal.credit_expiry.clone();
    portal.loops.spawn("credit expiry", Schedule::every(CREDIT_EVERY), None, move || {
        let expiry = expiry.clone();
        async move { expiry.tick_credit().await.map(|()| None) }
    });
    let invoices = portal.invoices.clone();
    portal.loops.spawn("invoices", Schedule::every(INVOICES_EVERY), None, move || {
        let invoices = invoices.clone();
        async move { invoices.bill_last_month().await.map(|_| None) }
    });
    if portal.payments.enabled() {
        let payments = portal.payments.clone();
        portal.loops.spawn("payments", Schedule::every(PAYMENTS_EVERY), None, move || {
            let payments = payments.clone();
            async move { payments.tick_payments().await.map(|()| None) }
        });
    }
    let reconciliations = portal.reconciliations.clone();
    portal.loops.spawn("reconciliation", Schedule::every(HOUR), None, move || {
        let reconciliations = reconciliations.clone();
        async move {
            let result = reconciliations.reconcile().await?;
            if !result.mismatches.is_empty() {
                tracing::error!(mismatches = ?result.mismatches, "the ledger does not add up");
            }
            Ok::<_, StoreError>(None)
        }
    });
}

/// Starts the loop of reservations: it begins and ends them, and charges them.
pub fn start_reservations(portal: &Portal) -> AbortHandle {
    let reservations = portal.reservations.clone();
    let schedule = Schedule { first_after: RESERVATIONS_AFTER, ..Schedule::every(SECOND) };
    portal.loops.spawn("reservations", schedule, None, move || {
        let reservations = reservations.clone();
        async move { reservations.tick_reservations().await.map(|_| None) }
    })
}

fn start_nodes(portal: &Portal) {
    let drains = portal.drains.clone();
    portal.loops.spawn("drains", Schedule::every(SECOND), None, move || {
        let drains = drains.clone();
        async move { drains.tick_drains().await.map(|_| None) }
    });
    let lost_nodes = portal.lost_nodes.clone();
    portal.loops.spawn("leases", Schedule::every(SECOND), None, move || {
        let lost_nodes = lost_nodes.clone();
        async move { lost_nodes.tick_leases().await.map(|_| None) }
    });
}

fn start_housekeeping(portal: &Portal) {
    let webhooks = portal.webhooks.clone();
    portal.loops.spawn("webhooks", Schedule::every(SECOND), None, move || {
        let webhooks = webhooks.clone();
        async move { webhooks.deliver().await.map(|()| None) }
    });
    let files = portal.files.clone();
    portal.loops.spawn("files", Schedule::every(HOUR), None, move || {
        let files = files.clone();
        async move { files.tidy_files().await.map(|_| None).map_err(|problem| problem.detail) }
    });
    let volumes = portal.volumes.clone();
    portal.loops.spawn("volumes", Schedule::every(HOUR), None, move || {
        let volumes = volumes.clone();
        async move { volumes.tidy_volumes().await.map(|()| None).map_err(|problem| problem.detail) }
    });
    let (recordings, context) = (portal.recordings.clone(), portal.context.clone());
    portal.loops.spawn("readings", Schedule::every(READINGS_EVERY), None, move || {
        let (recordings, now) = (recordings.clone(), context.now());
        async move {
            match tokio::task::spawn_blocking(move || recordings.settle(now)).await {
                Ok(settled) => settled.map(|()| None),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(error) => Err(std::io::Error::other(error)),
            }
        }
    });
    let parts = portal.clone();
    portal.loops.spawn("retention", Schedule::every(HOUR), None, move || {
        let portal = parts.clone();
        async move { portal.forget_old().await.map(|()| None) }
    });
}

impl Portal {
    /// Forgets records that nobody can ask for any more: answers of requests, sessions that are over, spent join
    /// tokens.
    ///
    /// # Errors
    /// The database refused one of them; those after it were not tried.
    pub async fn forget_old(&self) -> Result<(), StoreError> {
        self.idempotency.forget_old().await?;
        self.accounts.forget_old().await?;
        self.enrolment.forget_old().await
    }
}
