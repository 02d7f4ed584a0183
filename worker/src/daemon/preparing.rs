//! Attempts that are being prepared: begun, heard of, given up.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_proto::Assignment;
use tokio::runtime::Handle;

use super::files::fetched;
use super::{Daemon, Done, Told};
use crate::agent::Key;
use crate::attempts::Attempt;
use crate::lease::{self, Starting, Term};
use crate::preparing::Outside;
use crate::shim;

/// Why an attempt that is being prepared will not be started: nobody wants it any more, or the portal was
/// silent for so long that it may have given it to another node.
pub(super) fn given_up(cancelled: &AtomicBool, starting: &Starting) -> Option<(String, String)> {
    let over = |term: &Term| term.remains(shim::boottime_ms()).ends_in_ms <= 0;
    if cancelled.load(Ordering::SeqCst) {
        let detail = "It was stopped before it was started.";
        return Some(("attempt.not_started".to_owned(), detail.to_owned()));
    }
    lease::now(starting).filter(over).map(|term| lease::ended(&term))
}

impl Daemon {
    pub(super) fn prepare(&mut self, key: Key) {
        let Some(assignment) = self.desired.as_ref().and_then(|d| d.get(&key)).cloned() else { return };
        let Some(spec) = assignment.spec.clone() else { return };
        let Some(starting) = self.renewals.begin(&assignment, shim::boottime_ms()) else { return };
        let made = Attempt::begin(&self.host.root, &key, &assignment)
            .and_then(|attempt| self.watch.add(&key, &attempt.dir).map(|()| attempt));
        let mut attempt = match made {
            Ok(attempt) => attempt,
            Err(error) => {
                tracing::error!(job = key.job, %error, "an attempt cannot be recorded");
                self.cannot_record(key, &assignment, &error.to_string());
                return;
            }
        };
        let taken: HashSet<u32> = self
            .attempts
            .values()
            .filter_map(|a| a.record.uid)
            .chain(self.users_left.iter().copied())
            .collect();
        attempt.record.uid = self.host.sandbox.pick_user(&key.job, &taken);
        self.host.sharers.join(&attempt.dir, &attempt.record.devices);
        self.attempts.insert(key.clone(), attempt.clone());
        self.told.insert(key.clone(), Told::news());
        self.busy.insert(key.clone());
        self.unrecorded.insert(key.clone());
        let cancelled = Arc::new(AtomicBool::new(false));
        self.preparing.insert(key.clone(), cancelled.clone());
        let (host, done) = (self.host.clone(), self.done.clone());
        let channel = self.outbox.as_ref().map(|outbox| outbox.portal.clone());
        let runtime = Handle::current();
        let (over, gone) = (done.clone(), key.clone());
        // Beside the loop, which would wait for the disk, and many at a time.
        let prepared = tokio::task::spawn_blocking(move || {
            if let Err(error) = attempt.save_new() {
                tracing::error!(job = key.job, %error, "an attempt cannot be recorded");
                let _ = done.send(Done::Recorded(key, Err((Box::new(assignment), error.to_string()))));
                return None;
            }
            let _ = done.send(Done::Recorded(key.clone(), Ok(())));
            let tell = |words: String| {
                // The daemon ends only with the process.
                let _ = done.send(Done::Progress(key.clone(), words));
            };
            let before = (&*cancelled, &starting);
            let fetched = fetched(&mut attempt, &spec, host.job_disk_mib, before, channel, &tell);
            let ready = runtime.block_on(fetched);
            let given_up = || given_up(&cancelled, &starting);
            let outside = Outside { given_up: &given_up, tell: &tell, lease: &starting };
            let shim = if ready { attempt.prepare(&spec, &host, &outside) } else { None };
            // The shim counts from here on.
            drop(starting);
            let _ = done.send(Done::Prepared(Box::new(attempt)));
            shim
        });
        tokio::spawn(async move {
            if let Ok(Some(shim)) = prepared.await {
                shim.wait().await;
                let _ = over.send(Done::ShimGone(gone));
            }
        });
    }

    /// An attempt is on disk, and may be told of; or cannot be, which is told.
    pub(super) fn recorded(&mut self, key: Key, result: Result<(), (Box<Assignment>, String)>) {
        self.unrecorded.remove(&key);
        if let Err((assignment, why)) = result {
            self.busy.remove(&key);
            self.preparing.remove(&key);
            self.watch.remove(&key);
            self.cannot_record(key, &assignment, &why);
        }
    }

    /// Nothing of it was started: it fails in place of being tried for ever on a disk that is full or broken.
    fn cannot_record(&mut self, key: Key, assignment: &Assignment, why: &str) {
        let attempt = Attempt::without_record(&self.host.root, &key, assignment, why);
        self.told.insert(key.clone(), Told::news());
        self.attempts.insert(key, attempt);
    }

    pub(super) fn progressed(&mut self, key: Key, words: String) {
        // One that is prepared by now says no more of how that went.
        let Some(attempt) = self.attempts.get_mut(&key).filter(|_| self.preparing.contains_key(&key)) else {
            return;
        };
        if attempt.progress != words {
            attempt.progress = words;
            self.told.entry(key).or_default().dirty = true;
        }
    }

    /// Tells those that are to stop, or are wanted no more.
    pub(super) fn give_up(&mut self) {
        let Some(desired) = &self.desired else { return };
        for (key, cancelled) in &self.preparing {
            if desired.get(key).is_none_or(|assignment| assignment.stop) {
                cancelled.store(true, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn what_will_not_be_started_is_given_up_on_the_way() {
        let (wanted, unwanted) = (AtomicBool::new(false), AtomicBool::new(true));
        let leased = |ago_ms: i64| -> Starting {
            let renewed_ms = shim::boottime_ms() - ago_ms;
            let term = Term { lease_ms: 60_000, answer_ms: 3_000, grace_ms: 3_000, renewed_ms };
            Some(Arc::new(Mutex::new(term)))
        };
        let code =
            |cancelled: &AtomicBool, lease: &Starting| given_up(cancelled, lease).map(|(code, _)| code);
        assert_eq!(code(&wanted, &None), None, "it has no lease");
        assert_eq!(code(&wanted, &leased(0)), None);
        assert_eq!(code(&wanted, &leased(60_000)).as_deref(), Some("lease.ended"));
        assert_eq!(code(&unwanted, &leased(0)).as_deref(), Some("attempt.not_started"));
    }
}
