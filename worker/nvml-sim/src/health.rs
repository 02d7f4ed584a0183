//! NVML calls about how a board is: ECC, replaced memory, what holds its clocks back, traffic, energy.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    field_id, nvmlDevice_t, nvmlEnableState_t, nvmlFieldValue_t,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED as CORRECTED,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED as UNCORRECTED,
    nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DEVICE_MEMORY as DEVICE_MEMORY, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
};

use crate::boards::{Handle, busy_percent, nvml, on_whole_board};
use crate::fault::Fault;
use crate::faults::{Ecc, Remapped, now_ms};
use crate::nvlink::has_links;
use crate::sheets::data_sheet;
use crate::world::{SimBoard, look};
use crate::{answer, put, put_text};

/// KiB a second that a board moves over PCIe for each percent that it is busy.
const PCIE_KIB_A_PERCENT: u32 = 4_096;

/// The bits of all nine reasons that hold clocks back.
const ALL_REASONS: c_ulonglong = 0x1ff;
/// The last of `NVML_MEMORY_LOCATION_*`.
const LAST_LOCATION: c_uint = 7;

/// What the board that a handle names has counted.
fn counted(device: nvmlDevice_t) -> Result<(Ecc, Remapped), Fault> {
    let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::NotSupported) };
    look(|world| {
        let uuid = world.board(index)?.uuid.clone();
        let ecc = world.faults.ecc.get(&uuid).copied().unwrap_or_default();
        Ok((ecc, world.faults.remapped.get(&uuid).copied().unwrap_or_default()))
    })
}

/// The replaced rows of a board that replaces rows.
fn replaced(device: nvmlDevice_t) -> Result<Remapped, Fault> {
    if !on_whole_board(device, |_, board| Ok(data_sheet(board)?.replaces_rows()))? {
        return Err(Fault::NotSupported);
    }
    counted(device).map(|(_, rows)| rows)
}

/// The ECC counts of a board with ECC.
fn ecc_counts(device: nvmlDevice_t) -> Result<Ecc, Fault> {
    let (ecc, _) = counted(device)?;
    let enabled = on_whole_board(device, |_, board| Ok(data_sheet(board)?.ecc))?;
    if enabled { Ok(ecc) } else { Err(Fault::NotSupported) }
}

/// The counts of one kind of error.
fn of_kind(ecc: Ecc, kind: c_uint) -> Result<u64, Fault> {
    match kind {
        CORRECTED => Ok(ecc.corrected),
        UNCORRECTED => Ok(ecc.uncorrected),
        _ => Err(Fault::InvalidArgument),
    }
}

/// The answer to one field of a board.
fn field(device: nvmlDevice_t, id: c_uint) -> Result<(c_uint, nvmlValue_t), Fault> {
    let small = |value: u32| (UNSIGNED, nvmlValue_t { uiVal: value });
    let rows = || replaced(device);
    match id {
        // What its links have carried, in KiB: simulated processes send nothing to each other.
        field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX | field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX => {
            if !on_whole_board(device, |_, board| Ok(has_links(board)))? {
                return Err(Fault::NotSupported);
            }
            Ok((UNSIGNED_LONG_LONG, nvmlValue_t { ullVal: 0 }))
        }
        field_id::NVML_FI_DEV_REMAPPED_COR => rows().map(|r| small(r.correctable)),
        field_id::NVML_FI_DEV_REMAPPED_UNC => rows().map(|r| small(r.uncorrectable)),
        field_id::NVML_FI_DEV_REMAPPED_PENDING => rows().map(|r| small(r.pending.into())),
        field_id::NVML_FI_DEV_REMAPPED_FAILURE => rows().map(|r| small(r.failure.into())),
        // The recovery action: none, or a reset of the board.
        field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => {
            counted(device).map(|(_, r)| small((r.pending || r.failure).into()))
        }
        _ => Err(Fault::NotSupported),
    }
}

/// Bits of `nvmlClocksEventReason*`: idle, or nothing.
fn reasons(device: nvmlDevice_t) -> Result<c_ulonglong, Fault> {
    on_whole_board(device, |sim, _| Ok(c_ulonglong::from(busy_percent(sim) == 0)))
}

/// Millijoules since the last reset, at what the board draws when it is idle.
fn energy(sim: &SimBoard, idle_mw: u32) -> u64 {
    now_ms().saturating_sub(sim.since_ms).saturating_mul(u64::from(idle_mw)) / 1_000
}

nvml! {
    fn nvmlDeviceGetVbiosVersion(device: nvmlDevice_t, out: *mut c_char, length: c_uint) {
        let version = on_whole_board(device, |_, board| Ok(data_sheet(board)?.vbios.as_str()))?;
        // SAFETY: the caller's buffer is valid for `length` bytes.
        unsafe { put_text(out, length, version) }
    }
    fn nvmlDeviceGetEccMode(device: nvmlDevice_t, current: *mut nvmlEnableState_t, pending: *mut nvmlEnableState_t) {
        let mode = on_whole_board(device, |_, board| Ok(c_uint::from(data_sheet(board)?.ecc)))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe {
            put(current, mode)?;
            put(pending, mode)
        }
    }
    fn nvmlDeviceGetTotalEccErrors(device: nvmlDevice_t, kind: c_uint, counter: c_uint, out: *mut c_ulonglong) {
        // Since the driver was loaded, or ever: the same, for a board that is not older than its file.
        if counter > 1 {
            return Err(Fault::InvalidArgument);
        }
        let count = of_kind(ecc_counts(device)?, kind)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, count) }
    }
    fn nvmlDeviceGetMemoryErrorCounter(device: nvmlDevice_t, kind: c_uint, counter: c_uint, location: c_uint, out: *mut c_ulonglong) {
        if counter > 1 || location > LAST_LOCATION {
            return Err(Fault::InvalidArgument);
        }
        // Simulated errors happen in the memory of the board, and in no cache.
        let count = of_kind(ecc_counts(device)?, kind)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, if location == DEVICE_MEMORY { count } else { 0 }) }
    }
    fn nvmlDeviceGetRetiredPagesPendingStatus(device: nvmlDevice_t, out: *mut nvmlEnableState_t) {
        // Ampere boards and later replace rows in place of pages.
        if on_whole_board(device, |_, board| Ok(data_sheet(board)?.replaces_rows()))? {
            return Err(Fault::NotSupported);
        }
        let (_, rows) = counted(device)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, rows.pending.into()) }
    }
    fn nvmlDeviceGetRetiredPages(device: nvmlDevice_t, cause: c_uint, count: *mut c_uint, _addresses: *mut c_ulonglong) {
        if cause > 1 {
            return Err(Fault::InvalidArgument);
        }
        if on_whole_board(device, |_, board| Ok(data_sheet(board)?.replaces_rows()))? {
            return Err(Fault::NotSupported);
        }
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(count, 0) }
    }
    fn nvmlDeviceGetRemappedRows(device: nvmlDevice_t, correctable: *mut c_uint, uncorrectable: *mut c_uint, pending: *mut c_uint, failure: *mut c_uint) {
        let rows = replaced(device)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe {
            put(correctable, rows.correctable)?;
            put(uncorrectable, rows.uncorrectable)?;
            put(pending, rows.pending.into())?;
            put(failure, rows.failure.into())
        }
    }
    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: nvmlDevice_t, out: *mut c_ulonglong) {
        let reasons = reasons(device)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, reasons) }
    }
    fn nvmlDeviceGetCurrentClocksEventReasons(device: nvmlDevice_t, out: *mut c_ulonglong) {
        let reasons = reasons(device)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, reasons) }
    }
    fn nvmlDeviceGetSupportedClocksThrottleReasons(device: nvmlDevice_t, out: *mut c_ulonglong) {
        on_whole_board(device, |_, _| Ok(()))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, ALL_REASONS) }
    }
    fn nvmlDeviceGetSupportedClocksEventReasons(device: nvmlDevice_t, out: *mut c_ulonglong) {
        on_whole_board(device, |_, _| Ok(()))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, ALL_REASONS) }
    }
    fn nvmlDeviceGetPcieThroughput(device: nvmlDevice_t, counter: c_uint, out: *mut c_uint) {
        if counter > 1 {
            return Err(Fault::InvalidArgument);
        }
        let kib = on_whole_board(device, |sim, _| Ok(busy_percent(sim) * PCIE_KIB_A_PERCENT))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, kib) }
    }
    fn nvmlDeviceGetTotalEnergyConsumption(device: nvmlDevice_t, out: *mut c_ulonglong) {
        let millijoules =
            on_whole_board(device, |sim, board| Ok(energy(sim, data_sheet(board)?.idle_watts * 1_000)))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, millijoules) }
    }
    fn nvmlDeviceGetFieldValues(device: nvmlDevice_t, count: c_int, values: *mut nvmlFieldValue_t) {
        let count = usize::try_from(count).map_err(|_| Fault::InvalidArgument)?;
        if values.is_null() || count == 0 {
            return Err(Fault::InvalidArgument);
        }
        on_whole_board(device, |_, _| Ok(()))?;
        for i in 0..count {
            // SAFETY: not null, and `count` long by NVML's contract.
            let value = unsafe { &mut *values.add(i) };
            value.timestamp = 0;
            value.latencyUsec = 0;
            match field(device, value.fieldId) {
                Ok((kind, found)) => {
                    value.valueType = kind;
                    value.value = found;
                    value.nvmlReturn = 0;
                }
                Err(fault) => value.nvmlReturn = fault.code(),
            }
        }
        Ok(())
    }
}
