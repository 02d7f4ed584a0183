//! Taking up what a former daemon left running.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Daemon, Done};
use crate::agent::{Key, Seen};
use crate::attempts::Attempt;
use crate::cgroups::Group;
use crate::{attending, shim};

/// Before a shim that cannot be waited for is looked for again.
const AGAIN: Duration = Duration::from_millis(500);

impl Daemon {
    pub(super) fn adopt_all(&mut self) -> Result<(), String> {
        let found = Attempt::load_all(&self.host.root).map_err(|e| e.to_string())?;
        // Those of a clean one are nobody's any more.
        let held = found.iter().filter(|a| !a.record.clean);
        let groups: Vec<Group> = held.map(|a| a.record.group.clone()).collect();
        self.host.cgroups.sweep(&groups);
        for attempt in found {
            let key = attempt.key();
            self.host.sharers.join(&attempt.dir, &attempt.record.devices);
            if matches!(attempt.seen(), Seen::Running { .. } | Seen::Preparing) {
                tracing::info!(job = key.job, "adopted");
                self.watch.add(&key, &attempt.dir).map_err(|e| e.to_string())?;
                // The end may have been recorded before the watch stood.
                let mut attempt = attempt.clone();
                attempt.adopt();
                if !matches!(attempt.seen(), Seen::Ended(_)) {
                    self.attend(&key, &attempt);
                }
                self.attempts.insert(key, attempt);
            } else {
                self.attempts.insert(key, attempt);
            }
        }
        Ok(())
    }

    /// Waits once more for a shim that seemed to be gone, and whose lock somebody holds all the same.
    pub(super) fn attend_again(&self, key: &Key) {
        let Some(attempt) = self.attempts.get(key) else { return };
        let (dir, key, done) = (attempt.dir.clone(), key.clone(), self.done.clone());
        tokio::spawn(async move {
            // On a disk that cannot be read nothing is waited for.
            tokio::time::sleep(AGAIN).await;
            attending::gone(dir).await;
            let _ = done.send(Done::ShimGone(key));
        });
    }

    /// Waits for the end of a shim that a former daemon started, and tells it again what may not have
    /// reached it.
    fn attend(&self, key: &Key, attempt: &Attempt) {
        shim::tell(&attempt.dir, Signal::SIGUSR1);
        let (dir, key, done) = (attempt.dir.clone(), key.clone(), self.done.clone());
        tokio::spawn(async move {
            attending::gone(dir).await;
            // The daemon ends only with the process.
            let _ = done.send(Done::ShimGone(key));
        });
    }
}
