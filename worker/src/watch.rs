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
use crate::life::EVIDENCE;

struct Notices(Inotify);

impl AsRawFd for Notices {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Whether it is the evidence of an attempt, or the part of it that is being written.
fn is_evidence(name: &OsStr) -> bool {
    Path::new(name).file_stem() == Path::new(EVIDENCE).file_stem()
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
        let what = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_MODIFY;
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
                        let Some(key) = self.keys.get(&event.wd) else { continue };
                        // The daemon writes it itself, all the time.
                        if event.name.as_deref().is_some_and(is_evidence) {
                            continue;
                        }
                        let log = event.name.as_deref().is_some_and(|n| n == crate::shim::LOG);
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
