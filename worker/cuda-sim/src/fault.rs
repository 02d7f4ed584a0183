//! The failures of calls, with the codes of CUDA.

use std::ffi::{CStr, c_int};

/// The failures of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    InvalidValue,
    OutOfMemory,
    NotInitialized,
    NoDevice,
    InvalidDevice,
    InvalidContext,
    EccUncorrectable,
    OperatingSystem,
    NotSupported,
    Unknown,
}

impl Fault {
    pub const ALL: [Self; 10] = [
        Self::InvalidValue,
        Self::OutOfMemory,
        Self::NotInitialized,
        Self::NoDevice,
        Self::InvalidDevice,
        Self::InvalidContext,
        Self::EccUncorrectable,
        Self::OperatingSystem,
        Self::NotSupported,
        Self::Unknown,
    ];

    pub const fn code(self) -> c_int {
        match self {
            Self::InvalidValue => 1,
            Self::OutOfMemory => 2,
            Self::NotInitialized => 3,
            Self::NoDevice => 100,
            Self::InvalidDevice => 101,
            Self::InvalidContext => 201,
            Self::EccUncorrectable => 214,
            Self::OperatingSystem => 304,
            Self::NotSupported => 801,
            Self::Unknown => 999,
        }
    }

    /// The name of a code in cuda.h.
    pub fn name(code: c_int) -> Option<&'static CStr> {
        if code == 0 {
            return Some(c"CUDA_SUCCESS");
        }
        Self::ALL.into_iter().find(|fault| fault.code() == code).map(|fault| match fault {
            Self::InvalidValue => c"CUDA_ERROR_INVALID_VALUE",
            Self::OutOfMemory => c"CUDA_ERROR_OUT_OF_MEMORY",
            Self::NotInitialized => c"CUDA_ERROR_NOT_INITIALIZED",
            Self::NoDevice => c"CUDA_ERROR_NO_DEVICE",
            Self::InvalidDevice => c"CUDA_ERROR_INVALID_DEVICE",
            Self::InvalidContext => c"CUDA_ERROR_INVALID_CONTEXT",
            Self::EccUncorrectable => c"CUDA_ERROR_ECC_UNCORRECTABLE",
            Self::OperatingSystem => c"CUDA_ERROR_OPERATING_SYSTEM",
            Self::NotSupported => c"CUDA_ERROR_NOT_SUPPORTED",
            Self::Unknown => c"CUDA_ERROR_UNKNOWN",
        })
    }
}
