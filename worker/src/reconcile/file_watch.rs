//! Changes of the files of attempts, by inotify in place of polling.

#![expect(unsafe_code, reason = "registering a descriptor with the runtime promises that it stays open")]

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;

use berth_shim::model::AttemptKey;
use berth_shim::{LEGACY_RECORDS, LOCK, LOG};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::unix::AsyncFd;

struct InotifyHandle(Inotify);

impl AsRawFd for InotifyHandle {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// The kind of a changed file: `true` for the log, `false` for the records. `None`: a file of the daemon.
fn only_log(name: &OsStr) -> Option<bool> {
    let recorded = name == LOCK || LEGACY_RECORDS.iter().any(|earlier| name == *earlier);
    (recorded || name == LOG).then_some(!recorded)
}

/// Watches the directories of attempts.
pub(super) struct AttemptWatch {
    inotify: AsyncFd<InotifyHandle>,
    keys: HashMap<WatchDescriptor, AttemptKey>,
}

impl AttemptWatch {
    pub(super) fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        // SAFETY: the registered value owns the descriptor, never replaces it, and closes it at its own end.
        let inotify = unsafe { AsyncFd::register(InotifyHandle(inotify)) }.map_err(io::Error::from)?;
        Ok(Self { inotify, keys: HashMap::new() })
    }

    pub(super) fn add(&mut self, key: &AttemptKey, dir: &Path) -> io::Result<()> {
        let events = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVED_TO;
        let descriptor = self.inotify.get_ref().0.add_watch(dir, events)?;
        self.keys.insert(descriptor, key.clone());
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &AttemptKey) {
        let Some(descriptor) = self.keys.iter().find(|(_, k)| *k == key).map(|(d, _)| *d) else { return };
        self.keys.remove(&descriptor);
        // The kernel removes the watch itself with the directory.
        let _ = self.inotify.get_ref().0.rm_watch(descriptor);
    }

    /// The attempts with changed files; `true`: only the log changed. Cancel-safe.
    pub(super) async fn changed(&mut self) -> io::Result<HashMap<AttemptKey, bool>> {
        loop {
            let mut ready = self.inotify.readable().await?;
            match ready.get_inner().0.read_events() {
                Ok(events) => {
                    let mut out = HashMap::new();
                    for event in events {
                        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                            // The kernel dropped events: any file may have changed.
                            out.extend(self.keys.values().map(|key| (key.clone(), false)));
                            continue;
                        }
                        let Some(key) = self.keys.get(&event.wd) else { continue };
                        let Some(log) = event.name.as_deref().and_then(only_log) else { continue };
                        out.entry(key.clone()).and_modify(|only| *only &= log).or_insert(log);
                    }
                    if !out.is_empty() {
                        return Ok(out);
                    }
                }
                Err(Errno::EAGAIN) => ready.clear_ready(),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::time::Duration;

    use super::*;
    use crate::left_out::left_out;

    #[tokio::test]
    async fn what_a_shim_of_an_earlier_build_puts_there_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = AttemptWatch::new().unwrap();
        let key = AttemptKey { job: "job".to_owned(), number: 1 };
        watch.add(&key, dir.path()).unwrap();
        for name in LEGACY_RECORDS {
            let path = dir.path().join(name);
            std::fs::write(path.with_extension("part"), "x").unwrap();
            std::fs::rename(path.with_extension("part"), path).unwrap();
            let told = tokio::time::timeout(Duration::from_secs(20), watch.changed()).await.unwrap();
            assert_eq!(told.unwrap(), HashMap::from([(key.clone(), false)]), "{name}");
        }
    }

    #[tokio::test]
    async fn what_was_dropped_is_looked_at_again() {
        let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let most: usize = most.trim().parse().unwrap();
        if most > 500_000 {
            left_out(format!("this machine keeps {most} notices"));
            return;
        }
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut watch = AttemptWatch::new().unwrap();
        for (number, dir) in (1..).zip(&dirs) {
            watch.add(&AttemptKey { job: "job".to_owned(), number }, dir.path()).unwrap();
        }
        // Alternately: the kernel merges equal events in a row.
        let mut logs = dirs.each_ref().map(|dir| File::create(dir.path().join(LOG)).unwrap());
        for _ in 0..=most / 2 {
            for log in &mut logs {
                log.write_all(b"x").unwrap();
            }
        }
        // The queue has no space for the event of the end.
        std::fs::write(dirs[0].path().join(LOCK), "x").unwrap();
        let told = async {
            let first = AttemptKey { job: "job".to_owned(), number: 1 };
            while watch.changed().await.unwrap().get(&first) != Some(&false) {}
        };
        tokio::time::timeout(Duration::from_secs(20), told).await.unwrap();
    }
}
