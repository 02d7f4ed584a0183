//! The calls of NVML without deadlines; `calls` adds those.
//!
//! Each operation fetches its handle by UUID, because a long-lived handle has been seen to return devices that are
//! gone.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use berth_system::sync::lock;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, GpmSample, Nvml};

use super::board::{BoardInfo, DeviceNumbers, Slice};
use super::error::GpuError;
use super::{mig, nvlink};

/// The set in which NVML collects events. Handles are numbers here: only the library dereferences them.
pub struct EventSet {
    pub handle: usize,
    /// The UUIDs of the registered boards by the handles that their events carry. Earlier handles stay known for events
    /// on the way.
    pub boards: HashMap<usize, String>,
}

/// NVML, with the state between two readings.
pub struct Library {
    pub nvml: &'static Nvml,
    /// The last known index of each board.
    indexes: Mutex<HashMap<String, u32>>,
    /// The last performance sample of each slice: a reading is the difference of two.
    pub samples: Mutex<HashMap<(String, u32), GpmSample<'static>>>,
    /// The last NVLink counters of each board: the time, KiB received, KiB sent.
    pub carried: Mutex<HashMap<String, (Instant, u64, u64)>>,
    /// Boards with another MIG mode since the last look at this: their events are requested anew.
    pub switched: Mutex<HashSet<String>>,
    /// The present set of events.
    pub event_set: Mutex<Option<EventSet>>,
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
        // Loaded once for the life of the process: samples borrow it, and NVML does not support a reload.
        let nvml: &'static Nvml = Box::leak(Box::new(nvml));
        Ok(Self {
            nvml,
            indexes: Mutex::default(),
            samples: Mutex::default(),
            carried: Mutex::default(),
            switched: Mutex::default(),
            event_set: Mutex::default(),
        })
    }

    pub fn device(&self, uuid: &str) -> Result<Device<'static>, GpuError> {
        match self.nvml.device_by_uuid(uuid) {
            Ok(device) => Ok(device),
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => Err(GpuError::NotFound(uuid.to_owned())),
            // NVML's search by UUID may stop at another board that is lost.
            Err(NvmlError::GpuLost) => self.by_index(uuid).ok_or(GpuError::Lost),
            Err(other) => Err(other.into()),
        }
    }

    /// The board with this UUID, if its index is still the same.
    pub fn by_index(&self, uuid: &str) -> Option<Device<'static>> {
        let index = lock(&self.indexes).get(uuid).copied()?;
        let device = self.nvml.device_by_index(index).ok()?;
        (device.uuid().ok()? == uuid).then_some(device)
    }

    /// The UUID of the board at an index.
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
            // Set when all boards are known.
            nvlink_island: 0,
            pci_bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
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

    pub fn create_slice(&self, gpu_uuid: &str, profile_id: u32, start: u32) -> Result<Slice, GpuError> {
        mig::create(self.nvml, &self.device(gpu_uuid)?, profile_id, start)
    }

    pub fn destroy_slice(
        &self,
        gpu_uuid: &str,
        profile_id: u32,
        start: u32,
        own: Option<u32>,
    ) -> Result<(), GpuError> {
        let device = self.device(gpu_uuid)?;
        if !mig_enabled(&device)? {
            return Ok(());
        }
        let Some(gi) = mig::destroy(self.nvml, &device, profile_id, start, own)? else { return Ok(()) };
        lock(&self.samples).remove(&(gpu_uuid.to_owned(), gi));
        Ok(())
    }

    pub fn device_numbers(&self, gpu_uuid: &str, start: Option<u32>) -> Result<DeviceNumbers, GpuError> {
        let minor = self.device(gpu_uuid)?.minor_number()?;
        let gpu_instance = match start {
            None => None,
            Some(start) => {
                let slice = self.slices(gpu_uuid)?.into_iter().find(|slice| slice.start == start);
                Some(slice.ok_or_else(|| GpuError::NotFound(format!("{gpu_uuid} at {start}")))?.gi)
            }
        };
        Ok(DeviceNumbers { minor, gpu_instance })
    }
}
