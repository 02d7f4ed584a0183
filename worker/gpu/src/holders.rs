//! The processes on a device.

#![expect(
    unsafe_code,
    reason = "the wrapper asks for the number of processes first, which costs as much as the list"
)]

use std::ffi::c_uint;
use std::mem::zeroed;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{self, nvmlDevice_t, nvmlProcessInfo_t, nvmlReturn_t};

use super::error::{GpuError, from_code};
use super::library::Library;

/// The rows of the first try, and the additional rows of each further one.
const ROWS: u32 = 64;

/// A call that lists the processes of one kind on a device.
type ListCall = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t;

fn processes(device: &Device<'_>, list: ListCall) -> Result<Vec<u32>, GpuError> {
    let mut capacity = ROWS;
    loop {
        // SAFETY: a plain C struct, for which zeroes are a value.
        let mut rows: Vec<nvmlProcessInfo_t> = vec![unsafe { zeroed() }; capacity as usize];
        let mut count = capacity;
        // SAFETY: the handle is used only for this call, and `count` is the number of rows.
        let code = unsafe { list(device.handle(), &raw mut count, rows.as_mut_ptr()) };
        match code {
            0 => return Ok(rows.iter().take(count as usize).map(|row| row.pid).collect()),
            bindings::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE if count > capacity => {
                capacity = count.saturating_add(ROWS);
            }
            other => return Err(from_code(other)),
        }
    }
}

impl Library {
    /// The processes on a board, or on a MIG device: those that compute, those that draw, and the clients of the
    /// driver's sharing service. Each is listed once, in ascending order.
    pub fn holders(&self, device_uuid: &str) -> Result<Vec<u32>, GpuError> {
        let device = self.device(device_uuid)?;
        let lib = self.nvml.lib();
        let unknown = |_| GpuError::Nvml("the processes on a device are unknown".to_owned());
        let compute = lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref().map_err(unknown)?;
        let mut pids = processes(&device, *compute)?;
        // Drivers and boards without these kinds have no such processes.
        let graphics = lib.nvmlDeviceGetGraphicsRunningProcesses_v3.as_ref().ok();
        let clients = lib.nvmlDeviceGetMPSComputeRunningProcesses_v3.as_ref().ok();
        for list in [graphics, clients].into_iter().flatten() {
            match processes(&device, *list) {
                Ok(more) => pids.extend(more),
                Err(GpuError::NotSupported) => {}
                Err(other) => return Err(other),
            }
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }
}
