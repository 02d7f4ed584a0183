//! Files that a job said should be kept, when an attempt is over.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use berth_proto::{AttemptId, Parcel};
use berth_types::paths::{ATTEMPT_ARTIFACTS, JOB_PATHS, LeftOut};
use sha2::{Digest, Sha256};

use super::bundles::{Files, hand_over};
use super::patterns::Patterns;
use super::transfer::{Portal, Source, send};
use super::tree::Entry;
use super::walk::{self, Found};
use super::{Task, blocking, failed, work};

/// Where the note about artifacts stands, beside them. No file has this number.
const NOTE: &str = "artifacts";
const NOTE_SEQ: u64 = 1;

/// The job's directory, the files in it that its patterns mean, and what is to be said about the rest.
struct Chosen {
    root: OwnedFd,
    entries: Vec<Entry>,
    note: Vec<String>,
}

fn chosen(task: &Task) -> Result<Option<Chosen>, String> {
    let Some(root) = work(task)? else { return Ok(None) };
    let patterns = Patterns::new(&task.keep.artifacts);
    let found = walk::find(&root, task.uid, &patterns, task.most_bytes);
    let found: Found = found.map_err(|error| failed(&error.into()))?;
    let mut too_long = found.too_long;
    let mut entries: Vec<Entry> = found.files.into_values().collect();
    let mut room = task.most_bytes;
    entries.retain(|e| {
        let left = room.checked_sub(e.bytes);
        room = left.unwrap_or(room);
        if left.is_none() {
            too_long.add(e.path.as_bytes());
        }
        left.is_some()
    });
    let mut note = Vec::new();
    if found.more {
        note.push(format!(
            "The patterns mean more than {ATTEMPT_ARTIFACTS} files, and the first {ATTEMPT_ARTIFACTS} by name are kept; pack them into archives."
        ));
    }
    if found.cut {
        note.push(
            "The patterns reach more files and directories than are looked through, and files may be missing; name the directories that hold them."
                .to_owned(),
        );
    }
    note.push(too_long.note("together the files are longer than what a job may have on this node"));
    note.push(found.odd.note(&format!(
        "only the job's own files are kept, at paths of plain UTF-8 with at most {} bytes and {} parts",
        JOB_PATHS.bytes, JOB_PATHS.parts
    )));
    Ok(Some(Chosen { root, entries, note }))
}

/// Hands over what the patterns mean.
pub(super) async fn keep(task: &Task, portal: &mut Portal) -> Result<(), String> {
    let looking = task.clone();
    let Some(Chosen { root, entries, mut note }) = blocking(move || chosen(&looking)).await? else {
        return Ok(());
    };
    let attempt = Some(AttemptId::new(&task.key.job, task.key.number));
    let parcel = Parcel { attempt, ..Parcel::default() };
    let files = Files { root: Arc::new(root), parcel: parcel.clone() };
    let mut unread = LeftOut::default();
    for (entry, hash) in hand_over(portal, &files, entries).await? {
        // Nothing of the job runs, so a file that is another now is the disk's doing.
        if hash.is_none() {
            unread.add(entry.path.as_bytes());
        }
    }
    note.push(unread.note("they could not be read"));
    note.retain(|sentence| !sentence.is_empty());
    if note.is_empty() {
        return Ok(());
    }
    let parcel = Parcel {
        path: NOTE.to_owned(),
        seq: NOTE_SEQ,
        note: note.join(" "),
        refused: true,
        sha256: Sha256::digest(b"").to_vec(),
        ..parcel
    };
    send(portal, parcel, Source::Path(PathBuf::new())).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Key;
    use crate::keeping::Keep;

    #[test]
    fn artifacts_are_files_that_the_patterns_mean() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir_all(work.join("out/deep")).unwrap();
        for name in ["out/b.txt", "out/a.txt", "out/c.png", "out/deep/d.txt", "e.txt"] {
            std::fs::write(work.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("a.txt", work.join("out/link.txt")).unwrap();
        let keep = Keep { artifacts: vec!["out/*.txt".to_owned()], ..Keep::default() };
        let key = Key { job: "job".to_owned(), number: 1 };
        let task = Task { key, dir: dir.path().to_owned(), keep, uid: None, over: true, most_bytes: 1 << 20 };
        let now = || {
            let chosen = chosen(&task).unwrap().unwrap();
            let paths: Vec<String> = chosen.entries.into_iter().map(|e| e.path).collect();
            (paths, chosen.note.concat())
        };
        assert_eq!(now(), (vec!["out/a.txt".to_owned(), "out/b.txt".to_owned()], String::new()));
        // Longer than all that the directory may hold, and no room on the disk.
        std::fs::File::create(work.join("out/a0.txt")).unwrap().set_len(2 << 20).unwrap();
        // Together with the others.
        std::fs::File::create(work.join("out/z.txt")).unwrap().set_len((1 << 20) - 5).unwrap();
        std::fs::write(work.join("out/line\nbreak.txt"), "").unwrap();
        let (paths, note) = now();
        assert_eq!(paths, ["out/a.txt", "out/b.txt"]);
        for part in [
            "2 left out: together",
            "\"out/a0.txt\"",
            "\"out/z.txt\"",
            r#"1 left out: only the job's own"#,
            r#""out/line\nbreak.txt""#,
        ] {
            assert!(note.contains(part), "{part}: {note}");
        }
        for n in 0..=ATTEMPT_ARTIFACTS {
            std::fs::write(work.join(format!("out/{n}.txt")), "").unwrap();
        }
        let (paths, note) = now();
        assert_eq!(paths.len(), ATTEMPT_ARTIFACTS);
        assert!(note.contains("the first 1000 by name"), "{note}");
    }
}
