//! The uses of volumes by jobs: requested volumes, writers, and the versions of attempts.
//!
//! One attempt at a time writes to a volume, from its start until its hand-over is complete or no longer
//! awaited. Readers have the version of their start and block no other job; a reader that depends on the writer
//! starts after the hand-over. A volume of a storage class has no versions and no such writer: its jobs share the
//! files on the nodes.

use std::collections::HashMap;

use berth_engine::HeldVolume;
use berth_types::ids::{JobId, OrgId, VolumeId};
use berth_types::jobs::{DependsOn, Failure, NewJob};
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use berth_types::volumes::{JobVolume, VolumeMode};

use crate::files::{AwaitedHandOvers, HandOvers};
use crate::start_inputs::{RankVolume, StartInputError};
use berth_foundation::{Change, Context};
use berth_store::attempts::{StoredAttempt, StoredOpenRank};
use berth_store::jobs::StoredJob;
use berth_store::volumes::uses::StoredVolumeUse;
use berth_store::{self as store, StoreError, Tx, WriteError};
use std::sync::Arc;

pub(super) const TOO_LATE: &str =
    "The files came too late: the volume has changed since the end of the attempt.";

/// The job that writes to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeWriter {
    pub job: JobId,
    /// Its attempt has ended, and the hand-over is not complete.
    pub saving: bool,
}

impl VolumeWriter {
    /// Returns true if a job waits for this writer: it would write too, or it depends on the writer and would read
    /// the files from before its end.
    fn blocks(&self, writable: bool, depends_on: &[DependsOn]) -> bool {
        writable || (self.saving && depends_on.iter().any(|dependency| dependency.job == self.job))
    }
}

/// Refuses a submission that names a missing volume, or whose ranks would write to a volume of the portal together.
pub async fn check_volumes_exist(tx: &mut Tx<'_>, org: OrgId, spec: &NewJob) -> Result<(), WriteError> {
    let mut errors = Vec::new();
    for (index, request) in spec.volumes.iter().enumerate() {
        let Some(volume) = store::volumes::find(tx, org, &request.name).await? else {
            let detail = format!("The volume {} does not exist in this organization.", request.name);
            errors.push(FieldError::new(format!("/volumes/{index}/name"), detail));
            continue;
        };
        if request.mode == VolumeMode::Rw && spec.nodes > 1 && volume.class.is_none() {
            let detail = "Only one rank can write to a volume without a storage class. Choose the mode ro for a job on several nodes.";
            errors.push(FieldError::new(format!("/volumes/{index}/mode"), detail));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(Problem::invalid(errors).into()) }
}

/// The storage classes of the volumes of a submission.
pub async fn storage_classes(
    tx: &mut Tx<'_>,
    org: OrgId,
    spec: &NewJob,
) -> Result<Vec<Arc<str>>, StoreError> {
    let mut classes: Vec<Arc<str>> = Vec::new();
    for request in &spec.volumes {
        let volume = store::volumes::find(tx, org, &request.name).await?;
        if let Some(class) = volume.and_then(|volume| volume.class)
            && !classes.iter().any(|known| **known == *class)
        {
            classes.push(class.into());
        }
    }
    Ok(classes)
}

/// The storage classes of the volumes of queued jobs, by job. `job` limits the result to one job; `None` means all
/// jobs.
pub async fn waiting_storage_classes(
    tx: &mut Tx<'_>,
    job: Option<JobId>,
) -> Result<HashMap<JobId, Vec<Arc<str>>>, StoreError> {
    let mut out: HashMap<JobId, Vec<Arc<str>>> = HashMap::new();
    for (job, class) in store::volumes::uses::list_waiting_classes(tx, job).await? {
        out.entry(job).or_default().push(class.into());
    }
    Ok(out)
}

/// Records the volumes of a new job. From then on they cannot be deleted.
pub async fn record_volumes(
    tx: &mut Tx<'_>,
    org: OrgId,
    job: JobId,
    spec: &NewJob,
) -> Result<(), StoreError> {
    for (index, request) in (0..).zip(&spec.volumes) {
        let Some(volume) = store::volumes::find(tx, org, &request.name).await? else {
            return Err(StoreError::Stale);
        };
        let writable = request.mode == VolumeMode::Rw;
        store::volumes::uses::insert_request(tx, job, index, volume.id, writable).await?;
    }
    Ok(())
}

/// The present writer of a volume.
pub async fn find_writer(
    tx: &mut Tx<'_>,
    volume: VolumeId,
    now: Timestamp,
    awaited: &AwaitedHandOvers,
) -> Result<Option<VolumeWriter>, StoreError> {
    for row in store::volumes::uses::list_writers(tx, volume).await? {
        let mut ranks = store::attempts::list_ranks(tx, row.job_id, row.attempt).await?;
        ranks.retain(|rank| rank.is_open);
        let runs = ranks.iter().any(|rank| !rank.ended);
        ranks.retain(|rank: &StoredAttempt| rank.saving);
        if runs || awaited.includes_any(&ranks, now) {
            return Ok(Some(VolumeWriter { job: row.job_id, saving: !runs }));
        }
    }
    Ok(None)
}

/// Refuses later hand-overs to a volume, for a change in the caller's transaction. Returns the present writer
/// instead, if there is one.
pub async fn revoke_idle_writers(
    tx: &mut Tx<'_>,
    volume: VolumeId,
    now: Timestamp,
    awaited: &AwaitedHandOvers,
) -> Result<Option<VolumeWriter>, StoreError> {
    let writer = find_writer(tx, volume, now, awaited).await?;
    if writer.is_none() {
        store::volumes::uses::abandon(tx, volume).await?;
    }
    Ok(writer)
}

/// Returns true if a job writes to a volume. Other jobs can wait for such a job.
pub fn writes_volumes(job: &StoredJob) -> bool {
    job.spec.volumes.iter().any(|request| request.mode == VolumeMode::Rw)
}

/// The volumes of a job by id, each true if writable. `None` while the job waits for the writer of a volume.
pub async fn find_available(
    tx: &mut Tx<'_>,
    job: &StoredJob,
    now: Timestamp,
    awaited: &AwaitedHandOvers,
) -> Result<Option<Vec<(VolumeId, bool)>>, StoreError> {
    // A job without volumes has no rows in `job_volumes`.
    if job.spec.volumes.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let requests = store::volumes::uses::list_requests(tx, job.id).await?;
    for (volume, writable) in &requests {
        let writer = match *writable || !job.spec.depends_on.is_empty() {
            true => find_writer(tx, *volume, now, awaited).await?,
            false => None,
        };
        if writer.is_some_and(|writer| writer.blocks(*writable, &job.spec.depends_on)) {
            return Ok(None);
        }
    }
    Ok(Some(requests))
}

/// Assigns the present versions of its volumes to an attempt.
pub async fn assign_versions(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
    requests: Vec<(VolumeId, bool)>,
) -> Result<(), StoreError> {
    for (volume_id, writable) in requests {
        let Some(volume) = store::volumes::find_any(tx, volume_id).await? else { continue };
        // Jobs write to a volume of a storage class together, and hand nothing over.
        let writable = writable && volume.class.is_none();
        if writable {
            store::volumes::uses::abandon(tx, volume_id).await?;
        }
        let row = StoredVolumeUse {
            job_id: job,
            attempt,
            volume_id,
            version: volume.version,
            writable,
            abandoned: false,
            kept_version: None,
            note: None,
        };
        store::volumes::uses::insert(tx, &row).await?;
    }
    Ok(())
}

/// Adds the version, the kept version and the note of an attempt to the volumes of its job.
pub async fn add_outcomes(
    tx: &mut Tx<'_>,
    job: JobId,
    attempt: i64,
    volumes: &mut [JobVolume],
) -> Result<(), StoreError> {
    if volumes.is_empty() {
        return Ok(());
    }
    let requests = store::volumes::uses::list_requests(tx, job).await?;
    let given = store::volumes::uses::list(tx, job, attempt).await?;
    for (volume, (id, _)) in volumes.iter_mut().zip(requests) {
        let Some(row) = given.iter().find(|row| row.volume_id == id) else { continue };
        let has_class = store::volumes::find_any(tx, id).await?.is_some_and(|found| found.class.is_some());
        if has_class {
            continue;
        }
        let is_late = row.abandoned && row.kept_version.is_none() && row.note.is_none();
        volume.version = Some(row.version);
        volume.kept_version = row.kept_version;
        volume.note = row.note.clone().or_else(|| is_late.then(|| TOO_LATE.to_owned()));
    }
    Ok(())
}

/// The volumes of waiting jobs and of attempts.
#[derive(Clone)]
pub struct VolumeUses {
    context: Context,
    handovers: Arc<HandOvers>,
}

impl VolumeUses {
    pub const fn new(context: Context, handovers: Arc<HandOvers>) -> Self {
        Self { context, handovers }
    }

    /// The awaited hand-overs.
    pub fn awaited(&self) -> AwaitedHandOvers {
        self.handovers.awaited(self.context.live.connected())
    }

    /// The volumes with a writer that block queued jobs, by job. `job` limits the result to one job; `None`
    /// means all jobs.
    pub async fn held_volumes(
        &self,
        tx: &mut Tx<'_>,
        job: Option<JobId>,
    ) -> Result<HashMap<JobId, HeldVolume>, StoreError> {
        let (now, awaited) = (self.context.now(), self.awaited());
        let mut writers: HashMap<VolumeId, Option<VolumeWriter>> = HashMap::new();
        let mut out = HashMap::new();
        for row in store::volumes::uses::list_waiting_requests(tx, job).await? {
            let known = match writers.get(&row.volume_id) {
                Some(known) => known.clone(),
                None => {
                    let found = find_writer(tx, row.volume_id, now, &awaited).await?;
                    writers.insert(row.volume_id, found.clone());
                    found
                }
            };
            let Some(writer) = known.filter(|writer| row.writable || writer.saving) else { continue };
            let depends_on = match row.writable {
                true => Vec::new(),
                false => store::jobs::find_any(tx, row.job_id)
                    .await?
                    .map_or_else(Vec::new, |job| job.spec.depends_on.clone()),
            };
            if writer.blocks(row.writable, &depends_on) {
                let held = HeldVolume { name: row.name, job: writer.job, saving: writer.saving };
                out.entry(row.job_id).or_insert(held);
            }
        }
        Ok(out)
    }

    /// Publishes the queued jobs that wait for the volumes of this job.
    pub async fn publish_waiting(&self, job: JobId) -> Result<(), StoreError> {
        let mut conn = self.context.db.read().await?;
        for waiting in store::volumes::uses::list_jobs_behind(&mut conn.tx(), job).await? {
            self.context.publish(Change::JobDevices(waiting));
        }
        Ok(())
    }

    /// Lists the assigned volumes of a rank.
    ///
    /// # Errors
    /// A volume was deleted, or the database cannot be read.
    pub async fn list_start_volumes(
        &self,
        tx: &mut Tx<'_>,
        row: &StoredOpenRank,
        submission: &NewJob,
    ) -> Result<Vec<RankVolume>, StartInputError> {
        if submission.volumes.is_empty() {
            return Ok(Vec::new());
        }
        let ids = store::volumes::uses::list_requests(tx, row.job_id).await?;
        let given = store::volumes::uses::list(tx, row.job_id, row.number).await?;
        let mut volumes = Vec::new();
        for (request, (id, _)) in submission.volumes.iter().zip(ids) {
            let Some(given) = given.iter().find(|given| given.volume_id == id) else {
                let detail =
                    format!("The volume {} was deleted before the start of the attempt.", request.name);
                let code = "volume.missing".to_owned();
                return Err(StartInputError::Unusable(Failure { code, detail }));
            };
            let (bytes, _) = store::volumes::totals(tx, id, given.version).await?;
            let found = store::volumes::find_any(tx, id).await?;
            let class = found.as_ref().and_then(|volume| volume.class.clone());
            let group = match found.filter(|_| class.is_some()) {
                Some(volume) => store::volumes::classes::find_group(tx, volume.org_id).await?.unwrap_or(0),
                None => 0,
            };
            volumes.push(RankVolume {
                volume: id,
                name: request.name.clone(),
                path: request.path.clone(),
                writable: if class.is_some() { request.mode == VolumeMode::Rw } else { given.writable },
                bytes: u64::try_from(bytes).unwrap_or(0),
                class,
                group: u32::try_from(group).unwrap_or(0),
            });
        }
        Ok(volumes)
    }
}
