//! Errors of NVML.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum GpuError {
    #[error("the device is in use")]
    InUse,
    #[error("the device {0} does not exist")]
    NotFound(String),
    #[error("the board does not support this")]
    NotSupported,
    #[error("the driver finds no room for the instance")]
    Insufficient,
    #[error("the board needs a reset before the change of its MIG mode")]
    ResetRequired,
    #[error("the change of its MIG mode cannot be withdrawn and comes into force with a reset of the board")]
    ModePending,
    #[error("the board has fallen off the bus")]
    Lost,
    #[error("NVML does not answer for the board")]
    Unresponsive,
    #[error("NVML is closed during the reset of a board of this host")]
    Resetting,
    #[error("NVML: {0}")]
    Nvml(String),
}

impl From<NvmlError> for GpuError {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::InUse => Self::InUse,
            NvmlError::NotFound => Self::NotFound(String::new()),
            NvmlError::NotSupported => Self::NotSupported,
            NvmlError::ResetRequired => Self::ResetRequired,
            NvmlError::GpuLost => Self::Lost,
            NvmlError::UnexpectedVariant(code) => from_code(code),
            other => Self::Nvml(other.to_string()),
        }
    }
}

/// The error for a code of NVML. The wrapper maps only some codes.
pub(super) fn from_code(code: u32) -> GpuError {
    match code {
        bindings::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => GpuError::NotSupported,
        bindings::nvmlReturn_enum_NVML_ERROR_NOT_FOUND => GpuError::NotFound(String::new()),
        bindings::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => GpuError::Lost,
        bindings::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED => GpuError::ResetRequired,
        bindings::nvmlReturn_enum_NVML_ERROR_IN_USE => GpuError::InUse,
        bindings::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES => GpuError::Insufficient,
        other => GpuError::Nvml(format!("error {other}")),
    }
}

/// The reason for a silent board, as a sentence.
pub(super) fn silence_reason(error: &GpuError) -> String {
    match error {
        GpuError::Lost => "The board has fallen off the bus.".to_owned(),
        GpuError::Unresponsive => "NVML does not answer for the board.".to_owned(),
        GpuError::Resetting => "NVML is closed during the reset of a board of this host.".to_owned(),
        other => format!("NVML cannot read the board: {other}."),
    }
}
