//! Files of jobs: their list, download, removal and expiry. `intake` receives files from workers and returns
//! checkpoints.
//!
//! A row is marked gone before its bytes are removed, and deleted afterwards. So no complete row lacks its
//! bytes.

pub mod routes;

mod bundles;
mod checkpoint_retention;
mod handovers;
mod intake;
mod staging;

use std::ops::Range;
use std::sync::Arc;

use berth_types::Page;
use berth_types::files::{FileKind, FileState, JobFile};
use berth_types::ids::{FileId, JobId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::problems::Problem;
use futures::FutureExt;

use berth_foundation::Context;
use berth_foundation::objects::ByteStream;
use berth_foundation::objects::Objects;
use berth_foundation::{Caller, Right};
use berth_store::files::StoredFile;
use berth_store::{self as store, StoreError};

pub use bundles::{BundleInput, ExpectedIds, OfferedBundle, SmallFile};
pub(crate) use bundles::{known_artifacts, register_artifacts, verified_contents};
pub use handovers::{AwaitedHandOvers, HandOvers};
pub use intake::{FileProgress, OfferedFile};
pub use staging::{ChunkOutcome, Staging};

/// Days after the end of a job for which its files are kept.
const CHECKPOINT_DAYS: i64 = 7;
const ARTIFACT_DAYS: i64 = 30;
/// Files in one round of removal.
const BATCH: i64 = 200;

fn to_job_file(row: StoredFile) -> Result<JobFile, StoreError> {
    let corrupt = || StoreError::Corrupt(row.id.to_string());
    Ok(JobFile {
        id: row.id,
        kind: row.kind,
        state: row.state,
        bytes: u64::try_from(row.bytes).map_err(|_| corrupt())?,
        attempt: u32::try_from(row.attempt).map_err(|_| corrupt())?,
        rank: u32::try_from(row.rank).map_err(|_| corrupt())?,
        files: u64::try_from(row.files).unwrap_or(0),
        created_at: row.created_at,
        path: row.path,
        sha256: row.sha256,
        note: row.note,
    })
}

/// The files of jobs.
#[derive(Clone)]
pub struct Files {
    context: Context,
    objects: Arc<Objects>,
    staging: Staging,
    handovers: Arc<HandOvers>,
}

impl Files {
    pub fn new(context: Context, objects: Arc<Objects>, handovers: Arc<HandOvers>) -> Self {
        Self { context, staging: Staging::new(objects.clone()), objects, handovers }
    }

    /// A page of the files of a job.
    pub async fn list_files(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        options: &ListOptions<FileId>,
    ) -> Result<Page<JobFile>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        if store::jobs::find(&mut tx, org, job).await?.is_none() {
            return Err(Problem::not_found());
        }
        let rows = store::files::list(&mut tx, org, job, options).await?;
        Ok(options.page(rows, |row| row.id).try_map(to_job_file)?)
    }

    /// A complete file of a job.
    ///
    /// # Errors
    /// The file is not complete, or there is no such file.
    pub async fn get_file(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        file: FileId,
    ) -> Result<JobFile, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let row = store::files::find(&mut conn.tx(), org, job, file).await?;
        let row = row.filter(|row| row.state != FileState::Gone).ok_or_else(Problem::not_found)?;
        let file = to_job_file(row)?;
        if file.state != FileState::Complete {
            let detail = match file.note {
                Some(note) if file.state == FileState::Refused => note,
                _ => "It has not arrived whole yet; nothing can be fetched of it.".to_owned(),
            };
            return Err(Problem::conflict("file.incomplete", "The file is not there", detail));
        }
        Ok(file)
    }

    /// A range of a file from [`Files::get_file`].
    pub async fn read_file(&self, file: &JobFile, range: Range<u64>) -> Result<ByteStream, Problem> {
        Ok(self.objects.read(&file.id.to_string(), range).await?)
    }

    /// Removes a file. Without its newest checkpoint a job restores the one before.
    pub async fn remove_file(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        file: FileId,
    ) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let event = self.context.audit_event(caller, "file.removed", job.to_string(), file.to_string());
        let found = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let row = store::files::find(tx, org, job, file).await?;
                let Some(row) = row.filter(|row| row.state != FileState::Gone) else { return Ok(false) };
                store::files::set_state(tx, row.id, row.state, FileState::Gone, None).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(true)
            }
            .boxed()
        });
        if !found.await? {
            return Err(Problem::not_found());
        }
        self.sweep_files().await
    }

    /// Marks expired files and abandoned partial files as gone, then removes all gone files.
    pub async fn tidy_files(&self) -> Result<(), Problem> {
        let now = self.context.now();
        self.context
            .db
            .write(move |tx| {
                async move {
                    for (kind, days) in
                        [(FileKind::Checkpoint, CHECKPOINT_DAYS), (FileKind::Artifact, ARTIFACT_DAYS)]
                    {
                        store::files::expire(tx, kind, now.plus_seconds(-days * 86_400)).await?;
                    }
                    store::files::abandon(tx).await
                }
                .boxed()
            })
            .await?;
        self.sweep_files().await
    }

    /// Removes the bytes and then the rows of files that are gone.
    pub async fn sweep_files(&self) -> Result<(), Problem> {
        loop {
            let mut conn = self.context.db.read().await?;
            let rows = store::files::list_gone(&mut conn.tx(), BATCH).await?;
            drop(conn);
            let full = i64::try_from(rows.len()) == Ok(BATCH);
            let mut ids: Vec<FileId> = Vec::new();
            for row in rows {
                let object = row.id.to_string();
                // Another task writes this file. The next round removes it.
                let Some(_lock) = self.objects.try_lock(&object) else { continue };
                self.objects.remove(&object).await?;
                ids.push(row.id);
            }
            let removed_none = ids.is_empty();
            self.context
                .db
                .write(move |tx| {
                    let ids = ids.clone();
                    async move {
                        for id in ids {
                            store::files::remove(tx, id).await?;
                        }
                        Ok(())
                    }
                    .boxed()
                })
                .await?;
            if !full || removed_none {
                return Ok(());
            }
        }
    }
}
