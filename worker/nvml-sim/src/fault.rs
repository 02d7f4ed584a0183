//! The failures of calls, with the codes of NVML.

use nvml_wrapper_sys::bindings;

/// The failures of a call, with the codes of NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Uninitialized,
    InvalidArgument,
    NotSupported,
    NoPermission,
    NotFound,
    InsufficientSize,
    /// Nothing happened in the time that was given.
    Timeout,
    /// Its board has fallen off the bus.
    GpuIsLost,
    InUse,
    OperatingSystem,
    InsufficientResources,
    VersionMismatch,
    /// The driver has the call and answers it no more.
    Deprecated,
    Unknown,
}

impl Fault {
    pub const fn code(self) -> u32 {
        match self {
            Self::Uninitialized => bindings::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED,
            Self::InvalidArgument => bindings::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
            Self::NotSupported => bindings::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
            Self::NoPermission => bindings::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION,
            Self::NotFound => bindings::nvmlReturn_enum_NVML_ERROR_NOT_FOUND,
            Self::InsufficientSize => bindings::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
            Self::Timeout => bindings::nvmlReturn_enum_NVML_ERROR_TIMEOUT,
            Self::GpuIsLost => bindings::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST,
            Self::OperatingSystem => bindings::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM,
            Self::InUse => bindings::nvmlReturn_enum_NVML_ERROR_IN_USE,
            Self::InsufficientResources => bindings::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES,
            Self::VersionMismatch => bindings::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            Self::Deprecated => bindings::nvmlReturn_enum_NVML_ERROR_DEPRECATED,
            Self::Unknown => bindings::nvmlReturn_enum_NVML_ERROR_UNKNOWN,
        }
    }
}
