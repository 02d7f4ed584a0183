//! Who is on a device. Knows nothing of whose processes they are.

#![expect(
    unsafe_code,
    reason = "the wrapper asks how many they are before it asks who, and each is as much work"
)]

use std::mem::zeroed;

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use super::library::Library;
use super::{GpuError, from_code};

/// For how many processes there is room at first, and for how many more than there were.
const ROOM: u32 = 64;
/// `NVML_ERROR_INSUFFICIENT_SIZE`.
const INSUFFICIENT_SIZE: u32 = 7;

impl Library {
    /// The compute processes on a board, or on a MIG device.
    pub fn holders(&self, device_uuid: &str) -> Result<Vec<u32>, GpuError> {
        let device = self.device(device_uuid)?;
        let symbol = self.nvml.lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref();
        let symbol = symbol.map_err(|_| GpuError::Nvml("it cannot tell who is on a device".to_owned()))?;
        let mut room = ROOM;
        loop {
            // SAFETY: a plain C struct, for which zeroes are a value.
            let mut rows: Vec<nvmlProcessInfo_t> = vec![unsafe { zeroed() }; room as usize];
            let mut count = room;
            // SAFETY: the handle is used only for this call, and there is room for as many as it is told.
            let code = unsafe { symbol(device.handle(), &raw mut count, rows.as_mut_ptr()) };
            match code {
                0 => return Ok(rows.iter().take(count as usize).map(|row| row.pid).collect()),
                INSUFFICIENT_SIZE if count > room => room = count.saturating_add(ROOM),
                other => return Err(from_code(other)),
            }
        }
    }
}
