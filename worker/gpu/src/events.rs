//! The listener for events of boards.
//!
//! A thread of its own waits for them. Each board is registered on its own executor, so a hanging board delays no
//! events of others.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::board::BoardInfo;
use super::error::GpuError;
use super::event_set::{BoardEventKind, NvmlEvent};
use super::gpus::Gpus;
use super::nvml_session::SessionUse;
use super::requests::{OpenEvents, RegisterEvents, WaitForEvent};

/// The time between two tries to register a board.
const REGISTER_EVERY: Duration = Duration::from_secs(10);
/// The pause after a failed wait.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardEvent {
    pub gpu_uuid: String,
    pub kind: BoardEventKind,
    /// The start of the affected slice. Absent: the board, or an unknown slice.
    pub start: Option<u32>,
}

/// The number of begins and ends of times without a listener. It is odd while nothing listens: XIDs come from the
/// kernel's log then.
pub fn event_gaps(gpus: &Gpus) -> u64 {
    gpus.event_gaps.load(Ordering::SeqCst)
}

/// A time in which NVML reports events. Its drop begins a time without a listener.
struct Listening<'a>(&'a Gpus);

impl<'a> Listening<'a> {
    fn begin(gpus: &'a Gpus) -> Self {
        gpus.event_gaps.fetch_add(1, Ordering::SeqCst);
        Self(gpus)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.event_gaps.fetch_add(1, Ordering::SeqCst);
    }
}

/// The boards of an event set.
#[derive(Default)]
struct RegisteredBoards {
    boards: HashSet<String>,
    /// Boards without events.
    mute: HashSet<String>,
    /// Boards whose registration may have ended with a change of their MIG mode.
    outdated: HashSet<String>,
}

impl RegisteredBoards {
    /// Registers the known boards that are not in the set, and the outdated ones anew.
    fn register(&mut self, gpus: &Gpus) {
        for BoardInfo { uuid, .. } in gpus.known_boards() {
            let is_registered = self.boards.contains(&uuid) && !self.outdated.contains(&uuid);
            if self.mute.contains(&uuid) || is_registered {
                continue;
            }
            match gpus.calls.read(&uuid, RegisterEvents { gpu_uuid: uuid.clone() }) {
                Ok(()) => {
                    self.outdated.remove(&uuid);
                    self.boards.insert(uuid);
                }
                Err(GpuError::NotSupported) => {
                    tracing::warn!(uuid, "this board has no events");
                    self.mute.insert(uuid);
                }
                // Registration is tried again later.
                Err(error) => tracing::debug!(uuid, %error, "events cannot be requested"),
            }
        }
    }
}

fn board_event(gpus: &Gpus, event: NvmlEvent) -> BoardEvent {
    let NvmlEvent { gpu_uuid, kind, gpu_instance } = event;
    let start = gpu_instance.and_then(|instance| {
        // If the board does not answer any more, the event counts for the whole board.
        let slices = gpus.slices(&gpu_uuid).unwrap_or_default();
        slices.iter().find(|slice| slice.gi == instance).map(|slice| slice.start)
    });
    BoardEvent { gpu_uuid, kind, start }
}

/// Passes events of boards to `send` until that returns `false`. Blocks.
pub fn watch(gpus: &Gpus, mut send: impl FnMut(BoardEvent) -> bool) {
    gpus.calls.wait_for_start();
    let session = gpus.calls.session();
    loop {
        // A set ends with the session: a reset waits for the end of this use.
        let in_use = session.enter_when_open();
        let pause = match gpus.calls.listen(&in_use, OpenEvents {}) {
            Ok(()) => match pass_events(gpus, &in_use, &mut send) {
                Passed::Refused => return,
                Passed::Failed => PAUSE,
                // The wait for the end of the reset is above.
                Passed::Closed => Duration::ZERO,
            },
            Err(GpuError::NotSupported) => {
                tracing::warn!("the driver has no events; boards are only polled");
                return;
            }
            // The helper process is about to start again.
            Err(GpuError::Unresponsive) => PAUSE,
            Err(error) => {
                tracing::warn!(%error, "events of boards are unavailable; trying again");
                REGISTER_EVERY
            }
        };
        drop(in_use);
        std::thread::sleep(pause);
    }
}

/// The end of an event set.
enum Passed {
    /// The receiver wants no more events.
    Refused,
    /// The wait failed.
    Failed,
    /// The session closes for a reset.
    Closed,
}

/// Passes the events of a set, until the receiver refuses one, the wait fails or a reset needs the session.
fn pass_events(gpus: &Gpus, in_use: &SessionUse, send: &mut impl FnMut(BoardEvent) -> bool) -> Passed {
    let mut set = RegisteredBoards::default();
    let mut registered: Option<Instant> = None;
    let mut listening = None;
    loop {
        if gpus.calls.session().is_closed() {
            return Passed::Closed;
        }
        if registered.is_none_or(|at| at.elapsed() >= REGISTER_EVERY) {
            if gpus.known_boards().is_empty()
                && let Err(error) = gpus.inventory()
            {
                tracing::debug!(%error, "no boards for events");
            }
            set.register(gpus);
            registered = Some(Instant::now());
            listening.get_or_insert_with(|| Listening::begin(gpus));
        }
        match gpus.calls.listen(in_use, WaitForEvent {}) {
            Ok(waited) => {
                if !waited.switched.is_empty() {
                    set.outdated.extend(waited.switched);
                    registered = None;
                }
                if waited.event.is_some_and(|event| !send(board_event(gpus, event))) {
                    return Passed::Refused;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "waiting for events failed");
                return Passed::Failed;
            }
        }
    }
}
