//! The list of files that ends a hand-over: it becomes the next version of the volume, or is refused as a whole.

use std::collections::{BTreeMap, HashMap};

use berth_core::volumes::find_clash;
use berth_store::volumes::uses::StoredVolumeUse;
use berth_store::volumes::{StoredVolume, StoredVolumeFile};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::FileId;
use berth_types::paths::{LeftOut, VOLUME_FILES, VOLUME_PATHS};
use berth_types::time::Timestamp;

/// The note of a list that is refused because of its form.
pub(super) const UNREADABLE: &str = "Its list could not be read.";

/// A path for a note.
pub(super) fn shortened(path: &str) -> String {
    path.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// A file of a list, as the worker names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedOverFile {
    pub path: String,
    pub bytes: u64,
    pub sha256: Vec<u8>,
    pub executable: bool,
}

/// Decodes the list of a hand-over; `None` for bytes that are no list. Only the sessions of workers know the
/// encoding.
pub type DecodeList = fn(&[u8]) -> Option<Vec<HandedOverFile>>;

/// A valid file of a list.
pub(super) struct ListedFile {
    path: String,
    bytes: i64,
    sha256: String,
    executable: bool,
}

/// Checks a list and leaves out the files at invalid paths. `Err` is the note of a list that is refused as a
/// whole.
pub(super) fn check_list(
    mut files: Vec<HandedOverFile>,
    max_bytes: i64,
) -> Result<(Vec<ListedFile>, LeftOut), String> {
    // Workers of earlier builds have other limits.
    let mut left_out = LeftOut::default();
    files.retain(|file| {
        let fits = VOLUME_PATHS.check(&file.path).is_ok();
        if !fits {
            left_out.add(file.path.as_bytes());
        }
        fits
    });
    if files.len() > VOLUME_FILES {
        return Err(format!("A volume has at most {VOLUME_FILES} files; nothing was kept."));
    }
    let mut paths: BTreeMap<&str, usize> = BTreeMap::new();
    let mut total = 0u64;
    for file in &files {
        if file.sha256.len() != 32 || i64::try_from(file.bytes).is_err() {
            return Err(UNREADABLE.to_owned());
        }
        *paths.entry(&file.path).or_insert(0) += 1;
        total = total.saturating_add(file.bytes);
    }
    if let Some(path) = find_clash(&paths) {
        return Err(format!("There are two things at {}; nothing was kept.", shortened(path)));
    }
    if i64::try_from(total).map_or(true, |total| total > max_bytes) {
        return Err(format!("It left {total} bytes, and the volume may hold {max_bytes}; nothing was kept."));
    }
    let listed = |file: HandedOverFile| ListedFile {
        bytes: i64::try_from(file.bytes).unwrap_or(i64::MAX),
        sha256: hex::encode(&file.sha256),
        path: file.path,
        executable: file.executable,
    };
    Ok((files.into_iter().map(listed).collect(), left_out))
}

/// The reason why a list does not become a version.
pub(super) enum ListError {
    /// The note of a refused hand-over.
    Refused(String),
    Store(StoreError),
}

impl From<StoreError> for ListError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Makes the listed files the next version of the volume, and returns its number.
pub(super) async fn apply_list(
    tx: &mut Tx<'_>,
    volume: &StoredVolume,
    given: &StoredVolumeUse,
    listed: &[ListedFile],
    now: Timestamp,
) -> Result<i64, ListError> {
    let most = i64::try_from(VOLUME_FILES).unwrap_or(i64::MAX);
    let current = store::volumes::list_below(tx, volume.id, "", most).await?;
    let offered =
        store::volumes::blobs::list_complete_files(tx, volume.id, given.job_id, given.attempt).await?;
    let mut blobs: HashMap<(&str, i64), FileId> = HashMap::new();
    blobs.extend(offered.iter().map(|blob| ((blob.sha256.as_str(), blob.bytes), blob.id)));
    blobs.extend(current.iter().map(|file| ((file.sha256.as_str(), file.bytes), file.blob_id)));
    let by_path: HashMap<&str, &StoredVolumeFile> =
        current.iter().map(|file| (file.path.as_str(), file)).collect();
    let version = volume.version + 1;
    let mut new = Vec::new();
    for file in listed {
        let former = by_path.get(file.path.as_str());
        let same = |f: &&&StoredVolumeFile| {
            f.sha256 == file.sha256 && f.bytes == file.bytes && f.executable == file.executable
        };
        if former.filter(same).is_some() {
            continue;
        }
        let Some(blob) = blobs.get(&(file.sha256.as_str(), file.bytes)) else {
            let note = format!("{} did not arrive; nothing was kept.", shortened(&file.path));
            return Err(ListError::Refused(note));
        };
        new.push(StoredVolumeFile {
            volume_id: volume.id,
            path: file.path.clone(),
            blob_id: *blob,
            bytes: file.bytes,
            sha256: file.sha256.clone(),
            executable: file.executable,
            from_version: version,
            changed_at: now,
        });
    }
    let listed_paths: HashMap<&str, ()> = listed.iter().map(|file| (file.path.as_str(), ())).collect();
    let mut ended: Vec<&str> = current
        .iter()
        .map(|file| file.path.as_str())
        .filter(|path| !listed_paths.contains_key(path))
        .collect();
    ended.extend(new.iter().map(|row| row.path.as_str()).filter(|path| by_path.contains_key(path)));
    if ended.is_empty() && new.is_empty() {
        return Ok(volume.version);
    }
    for path in ended {
        store::volumes::end_file(tx, volume.id, path, version).await?;
    }
    for row in &new {
        store::volumes::insert_file(tx, row).await?;
    }
    store::volumes::set_version(tx, volume.id, version, now).await?;
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, bytes: u64) -> HandedOverFile {
        HandedOverFile { path: path.to_owned(), bytes, sha256: vec![7; 32], executable: false }
    }

    fn fault(files: Vec<HandedOverFile>) -> String {
        check_list(files, 100).err().unwrap_or_default()
    }

    #[test]
    fn a_list_is_accepted_or_refused_as_a_whole() {
        let (listed, left_out) = check_list(vec![file("a/b", 60), file("c", 40)], 100).unwrap();
        assert_eq!(left_out.count, 0);
        assert_eq!((listed[0].path.as_str(), listed[0].bytes, listed[0].sha256.len()), ("a/b", 60, 64));
        for (files, why) in [
            (vec![file("a", 1), file("a", 1)], "two things at a"),
            (vec![file("a", 1), file("a/b", 1)], "two things at a"),
            (vec![file("a", 60), file("b", 41)], "may hold 100"),
            (vec![file("a", u64::MAX), file("b", u64::MAX)], "could not be read"),
            (vec![HandedOverFile { sha256: vec![1], ..file("a", 1) }], "could not be read"),
            (vec![file("a", 0); VOLUME_FILES + 1], "at most"),
        ] {
            assert!(fault(files).contains(why), "{why}");
        }
        // A file at an invalid path is left out alone and does not count as bytes.
        let deep = vec!["d"; VOLUME_PATHS.parts + 1].join("/");
        let files = vec![file(&deep, 60), file("../x", 60), file("a/b", 60)];
        let (listed, left_out) = check_list(files, 100).unwrap();
        assert_eq!((listed.len(), listed[0].path.as_str(), left_out.count), (1, "a/b", 2));
        assert_eq!(fault(Vec::new()), "", "an empty volume is one too");
    }
}
