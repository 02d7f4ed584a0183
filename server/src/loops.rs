//! The loops of the portal, with their times.

pub mod routes;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_billing::Budgets;
use berth_core::jobs::MachineEvent;
use berth_foundation::audit_push::MAX_PAUSE;
use berth_foundation::loops::{NextRun, Schedule, Wake};
use berth_foundation::mail_report;
use berth_jobs::Attempts;
use berth_services::promises::Promises;
use berth_store::StoreError;
use berth_types::ids::OrgId;
use berth_types::operations::AuditDestinationKind;

use tokio::task::AbortHandle;

use crate::portal::Portal;

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

/// The longest time between passes of the scheduler, for effects of time alone.
const PASS_EVERY: Duration = Duration::from_secs(5);
/// The pause between the steps of a long search.
const STEP: Duration = Duration::from_millis(10);
/// The shortest time between the starts of two passes. One pass decides all changes of that time.
const PACE: Duration = Duration::from_millis(50);

const BUDGETS_EVERY: Duration = Duration::from_secs(30);
/// The shortest time between the starts of two checks of budgets. One check has all charges of that time.
const BUDGETS_PACE: Duration = Duration::from_millis(200);
/// Often, so that expired credit is gone before a hold can use it.
const CREDIT_EVERY: Duration = Duration::from_secs(2);
const PAYMENTS_EVERY: Duration = Duration::from_secs(2);
const INVOICES_EVERY: Duration = Duration::from_secs(600);
const READINGS_EVERY: Duration = Duration::from_secs(60);
/// The longest delay of a due refresh of a single sign-on.
const SSO_EVERY: Duration = Duration::from_secs(5);
/// The longest delay of a due check of the record of a domain.
const DOMAINS_EVERY: Duration = Duration::from_secs(30);
const JOB_RETENTION_EVERY: Duration = Duration::from_secs(60);
/// The longest delay of a mail about a change request.
const CHANGE_MAILS_EVERY: Duration = Duration::from_secs(5);
/// The time between the writes of counts of repeated audit events.
const REPEATED_EVERY: Duration = Duration::from_secs(15);
/// The time between looks at the end of the audit log without a signal of new events.
const AUDIT_PUSH_EVERY: Duration = Duration::from_secs(60);
/// The shortest time between files of the audit log in a bucket that are not full.
const AUDIT_FILES_PACE: Duration = Duration::from_secs(60);
/// The longest time between runs of the loop of services.
const SERVICES_EVERY: Duration = Duration::from_secs(5);
/// The longest delay of the expiry of an inference key in the snapshot for gateways.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(5);
/// The shortest time between the starts of two snapshots. One has all changes of that time.
const SNAPSHOT_PACE: Duration = Duration::from_millis(50);
/// Windows of promises are due at whole hours.
const PROMISES_EVERY: Duration = Duration::from_secs(60);
const LOST_BLOCKS_EVERY: Duration = Duration::from_secs(30);
/// The time after a start in which workers reconnect: no reservation is lost by a restart of the portal.
const RESERVATIONS_AFTER: Duration = Duration::from_secs(15);

/// Starts every loop.
pub fn start(portal: &Portal) {
    let db = portal.context.db.clone();
    portal.loops.end_with("database writer", async move { db.writer_ended().await });
    start_scheduler(portal);
    start_budgets(portal);
    start_money(portal);
    start_reservations(portal);
    start_services(portal);
    start_promises(portal);
    start_gateways(portal);
    start_nodes(portal);
    start_housekeeping(portal);
    start_change_mails(portal);
    mail_report::start(portal.webhooks.transport.clone(), &portal.loops);
    start_audit_push(portal);
}

/// Starts the loop of the scheduler: it runs after changes, at the time that the last pass named, and at
/// least every [`PASS_EVERY`].
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
                true => NextRun { within: STEP, pace: STEP },
                false => NextRun { within: pass.next.unwrap_or(PASS_EVERY).min(PASS_EVERY), pace: PACE },
            };
            Ok::<_, StoreError>(Some(next))
        }
    })
}

/// Records passed thresholds, and stops the jobs of spent budgets of these organizations (`None`: of all).
///
/// # Errors
/// The database could not be read or written.
pub async fn check_budgets(
    budgets: &Budgets,
    attempts: &Attempts,
    orgs: Option<&HashSet<OrgId>>,
) -> Result<(), StoreError> {
    let checked = budgets.check(orgs).await?;
    for (job, reason) in checked.stopped {
        attempts.apply_event(job, None, MachineEvent::Spend, reason).await?;
    }
    checked.failed.map_or(Ok(()), Err)
}

/// Starts the loop of budgets: it checks the charged organizations after charges, and all organizations at
/// least every [`BUDGETS_EVERY`].
pub fn start_budgets(portal: &Portal) -> AbortHandle {
    let (budgets, attempts) = (portal.budgets.clone(), portal.attempts.clone());
    let live = portal.context.live.clone();
    let charges = live.clone();
    let wake: Wake = Arc::new(move || {
        let live = live.clone();
        Box::pin(async move { live.charged.notified().await })
    });
    // The time of the last check of all organizations; absent after a failure.
    let complete: Arc<Mutex<Option<Instant>>> = Arc::default();
    let schedule = Schedule { pace: BUDGETS_PACE, ..Schedule::every(BUDGETS_EVERY) };
    portal.loops.spawn("budgets", schedule, Some(wake), move || {
        let (budgets, attempts, charges) = (budgets.clone(), attempts.clone(), charges.clone());
        let complete = complete.clone();
        async move {
            let (now, charged) = (Instant::now(), charges.remove_charged());
            let last = complete.lock().unwrap_or_else(PoisonError::into_inner).take();
            let recent = last.filter(|last| now.duration_since(*last) < BUDGETS_EVERY);
            check_budgets(&budgets, &attempts, recent.map(|_| &charged)).await?;
            let last = recent.unwrap_or(now);
            *complete.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
            let within = BUDGETS_EVERY.saturating_sub(last.elapsed());
            Ok::<_, StoreError>(Some(NextRun { within, pace: BUDGETS_PACE }))
        }
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
                tracing::error!(mismatches = ?result.mismatches, "the reconciliation found mismatches in the ledger");
            }
            Ok::<_, StoreError>(None)
        }
    });
}

/// Starts the loop of reservations: it starts, charges and ends them.
pub fn start_reservations(portal: &Portal) -> AbortHandle {
    let reservations = portal.reservations.clone();
    let schedule = Schedule { first_after: RESERVATIONS_AFTER, ..Schedule::every(SECOND) };
    portal.loops.spawn("reservations", schedule, None, move || {
        let reservations = reservations.clone();
        async move { reservations.tick_reservations().await.map(|_| None) }
    })
}

/// Starts the loop of services: it runs after changes, at the time that the last run named, and at least every
/// [`SERVICES_EVERY`].
pub fn start_services(portal: &Portal) -> AbortHandle {
    let services = portal.service_loop.clone();
    let board = services.board().clone();
    let wake: Wake = Arc::new(move || {
        let board = board.clone();
        Box::pin(async move { board.changed().await })
    });
    let schedule = Schedule { pace: PACE, after_failure: SECOND, ..Schedule::every(SERVICES_EVERY) };
    portal.loops.spawn("services", schedule, Some(wake), move || {
        let services = services.clone();
        async move {
            let pass = services.run().await?;
            let within = if pass.unfinished { STEP } else { pass.next.unwrap_or(SERVICES_EVERY) };
            Ok::<_, StoreError>(Some(NextRun { within: within.min(SERVICES_EVERY), pace: PACE }))
        }
    })
}

/// Starts the loop that judges the promises of services.
fn start_promises(portal: &Portal) {
    let promises = Promises::new(portal.context.clone());
    portal.loops.spawn("promises", Schedule::every(PROMISES_EVERY), None, move || {
        let promises = promises.clone();
        async move {
            let more = promises.judge().await?;
            Ok::<_, StoreError>(more.then_some(NextRun { within: STEP, pace: STEP }))
        }
    });
}

/// Starts the loops for gateways: snapshots after changes, and the end of the wait for lost blocks of credit.
pub fn start_gateways(portal: &Portal) {
    let sync = portal.gateway_sync.clone();
    let wake: Wake = Arc::new(move || {
        let sync = sync.clone();
        Box::pin(async move { sync.snapshot_changed().await })
    });
    let sync = portal.gateway_sync.clone();
    let schedule = Schedule { pace: SNAPSHOT_PACE, ..Schedule::every(SNAPSHOT_EVERY) };
    portal.loops.spawn("gateway snapshots", schedule, Some(wake), move || {
        let sync = sync.clone();
        async move { sync.refresh_snapshot().await.map(|()| None) }
    });
    let sync = portal.gateway_sync.clone();
    portal.loops.spawn("gateway credit", Schedule::every(LOST_BLOCKS_EVERY), None, move || {
        let sync = sync.clone();
        async move { sync.end_lost_blocks().await.map(|()| None) }
    });
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
            match tokio::task::spawn_blocking(move || recordings.compact(now)).await {
                Ok(settled) => settled.map(|()| None),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(error) => Err(std::io::Error::other(error)),
            }
        }
    });
    let (retention, unfinished) = (portal.job_retention.clone(), Arc::new(AtomicBool::new(false)));
    let unfinished_before = unfinished.clone();
    // A run with a failure goes on after a second too while work remains.
    let wake: Wake = Arc::new(move || {
        let pause = if unfinished_before.load(Ordering::Relaxed) { SECOND } else { JOB_RETENTION_EVERY };
        Box::pin(tokio::time::sleep(pause))
    });
    portal.loops.spawn("job retention", Schedule::every(JOB_RETENTION_EVERY), Some(wake), move || {
        let (retention, unfinished) = (retention.clone(), unfinished.clone());
        async move {
            let (more, result) = match retention.tick_retention().await {
                Ok(more) => (more, Ok(None)),
                Err(run) => (run.unfinished, Err(run.problem.detail)),
            };
            unfinished.store(more, Ordering::Relaxed);
            result
        }
    });
    let sso = portal.sso.clone();
    portal.loops.spawn("single sign-on", Schedule::every(SSO_EVERY), None, move || {
        let sso = sso.clone();
        async move {
            let more = sso.tick_grants().await?;
            Ok::<_, StoreError>(more.then_some(NextRun { within: STEP, pace: STEP }))
        }
    });
    let (providers, hosts) = (portal.sso.providers.clone(), portal.services.hosts.clone());
    portal.loops.spawn("domain records", Schedule::every(DOMAINS_EVERY), None, move || {
        let (providers, hosts) = (providers.clone(), hosts.clone());
        async move {
            let more = providers.tick_domains().await? | hosts.tick_hosts().await?;
            Ok::<_, StoreError>(more.then_some(NextRun { within: STEP, pace: STEP }))
        }
    });
    let context = portal.context.clone();
    portal.loops.spawn("repeated events", Schedule::every(REPEATED_EVERY), None, move || {
        let context = context.clone();
        async move { context.record_omitted().await.map(|()| None) }
    });
    let audit_log = portal.audit_log.clone();
    portal.loops.spawn("audit log", Schedule::every(HOUR), None, move || {
        let audit_log = audit_log.clone();
        async move { audit_log.sign().await.map(|()| None) }
    });
    let parts = portal.clone();
    portal.loops.spawn("retention", Schedule::every(HOUR), None, move || {
        let portal = parts.clone();
        async move { portal.forget_old().await.map(|()| None) }
    });
}

/// Starts the loop that mails change requests to operators.
fn start_change_mails(portal: &Portal) {
    let operators = portal.operators.clone();
    portal.loops.spawn("change mails", Schedule::every(CHANGE_MAILS_EVERY), None, move || {
        let operators = operators.clone();
        async move { operators.mail_changes().await.map(|()| None) }
    });
}

/// Starts a loop for each destination of the audit log: it runs after new events, and after a failure with growing
/// pauses.
pub fn start_audit_push(portal: &Portal) -> Vec<AbortHandle> {
    let start = |kind: AuditDestinationKind| {
        let (name, pace) = match kind {
            AuditDestinationKind::Bucket => ("audit bucket", AUDIT_FILES_PACE),
            AuditDestinationKind::Syslog => ("audit syslog", SECOND),
            AuditDestinationKind::Webhook => ("audit webhook", SECOND),
        };
        // The pace is for deliveries: a retry waits for its own pause alone.
        let after_delivery = NextRun { within: AUDIT_PUSH_EVERY, pace };
        let (push, waiting) = (portal.audit_push.clone(), portal.audit_push.clone());
        let wake: Wake = Arc::new(move || {
            let push = waiting.clone();
            Box::pin(async move { push.until_due(kind).await })
        });
        // After a failure the wake-up comes at the end of the pause.
        let schedule = Schedule { after_failure: MAX_PAUSE, ..Schedule::every(AUDIT_PUSH_EVERY) };
        portal.loops.spawn(name, schedule, Some(wake), move || {
            let push = push.clone();
            async move {
                let more = push.deliver(kind).await?;
                let next = if more {
                    NextRun { within: Duration::ZERO, pace: Duration::ZERO }
                } else {
                    after_delivery
                };
                Ok::<_, String>(Some(next))
            }
        })
    };
    portal.audit_push.kinds().into_iter().map(start).collect()
}

impl Portal {
    /// Deletes records without further use: stored answers of requests, ended sessions and used join tokens.
    ///
    /// # Errors
    /// The database refused one of the deletions; the later ones were not tried.
    pub async fn forget_old(&self) -> Result<(), StoreError> {
        self.idempotency.forget_old().await?;
        self.accounts.forget_old().await?;
        self.services.forget_old().await?;
        Promises::new(self.context.clone()).forget_old().await?;
        self.enrolment.forget_old().await
    }
}
