//! Starting an attempt with what is fetched for it, and handing over what it leaves.
//!
//! Files travel beside the session, one attempt's at a time; nothing here waits for them.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use berth_proto::Spec;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::preparing::given_up;
use super::{Daemon, Done};
use crate::agent::{Cleaning, Key, Seen};
use crate::attempts::Attempt;
use crate::lease::Starting;
use crate::removing::remove_tree;
use crate::{keeping, volumes};

/// Between two looks whether what is being fetched is still wanted.
const LOOK: Duration = Duration::from_millis(250);
/// After a try that failed.
const AGAIN: Duration = Duration::from_secs(2);

/// Why an attempt will not be started, once that is so. A fetch may take long, and is looked after now and then.
async fn unwanted(cancelled: &AtomicBool, starting: &Starting) -> (String, String) {
    loop {
        if let Some(why) = given_up(cancelled, starting) {
            return why;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Fetches what the attempt begins with: its checkpoint and its volumes, of `most_mib` at most. What cannot
/// be fetched ends it: starting from nothing would lose what it has saved. How far that is is told in sentences.
pub(super) async fn fetched(
    attempt: &mut Attempt,
    spec: &Spec,
    most_mib: u64,
    (cancelled, starting): (&AtomicBool, &Starting),
    channel: Option<Channel>,
    tell: &dyn Fn(String),
) -> bool {
    if !spec.volumes.is_empty() && spec.unusable.is_none() {
        let (dir, key) = (attempt.dir.clone(), attempt.key());
        let result = tokio::select! {
            result = volumes::fetch(&dir, &key, &spec.volumes, most_mib, channel.clone(), tell) => result,
            why = unwanted(cancelled, starting) => Err(why),
        };
        if let Err(failure) = result {
            attempt.fail(failure);
            return false;
        }
    }
    let Some(restore) = spec.restore.clone() else { return true };
    let (dir, key) = (attempt.dir.clone(), attempt.key());
    let fetch = async move {
        match channel {
            Some(channel) => keeping::fetch(dir, key, restore, channel, tell).await,
            None => Err("the portal is out of reach".to_owned()),
        }
    };
    let result = tokio::select! {
        result = fetch => result.map_err(|error| {
            let detail = format!("Its checkpoint could not be restored, so it was not started: {error}.");
            ("worker.io".to_owned(), detail)
        }),
        why = unwanted(cancelled, starting) => Err(why),
    };
    if let Err(failure) = result {
        attempt.fail(failure);
        return false;
    }
    true
}

impl Daemon {
    /// Hands over what there is to keep: at the end, and now and then while an attempt runs.
    pub(super) fn keep_files(&mut self) {
        let Some(outbox) = &self.outbox else { return };
        let now = Instant::now();
        let most_bytes = self.host.job_disk_mib.saturating_mul(1 << 20);
        for (key, attempt) in &self.attempts {
            if self.busy.contains(key) || self.keeping.contains(key) || !attempt.saves() {
                continue;
            }
            let over = match attempt.seen() {
                Seen::Preparing => continue,
                Seen::Running { .. } => false,
                // Nothing of it runs any more: its shim has said so, or its devices are clean.
                Seen::Ended(cleaning) if attempt.exit.is_some() || cleaning == Cleaning::Done => true,
                Seen::Ended(_) => continue,
            };
            let every = Duration::from_secs(attempt.record.keep.every_s.into());
            if !over && (every.is_zero() || attempt.record.keep.dir.is_none()) {
                continue;
            }
            // The first comes one interval after the start; what is over is due at once, and waits only
            // after a failure.
            let (was_over, due) = self.keep_after.entry(key.clone()).or_insert((false, now + every));
            if *was_over == over && *due > now {
                continue;
            }
            (*was_over, *due) = (over, now + if over { AGAIN } else { every });
            self.keeping.insert(key.clone());
            let (task, channel) = (attempt.keeping(over, most_bytes), outbox.portal.clone());
            let (key, done) = (key.clone(), self.done.clone());
            tokio::spawn(async move {
                let result = keeping::keep(task, channel).await;
                // The daemon ends only with the process.
                let _ = done.send(Done::Kept(key, over, result));
            });
        }
    }

    pub(super) fn files_kept(&mut self, key: &Key, over: bool, result: Result<(), String>) {
        self.keeping.remove(key);
        if let Err(error) = &result {
            tracing::warn!(job = key.job, error, "files of a job are not kept yet; trying again");
        }
        // While it is cleaned another copy of its record is written, which knows nothing of this: it is asked
        // for once more then.
        if over
            && result.is_ok()
            && !self.busy.contains(key)
            && let Some(attempt) = self.attempts.get_mut(key)
        {
            if attempt.note_kept() {
                // Beside the loop: a job may leave millions of files, and heartbeats must not wait for them.
                self.removing.insert(key.clone());
                let (attempt, key, done) = (attempt.clone(), key.clone(), self.done.clone());
                tokio::task::spawn_blocking(move || {
                    attempt.remove_work();
                    // The daemon ends only with the process.
                    let _ = done.send(Done::Removed(key));
                });
            }
            self.told.entry(key.clone()).or_default().dirty = true;
        }
    }

    /// Removes everything about an attempt, beside the loop. Until that is done it is known, so that nobody gets
    /// its user and nothing is begun in its place.
    pub(super) fn forget(&mut self, key: Key) {
        // It is decided again when they are gone.
        let Some(attempt) = self.attempts.get(&key).filter(|_| !self.removing.contains(&key)) else { return };
        let (dir, done) = (attempt.dir.clone(), self.done.clone());
        self.unlearn(&key);
        self.watch.remove(&key);
        self.busy.insert(key.clone());
        tokio::task::spawn_blocking(move || {
            // The daemon ends only with the process.
            let _ = done.send(Done::Forgotten(key, remove_tree(&dir)));
        });
    }

    pub(super) fn forgotten(&mut self, key: &Key, result: std::io::Result<()>) {
        self.busy.remove(key);
        self.unlearn(key);
        let Some(attempt) = self.attempts.remove(key) else { return };
        self.host.sharers.leave(&attempt.dir);
        if let Err(error) = result
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %attempt.dir.display(), %error, "cannot be removed");
            self.users_left.extend(attempt.record.uid);
        }
    }

    fn unlearn(&mut self, key: &Key) {
        self.followed.remove(key);
        self.told.remove(key);
        self.keep_after.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::lease::Term;
    use crate::shim::boottime_ms;

    #[tokio::test]
    async fn a_fetch_ends_with_the_lease() {
        let renewed_ms = boottime_ms() - 60_000;
        let term = Term { lease_ms: 60_000, answer_ms: 3_000, grace_ms: 3_000, renewed_ms };
        let (code, _) = unwanted(&AtomicBool::new(false), &Some(Arc::new(Mutex::new(term)))).await;
        assert_eq!(code, "lease.ended");
        let (code, _) = unwanted(&AtomicBool::new(true), &None).await;
        assert_eq!(code, "attempt.not_started");
    }
}
