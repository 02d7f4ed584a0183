//! What boards tell by themselves: XIDs and memory errors, through an event set of NVML's.
//!
//! Only tells; what follows from it is decided elsewhere (`xids`, and the daemon). It waits in a thread of
//! its own, and boards are registered through their lanes, so that one that hangs keeps nobody from
//! hearing of the others.

#![expect(unsafe_code, reason = "the wrapper's event leaves out which slice it happened on")]

use std::collections::{HashMap, HashSet};
use std::ptr::with_exposed_provenance_mut;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlEventData_t, nvmlEventSet_t};

use super::library::Library;
use super::{GpuError, Gpus, from_code};

/// `nvmlEventTypeXidCriticalError` and `nvmlEventTypeDoubleBitEccError`.
const XID: u64 = 0x8;
const DOUBLE_BIT: u64 = 0x2;
/// How long one wait takes when nothing happens, in milliseconds.
const WAIT_MS: u32 = 1_000;
/// Boards that could not be registered are tried again after this long.
const AGAIN: Duration = Duration::from_secs(10);
/// After a wait that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// `NVML_ERROR_TIMEOUT`.
const TIMEOUT: u32 = 10;

/// What happened to a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Xid(u64),
    /// ECC found an error that it could not correct.
    Uncorrected,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happening {
    pub gpu_uuid: String,
    pub what: What,
    /// The start of the slice that it happened on; absent: the board, or it is not known.
    pub start: Option<u32>,
}

/// An event set with the boards in it. Handles are kept as numbers: only the library follows them.
struct Set {
    lib: &'static NvmlLib,
    handle: usize,
    boards: HashMap<usize, String>,
    /// Boards that cannot tell anything.
    mute: HashSet<String>,
}

impl Drop for Set {
    fn drop(&mut self) {
        if let Ok(symbol) = &self.lib.nvmlEventSetFree {
            // SAFETY: the set was made by this library and is freed once.
            let _ = unsafe { symbol(self.pointer()) };
        }
    }
}

impl Set {
    fn open(lib: &'static NvmlLib) -> Result<Self, GpuError> {
        let symbol = lib.nvmlEventSetCreate.as_ref().map_err(|_| GpuError::NotSupported)?;
        let mut set: nvmlEventSet_t = std::ptr::null_mut();
        // SAFETY: the out-pointer is to a local.
        match unsafe { symbol(&raw mut set) } {
            0 => {
                let handle = set.expose_provenance();
                Ok(Self { lib, handle, boards: HashMap::new(), mute: HashSet::new() })
            }
            other => Err(from_code(other)),
        }
    }

    fn pointer(&self) -> nvmlEventSet_t {
        with_exposed_provenance_mut(self.handle)
    }

    /// Brings in the boards that are not in it.
    fn register(&mut self, gpus: &Gpus) {
        let set = self.handle;
        for uuid in gpus.known() {
            if self.mute.contains(&uuid) || self.boards.values().any(|known| *known == uuid) {
                continue;
            }
            let of = uuid.clone();
            match gpus.look(&uuid, move |library| library.register(&of, set)) {
                Ok(device) => {
                    self.boards.insert(device, uuid);
                }
                Err(GpuError::NotSupported) => {
                    tracing::warn!(uuid, "this board tells no events");
                    self.mute.insert(uuid);
                }
                // It is tried again.
                Err(error) => tracing::debug!(uuid, %error, "events cannot be asked for"),
            }
        }
    }

    /// The next event; `None` when nothing happened for a while.
    fn wait(&self) -> Result<Option<nvmlEventData_t>, GpuError> {
        let symbol = self.lib.nvmlEventSetWait_v2.as_ref().map_err(|_| GpuError::NotSupported)?;
        // SAFETY: a plain C struct, for which zeroes are a value.
        let mut data: nvmlEventData_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set was made by this library, and the pointer is to a local.
        match unsafe { symbol(self.pointer(), &raw mut data, WAIT_MS) } {
            0 => Ok(Some(data)),
            TIMEOUT => Ok(None),
            other => Err(from_code(other)),
        }
    }
}

impl Library {
    /// Registers a board with a set; the handle by which events name it.
    fn register(&self, gpu_uuid: &str, set: usize) -> Result<usize, GpuError> {
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

fn happening(gpus: &Gpus, set: &Set, data: &nvmlEventData_t) -> Option<Happening> {
    let what = match data.eventType {
        XID => What::Xid(data.eventData),
        DOUBLE_BIT => What::Uncorrected,
        _ => return None,
    };
    let gpu_uuid = set.boards.get(&data.device.addr())?.clone();
    let slices = match data.gpuInstanceId {
        u32::MAX => Vec::new(),
        // A board that cannot be asked any more: then it is the board.
        _ => gpus.slices(&gpu_uuid).unwrap_or_default(),
    };
    let start = slices.iter().find(|slice| slice.gi == data.gpuInstanceId).map(|slice| slice.start);
    Some(Happening { gpu_uuid, what, start })
}

/// Tells what happens to the boards for as long as `tell` says that somebody listens. Blocks.
pub fn watch(gpus: &Gpus, mut tell: impl FnMut(Happening) -> bool) {
    // Nothing is to be heard before it has started.
    let lib: &'static NvmlLib = gpus.library.wait().nvml.lib();
    loop {
        let mut set = match Set::open(lib) {
            Ok(set) => set,
            Err(GpuError::NotSupported) => {
                tracing::warn!("this driver tells no events; boards are only looked at");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "no events of boards");
                std::thread::sleep(AGAIN);
                continue;
            }
        };
        let mut looked: Option<Instant> = None;
        loop {
            if looked.is_none_or(|at| at.elapsed() >= AGAIN) {
                if gpus.known().is_empty()
                    && let Err(error) = gpus.inventory()
                {
                    tracing::debug!(%error, "no boards to hear of");
                }
                set.register(gpus);
                looked = Some(Instant::now());
            }
            match set.wait() {
                Ok(None) => {}
                Ok(Some(data)) => {
                    let happened = happening(gpus, &set, &data);
                    if happened.is_some_and(|happened| !tell(happened)) {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "waiting for events failed");
                    break;
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
}
