//! The helper process for NVML, as the daemon has it. A thread starts the process, reads its answers, kills it after the
//! end of the connection and starts the next one.
//!
//! A call of NVML cannot be ended, but a process can. A call beyond its deadline ends the process with all its calls.
//! Readings are sent again to the next process, and no change is. To spare changes of other boards, the end waits for
//! them. A call that was late is held back for a growing time, so one board without answers ends few processes.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use berth_system::sync::lock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::error::GpuError;
use super::nvml_command::NVML_COMMAND;
use super::nvml_connection::{CallEnd, NvmlConnection};
use super::requests::{Request, decode};
use super::simulation;

/// The variables of the daemon that the process gets: the directories of libraries, the level of the log, and the
/// settings of the simulated library. Others, such as a join token, are no business of the driver.
const VARIABLES: [&str; 4] = ["LD_LIBRARY_PATH", "BERTH_LOG", simulation::DIR, simulation::FLEET];
/// The wait for the end of a killed process. One in a call of the driver may stay for long.
const END_LIMIT: Duration = Duration::from_secs(2);
/// The most killed processes that have not ended. No further one starts meanwhile.
const MAX_UNENDED: usize = 4;
/// The longest wait of a late call for the changes of other boards.
const CHANGE_PATIENCE: Duration = Duration::from_secs(30);
/// The wait for the end of all processes before a reset.
const CLOSE_LIMIT: Duration = Duration::from_secs(15);
/// The first and the longest pause before the next start, after a process that ended by itself.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The life of a process after which the next one starts at once.
const STABLE: Duration = Duration::from_secs(60);
/// The first and the longest time for which calls are held back after a late one.
const FIRST_HOLD: Duration = Duration::from_secs(5);
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// The command of the process.
struct HelperCommand {
    /// The program of this worker.
    program: PathBuf,
    /// The simulated library. `None`: the driver's.
    library: Option<PathBuf>,
}

impl HelperCommand {
    fn spawn(&self, socket: UnixStream) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.arg0("berth-worker").arg(NVML_COMMAND);
        if let Some(library) = &self.library {
            command.arg("--library").arg(library);
        }
        command.env_clear().current_dir("/").process_group(0);
        for name in VARIABLES {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        // Its messages go to the log of the daemon.
        command.stdin(Stdio::from(OwnedFd::from(socket))).stdout(Stdio::null()).spawn()
    }
}

/// Calls of an executor are refused until then.
struct Hold {
    until: Instant,
    length: Duration,
}

#[derive(Default)]
struct HelperState {
    /// The connection of the present process.
    connection: Option<Arc<NvmlConnection>>,
    /// NVML has started in the present process.
    ready: bool,
    /// A process exists, or is about to.
    exists: bool,
    /// Killed processes that have not ended.
    unended: usize,
    /// No process starts, because of a reset.
    closed: bool,
    /// No process is needed any more.
    released: bool,
    /// Changes without an answer.
    changes: usize,
    /// The present process ends after the present changes.
    ending: bool,
}

impl HelperState {
    fn is_present(&self, number: u64) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.number == number)
    }

    /// The connection for a call, unless its process is not newer than this number.
    fn usable(&self, after: u64, changes: bool) -> Option<&Arc<NvmlConnection>> {
        let is_open = self.ready && !(changes && self.ending);
        self.connection.as_ref().filter(|connection| is_open && connection.number > after)
    }
}

struct Supervised {
    command: HelperCommand,
    state: Mutex<HelperState>,
    changed: Condvar,
    holds: Mutex<HashMap<String, Hold>>,
}

/// A change without an answer.
struct RunningChange<'a>(&'a Supervised);

impl Drop for RunningChange<'_> {
    fn drop(&mut self) {
        self.0.update(|state| state.changes = state.changes.saturating_sub(1));
    }
}

/// The helper process. It ends with this value.
pub struct NvmlHelper(Arc<Supervised>);

impl Drop for NvmlHelper {
    fn drop(&mut self) {
        self.0.update(|state| {
            state.released = true;
            if let Some(connection) = &state.connection {
                connection.end();
            }
        });
    }
}

/// Waits for the end of a killed process, and collects it. `false`: it has not ended.
fn has_ended(child: &mut Child) -> bool {
    if let Ok(process) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
        let limit = PollTimeout::try_from(END_LIMIT).unwrap_or(PollTimeout::MAX);
        // An end before this call ends the wait at once, because nothing has collected the process.
        let _ = poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], limit);
    }
    matches!(child.try_wait(), Ok(Some(_)))
}

/// The pause after a process with this life that ended by itself. `before` is the last pause.
fn next_pause(life: Duration, before: Duration) -> Duration {
    if life >= STABLE { Duration::ZERO } else { (before * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE) }
}

impl Supervised {
    fn update(&self, change: impl FnOnce(&mut HelperState)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }

    /// Waits while a condition holds, until the limit.
    fn wait_while(
        &self,
        limit: Duration,
        condition: impl FnMut(&mut HelperState) -> bool,
    ) -> MutexGuard<'_, HelperState> {
        let waited = self.changed.wait_timeout_while(lock(&self.state), limit, condition);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until the next process may start. `false`: none is needed any more.
    fn wait_for_turn(&self, pause: Duration) -> bool {
        // A reset needs no pause, because it comes between two processes.
        drop(self.wait_while(pause, |state| !state.released && !state.closed));
        let state = lock(&self.state);
        let waited = self
            .changed
            .wait_while(state, |state| !state.released && (state.closed || state.unended >= MAX_UNENDED));
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.exists = !state.released;
        !state.released
    }

    /// Starts processes one after the other. Ends after a first start that fails, and with the helper.
    fn supervise(self: &Arc<Self>, first: &SyncSender<Result<(), GpuError>>) {
        let mut pause = Duration::ZERO;
        for number in 1.. {
            if !self.wait_for_turn(pause) {
                return;
            }
            let begun = Instant::now();
            let ended = self.run_process(number, |started| {
                if number == 1 {
                    // A caller that gave up misses it.
                    let _ = first.send(started.clone());
                } else if let Err(error) = started {
                    tracing::error!(%error, "the helper process of NVML does not start; trying again");
                } else {
                    tracing::info!(number, "a new helper process of NVML has started");
                }
            });
            match ended {
                ProcessEnd::NotStarted if number == 1 => return,
                ProcessEnd::Wanted => pause = Duration::ZERO,
                ProcessEnd::NotStarted | ProcessEnd::ByItself => pause = next_pause(begun.elapsed(), pause),
            }
        }
    }

    /// Runs a process to its end.
    fn run_process(
        self: &Arc<Self>,
        number: u64,
        on_start: impl FnOnce(&Result<(), GpuError>),
    ) -> ProcessEnd {
        let spawn = || {
            let (ours, theirs) = UnixStream::pair()?;
            let connection = Arc::new(NvmlConnection::new(number, ours)?);
            Ok::<_, io::Error>((connection, self.command.spawn(theirs)?))
        };
        let (connection, child) = match spawn() {
            Ok(spawned) => spawned,
            Err(error) => {
                self.update(|state| state.exists = false);
                on_start(&Err(GpuError::Nvml(format!("the helper process cannot be started: {error}"))));
                return ProcessEnd::NotStarted;
            }
        };
        self.update(|state| {
            if state.closed || state.released {
                connection.end();
            }
            state.connection = Some(connection.clone());
        });
        let started = connection.wait_for_start();
        if started.is_ok() {
            self.update(|state| state.ready = true);
        }
        on_start(&started);
        if started.is_ok() {
            connection.pass_answers();
        }
        connection.end();
        let mut wanted = false;
        self.update(|state| {
            wanted = state.ending || state.closed || state.released;
            state.connection = None;
            state.ready = false;
            state.ending = false;
        });
        self.end_process(child);
        match (wanted, started) {
            (true, _) => ProcessEnd::Wanted,
            (false, Ok(())) => {
                tracing::warn!(number, "the helper process of NVML has ended");
                ProcessEnd::ByItself
            }
            (false, Err(_)) => ProcessEnd::NotStarted,
        }
    }

    /// Kills a process and collects it. One in a call of the driver is collected later.
    fn end_process(self: &Arc<Self>, mut child: Child) {
        // It has not been collected, so the number is still its own.
        let _ = child.kill();
        if has_ended(&mut child) {
            return self.update(|state| state.exists = false);
        }
        tracing::error!(pid = child.id(), "the killed helper process of NVML does not end");
        self.update(|state| {
            state.exists = false;
            state.unended += 1;
        });
        let supervised = self.clone();
        let collect = move || {
            let _ = child.wait();
            supervised.update(|state| state.unended = state.unended.saturating_sub(1));
        };
        // Without a thread it stays counted.
        let _ = thread::Builder::new().name("nvml end".to_owned()).spawn(collect);
    }

    /// Ends the process with a late call, after the present changes.
    fn end_late(&self, number: u64) {
        self.update(|state| state.ending |= state.is_present(number));
        let state = self.wait_while(CHANGE_PATIENCE, |state| state.is_present(number) && state.changes > 0);
        if state.is_present(number)
            && let Some(connection) = &state.connection
        {
            connection.end();
        }
    }

    /// Refuses the calls of an executor for a time, which doubles with each late call.
    fn hold_back(&self, executor: &str) {
        let mut holds = lock(&self.holds);
        let before = holds.get(executor).map_or(Duration::ZERO, |hold| hold.length);
        let length = (before * 2).clamp(FIRST_HOLD, LONGEST_HOLD);
        holds.insert(executor.to_owned(), Hold { until: Instant::now() + length, length });
    }
}

/// The end of a process.
enum ProcessEnd {
    /// NVML did not start.
    NotStarted,
    /// The daemon ended it.
    Wanted,
    ByItself,
}

impl NvmlHelper {
    /// Starts a process and waits for the start of NVML in it. `program` is that of this worker.
    ///
    /// # Errors
    /// NVML does not start. No further process starts then.
    pub fn start(program: PathBuf, library: Option<PathBuf>) -> Result<Self, GpuError> {
        let supervised = Arc::new(Supervised {
            command: HelperCommand { program, library },
            state: Mutex::default(),
            changed: Condvar::new(),
            holds: Mutex::default(),
        });
        // The first process ends with this value, also after a start without a result.
        let helper = Self(supervised.clone());
        let (sender, first) = mpsc::sync_channel(1);
        let supervise = move || supervised.supervise(&sender);
        let thread = thread::Builder::new().name("nvml".to_owned()).spawn(supervise);
        thread.map_err(|error| GpuError::Nvml(format!("its thread cannot be started: {error}")))?;
        first.recv().unwrap_or(Err(GpuError::Unresponsive))?;
        Ok(helper)
    }

    /// Calls NVML. A late call ends the process. A reading is sent again to the next process if its own has ended.
    pub fn call<R: Request>(
        &self,
        executor: &str,
        limit: Duration,
        request: R,
    ) -> Result<R::Answer, GpuError> {
        let until = Instant::now() + limit;
        if self.is_held_back(executor) {
            return Err(GpuError::Unresponsive);
        }
        let mut after = 0;
        loop {
            let (connection, change) = self.connect(until, after, R::CHANGES)?;
            let ended = connection.call(executor, request.clone().into(), until);
            drop(change);
            match ended {
                CallEnd::Answered(result) => {
                    lock(&self.0.holds).remove(executor);
                    return result.and_then(decode);
                }
                CallEnd::Late => {
                    tracing::error!(executor, ?limit, "a call of NVML is late; its helper process is ended");
                    self.0.hold_back(executor);
                    self.0.end_late(connection.number);
                    return Err(GpuError::Unresponsive);
                }
                // Nobody knows whether the change was done.
                CallEnd::Ended if R::CHANGES => return Err(GpuError::Unresponsive),
                CallEnd::Ended => after = connection.number,
            }
        }
    }

    /// A process that is newer than the one with this number.
    fn connect(
        &self,
        until: Instant,
        after: u64,
        changes: bool,
    ) -> Result<(Arc<NvmlConnection>, Option<RunningChange<'_>>), GpuError> {
        let limit = until.saturating_duration_since(Instant::now());
        let mut state = self.0.wait_while(limit, |state| state.usable(after, changes).is_none());
        let connection = state.usable(after, changes).ok_or(GpuError::Unresponsive)?.clone();
        state.changes += usize::from(changes);
        Ok((connection, changes.then(|| RunningChange(&self.0))))
    }

    pub fn is_held_back(&self, executor: &str) -> bool {
        lock(&self.0.holds).get(executor).is_some_and(|hold| Instant::now() < hold.until)
    }

    /// Ends the process before a reset, and starts none until [`Self::open_again`]. No other call runs.
    ///
    /// # Errors
    /// A process does not end, and NVML stays open.
    pub fn close(&self) -> Result<(), GpuError> {
        self.0.update(|state| {
            state.closed = true;
            if let Some(connection) = &state.connection {
                connection.end();
            }
        });
        let state = self.0.wait_while(CLOSE_LIMIT, |state| state.exists || state.unended > 0);
        let has_ended = !state.exists && state.unended == 0;
        drop(state);
        if has_ended {
            return Ok(());
        }
        self.0.update(|state| state.closed = false);
        Err(GpuError::Nvml("its helper process does not end".to_owned()))
    }

    /// Starts a process after [`Self::close`]. `false`: NVML has not started within the limit, and goes on to start.
    pub fn open_again(&self, limit: Duration) -> bool {
        // The boards may answer again.
        lock(&self.0.holds).clear();
        self.0.update(|state| state.closed = false);
        self.0.wait_while(limit, |state| !state.ready).ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_between_processes_grow_to_a_limit() {
        let mut pause = Duration::ZERO;
        let mut seconds = Vec::new();
        for _ in 0..7 {
            pause = next_pause(Duration::from_secs(1), pause);
            seconds.push(pause.as_secs());
        }
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(next_pause(STABLE, pause), Duration::ZERO, "it had worked");
    }

    #[test]
    fn a_program_that_is_no_helper_is_an_error_at_once() {
        for program in ["/bin/true", "/nothing/is/here"] {
            let started = NvmlHelper::start(program.into(), None);
            assert!(matches!(started, Err(GpuError::Nvml(_))), "{program}");
        }
    }
}
