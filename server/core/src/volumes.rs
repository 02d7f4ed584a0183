//! Rules for volumes: names, mount paths, and the list of one directory. Must not know where bytes are
//! stored.

use std::collections::{BTreeMap, BTreeSet};

use berth_types::jobs::NewJob;
use berth_types::paths::{JOB_PATHS, is_reserved, overlap};
use berth_types::time::Timestamp;
use berth_types::volumes::{EntryKind, NewVolume, VolumeEntry};

/// The refusal of a path that is reserved for Berth's own files.
pub(crate) const RESERVED_PATH: &str = "This path is reserved for Berth. Choose another.";

/// Volumes of one organization.
pub const MAX_VOLUMES: i64 = 100;
/// Unfinished uploads into one volume.
pub const MAX_UPLOADS: i64 = 100;
/// Volumes of one job.
pub const MAX_USES: usize = 16;
/// Bytes of one volume: a pebibyte.
pub const MAX_BYTES: u64 = 1 << 50;
/// Bytes of an upload's tag.
pub const MAX_TAG: usize = 200;

const NAME_RULE: &str =
    "A name has up to 63 lower-case letters, digits and - and begins with a letter or a digit.";

/// Directories at the root of an operating system.
const SYSTEM_DIRS: [&str; 27] = [
    "bin",
    "boot",
    "dev",
    "etc",
    "home",
    "init",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "lost+found",
    "media",
    "mnt",
    "nix",
    "old_root",
    "opt",
    "proc",
    "root",
    "run",
    "sbin",
    "selinux",
    "snap",
    "srv",
    "sys",
    "tmp",
    "usr",
    "var",
];

/// True if a text can be the name of a volume.
pub fn is_name(name: &str) -> bool {
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// The faults of a new volume: a JSON pointer and a sentence each.
pub fn check_new(new: &NewVolume) -> Vec<(&'static str, &'static str)> {
    let mut faults = Vec::new();
    if !is_name(&new.name) {
        faults.push(("/name", NAME_RULE));
    }
    match (&new.class, new.max_bytes) {
        (Some(class), _) if !is_name(class) => faults.push(("/class", NAME_RULE)),
        (Some(_), Some(_)) => {
            faults.push(("/max_bytes", "The portal limits no volume of a storage class. Omit the field."));
        }
        (Some(_), None) | (None, Some(1..=MAX_BYTES)) => {}
        (None, _) => faults.push(("/max_bytes", "Enter 1 byte to 1 PiB (1125899906842624 bytes).")),
    }
    faults
}

/// The parent directories of a file, the nearest last.
pub fn parent_dirs(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(at, _)| path.get(..at))
}

/// The first path that is used for two files, or for a file and a directory. `paths` has the number of files
/// at each path.
pub fn find_clash<'a>(paths: &BTreeMap<&'a str, usize>) -> Option<&'a str> {
    let twice = paths.iter().find(|(_, count)| **count > 1).map(|(path, _)| *path);
    twice.or_else(|| paths.keys().copied().flat_map(parent_dirs).find(|dir| paths.contains_key(dir)))
}

/// Checks the path of a volume in a job: below the job's directory, or one directory at the root that is not
/// a directory of the system.
fn check_mount_path(path: &str) -> Result<(), String> {
    let Some(name) = path.strip_prefix('/') else {
        JOB_PATHS.check(path)?;
        return if is_reserved(path) { Err(RESERVED_PATH.to_owned()) } else { Ok(()) };
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+');
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(
            "Enter one directory at the root, such as /data, of letters, digits and . _ - +, or a path in the directory of the job without a leading /.".to_owned(),
        );
    }
    if SYSTEM_DIRS.contains(&name) {
        return Err("This directory belongs to the system. Choose another, such as /data.".to_owned());
    }
    Ok(())
}

/// Reports the faults of a job's volumes that are visible without the database.
pub fn check_uses(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    if job.volumes.len() > MAX_USES {
        refuse("/volumes", "A job has at most 16 volumes.");
        return;
    }
    let mut names = BTreeSet::new();
    let checkpoint_dir = job.checkpoint.as_ref().and_then(|checkpoint| checkpoint.dir.as_deref());
    for (index, volume) in job.volumes.iter().enumerate() {
        let at = |field: &str| format!("/volumes/{index}/{field}");
        if !is_name(&volume.name) {
            refuse(&at("name"), NAME_RULE);
        } else if !names.insert(&volume.name) {
            refuse(&at("name"), "The job already has this volume. Remove one of them.");
        }
        let mut others = job.volumes.iter().take(index).map(|other| other.path.as_str());
        if let Err(detail) = check_mount_path(&volume.path) {
            refuse(&at("path"), &detail);
        } else if others.any(|other| overlap(other, &volume.path)) {
            refuse(&at("path"), "This path overlaps with another volume. Choose another.");
        } else if job
            .files
            .keys()
            .map(String::as_str)
            .chain(checkpoint_dir)
            .any(|own| overlap(own, &volume.path))
        {
            refuse(
                &at("path"),
                "This path overlaps with files of the job or with its checkpoint directory. Choose another.",
            );
        }
    }
}

/// A file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFile {
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
    pub changed_at: Timestamp,
}

/// The entries of one directory (`""`: the root), by name. An entry for a directory sums up its files.
pub fn list_dir(dir: &str, files: &[VolumeFile]) -> Vec<VolumeEntry> {
    let mut out: BTreeMap<&str, VolumeEntry> = BTreeMap::new();
    for file in files {
        let below = match dir {
            "" => Some(file.path.as_str()),
            dir => file.path.strip_prefix(dir).and_then(|rest| rest.strip_prefix('/')),
        };
        let Some(below) = below else { continue };
        let (name, deeper) = below.split_once('/').map_or((below, false), |(name, _)| (name, true));
        let entry = out.entry(name).or_insert_with(|| VolumeEntry {
            name: name.to_owned(),
            path: if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") },
            kind: if deeper { EntryKind::Dir } else { EntryKind::File },
            bytes: 0,
            files: 0,
            sha256: (!deeper).then(|| file.sha256.clone()),
            changed_at: file.changed_at,
        });
        entry.bytes = entry.bytes.saturating_add(file.bytes);
        entry.files += 1;
        entry.changed_at = entry.changed_at.max(file.changed_at);
    }
    out.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::files::Checkpoint;
    use berth_types::volumes::{VolumeMode, VolumeUse};
    use proptest::prelude::*;

    fn volume_use(name: &str, path: &str, mode: VolumeMode) -> VolumeUse {
        VolumeUse { name: name.to_owned(), path: path.to_owned(), mode }
    }

    fn pointers(job: &NewJob) -> Vec<String> {
        let mut out = Vec::new();
        check_uses(job, &mut |at: &str, _: &str| out.push(at.to_owned()));
        out
    }

    fn job(volumes: Vec<VolumeUse>) -> NewJob {
        let files = [("src/train.py".to_owned(), String::new())].into();
        let checkpoint = Some(Checkpoint { dir: Some("ckpt".to_owned()), ..Checkpoint::default() });
        NewJob { volumes, files, checkpoint, nodes: 1, ..NewJob::default() }
    }

    #[test]
    fn each_fault_of_a_job_is_named() {
        use VolumeMode::{Ro, Rw};
        assert_eq!(
            pointers(&job(vec![volume_use("data", "/data", Ro), volume_use("out", "out/all", Rw)])),
            [""; 0]
        );
        let cases = [
            (volume_use("Data", "/data", Ro), "/volumes/0/name"),
            (volume_use("d", "/", Ro), "/volumes/0/path"),
            (volume_use("d", "/usr", Ro), "/volumes/0/path"),
            (volume_use("d", "/data/x", Ro), "/volumes/0/path"),
            (volume_use("d", "/..", Ro), "/volumes/0/path"),
            (volume_use("d", "../x", Ro), "/volumes/0/path"),
            (volume_use("d", "", Ro), "/volumes/0/path"),
            (volume_use("d", "src", Ro), "/volumes/0/path"),
            (volume_use("d", "src/train.py/x", Ro), "/volumes/0/path"),
            (volume_use("d", "ckpt", Ro), "/volumes/0/path"),
            (volume_use("d", ".volumes", Ro), "/volumes/0/path"),
            (volume_use("d", ".berth-script", Ro), "/volumes/0/path"),
        ];
        for (volume, pointer) in cases {
            assert_eq!(pointers(&job(vec![volume.clone()])), [pointer], "{volume:?}");
        }
        let twice = job(vec![volume_use("d", "a", Ro), volume_use("d", "a/b", Ro)]);
        assert_eq!(pointers(&twice), ["/volumes/1/name", "/volumes/1/path"]);
        assert_eq!(pointers(&job(vec![volume_use("d", "a", Ro); 17])), ["/volumes"]);
    }

    #[test]
    fn a_volume_has_a_limit_or_a_storage_class() {
        let pointers = |max_bytes: Option<u64>, class: Option<&str>| {
            let new = NewVolume { name: "d".to_owned(), max_bytes, class: class.map(str::to_owned) };
            check_new(&new).into_iter().map(|(pointer, _)| pointer).collect::<Vec<_>>()
        };
        assert_eq!(pointers(Some(1), None), [""; 0]);
        assert_eq!(pointers(None, Some("scratch")), [""; 0]);
        assert_eq!(pointers(None, None), ["/max_bytes"]);
        assert_eq!(pointers(Some(MAX_BYTES + 1), None), ["/max_bytes"]);
        assert_eq!(pointers(Some(1), Some("scratch")), ["/max_bytes"]);
        assert_eq!(pointers(None, Some("../x")), ["/class"]);
    }

    #[test]
    fn a_path_is_a_file_or_a_directory() {
        let found = |paths: &[&'static str]| {
            let mut counted = BTreeMap::new();
            paths.iter().for_each(|path| *counted.entry(*path).or_insert(0) += 1);
            find_clash(&counted)
        };
        assert_eq!(found(&["a/b", "a/c", "d", "ab"]), None);
        assert_eq!(found(&["a/b/c", "a"]), Some("a"));
        assert_eq!(found(&["a/b/c", "a/b"]), Some("a/b"));
        assert_eq!(found(&["x", "x"]), Some("x"));
        assert_eq!(parent_dirs("a/b/c").collect::<Vec<_>>(), ["a", "a/b"]);
    }

    #[test]
    fn a_directory_shows_what_is_below_it() {
        let file = |path: &str, bytes: u64, at: i64| VolumeFile {
            path: path.to_owned(),
            bytes,
            sha256: "00".to_owned(),
            changed_at: Timestamp::from_micros(at),
        };
        let files = [file("a/x", 1, 5), file("a/y/z", 2, 7), file("ab", 4, 1), file("b", 8, 2)];
        let listed = |dir: &str| {
            let short = |e: VolumeEntry| (e.path, e.kind, e.bytes, e.files, e.changed_at.micros());
            list_dir(dir, &files).into_iter().map(short).collect::<Vec<_>>()
        };
        use EntryKind::{Dir, File};
        assert_eq!(
            listed(""),
            [
                ("a".to_owned(), Dir, 3, 2, 7),
                ("ab".to_owned(), File, 4, 1, 1),
                ("b".to_owned(), File, 8, 1, 2)
            ]
        );
        assert_eq!(listed("a"), [("a/x".to_owned(), File, 1, 1, 5), ("a/y".to_owned(), Dir, 2, 1, 7)]);
        assert_eq!(listed("a/x"), []);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_in_a_directory(paths in prop::collection::btree_set("[ab](/[ab]){0,3}", 0..8)) {
            let files: Vec<VolumeFile> = paths.iter().map(|path| VolumeFile {
                path: path.clone(), bytes: 1, sha256: String::new(), changed_at: Timestamp::from_micros(0),
            }).collect();
            let counted: u64 = list_dir("", &files).iter().map(|entry| entry.files).sum();
            prop_assert_eq!(counted, files.len() as u64);
        }
    }
}
