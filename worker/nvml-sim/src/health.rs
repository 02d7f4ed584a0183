//! NVML calls about how a board is: ECC, replaced memory, what holds its clocks back, traffic, energy.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    field_id, nvmlDevice_t, nvmlEnableState_t, nvmlFieldValue_t,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED as CORRECTED,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED as UNCORRECTED, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
};

use crate::boards::{Handle, busy_percent, milliwatts, nvml, on_whole_board};
use crate::faults::{Ecc, Remapped, now_ms};
use crate::nvlink::has_links;
use crate::world::{Fault, SimBoard, look};
use crate::{answer, put, put_text};

/// KiB a second that a board moves over PCIe for each percent that it is busy.
const PCIE_KIB_A_PERCENT: u32 = 4_096;

/// What the board that a handle names has counted.
fn counted(device: nvmlDevice_t) -> Result<(Ecc, Remapped), Fault> {
    let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::NotSupported) };
    look(|world| {
        let uuid = world.board(index)?.uuid.clone();
        let ecc = world.faults.ecc.get(&uuid).copied().unwrap_or_default();
        Ok((ecc, world.faults.remapped.get(&uuid).copied().unwrap_or_default()))
    })
}

/// The answer to one field of a board.
fn field(device: nvmlDevice_t, id: c_uint) -> Result<(c_uint, nvmlValue_t), Fault> {
    let small = |value: u32| (UNSIGNED, nvmlValue_t { uiVal: value });
    let rows = || counted(device).map(|(_, rows)| rows);
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
            rows().map(|r| small((r.pending || r.failure).into()))
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
        let version = on_whole_board(device, |_, board| {
            Ok(if board.live_toggle { "96.00.74.00.1C" } else { "92.00.66.00.08" })
        })?;
        // SAFETY: the caller's buffer is valid for `length` bytes.
        unsafe { put_text(out, length, version) }
    }
    fn nvmlDeviceGetEccMode(device: nvmlDevice_t, current: *mut nvmlEnableState_t, pending: *mut nvmlEnableState_t) {
        on_whole_board(device, |_, _| Ok(()))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe {
            put(current, 1)?;
            put(pending, 1)
        }
    }
    fn nvmlDeviceGetTotalEccErrors(device: nvmlDevice_t, kind: c_uint, counter: c_uint, out: *mut c_ulonglong) {
        // Since the driver was loaded, or ever: the same, for a board that is not older than its file.
        if counter > 1 {
            return Err(Fault::InvalidArgument);
        }
        let (ecc, _) = counted(device)?;
        let count = match kind {
            CORRECTED => ecc.corrected,
            UNCORRECTED => ecc.uncorrected,
            _ => return Err(Fault::InvalidArgument),
        };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, count) }
    }
    fn nvmlDeviceGetRetiredPagesPendingStatus(device: nvmlDevice_t, _out: *mut nvmlEnableState_t) {
        // Ampere boards and later replace rows in place of pages.
        on_whole_board(device, |_, _| Err(Fault::NotSupported))
    }
    fn nvmlDeviceGetRemappedRows(device: nvmlDevice_t, correctable: *mut c_uint, uncorrectable: *mut c_uint, pending: *mut c_uint, failure: *mut c_uint) {
        let (_, rows) = counted(device)?;
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
    fn nvmlDeviceGetPcieThroughput(device: nvmlDevice_t, counter: c_uint, out: *mut c_uint) {
        if counter > 1 {
            return Err(Fault::InvalidArgument);
        }
        let kib = on_whole_board(device, |sim, _| Ok(busy_percent(sim) * PCIE_KIB_A_PERCENT))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, kib) }
    }
    fn nvmlDeviceGetTotalEnergyConsumption(device: nvmlDevice_t, out: *mut c_ulonglong) {
        let millijoules = on_whole_board(device, |sim, board| Ok(energy(sim, milliwatts(board).0)))?;
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
