//! NVML calls about processes in the older versions that monitoring programs still make, and their names.

use std::ffi::{c_char, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessUtilizationSample_t,
};

use crate::boards::{busy_percent, nvml, on_whole_board, process_rows, put_processes};
use crate::fault::Fault;
use crate::load::ClientKind;
use crate::{answer, put_rows, put_text};

/// Writes processes of the first version, which knows no instances.
///
/// # Safety
/// `count` is null or valid, and `out` is null or valid for `*count` rows.
unsafe fn put_first_version(
    count: *mut c_uint,
    out: *mut nvmlProcessInfo_v1_t,
    rows: &[nvmlProcessInfo_t],
) -> Result<(), Fault> {
    if count.is_null() {
        return Err(Fault::InvalidArgument);
    }
    let rows: Vec<_> = rows
        .iter()
        .map(|row| nvmlProcessInfo_v1_t { pid: row.pid, usedGpuMemory: row.usedGpuMemory })
        .collect();
    // SAFETY: not null, and the rest by this function's contract.
    unsafe { put_rows(count, out, &rows) }
}

/// The command line of a process, with spaces between its arguments.
fn command_line(pid: c_uint) -> Result<String, Fault> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Fault::NotFound)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " "))
}

nvml! {
    fn nvmlSystemGetProcessName(pid: c_uint, out: *mut c_char, length: c_uint) {
        let name = command_line(pid)?;
        // SAFETY: the caller's buffer is valid for `length` bytes.
        unsafe { put_text(out, length, &name) }
    }
    fn nvmlDeviceGetComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_v1_t) {
        let rows = process_rows(device, ClientKind::Compute)?;
        // SAFETY: null or valid, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_first_version(count, out, &rows) }
    }
    fn nvmlDeviceGetGraphicsRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_v1_t) {
        let rows = process_rows(device, ClientKind::Graphics)?;
        // SAFETY: null or valid, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_first_version(count, out, &rows) }
    }
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t) {
        let rows = process_rows(device, ClientKind::Compute)?;
        // SAFETY: null or valid, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_processes(count, out, &rows) }
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t) {
        let rows = process_rows(device, ClientKind::Graphics)?;
        // SAFETY: null or valid, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_processes(count, out, &rows) }
    }
    fn nvmlDeviceGetProcessUtilization(device: nvmlDevice_t, out: *mut nvmlProcessUtilizationSample_t, count: *mut c_uint, since: c_ulonglong) {
        if count.is_null() {
            return Err(Fault::InvalidArgument);
        }
        let busy = on_whole_board(device, |sim, _| {
            if sim.mig { Err(Fault::NotSupported) } else { Ok(busy_percent(sim)) }
        })?;
        let processes = process_rows(device, ClientKind::Compute)?;
        // A board without processes has no sample.
        let share = busy.checked_div(processes.len() as c_uint).ok_or(Fault::NotFound)?;
        let sample = |pid: c_uint| nvmlProcessUtilizationSample_t {
            pid,
            timeStamp: since.saturating_add(1),
            smUtil: share,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        };
        let rows: Vec<_> = processes.iter().map(|process| sample(process.pid)).collect();
        // SAFETY: not null, and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_rows(count, out, &rows) }
    }
}
