//! Events of boards: XIDs and memory errors, through an event set of NVML.
//!
//! A thread of its own waits for them. Each board is registered on its own executor, so a hanging board delays no
//! events of others.

#![expect(unsafe_code, reason = "the wrapper's event leaves out which slice it happened on")]

use std::collections::{HashMap, HashSet};
use std::ptr::with_exposed_provenance_mut;
use std::time::{Duration, Instant};

use berth_system::sync::lock;
use nvml_wrapper_sys::bindings::{self, NvmlLib, nvmlEventData_t, nvmlEventSet_t};

use super::board::BoardInfo;
use super::error::{GpuError, from_code};
use super::gpus::Gpus;
use super::library::Library;

/// Bits of kinds of events.
const XID: u64 = bindings::nvmlEventTypeXidCriticalError as u64;
const DOUBLE_BIT: u64 = bindings::nvmlEventTypeDoubleBitEccError as u64;
/// The longest wait for an event, in milliseconds.
const WAIT_MS: u32 = 1_000;
/// The time between two tries to register a board.
const REGISTER_EVERY: Duration = Duration::from_secs(10);
/// The pause after a failed wait.
const PAUSE: Duration = Duration::from_secs(1);

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoardEventKind {
    Xid(u64),
    /// An uncorrected ECC error.
    Uncorrected,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardEvent {
    pub gpu_uuid: String,
    pub kind: BoardEventKind,
    /// The start of the affected slice. Absent: the board, or an unknown slice.
    pub start: Option<u32>,
}

/// An event set with its boards. Handles are numbers here: only the library dereferences them.
struct EventSet {
    lib: &'static NvmlLib,
    handle: usize,
    boards: HashMap<usize, String>,
    /// Boards without events.
    mute: HashSet<String>,
    /// Boards whose registration may have ended with a change of their MIG mode.
    outdated: HashSet<String>,
}

impl Drop for EventSet {
    fn drop(&mut self) {
        if let Ok(symbol) = &self.lib.nvmlEventSetFree {
            // SAFETY: the set was made by this library and is freed once.
            let _ = unsafe { symbol(self.pointer()) };
        }
    }
}

impl EventSet {
    fn open(lib: &'static NvmlLib) -> Result<Self, GpuError> {
        let symbol = lib.nvmlEventSetCreate.as_ref().map_err(|_| GpuError::NotSupported)?;
        let mut set: nvmlEventSet_t = std::ptr::null_mut();
        // SAFETY: the out-pointer is to a local.
        match unsafe { symbol(&raw mut set) } {
            0 => {
                let handle = set.expose_provenance();
                Ok(Self {
                    lib,
                    handle,
                    boards: HashMap::new(),
                    mute: HashSet::new(),
                    outdated: HashSet::new(),
                })
            }
            other => Err(from_code(other)),
        }
    }

    fn pointer(&self) -> nvmlEventSet_t {
        with_exposed_provenance_mut(self.handle)
    }

    /// Registers the known boards that are not in the set, and the outdated ones anew. Their earlier handles stay known
    /// for events on the way.
    fn register(&mut self, gpus: &Gpus) {
        let set = self.handle;
        for BoardInfo { uuid, .. } in gpus.known_boards() {
            let is_registered = self.boards.values().any(|known| *known == uuid);
            if self.mute.contains(&uuid) || (is_registered && !self.outdated.contains(&uuid)) {
                continue;
            }
            let gpu = uuid.clone();
            match gpus.calls.read(&uuid, move |library| library.register_events(&gpu, set)) {
                Ok(device) => {
                    self.outdated.remove(&uuid);
                    self.boards.insert(device, uuid);
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

    /// The next event. `None`: none came within the wait.
    fn wait(&self) -> Result<Option<nvmlEventData_t>, GpuError> {
        let symbol = self.lib.nvmlEventSetWait_v2.as_ref().map_err(|_| GpuError::NotSupported)?;
        // SAFETY: a plain C struct, for which zeroes are a value.
        let mut data: nvmlEventData_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set was made by this library, and the pointer is to a local.
        match unsafe { symbol(self.pointer(), &raw mut data, WAIT_MS) } {
            0 => Ok(Some(data)),
            bindings::nvmlReturn_enum_NVML_ERROR_TIMEOUT => Ok(None),
            other => Err(from_code(other)),
        }
    }
}

impl Library {
    /// Registers a board with a set. Returns the handle that events carry.
    fn register_events(&self, gpu_uuid: &str, set: usize) -> Result<usize, GpuError> {
        let device = self.device(gpu_uuid)?;
        let lib = self.nvml.lib();
        let supported = lib.nvmlDeviceGetSupportedEventTypes.as_ref().map_err(|_| GpuError::NotSupported)?;
        let register = lib.nvmlDeviceRegisterEvents.as_ref().map_err(|_| GpuError::NotSupported)?;
        // SAFETY: the handle is used only for the calls below.
        let handle = unsafe { device.handle() };
        let mut types = 0;
        // SAFETY: the handle comes from this library, and the pointer is to a local.
        match unsafe { supported(handle, &raw mut types) } {
            0 => {}
            other => return Err(from_code(other)),
        }
        let wanted = types & (XID | DOUBLE_BIT);
        if wanted == 0 {
            return Err(GpuError::NotSupported);
        }
        // SAFETY: handle and set come from this library.
        match unsafe { register(handle, wanted, with_exposed_provenance_mut(set)) } {
            0 => Ok(handle.addr()),
            other => Err(from_code(other)),
        }
    }
}

fn event_from_data(gpus: &Gpus, set: &EventSet, data: &nvmlEventData_t) -> Option<BoardEvent> {
    let kind = match data.eventType {
        XID => BoardEventKind::Xid(data.eventData),
        DOUBLE_BIT => BoardEventKind::Uncorrected,
        _ => return None,
    };
    let gpu_uuid = set.boards.get(&data.device.addr())?.clone();
    let slices = match data.gpuInstanceId {
        u32::MAX => Vec::new(),
        // If the board does not answer any more, the event counts for the whole board.
        _ => gpus.slices(&gpu_uuid).unwrap_or_default(),
    };
    let start = slices.iter().find(|slice| slice.gi == data.gpuInstanceId).map(|slice| slice.start);
    Some(BoardEvent { gpu_uuid, kind, start })
}

/// Passes events of boards to `send` until that returns `false`. Blocks.
pub fn watch(gpus: &Gpus, mut send: impl FnMut(BoardEvent) -> bool) {
    let library = gpus.calls.wait_for_library();
    let lib: &'static NvmlLib = library.nvml.lib();
    let session = gpus.calls.session();
    loop {
        // A set ends with the session: a reset waits for the end of this use.
        let in_use = session.enter_when_open();
        let pause = match EventSet::open(lib) {
            Ok(set) => match pass_events(gpus, &library, set, &mut send) {
                Passed::Refused => return,
                Passed::Failed => PAUSE,
                // The wait for the end of the reset is above.
                Passed::Closed => Duration::ZERO,
            },
            Err(GpuError::NotSupported) => {
                tracing::warn!("the driver has no events; boards are only polled");
                return;
            }
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
fn pass_events(
    gpus: &Gpus,
    library: &Library,
    mut set: EventSet,
    send: &mut impl FnMut(BoardEvent) -> bool,
) -> Passed {
    let mut registered: Option<Instant> = None;
    loop {
        if gpus.calls.session().is_closed() {
            return Passed::Closed;
        }
        let switched = std::mem::take(&mut *lock(&library.switched));
        if !switched.is_empty() || registered.is_none_or(|at| at.elapsed() >= REGISTER_EVERY) {
            if gpus.known_boards().is_empty()
                && let Err(error) = gpus.inventory()
            {
                tracing::debug!(%error, "no boards for events");
            }
            set.outdated.extend(switched);
            set.register(gpus);
            registered = Some(Instant::now());
        }
        match set.wait() {
            Ok(None) => {}
            Ok(Some(data)) => {
                let event = event_from_data(gpus, &set, &data);
                if event.is_some_and(|event| !send(event)) {
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
