//! The GPUs of this host through NVML: what there is, how boards are joined, MIG instances,
//! processes, readings.
//!
//! One path for real boards and simulated ones; only the library that is loaded differs. Knows
//! nothing of jobs or the portal. Every call blocks. Handles are fetched anew by UUID for each
//! operation, because a long-lived session has been seen to return devices that are gone.

mod mig;
mod nvlink;
mod readings;
mod whole;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, GpmSample, Nvml};

pub use readings::{Presence, Reading};
pub use whole::{BoardRead, SliceRead};

use crate::device_nodes;

#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error("it is in use")]
    InUse,
    #[error("there is no device {0}")]
    NotFound(String),
    #[error("the board does not support this")]
    NotSupported,
    #[error("the driver finds no room for it")]
    Insufficient,
    #[error("the board must be reset before its MIG mode changes")]
    ResetRequired,
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
            NvmlError::UnexpectedVariant(code) => from_code(code),
            other => Self::Nvml(other.to_string()),
        }
    }
}

/// An error from NVML's own number; the wrapper does not map all of them.
fn from_code(code: u32) -> GpuError {
    match code {
        3 => GpuError::NotSupported,
        6 => GpuError::NotFound(String::new()),
        16 => GpuError::ResetRequired,
        19 => GpuError::InUse,
        23 => GpuError::Insufficient,
        other => GpuError::Nvml(format!("error {other}")),
    }
}

/// One board.
#[derive(Debug, Clone)]
pub struct BoardInfo {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    pub memory_mib: u64,
    pub mig_enabled: bool,
    /// Boards of one number, from 1 on, reach each other by NVLink; 0 reaches no other.
    pub nvlink_island: u32,
    pub slices: Vec<Slice>,
}

/// A GPU instance with the compute instance that fills it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    pub gi: u32,
    pub profile_id: u32,
    /// Memory slices `start .. start + size`.
    pub start: u32,
    pub size: u32,
    /// Absent while it has no compute instance.
    pub mig_uuid: Option<String>,
    pub memory_mib: u64,
}

/// The GPUs of this host.
pub struct Gpus {
    nvml: &'static Nvml,
    /// One lock for each board: instances are made and destroyed one at a time.
    changing: Mutex<HashMap<String, Arc<Mutex<()>>>>,
    /// The last performance sample of each slice: a reading is what happened between two.
    samples: Mutex<HashMap<(String, u32), GpmSample<'static>>>,
}

impl Gpus {
    /// Loads NVML: the host's own, or the given library.
    pub fn open(library: Option<&Path>) -> Result<Self, GpuError> {
        let nvml = match library {
            Some(path) => Nvml::builder().lib_path(path.as_os_str()).init()?,
            None => Nvml::init()?,
        };
        // One for the life of the process: samples borrow it, and NVML is not meant to be reloaded.
        let nvml = Box::leak(Box::new(nvml));
        Ok(Self { nvml, changing: Mutex::default(), samples: Mutex::default() })
    }

    pub fn driver_version(&self) -> Result<String, GpuError> {
        Ok(self.nvml.sys_driver_version()?)
    }

    fn device(&self, uuid: &str) -> Result<Device<'static>, GpuError> {
        self.nvml.device_by_uuid(uuid).map_err(|e| match e {
            NvmlError::NotFound | NvmlError::InvalidArg => GpuError::NotFound(uuid.to_owned()),
            other => other.into(),
        })
    }

    /// Every board with what is on it.
    pub fn inventory(&self) -> Result<Vec<BoardInfo>, GpuError> {
        let count = self.nvml.device_count()?;
        // A board that cannot be looked at must not take the others with it.
        let look = |index| {
            self.board(index).inspect_err(|error| tracing::warn!(index, %error, "a board is left out")).ok()
        };
        let mut boards: Vec<BoardInfo> = (0..count).filter_map(look).collect();
        // An island is a matter of all boards: each only tells where its own links lead.
        let links: Vec<nvlink::Links> = boards.iter().map(|board| self.links(&board.uuid)).collect();
        for (board, island) in boards.iter_mut().zip(nvlink::islands(&links)) {
            board.nvlink_island = island;
        }
        Ok(boards)
    }

    /// Where a board's links lead; nowhere if it is gone.
    fn links(&self, gpu_uuid: &str) -> nvlink::Links {
        self.device(gpu_uuid).map(|device| nvlink::links(self.nvml, &device)).unwrap_or_default()
    }

    fn board(&self, index: u32) -> Result<BoardInfo, GpuError> {
        let uuid = self.nvml.device_by_index(index)?.uuid()?;
        let lock = self.lock_of(&uuid);
        let _one = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.device(&uuid)?;
        let mig_enabled = mig_enabled(&device)?;
        Ok(BoardInfo {
            index,
            name: device.name()?,
            memory_mib: device.memory_info()?.total >> 20,
            mig_enabled,
            // Known when all boards have been looked at.
            nvlink_island: 0,
            slices: if mig_enabled { mig::slices(self.nvml, &device)? } else { Vec::new() },
            uuid,
        })
    }

    /// What is on one board, by start.
    pub fn slices(&self, gpu_uuid: &str) -> Result<Vec<Slice>, GpuError> {
        let lock = self.lock_of(gpu_uuid);
        let _one = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.device(gpu_uuid)?;
        if mig_enabled(&device)? { mig::slices(self.nvml, &device) } else { Ok(Vec::new()) }
    }

    fn lock_of(&self, gpu_uuid: &str) -> Arc<Mutex<()>> {
        let mut all = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(gpu_uuid.to_owned()).or_default().clone()
    }

    /// Switches MIG mode where it is not so already.
    pub fn set_mig(&self, gpu_uuid: &str, on: bool) -> Result<(), GpuError> {
        let lock = self.lock_of(gpu_uuid);
        let _one = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.device(gpu_uuid)?;
        let mode = match device.mig_mode() {
            Ok(mode) => mode,
            // A board without MIG is never in MIG mode.
            Err(NvmlError::NotSupported) if !on => return Ok(()),
            Err(other) => return Err(other.into()),
        };
        if mode.current == u32::from(on) {
            if mode.pending != mode.current {
                // An earlier switch waits for a reset. It is called off, so that the mode outlives one;
                // a refusal changes nothing now.
                let _ = device.set_mig_mode(on);
            }
            return Ok(());
        }
        let status = device.set_mig_mode(on)?;
        // Success with a status is how the driver says "not yet": what counts is what is now.
        if mig_enabled(&self.device(gpu_uuid)?)? == on {
            return Ok(());
        }
        Err(if status == 0 { GpuError::ResetRequired } else { from_code(status) })
    }

    /// Makes the instance of this profile at this start; in use when there is one.
    pub fn create_slice(&self, gpu_uuid: &str, profile_id: u32, start: u32) -> Result<Slice, GpuError> {
        let lock = self.lock_of(gpu_uuid);
        let _one = lock.lock().unwrap_or_else(PoisonError::into_inner);
        mig::create(self.nvml, &self.device(gpu_uuid)?, profile_id, start)
    }

    /// Destroys the instance of this profile at this start; nothing happens when there is none.
    pub fn destroy_slice(&self, gpu_uuid: &str, profile_id: u32, start: u32) -> Result<(), GpuError> {
        let lock = self.lock_of(gpu_uuid);
        let _one = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.device(gpu_uuid)?;
        if !mig_enabled(&device)? {
            return Ok(());
        }
        let Some(gi) = mig::destroy(self.nvml, &device, profile_id, start)? else { return Ok(()) };
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).remove(&(gpu_uuid.to_owned(), gi));
        Ok(())
    }

    /// What a device is among the host's nodes: a board, or with a start the instance that is there.
    pub fn node(&self, gpu_uuid: &str, start: Option<u32>) -> Result<device_nodes::Wanted, GpuError> {
        let minor = self.device(gpu_uuid)?.minor_number()?;
        let instance = match start {
            None => None,
            Some(start) => {
                let there = self.slices(gpu_uuid)?.into_iter().find(|slice| slice.start == start);
                Some(there.ok_or_else(|| GpuError::NotFound(format!("{gpu_uuid} at {start}")))?.gi)
            }
        };
        Ok(device_nodes::Wanted { minor, instance })
    }

    /// The compute processes on a board or a MIG device.
    pub fn holders(&self, device_uuid: &str) -> Result<Vec<u32>, GpuError> {
        Ok(self.device(device_uuid)?.running_compute_processes()?.into_iter().map(|p| p.pid).collect())
    }
}

fn mig_enabled(device: &Device<'_>) -> Result<bool, GpuError> {
    match device.mig_mode() {
        Ok(mode) => Ok(mode.current == 1),
        Err(NvmlError::NotSupported) => Ok(false),
        Err(other) => Err(other.into()),
    }
}
