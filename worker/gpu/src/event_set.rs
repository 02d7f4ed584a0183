//! The set in which NVML collects events of boards: XIDs and memory errors.

#![expect(unsafe_code, reason = "the wrapper's event leaves out which slice it happened on")]

use std::collections::{HashMap, HashSet};
use std::ptr::with_exposed_provenance_mut;
use std::time::Duration;

use berth_system::sync::lock;
use nvml_wrapper_sys::bindings::{self, nvmlEventData_t, nvmlEventSet_t};
use serde::{Deserialize, Serialize};

use super::error::{GpuError, from_code};
use super::library::{EventSet, Library};

/// Bits of kinds of events.
const XID: u64 = bindings::nvmlEventTypeXidCriticalError as u64;
const DOUBLE_BIT: u64 = bindings::nvmlEventTypeDoubleBitEccError as u64;
/// The longest wait for an event, in milliseconds.
const WAIT_MS: u32 = 1_000;
/// The time limit of a call for events, with that wait.
pub const EVENT_LIMIT: Duration = Duration::from_secs(6);

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BoardEventKind {
    Xid(u64),
    /// An uncorrected ECC error.
    Uncorrected,
}

/// An event as NVML reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlEvent {
    pub gpu_uuid: String,
    pub kind: BoardEventKind,
    /// Absent: the board, or an unknown slice.
    pub gpu_instance: Option<u32>,
}

/// The result of one wait.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EventWait {
    /// `None`: none came within the wait.
    pub event: Option<NvmlEvent>,
    /// Boards whose registration may have ended with a change of their MIG mode.
    pub switched: HashSet<String>,
}

fn no_set() -> GpuError {
    GpuError::NotFound("the set of events".to_owned())
}

/// Opens a set without boards in place of the present one.
pub fn open_events(library: &Library) -> Result<(), GpuError> {
    let lib = library.nvml.lib();
    let create = lib.nvmlEventSetCreate.as_ref().map_err(|_| GpuError::NotSupported)?;
    let mut set: nvmlEventSet_t = std::ptr::null_mut();
    // SAFETY: the out-pointer is to a local.
    match unsafe { create(&raw mut set) } {
        0 => {}
        other => return Err(from_code(other)),
    }
    let opened = EventSet { handle: set.expose_provenance(), boards: HashMap::new() };
    let former = lock(&library.event_set).replace(opened);
    if let (Some(former), Ok(free)) = (former, lib.nvmlEventSetFree.as_ref()) {
        // SAFETY: the set was made by this library and is freed once.
        let _ = unsafe { free(with_exposed_provenance_mut(former.handle)) };
    }
    Ok(())
}

fn event_handle(library: &Library) -> Result<usize, GpuError> {
    lock(&library.event_set).as_ref().map(|set| set.handle).ok_or_else(no_set)
}

/// Registers a board with the present set.
pub fn register_events(library: &Library, gpu_uuid: &str) -> Result<(), GpuError> {
    let set = event_handle(library)?;
    let device = library.device(gpu_uuid)?;
    let lib = library.nvml.lib();
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
        0 => {}
        other => return Err(from_code(other)),
    }
    let mut present = lock(&library.event_set);
    let present = present.as_mut().filter(|present| present.handle == set).ok_or_else(no_set)?;
    present.boards.insert(handle.addr(), gpu_uuid.to_owned());
    Ok(())
}

/// Waits for the next event of the present set.
pub fn next_event(library: &Library) -> Result<EventWait, GpuError> {
    let set = event_handle(library)?;
    let wait = library.nvml.lib().nvmlEventSetWait_v2.as_ref().map_err(|_| GpuError::NotSupported)?;
    // SAFETY: a plain C struct, for which zeroes are a value.
    let mut data: nvmlEventData_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set was made by this library, and the pointer is to a local.
    let event = match unsafe { wait(with_exposed_provenance_mut(set), &raw mut data, WAIT_MS) } {
        0 => known_event(library, &data),
        bindings::nvmlReturn_enum_NVML_ERROR_TIMEOUT => None,
        other => return Err(from_code(other)),
    };
    let switched = std::mem::take(&mut *lock(&library.switched));
    Ok(EventWait { event, switched })
}

fn known_event(library: &Library, data: &nvmlEventData_t) -> Option<NvmlEvent> {
    let kind = match data.eventType {
        XID => BoardEventKind::Xid(data.eventData),
        DOUBLE_BIT => BoardEventKind::Uncorrected,
        _ => return None,
    };
    let gpu_uuid = lock(&library.event_set).as_ref()?.boards.get(&data.device.addr())?.clone();
    let gpu_instance = Some(data.gpuInstanceId).filter(|id| *id != u32::MAX);
    Some(NvmlEvent { gpu_uuid, kind, gpu_instance })
}
