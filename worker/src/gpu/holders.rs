//! The processes on a device.

#![expect(
    unsafe_code,
    reason = "the wrapper asks for the number of processes first, which costs as much as the list"
)]

use std::mem::zeroed;

use nvml_wrapper_sys::bindings::{self, nvmlProcessInfo_t};

use super::error::{GpuError, from_code};
use super::library::Library;

/// The rows of the first try, and the additional rows of each further one.
const ROWS: u32 = 64;

impl Library {
    /// The compute processes on a board, or on a MIG device.
    pub fn holders(&self, device_uuid: &str) -> Result<Vec<u32>, GpuError> {
        let device = self.device(device_uuid)?;
        let symbol = self.nvml.lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref();
        let symbol =
            symbol.map_err(|_| GpuError::Nvml("the processes on a device are unknown".to_owned()))?;
        let mut capacity = ROWS;
        loop {
            // SAFETY: a plain C struct, for which zeroes are a value.
            let mut rows: Vec<nvmlProcessInfo_t> = vec![unsafe { zeroed() }; capacity as usize];
            let mut count = capacity;
            // SAFETY: the handle is used only for this call, and `count` is the number of rows.
            let code = unsafe { symbol(device.handle(), &raw mut count, rows.as_mut_ptr()) };
            match code {
                0 => return Ok(rows.iter().take(count as usize).map(|row| row.pid).collect()),
                bindings::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE if count > capacity => {
                    capacity = count.saturating_add(ROWS);
                }
                other => return Err(from_code(other)),
            }
        }
    }
}
