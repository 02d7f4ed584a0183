//! Artifacts: the files that match the patterns of a job, handed over after the end of the attempt.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use berth_proto::OutputFile;
use berth_types::paths::{ATTEMPT_ARTIFACTS, JOB_PATHS, LeftOut};
use sha2::{Digest, Sha256};

use super::artifact_search::{self, FoundArtifacts};
use super::patterns::Patterns;
use super::task::OutputTask;
use crate::transfer::tree::TreeEntry;
use crate::transfer::{Portal, UploadSet, UploadSource, blocking, unreadable, upload, upload_all};

/// The path and number of the note about artifacts. No file has this number.
const NOTE: &str = "artifacts";
const NOTE_SEQ: u64 = 1;

/// The job's directory, the files that match its patterns, and notes about the rest.
struct SelectedArtifacts {
    root: OwnedFd,
    entries: Vec<TreeEntry>,
    note: Vec<String>,
}

fn select(task: &OutputTask) -> Result<Option<SelectedArtifacts>, String> {
    let Some(root) = task.open_work()? else { return Ok(None) };
    let patterns = Patterns::new(&task.plan.artifacts);
    let found = artifact_search::find(&root, task.uid, &patterns, task.most_bytes);
    let found: FoundArtifacts = found.map_err(|error| unreadable(&error.into()))?;
    let mut too_long = found.too_long;
    let mut entries: Vec<TreeEntry> = found.files.into_values().collect();
    let mut free = task.most_bytes;
    entries.retain(|e| {
        let left = free.checked_sub(e.bytes);
        free = left.unwrap_or(free);
        if left.is_none() {
            too_long.add(e.path.as_bytes());
        }
        left.is_some()
    });
    let mut note = Vec::new();
    if found.more {
        note.push(format!(
            "The patterns match more than {ATTEMPT_ARTIFACTS} files. Only the first {ATTEMPT_ARTIFACTS} by name are kept. Pack files into archives."
        ));
    }
    if found.cut {
        note.push(
            "The search of the patterns reached its limit of files and directories. Some files may be missing. Enter more exact directories."
                .to_owned(),
        );
    }
    note.push(too_long.note("total size above the disk limit of a job on this node"));
    note.push(found.odd.note(&format!(
        "only files of the job are kept, at UTF-8 paths of at most {} bytes and {} parts",
        JOB_PATHS.bytes, JOB_PATHS.parts
    )));
    Ok(Some(SelectedArtifacts { root, entries, note }))
}

/// Hands over the files that match the patterns.
pub(super) async fn hand_over(task: &OutputTask, portal: &mut Portal) -> Result<(), String> {
    let selecting = task.clone();
    let selected = blocking(move || select(&selecting)).await?;
    let Some(SelectedArtifacts { root, entries, mut note }) = selected else { return Ok(()) };
    let file = OutputFile { attempt: Some(task.key.id()), ..OutputFile::default() };
    let files = UploadSet { root: Arc::new(root), output: file.clone() };
    let mut unread = LeftOut::default();
    for (entry, hash) in upload_all(portal, &files, entries).await? {
        // No process of the job runs, so a changed file is a fault of the disk.
        if hash.is_none() {
            unread.add(entry.path.as_bytes());
        }
    }
    note.push(unread.note("not readable"));
    note.retain(|sentence| !sentence.is_empty());
    if note.is_empty() {
        return Ok(());
    }
    let file = OutputFile {
        path: NOTE.to_owned(),
        seq: NOTE_SEQ,
        note: note.join(" "),
        refused: true,
        sha256: Sha256::digest(b"").to_vec(),
        ..file
    };
    upload(portal, file, UploadSource::Path(PathBuf::new())).await
}

#[cfg(test)]
mod tests {
    use super::super::plan::OutputPlan;
    use super::*;
    use berth_shim::model::AttemptKey;

    #[test]
    fn artifacts_are_files_that_the_patterns_mean() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir_all(work.join("out/deep")).unwrap();
        for name in ["out/b.txt", "out/a.txt", "out/c.png", "out/deep/d.txt", "e.txt"] {
            std::fs::write(work.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("a.txt", work.join("out/link.txt")).unwrap();
        let artifacts = vec!["out/*.txt".to_owned()];
        let plan = OutputPlan { artifacts, ..OutputPlan::default() };
        let key = AttemptKey { job: "job".to_owned(), number: 1 };
        let dir = dir.path().to_owned();
        let task = OutputTask { key, dir, plan, uid: None, over: true, most_bytes: 1 << 20 };
        let now = || {
            let selected = select(&task).unwrap().unwrap();
            let paths: Vec<String> = selected.entries.into_iter().map(|e| e.path).collect();
            (paths, selected.note.concat())
        };
        assert_eq!(now(), (vec!["out/a.txt".to_owned(), "out/b.txt".to_owned()], String::new()));
        // Longer than the disk limit, although it takes no space on the disk.
        std::fs::File::create(work.join("out/a0.txt")).unwrap().set_len(2 << 20).unwrap();
        // Too long together with the others.
        std::fs::File::create(work.join("out/z.txt")).unwrap().set_len((1 << 20) - 5).unwrap();
        std::fs::write(work.join("out/line\nbreak.txt"), "").unwrap();
        let (paths, note) = now();
        assert_eq!(paths, ["out/a.txt", "out/b.txt"]);
        for part in [
            "2 not kept: total size",
            "\"out/a0.txt\"",
            "\"out/z.txt\"",
            "1 not kept: only files of the job",
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
