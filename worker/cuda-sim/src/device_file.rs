//! The file with the memory of a board, locked during each call.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nix::fcntl::{Flock, FlockArg};

use crate::boards::VisibleDevice;
use crate::fault::Fault;
use crate::faults::Faults;
use crate::memory::{BoardMemory, Memory};

/// The memory that the driver keeps for itself: this, or a sixteenth of a small device.
const DRIVER_BYTES: u64 = 512 << 20;
const DRIVER_PART: u64 = 16;

/// The memory of a device.
#[derive(Debug)]
pub struct DeviceFile {
    path: PathBuf,
    start: u64,
    end: u64,
    pub total_bytes: u64,
    pub faults: Faults,
}

impl DeviceFile {
    /// # Errors
    /// The device is broken, or the faults are not readable.
    pub fn of_device(device: &VisibleDevice) -> Result<Self, Fault> {
        let faults = Faults::read(&device.dir, &device.uuid)?;
        if faults.broken {
            return Err(Fault::EccUncorrectable);
        }
        let kept = DRIVER_BYTES.min(device.total_bytes / DRIVER_PART).saturating_add(faults.held_bytes);
        Ok(Self {
            path: device.dir.join(format!("memory-{}.json", device.board)),
            start: device.offset,
            end: device.offset + device.total_bytes.saturating_sub(kept),
            total_bytes: device.total_bytes,
            faults,
        })
    }

    fn locked(&self) -> Result<Flock<File>, Fault> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.path);
        let file = file.map_err(|_| Fault::OperatingSystem)?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|_| Fault::OperatingSystem)
    }

    fn read(&self, mut file: &File) -> Result<Memory, Fault> {
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|_| Fault::OperatingSystem)?;
        let board = if text.is_empty() {
            BoardMemory::default()
        } else {
            serde_json::from_slice(&text).map_err(|_| Fault::Unknown)?
        };
        let mut memory = Memory { board, start: self.start, end: self.end };
        memory.free_ended();
        Ok(memory)
    }

    /// Runs `work` on the memory.
    pub fn look<T>(&self, work: impl FnOnce(&Memory) -> Result<T, Fault>) -> Result<T, Fault> {
        let file = self.locked()?;
        work(&self.read(&file)?)
    }

    /// Runs `work` on the memory, and keeps its changes.
    pub fn change<T>(&self, work: impl FnOnce(&mut Memory) -> Result<T, Fault>) -> Result<T, Fault> {
        let file = self.locked()?;
        let mut memory = self.read(&file)?;
        let result = work(&mut memory)?;
        let text = serde_json::to_vec(&memory.board).map_err(|_| Fault::Unknown)?;
        file.write_all_at(&text, 0).map_err(|_| Fault::OperatingSystem)?;
        file.set_len(text.len() as u64).map_err(|_| Fault::OperatingSystem)?;
        Ok(result)
    }
}
