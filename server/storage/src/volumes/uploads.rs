//! Files that people put into a volume, in parts: what has arrived stays, so that a sender that lost its
//! connection goes on from there. A file is in the volume when all of it is in the store.

use berth_core::volumes::{MAX_TAG, MAX_UPLOADS, above};
use berth_types::ids::{FileId, OrgId};
use berth_types::paths::{VOLUME_FILES, VOLUME_PATHS};
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use berth_types::volumes::{NewUpload, Upload};
use futures::FutureExt;

use super::Volumes;
use super::{bad_path, busy, uses};
use crate::files::{Awaited, Taken};
use berth_foundation::{Caller, Right};
use berth_store::volumes::blobs::BlobRow;
use berth_store::volumes::{VolumeFileRow, VolumeRow};
use berth_store::{self as store, StoreError, Tx};

/// While something comes, it is noted no more often, in microseconds.
const NOTED_EVERY: i64 = 60_000_000;

/// What became of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Added {
    Taken(Upload),
    /// Nothing was taken: the next part begins at this byte.
    Elsewhere(u64),
}

fn check_upload(path: &str, input: &NewUpload) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Err(detail) = VOLUME_PATHS.check(path) {
        errors.push(FieldError::new("/path", detail));
    }
    if i64::try_from(input.bytes).is_err() {
        errors.push(FieldError::new("/bytes", "No volume is that large."));
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
    Problem::conflict("volume.full", "There is no room in the volume", detail)
}

fn upload(row: &BlobRow, received: u64, done: bool) -> Upload {
    Upload { path: row.path.clone(), bytes: u64::try_from(row.bytes).unwrap_or(0), received, done }
}

/// What keeps a file from being at this path: above it is a file, or it is a directory.
async fn clash(tx: &mut Tx<'_>, volume: &str, path: &str) -> Result<Option<Problem>, StoreError> {
    for dir in above(path) {
        if store::volumes::find_file(tx, volume, dir).await?.is_some() {
            return Ok(Some(bad_path(&format!("{dir} is a file, so nothing can be below it."))));
        }
    }
    let below = store::volumes::list_below(tx, volume, &format!("{path}/"), 1).await?;
    Ok((!below.is_empty()).then(|| bad_path("There is a directory at this path.")))
}

/// Whether this many bytes still fit at a path, beside everything that is there or on its way.
async fn room(
    tx: &mut Tx<'_>,
    volume: &VolumeRow,
    path: &str,
    bytes: i64,
    on_its_way: (i64, i64),
) -> Result<Option<Problem>, StoreError> {
    let (used, files) = store::volumes::totals(tx, &volume.id, volume.version).await?;
    let replaced = store::volumes::find_file(tx, &volume.id, path).await?;
    let new_file = i64::from(replaced.is_none());
    let kept = used - replaced.map_or(0, |file| file.bytes);
    if kept.saturating_add(on_its_way.1).saturating_add(bytes) > volume.max_bytes {
        let detail = format!(
            "The volume {} may hold {} bytes; {kept} are used and {} on their way. Delete some, or put less.",
            volume.name, volume.max_bytes, on_its_way.1
        );
        return Ok(Some(full(detail)));
    }
    if files + on_its_way.0 + new_file > i64::try_from(VOLUME_FILES).unwrap_or(i64::MAX) {
        let detail = format!("A volume has at most {VOLUME_FILES} files; pack some of them into archives.");
        return Ok(Some(full(detail)));
    }
    Ok(None)
}

/// What is put into a volume.
struct Content<'a> {
    blob: &'a str,
    bytes: i64,
    sha256: &'a str,
}

/// Makes the volume's next version with a file at a path; says whether there was one. Refused while a job
/// writes.
async fn place(
    tx: &mut Tx<'_>,
    volume: &VolumeRow,
    path: &str,
    content: &Content<'_>,
    (now, awaited): (Timestamp, &Awaited),
) -> Result<Result<bool, Problem>, StoreError> {
    if let Some(writer) = uses::take_over(tx, &volume.id, now, awaited).await? {
        return Ok(Err(busy(&writer)));
    }
    if let Some(problem) = clash(tx, &volume.id, path).await? {
        return Ok(Err(problem));
    }
    // What is on its way was counted when it was begun.
    if let Some(problem) = room(tx, volume, path, content.bytes, (0, 0)).await? {
        return Ok(Err(problem));
    }
    let version = volume.version + 1;
    let replaced = store::volumes::end_file(tx, &volume.id, path, version).await?;
    let row = VolumeFileRow {
        volume_id: volume.id.clone(),
        path: path.to_owned(),
        blob_id: content.blob.to_owned(),
        bytes: content.bytes,
        sha256: content.sha256.to_owned(),
        executable: false,
        from_version: version,
        changed_at: now.micros(),
    };
    store::volumes::insert_file(tx, &row).await?;
    store::volumes::set_version(tx, &volume.id, version, now).await?;
    Ok(Ok(replaced))
}

/// How an upload stands after it was asked for.
enum Begun {
    /// The volume has this content.
    There,
    Comes(Box<BlobRow>),
}

/// What a new upload is made of, so that a retried transaction makes the same.
#[derive(Clone)]
struct Order {
    org: OrgId,
    name: String,
    row: BlobRow,
    limit: i64,
    now: Timestamp,
    awaited: Awaited,
    event: AuditEvent,
}

async fn begin(tx: &mut Tx<'_>, order: &Order) -> Result<Result<Begun, Problem>, StoreError> {
    let Some(volume) = store::volumes::find(tx, order.org, &order.name).await? else {
        return Ok(Err(Problem::not_found()));
    };
    let mut row = BlobRow { volume_id: volume.id.clone(), ..order.row.clone() };
    if let Some(writer) = uses::writer(tx, &volume.id, order.now, &order.awaited).await? {
        return Ok(Err(busy(&writer)));
    }
    if !row.sha256.is_empty()
        && let Some(same) = store::volumes::find_content(tx, &volume.id, &row.sha256, row.bytes).await?
    {
        let here = store::volumes::find_file(tx, &volume.id, &row.path).await?;
        if here.is_some_and(|here| here.blob_id == same.blob_id) {
            return Ok(Ok(Begun::There));
        }
        let content = Content { blob: &same.blob_id, bytes: same.bytes, sha256: &same.sha256 };
        let placed = place(tx, &volume, &row.path, &content, (order.now, &order.awaited)).await?;
        if placed.is_ok() {
            store::quotas::insert_audit(tx, Some(order.org), &order.event).await?;
        }
        return Ok(placed.map(|_| Begun::There));
    }
    if let Some(former) = store::volumes::blobs::find_upload(tx, &volume.id, &row.path).await? {
        let known = row.sha256.is_empty() || former.sha256 == row.sha256;
        if former.bytes == row.bytes && former.tag == row.tag && known {
            store::volumes::blobs::touch(tx, &former.id, order.now).await?;
            return Ok(Ok(Begun::Comes(Box::new(former))));
        }
        store::volumes::blobs::give_up(tx, &former.id).await?;
    }
    if let Some(problem) = clash(tx, &volume.id, &row.path).await? {
        return Ok(Err(problem));
    }
    let on_its_way = store::volumes::blobs::uploads(tx, &volume.id).await?;
    if on_its_way.0 >= MAX_UPLOADS {
        let detail =
            format!("There are {MAX_UPLOADS} uploads into it that are not finished; finish or delete some.");
        return Ok(Err(Problem::conflict("upload.limit", "Too many uploads", detail)));
    }
    if let Some(problem) = room(tx, &volume, &row.path, row.bytes, on_its_way).await? {
        return Ok(Err(problem));
    }
    if store::files::bytes_of(tx, &row.org_id).await?.saturating_add(row.bytes) > order.limit {
        let detail =
            format!("The organization's {} GiB for files are used up; remove some.", order.limit >> 30);
        return Ok(Err(Problem::conflict("storage.full", "There is no room for files", detail)));
    }
    row.state = "partial".to_owned();
    store::volumes::blobs::insert(tx, &row).await?;
    Ok(Ok(Begun::Comes(Box::new(row))))
}

impl Volumes {
    /// Begins an upload, or goes on with the same one.
    pub async fn begin_upload(
        &self,
        caller: &Caller,
        org: OrgId,
        name: String,
        path: String,
        input: NewUpload,
    ) -> Result<Upload, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let errors = check_upload(&path, &input);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let bytes = input.bytes;
        let row = BlobRow {
            id: self.context.new_id::<FileId>(now).to_string(),
            org_id: org.to_string(),
            volume_id: String::new(),
            kind: "upload".to_owned(),
            path: path.clone(),
            job_id: String::new(),
            attempt: 0,
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            sha256: input.sha256.unwrap_or_default().to_ascii_lowercase(),
            tag: input.tag.unwrap_or_default(),
            state: String::new(),
            touched_at: now.micros(),
        };
        let order = Order {
            org,
            name: name.clone(),
            row,
            limit: self.context.settings.org_storage_bytes,
            now,
            awaited: self.handovers.awaited(self.context.live.connected()),
            event: self.context.audit_event(caller, "volume.file_put", name.clone(), path.clone()),
        };
        let beginning = self.context.db.write(move |tx| {
            let order = order.clone();
            async move { begin(tx, &order).await }.boxed()
        });
        let row = match beginning.await?? {
            Begun::There => return Ok(Upload { path, bytes, received: bytes, done: true }),
            Begun::Comes(row) => row,
        };
        let received = self.received(&row).await?;
        // There is nothing to come.
        if bytes == 0 {
            return match self.add_to_upload(caller, org, name, path, 0, Vec::new()).await? {
                Added::Taken(upload) => Ok(upload),
                Added::Elsewhere(received) => Ok(upload(&row, received, false)),
            };
        }
        Ok(upload(&row, received, false))
    }

    /// How much of an upload is there.
    async fn received(&self, row: &BlobRow) -> Result<u64, Problem> {
        let total = u64::try_from(row.bytes).unwrap_or(0);
        if row.state == "complete" { Ok(total) } else { self.staging.arrived(&row.id, total).await }
    }

    async fn find_upload(&self, org: OrgId, name: &str, path: &str) -> Result<BlobRow, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let volume = store::volumes::find(&mut tx, org, name).await?.ok_or_else(Problem::not_found)?;
        store::volumes::blobs::find_upload(&mut tx, &volume.id, path).await?.ok_or_else(Problem::not_found)
    }

    /// An upload that is not finished.
    pub async fn get_upload(
        &self,
        caller: &Caller,
        org: OrgId,
        name: &str,
        path: &str,
    ) -> Result<Upload, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let row = self.find_upload(org, name, path).await?;
        let received = self.received(&row).await?;
        Ok(upload(&row, received, false))
    }

    /// Gives an upload up.
    pub async fn drop_upload(
        &self,
        caller: &Caller,
        org: OrgId,
        name: &str,
        path: &str,
    ) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let row = self.find_upload(org, name, path).await?;
        let dropping = self.context.db.write(move |tx| {
            let id = row.id.clone();
            async move { store::volumes::blobs::give_up(tx, &id).await }.boxed()
        });
        dropping.await?;
        self.tidy_volumes_soon();
        Ok(())
    }

    /// Adds a part to an upload; with the last the file is in the volume. An empty part at the end asks again
    /// for what could not be done before, because a job wrote to the volume or the portal died.
    pub async fn add_to_upload(
        &self,
        caller: &Caller,
        org: OrgId,
        name: String,
        path: String,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<Added, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let row = self.find_upload(org, &name, &path).await?;
        let total = u64::try_from(row.bytes).unwrap_or(0);
        let end = offset.saturating_add(data.len() as u64);
        if end > total {
            let detail = format!("The upload has {total} bytes, and this part ends at {end}.");
            return Err(Problem::invalid_field("", detail));
        }
        let Some(_claim) = self.objects.claim(&row.id) else {
            return Err(Problem::unavailable("A part of the same file is being written.", 1));
        };
        // Looked at again: whoever had the claim before may have been at the end of it.
        let row = self.find_upload(org, &name, &path).await?;
        if row.state != "complete" {
            let hash = match self.staging.take_piece(&row.id, offset, data, total, &row.sha256).await? {
                Taken::Part(received) if received == end => {
                    self.note_upload(&row).await?;
                    return Ok(Added::Taken(upload(&row, received, false)));
                }
                Taken::Part(received) => return Ok(Added::Elsewhere(received)),
                Taken::Spoilt => {
                    let detail =
                        "What arrived has another SHA-256 than was said. Send it again from the beginning.";
                    return Err(Problem::conflict("upload.hash", "The file did not arrive as it is", detail));
                }
                Taken::Whole(hash) => hash,
            };
            self.objects.finish(&row.id).await?;
            let id = row.id.clone();
            let completing = self.context.db.write(move |tx| {
                let (id, hash) = (id.clone(), hash.clone());
                async move { store::volumes::blobs::complete(tx, &id, &hash).await }.boxed()
            });
            completing.await?;
        }
        if self.place_upload(caller, org, name, path).await? {
            self.tidy_volumes_soon();
        }
        Ok(Added::Taken(upload(&row, total, true)))
    }

    async fn note_upload(&self, row: &BlobRow) -> Result<(), StoreError> {
        let now = self.context.now();
        if now.micros() - row.touched_at < NOTED_EVERY {
            return Ok(());
        }
        let id = row.id.clone();
        let noting = self.context.db.write(move |tx| {
            let id = id.clone();
            async move { store::volumes::blobs::touch(tx, &id, now).await }.boxed()
        });
        noting.await
    }

    /// Puts what is whole into the volume; says whether it replaced a file.
    async fn place_upload(
        &self,
        caller: &Caller,
        org: OrgId,
        name: String,
        path: String,
    ) -> Result<bool, Problem> {
        let (now, awaited) = (self.context.now(), self.handovers.awaited(self.context.live.connected()));
        let event = self.context.audit_event(caller, "volume.file_put", name.clone(), path.clone());
        let placing = self.context.db.write(move |tx| {
            let (name, path, event, awaited) = (name.clone(), path.clone(), event.clone(), awaited.clone());
            async move {
                let Some(volume) = store::volumes::find(tx, org, &name).await? else {
                    return Ok(Err(Problem::not_found()));
                };
                let row = store::volumes::blobs::find_upload(tx, &volume.id, &path).await?;
                let Some(row) = row.filter(|row| row.state == "complete") else {
                    return Ok(Err(Problem::not_found()));
                };
                let content = Content { blob: &row.id, bytes: row.bytes, sha256: &row.sha256 };
                let placed = place(tx, &volume, &path, &content, (now, &awaited)).await?;
                if placed.is_ok() {
                    store::volumes::blobs::mark_placed(tx, &row.id).await?;
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                Ok(placed)
            }
            .boxed()
        });
        placing.await?
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
