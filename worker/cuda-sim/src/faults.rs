//! The faults of boards from `cuda-faults.json` beside them. Each call reads the file.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;

use crate::fault::Fault;

const FILE: &str = "cuda-faults.json";

/// Everything that can be made to go wrong with a device. Devices are named by UUID.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Every call about the memory answers with an uncorrectable error.
    pub broken: bool,
    /// A fill with words has no effect, and no error.
    pub without_effect: bool,
    /// An allocation never returns.
    pub hangs: bool,
    /// Bytes that somebody else holds.
    pub held_bytes: u64,
}

impl Faults {
    pub fn read(dir: &Path, uuid: &str) -> Result<Self, Fault> {
        let text = match std::fs::read(dir.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(_) => return Err(Fault::OperatingSystem),
        };
        let all: HashMap<String, Self> = serde_json::from_slice(&text).map_err(|_| Fault::Unknown)?;
        Ok(all.get(uuid).copied().unwrap_or_default())
    }
}
