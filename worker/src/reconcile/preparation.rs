//! The preparation of an attempt beside the loop: its record, its inputs, its devices and its shim.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_job_files::cache::FileCache;
use berth_job_files::inputs::{checkpoint, volumes};
use berth_proto::{Assignment, Spec};
use berth_shim::lease::{self, LeaseTerm, StartingLease};
use berth_shim::model::{JobFailure, job_failure};
use berth_system::clock::boottime_ms;
use tokio::runtime::Handle;
use tonic::transport::Channel;

use super::step_result::{ResultSender, StepResult};
use crate::attempt::{Attempt, Host, PreparationControl, check_gang, prepare};

/// The time between two checks during a download.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// One preparation.
pub(super) struct PreparationTask {
    pub attempt: Attempt,
    pub assignment: Assignment,
    pub spec: Spec,
    pub lease: StartingLease,
    /// Set when the attempt is not wanted any more.
    pub cancelled: Arc<AtomicBool>,
    /// The connection for downloads. `None`: there is no session.
    pub channel: Option<Channel>,
}

/// The reason to give a preparation up: it was cancelled, or its lease has ended, so the portal may have given the
/// attempt to another node.
fn given_up(cancelled: &AtomicBool, lease: &StartingLease) -> Option<JobFailure> {
    let over = |term: &LeaseTerm| term.remainder(boottime_ms()).ends_in_ms <= 0;
    if cancelled.load(Ordering::SeqCst) {
        return Some(job_failure("attempt.not_started", "The job was stopped before its start."));
    }
    lease::current_term(lease).filter(over).map(|term| lease::expiry_failure(&term))
}

/// Waits for a reason to give up.
async fn wait_until_given_up(cancelled: &AtomicBool, lease: &StartingLease) -> JobFailure {
    loop {
        if let Some(why) = given_up(cancelled, lease) {
            return why;
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

/// Downloads the inputs of an attempt: its volumes, of `most_mib` at most, and its checkpoint. A failed download ends
/// the attempt: without its checkpoint the job would lose its progress.
async fn fetch_inputs(
    attempt: &mut Attempt,
    spec: &Spec,
    most_mib: u64,
    cache: Option<Arc<FileCache>>,
    (cancelled, lease): (&AtomicBool, &StartingLease),
    channel: Option<Channel>,
    report: &dyn Fn(String),
) -> bool {
    if !spec.volumes.is_empty() && spec.unusable.is_none() {
        let (dir, key, mounts) = (attempt.dir.clone(), attempt.key(), &spec.volumes);
        let own_user = attempt.record.uid.is_some();
        let cache =
            cache.map(|files| volumes::AttemptCache::new(files, &attempt.record.organization, own_user));
        let fetch = volumes::fetch(&dir, &key, mounts, most_mib, cache.as_ref(), channel.clone(), report);
        let result = tokio::select! {
            result = fetch => result,
            why = wait_until_given_up(cancelled, lease) => Err(why),
        };
        if let Err(failure) = result {
            attempt.fail(failure);
            return false;
        }
    }
    let Some(restore) = spec.restore.clone() else { return true };
    let (dir, key) = (attempt.dir.clone(), attempt.key());
    let fetch = async move {
        match channel {
            Some(channel) => checkpoint::fetch(dir, key, restore, channel, report).await,
            None => Err("the portal is unreachable".to_owned()),
        }
    };
    let result = tokio::select! {
        result = fetch => result.map_err(|error| {
            let detail = format!("The checkpoint cannot be restored: {error}. The job was not started.");
            job_failure("worker.io", detail)
        }),
        why = wait_until_given_up(cancelled, lease) => Err(why),
    };
    if let Err(failure) = result {
        attempt.fail(failure);
        return false;
    }
    true
}

/// Prepares and starts an attempt beside the loop, then waits for the end of its shim.
pub(super) fn spawn(task: PreparationTask, host: Arc<Host>, results: ResultSender) {
    let key = task.attempt.key();
    let (shim_results, shim_key) = (results.clone(), key.clone());
    let runtime = Handle::current();
    // Blocking, and many at a time.
    let prepared = tokio::task::spawn_blocking(move || {
        let PreparationTask { mut attempt, assignment, spec, lease, cancelled, channel } = task;
        if let Err(error) = attempt.save_new() {
            tracing::error!(job = key.job, %error, "an attempt cannot be recorded");
            let _ = results.send(StepResult::Recorded(key, Err((Box::new(assignment), error.to_string()))));
            return None;
        }
        let _ = results.send(StepResult::Recorded(key.clone(), Ok(())));
        let progress = |text: String| {
            let _ = results.send(StepResult::Progress(key.clone(), text));
        };
        let stopped = || given_up(&cancelled, &lease);
        let control = PreparationControl { given_up: &stopped, progress: &progress, lease: &lease };
        let checked = check_gang(&mut attempt, &spec, &host, &control);
        let before = (&*cancelled, &lease);
        let most_mib = attempt.record.limits(&host.limits).disk_mib;
        let cache = host.cache.clone();
        let ready = checked
            && runtime.block_on(fetch_inputs(
                &mut attempt,
                &spec,
                most_mib,
                cache,
                before,
                channel,
                &progress,
            ));
        let shim = if ready { prepare(&mut attempt, &spec, &host, &control) } else { None };
        // From here on the shim counts its lease itself.
        drop(lease);
        let _ = results.send(StepResult::Prepared(Box::new(attempt)));
        shim
    });
    tokio::spawn(async move {
        if let Ok(Some(shim)) = prepared.await {
            shim.wait().await;
            let _ = shim_results.send(StepResult::ShimGone(shim_key));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn what_will_not_be_started_is_given_up_on_the_way() {
        let (wanted, unwanted) = (AtomicBool::new(false), AtomicBool::new(true));
        let leased = |ago_ms: i64| -> StartingLease {
            let renewed_ms = boottime_ms() - ago_ms;
            let term = LeaseTerm { lease_ms: 60_000, answer_ms: 3_000, grace_ms: 3_000, renewed_ms };
            Some(Arc::new(Mutex::new(term)))
        };
        let code =
            |cancelled: &AtomicBool, lease: &StartingLease| given_up(cancelled, lease).map(|(code, _)| code);
        assert_eq!(code(&wanted, &None), None, "it has no lease");
        assert_eq!(code(&wanted, &leased(0)), None);
        assert_eq!(code(&wanted, &leased(60_000)).as_deref(), Some("lease.ended"));
        assert_eq!(code(&unwanted, &leased(0)).as_deref(), Some("attempt.not_started"));
    }

    #[tokio::test]
    async fn a_fetch_ends_with_the_lease() {
        let renewed_ms = boottime_ms() - 60_000;
        let term = LeaseTerm { lease_ms: 60_000, answer_ms: 3_000, grace_ms: 3_000, renewed_ms };
        let lease = Some(Arc::new(Mutex::new(term)));
        let (code, _) = wait_until_given_up(&AtomicBool::new(false), &lease).await;
        assert_eq!(code, "lease.ended");
        let (code, _) = wait_until_given_up(&AtomicBool::new(true), &None).await;
        assert_eq!(code, "attempt.not_started");
    }
}
