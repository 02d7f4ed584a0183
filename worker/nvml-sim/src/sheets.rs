//! Data sheets of the board models: the figures of a board that `berth-mig` does not need. Most are those of recorded
//! answers of real boards (`tests/data/recorded.json`).

use std::sync::OnceLock;

use berth_mig::Board;
use nvml_wrapper_sys::bindings::NVML_DEVICE_ARCH_AMPERE;
use serde::{Deserialize, Deserializer};

use crate::fault::Fault;

/// The sheet of a model that has none of its own.
const OF_OTHERS: &str = "H100-80GB";

/// The figures of one board model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sheet {
    pub model: String,
    /// One of `NVML_DEVICE_ARCH_*`.
    pub architecture: u32,
    /// Device and vendor, as NVML writes them in one number.
    #[serde(deserialize_with = "hexadecimal")]
    pub device_id: u32,
    #[serde(deserialize_with = "hexadecimal")]
    pub subsystem_id: u32,
    pub vbios: String,
    pub idle_watts: u32,
    /// The least limit that can be set.
    pub min_watts: u32,
    pub default_watts: u32,
    /// The greatest limit that can be set.
    pub max_watts: u32,
    pub sm_mhz: u32,
    pub memory_mhz: u32,
    pub video_mhz: u32,
    /// The memory that the driver keeps for itself.
    pub reserved_mib: u64,
    /// `None` for a board whose memory the host addresses without BAR1.
    pub bar1_mib: Option<u64>,
    pub pcie_generation: u32,
    pub pcie_width: u32,
    /// The temperatures of the driver's thresholds. Records of Ada boards and later ones have only distances from
    /// them, and an A30 has no record.
    pub shutdown_celsius: Option<u32>,
    pub slowdown_celsius: Option<u32>,
    pub max_memory_celsius: Option<u32>,
    pub max_gpu_celsius: Option<u32>,
    /// True if the board has a fan of its own.
    pub fan: bool,
    /// True if ECC is enabled.
    pub ecc: bool,
}

impl Sheet {
    /// True if the board replaces rows of memory; older boards retire pages.
    pub fn replaces_rows(&self) -> bool {
        self.architecture >= NVML_DEVICE_ARCH_AMPERE
    }
}

fn hexadecimal<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let digits = String::deserialize(from)?;
    u32::from_str_radix(&digits, 16).map_err(serde::de::Error::custom)
}

fn sheets() -> &'static [Sheet] {
    static SHEETS: OnceLock<Vec<Sheet>> = OnceLock::new();
    // The table is part of the library, and a test reads it. So the empty default never occurs.
    SHEETS.get_or_init(|| serde_json::from_str(include_str!("../sheets.json")).unwrap_or_default())
}

/// The sheet of a board's model; that of an H100 for a model of the simulation only.
pub fn data_sheet(board: &Board) -> Result<&'static Sheet, Fault> {
    let named = |model: &str| sheets().iter().find(|sheet| sheet.model == model);
    named(&board.model).or_else(|| named(OF_OTHERS)).ok_or(Fault::Unknown)
}

#[cfg(test)]
mod tests {
    use berth_mig::boards;

    use super::*;
    use crate::models::sim_board;

    #[test]
    fn every_real_model_has_its_own_sheet() {
        let tables = boards().iter().map(|board| board.model.as_str());
        for model in tables.chain(["T4", "V100", "A10", "L4", "L40S", "RTX-4090"]) {
            let sheet = data_sheet(sim_board(model).unwrap()).unwrap();
            assert_eq!(sheet.model, model);
            assert!(
                sheet.idle_watts < sheet.default_watts && sheet.default_watts <= sheet.max_watts,
                "{model}"
            );
            assert!(sheet.min_watts <= sheet.default_watts, "{model}");
        }
        assert_eq!(data_sheet(sim_board("Z900-96GB").unwrap()).unwrap().model, "H100-80GB");
    }
}
