//! What an attempt leaves in the volumes that it writes to: each file, then the list of all of them. Only
//! the list changes the volume, and all at once.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use berth_proto::{AttemptId, Listing, Message, Parcel, VolumeFile};
use sha2::{Digest, Sha256};

use super::artifacts::hash_of;
use super::transfer::{Portal, Source, send};
use super::tree::{self, Entry, Kind, ListError};
use super::{PLACE, Task, Written, blocking, create, failed, make_place};
use crate::volumes;

/// Bytes of a path in a volume.
const MOST_PATH: usize = 1_024;

/// A volume's directory and what is to go back, with a note about the rest; `Err` inside: why nothing is.
type Found = Result<(std::os::fd::OwnedFd, Vec<Entry>, String), String>;

fn found(task: &Task, written: &Written) -> Result<Option<Found>, String> {
    let root = match tree::open_root(&volumes::directory(&task.dir, written.index)) {
        // Everything of it was handed over, and it was removed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| failed(&e))?,
    };
    let listing = match tree::list_to(&root, task.uid, MOST_PATH) {
        Ok(listing) => listing,
        Err(ListError::TooMany) => {
            return Ok(Some(Err("It left too many files; nothing was kept.".to_owned())));
        }
        Err(ListError::Io(error)) => return Err(failed(&error.into())),
    };
    let links = listing.entries.iter().filter(|e| matches!(e.kind, Kind::Link(_))).count() as u64;
    let note = match listing.left_out + links {
        0 => String::new(),
        n => format!("{n} left out: only files with plain names are kept."),
    };
    let files: Vec<Entry> = listing.entries.into_iter().filter(|e| e.kind == Kind::File).collect();
    // Holes take no room beside the job's files, and would be read and sent as if they did.
    if files.iter().map(|e| e.bytes).fold(0u64, u64::saturating_add) > task.most_bytes {
        let why = "Its files are longer than a job's may be on this node; nothing was kept.";
        return Ok(Some(Err(why.to_owned())));
    }
    Ok(Some(Ok((root, files, note))))
}

/// Hands over what is in the attempt's volumes now that nothing of it runs any more.
pub(super) async fn keep(task: &Task, portal: &mut Portal) -> Result<(), String> {
    for written in &task.keep.volumes {
        let looking = (task.clone(), written.clone());
        let Some(found) = blocking(move || found(&looking.0, &looking.1)).await? else { continue };
        let parcel = Parcel {
            attempt: Some(AttemptId::new(&task.key.job, task.key.number)),
            volume: written.volume.clone(),
            ..Parcel::default()
        };
        let (root, entries, note) = match found {
            Ok(found) => found,
            Err(why) => {
                let empty = Sha256::digest(b"").to_vec();
                let parcel = Parcel { note: why, refused: true, listing: true, sha256: empty, ..parcel };
                send(portal, parcel, Source::Path(std::path::PathBuf::new())).await?;
                continue;
            }
        };
        let root = Arc::new(root);
        let mut list = Listing::default();
        for entry in entries {
            let (from, this) = (root.clone(), entry.clone());
            // Nothing writes it any more, so one that cannot be read whole is the disk's fault: without it
            // the list would take it out of the volume.
            let Some((file, sha256)) = blocking(move || hash_of(&from, &this)).await? else {
                return Err(format!("{} cannot be read", entry.path));
            };
            let offer = Parcel {
                path: entry.path.clone(),
                bytes: entry.bytes,
                sha256: sha256.clone(),
                files: 1,
                ..parcel.clone()
            };
            send(portal, offer, Source::Open(file)).await?;
            list.files.push(VolumeFile {
                path: entry.path,
                file: String::new(),
                bytes: entry.bytes,
                sha256,
                executable: entry.mode & 0o111 != 0,
            });
        }
        send_list(task, parcel, &list, note, portal).await?;
    }
    Ok(())
}

async fn send_list(
    task: &Task,
    parcel: Parcel,
    list: &Listing,
    note: String,
    portal: &mut Portal,
) -> Result<(), String> {
    let data = list.encode_to_vec();
    let parcel = Parcel {
        bytes: data.len() as u64,
        sha256: Sha256::digest(&data).to_vec(),
        files: list.files.len() as u64,
        listing: true,
        note,
        ..parcel
    };
    let (dir, path) = (task.dir.clone(), task.dir.join(PLACE).join("listing"));
    let place = path.clone();
    blocking(move || {
        make_place(&dir).map_err(|e| failed(&e))?;
        let file = create(&place).map_err(|e| failed(&e))?;
        file.write_all_at(&data, 0).map_err(|e| failed(&e))
    })
    .await?;
    send(portal, parcel, Source::Path(path)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Key;
    use crate::keeping::Keep;

    #[test]
    fn files_go_back_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let written = Written { volume: "vol".to_owned(), index: 1 };
        let keep = Keep { volumes: vec![written.clone()], ..Keep::default() };
        let key = Key { job: "job".to_owned(), number: 1 };
        let task = Task { key, dir: dir.path().to_owned(), keep, uid: None, over: true, most_bytes: 1 << 20 };
        assert!(found(&task, &written).unwrap().is_none(), "it is not there any more");
        let root = volumes::directory(dir.path(), 1);
        let long = format!("{}/{}/{}", "d".repeat(250), "e".repeat(250), "f".repeat(250));
        std::fs::create_dir_all(root.join(&long).parent().unwrap()).unwrap();
        for name in ["a", long.as_str()] {
            std::fs::write(root.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("a", root.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("away")).unwrap();
        let (_, files, note) = found(&task, &written).unwrap().unwrap().unwrap();
        let mut paths: Vec<&str> = files.iter().map(|f| f.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["a", &long]);
        assert!(note.starts_with("2 left out"), "{note}");
        std::fs::File::create(root.join("hole")).unwrap().set_len(2 << 20).unwrap();
        assert!(found(&task, &written).unwrap().unwrap().is_err(), "it would be sent with its whole length");
    }
}
