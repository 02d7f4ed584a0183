//! What an attempt leaves in the volumes that it writes to: each file, then the list of all of them. Only
//! the list changes the volume, and all at once.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use berth_proto::{AttemptId, Listing, Message, Parcel, VolumeFile};
use berth_types::paths::{CHECKPOINT_ENTRIES, VOLUME_FILES, VOLUME_PATHS};
use sha2::{Digest, Sha256};

use super::bundles::{Files, hand_over};
use super::transfer::{Portal, Source, send};
use super::tree::{self, Entry, Kind, ListError};
use super::{PLACE, Task, Written, blocking, create, failed, make_place};
use crate::volumes;

/// A volume's directory and what is to go back, with a note about the rest; `Err` inside: why nothing is.
type Found = Result<(std::os::fd::OwnedFd, Vec<Entry>, String), String>;

fn found(task: &Task, written: &Written) -> Result<Option<Found>, String> {
    let root = match tree::open_root(&volumes::directory(&task.dir, written.index)) {
        // Everything of it was handed over, and it was removed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| failed(&e))?,
    };
    let mut listing = match tree::list_by(&root, task.uid, &VOLUME_PATHS) {
        Ok(listing) => listing,
        Err(ListError::TooMany) => {
            let why =
                format!("It left more than {CHECKPOINT_ENTRIES} files and directories; nothing was kept.");
            return Ok(Some(Err(why)));
        }
        Err(ListError::Io(error)) => return Err(failed(&error.into())),
    };
    for link in listing.entries.iter().filter(|e| matches!(e.kind, Kind::Link(_))) {
        listing.left_out.add(link.path.as_bytes());
    }
    let note = listing.left_out.note(&format!(
        "only the job's own files are kept, at paths of plain UTF-8 with at most {} bytes and {} parts",
        VOLUME_PATHS.bytes, VOLUME_PATHS.parts
    ));
    let files: Vec<Entry> = listing.entries.into_iter().filter(|e| e.kind == Kind::File).collect();
    if files.len() > VOLUME_FILES {
        let why = format!(
            "It left {} files, and a volume has at most {VOLUME_FILES}; nothing was kept.",
            files.len()
        );
        return Ok(Some(Err(why)));
    }
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
        let files = Files { root: Arc::new(root), parcel: parcel.clone() };
        let mut list = Listing::default();
        for (entry, hash) in hand_over(portal, &files, entries).await? {
            // Nothing writes it any more, so one that cannot be read whole is the disk's fault: without it
            // the list would take it out of the volume.
            let sha256 = hash.ok_or_else(|| format!("{} cannot be read", entry.path))?;
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
        // One path that no volume has keeps back nothing else.
        let deep = root.join(vec!["x"; VOLUME_PATHS.parts].join("/"));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("below"), "").unwrap();
        let (_, files, note) = found(&task, &written).unwrap().unwrap().unwrap();
        assert_eq!(files.len(), 2);
        assert!(note.starts_with("3 left out") && note.contains("\"x/x/"), "{note}");
        std::fs::File::create(root.join("hole")).unwrap().set_len(2 << 20).unwrap();
        assert!(found(&task, &written).unwrap().unwrap().is_err(), "it would be sent with its whole length");
    }
}
