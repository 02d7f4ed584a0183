//! The supervision of a running command: limits, lease, disk space, log and signals.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use berth_contract::LOG_LIMIT;
use berth_isolation::disk;
use berth_system::clock::boottime_ms;
use berth_system::files::find_json;
use berth_system::reaping::reap_strays;
use berth_system::spawn::Child;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::timerfd::{self, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::daemon_record::host_shutdown_failure;
use super::launch::{LIMIT, Launch, NOTICE, StopNotice};
use super::lease::{self, LeaseRemainder, ShimLease};
use super::records::CommandExit;
use super::tenant::{StopSignal, Tenant};
use crate::model::JobFailure;

/// The longest time between two checks.
const CHECK_MS: i64 = 1_000;
/// The time beyond the grace for the supervisor of a container to report its end.
const PATIENCE_MS: i64 = 5_000;

/// The running time limit: the daemon's last change, or the limit of the launch.
fn limit_ms(dir: &Path, launch: &Launch) -> i64 {
    find_json::<i64>(&dir.join(LIMIT)).unwrap_or(launch.limit_ms)
}

/// A recent time of `CLOCK_BOOTTIME` as an `Instant`.
fn instant_from_boottime(at_ms: i64) -> Instant {
    let now = Instant::now();
    let ago = Duration::from_millis(u64::try_from(boottime_ms() - at_ms).unwrap_or(0));
    now.checked_sub(ago).unwrap_or(now)
}

/// Wakes the shim at the end of a lease, by the clock that counts suspended time, unlike that of `poll`. Without a
/// timer the next check finds the end.
struct LeaseAlarm(Option<TimerFd>);

impl LeaseAlarm {
    fn new() -> Self {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Self(TimerFd::new(timerfd::ClockId::CLOCK_BOOTTIME, flags).ok())
    }

    /// Sets the alarm; a time in the past or far away unsets it.
    fn set(&self, in_ms: i64) {
        let Some(timer) = &self.0 else { return };
        let soon = u64::try_from(in_ms).ok().filter(|ms| (1..=86_400_000).contains(ms));
        // The next check sets the alarm again.
        let _ = match soon {
            Some(ms) => {
                let once = Expiration::OneShot(Duration::from_millis(ms).into());
                timer.set(once, TimerSetTimeFlags::empty())
            }
            None => timer.unset(),
        };
    }
}

/// The pending signals, without a wait.
fn pending_signals(signals: &SignalFd) -> impl Iterator<Item = Signal> {
    let read = || signals.read_signal().ok().flatten();
    std::iter::from_fn(read).filter_map(|info| Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok())
}

/// True if a signal asks for the end of the command.
const fn is_stop(signal: Signal) -> bool {
    matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP)
}

/// The state of a running command. Times are milliseconds since its begin.
pub(super) struct Supervision<'a> {
    dir: &'a Path,
    launch: &'a Launch,
    child: Child,
    signals: &'a SignalFd,
    log: &'a File,
    began: Instant,
    tenant: Tenant,
    limit_ms: i64,
    grace_ms: i64,
    lease: Option<ShimLease>,
    alarm: LeaseAlarm,
    /// The excess of disk space. The thread begins later: most short jobs end before and need none.
    disk: Option<Arc<OnceLock<JobFailure>>>,
    /// The begin of the stop.
    stopping_since: Option<i64>,
    /// A stop signal that no process has received yet.
    unsent: Option<StopSignal>,
    timed_out: bool,
    log_full: bool,
    failure: Option<JobFailure>,
}

/// The end of a supervised command.
pub(super) struct SupervisionEnd {
    pub exit: CommandExit,
    /// A stop was asked for before the end.
    pub is_stopped: bool,
}

impl<'a> Supervision<'a> {
    pub fn new(
        dir: &'a Path,
        launch: &'a Launch,
        child: Child,
        signals: &'a SignalFd,
        began_ms: i64,
        log: &'a File,
    ) -> Self {
        let tenant = Tenant {
            command: child.pid(),
            depth: launch.sandbox_depth,
            supervisor: launch.container.as_ref().map(|c| c.supervisor.clone()),
        };
        Self {
            dir,
            launch,
            child,
            signals,
            log,
            began: instant_from_boottime(began_ms),
            tenant,
            limit_ms: limit_ms(dir, launch),
            grace_ms: launch.grace_ms,
            lease: launch.lease.clone(),
            alarm: LeaseAlarm::new(),
            disk: None,
            stopping_since: None,
            unsent: None,
            timed_out: false,
            log_full: false,
            failure: None,
        }
    }

    /// Waits for the end of the command, and ends it after a stop signal, at its limit, or at the end of its lease.
    pub fn run(mut self) -> SupervisionEnd {
        loop {
            // Read before the checks, so their time is not metered.
            let now = self.elapsed_ms();
            reap_strays(self.child.pid());
            let ended = match self.child.try_wait() {
                Ok(code) => code,
                Err(_) => Some(255),
            };
            if let Some(code) = ended {
                return self.exit(code, now);
            }
            self.check_time_log_and_disk(now);
            let lease = self.check_lease(now);
            let next = self.signal_or_kill(now, lease);
            self.wait(now, next, lease);
            self.handle_signals();
        }
    }

    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    fn exit(mut self, code: i32, now: i64) -> SupervisionEnd {
        let (metered_ms, boottime_ms) = (now.min(self.limit_ms), Some(boottime_ms()));
        let mut is_stopped = self.stopping_since.is_some();
        // A host that shuts down signals all processes at once, and the command may end first.
        if !is_stopped && pending_signals(self.signals).any(is_stop) {
            is_stopped = true;
            self.failure = host_shutdown_failure(self.dir);
        }
        let exit = CommandExit {
            code,
            timed_out: self.timed_out,
            metered_ms,
            log_bytes: 0,
            log_full: self.log_full,
            boottime_ms,
            failure: self.failure,
        };
        SupervisionEnd { exit, is_stopped }
    }

    fn begin_stop(&mut self, now: i64) {
        (self.stopping_since, self.unsent) = (Some(now), Some(StopSignal::Terminate));
    }

    fn check_time_log_and_disk(&mut self, now: i64) {
        let disk_after_ms = i64::try_from(disk::MEASURE_EVERY.as_millis()).unwrap_or(i64::MAX);
        if self.disk.is_none() && now >= disk_after_ms {
            // Without a free thread the next check tries again.
            let limits = &self.launch.limits;
            self.disk = disk::watch(limits.disk.clone(), limits.volumes.clone()).ok();
        }
        if self.stopping_since.is_none() && now >= self.limit_ms {
            self.timed_out = true;
            self.begin_stop(now);
        }
        if self.stopping_since.is_none() && self.log.metadata().is_ok_and(|m| m.len() > LOG_LIMIT) {
            self.log_full = true;
            self.begin_stop(now);
        }
        let excess = self.disk.as_ref().and_then(|excess| excess.get()).cloned();
        if self.stopping_since.is_none() && excess.is_some() {
            self.failure = excess;
            self.begin_stop(now);
        }
    }

    fn check_lease(&mut self, now: i64) -> LeaseRemainder {
        let lease = self.lease.as_mut();
        let remainder = lease.map_or(LeaseRemainder::UNLIMITED, |lease| lease.remaining(boottime_ms()));
        if self.stopping_since.is_none() && remainder.ends_in_ms <= 0 {
            self.failure = self.launch.lease.as_ref().map(|lease| lease::expiry_failure(&lease.term));
            self.grace_ms = remainder.killed_in_ms.saturating_sub(remainder.ends_in_ms);
            self.begin_stop(now);
        }
        remainder
    }

    /// Sends an unsent signal, and kills after the grace. Returns the time of the next check.
    fn signal_or_kill(&mut self, now: i64, lease: LeaseRemainder) -> i64 {
        // Processes that do not exist yet get the signal when they do.
        self.unsent = self.unsent.filter(|signal| !self.tenant.signal(*signal));
        match self.stopping_since {
            Some(at) if now >= at.saturating_add(self.grace_ms) || lease.killed_in_ms <= 0 => {
                let patient = now < at.saturating_add(self.grace_ms).saturating_add(PATIENCE_MS)
                    && lease.killed_in_ms > -PATIENCE_MS;
                self.tenant.kill(!patient);
                now + 200
            }
            Some(_) if self.unsent.is_some() => now + 50,
            Some(at) => at.saturating_add(self.grace_ms),
            None => self.limit_ms,
        }
    }

    fn wait(&self, now: i64, next: i64, lease: LeaseRemainder) {
        self.alarm.set(if self.stopping_since.is_some() { lease.killed_in_ms } else { lease.ends_in_ms });
        let wait = u16::try_from((next - now).clamp(1, CHECK_MS)).unwrap_or(1_000);
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.alarm.0.as_ref().map(|timer| PollFd::new(timer.as_fd(), PollFlags::POLLIN)));
        // An interrupted wait is no error: the loop checks everything again.
        let _ = poll(&mut fds, PollTimeout::from(wait));
    }

    fn handle_signals(&mut self) {
        for signal in pending_signals(self.signals) {
            match signal {
                Signal::SIGUSR1 => self.limit_ms = limit_ms(self.dir, self.launch),
                _ if is_stop(signal) && self.stopping_since.is_none() => {
                    self.stopping_since = Some(self.elapsed_ms());
                    self.failure = host_shutdown_failure(self.dir);
                    let notice = find_json::<StopNotice>(&self.dir.join(NOTICE));
                    self.grace_ms = notice.map_or(self.launch.grace_ms, |n| n.grace_ms);
                    let signal = notice.and_then(|n| Signal::try_from(n.signal).ok());
                    self.unsent = Some(signal.map_or(StopSignal::Terminate, StopSignal::Notice));
                }
                _ => {}
            }
        }
    }
}
