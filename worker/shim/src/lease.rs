//! Leases: the time that attempts may go on during a silence of the portal.
//!
//! A lease counts from the sending of an acknowledged heartbeat, not from its answer, by `CLOCK_BOOTTIME`, which
//! counts suspended time. The daemon saves the acknowledgements; each shim counts for itself and ends its attempt,
//! with or without the daemon. An ended lease stays ended: the portal may have given the attempt to another node.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use berth_proto::{Assignment, Heartbeat};
use berth_system::clock::boot_id;
use berth_system::files::{find_json, put_json_in_turn};
use berth_system::sync::lock;
use serde::{Deserialize, Serialize};

use crate::model::{JobFailure, job_failure};

/// The file of the last renewal, beside the directory of attempts.
const LEASE: &str = "lease.json";
/// The most heartbeats without an acknowledgement that count.
const UNDER_WAY: usize = 64;
/// The shortest time between two reads of the renewal by a shim.
const READ_EVERY_MS: i64 = 250;

/// An acknowledged heartbeat. Times are `CLOCK_BOOTTIME`, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRenewal {
    pub boot_id: String,
    /// Before the sending.
    pub sent_ms: i64,
    /// After the answer.
    pub heard_ms: i64,
}

/// The lease of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTerm {
    pub lease_ms: i64,
    /// A later answer renews nothing.
    pub answer_ms: i64,
    /// The time between the end and SIGKILL.
    pub grace_ms: i64,
    /// The sending of the last valid renewal.
    pub renewed_ms: i64,
}

/// The rest of a lease; zero or less after its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRemainder {
    pub ends_in_ms: i64,
    pub killed_in_ms: i64,
}

impl LeaseRemainder {
    /// The rest without a lease.
    pub const UNLIMITED: Self = Self { ends_in_ms: i64::MAX, killed_in_ms: i64::MAX };
}

impl LeaseTerm {
    /// Counts a renewal that was sent before the end of the lease and acknowledged in time. The answer to a later one
    /// may come from a portal that has given the attempt up.
    pub fn renew(&mut self, sent_ms: i64, heard_ms: i64) {
        let prompt = heard_ms.saturating_sub(sent_ms) <= self.answer_ms;
        if prompt && sent_ms < self.renewed_ms.saturating_add(self.lease_ms) {
            self.renewed_ms = self.renewed_ms.max(sent_ms);
        }
    }

    pub fn remainder(&self, now_ms: i64) -> LeaseRemainder {
        let ends_in_ms = self.renewed_ms.saturating_add(self.lease_ms).saturating_sub(now_ms);
        LeaseRemainder { ends_in_ms, killed_in_ms: ends_in_ms.saturating_add(self.grace_ms) }
    }
}

/// The lease of an attempt in its shim.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ShimLease {
    /// The file with the daemon's renewals.
    pub file: PathBuf,
    pub term: LeaseTerm,
    #[serde(skip)]
    read_ms: i64,
}

impl ShimLease {
    pub fn new(file: PathBuf, term: LeaseTerm) -> Self {
        Self { file, term, read_ms: 0 }
    }

    /// The rest of the lease now, after a read of the daemon's last renewal.
    pub fn remaining(&mut self, now_ms: i64) -> LeaseRemainder {
        let known = self.term.remainder(now_ms);
        if known.ends_in_ms > 0 && now_ms.saturating_sub(self.read_ms) < READ_EVERY_MS {
            return known;
        }
        self.read_ms = now_ms;
        if let Some(renewal) = find_json::<LeaseRenewal>(&self.file).filter(|r| r.boot_id == boot_id()) {
            self.term.renew(renewal.sent_ms, renewal.heard_ms);
        }
        self.term.remainder(now_ms)
    }
}

/// The lease of an attempt in preparation, which the daemon renews until the shim takes over. `None`: no lease.
pub type StartingLease = Option<Arc<Mutex<LeaseTerm>>>;

/// The heartbeats of the daemon, and the saved acknowledgements.
#[derive(Debug)]
pub struct LeaseRenewals {
    file: PathBuf,
    boot_id: String,
    /// The number of the last heartbeat.
    seq: u64,
    /// Heartbeats without an answer, with their sending times.
    under_way: VecDeque<(u64, i64)>,
    last: Option<LeaseRenewal>,
    starting: Vec<Weak<Mutex<LeaseTerm>>>,
}

/// The file of renewals for attempts in `root`.
pub fn renewal_file(root: &Path) -> PathBuf {
    root.with_file_name(LEASE)
}

impl LeaseRenewals {
    /// Reads the last renewal that an earlier daemon saved since the boot of the host.
    pub fn open(root: &Path) -> Self {
        let (file, boot_id) = (renewal_file(root), boot_id().to_owned());
        let last = find_json::<LeaseRenewal>(&file).filter(|renewal| renewal.boot_id == boot_id);
        Self { file, boot_id, seq: 0, under_way: VecDeque::new(), last, starting: Vec::new() }
    }

    /// The next heartbeat. The caller sends it after this.
    pub fn next_heartbeat(&mut self, now_ms: i64) -> Heartbeat {
        self.seq += 1;
        self.under_way.push_back((self.seq, now_ms));
        if self.under_way.len() > UNDER_WAY {
            self.under_way.pop_front();
        }
        Heartbeat { seq: self.seq, ..Heartbeat::default() }
    }

    /// Saves the acknowledgement of a heartbeat.
    pub fn acknowledge(&mut self, seq: u64, now_ms: i64) {
        let Some((_, sent_ms)) = self.under_way.iter().copied().find(|(sent, _)| *sent == seq) else {
            return;
        };
        // Earlier heartbeats need no answer any more.
        self.under_way.retain(|(sent, _)| *sent > seq);
        let renewal = LeaseRenewal { boot_id: self.boot_id.clone(), sent_ms, heard_ms: now_ms };
        // Not synced: no shim outlives a crash of the host.
        if let Err(error) = put_json_in_turn(&self.file, &renewal) {
            tracing::error!(file = %self.file.display(), %error, "a lease renewal cannot be saved; the attempts will end");
        }
        self.starting.retain(|starting| match starting.upgrade() {
            Some(term) => {
                lock(&term).renew(sent_ms, now_ms);
                true
            }
            None => false,
        });
        self.last = Some(renewal);
    }

    /// The lease for a start now. `None`: no start, because the portal may have given the attempt up; the next answer
    /// decides.
    pub fn lease_for_start(&mut self, assignment: &Assignment, now_ms: i64) -> Option<StartingLease> {
        if assignment.lease_ms <= 0 {
            return Some(None);
        }
        let last = self.last.as_ref()?;
        let term = LeaseTerm {
            lease_ms: assignment.lease_ms,
            answer_ms: assignment.lease_answer_ms.max(0),
            grace_ms: assignment.lease_grace_ms.max(0),
            renewed_ms: last.sent_ms,
        };
        let prompt = last.heard_ms.saturating_sub(last.sent_ms) <= term.answer_ms;
        if !prompt || term.remainder(now_ms).ends_in_ms <= 0 {
            return None;
        }
        let term = Arc::new(Mutex::new(term));
        self.starting.push(Arc::downgrade(&term));
        Some(Some(term))
    }
}

/// The present lease of an attempt in preparation.
pub fn current_term(starting: &StartingLease) -> Option<LeaseTerm> {
    starting.as_ref().map(|term| *lock(term))
}

/// The lease for the shim of an attempt.
pub fn lease_for_shim(starting: &StartingLease, root: &Path) -> Option<ShimLease> {
    current_term(starting).map(|term| ShimLease::new(renewal_file(root), term))
}

/// The failure of an attempt whose lease has ended.
pub fn expiry_failure(term: &LeaseTerm) -> JobFailure {
    let detail = format!(
        "The node had no contact to the portal for {} s, and the job was stopped there. The portal may start it on another node.",
        term.lease_ms / 1_000
    );
    job_failure("lease.ended", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term() -> LeaseTerm {
        LeaseTerm { lease_ms: 1_000, answer_ms: 100, grace_ms: 50, renewed_ms: 10_000 }
    }

    #[test]
    fn it_is_counted_from_when_it_was_sent() {
        let mut term = term();
        term.renew(10_500, 10_600);
        assert_eq!(term.remainder(10_600), LeaseRemainder { ends_in_ms: 900, killed_in_ms: 950 });
        term.renew(10_550, 10_651);
        assert_eq!(term.renewed_ms, 10_500, "the answer took too long");
        term.renew(10_400, 10_420);
        assert_eq!(term.renewed_ms, 10_500, "an older one takes nothing back");
        assert_eq!(term.remainder(11_549), LeaseRemainder { ends_in_ms: -49, killed_in_ms: 1 });
    }

    #[test]
    fn what_has_ended_stays_ended() {
        let mut late = term();
        late.renew(11_000, 11_001);
        assert_eq!(late, term(), "sent when it had ended");
        let mut just = term();
        just.renew(10_999, 11_050);
        assert_eq!(just.renewed_ms, 10_999, "sent before, although heard after");
    }

    #[test]
    fn a_shim_takes_what_the_daemon_wrote_down() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("attempts");
        let mut renewals = LeaseRenewals::open(&root);
        let mut leased = ShimLease::new(renewal_file(&root), term());
        assert_eq!(leased.remaining(10_100).ends_in_ms, 900, "nothing is written down yet");
        let beat = renewals.next_heartbeat(10_300);
        renewals.acknowledge(beat.seq, 10_310);
        assert_eq!(leased.remaining(10_320).ends_in_ms, 680, "it looks again in a while");
        assert_eq!(leased.remaining(10_400).ends_in_ms, 900);
        let first = renewals.next_heartbeat(10_600);
        let second = renewals.next_heartbeat(10_700);
        renewals.acknowledge(second.seq, 10_710);
        renewals.acknowledge(first.seq, 10_711);
        assert_eq!(leased.remaining(11_650).ends_in_ms, 50, "the second counts");
        renewals.acknowledge(second.seq, 11_660);
        renewals.acknowledge(77, 11_660);
        assert_eq!(
            leased.remaining(11_690).ends_in_ms,
            10,
            "an answer counts once, and only to what was asked"
        );
        assert_eq!(LeaseRenewals::open(&root).last, renewals.last, "the next daemon goes on");
        // A renewal of another boot, whose clock started at zero.
        let strange = LeaseRenewal { boot_id: "other".to_owned(), sent_ms: 99_000, heard_ms: 99_000 };
        berth_system::files::put_json(&renewal_file(&root), &strange, false).unwrap();
        assert_eq!(leased.remaining(11_900).ends_in_ms, -200);
        assert_eq!(LeaseRenewals::open(&root).last, None);
    }

    #[test]
    fn nothing_begins_without_word_of_the_portal() {
        let dir = tempfile::tempdir().unwrap();
        let mut renewals = LeaseRenewals::open(&dir.path().join("attempts"));
        let free = Assignment::default();
        let leased = Assignment { lease_ms: 1_000, lease_answer_ms: 100, lease_grace_ms: 50, ..free.clone() };
        assert!(renewals.lease_for_start(&free, 5).is_some_and(|starting| starting.is_none()));
        assert!(renewals.lease_for_start(&leased, 5).is_none(), "no answer yet");
        let beat = renewals.next_heartbeat(10_000);
        renewals.acknowledge(beat.seq, 10_101);
        assert!(renewals.lease_for_start(&leased, 10_101).is_none(), "the answer took too long");
        let beat = renewals.next_heartbeat(10_200);
        renewals.acknowledge(beat.seq, 10_300);
        assert!(renewals.lease_for_start(&leased, 11_200).is_none(), "it has ended");
        let starting = renewals.lease_for_start(&leased, 11_199).unwrap();
        // The lease of a long preparation is renewed.
        let beat = renewals.next_heartbeat(11_190);
        renewals.acknowledge(beat.seq, 11_195);
        let handed = lease_for_shim(&starting, &dir.path().join("attempts")).unwrap();
        assert_eq!(handed.term.renewed_ms, 11_190);
        // A later renewal does not bridge a gap in which the portal may have given the attempt up.
        let beat = renewals.next_heartbeat(20_000);
        renewals.acknowledge(beat.seq, 20_001);
        let mut handed = lease_for_shim(&starting, &dir.path().join("attempts")).unwrap();
        assert!(handed.remaining(20_002).ends_in_ms < 0);
        drop(starting);
        let beat = renewals.next_heartbeat(20_100);
        renewals.acknowledge(beat.seq, 20_101);
        assert!(renewals.starting.is_empty());
    }
}
