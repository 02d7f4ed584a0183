//! The calls themselves, each as long as NVML takes. Whoever must not be held up goes through the lanes.
//!
//! Handles are fetched anew by UUID for each operation, because a long-lived session has been seen to
//! return devices that are gone.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, GpmSample, Nvml};

use super::{BoardInfo, GpuError, Slice, from_code, mig, nvlink};
use crate::device_nodes;

/// NVML, and what is remembered between two readings.
pub struct Library {
    pub nvml: &'static Nvml,
    /// Where each board was when it was seen last.
    indexes: Mutex<HashMap<String, u32>>,
    /// The last performance sample of each slice: a reading is what happened between two.
    pub samples: Mutex<HashMap<(String, u32), GpmSample<'static>>>,
    /// What each board's NVLink had carried, in KiB received and sent, and when.
    pub carried: Mutex<HashMap<String, (Instant, u64, u64)>>,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn mig_enabled(device: &Device<'_>) -> Result<bool, GpuError> {
    match device.mig_mode() {
        Ok(mode) => Ok(mode.current == 1),
        Err(NvmlError::NotSupported) => Ok(false),
        Err(other) => Err(other.into()),
    }
}

impl Library {
    pub fn open(library: Option<&Path>) -> Result<Self, GpuError> {
        let nvml = match library {
            Some(path) => Nvml::builder().lib_path(path.as_os_str()).init()?,
            None => Nvml::init()?,
        };
        // One for the life of the process: samples borrow it, and NVML is not meant to be reloaded.
        let nvml: &'static Nvml = Box::leak(Box::new(nvml));
        Ok(Self { nvml, indexes: Mutex::default(), samples: Mutex::default(), carried: Mutex::default() })
    }

    pub fn device(&self, uuid: &str) -> Result<Device<'static>, GpuError> {
        match self.nvml.device_by_uuid(uuid) {
            Ok(device) => Ok(device),
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => Err(GpuError::NotFound(uuid.to_owned())),
            // NVML's search by UUID may also stop at another board that is lost.
            Err(NvmlError::GpuLost) => self.by_index(uuid).ok_or(GpuError::Lost),
            Err(other) => Err(other.into()),
        }
    }

    /// The board with this UUID, if it is where it was.
    pub fn by_index(&self, uuid: &str) -> Option<Device<'static>> {
        let index = lock(&self.indexes).get(uuid).copied()?;
        let device = self.nvml.device_by_index(index).ok()?;
        (device.uuid().ok()? == uuid).then_some(device)
    }

    /// The board at an index.
    pub fn uuid_at(&self, index: u32) -> Result<String, GpuError> {
        let uuid = self.nvml.device_by_index(index)?.uuid()?;
        lock(&self.indexes).insert(uuid.clone(), index);
        Ok(uuid)
    }

    pub fn board(&self, index: u32, uuid: &str) -> Result<BoardInfo, GpuError> {
        let device = self.device(uuid)?;
        let mig_enabled = mig_enabled(&device)?;
        Ok(BoardInfo {
            index,
            uuid: uuid.to_owned(),
            name: device.name()?,
            memory_mib: device.memory_info()?.total >> 20,
            mig_enabled,
            // Known when all boards have been looked at.
            nvlink_island: 0,
            slices: if mig_enabled { mig::slices(self.nvml, &device)? } else { Vec::new() },
            silent: None,
        })
    }

    pub fn links(&self, gpu_uuid: &str) -> Result<nvlink::Links, GpuError> {
        Ok(nvlink::links(self.nvml, &self.device(gpu_uuid)?))
    }

    pub fn slices(&self, gpu_uuid: &str) -> Result<Vec<Slice>, GpuError> {
        let device = self.device(gpu_uuid)?;
        if mig_enabled(&device)? { mig::slices(self.nvml, &device) } else { Ok(Vec::new()) }
    }

    pub fn set_mig(&self, gpu_uuid: &str, on: bool) -> Result<(), GpuError> {
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
        let status = mig::patiently(|| match device.set_mig_mode(on) {
            Err(NvmlError::InUse) => Err(GpuError::InUse),
            other => Ok(other),
        })??;
        // Success with a status is how the driver says "not yet": what counts is what is now.
        if mig_enabled(&self.device(gpu_uuid)?)? == on {
            return Ok(());
        }
        Err(if status == 0 { GpuError::ResetRequired } else { from_code(status) })
    }

    pub fn create_slice(&self, gpu_uuid: &str, profile_id: u32, start: u32) -> Result<Slice, GpuError> {
        mig::create(self.nvml, &self.device(gpu_uuid)?, profile_id, start)
    }

    pub fn destroy_slice(&self, gpu_uuid: &str, profile_id: u32, start: u32) -> Result<(), GpuError> {
        let device = self.device(gpu_uuid)?;
        if !mig_enabled(&device)? {
            return Ok(());
        }
        let Some(gi) = mig::destroy(self.nvml, &device, profile_id, start)? else { return Ok(()) };
        lock(&self.samples).remove(&(gpu_uuid.to_owned(), gi));
        Ok(())
    }

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
}
