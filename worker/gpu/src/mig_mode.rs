//! The MIG mode of boards: a switch with its activation status, and the withdrawal of a mode that is not in force.
//!
//! NVML answers a switch with success also if the mode is only pending, for example because a monitor holds the
//! board. The present mode decides.

use std::time::{Duration, Instant};

use berth_system::sync::lock;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings;
use serde::{Deserialize, Serialize};

use super::error::{GpuError, from_code};
use super::library::{Library, mig_enabled};

/// The time for which a switch is tried again on a board in use, and the time between two tries.
const PATIENCE: Duration = Duration::from_millis(1_500);
const PAUSE: Duration = Duration::from_millis(150);

/// The fate of a mode that waits for a reset of the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitingMode {
    /// The mode comes into force with the next reset.
    Keep,
    /// The board keeps its present mode over a reset.
    Withdraw,
}

/// The error for the status of a mode that is not in force.
fn activation_error(status: u32) -> GpuError {
    match status {
        // A virtual machine cannot reset the board itself, and its driver answers "not supported".
        bindings::nvmlReturn_enum_NVML_SUCCESS | bindings::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => {
            GpuError::ResetRequired
        }
        other => from_code(other),
    }
}

impl Library {
    /// Switches MIG mode unless it is so already. A refused change leaves no pending mode, except one that waits for
    /// a reset and is to be kept.
    pub fn set_mig(&self, gpu_uuid: &str, on: bool, waiting: WaitingMode) -> Result<(), GpuError> {
        let mode = match self.device(gpu_uuid)?.mig_mode() {
            Ok(mode) => mode,
            // A board without MIG is never in MIG mode.
            Err(NvmlError::NotSupported) if !on => return Ok(()),
            Err(other) => return Err(other.into()),
        };
        if mode.current == u32::from(on) {
            // An earlier switch may wait for a reset. A refused withdrawal changes nothing now.
            let _ = self.withdraw_mode(gpu_uuid);
            return Ok(());
        }
        let Err(refusal) = self.switch_mode(gpu_uuid, on) else {
            lock(&self.switched).insert(gpu_uuid.to_owned());
            return Ok(());
        };
        if refusal == GpuError::ResetRequired && waiting == WaitingMode::Keep {
            return Err(refusal);
        }
        match self.withdraw_mode(gpu_uuid) {
            Err(GpuError::ModePending) => Err(GpuError::ModePending),
            // A board that does not answer has the first error as its reason.
            Ok(()) | Err(_) => Err(refusal),
        }
    }

    /// Requests the mode until it is in force. A board in use is tried again for a time.
    fn switch_mode(&self, gpu_uuid: &str, on: bool) -> Result<(), GpuError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let refusal = match self.device(gpu_uuid)?.set_mig_mode(on) {
                // A new handle, because the switch may have reset the board.
                Ok(_) if mig_enabled(&self.device(gpu_uuid)?)? == on => return Ok(()),
                Ok(status) => activation_error(status),
                Err(error) => error.into(),
            };
            if refusal != GpuError::InUse || Instant::now() >= deadline {
                return Err(refusal);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Makes the present mode the pending one again.
    fn withdraw_mode(&self, gpu_uuid: &str) -> Result<(), GpuError> {
        let device = self.device(gpu_uuid)?;
        let mode = device.mig_mode()?;
        if mode.pending == mode.current {
            return Ok(());
        }
        // The modes are read again, so the answer has no use.
        let _ = device.set_mig_mode(mode.current == 1);
        let mode = self.device(gpu_uuid)?.mig_mode()?;
        if mode.pending == mode.current { Ok(()) } else { Err(GpuError::ModePending) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_is_not_in_force_has_a_reason() {
        assert_eq!(activation_error(0), GpuError::ResetRequired, "success, and yet the old mode");
        assert_eq!(activation_error(3), GpuError::ResetRequired, "a virtual machine");
        assert_eq!(activation_error(16), GpuError::ResetRequired);
        assert_eq!(activation_error(19), GpuError::InUse);
        assert_eq!(activation_error(15), GpuError::Lost);
    }
}
