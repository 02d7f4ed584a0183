//! A job's secrets as variables and as files. The files are in memory until the job is gone, and on the disk only
//! where no memory file system exists. No record has a value.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use berth_proto::Spec;
use berth_system::files::join_inside;
use nix::fcntl::OFlag;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use crate::sandbox::{SECRETS_DIR, is_deferred};

/// The variable with the directory of the files.
pub const DIR_VARIABLE: &str = "BERTH_SECRETS";
/// The memory file system of every Linux.
const MEMORY: &str = "/dev/shm";

/// The secrets of a job that are variables.
pub fn variables(spec: &Spec) -> impl Iterator<Item = (String, String)> {
    // A variable of the loader would steer the sandbox's own programs; the portal accepts none.
    let variables = spec.secrets.iter().filter(|s| !s.env.is_empty() && !is_deferred(&s.env));
    variables.map(|secret| (secret.env.clone(), secret.value.clone()))
}

/// The directory for the secret files of an attempt: in memory, or else beside its records, which only the worker
/// reads. `None`: the attempt has no secret files.
pub fn directory(dir: &Path, spec: &Spec) -> Option<PathBuf> {
    if spec.secrets.iter().all(|secret| secret.file.is_empty()) {
        return None;
    }
    let memory = Path::new(MEMORY);
    let name = dir.file_name().map(|name| format!("berth-{}", name.to_string_lossy()));
    let in_memory = statfs(memory).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC);
    Some(name.filter(|_| in_memory).map_or_else(|| dir.join("secrets"), |name| memory.join(name)))
}

/// The directory as the job sees it; empty if it has none.
pub fn path_in_job(dir: Option<&Path>, isolated: bool) -> String {
    match dir {
        Some(_) if isolated => SECRETS_DIR.to_owned(),
        Some(dir) => dir.display().to_string(),
        None => String::new(),
    }
}

/// Writes the files. Only `uid` may read them, or the worker's own user without a `uid`.
pub fn write(dir: &Path, spec: &Spec, uid: Option<u32>) -> io::Result<()> {
    // An existing directory is an error: another user may have made it.
    DirBuilder::new().mode(0o700).create(dir)?;
    for secret in spec.secrets.iter().filter(|secret| !secret.file.is_empty()) {
        let file = Some(secret.file.as_str()).filter(|name| !name.contains('/'));
        let file = file.and_then(|name| join_inside(dir, name)).ok_or(ErrorKind::InvalidInput)?;
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o400).open(&file)?;
        out.write_all(secret.value.as_bytes())?;
        if let Some(uid) = uid {
            lchown(&file, Some(uid), Some(uid))?;
        }
    }
    std::fs::set_permissions(dir, Permissions::from_mode(0o500))?;
    match uid {
        Some(uid) => lchown(dir, Some(uid), Some(uid)),
        None => Ok(()),
    }
}

/// Removes the files. Absent files are no error.
pub fn remove(dir: &Path) -> io::Result<()> {
    // Only root may remove names from a directory without write permission. No link is followed.
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    match OpenOptions::new().read(true).custom_flags(flags.bits()).open(dir) {
        Ok(dir) => dir.set_permissions(Permissions::from_mode(0o700))?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        // The removal below returns the cause.
        Err(_) => {}
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use berth_proto::Secret;

    use super::*;

    fn spec(secrets: &[(&str, &str, &str)]) -> Spec {
        let secret = |(env, file, value): &(&str, &str, &str)| Secret {
            name: "any".to_owned(),
            value: (*value).to_owned(),
            env: (*env).to_owned(),
            file: (*file).to_owned(),
        };
        Spec { secrets: secrets.iter().map(secret).collect(), ..Spec::default() }
    }

    #[test]
    fn files_are_for_one_reader_and_go_away() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("secrets");
        let secrets = spec(&[("", "key", "0123456789"), ("TOKEN", "", "abcdefghij")]);
        write(&place, &secrets, None).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&place), mode(&place.join("key"))), (0o500, 0o400));
        assert_eq!(std::fs::read_to_string(place.join("key")).unwrap(), "0123456789");
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1, "a variable is no file");
        assert!(write(&place, &secrets, None).is_err(), "what is there is nobody's to add to");
        remove(&place).unwrap();
        assert!(!place.exists());
        remove(&place).unwrap();
        assert!(write(&place, &spec(&[("", "../key", "0123456789")]), None).is_err());
        assert!(!dir.path().join("key").exists());
    }

    #[test]
    fn they_lie_in_memory_and_only_when_there_are_any() {
        let dir = Path::new("/data/attempts/job_x-1");
        assert_eq!(directory(dir, &spec(&[("TOKEN", "", "abcdefghij")])), None);
        let place = directory(dir, &spec(&[("", "key", "0123456789")])).unwrap();
        assert!(place == Path::new("/dev/shm/berth-job_x-1") || place == dir.join("secrets"), "{place:?}");
    }

    #[test]
    fn a_value_is_in_no_debug_text() {
        let text = format!("{:?}", spec(&[("TOKEN", "", "abcdefghij")]));
        assert!(text.contains("TOKEN") && !text.contains("abcdefghij"), "{text}");
    }
}
