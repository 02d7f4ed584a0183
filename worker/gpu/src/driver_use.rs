//! The use of the driver beside NVML, such as by CUDA.

use super::calls::RESET_PATIENCE;
use super::error::GpuError;
use super::gpus::Gpus;
use super::nvml_session::SessionUse;

/// A use of the driver. No reset of a board begins before its end, because CUDA opens all boards of the host.
pub struct DriverUse {
    _in_use: SessionUse,
}

/// Begins a use of the driver, if necessary after the end of a reset.
///
/// # Errors
/// NVML is still closed after the longest reset.
pub fn hold_driver(gpus: &Gpus) -> Result<DriverUse, GpuError> {
    let in_use = gpus.calls.session().enter_within(RESET_PATIENCE).ok_or(GpuError::Resetting)?;
    Ok(DriverUse { _in_use: in_use })
}
