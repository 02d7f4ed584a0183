//! The lock for one portal.

use std::fs::{File, TryLockError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use berth_store::DatabaseLock;

use crate::data_directory::make_directory;

/// The lock of the data directory and of the database: two portals would schedule and charge the same jobs. It ends with
/// the process of a portal.
pub struct PortalLock {
    directory: File,
    database: Option<DatabaseLock>,
}

impl PortalLock {
    /// Locks the Postgres database at `url` if there is one, and then the data directory, which is made if it is missing.
    /// So a portal that may not have the database makes nothing. Waits at most `wait` for the end of another portal.
    ///
    /// # Errors
    /// Another portal has them, or they cannot be opened.
    pub async fn lock(data: &Path, url: Option<&str>, wait: Duration) -> Result<Self, String> {
        let began = Instant::now();
        let database = match url {
            None => None,
            Some(url) => {
                let lock = DatabaseLock::lock(url, wait).await;
                let lock = lock.map_err(|e| format!("the database cannot be opened: {e}"))?;
                Some(lock.ok_or("another portal uses the database. Stop it first")?)
            }
        };
        let (path, wait) = (data.to_owned(), wait.saturating_sub(began.elapsed()));
        let locked = tokio::task::spawn_blocking(move || lock_directory(&path, wait)).await;
        Ok(Self { directory: locked.map_err(|e| e.to_string())??, database })
    }

    /// Runs a portal with the lock.
    ///
    /// # Errors
    /// That of the portal, or another portal has the database.
    pub async fn keep(self, portal: impl Future<Output = Result<(), String>>) -> Result<(), String> {
        let Self { directory, mut database } = self;
        let lost = async {
            match &mut database {
                Some(database) => database.lost().await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            ended = portal => ended,
            () = lost => Err("another portal uses the database now".to_owned()),
        };
        // After the end of the portal its last tasks can still write.
        std::mem::forget((directory, database));
        ended
    }
}

/// Makes a data directory if it is missing, and locks it.
fn lock_directory(data: &Path, wait: Duration) -> Result<File, String> {
    make_directory(data)?;
    let path = data.join("portal.lock");
    let unusable = |e: std::io::Error| format!("{} cannot be locked: {e}", path.display());
    let in_use = || format!("another portal uses the data directory {}. Stop it first", data.display());
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600);
    // By a link the portal's own user would get another file of root.
    let file = options.custom_flags(nix::libc::O_NOFOLLOW).open(&path).map_err(unusable)?;
    let is_own = file.metadata().is_ok_and(|file| file.is_file() && file.nlink() == 1);
    // A command of root must not keep that user out.
    if let Some(owner) = data.metadata().ok().filter(|_| is_own) {
        let _ = std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()));
    }
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) if wait.is_zero() => return Err(in_use()),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(unusable(error)),
    }
    tracing::warn!(data = %data.display(), "another portal uses the data directory; waiting for its end");
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    // A thread that gets no lock ends with the process.
    std::thread::spawn(move || send.send(file.lock().map(|()| file)));
    match receive.recv_timeout(wait) {
        Ok(locked) => locked.map_err(unusable),
        Err(_) => Err(in_use()),
    }
}
