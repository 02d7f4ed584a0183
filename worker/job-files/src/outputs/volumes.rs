//! The volumes that an attempt wrote to: an upload of each file, then of the list of files. Only the list changes the
//! volume, in one step.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use berth_proto::{Message, OutputFile, VolumeFile, VolumeManifest};
use berth_types::paths::{CHECKPOINT_ENTRIES, VOLUME_FILES, VOLUME_PATHS};
use sha2::{Digest, Sha256};

use super::plan::WrittenVolume;
use super::task::OutputTask;
use crate::transfer::tree::{self, TreeEntry, TreeEntryKind, TreeError};
use crate::transfer::{
    KEPT_DIR, Portal, UploadSet, UploadSource, blocking, create_file, make_kept_dir, unreadable, upload,
    upload_all, volume_directory,
};

/// A volume's directory, its files, and a note about the rest; or the reason for an upload of nothing.
type VolumeContent = Result<(OwnedFd, Vec<TreeEntry>, String), String>;

fn read_volume(task: &OutputTask, written: &WrittenVolume) -> Result<Option<VolumeContent>, String> {
    let root = match tree::open_root(&volume_directory(&task.dir, written.index)) {
        // All of it was handed over, and it was removed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| unreadable(&e))?,
    };
    let mut listing = match tree::list_with_rules(&root, task.uid, &VOLUME_PATHS) {
        Ok(listing) => listing,
        Err(TreeError::TooMany) => {
            let why = format!(
                "The job left more than {CHECKPOINT_ENTRIES} files and directories. No new version was created."
            );
            return Ok(Some(Err(why)));
        }
        Err(TreeError::Io(error)) => return Err(unreadable(&error.into())),
    };
    for link in listing.entries.iter().filter(|e| matches!(e.kind, TreeEntryKind::Link(_))) {
        listing.left_out.add(link.path.as_bytes());
    }
    let note = listing.left_out.note(&format!(
        "only files of the job are kept, at UTF-8 paths of at most {} bytes and {} parts",
        VOLUME_PATHS.bytes, VOLUME_PATHS.parts
    ));
    let files = listing.entries.into_iter().filter(|e| e.kind == TreeEntryKind::File);
    let files: Vec<TreeEntry> = files.collect();
    if files.len() > VOLUME_FILES {
        let why = format!(
            "The job left {} files, and a volume has at most {VOLUME_FILES}. No new version was created.",
            files.len()
        );
        return Ok(Some(Err(why)));
    }
    // Holes take no space on the disk, but would be sent.
    if files.iter().map(|e| e.bytes).fold(0u64, u64::saturating_add) > task.most_bytes {
        let why = "The files exceed the disk limit of a job on this node. No new version was created.";
        return Ok(Some(Err(why.to_owned())));
    }
    Ok(Some(Ok((root, files, note))))
}

/// Hands over the attempt's volumes after its end.
pub(super) async fn hand_over(task: &OutputTask, portal: &mut Portal) -> Result<(), String> {
    for written in &task.plan.volumes {
        let reading = (task.clone(), written.clone());
        let Some(content) = blocking(move || read_volume(&reading.0, &reading.1)).await? else { continue };
        let file = OutputFile {
            attempt: Some(task.key.id()),
            volume: written.volume.clone(),
            ..OutputFile::default()
        };
        let (root, entries, note) = match content {
            Ok(content) => content,
            Err(why) => {
                let empty = Sha256::digest(b"").to_vec();
                let file = OutputFile { note: why, refused: true, manifest: true, sha256: empty, ..file };
                upload(portal, file, UploadSource::Path(std::path::PathBuf::new())).await?;
                continue;
            }
        };
        let files = UploadSet { root: Arc::new(root), output: file.clone() };
        let mut list = VolumeManifest::default();
        for (entry, hash) in upload_all(portal, &files, entries).await? {
            // No process writes the file, so an incomplete read is a fault of the disk. A list without the file would
            // remove it from the volume.
            let sha256 = hash.ok_or_else(|| format!("{} is not readable", entry.path))?;
            list.files.push(VolumeFile {
                path: entry.path,
                file: String::new(),
                bytes: entry.bytes,
                sha256,
                executable: entry.mode & 0o111 != 0,
            });
        }
        send_list(task, file, &list, note, portal).await?;
    }
    Ok(())
}

async fn send_list(
    task: &OutputTask,
    file: OutputFile,
    list: &VolumeManifest,
    note: String,
    portal: &mut Portal,
) -> Result<(), String> {
    let data = list.encode_to_vec();
    let file = OutputFile {
        bytes: data.len() as u64,
        sha256: Sha256::digest(&data).to_vec(),
        files: list.files.len() as u64,
        manifest: true,
        note,
        ..file
    };
    let (dir, path) = (task.dir.clone(), task.dir.join(KEPT_DIR).join("listing"));
    let place = path.clone();
    blocking(move || {
        make_kept_dir(&dir).map_err(|e| unreadable(&e))?;
        let file = create_file(&place).map_err(|e| unreadable(&e))?;
        file.write_all_at(&data, 0).map_err(|e| unreadable(&e))
    })
    .await?;
    upload(portal, file, UploadSource::Path(path)).await
}

#[cfg(test)]
mod tests {
    use super::super::plan::OutputPlan;
    use super::*;
    use berth_shim::model::AttemptKey;

    #[test]
    fn files_go_back_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let written = WrittenVolume { volume: "vol".to_owned(), index: 1 };
        let plan = OutputPlan { volumes: vec![written.clone()], ..OutputPlan::default() };
        let key = AttemptKey { job: "job".to_owned(), number: 1 };
        let at = dir.path().to_owned();
        let task = OutputTask { key, dir: at, plan, uid: None, over: true, most_bytes: 1 << 20 };
        assert!(read_volume(&task, &written).unwrap().is_none(), "it is not there any more");
        let root = volume_directory(dir.path(), 1);
        let long = format!("{}/{}/{}", "d".repeat(250), "e".repeat(250), "f".repeat(250));
        std::fs::create_dir_all(root.join(&long).parent().unwrap()).unwrap();
        for name in ["a", long.as_str()] {
            std::fs::write(root.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("a", root.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("away")).unwrap();
        let (_, files, note) = read_volume(&task, &written).unwrap().unwrap().unwrap();
        let mut paths: Vec<&str> = files.iter().map(|f| f.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["a", &long]);
        assert!(note.starts_with("2 not kept"), "{note}");
        // A path that volumes do not permit affects no other file.
        let deep = root.join(vec!["x"; VOLUME_PATHS.parts].join("/"));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("below"), "").unwrap();
        let (_, files, note) = read_volume(&task, &written).unwrap().unwrap().unwrap();
        assert_eq!(files.len(), 2);
        assert!(note.starts_with("3 not kept") && note.contains("\"x/x/"), "{note}");
        std::fs::File::create(root.join("hole")).unwrap().set_len(2 << 20).unwrap();
        assert!(
            read_volume(&task, &written).unwrap().unwrap().is_err(),
            "it would be sent with its whole length"
        );
    }
}
