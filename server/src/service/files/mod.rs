//! Files of jobs that outlive their attempt: who sees and removes them, and when they are removed by
//! themselves. `intake` takes them from workers and gives checkpoints back.
//!
//! A row is marked gone before its bytes are removed and deleted after, so that no row ever promises bytes
//! that are not there.

mod bundles;
mod handing;
mod intake;
mod staging;

use std::ops::Range;
use std::time::Duration;

use berth_types::Page;
use berth_types::files::{FileKind, FileState, JobFile};
use berth_types::ids::{FileId, JobId, OrgId};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use futures::stream::BoxStream;

use super::{Caller, Right};
use crate::depot::DepotError;
use crate::portal::Portal;
use crate::store::files::FileRow;
use crate::store::{self, StoreError};

pub(crate) use bundles::{Expected, Order};
pub use bundles::{OfferedBundle, SmallFile};
pub(crate) use handing::{Awaited, HandOvers};
pub(crate) use intake::digits;
pub use intake::{Kept, Offered};
pub(crate) use staging::Taken;

/// Between two looks for what is to be removed.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);
/// Days after its job's end for which a file is kept.
const CHECKPOINT_DAYS: i64 = 7;
const ARTIFACT_DAYS: i64 = 30;
/// Files that are removed at a time.
const BATCH: i64 = 200;

/// The bytes of a part of a file.
pub type Content = BoxStream<'static, std::io::Result<bytes::Bytes>>;

impl From<DepotError> for Problem {
    /// The cause goes to the log, never into the answer.
    fn from(error: DepotError) -> Self {
        tracing::error!(%error, "files");
        Problem::unavailable("Files cannot be reached now; try again.", 5)
    }
}

/// Removes by itself what is over, for as long as the portal runs.
pub async fn run(portal: Portal) {
    loop {
        if let Err(problem) = portal.tidy_files().await {
            tracing::error!(detail = problem.detail, "files could not be tidied; the next look tries again");
        }
        if let Err(problem) = portal.tidy_volumes().await {
            tracing::error!(
                detail = problem.detail,
                "volumes could not be tidied; the next look tries again"
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn show(row: FileRow) -> Result<JobFile, StoreError> {
    let corrupt = || StoreError::Corrupt(row.id.clone());
    Ok(JobFile {
        id: row.id.parse().map_err(|_| corrupt())?,
        kind: FileKind::parse(&row.kind).ok_or_else(corrupt)?,
        state: FileState::parse(&row.state).ok_or_else(corrupt)?,
        bytes: u64::try_from(row.bytes).map_err(|_| corrupt())?,
        attempt: u32::try_from(row.attempt).map_err(|_| corrupt())?,
        rank: u32::try_from(row.rank).map_err(|_| corrupt())?,
        files: u64::try_from(row.files).unwrap_or(0),
        created_at: Timestamp::from_micros(row.created_at),
        path: row.path,
        sha256: row.sha256,
        note: row.note,
    })
}

impl Portal {
    /// What a job has left so far, newest first.
    pub async fn list_files(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        cursor: Option<FileId>,
        limit: u32,
    ) -> Result<Page<JobFile>, Problem> {
        self.authorise(caller, org, Right::Look).await?;
        let before = cursor.map_or_else(String::new, |c| c.to_string());
        let mut conn = self.db.read().await?;
        let mut tx = conn.tx();
        if store::jobs::find(&mut tx, org, job).await?.is_none() {
            return Err(Problem::not_found());
        }
        let rows = store::files::list(&mut tx, org, job, &before, i64::from(limit)).await?;
        let full = rows.len() == limit as usize;
        let items = rows.into_iter().map(show).collect::<Result<Vec<JobFile>, StoreError>>()?;
        let next_cursor = items.last().filter(|_| full).map(|f| f.id.to_string());
        Ok(Page { items, next_cursor })
    }

    /// A file of a job that can be fetched.
    pub async fn get_file(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        file: FileId,
    ) -> Result<JobFile, Problem> {
        self.authorise(caller, org, Right::Look).await?;
        let mut conn = self.db.read().await?;
        let row = store::files::find(&mut conn.tx(), org, job, file).await?;
        let row = row.filter(|row| row.state != FileState::Gone.name()).ok_or_else(Problem::not_found)?;
        let file = show(row)?;
        if file.state != FileState::Complete {
            let detail = match file.note {
                Some(note) if file.state == FileState::Refused => note,
                _ => "It has not arrived whole yet; nothing can be fetched of it.".to_owned(),
            };
            return Err(Problem::conflict("file.incomplete", "The file is not there", detail));
        }
        Ok(file)
    }

    /// A part of a file that [`Portal::get_file`] gave.
    pub async fn read_file(&self, file: &JobFile, range: Range<u64>) -> Result<Content, Problem> {
        Ok(self.depot.read(&file.id.to_string(), range).await?)
    }

    /// Removes a file. What its job would be given as a checkpoint is then the one before.
    pub async fn remove_file(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        file: FileId,
    ) -> Result<(), Problem> {
        self.authorise(caller, org, Right::Run).await?;
        let event = self.audit_event(caller, "file.removed", job.to_string(), file.to_string());
        let found = self.db.write(move |tx| {
            let event = event.clone();
            async move {
                let row = store::files::find(tx, org, job, file).await?;
                let state = row.as_ref().and_then(|row| FileState::parse(&row.state));
                let Some((row, state)) = row.zip(state.filter(|s| *s != FileState::Gone)) else {
                    return Ok(false);
                };
                store::files::set_state(tx, &row.id, state, FileState::Gone, None).await?;
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

    /// Gives up what is too old or will never be whole, and removes everything that is gone.
    pub async fn tidy_files(&self) -> Result<(), Problem> {
        let now = self.now();
        self.db
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
    pub(crate) async fn sweep_files(&self) -> Result<(), Problem> {
        loop {
            let mut conn = self.db.read().await?;
            let rows = store::files::list_gone(&mut conn.tx(), BATCH).await?;
            drop(conn);
            let full = i64::try_from(rows.len()) == Ok(BATCH);
            let mut ids: Vec<String> = Vec::new();
            for row in rows {
                // Whoever writes it finds that it is gone; the next look removes what is left.
                let Some(_claim) = self.depot.claim(&row.id) else { continue };
                self.depot.remove(&row.id).await?;
                ids.push(row.id);
            }
            let none = ids.is_empty();
            self.db
                .write(move |tx| {
                    let ids = ids.clone();
                    async move {
                        for id in &ids {
                            store::files::remove(tx, id).await?;
                        }
                        Ok(())
                    }
                    .boxed()
                })
                .await?;
            if !full || none {
                return Ok(());
            }
        }
    }
}
