//! What a job is given of its organization's secrets: variables and what is masked go to the shim through a pipe,
//! files lie in memory until the job is gone. Must not write a value to a disk where there is memory for it, and
//! never into a record.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use berth_proto::Spec;
use nix::fcntl::OFlag;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use serde::{Deserialize, Serialize};

use crate::files::inside;
use crate::sandbox::is_late;

/// Where the files are inside a sandbox.
pub const INSIDE: &str = "/run/secrets";
/// The variable that says where they are, with a sandbox and without.
pub const PLACE: &str = "BERTH_SECRETS";
/// Memory that is a file system on every Linux.
const MEMORY: &str = "/dev/shm";

/// What the shim is told, and nobody else. It forgets it with its end.
#[derive(Default, Serialize, Deserialize)]
pub struct Given {
    /// Variables of the job.
    pub env: Vec<(String, String)>,
    /// Values that must not come out in the log.
    pub mask: Vec<String>,
}

/// The secrets that a job finds in variables.
pub fn variables(spec: &Spec) -> impl Iterator<Item = (String, String)> {
    // What steers the loader would do so in the sandbox's own programs; the portal accepts none.
    let variables = spec.secrets.iter().filter(|s| !s.env.is_empty() && !is_late(&s.env));
    variables.map(|secret| (secret.env.clone(), secret.value.clone()))
}

impl Given {
    pub fn of(spec: &Spec) -> Self {
        Self {
            // A container has its variables when it is made. What a shim starts then is podman, as root: no
            // variable of a job may be podman's.
            env: if spec.image.is_empty() { variables(spec).collect() } else { Vec::new() },
            mask: spec.secrets.iter().map(|secret| secret.value.clone()).collect(),
        }
    }

    /// Tells the shim at the other end of this pipe. One that has ended already says so itself.
    pub fn tell(&self, mut pipe: impl Write) {
        let told = serde_json::to_vec(self).map_err(io::Error::other).and_then(|text| pipe.write_all(&text));
        if let Err(error) = told {
            tracing::warn!(%error, "a shim was not told its job's secrets, and will not start it");
        }
    }

    /// What the daemon tells this shim. Cut short, when the daemon has died, it cannot be read.
    pub fn hear() -> Result<Self, String> {
        serde_json::from_reader(io::stdin().lock()).map_err(|_| "its secrets did not come".to_owned())
    }
}

/// Where the files of an attempt are to lie: in memory, or else beside its records, which nobody else reads
/// either. `None` when it has none.
pub fn place(dir: &Path, spec: &Spec) -> Option<PathBuf> {
    if spec.secrets.iter().all(|secret| secret.file.is_empty()) {
        return None;
    }
    let memory = Path::new(MEMORY);
    let name = dir.file_name().map(|name| format!("berth-{}", name.to_string_lossy()));
    let in_memory = statfs(memory).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC);
    Some(name.filter(|_| in_memory).map_or_else(|| dir.join("secrets"), |name| memory.join(name)))
}

/// Where the job finds its files; empty when it has none.
pub fn seen_at(place: Option<&Path>, isolated: bool) -> String {
    match place {
        Some(_) if isolated => INSIDE.to_owned(),
        Some(place) => place.display().to_string(),
        None => String::new(),
    }
}

/// Writes the files, for nobody but `uid` to read (this worker's own user when `None`).
pub fn write(place: &Path, spec: &Spec, uid: Option<u32>) -> io::Result<()> {
    // It must not be there: a directory of somebody else's is not written into.
    DirBuilder::new().mode(0o700).create(place)?;
    for secret in spec.secrets.iter().filter(|secret| !secret.file.is_empty()) {
        let file = Some(secret.file.as_str()).filter(|name| !name.contains('/'));
        let file = file.and_then(|name| inside(place, name)).ok_or(ErrorKind::InvalidInput)?;
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o400).open(&file)?;
        out.write_all(secret.value.as_bytes())?;
        if let Some(uid) = uid {
            lchown(&file, Some(uid), Some(uid))?;
        }
    }
    std::fs::set_permissions(place, Permissions::from_mode(0o500))?;
    match uid {
        Some(uid) => lchown(place, Some(uid), Some(uid)),
        None => Ok(()),
    }
}

/// Removes the files; nothing happens when they are gone.
pub fn remove(place: &Path) -> io::Result<()> {
    // Who is not root may not take names out of a directory that cannot be written. A link is not followed.
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    match OpenOptions::new().read(true).custom_flags(flags.bits()).open(place) {
        Ok(dir) => dir.set_permissions(Permissions::from_mode(0o700))?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        // What keeps it from being removed is said below.
        Err(_) => {}
    }
    match std::fs::remove_dir_all(place) {
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
        let given = spec(&[("", "key", "0123456789"), ("TOKEN", "", "abcdefghij")]);
        write(&place, &given, None).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&place), mode(&place.join("key"))), (0o500, 0o400));
        assert_eq!(std::fs::read_to_string(place.join("key")).unwrap(), "0123456789");
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1, "a variable is no file");
        assert!(write(&place, &given, None).is_err(), "what is there is nobody's to add to");
        remove(&place).unwrap();
        assert!(!place.exists());
        remove(&place).unwrap();
        assert!(write(&place, &spec(&[("", "../key", "0123456789")]), None).is_err());
        assert!(!dir.path().join("key").exists());
    }

    #[test]
    fn they_lie_in_memory_and_only_when_there_are_any() {
        let dir = Path::new("/data/attempts/job_x-1");
        assert_eq!(place(dir, &spec(&[("TOKEN", "", "abcdefghij")])), None);
        let place = place(dir, &spec(&[("", "key", "0123456789")])).unwrap();
        assert!(place == Path::new("/dev/shm/berth-job_x-1") || place == dir.join("secrets"), "{place:?}");
    }

    #[test]
    fn podman_is_started_with_no_variable_of_a_job() {
        let own = spec(&[("TOKEN", "", "abcdefghij"), ("LD_PRELOAD", "", "/home/job/x.so")]);
        let expected = [("TOKEN".to_owned(), "abcdefghij".to_owned())];
        assert_eq!(Given::of(&own).env, expected);
        let contained = Spec { image: "localhost/x:1".to_owned(), ..own };
        assert!(Given::of(&contained).env.is_empty());
        assert_eq!(Given::of(&contained).mask, ["abcdefghij", "/home/job/x.so"], "masked all the same");
        assert_eq!(variables(&contained).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_value_is_in_no_debug_text() {
        let text = format!("{:?}", spec(&[("TOKEN", "", "abcdefghij")]));
        assert!(text.contains("TOKEN") && !text.contains("abcdefghij"), "{text}");
    }
}
