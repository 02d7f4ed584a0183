//! A copy of the data of a portal, also while it runs.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use berth_store::copy_sqlite;

use crate::audit_key::LastCheckpoint;
use crate::data_directory::{DATABASE, existing_database};

/// The database, and files that belong to a running portal.
const LEFT_OUT: [&str; 4] = [DATABASE, "berth.db-wal", "berth.db-shm", "portal.lock"];

/// The numbers of a copy.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub files: u64,
    pub bytes: u64,
}

/// Copies the database and the other files of a data directory into a new directory. Without `has_database` the database is on
/// Postgres, and the files alone are copied.
///
/// # Errors
/// The copy exists already, or a file cannot be read or written.
pub async fn back_up(data: &Path, has_database: bool, to: &Path) -> Result<Copied, String> {
    let data = data.canonicalize().map_err(|e| at(data, &e))?;
    let database = has_database.then(|| existing_database(&data)).transpose()?;
    if to.symlink_metadata().is_ok() {
        return Err(format!("{} exists already", to.display()));
    }
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if parent.canonicalize().map_err(|e| at(parent, &e))?.starts_with(&data) {
        return Err(format!("{} is in the data directory. Choose a directory outside of it", to.display()));
    }
    // Only a whole copy gets its name.
    let part = to.with_added_extension("part");
    if part.symlink_metadata().is_ok() {
        return Err(format!(
            "{} exists: another copy runs, or it was killed. Remove it then",
            part.display()
        ));
    }
    make_directory(&part)?;
    let copied = copy(&data, database.as_deref(), &part).await.and_then(|copied| match copied.files {
        0 => Err(format!("{} has no data of a portal", data.display())),
        _ => Ok(copied),
    });
    if copied.is_err() {
        // A disk that stays full stops the portal.
        let _ = std::fs::remove_dir_all(&part);
    }
    let copied = copied?;
    std::fs::rename(&part, to).map_err(|e| at(to, &e))?;
    // The name is stored in the directory.
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(|e| at(parent, &e))?;
    Ok(copied)
}

/// The last checkpoint comes first, so that the copied database has it. The other files come last, so that the copy has every
/// file that the database names.
async fn copy(data: &Path, database: Option<&Path>, to: &Path) -> Result<Copied, String> {
    let mut copied = Copied::default();
    let directory = File::open(to).map_err(|e| at(to, &e))?;
    copy_file(&data.join(LastCheckpoint::FILE), &to.join(LastCheckpoint::FILE), &mut copied)?;
    if let Some(file) = database {
        let copy = to.join(DATABASE);
        copy_sqlite(file, &copy).await.map_err(|e| format!("the database cannot be copied: {e}"))?;
        let only_owner = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&copy, only_owner).map_err(|e| at(&copy, &e))?;
        copied.files += 1;
        copied.bytes += std::fs::metadata(&copy).map_err(|e| at(&copy, &e))?.len();
    }
    let (data, to) = (data.to_owned(), to.to_owned());
    let rest = move || {
        let is_rest = |name: &str| !LEFT_OUT.contains(&name) && name != LastCheckpoint::FILE;
        copy_directory(&data, &to, &is_rest, &mut copied)?;
        // A power cut after the report must not take the copy back. Some disks refuse a write only here.
        nix::unistd::syncfs(&directory).map_err(|e| at(&to, &e.into()))?;
        Ok(copied)
    };
    tokio::task::spawn_blocking(rest).await.map_err(|e| e.to_string())?
}

/// Copies the files and directories with these names, and everything in them. A file that the portal removes meanwhile is
/// left out, as are sockets. A link would be a part that the copy lacks.
fn copy_directory(
    from: &Path,
    to: &Path,
    is_wanted: &dyn Fn(&str) -> bool,
    copied: &mut Copied,
) -> Result<(), String> {
    let entries = match std::fs::read_dir(from) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(from, &error)),
    };
    for entry in entries {
        let entry = entry.map_err(|e| at(from, &e))?;
        let name = entry.file_name();
        // A file system has `lost+found` at its root, for root alone.
        if name == "lost+found" || !is_wanted(&name.to_string_lossy()) {
            continue;
        }
        let (source, target) = (entry.path(), to.join(&name));
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                make_directory(&target)?;
                copy_directory(&source, &target, &|_| true, copied)?;
            }
            Ok(kind) if kind.is_file() => copy_file(&source, &target, copied)?,
            Ok(kind) if kind.is_symlink() => {
                return Err(format!("{} is a link, and links are not copied", source.display()));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(at(&source, &error)),
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path, copied: &mut Copied) -> Result<(), String> {
    match std::fs::copy(from, to) {
        Ok(bytes) => {
            copied.files += 1;
            copied.bytes += bytes;
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NotFound && !from.exists() => Ok(()),
        Err(error) => Err(at(from, &error)),
    }
}

fn make_directory(path: &Path) -> Result<(), String> {
    std::fs::DirBuilder::new().mode(0o700).create(path).map_err(|e| at(path, &e))
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn directories_are_copied_with_their_files_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::create_dir_all(from.join("objects/ab/cd")).unwrap();
        std::fs::create_dir_all(from.join("empty")).unwrap();
        std::fs::create_dir(&to).unwrap();
        for (file, text) in [("secrets.key", "k"), ("objects/ab/cd/1", "one"), ("portal.lock", "")] {
            std::fs::write(from.join(file), text).unwrap();
        }
        // Only the first level has left out names.
        std::fs::write(from.join("objects/portal.lock"), "an object").unwrap();
        let _socket = UnixListener::bind(from.join("socket")).unwrap();
        let mut copied = Copied::default();
        copy_directory(&from, &to, &|name| !LEFT_OUT.contains(&name), &mut copied).unwrap();
        assert_eq!(copied, Copied { files: 3, bytes: 13 });
        assert_eq!(std::fs::read_to_string(to.join("objects/ab/cd/1")).unwrap(), "one");
        assert!(to.join("empty").is_dir() && to.join("objects/portal.lock").exists());
        assert!(!to.join("portal.lock").exists());
        let again = copy_directory(&from, &to, &|_| true, &mut copied).unwrap_err();
        assert!(again.contains("File exists"), "{again}");
        copy_directory(&from.join("gone"), &to, &|_| true, &mut copied).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", from.join("empty/link")).unwrap();
        let refused =
            copy_directory(&from.join("empty"), &to.join("empty"), &|_| true, &mut copied).unwrap_err();
        assert!(refused.contains("is a link"), "{refused}");
    }
}
