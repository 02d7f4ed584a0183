//! NVML calls about the library, boards and MIG devices: inventory, readings, processes, MIG mode.

use std::ffi::{CStr, c_char, c_uint};
use std::ptr::without_provenance_mut;

use berth_mig::Board;
use nvml_wrapper_sys::bindings::{
    self, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlProcessInfo_t,
    nvmlUtilization_t,
};

use crate::clients;
use crate::fault::Fault;
use crate::load::{ClientKind, fresh, memory_bytes, recent, utilization_percent};
use crate::sheets::data_sheet;
use crate::world::{SimBoard, change, look};
use crate::{answer, put, put_rows, put_text};

/// What an opaque handle names. Handles are numbers dressed as pointers and never followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handle {
    Board(usize),
    /// A MIG device: board and GPU instance.
    Mig(usize, u32),
    Instance(usize, u32),
    Compute(usize, u32),
}

impl Handle {
    pub fn dress<T>(self) -> *mut T {
        let (kind, board, id) = match self {
            Self::Board(board) => (1, board, 0),
            Self::Mig(board, id) => (2, board, id),
            Self::Instance(board, id) => (3, board, id),
            Self::Compute(board, id) => (4, board, id),
        };
        without_provenance_mut(kind << 28 | (board & 0xfff) << 16 | (id as usize & 0xffff))
    }

    pub fn read<T>(handle: *mut T) -> Result<Self, Fault> {
        let value = handle.addr();
        let (board, id) = ((value >> 16) & 0xfff, (value & 0xffff) as u32);
        match value >> 28 {
            1 => Ok(Self::Board(board)),
            2 => Ok(Self::Mig(board, id)),
            3 => Ok(Self::Instance(board, id)),
            4 => Ok(Self::Compute(board, id)),
            _ => Err(Fault::InvalidArgument),
        }
    }
}

/// Runs `work` on the board that a handle names; a MIG device's GPU instance id comes with it.
pub fn on_board<R>(
    device: nvmlDevice_t,
    work: impl FnOnce(&SimBoard, &'static Board, Option<u32>) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let (index, instance) = match Handle::read(device)? {
        Handle::Board(index) => (index, None),
        Handle::Mig(index, id) => (index, Some(id)),
        _ => return Err(Fault::InvalidArgument),
    };
    look(|world| {
        let sim = world.board(index)?;
        let board = sim.board()?;
        if let Some(id) = instance {
            sim.instance(id)?;
        }
        work(sim, board, instance)
    })
}

/// Like [`on_board`], for what only a whole board answers.
pub fn on_whole_board<R>(
    device: nvmlDevice_t,
    work: impl FnOnce(&SimBoard, &'static Board) -> Result<R, Fault>,
) -> Result<R, Fault> {
    on_board(device, |sim, board, instance| match instance {
        None => work(sim, board),
        Some(_) => Err(Fault::InvalidArgument),
    })
}

/// The UUIDs under which processes may hold what the handle names: a slice, or a board with all its
/// slices.
pub fn device_uuids(sim: &SimBoard, instance: Option<u32>) -> Vec<String> {
    let slices = sim.instances.iter().filter(|i| instance.is_none_or(|id| id == i.id));
    let mut uuids: Vec<String> = slices.filter_map(|i| i.compute.as_ref().map(|c| c.uuid.clone())).collect();
    if instance.is_none() {
        uuids.push(sim.uuid.clone());
    }
    uuids
}

fn memory_used(sim: &SimBoard, instance: Option<u32>) -> u64 {
    let scan = recent();
    device_uuids(sim, instance).iter().map(|uuid| scan.load(uuid).memory_bytes).sum()
}

/// The bytes of a board or of a slice.
struct Bytes {
    total: u64,
    /// Kept by the driver.
    reserved: u64,
    /// Used by processes.
    used: u64,
}

impl Bytes {
    fn free(&self) -> u64 {
        self.total.saturating_sub(self.reserved).saturating_sub(self.used)
    }
}

fn memory(sim: &SimBoard, board: &'static Board, instance: Option<u32>) -> Result<Bytes, Fault> {
    let (total_mib, reserved_mib) = match instance {
        None => (board.total_memory_mib, data_sheet(board)?.reserved_mib),
        Some(id) => (board.profile(sim.instance(id)?.placed.profile_id).ok_or(Fault::Unknown)?.memory_mib, 0),
    };
    let (total, reserved) = (total_mib << 20, reserved_mib << 20);
    Ok(Bytes { total, reserved, used: memory_used(sim, instance).min(total.saturating_sub(reserved)) })
}

/// How busy a board is with everything on it.
pub fn busy_percent(sim: &SimBoard) -> u32 {
    let scan = recent();
    let busy = device_uuids(sim, None).iter().map(|u| utilization_percent(u, scan.load(u))).sum::<u32>();
    busy.min(100)
}

/// The temperature of a board with everything on it.
pub fn celsius(sim: &SimBoard) -> u32 {
    31 + busy_percent(sim) * 44 / 100
}

/// The processes of a kind on what the handle names.
pub fn process_rows(device: nvmlDevice_t, kind: ClientKind) -> Result<Vec<nvmlProcessInfo_t>, Fault> {
    on_board(device, |sim, _, instance| {
        // Programs ask for the kinds one after the other, so the later kinds share the scan of the first.
        let scan = if kind == ClientKind::Compute { fresh() } else { recent() };
        let mut rows = Vec::new();
        for uuid in device_uuids(sim, instance) {
            let on = sim.instances.iter().find(|i| i.compute.as_ref().is_some_and(|c| c.uuid == uuid));
            let id = on.map_or(u32::MAX, |i| i.id);
            rows.extend(scan.clients(&uuid, kind).into_iter().map(|pid| nvmlProcessInfo_t {
                pid,
                usedGpuMemory: memory_bytes(pid),
                gpuInstanceId: id,
                computeInstanceId: if on.is_some() { 0 } else { u32::MAX },
            }));
        }
        Ok(rows)
    })
}

/// Writes processes like [`put_rows`].
///
/// # Safety
/// `count` is null or valid, and `out` is null or valid for `*count` rows.
pub unsafe fn put_processes(
    count: *mut c_uint,
    out: *mut nvmlProcessInfo_t,
    rows: &[nvmlProcessInfo_t],
) -> Result<(), Fault> {
    if count.is_null() {
        return Err(Fault::InvalidArgument);
    }
    // SAFETY: not null, and the rest by this function's contract.
    unsafe { put_rows(count, out, rows) }
}

macro_rules! nvml {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> c_uint {
            answer(|| $body)
        }
    )*};
}
pub(crate) use nvml;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_uint) -> *const c_char {
    let text = match code {
        bindings::nvmlReturn_enum_NVML_SUCCESS => c"Success",
        bindings::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => c"Uninitialized",
        bindings::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => c"Invalid Argument",
        bindings::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => c"Not Supported",
        bindings::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => c"Insufficient Permissions",
        bindings::nvmlReturn_enum_NVML_ERROR_NOT_FOUND => c"Not Found",
        bindings::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE => c"Insufficient Size",
        bindings::nvmlReturn_enum_NVML_ERROR_TIMEOUT => c"Timeout",
        bindings::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => c"GPU is lost",
        bindings::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED => c"GPU requires reset",
        bindings::nvmlReturn_enum_NVML_ERROR_IN_USE => c"In use by another client",
        bindings::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES => c"Insufficient Resources",
        bindings::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM => {
            c"The operating system has blocked the request"
        }
        bindings::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH => c"Argument version mismatch",
        bindings::nvmlReturn_enum_NVML_ERROR_DEPRECATED => c"Requested functionality has been deprecated",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

nvml! {
    fn nvmlInit_v2() {
        look(|_| Ok(()))?;
        clients::start()
    }
    fn nvmlInitWithFlags(_flags: c_uint) {
        look(|_| Ok(()))?;
        clients::start()
    }
    fn nvmlShutdown() { clients::end() }

    fn nvmlSystemGetDriverVersion(out: *mut c_char, length: c_uint) {
        // SAFETY: the caller's buffer is valid for `length` bytes.
        unsafe { put_text(out, length, "580.00-sim") }
    }
    fn nvmlSystemGetNVMLVersion(out: *mut c_char, length: c_uint) {
        // SAFETY: the caller's buffer is valid for `length` bytes.
        unsafe { put_text(out, length, "13.580.00") }
    }

    fn nvmlDeviceGetCount_v2(out: *mut c_uint) {
        let count = look(|world| u32::try_from(world.boards.len()).map_err(|_| Fault::Unknown))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, count) }
    }
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut nvmlDevice_t) {
        look(|world| world.board(index as usize).map(|_| ()))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, Handle::Board(index as usize).dress()) }
    }
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut nvmlDevice_t) {
        if uuid.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and NUL-terminated by NVML's contract.
        let uuid = unsafe { CStr::from_ptr(uuid) }.to_str().map_err(|_| Fault::InvalidArgument)?;
        let handle = look(|world| {
            let found = world.boards.iter().enumerate().find_map(|(i, board)| {
                if board.uuid == uuid {
                    return Some((i, Handle::Board(i)));
                }
                let slice = board.instances.iter().find(|s| s.compute.as_ref().is_some_and(|c| c.uuid == uuid))?;
                Some((i, Handle::Mig(i, slice.id)))
            });
            let (index, handle) = found.ok_or(Fault::NotFound)?;
            world.board(index)?;
            Ok(handle)
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, handle.dress()) }
    }

    fn nvmlDeviceGetName(device: nvmlDevice_t, out: *mut c_char, length: c_uint) {
        let name = on_board(device, |sim, board, instance| {
            let name = board.names.first().map_or(board.model.as_str(), String::as_str);
            let Some(id) = instance else { return Ok(name.to_owned()) };
            let profile = board.profile(sim.instance(id)?.placed.profile_id).ok_or(Fault::Unknown)?;
            Ok(format!("{name} MIG {}", profile.name))
        })?;
        // SAFETY: the caller's buffer is valid for `length` bytes.
        unsafe { put_text(out, length, &name) }
    }
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, out: *mut c_char, length: c_uint) {
        let uuid = on_board(device, |sim, _, instance| match instance {
            None => Ok(sim.uuid.clone()),
            Some(id) => sim.instance(id)?.compute.as_ref().map(|c| c.uuid.clone()).ok_or(Fault::NotFound),
        })?;
        // SAFETY: the caller's buffer is valid for `length` bytes.
        unsafe { put_text(out, length, &uuid) }
    }
    fn nvmlDeviceGetIndex(device: nvmlDevice_t, out: *mut c_uint) {
        let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, index as c_uint) }
    }
    fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, out: *mut c_uint) {
        let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, index as c_uint) }
    }

    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, out: *mut nvmlMemory_t) {
        let bytes = on_board(device, memory)?;
        // This version of the call counts the memory of the driver as used.
        let used = bytes.reserved + bytes.used;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, nvmlMemory_t { total: bytes.total, free: bytes.free(), used }) }
    }
    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, out: *mut nvmlMemory_v2_t) {
        if out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        let version = (size_of::<nvmlMemory_v2_t>() | 2 << 24) as c_uint;
        // SAFETY: not null, and the caller has set its version.
        if unsafe { (*out).version } != version {
            return Err(Fault::VersionMismatch);
        }
        let bytes = on_board(device, memory)?;
        let (free, Bytes { total, reserved, used }) = (bytes.free(), bytes);
        // SAFETY: not null, and valid by NVML's contract.
        unsafe { put(out, nvmlMemory_v2_t { version, total, reserved, free, used }) }
    }
    fn nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, out: *mut nvmlUtilization_t) {
        // Under MIG the driver reports none, for boards and slices alike.
        let rates = on_whole_board(device, |sim, board| {
            if sim.mig {
                return Err(Fault::NotSupported);
            }
            let memory = memory_used(sim, None) * 100 / (board.total_memory_mib << 20).max(1);
            Ok(nvmlUtilization_t { gpu: busy_percent(sim), memory: memory.min(100) as c_uint })
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, rates) }
    }
    fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, out: *mut c_uint) {
        let drawn = on_whole_board(device, |sim, board| {
            let sheet = data_sheet(board)?;
            let (idle, most) = (sheet.idle_watts * 1_000, sheet.default_watts * 1_000);
            Ok(idle + most.saturating_sub(idle) / 100 * busy_percent(sim))
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, drawn) }
    }
    fn nvmlDeviceGetTemperature(device: nvmlDevice_t, sensor: c_uint, out: *mut c_uint) {
        if sensor != 0 {
            return Err(Fault::InvalidArgument);
        }
        let degrees = on_whole_board(device, |sim, _| Ok(celsius(sim)))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, degrees) }
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t) {
        let rows = process_rows(device, ClientKind::Compute)?;
        // SAFETY: null or valid, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_processes(count, out, &rows) }
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t) {
        let rows = process_rows(device, ClientKind::Graphics)?;
        // SAFETY: null or valid, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_processes(count, out, &rows) }
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t) {
        let rows = process_rows(device, ClientKind::Mps)?;
        // SAFETY: null or valid, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_processes(count, out, &rows) }
    }

    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let (is, will) = on_whole_board(device, |sim, board| {
            if board.profiles.is_empty() { Err(Fault::NotSupported) } else { Ok((sim.mig, sim.mig_pending)) }
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe {
            put(current, c_uint::from(is))?;
            put(pending, c_uint::from(will))
        }
    }
    fn nvmlDeviceSetMigMode(device: nvmlDevice_t, mode: c_uint, status: *mut c_uint) {
        if mode > 1 {
            return Err(Fault::InvalidArgument);
        }
        let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
        let scan = fresh();
        let activation = change(|world| {
            world.may_administer()?;
            if world.board(index)?.board()?.profiles.is_empty() {
                return Err(Fault::NotSupported);
            }
            let uuids = device_uuids(world.board(index)?, None);
            let is_held = |uuid: &String| world.faults.holds(uuid) || !scan.pids(uuid).is_empty();
            let idle = !uuids.iter().any(is_held);
            world.board_mut(index)?.switch_mig(mode == 1, idle)
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(status, activation) }
    }
    fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, out: *mut c_uint) {
        let is = matches!(Handle::read(device)?, Handle::Mig(..));
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, c_uint::from(is)) }
    }
    fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, out: *mut c_uint) {
        let most = on_whole_board(device, |_, board| Ok(board.compute_slices))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, most) }
    }
    fn nvmlDeviceGetMigDeviceHandleByIndex(device: nvmlDevice_t, index: c_uint, out: *mut nvmlDevice_t) {
        let Handle::Board(board) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
        let id = on_whole_board(device, |sim, _| {
            let mut usable = sim.instances.iter().filter(|i| i.compute.is_some());
            usable.nth(index as usize).map(|i| i.id).ok_or(Fault::NotFound)
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, Handle::Mig(board, id).dress()) }
    }
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: nvmlDevice_t, out: *mut nvmlDevice_t) {
        let Handle::Mig(board, _) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, Handle::Board(board).dress()) }
    }
    fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, out: *mut c_uint) {
        let id = on_board(device, |_, _, instance| instance.ok_or(Fault::InvalidArgument))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, id) }
    }
    fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, out: *mut c_uint) {
        on_board(device, |_, _, instance| instance.ok_or(Fault::InvalidArgument))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, 0) }
    }
    fn nvmlDeviceGetAttributes_v2(device: nvmlDevice_t, out: *mut nvmlDeviceAttributes_t) {
        let attributes = on_board(device, |sim, board, instance| {
            let id = instance.ok_or(Fault::InvalidArgument)?;
            let placed = sim.instance(id)?.placed;
            let p = board.profile(placed.profile_id).ok_or(Fault::Unknown)?;
            Ok(nvmlDeviceAttributes_t {
                multiprocessorCount: p.sm,
                sharedCopyEngineCount: p.copy_engines,
                sharedDecoderCount: p.decoders,
                sharedEncoderCount: p.encoders,
                sharedJpegCount: p.jpeg,
                sharedOfaCount: p.ofa,
                gpuInstanceSliceCount: p.compute,
                computeInstanceSliceCount: p.compute,
                memorySizeMB: p.memory_mib,
            })
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, attributes) }
    }
}
