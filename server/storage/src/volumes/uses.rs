//! Which job has which version of a volume: what is asked for, who writes, what a start is given.
//!
//! One attempt writes to a volume at a time, from its start until what it left has been handed over or is
//! not awaited any more. Readers have the version of their start and hinder nobody.

use std::collections::HashMap;

use berth_core::engine::HeldVolume;
use berth_proto as proto;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::NewJob;
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use berth_types::volumes::{JobVolume, VolumeMode, VolumeUse};
use serde::Deserialize;

use crate::files::{Awaited, HandOvers};
use berth_foundation::{Change, Context};
use berth_store::attempts::{AttemptRow, OpenRow};
use berth_store::jobs::JobRow;
use berth_store::volumes::uses::UseRow;
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

const TOO_LATE: &str = "What it left came too late: the volume was changed by others before.";

/// What of a submission is about volumes.
#[derive(Deserialize)]
struct Wanted {
    #[serde(default)]
    volumes: Vec<VolumeUse>,
}

/// The job that writes to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    pub job: JobId,
    /// Its attempt has ended, and hands over what it left.
    pub saving: bool,
}

/// Every volume that a submission asks for must be there.
pub async fn check_wanted(tx: &mut Tx<'_>, org: OrgId, spec: &NewJob) -> Result<Option<Problem>, StoreError> {
    let mut errors = Vec::new();
    for (index, wanted) in spec.volumes.iter().enumerate() {
        if store::volumes::find(tx, org, &wanted.name).await?.is_none() {
            let detail = format!("There is no volume {} in this organization.", wanted.name);
            errors.push(FieldError::new(format!("/volumes/{index}/name"), detail));
        }
    }
    Ok((!errors.is_empty()).then(|| Problem::invalid(errors)))
}

/// Records what a new job asks for: from now on its volumes cannot be deleted.
pub async fn record_wanted(tx: &mut Tx<'_>, org: OrgId, job: JobId, spec: &NewJob) -> Result<(), StoreError> {
    for (index, wanted) in (0..).zip(&spec.volumes) {
        let Some(volume) = store::volumes::find(tx, org, &wanted.name).await? else {
            return Err(StoreError::Stale);
        };
        let writable = wanted.mode == VolumeMode::Rw;
        store::volumes::uses::insert_wanted(tx, job, index, &volume.id, writable).await?;
    }
    Ok(())
}

/// Who writes to a volume now.
pub async fn writer(
    tx: &mut Tx<'_>,
    volume: &str,
    now: Timestamp,
    awaited: &Awaited,
) -> Result<Option<Writer>, StoreError> {
    for row in store::volumes::uses::list_writers(tx, volume).await? {
        let mut ranks = store::attempts::list_ranks(tx, &row.job_id, row.attempt).await?;
        ranks.retain(|rank| rank.is_open);
        let runs = ranks.iter().any(|rank| !rank.ended);
        ranks.retain(|rank: &AttemptRow| rank.saving);
        if runs || awaited.any(&ranks, now) {
            let job = row.job_id.parse().map_err(|_| StoreError::Corrupt(row.job_id.clone()))?;
            return Ok(Some(Writer { job, saving: !runs }));
        }
    }
    Ok(None)
}

/// Makes sure that nobody writes to a volume from now on but the caller's transaction; otherwise who does.
pub async fn take_over(
    tx: &mut Tx<'_>,
    volume: &str,
    now: Timestamp,
    awaited: &Awaited,
) -> Result<Option<Writer>, StoreError> {
    let writer = writer(tx, volume, now, awaited).await?;
    if writer.is_none() {
        store::volumes::uses::give_up(tx, volume).await?;
    }
    Ok(writer)
}

/// What a job asks for, by its submission: nothing is recorded of a job whose submission names no volume.
fn asked(job: &JobRow) -> Result<Vec<VolumeUse>, StoreError> {
    let Wanted { volumes } =
        serde_json::from_str(&job.spec).map_err(|_| StoreError::Corrupt(job.id.clone()))?;
    Ok(volumes)
}

/// Whether a job writes to volumes, so that others may wait for it.
pub fn writes(job: &JobRow) -> Result<bool, StoreError> {
    Ok(asked(job)?.iter().any(|wanted| wanted.mode == VolumeMode::Rw))
}

/// The volumes that a job asks for, if it may have them all now.
pub async fn ready(
    tx: &mut Tx<'_>,
    job: &JobRow,
    now: Timestamp,
    awaited: &Awaited,
) -> Result<Option<Vec<(String, bool)>>, StoreError> {
    if asked(job)?.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let wanted = store::volumes::uses::list_wanted(tx, &job.id).await?;
    for (volume, writable) in &wanted {
        if *writable && writer(tx, volume, now, awaited).await?.is_some() {
            return Ok(None);
        }
    }
    Ok(Some(wanted))
}

/// Gives an attempt the present versions of its volumes.
pub async fn give(
    tx: &mut Tx<'_>,
    job: &str,
    attempt: i64,
    wanted: Vec<(String, bool)>,
) -> Result<(), StoreError> {
    for (volume_id, writable) in wanted {
        let Some(volume) = store::volumes::find_any(tx, &volume_id).await? else { continue };
        if writable {
            store::volumes::uses::give_up(tx, &volume_id).await?;
        }
        let row = UseRow {
            job_id: job.to_owned(),
            attempt,
            volume_id,
            version: volume.version,
            writable,
            given_up: false,
            kept_version: None,
            note: None,
        };
        store::volumes::uses::insert(tx, &row).await?;
    }
    Ok(())
}

/// Says of each volume of a shown job what became of it in its latest attempt.
pub async fn tell(
    tx: &mut Tx<'_>,
    job: &str,
    attempt: i64,
    shown: &mut [JobVolume],
) -> Result<(), StoreError> {
    if shown.is_empty() {
        return Ok(());
    }
    let wanted = store::volumes::uses::list_wanted(tx, job).await?;
    let given = store::volumes::uses::list(tx, job, attempt).await?;
    for (shown, (volume, _)) in shown.iter_mut().zip(wanted) {
        let Some(row) = given.iter().find(|row| row.volume_id == volume) else { continue };
        let late = row.given_up && row.kept_version.is_none() && row.note.is_none();
        shown.version = Some(row.version);
        shown.kept_version = row.kept_version;
        shown.note = row.note.clone().or_else(|| late.then(|| TOO_LATE.to_owned()));
    }
    Ok(())
}

/// The volumes of jobs: which wait for one, and which an attempt is given.
#[derive(Clone)]
pub struct VolumeUses {
    context: Context,
    handovers: Arc<HandOvers>,
}

impl VolumeUses {
    pub const fn new(context: Context, handovers: Arc<HandOvers>) -> Self {
        Self { context, handovers }
    }

    /// The hand-overs that are still expected.
    pub fn awaited(&self) -> Awaited {
        self.handovers.awaited(self.context.live.connected())
    }

    /// The volumes for which queued jobs wait because another job writes to them: of one job, or of all (`""`).
    pub async fn held_volumes(
        &self,
        tx: &mut Tx<'_>,
        job: &str,
    ) -> Result<HashMap<String, HeldVolume>, StoreError> {
        let (now, awaited) = (self.context.now(), self.awaited());
        let mut writers: HashMap<String, Option<Writer>> = HashMap::new();
        let mut out = HashMap::new();
        for row in store::volumes::uses::list_waiting(tx, job).await? {
            let known = match writers.get(&row.volume_id) {
                Some(known) => known.clone(),
                None => {
                    let found = writer(tx, &row.volume_id, now, &awaited).await?;
                    writers.insert(row.volume_id.clone(), found.clone());
                    found
                }
            };
            if let Some(writer) = known {
                let held = HeldVolume { name: row.name, job: writer.job, saving: writer.saving };
                out.entry(row.job_id).or_insert(held);
            }
        }
        Ok(out)
    }

    /// Whoever waits to write to what this job writes to is looked at again.
    pub async fn publish_waiting(&self, job: JobId) -> Result<(), StoreError> {
        let mut conn = self.context.db.read().await?;
        for waiting in store::volumes::uses::list_behind(&mut conn.tx(), &job.to_string()).await? {
            if let Ok(waiting) = waiting.parse() {
                self.context.publish(Change::Claim(waiting));
            }
        }
        Ok(())
    }

    /// Adds to an attempt's specification the volumes that it was given.
    pub async fn add_volumes(
        &self,
        tx: &mut Tx<'_>,
        row: &OpenRow,
        submission: &NewJob,
        spec: &mut proto::Spec,
    ) -> Result<(), StoreError> {
        if submission.volumes.is_empty() {
            return Ok(());
        }
        let ids = store::volumes::uses::list_wanted(tx, &row.job_id).await?;
        let given = store::volumes::uses::list(tx, &row.job_id, row.number).await?;
        for (wanted, (id, _)) in submission.volumes.iter().zip(ids) {
            let Some(given) = given.iter().find(|given| given.volume_id == id) else {
                let detail =
                    format!("The volume {} is not there any more; nothing was charged.", wanted.name);
                let failure = proto::Failure { code: "volume.missing".to_owned(), detail };
                spec.unusable.get_or_insert(failure);
                break;
            };
            let (bytes, _) = store::volumes::totals(tx, &id, given.version).await?;
            spec.volumes.push(proto::Mount {
                volume: id,
                name: wanted.name.clone(),
                path: wanted.path.clone(),
                writable: given.writable,
                bytes: u64::try_from(bytes).unwrap_or(0),
            });
        }
        Ok(())
    }
}
