//! How long attempts may go on while the portal is silent.
//!
//! A lease is counted from when a heartbeat was sent that the portal acknowledged, by `CLOCK_BOOTTIME`: never
//! from when the answer came, and on through a sleep of the host. The daemon only writes down what was
//! acknowledged; each shim counts for itself and ends its attempt, whatever has become of the daemon. A
//! lease that has ended once stays ended: the portal may have given the work to another node.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use berth_proto::{Assignment, Heartbeat};
use serde::{Deserialize, Serialize};

use crate::files::{find_json, put_json_in_turn};
use crate::shim::boot_id;

/// What was acknowledged last, beside the attempts' directory.
const LEASE: &str = "lease.json";
/// Heartbeats that may still be acknowledged.
const UNDER_WAY: usize = 64;
/// A shim looks for a renewal no more often than this.
const LOOK_MS: i64 = 250;

/// A heartbeat that the portal acknowledged. Times are `CLOCK_BOOTTIME`, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    pub boot_id: String,
    /// Before it was sent.
    pub sent_ms: i64,
    /// After its answer had come.
    pub heard_ms: i64,
}

/// The lease of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    pub lease_ms: i64,
    /// What was acknowledged later than this after it was sent renews nothing.
    pub answer_ms: i64,
    /// Between the end and SIGKILL.
    pub grace_ms: i64,
    /// When the renewal that counts was sent.
    pub renewed_ms: i64,
}

/// What is left of a lease; not above zero when nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remains {
    pub ends_in_ms: i64,
    pub killed_in_ms: i64,
}

impl Remains {
    /// Of what has no lease.
    pub const EVER: Self = Self { ends_in_ms: i64::MAX, killed_in_ms: i64::MAX };
}

impl Term {
    /// Counts a renewal that was sent before the lease ended and acknowledged in time. One that was sent
    /// later may have been acknowledged by a portal that had given the attempt up.
    pub fn renew(&mut self, sent_ms: i64, heard_ms: i64) {
        let prompt = heard_ms.saturating_sub(sent_ms) <= self.answer_ms;
        if prompt && sent_ms < self.renewed_ms.saturating_add(self.lease_ms) {
            self.renewed_ms = self.renewed_ms.max(sent_ms);
        }
    }

    pub fn remains(&self, now_ms: i64) -> Remains {
        let ends_in_ms = self.renewed_ms.saturating_add(self.lease_ms).saturating_sub(now_ms);
        Remains { ends_in_ms, killed_in_ms: ends_in_ms.saturating_add(self.grace_ms) }
    }
}

/// A lease as a shim keeps it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Leased {
    /// Where the daemon writes renewals down.
    pub file: PathBuf,
    pub term: Term,
    #[serde(skip)]
    looked_ms: i64,
}

impl Leased {
    pub fn new(file: PathBuf, term: Term) -> Self {
        Self { file, term, looked_ms: 0 }
    }

    /// What is left of it now, with what the daemon wrote down since the last look.
    pub fn look(&mut self, now_ms: i64) -> Remains {
        let known = self.term.remains(now_ms);
        if known.ends_in_ms > 0 && now_ms.saturating_sub(self.looked_ms) < LOOK_MS {
            return known;
        }
        self.looked_ms = now_ms;
        if let Some(renewal) = find_json::<Renewal>(&self.file).filter(|r| r.boot_id == boot_id()) {
            self.term.renew(renewal.sent_ms, renewal.heard_ms);
        }
        self.term.remains(now_ms)
    }
}

/// The lease of an attempt that is being started, renewed until its shim takes it over; `None`: it has none.
pub type Starting = Option<Arc<Mutex<Term>>>;

/// The daemon's part: sends heartbeats, and writes down which were acknowledged.
#[derive(Debug)]
pub struct Renewals {
    file: PathBuf,
    boot_id: String,
    /// Of the last heartbeat.
    seq: u64,
    /// Heartbeats without an answer, and when they were sent.
    under_way: VecDeque<(u64, i64)>,
    last: Option<Renewal>,
    starting: Vec<Weak<Mutex<Term>>>,
}

/// Where renewals are written down, for attempts in `root`.
pub fn file_for(root: &Path) -> PathBuf {
    root.with_file_name(LEASE)
}

impl Renewals {
    /// Takes up what a former daemon wrote down since the host was started.
    pub fn open(root: &Path) -> Self {
        let (file, boot_id) = (file_for(root), boot_id().to_owned());
        let last = find_json::<Renewal>(&file).filter(|renewal| renewal.boot_id == boot_id);
        Self { file, boot_id, seq: 0, under_way: VecDeque::new(), last, starting: Vec::new() }
    }

    /// The next heartbeat, which is sent after this.
    pub fn beat(&mut self, now_ms: i64) -> Heartbeat {
        self.seq += 1;
        self.under_way.push_back((self.seq, now_ms));
        if self.under_way.len() > UNDER_WAY {
            self.under_way.pop_front();
        }
        Heartbeat { seq: self.seq, ..Heartbeat::default() }
    }

    /// The portal has acknowledged a heartbeat.
    pub fn acknowledged(&mut self, seq: u64, now_ms: i64) {
        let Some((_, sent_ms)) = self.under_way.iter().copied().find(|(sent, _)| *sent == seq) else {
            return;
        };
        // Those before it are as good as answered.
        self.under_way.retain(|(sent, _)| *sent > seq);
        let renewal = Renewal { boot_id: self.boot_id.clone(), sent_ms, heard_ms: now_ms };
        // Not synced: no shim outlives the host either.
        if let Err(error) = put_json_in_turn(&self.file, &renewal) {
            tracing::error!(file = %self.file.display(), %error, "a renewal cannot be written down; attempts will end");
        }
        self.starting.retain(|starting| match starting.upgrade() {
            Some(term) => {
                term.lock().unwrap_or_else(PoisonError::into_inner).renew(sent_ms, now_ms);
                true
            }
            None => false,
        });
        self.last = Some(renewal);
    }

    /// The lease with which an attempt may be started now. `None`: it may not, because the portal may have
    /// given it up; the next answer tells.
    pub fn begin(&mut self, assignment: &Assignment, now_ms: i64) -> Option<Starting> {
        if assignment.lease_ms <= 0 {
            return Some(None);
        }
        let last = self.last.as_ref()?;
        let term = Term {
            lease_ms: assignment.lease_ms,
            answer_ms: assignment.lease_answer_ms.max(0),
            grace_ms: assignment.lease_grace_ms.max(0),
            renewed_ms: last.sent_ms,
        };
        let prompt = last.heard_ms.saturating_sub(last.sent_ms) <= term.answer_ms;
        if !prompt || term.remains(now_ms).ends_in_ms <= 0 {
            return None;
        }
        let term = Arc::new(Mutex::new(term));
        self.starting.push(Arc::downgrade(&term));
        Some(Some(term))
    }
}

/// The lease of an attempt that is being started, as it stands.
pub fn now(starting: &Starting) -> Option<Term> {
    starting.as_ref().map(|term| *term.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What an attempt's shim is started with.
pub fn handed_over(starting: &Starting, root: &Path) -> Option<Leased> {
    now(starting).map(|term| Leased::new(file_for(root), term))
}

/// Why an attempt was ended whose lease has ended: a code and a sentence.
pub fn ended(term: &Term) -> (String, String) {
    let detail = format!(
        "Its node had no word from the portal for {} s, so it was stopped there: it may have been given to another.",
        term.lease_ms / 1_000
    );
    ("lease.ended".to_owned(), detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term() -> Term {
        Term { lease_ms: 1_000, answer_ms: 100, grace_ms: 50, renewed_ms: 10_000 }
    }

    #[test]
    fn it_is_counted_from_when_it_was_sent() {
        let mut term = term();
        term.renew(10_500, 10_600);
        assert_eq!(term.remains(10_600), Remains { ends_in_ms: 900, killed_in_ms: 950 });
        term.renew(10_550, 10_651);
        assert_eq!(term.renewed_ms, 10_500, "the answer took too long");
        term.renew(10_400, 10_420);
        assert_eq!(term.renewed_ms, 10_500, "an older one takes nothing back");
        assert_eq!(term.remains(11_549), Remains { ends_in_ms: -49, killed_in_ms: 1 });
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
        let mut renewals = Renewals::open(&root);
        let mut leased = Leased::new(file_for(&root), term());
        assert_eq!(leased.look(10_100).ends_in_ms, 900, "nothing is written down yet");
        let beat = renewals.beat(10_300);
        renewals.acknowledged(beat.seq, 10_310);
        assert_eq!(leased.look(10_320).ends_in_ms, 680, "it looks again in a while");
        assert_eq!(leased.look(10_400).ends_in_ms, 900);
        let first = renewals.beat(10_600);
        let second = renewals.beat(10_700);
        renewals.acknowledged(second.seq, 10_710);
        renewals.acknowledged(first.seq, 10_711);
        assert_eq!(leased.look(11_650).ends_in_ms, 50, "the second counts");
        renewals.acknowledged(second.seq, 11_660);
        renewals.acknowledged(77, 11_660);
        assert_eq!(leased.look(11_690).ends_in_ms, 10, "an answer counts once, and only to what was asked");
        assert_eq!(Renewals::open(&root).last, renewals.last, "the next daemon goes on");
        // Of another start of the host: its clock began anew.
        let strange = Renewal { boot_id: "other".to_owned(), sent_ms: 99_000, heard_ms: 99_000 };
        crate::files::put_json(&file_for(&root), &strange, false).unwrap();
        assert_eq!(leased.look(11_900).ends_in_ms, -200);
        assert_eq!(Renewals::open(&root).last, None);
    }

    #[test]
    fn nothing_begins_without_word_of_the_portal() {
        let dir = tempfile::tempdir().unwrap();
        let mut renewals = Renewals::open(&dir.path().join("attempts"));
        let free = Assignment::default();
        let leased = Assignment { lease_ms: 1_000, lease_answer_ms: 100, lease_grace_ms: 50, ..free.clone() };
        assert!(renewals.begin(&free, 5).is_some_and(|starting| starting.is_none()));
        assert!(renewals.begin(&leased, 5).is_none(), "no answer yet");
        let beat = renewals.beat(10_000);
        renewals.acknowledged(beat.seq, 10_101);
        assert!(renewals.begin(&leased, 10_101).is_none(), "the answer took too long");
        let beat = renewals.beat(10_200);
        renewals.acknowledged(beat.seq, 10_300);
        assert!(renewals.begin(&leased, 11_200).is_none(), "it has ended");
        let starting = renewals.begin(&leased, 11_199).unwrap();
        // What takes long to prepare is renewed on the way.
        let beat = renewals.beat(11_190);
        renewals.acknowledged(beat.seq, 11_195);
        let handed = handed_over(&starting, &dir.path().join("attempts")).unwrap();
        assert_eq!(handed.term.renewed_ms, 11_190);
        // A gap in which the portal may have given it up is not bridged by what comes after.
        let beat = renewals.beat(20_000);
        renewals.acknowledged(beat.seq, 20_001);
        let mut handed = handed_over(&starting, &dir.path().join("attempts")).unwrap();
        assert!(handed.look(20_002).ends_in_ms < 0);
        drop(starting);
        let beat = renewals.beat(20_100);
        renewals.acknowledged(beat.seq, 20_101);
        assert!(renewals.starting.is_empty());
    }
}
