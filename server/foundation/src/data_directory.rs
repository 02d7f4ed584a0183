//! The data directory of a portal and its SQLite database. Must not open the database.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The SQLite database.
pub const DATABASE: &str = "berth.db";
/// The authority of the nodes.
const AUTHORITY: &str = "ca";

/// Makes the data directory. No other user of this host may read it.
///
/// # Errors
/// The directory cannot be made.
pub fn make_directory(data: &Path) -> Result<(), String> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data);
    made.map_err(|e| format!("{} cannot be created: {e}", data.display()))
}

/// The SQLite database of a portal.
///
/// # Errors
/// The file does not exist.
pub fn existing_database(data: &Path) -> Result<PathBuf, String> {
    let file = data.join(DATABASE);
    if file.exists() {
        return Ok(file);
    }
    Err(format!("{} does not exist. If the database is on Postgres, name it with --database", file.display()))
}

/// Checks that a missing SQLite database is that of a new portal. Beside the data of a portal a new one would hide the
/// loss, or the Postgres of that portal.
///
/// A first start makes the database, then the authority, then the keys. So the authority alone decides: a killed first
/// start has its database, and the operator can put keys there before it.
///
/// # Errors
/// The directory has the data of a portal without its database.
pub fn check_database(data: &Path) -> Result<(), String> {
    if data.join(DATABASE).exists() || !data.join(AUTHORITY).exists() {
        return Ok(());
    }
    Err(format!(
        "{0} has the data of a portal, but no {DATABASE}. If the database is on Postgres, name it with --database. If \
         it is lost, restore {DATABASE} from a backup. A new portal needs another directory (--data)",
        data.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_database_is_for_a_new_portal_alone() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        assert_eq!(check_database(&data), Ok(()));
        make_directory(&data).unwrap();
        for key in ["secrets.key", "audit.key"] {
            std::fs::write(data.join(key), "a key of the operator").unwrap();
        }
        assert_eq!(check_database(&data), Ok(()), "keys can come before the first start");
        let missing = existing_database(&data).unwrap_err();
        assert!(missing.contains("berth.db does not exist") && missing.contains("--database"), "{missing}");
        std::fs::write(data.join(DATABASE), "").unwrap();
        std::fs::create_dir(data.join(AUTHORITY)).unwrap();
        assert_eq!(check_database(&data), Ok(()), "after a killed first start");
        assert_eq!(existing_database(&data), Ok(data.join(DATABASE)));
        std::fs::remove_file(data.join(DATABASE)).unwrap();
        let refused = check_database(&data).unwrap_err();
        assert!(refused.contains("--database") && !data.join(DATABASE).exists(), "{refused}");
    }
}
