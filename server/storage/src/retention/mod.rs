//! Retention of ended jobs: after it their submissions, logs, readings and files are removed. The row of a job
//! stays with its name, times and cost, because charges refer to it.
//!
//! Logs and readings are removed before the row says so. A crash between both is repaired by the next run.

pub mod routes;

use std::collections::{BTreeMap, BTreeSet};

use berth_foundation::{Caller, Context, Right, fault, forbidden_for};
use berth_recordings::Recordings;
use berth_store::storage::{ExpiredJob, StoredBytes};
use berth_store::{self as store, StoreError};
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::NewJob;
use berth_types::problems::Problem;
use berth_types::quotas::{AuditContext, AuditEvent};
use berth_types::storage::{OrgStorage, Retention, SetRetention};
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::allowance::StorageLimits;
use crate::files::Files;

/// Jobs in one run, for counts of logs and for removals each.
const BATCH: i64 = 100;
/// Jobs in one run whose directories fail. The next run tries them again.
const MAX_FAILED: usize = 1_000;
const DAY_S: i64 = 86_400;
/// The longest retention in days.
const MAX_DAYS: u32 = 36_500;

/// Counts the logs of ended jobs, and removes jobs after their retention.
#[derive(Clone)]
pub struct JobRetention {
    context: Context,
    recordings: Recordings,
    files: Files,
}

/// A run with a failure.
#[derive(Debug)]
pub struct FailedRun {
    pub problem: Problem,
    /// True if the run did some of its work and there may be more.
    pub unfinished: bool,
}

impl From<Problem> for FailedRun {
    fn from(problem: Problem) -> Self {
        Self { problem, unfinished: false }
    }
}

/// The submission of a removed job: only what lists and filters show.
fn stub(spec: &NewJob) -> NewJob {
    NewJob { command: None, script: None, env: BTreeMap::new(), files: BTreeMap::new(), ..spec.clone() }
}

/// The number of jobs that a run still takes after `rows` jobs.
fn room(rows: usize) -> i64 {
    i64::try_from(rows).map_or(0, |rows| BATCH.saturating_sub(rows).max(0))
}

fn days(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(MAX_DAYS)
}

fn size(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Runs file operations on a thread for blocking work.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Problem::internal()),
    }
}

impl JobRetention {
    pub const fn new(context: Context, recordings: Recordings, files: Files) -> Self {
        Self { context, recordings, files }
    }

    /// Counts the logs of ended jobs, and removes jobs after their retention, at most a batch of each. Jobs whose
    /// directories fail are passed over until the next run. Returns true if there may be more.
    ///
    /// # Errors
    /// The database or a directory failed. The other jobs were removed all the same.
    pub async fn tick_retention(&self) -> Result<bool, FailedRun> {
        let counted = self.count_logs().await?;
        let (jobs, mut failed) = self.remove_recordings().await?;
        let is_full = room(jobs.len()) == 0;
        let mut by_org: BTreeMap<OrgId, Vec<ExpiredJob>> = BTreeMap::new();
        for job in jobs {
            by_org.entry(job.org_id).or_default().push(job);
        }
        let (some, mut recorded) = (!by_org.is_empty(), false);
        for (org, jobs) in by_org {
            match self.record_removals(org, jobs).await {
                Ok(()) => recorded = true,
                Err(problem) => failed = failed.or(Some(problem)),
            }
        }
        if some && let Err(problem) = self.files.sweep_files().await {
            failed = failed.or(Some(problem));
        }
        let unfinished = room(counted) == 0 || (is_full && recorded);
        failed.map_or(Ok(unfinished), |problem| Err(FailedRun { problem, unfinished }))
    }

    /// Counts the bytes of the logs of ended jobs. Returns the number of jobs.
    async fn count_logs(&self) -> Result<usize, Problem> {
        let mut counted: Vec<(JobId, OrgId, i64)> = Vec::new();
        let (mut failed, mut after) = (0, None);
        while room(counted.len()) > 0 && failed < MAX_FAILED {
            let mut conn = self.context.db.read().await?;
            let jobs = store::storage::list_uncounted(&mut conn.tx(), after, room(counted.len())).await?;
            drop(conn);
            let Some((last, _, ended_at)) = jobs.last() else { break };
            after = Some((*ended_at, *last));
            let (all, recordings) = (jobs.len(), self.recordings.clone());
            let readable = on_thread(move || {
                let count = |(job, org, _): (JobId, OrgId, Timestamp)| match recordings.log_bytes(job) {
                    Ok(bytes) => Some((job, org, i64::try_from(bytes).unwrap_or(i64::MAX))),
                    Err(error) => {
                        tracing::warn!(%job, %error, "the log of an ended job cannot be counted; trying again");
                        None
                    }
                };
                jobs.into_iter().filter_map(count).collect::<Vec<(JobId, OrgId, i64)>>()
            })
            .await?;
            failed += all - readable.len();
            counted.extend(readable);
        }
        let number = counted.len();
        if number == 0 {
            return Ok(0);
        }
        let counting = self.context.db.write(move |tx| {
            let counted = counted.clone();
            async move {
                for (job, org, bytes) in counted {
                    store::storage::count_logs(tx, org, job, bytes).await?;
                }
                Ok(())
            }
            .boxed()
        });
        counting.await?;
        Ok(number)
    }

    /// The retentions in days: the one of the portal for all organizations, then the shorter ones of single
    /// organizations.
    async fn list_retentions(&self) -> Result<Vec<(Option<OrgId>, i64)>, StoreError> {
        let mut conn = self.context.db.read().await?;
        let own = store::storage::list_retentions(&mut conn.tx()).await?;
        let portal = self.context.settings.keep_ended_jobs_days.map(|days| (None, days));
        Ok(portal.into_iter().chain(own.into_iter().map(|(org, days)| (Some(org), days))).collect())
    }

    /// Removes the logs and readings of at most a batch of jobs whose retention is over. Returns these jobs, and a
    /// problem if directories of others failed.
    async fn remove_recordings(&self) -> Result<(Vec<ExpiredJob>, Option<Problem>), Problem> {
        let now = self.context.now();
        let mut removed: Vec<ExpiredJob> = Vec::new();
        let (mut tried, mut failed) = (BTreeSet::new(), 0);
        for (org, days) in self.list_retentions().await? {
            let before = now.plus_seconds(-days.saturating_mul(DAY_S));
            let mut after = None;
            while room(removed.len()) > 0 && failed < MAX_FAILED {
                let mut conn = self.context.db.read().await?;
                let (mut tx, limit) = (conn.tx(), room(removed.len()));
                let mut jobs = match org {
                    Some(org) => store::storage::list_expired_of(&mut tx, org, before, after, limit).await?,
                    None => store::storage::list_expired(&mut tx, before, after, limit).await?,
                };
                drop(conn);
                let Some(last) = jobs.last() else { break };
                after = Some((last.ended_at, last.id));
                // The retention of the portal may have named a job of an organization with its own one.
                jobs.retain(|job| tried.insert(job.id));
                if jobs.is_empty() {
                    continue;
                }
                fault::point("retention.remove.due");
                let (all, recordings) = (jobs.len(), self.recordings.clone());
                let done = on_thread(move || {
                    let remove = |job: &ExpiredJob| match recordings.remove_job(job.id) {
                        Ok(()) => true,
                        Err(error) => {
                            tracing::warn!(job = %job.id, %error, "the logs of a job cannot be removed; trying again");
                            false
                        }
                    };
                    jobs.into_iter().filter(remove).collect::<Vec<ExpiredJob>>()
                })
                .await?;
                fault::point("retention.remove.recordings");
                failed += all - done.len();
                removed.extend(done);
            }
        }
        Ok((removed, (failed > 0).then(Problem::internal)))
    }

    /// Records the removal of jobs of one organization, with one audit event.
    async fn record_removals(&self, org: OrgId, jobs: Vec<ExpiredJob>) -> Result<(), Problem> {
        let now = self.context.now();
        let event = AuditEvent {
            id: self.context.new_id(now),
            at: now,
            actor: "The portal".to_owned(),
            action: "retention.removed".to_owned(),
            subject: org.to_string(),
            detail: String::new(),
            context: AuditContext::default(),
        };
        let removing = self.context.db.write(move |tx| {
            let (jobs, event) = (jobs.clone(), event.clone());
            async move {
                let (mut removed, mut bytes) = (0_u64, 0_i64);
                for job in &jobs {
                    if let Some(freed) = store::storage::remove_job(tx, job, &stub(&job.spec), now).await? {
                        removed += 1;
                        bytes = bytes.saturating_add(freed);
                    }
                }
                fault::point("retention.remove.recording");
                if removed == 0 {
                    return Ok(());
                }
                let noun = if removed == 1 { "job" } else { "jobs" };
                let detail = format!("{removed} {noun}, {bytes} bytes");
                store::quotas::insert_audit(tx, Some(org), &AuditEvent { detail, ..event }).await
            }
            .boxed()
        });
        removing.await?;
        fault::point("retention.remove.recorded");
        Ok(())
    }

    /// The stored bytes of an organization and their limit.
    ///
    /// # Errors
    /// The caller may not see the organization.
    pub async fn storage(&self, caller: &Caller, org: OrgId) -> Result<OrgStorage, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let limits = StorageLimits::new(&self.context.settings);
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let (limit_bytes, without_credit) = limits.find_limit(&mut tx, org).await?;
        let (file_bytes, volume_bytes) = store::storage::file_bytes(&mut tx, org).await?;
        let stored: StoredBytes = store::storage::stored_bytes(&mut tx, org).await?;
        Ok(OrgStorage {
            limit_bytes: size(limit_bytes),
            without_credit,
            limit_submissions: without_credit.then(|| size(limits.free_jobs())),
            used_bytes: size(file_bytes.saturating_add(volume_bytes).saturating_add(stored.total())),
            file_bytes: size(file_bytes),
            volume_bytes: size(volume_bytes),
            submission_bytes: size(stored.submission_bytes),
            submissions: size(stored.submissions),
            log_bytes: size(stored.log_bytes),
        })
    }

    /// The retention of an organization.
    ///
    /// # Errors
    /// The caller may not see the organization.
    pub async fn retention(&self, caller: &Caller, org: OrgId) -> Result<Retention, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let chosen_days = store::storage::find_retention(&mut conn.tx(), org).await?.map(days);
        let portal_days = self.context.settings.keep_ended_jobs_days.map(days);
        let keep_ended_jobs_days = match (chosen_days, portal_days) {
            (Some(chosen), Some(portal)) => Some(chosen.min(portal)),
            (chosen, portal) => chosen.or(portal),
        };
        Ok(Retention { keep_ended_jobs_days, portal_days, chosen_days })
    }

    /// Sets the retention of an organization. It may be shorter than the portal's, never longer.
    ///
    /// # Errors
    /// The days are out of range, or the caller does not own the organization.
    pub async fn set_retention(
        &self,
        caller: &Caller,
        org: OrgId,
        input: SetRetention,
    ) -> Result<Retention, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let most = self.context.settings.keep_ended_jobs_days.map_or(MAX_DAYS, days);
        let chosen = input.keep_ended_jobs_days;
        if chosen.is_some_and(|days| !(1..=most).contains(&days)) {
            let detail =
                format!("Enter 1 to {most} days, or omit the field for the retention of the portal.");
            return Err(Problem::invalid_field("/keep_ended_jobs_days", detail));
        }
        let detail = match chosen {
            Some(1) => "1 day".to_owned(),
            Some(days) => format!("{days} days"),
            None => "as the portal".to_owned(),
        };
        let event = self.context.audit_event(caller, "retention.set", org.to_string(), detail);
        let (user, chosen) = (caller.user.id, chosen.map(i64::from));
        let setting = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                // The caller may have lost the right after the authorisation.
                match store::accounts::find_role(tx, org, user).await? {
                    Some(role) if Right::Manage.is_granted_to(role) => {}
                    Some(role) => return Err(forbidden_for(role).into()),
                    None => return Err(Problem::not_found().into()),
                }
                if store::storage::find_retention(tx, org).await? != chosen {
                    store::storage::put_retention(tx, org, chosen).await?;
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                Ok(())
            }
            .boxed()
        });
        setting.await?;
        self.retention(caller, org).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_has_the_labels_and_none_of_the_texts() {
        let spec = NewJob {
            name: "train".to_owned(),
            command: Some(vec!["true".to_owned()]),
            labels: BTreeMap::from([("team".to_owned(), "vision".to_owned())]),
            files: BTreeMap::from([("a".to_owned(), String::new())]),
            ..NewJob::default()
        };
        let stub = stub(&spec);
        assert_eq!((&stub.name, &stub.labels), (&spec.name, &spec.labels));
        assert!(stub.command.is_none() && stub.files.is_empty());
    }

    #[test]
    fn a_run_has_room_for_a_batch() {
        assert_eq!((room(0), room(99), room(100), room(101)), (100, 1, 0, 0));
    }
}
