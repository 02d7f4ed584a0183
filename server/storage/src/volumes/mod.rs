//! Volumes of organizations: their creation, list, deletion and files. `uploads` adds files of people, `uses`
//! assigns versions to jobs, `handover` exchanges files with workers.
//!
//! The files of a volume change from one version to the next in one transaction. A version stays whole for
//! the attempts that have it.

pub mod routes;

mod bundles;
mod handover;
mod handover_lists;
mod refusals;
mod unfinished;
mod uploads;
pub mod uses;

use std::ops::Range;

use berth_core::volumes::{MAX_BYTES, MAX_UPLOADS, MAX_VOLUMES, VolumeFile, check_new, list_dir};
use berth_types::Page;
use berth_types::ids::{FileId, OrgId};
use berth_types::lists::{ListOptions, NameCursor};
use berth_types::paths::{VOLUME_FILES, VOLUME_PATHS};
use berth_types::problems::{FieldError, Problem};
use berth_types::volumes::{NewVolume, Volume, VolumeEntry};
use futures::FutureExt;

use crate::files::{HandOvers, Staging};
use berth_foundation::Context;
use berth_foundation::objects::ByteStream;
use berth_foundation::objects::Objects;
use berth_foundation::{Caller, Right, idempotency};
use berth_rest::lists::page_in_memory;
use berth_store::volumes::{StoredVolume, StoredVolumeFile};
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

pub(crate) use bundles::{known_files, register_files};
pub use handover::{OfferedVolumeFile, VersionFile};
pub use handover_lists::{DecodeList, HandedOverFile};
pub(crate) use refusals::publish as publish_refused;
pub use uploads::PartOutcome;
pub use uses::VolumeUses;

/// Seconds without a new part after which an upload is abandoned.
const UPLOAD_TIMEOUT_S: i64 = 7 * 86_400;
/// Blobs in one round of removal.
const BATCH: i64 = 200;

async fn to_volume(tx: &mut Tx<'_>, row: StoredVolume) -> Result<Volume, StoreError> {
    let (bytes, files) = store::volumes::totals(tx, row.id, row.version).await?;
    let size = |n: i64| u64::try_from(n).unwrap_or(0);
    Ok(Volume {
        id: row.id,
        name: row.name,
        max_bytes: row.class.is_none().then(|| size(row.max_bytes)),
        class: row.class,
        used_bytes: size(bytes),
        files: size(files),
        version: row.version,
        created_by: row.created_by,
        created_at: row.created_at,
        changed_at: row.changed_at,
        // Only the view of a single volume fills these.
        unfinished_uploads: vec![],
    })
}

/// The refusal of a change to a volume with a writer.
fn busy(writer: &uses::VolumeWriter) -> Problem {
    let detail = if writer.saving {
        format!(
            "The files of {} are being uploaded to the volume. Nothing was changed. Try again in a moment.",
            writer.job
        )
    } else {
        format!(
            "{} writes to the volume, and a volume has one writer at a time. Nothing was changed. Try again after its end.",
            writer.job
        )
    };
    Problem::conflict("volume.busy", "Volume in use by a writer", detail)
}

fn bad_path(detail: &str) -> Problem {
    Problem::invalid_field("/path", detail)
}

/// Changes and reads volumes.
#[derive(Clone)]
pub struct Volumes {
    context: Context,
    objects: Arc<Objects>,
    staging: Staging,
    handovers: Arc<HandOvers>,
    decode_list: DecodeList,
}

impl Volumes {
    pub fn new(
        context: Context,
        objects: Arc<Objects>,
        handovers: Arc<HandOvers>,
        decode_list: DecodeList,
    ) -> Self {
        Self { context, staging: Staging::new(objects.clone()), objects, handovers, decode_list }
    }

    pub async fn create_volume(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewVolume,
    ) -> Result<Volume, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        if caller.already_created().is_some() {
            return self.get_volume(caller, org, &input.name).await;
        }
        let faults = check_new(&input);
        if !faults.is_empty() {
            let errors = faults.into_iter().map(|(pointer, detail)| FieldError::new(pointer, detail));
            return Err(Problem::invalid(errors.collect()));
        }
        let now = self.context.now();
        let row = StoredVolume {
            id: self.context.new_id(now),
            org_id: org,
            name: input.name,
            max_bytes: i64::try_from(input.max_bytes.unwrap_or(MAX_BYTES)).unwrap_or(i64::MAX),
            class: input.class,
            version: 0,
            created_by: caller.user.name.clone(),
            created_at: now,
            changed_at: now,
        };
        let detail = match &row.class {
            Some(class) => format!("Storage class {class}"),
            None => format!("{} bytes", row.max_bytes),
        };
        let event = self.context.audit_event(caller, "volume.created", row.name.clone(), detail);
        let key = caller.idempotency_key.clone();
        let created = self.context.db.try_write(move |tx| {
            let (row, event, key) = (row.clone(), event.clone(), key.clone());
            async move {
                if store::volumes::find(tx, org, &row.name).await?.is_some() {
                    let detail = format!("The volume {} already exists. Choose another name.", row.name);
                    return Err(Problem::conflict("volume.exists", "Name in use", detail).into());
                }
                if store::volumes::count(tx, org).await? >= MAX_VOLUMES {
                    let detail =
                        format!("An organization has at most {MAX_VOLUMES} volumes. Delete an unused one.");
                    return Err(Problem::conflict("volume.limit", "Too many volumes", detail).into());
                }
                if let Some(class) = &row.class
                    && !store::volumes::classes::is_granted(tx, class, org).await?
                {
                    let detail = format!(
                        "The organization may not use the storage class {class}. Nothing was created. Ask the operator for it."
                    );
                    return Err(Problem::invalid_field("/class", detail).into());
                }
                store::volumes::insert(tx, &row).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                idempotency::claim(tx, key.as_ref(), &row.name, now).await?;
                Ok(to_volume(tx, row).await?)
            }
            .boxed()
        });
        Ok(created.await?)
    }

    /// A page of the volumes of an organization by name.
    pub async fn list_volumes(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<NameCursor>,
    ) -> Result<Page<Volume>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let rows = store::volumes::list(&mut tx, org, options).await?;
        let page = options.page(rows, |row| NameCursor(row.name.clone()));
        let mut items = Vec::new();
        for row in page.items {
            items.push(to_volume(&mut tx, row).await?);
        }
        Ok(Page { items, next_cursor: page.next_cursor })
    }

    pub async fn get_volume(&self, caller: &Caller, org: OrgId, name: &str) -> Result<Volume, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let row = store::volumes::find(&mut tx, org, name).await?.ok_or_else(Problem::not_found)?;
        let uploads = store::volumes::blobs::list_uploads(&mut tx, row.id, MAX_UPLOADS).await?;
        let volume = to_volume(&mut tx, row).await?;
        drop(conn);
        Ok(Volume { unfinished_uploads: self.unfinished_uploads(uploads).await?, ..volume })
    }

    /// Deletes a volume with all its files. The files of a volume of a storage class stay on the file system.
    ///
    /// # Errors
    /// A job has the volume or waits for it.
    pub async fn delete_volume(&self, caller: &Caller, org: OrgId, name: String) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let event = self.context.audit_event(caller, "volume.deleted", name.clone(), String::new());
        let deleted = self.context.db.try_write(move |tx| {
            let (name, mut event) = (name.clone(), event.clone());
            async move {
                let Some(row) = store::volumes::find(tx, org, &name).await? else {
                    return Err(Problem::not_found().into());
                };
                if let Some(job) = store::volumes::uses::find_user(tx, row.id).await? {
                    let detail =
                        format!("{job} uses the volume or waits for it. Nothing was deleted. Stop the job, or wait for its end.");
                    return Err(Problem::conflict("volume.in_use", "Volume in use", detail).into());
                }
                let (bytes, files) = store::volumes::totals(tx, row.id, row.version).await?;
                event.detail = match &row.class {
                    Some(class) => format!("Storage class {class}; the files stay on it as {}", row.id),
                    None => format!("{files} files, {bytes} bytes"),
                };
                store::volumes::delete(tx, row.id).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        deleted.await?;
        self.tidy_volumes_soon();
        Ok(())
    }

    /// A page of the entries of one directory of a volume by name. The root is `""`.
    pub async fn list_volume_files(
        &self,
        caller: &Caller,
        org: OrgId,
        (name, dir): (&str, &str),
        options: &ListOptions<NameCursor>,
    ) -> Result<Page<VolumeEntry>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        if !dir.is_empty() {
            VOLUME_PATHS.check(dir).map_err(|detail| bad_path(&detail))?;
        }
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let row = store::volumes::find(&mut tx, org, name).await?.ok_or_else(Problem::not_found)?;
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let most = i64::try_from(VOLUME_FILES).unwrap_or(i64::MAX);
        let files = store::volumes::list_below(&mut tx, row.id, &prefix, most).await?;
        drop(conn);
        if files.is_empty() && !dir.is_empty() {
            return Err(Problem::not_found());
        }
        let listed = |file: StoredVolumeFile| VolumeFile {
            path: file.path,
            bytes: u64::try_from(file.bytes).unwrap_or(0),
            sha256: file.sha256,
            changed_at: file.changed_at,
        };
        let listed: Vec<VolumeFile> = files.into_iter().map(listed).collect();
        Ok(page_in_memory(list_dir(dir, &listed), options, |entry| entry.name.clone()))
    }

    /// A file in the present version of a volume.
    pub async fn get_volume_file(
        &self,
        caller: &Caller,
        org: OrgId,
        name: &str,
        path: &str,
    ) -> Result<StoredVolumeFile, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let row = store::volumes::find(&mut tx, org, name).await?.ok_or_else(Problem::not_found)?;
        store::volumes::find_file(&mut tx, row.id, path).await?.ok_or_else(Problem::not_found)
    }

    /// A range of a file from [`Volumes::get_volume_file`].
    pub async fn read_volume_file(
        &self,
        file: &StoredVolumeFile,
        range: Range<u64>,
    ) -> Result<ByteStream, Problem> {
        Ok(self.objects.read(&file.blob_id.to_string(), range).await?)
    }

    /// Removes a file from a volume by a new version.
    ///
    /// # Errors
    /// A job writes to the volume.
    pub async fn remove_volume_file(
        &self,
        caller: &Caller,
        org: OrgId,
        name: String,
        path: String,
    ) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let (now, awaited) = (self.context.now(), self.handovers.awaited(self.context.live.connected()));
        let event = self.context.audit_event(caller, "volume.file_removed", name.clone(), path.clone());
        let removed = self.context.db.try_write(move |tx| {
            let (name, path, event) = (name.clone(), path.clone(), event.clone());
            let awaited = awaited.clone();
            async move {
                let Some(row) = store::volumes::find(tx, org, &name).await? else {
                    return Err(Problem::not_found().into());
                };
                if store::volumes::find_file(tx, row.id, &path).await?.is_none() {
                    return Err(Problem::not_found().into());
                }
                if let Some(writer) = uses::revoke_idle_writers(tx, row.id, now, &awaited).await? {
                    return Err(busy(&writer).into());
                }
                store::volumes::end_file(tx, row.id, &path, row.version + 1).await?;
                store::volumes::set_version(tx, row.id, row.version + 1, now).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        removed.await?;
        self.tidy_volumes_soon();
        Ok(())
    }

    /// Removes unused blobs in the background. The hourly round repeats a failed removal.
    fn tidy_volumes_soon(&self) {
        let volumes = self.clone();
        tokio::spawn(async move { volumes.tidy_volumes().await });
    }

    /// Marks blobs without a version and without an attempt as gone, and removes their bytes.
    pub async fn tidy_volumes(&self) -> Result<(), Problem> {
        let before = self.context.now().plus_seconds(-UPLOAD_TIMEOUT_S);
        self.context
            .db
            .write(move |tx| {
                async move {
                    // One transaction for both: a blob that lost its version is not mistaken for a blob
                    // without one.
                    store::volumes::forget_old(tx).await?;
                    store::volumes::blobs::abandon(tx, before).await
                }
                .boxed()
            })
            .await?;
        loop {
            let mut conn = self.context.db.read().await?;
            let rows = store::volumes::blobs::list_gone(&mut conn.tx(), BATCH).await?;
            drop(conn);
            let full = i64::try_from(rows.len()) == Ok(BATCH);
            let mut ids: Vec<FileId> = Vec::new();
            for row in rows {
                let object = row.id.to_string();
                // Another task writes this blob. The next round removes it.
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
                            store::volumes::blobs::remove(tx, id).await?;
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
