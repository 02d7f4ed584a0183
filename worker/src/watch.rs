//! Tells when a file of an attempt changed, so that nothing has to be polled.

#![expect(unsafe_code, reason = "registering a descriptor with the runtime promises that it stays open")]

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::unix::AsyncFd;

use crate::agent::Key;
use crate::shim::{EARLIER, LOCK, LOG};

struct Notices(Inotify);

impl AsRawFd for Notices {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Whether a change says something of a running attempt: of its log, or (`false`) of its start or end. `None`: it is
/// the daemon's own doing.
fn only_log(name: &OsStr) -> Option<bool> {
    let recorded = name == LOCK || EARLIER.iter().any(|earlier| name == *earlier);
    (recorded || name == LOG).then_some(!recorded)
}

/// Watches the directories of attempts.
pub struct Watch {
    notices: AsyncFd<Notices>,
    keys: HashMap<WatchDescriptor, Key>,
}

impl Watch {
    pub fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        // SAFETY: the descriptor is owned by what is registered, never replaced, and closed only with it.
        let notices = unsafe { AsyncFd::register(Notices(inotify)) }.map_err(io::Error::from)?;
        Ok(Self { notices, keys: HashMap::new() })
    }

    pub fn add(&mut self, key: &Key, dir: &Path) -> io::Result<()> {
        let what = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVED_TO;
        let descriptor = self.notices.get_ref().0.add_watch(dir, what)?;
        self.keys.insert(descriptor, key.clone());
        Ok(())
    }

    pub fn remove(&mut self, key: &Key) {
        let Some(descriptor) = self.keys.iter().find(|(_, k)| *k == key).map(|(d, _)| *d) else { return };
        self.keys.remove(&descriptor);
        // The kernel forgets it by itself when the directory is gone.
        let _ = self.notices.get_ref().0.rm_watch(descriptor);
    }

    /// The attempts of which something changed, with whether only the log did. Cancel-safe.
    pub async fn changed(&mut self) -> io::Result<HashMap<Key, bool>> {
        loop {
            let mut ready = self.notices.readable().await?;
            match ready.get_inner().0.read_events() {
                Ok(events) => {
                    let mut out = HashMap::new();
                    for event in events {
                        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                            // Notices were dropped: anything may have changed anywhere.
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
    use crate::shim::{EARLIER, LOCK, LOG};

    #[tokio::test]
    async fn what_a_shim_of_an_earlier_build_puts_there_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = Watch::new().unwrap();
        let key = Key { job: "job".to_owned(), number: 1 };
        watch.add(&key, dir.path()).unwrap();
        for name in EARLIER {
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
        let mut watch = Watch::new().unwrap();
        for (number, dir) in (1..).zip(&dirs) {
            watch.add(&Key { job: "job".to_owned(), number }, dir.path()).unwrap();
        }
        // By turns, since a notice that is like the one before it is not kept.
        let mut logs = dirs.each_ref().map(|dir| File::create(dir.path().join(LOG)).unwrap());
        for _ in 0..=most / 2 {
            for log in &mut logs {
                log.write_all(b"x").unwrap();
            }
        }
        // There is no room for the notice of the end.
        std::fs::write(dirs[0].path().join(LOCK), "x").unwrap();
        let told = async {
            let first = Key { job: "job".to_owned(), number: 1 };
            while watch.changed().await.unwrap().get(&first) != Some(&false) {}
        };
        tokio::time::timeout(Duration::from_secs(20), told).await.unwrap();
    }
}
