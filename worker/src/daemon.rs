//! The daemon's loop: hears the portal, the files and the clock; carries out what `agent` decides;
//! reports.
//!
//! It owns every attempt's state. Blocking steps run elsewhere and come back as results.

mod adopt;
mod boards;
mod files;
mod greeting;
mod leaving;
mod preparing;
mod reports;
#[cfg(test)]
mod tests;
mod visitors;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use berth_proto::{Assignment, Desired, Down, Heartbeat, Up, down, up};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::agent::{Cleaning, Effect, Key, Seen, Wanted, converge};
use crate::attempts::Attempt;
pub use crate::host::Host;
use crate::lease::Renewals;
use crate::link::{LinkEvent, Outbox};
use crate::logs::follow;
use crate::samples::{Sampled, sample};
use crate::shim;
use crate::tunnels::Tunnels;
use crate::watch::Watch;
use boards::{BoardNews, Boards};
use greeting::{Greeting, Look};
use leaving::Leaving;
use reports::{RESEND, Told, at};

/// From one turn of the loop to the next: what comes meanwhile is taken in together.
const PACE: Duration = Duration::from_millis(10);
/// Between two tries to prove a device clean.
const CLEAN_AGAIN: Duration = Duration::from_secs(2);
/// Messages and results that are taken in before anything else.
const AT_ONCE: usize = 64;
/// So many attempts are begun in a turn of the loop. The next ones wait for the next turn: of many that come together
/// the first would else have ended long before anybody looks, and all would be cleaned and followed together again.
const BEGUN_AT_ONCE: usize = 16;
/// Whatever the portal says, nobody gets longer than this to end.
const MOST_GRACE_MS: i64 = 600_000;

enum Done {
    /// Whether it could be.
    Recorded(Key, Result<(), (Box<Assignment>, String)>),
    Prepared(Box<Attempt>),
    /// How far it is, in a sentence.
    Progress(Key, String),
    ShimGone(Key),
    Cleaned(Key, Result<(), String>),
    Sampled(Sampled),
    Listed(Look),
    Boards(BoardNews),
    Kept(Key, bool, Result<(), String>),
    /// The job's own files.
    Removed(Key),
    /// Everything of the attempt, if it could be removed.
    Forgotten(Key, std::io::Result<()>),
}

pub struct Daemon {
    host: Arc<Host>,
    attempts: BTreeMap<Key, Attempt>,
    told: HashMap<Key, Told>,
    /// Attempts that a blocking step works on.
    busy: HashSet<Key>,
    /// Those of them of which nobody may be told yet.
    unrecorded: HashSet<Key>,
    /// Those that are being prepared, with what tells them that they are wanted no more.
    preparing: HashMap<Key, Arc<AtomicBool>>,
    clean_after: HashMap<Key, Instant>,
    /// Users whose files could not be removed.
    users_left: HashSet<u32>,
    /// `None` until the portal has spoken in this session.
    desired: Option<BTreeMap<Key, Assignment>>,
    /// Of a session in which the hello was said.
    outbox: Option<Outbox>,
    greeting: Greeting,
    /// The logs that are followed in this session.
    followed: HashMap<Key, watch::Sender<()>>,
    watch: Watch,
    renewals: Renewals,
    /// Something has changed of what decides what to do.
    moved: bool,
    seq: u64,
    /// Until when what was reported counts, each report for as long as the pace is.
    reported_until: Option<Instant>,
    /// An attempt was proved clean since the last report.
    cleaned: bool,
    done: mpsc::UnboundedSender<Done>,
    sampling: bool,
    /// Whose files are being handed over.
    keeping: HashSet<Key>,
    /// Whose files were handed over and are being removed.
    removing: HashSet<Key>,
    /// Whether that was last done for an attempt that is over, and when it is next due.
    keep_after: HashMap<Key, (bool, Instant)>,
    boards: Boards,
    tunnels: Tunnels,
    leaving: Leaving,
}

/// The way in which an attempt is to be stopped, when the portal chose one.
fn notice(assignment: &Assignment) -> Option<shim::Notice> {
    let (signal, grace_ms) = (assignment.stop_signal, assignment.stop_grace_ms);
    (signal > 0).then_some(shim::Notice { signal, grace_ms: grace_ms.clamp(0, MOST_GRACE_MS) })
}

/// Runs until the process is ended. Attempts go on without it. When `leave` says that the host is being shut down, the
/// portal is told so, and this returns once it has taken everything back, or cannot be reached.
pub async fn run(
    host: Host,
    mut link: mpsc::Receiver<LinkEvent>,
    mut leave: oneshot::Receiver<()>,
) -> Result<(), String> {
    let (mut daemon, mut results) = Daemon::new(host)?;
    daemon.adopt_all()?;
    daemon.watch_boards();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let report_at = daemon.next_report();
        tokio::select! {
            event = link.recv() => match event {
                None => return Ok(()),
                Some(event) => daemon.hear(event),
            },
            changed = daemon.watch.changed() => {
                for (key, only_log) in changed.map_err(|e| e.to_string())? {
                    daemon.file_changed(&key, only_log);
                }
            }
            Some(result) = results.recv() => daemon.finish(result),
            _ = tick.tick() => daemon.tick(),
            told = &mut leave, if !leave.is_terminated() => if told.is_ok() { daemon.leave() },
            () = at(report_at) => {}
        }
        // What is here already is taken in before anything is decided: each time every attempt is looked at.
        let began = Instant::now();
        for _ in 0..AT_ONCE {
            let Ok(event) = link.try_recv() else { break };
            daemon.hear(event);
        }
        for _ in 0..AT_ONCE {
            let Ok(result) = results.try_recv() else { break };
            daemon.finish(result);
        }
        if daemon.moved {
            daemon.act();
        }
        daemon.keep_files();
        daemon.report(Instant::now());
        daemon.tell_health();
        if daemon.leaving.is_over(daemon.attempts.is_empty(), Instant::now()) {
            return Ok(());
        }
        tokio::time::sleep_until(began + PACE).await;
    }
}

impl Daemon {
    fn new(host: Host) -> Result<(Self, mpsc::UnboundedReceiver<Done>), String> {
        let (done, results) = mpsc::unbounded_channel();
        let daemon = Self {
            attempts: BTreeMap::new(),
            told: HashMap::new(),
            busy: HashSet::new(),
            unrecorded: HashSet::new(),
            preparing: HashMap::new(),
            clean_after: HashMap::new(),
            users_left: HashSet::new(),
            desired: None,
            outbox: None,
            greeting: Greeting::default(),
            followed: HashMap::new(),
            watch: Watch::new().map_err(|e| e.to_string())?,
            renewals: Renewals::open(&host.root),
            moved: true,
            seq: 0,
            reported_until: None,
            cleaned: false,
            done,
            sampling: false,
            keeping: HashSet::new(),
            removing: HashSet::new(),
            keep_after: HashMap::new(),
            boards: Boards::open(&host),
            tunnels: Tunnels::default(),
            leaving: Leaving::default(),
            host: Arc::new(host),
        };
        Ok((daemon, results))
    }

    fn hear(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Open(outbox, claim) => self.opened(outbox, claim),
            LinkEvent::Closed => {
                self.greeting.close();
                self.outbox = None;
                self.followed.clear();
            }
            LinkEvent::Down(Down { what: Some(down::What::Desired(desired)) }) => self.want(desired),
            LinkEvent::Down(Down { what: Some(down::What::Ack(ack)) }) => {
                for told in self.told.values_mut() {
                    if told.sent.is_some_and(|(seq, _)| seq == ack.seq) {
                        told.sent = None;
                    }
                }
            }
            LinkEvent::Down(Down { what: Some(down::What::Renewed(renewed)) }) => {
                self.renewals.acknowledged(renewed.seq, shim::boottime_ms());
                // What waits for a lease may begin.
                self.moved = true;
            }
            LinkEvent::Down(Down { what: Some(down::What::Dial(dial)) }) => self.dial(dial),
            // The link has answered it.
            LinkEvent::Down(Down { what: Some(down::What::Probe(_)) | None }) => {}
        }
    }

    fn want(&mut self, desired: Desired) {
        self.begin_tasks(&desired.tasks);
        let mut all = BTreeMap::new();
        for assignment in desired.attempts {
            let Some(id) = &assignment.attempt else { continue };
            let key = Key { job: id.job.clone(), number: id.number };
            // A name that could leave the directory is no attempt.
            if crate::files::inside(&self.host.root, &key.job).is_none() || key.job.contains('/') {
                tracing::warn!(job = key.job, "an assignment with an impossible name was ignored");
                continue;
            }
            all.insert(key, assignment);
        }
        self.desired = Some(all);
        self.moved = true;
        self.give_up();
        self.follow_logs();
    }

    /// Follows the log of every attempt that both sides know.
    fn follow_logs(&mut self) {
        let (Some(desired), Some(outbox)) = (&self.desired, &self.outbox) else { return };
        for (key, assignment) in desired {
            let Some(attempt) = self.attempts.get(key).filter(|a| a.seen() != Seen::Preparing) else {
                continue;
            };
            if self.followed.contains_key(key) {
                continue;
            }
            let (grow, grown) = watch::channel(());
            let file = attempt.dir.join(shim::LOG);
            tokio::spawn(follow(file, key.clone(), assignment.log_from, grown, outbox.bulk.clone()));
            self.followed.insert(key.clone(), grow);
        }
    }

    fn file_changed(&mut self, key: &Key, only_log: bool) {
        if let Some(grow) = self.followed.get(key) {
            grow.send_replace(());
        }
        if !only_log && !self.busy.contains(key) {
            self.refresh(key);
        }
    }

    /// Looks at an attempt's files again; says so to the portal when it moved on.
    fn refresh(&mut self, key: &Key) {
        let Some(attempt) = self.attempts.get_mut(key) else { return };
        let before = attempt.seen();
        attempt.refresh();
        if attempt.seen() != before {
            self.moved = true;
            self.told.entry(key.clone()).or_default().dirty = true;
            self.follow_logs();
        }
    }

    fn finish(&mut self, done: Done) {
        self.moved |=
            !matches!(done, Done::Progress(..) | Done::Sampled(_) | Done::Listed(_) | Done::Boards(_));
        match done {
            Done::Recorded(key, result) => self.recorded(key, result),
            Done::Prepared(attempt) => {
                let key = attempt.key();
                self.busy.remove(&key);
                self.preparing.remove(&key);
                // That it is being prepared was told before, but how far it was is no news any more; each word
                // costs the portal a transaction.
                let former = self.attempts.get(&key).is_some_and(|known| known.progress != attempt.progress);
                let told = self.told.entry(key.clone()).or_default();
                told.dirty |= former || attempt.seen() != Seen::Preparing;
                self.attempts.insert(key.clone(), *attempt);
                self.refresh(&key);
                self.follow_logs();
            }
            Done::Progress(key, words) => self.progressed(key, words),
            Done::ShimGone(key) => {
                self.refresh(&key);
                if let Some(attempt) = self.attempts.get_mut(&key)
                    && !matches!(attempt.seen(), Seen::Ended(_))
                {
                    attempt.adopt();
                    if !matches!(attempt.seen(), Seen::Ended(_)) {
                        self.attend_again(&key);
                    }
                    self.told.entry(key).or_default().dirty = true;
                }
            }
            Done::Cleaned(key, result) => {
                self.busy.remove(&key);
                let Some(attempt) = self.attempts.get_mut(&key) else { return };
                match result {
                    Ok(()) => {
                        self.cleaned = true;
                        attempt.cleaning = Cleaning::Done;
                        attempt.record.clean = true;
                        attempt.unclean = None;
                    }
                    Err(reason) => {
                        tracing::warn!(job = key.job, reason, "a device is not proved clean");
                        attempt.cleaning = Cleaning::UnderWay;
                        attempt.unclean = Some(reason);
                        self.clean_after.insert(key.clone(), Instant::now() + CLEAN_AGAIN);
                    }
                }
                self.told.entry(key).or_default().dirty = true;
            }
            Done::Boards(news) => self.boards_news(news),
            Done::Listed(look) => self.listed(look),
            Done::Kept(key, over, result) => self.files_kept(&key, over, result),
            Done::Removed(key) => {
                self.removing.remove(&key);
            }
            Done::Forgotten(key, result) => self.forgotten(&key, result),
            Done::Sampled(Sampled { samples, looks }) => {
                self.sampling = false;
                for (key, at_ms, look) in looks {
                    if let Some(attempt) = self.attempts.get_mut(&key) {
                        attempt.handle_look(at_ms, look);
                    }
                }
                self.say(up::What::Samples(samples));
            }
        }
    }

    fn tick(&mut self) {
        // Whatever could not be done is tried again.
        self.moved = true;
        self.look_at_boards();
        let now = Instant::now();
        if self.outbox.is_some() {
            self.leaving.heard(now);
            self.beat();
        }
        for (key, attempt) in &mut self.attempts {
            attempt.observe();
            let told = self.told.entry(key.clone()).or_default();
            let overdue = told.sent.is_some_and(|(_, at)| now.duration_since(at) > RESEND);
            // The meter of what runs is reported all the time.
            told.dirty |= overdue || matches!(attempt.seen(), Seen::Running { .. });
            if self.clean_after.get(key).is_some_and(|at| *at <= now) {
                self.clean_after.remove(key);
                attempt.cleaning = Cleaning::Due;
            }
        }
        let runs = |a: &&Attempt| matches!(a.seen(), Seen::Running { .. });
        let running: Vec<Attempt> = self.attempts.values().filter(runs).cloned().collect();
        // What runs is looked at whether the portal listens or not: its evidence goes on.
        if !self.sampling && (self.outbox.is_some() || !running.is_empty() || self.host.telemetry.served) {
            self.sampling = true;
            let (host, done) = (self.host.clone(), self.done.clone());
            tokio::task::spawn_blocking(move || {
                let samples = sample(&host, &running);
                // The daemon ends only with the process.
                let _ = done.send(Done::Sampled(samples));
            });
        }
    }

    /// Carries out what the agent decides. Before the portal has spoken only what needs no word of it.
    fn act(&mut self) {
        let seen: BTreeMap<Key, Seen> = self
            .attempts
            .iter()
            .filter(|(key, _)| !self.busy.contains(*key))
            .map(|(key, a)| (key.clone(), a.seen()))
            .collect();
        self.tunnels.keep(|key| matches!(seen.get(key), Some(Seen::Running { .. })));
        let effects = match &self.desired {
            Some(desired) => {
                let wanted = desired
                    .iter()
                    .filter(|(key, _)| !self.busy.contains(*key))
                    .map(|(key, a)| {
                        let startable = a.spec.is_some();
                        (key.clone(), Wanted { stop: a.stop, limit_ms: a.limit_ms, startable })
                    })
                    .collect();
                converge(&wanted, &seen)
            }
            None => seen
                .iter()
                .filter(|(_, s)| **s == Seen::Ended(Cleaning::Due))
                .map(|(key, _)| Effect::Clean(key.clone()))
                .collect(),
        };
        // What is done may be what the next step waits for.
        self.moved = !effects.is_empty();
        let most = self.preparing.len() + BEGUN_AT_ONCE;
        for effect in effects {
            if self.preparing.len() < most || !matches!(effect, Effect::Prepare(_)) {
                self.carry_out(effect);
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Prepare(key) => self.prepare(key),
            Effect::Refuse { key, lost } => {
                let Some(assignment) = self.desired.as_ref().and_then(|d| d.get(&key)) else { return };
                let root = &self.host.root;
                let mut attempt = Attempt::create(root, &key, assignment).unwrap_or_else(|error| {
                    Attempt::without_record(root, &key, assignment, &error.to_string())
                });
                // Its shim may be there still.
                self.host.sharers.join(&attempt.dir, &attempt.record.devices);
                let (code, detail) = if lost {
                    (
                        "attempt.unknown_outcome",
                        "The worker lost its record of this job; it was not run again.",
                    )
                } else {
                    ("attempt.not_started", "It was stopped before it was started.")
                };
                attempt.fail((code.to_owned(), detail.to_owned()));
                self.told.entry(key.clone()).or_default().dirty = true;
                self.attempts.insert(key, attempt);
            }
            Effect::Stop(key) => {
                if let Some(attempt) = self.attempts.get_mut(&key) {
                    let assignment = self.desired.as_ref().and_then(|d| d.get(&key));
                    attempt.stop(assignment.and_then(notice));
                }
            }
            Effect::Limit(key, limit_ms) => {
                if let Some(attempt) = self.attempts.get_mut(&key)
                    && let Err(error) = attempt.set_limit(limit_ms)
                {
                    tracing::error!(job = key.job, %error, "a limit cannot be set");
                }
            }
            Effect::Clean(key) => {
                let Some(attempt) = self.attempts.get_mut(&key) else { return };
                attempt.cleaning = Cleaning::UnderWay;
                self.busy.insert(key.clone());
                // What was written until the end is sent, then the follower ends.
                self.followed.get(&key).inspect(|grow| {
                    grow.send_replace(());
                });
                let (mut attempt, host, done) = (attempt.clone(), self.host.clone(), self.done.clone());
                tokio::task::spawn_blocking(move || {
                    let result = attempt.clean(&host);
                    let _ = done.send(Done::Cleaned(key, result));
                });
            }
            Effect::Forget(key) => self.forget(key),
        }
    }

    fn beat(&mut self) {
        let leaving = self.leaving.is_under_way();
        let beat = Heartbeat { leaving, ..self.renewals.beat(shim::boottime_ms()) };
        self.say(up::What::Heartbeat(beat));
    }

    fn say(&self, what: up::What) {
        if let Some(outbox) = &self.outbox {
            // A session that just ended is followed by a Closed.
            let _ = outbox.words.send(Up::from(what));
        }
    }
}
