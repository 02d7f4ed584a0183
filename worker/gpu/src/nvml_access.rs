//! The way to NVML: in a helper process that can be ended, or in this process.
//!
//! The daemon has a helper process. In this process NVML serves commands that end by themselves, and tests: a call that
//! hangs keeps its thread there, and no board is reset.

use std::time::Duration;

use super::error::GpuError;
use super::library::Library;
use super::nvml_helper::NvmlHelper;
use super::requests::Request;

pub enum NvmlAccess {
    InProcess(Box<Library>),
    Helper(NvmlHelper),
}

impl NvmlAccess {
    /// Calls NVML. In a helper process no longer than the limit.
    pub fn call<R: Request>(
        &self,
        executor: &str,
        limit: Duration,
        request: R,
    ) -> Result<R::Answer, GpuError> {
        match self {
            Self::InProcess(library) => request.answer(library),
            Self::Helper(helper) => helper.call(executor, limit, request),
        }
    }

    /// True if calls of this executor are refused after a late one.
    pub fn is_held_back(&self, executor: &str) -> bool {
        match self {
            Self::InProcess(_) => false,
            Self::Helper(helper) => helper.is_held_back(executor),
        }
    }

    /// Closes NVML for the reset of a board.
    pub fn close(&self) -> Result<(), GpuError> {
        match self {
            Self::InProcess(_) => Err(GpuError::Nvml("it is open in this process".to_owned())),
            Self::Helper(helper) => helper.close(),
        }
    }

    /// Opens NVML after [`Self::close`]. `false`: it is not open within the limit, and starts later.
    pub fn open_again(&self, limit: Duration) -> bool {
        match self {
            Self::InProcess(_) => true,
            Self::Helper(helper) => helper.open_again(limit),
        }
    }
}
