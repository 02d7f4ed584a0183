//! Uploads of people into volumes, in parts. Received parts stay, so a client continues after a broken
//! connection. A file enters the volume when all its bytes are in the store.

use berth_core::volumes::{MAX_TAG, MAX_UPLOADS, parent_dirs};
use berth_types::files::FileState;
use berth_types::ids::{FileId, OrgId, VolumeId};
use berth_types::paths::{VOLUME_FILES, VOLUME_PATHS};
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use berth_types::volumes::{BlobKind, NewUpload, Upload};
use futures::FutureExt;

use super::Volumes;
use super::unfinished::no_room;
use super::{bad_path, busy, uses};
use crate::allowance::{self, StorageLimits};
use crate::files::{AwaitedHandOvers, ChunkOutcome};
use berth_foundation::{Caller, Right};
use berth_store::volumes::blobs::StoredBlob;
use berth_store::volumes::{StoredVolume, StoredVolumeFile};
use berth_store::{self as store, StoreError, Tx, WriteError};

/// The shortest time between two records of an upload's progress, in microseconds.
const PROGRESS_INTERVAL: i64 = 60_000_000;

/// The result of a part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartOutcome {
    Added(Upload),
    /// The part was ignored. The next part begins at this byte.
    WrongOffset(u64),
}

fn check_upload(path: &str, input: &NewUpload) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Err(detail) = VOLUME_PATHS.check(path) {
        errors.push(FieldError::new("/path", detail));
    }
    if i64::try_from(input.bytes).is_err() {
        errors.push(FieldError::new("/bytes", "The file is larger than every possible volume."));
    }
    let hex = |s: &String| s.len() == 64 && s.bytes().all(|b| b.is_ascii_hexdigit());
    if input.sha256.as_ref().is_some_and(|sha256| !hex(sha256)) {
        errors.push(FieldError::new("/sha256", "A SHA-256 has 64 hexadecimal digits."));
    }
    if input.tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG || tag.contains('\0')) {
        errors.push(FieldError::new("/tag", "A tag has at most 200 bytes and no NUL."));
    }
    errors
}

fn full(detail: String) -> Problem {
    Problem::conflict("volume.full", "Volume full", detail)
}

fn upload(row: &StoredBlob, received: u64, done: bool) -> Upload {
    Upload { path: row.path.clone(), bytes: u64::try_from(row.bytes).unwrap_or(0), received, done }
}

/// Refuses a path below a file, or at a directory.
async fn check_clash(tx: &mut Tx<'_>, volume: VolumeId, path: &str) -> Result<(), WriteError> {
    for dir in parent_dirs(path) {
        if store::volumes::find_file(tx, volume, dir).await?.is_some() {
            return Err(bad_path(&format!("{dir} is a file, so no file can be below it.")).into());
        }
    }
    let below = store::volumes::list_below(tx, volume, &format!("{path}/"), 1).await?;
    if below.is_empty() { Ok(()) } else { Err(bad_path("A directory has this path.").into()) }
}

/// Refuses a file beyond the limits of its volume. `open_uploads` has the number and the bytes of open
/// uploads.
async fn check_room(
    tx: &mut Tx<'_>,
    volume: &StoredVolume,
    path: &str,
    bytes: i64,
    open_uploads: (i64, i64),
) -> Result<(), WriteError> {
    let (total, files) = store::volumes::totals(tx, volume.id, volume.version).await?;
    let replaced = store::volumes::find_file(tx, volume.id, path).await?;
    let new_file = i64::from(replaced.is_none());
    let used = total - replaced.map_or(0, |file| file.bytes);
    if used.saturating_add(open_uploads.1).saturating_add(bytes) > volume.max_bytes {
        return Err(full(no_room(tx, volume, path, used, open_uploads).await?).into());
    }
    if files + open_uploads.0 + new_file > i64::try_from(VOLUME_FILES).unwrap_or(i64::MAX) {
        let detail = format!("A volume has at most {VOLUME_FILES} files. Pack some of them into archives.");
        return Err(full(detail).into());
    }
    Ok(())
}

/// The stored content of a new file.
struct StoredContent<'a> {
    blob: FileId,
    bytes: i64,
    sha256: &'a str,
}

/// Adds a file in a new version of the volume. Returns true if it replaces a file.
///
/// # Errors
/// A job writes to the volume, the path is taken or a limit is exceeded.
async fn place(
    tx: &mut Tx<'_>,
    volume: &StoredVolume,
    path: &str,
    content: &StoredContent<'_>,
    (now, awaited): (Timestamp, &AwaitedHandOvers),
) -> Result<bool, WriteError> {
    // The undo of a refused change is costly, so the checks come first.
    check_clash(tx, volume.id, path).await?;
    // Open uploads were counted at their begin.
    check_room(tx, volume, path, content.bytes, (0, 0)).await?;
    if let Some(writer) = uses::revoke_idle_writers(tx, volume.id, now, awaited).await? {
        return Err(busy(&writer).into());
    }
    let version = volume.version + 1;
    let replaced = store::volumes::end_file(tx, volume.id, path, version).await?;
    let row = StoredVolumeFile {
        volume_id: volume.id,
        path: path.to_owned(),
        blob_id: content.blob,
        bytes: content.bytes,
        sha256: content.sha256.to_owned(),
        executable: false,
        from_version: version,
        changed_at: now,
    };
    store::volumes::insert_file(tx, &row).await?;
    store::volumes::set_version(tx, volume.id, version, now).await?;
    Ok(replaced)
}

/// The result of a begun upload.
enum BegunUpload {
    /// The volume has this content already.
    Present,
    /// The client sends the content.
    Expected(Box<StoredBlob>),
}

/// The input of a new upload. A retried transaction uses the same input.
#[derive(Clone)]
struct UploadInput {
    org: OrgId,
    name: String,
    id: FileId,
    path: String,
    bytes: i64,
    /// Lower-case hex; empty if it is not known.
    sha256: String,
    tag: String,
    limits: StorageLimits,
    now: Timestamp,
    awaited: AwaitedHandOvers,
    event: AuditEvent,
}

impl UploadInput {
    fn new_row(&self, volume: VolumeId) -> StoredBlob {
        StoredBlob {
            id: self.id,
            org_id: self.org,
            volume_id: volume,
            kind: BlobKind::Upload,
            path: self.path.clone(),
            job_id: String::new(),
            attempt: 0,
            bytes: self.bytes,
            sha256: self.sha256.clone(),
            tag: self.tag.clone(),
            state: FileState::Partial,
            touched_at: self.now,
        }
    }
}

async fn begin(tx: &mut Tx<'_>, input: &UploadInput) -> Result<BegunUpload, WriteError> {
    let Some(volume) = store::volumes::find(tx, input.org, &input.name).await? else {
        return Err(Problem::not_found().into());
    };
    if let Some(class) = &volume.class {
        let detail = format!(
            "The files of the volume are on the storage class {class} of the nodes, and only jobs write them. Nothing was uploaded."
        );
        return Err(Problem::conflict("volume.on_nodes", "Files on the nodes", detail).into());
    }
    let row = input.new_row(volume.id);
    if let Some(writer) = uses::find_writer(tx, volume.id, input.now, &input.awaited).await? {
        return Err(busy(&writer).into());
    }
    if !row.sha256.is_empty()
        && let Some(same) = store::volumes::find_content(tx, volume.id, &row.sha256, row.bytes).await?
    {
        let present = store::volumes::find_file(tx, volume.id, &row.path).await?;
        if present.is_some_and(|file| file.blob_id == same.blob_id) {
            return Ok(BegunUpload::Present);
        }
        let content = StoredContent { blob: same.blob_id, bytes: same.bytes, sha256: &same.sha256 };
        place(tx, &volume, &row.path, &content, (input.now, &input.awaited)).await?;
        store::quotas::insert_audit(tx, Some(input.org), &input.event).await?;
        return Ok(BegunUpload::Present);
    }
    let former = store::volumes::blobs::find_upload(tx, volume.id, &row.path).await?;
    if let Some(former) = &former {
        let same_hash = row.sha256.is_empty() || former.sha256 == row.sha256;
        if former.bytes == row.bytes && former.tag == row.tag && same_hash {
            store::volumes::blobs::touch(tx, former.id, input.now).await?;
            return Ok(BegunUpload::Expected(Box::new(former.clone())));
        }
    }
    check_clash(tx, volume.id, &row.path).await?;
    // The new upload takes the place of the former one.
    let former_bytes = former.as_ref().map_or(0, |former| former.bytes);
    let (uploads, bytes) = store::volumes::blobs::uploads(tx, volume.id).await?;
    let open_uploads = (uploads - i64::from(former.is_some()), bytes - former_bytes);
    if open_uploads.0 >= MAX_UPLOADS {
        let detail = format!(
            "The volume has {MAX_UPLOADS} unfinished uploads, the maximum. Continue or remove some of them."
        );
        return Err(Problem::conflict("upload.limit", "Too many uploads", detail).into());
    }
    check_room(tx, &volume, &row.path, row.bytes, open_uploads).await?;
    let stored = store::storage::used_bytes(tx, row.org_id).await? - former_bytes;
    let total = stored.saturating_add(row.bytes);
    if let Some(exceeded) = input.limits.find_exceeded(tx, row.org_id, total).await? {
        return Err(allowance::full(exceeded.text()).into());
    }
    if let Some(former) = former {
        store::volumes::blobs::give_up(tx, former.id).await?;
    }
    store::volumes::blobs::insert(tx, &row).await?;
    Ok(BegunUpload::Expected(Box::new(row)))
}

impl Volumes {
    /// Begins an upload, or continues the same one.
    ///
    /// # Errors
    /// A job writes to the volume, the path is taken or a limit is exceeded.
    pub async fn begin_upload(
        &self,
        caller: &Caller,
        org: OrgId,
        name: String,
        path: String,
        input: NewUpload,
    ) -> Result<Upload, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        self.context.disk.check_upload()?;
        let errors = check_upload(&path, &input);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let bytes = input.bytes;
        let upload_input = UploadInput {
            org,
            name: name.clone(),
            id: self.context.new_id(now),
            path: path.clone(),
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            sha256: input.sha256.unwrap_or_default().to_ascii_lowercase(),
            tag: input.tag.unwrap_or_default(),
            limits: StorageLimits::new(&self.context.settings),
            now,
            awaited: self.handovers.awaited(self.context.live.connected()),
            event: self.context.audit_event(caller, "volume.file_put", name.clone(), path.clone()),
        };
        let beginning = self.context.db.try_write(move |tx| {
            let upload_input = upload_input.clone();
            async move { begin(tx, &upload_input).await }.boxed()
        });
        let row = match beginning.await? {
            BegunUpload::Present => return Ok(Upload { path, bytes, received: bytes, done: true }),
            BegunUpload::Expected(row) => row,
        };
        let received = self.received(&row).await?;
        // An empty file has no parts, so it is complete at once.
        if bytes == 0 {
            return match self.add_to_upload(caller, org, name, path, 0, Vec::new()).await? {
                PartOutcome::Added(upload) => Ok(upload),
                PartOutcome::WrongOffset(received) => Ok(upload(&row, received, false)),
            };
        }
        Ok(upload(&row, received, false))
    }

    /// The number of received bytes of an upload.
    async fn received(&self, row: &StoredBlob) -> Result<u64, Problem> {
        let total = u64::try_from(row.bytes).unwrap_or(0);
        if row.state == FileState::Complete {
            return Ok(total);
        }
        self.staging.received_bytes(&row.id.to_string(), total).await
    }

    async fn get_upload_row(&self, org: OrgId, name: &str, path: &str) -> Result<StoredBlob, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let volume = store::volumes::find(&mut tx, org, name).await?.ok_or_else(Problem::not_found)?;
        store::volumes::blobs::find_upload(&mut tx, volume.id, path).await?.ok_or_else(Problem::not_found)
    }

    /// The state of an open upload.
    pub async fn get_upload(
        &self,
        caller: &Caller,
        org: OrgId,
        name: &str,
        path: &str,
    ) -> Result<Upload, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let row = self.get_upload_row(org, name, path).await?;
        let received = self.received(&row).await?;
        Ok(upload(&row, received, false))
    }

    /// Cancels an upload.
    pub async fn drop_upload(
        &self,
        caller: &Caller,
        org: OrgId,
        name: &str,
        path: &str,
    ) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let row = self.get_upload_row(org, name, path).await?;
        let id = row.id;
        let dropping = self
            .context
            .db
            .write(move |tx| async move { store::volumes::blobs::give_up(tx, id).await }.boxed());
        dropping.await?;
        self.tidy_volumes_soon();
        Ok(())
    }

    /// Adds a part to an upload. The last part puts the file into the volume. An empty part at the end
    /// repeats that step after a failure, such as a job that wrote to the volume.
    ///
    /// # Errors
    /// The part is beyond the end, the hash differs or a job writes to the volume.
    pub async fn add_to_upload(
        &self,
        caller: &Caller,
        org: OrgId,
        name: String,
        path: String,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<PartOutcome, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        // An empty part only repeats the last step.
        if !data.is_empty() {
            self.context.disk.check_upload()?;
        }
        let row = self.get_upload_row(org, &name, &path).await?;
        let total = u64::try_from(row.bytes).unwrap_or(0);
        let end = offset.saturating_add(data.len() as u64);
        if end > total {
            let detail = format!("The upload has {total} bytes, and the part ends at byte {end}.");
            return Err(Problem::invalid_field("", detail));
        }
        let object = row.id.to_string();
        let Some(_lock) = self.objects.try_lock(&object) else {
            return Err(Problem::unavailable(
                "Another part of the same file is being written. Try again in a moment.",
                1,
            ));
        };
        // Read again, because the previous owner of the lock may have completed the upload.
        let row = self.get_upload_row(org, &name, &path).await?;
        if row.state != FileState::Complete {
            let object = row.id.to_string();
            let hash = match self.staging.add_chunk(&object, offset, data, total, &row.sha256).await? {
                ChunkOutcome::Partial(received) if received == end => {
                    self.note_upload(&row).await?;
                    return Ok(PartOutcome::Added(upload(&row, received, false)));
                }
                ChunkOutcome::Partial(received) => return Ok(PartOutcome::WrongOffset(received)),
                ChunkOutcome::HashMismatch => {
                    let detail = "The SHA-256 of the received file differs from the announced one. Upload the file again from the beginning.";
                    return Err(Problem::conflict("upload.hash", "Wrong SHA-256", detail));
                }
                ChunkOutcome::Whole(hash) => hash,
            };
            self.objects.finish(&object).await?;
            let id = row.id;
            let completing = self.context.db.write(move |tx| {
                let hash = hash.clone();
                async move { store::volumes::blobs::complete(tx, id, &hash).await }.boxed()
            });
            completing.await?;
        }
        if self.place_upload(caller, org, name, path).await? {
            self.tidy_volumes_soon();
        }
        Ok(PartOutcome::Added(upload(&row, total, true)))
    }

    async fn note_upload(&self, row: &StoredBlob) -> Result<(), StoreError> {
        let now = self.context.now();
        if now.micros() - row.touched_at.micros() < PROGRESS_INTERVAL {
            return Ok(());
        }
        let id = row.id;
        let noting = self
            .context
            .db
            .write(move |tx| async move { store::volumes::blobs::touch(tx, id, now).await }.boxed());
        noting.await
    }

    /// Adds a complete upload to the volume. Returns true if it replaces a file.
    async fn place_upload(
        &self,
        caller: &Caller,
        org: OrgId,
        name: String,
        path: String,
    ) -> Result<bool, Problem> {
        let (now, awaited) = (self.context.now(), self.handovers.awaited(self.context.live.connected()));
        let event = self.context.audit_event(caller, "volume.file_put", name.clone(), path.clone());
        let placing = self.context.db.try_write(move |tx| {
            let (name, path, event, awaited) = (name.clone(), path.clone(), event.clone(), awaited.clone());
            async move {
                let Some(volume) = store::volumes::find(tx, org, &name).await? else {
                    return Err(Problem::not_found().into());
                };
                let row = store::volumes::blobs::find_upload(tx, volume.id, &path).await?;
                let Some(row) = row.filter(|row| row.state == FileState::Complete) else {
                    return Err(Problem::not_found().into());
                };
                let content = StoredContent { blob: row.id, bytes: row.bytes, sha256: &row.sha256 };
                let replaced = place(tx, &volume, &path, &content, (now, &awaited)).await?;
                store::volumes::blobs::mark_placed(tx, row.id).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(replaced)
            }
            .boxed()
        });
        Ok(placing.await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_an_upload_are_named() {
        let good = NewUpload { bytes: 1, sha256: Some("aB".repeat(32)), tag: Some("t".repeat(200)) };
        let pointers = |path: &str, input: &NewUpload| {
            check_upload(path, input).into_iter().map(|error| error.pointer).collect::<Vec<_>>()
        };
        assert_eq!(pointers("a/b", &good), [""; 0]);
        assert_eq!(pointers("../b", &good), ["/path"]);
        assert_eq!(pointers("a", &NewUpload { bytes: u64::MAX, ..good.clone() }), ["/bytes"]);
        for bad in ["", "ab", &"g".repeat(64)] {
            assert_eq!(
                pointers("a", &NewUpload { sha256: Some(bad.to_owned()), ..good.clone() }),
                ["/sha256"]
            );
        }
        assert_eq!(pointers("a", &NewUpload { tag: Some("t".repeat(201)), ..good }), ["/tag"]);
    }
}
