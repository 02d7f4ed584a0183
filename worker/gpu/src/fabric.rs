//! The NVLink fabric of hosts with NVSwitch: the registration of a board by the fabric manager.
//!
//! CUDA does not start on a whole board before it (error 802, `cudaErrorSystemNotReady`).

#![expect(unsafe_code, reason = "the wrapper has no call for the fabric")]

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED as COMPLETED, NVML_GPU_FABRIC_STATE_IN_PROGRESS as IN_PROGRESS,
    NVML_GPU_FABRIC_STATE_NOT_STARTED as NOT_STARTED, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t,
    nvmlGpuFabricInfoV_t, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};
use serde::{Deserialize, Serialize};

/// The registration of a board with its fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FabricState {
    NotStarted,
    InProgress,
    Completed,
}

/// The fabric of a board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    pub state: FabricState,
    /// NVML's code of a completed registration; 0 without an error.
    pub status: u32,
    /// Boards with the same number and cluster reach each other.
    pub clique: u32,
    pub cluster_uuid: [u8; 16],
    /// NVML's bits; absent from older drivers.
    pub health_mask: Option<u32>,
}

impl Fabric {
    /// True after a registration without an error: CUDA starts on the whole board.
    pub fn is_ready(&self) -> bool {
        self.state == FabricState::Completed && self.status == 0
    }
}

/// The number of a version of NVML's structs.
fn version_of<T>(version: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(0) | version << 24
}

fn fabric(info: &nvmlGpuFabricInfo_t, health_mask: Option<u32>) -> Option<Fabric> {
    let state = match u32::from(info.state) {
        NOT_STARTED => FabricState::NotStarted,
        IN_PROGRESS => FabricState::InProgress,
        COMPLETED => FabricState::Completed,
        // The board has no fabric.
        _ => return None,
    };
    let (status, clique, cluster_uuid) = (info.status, info.cliqueId, info.clusterUuid);
    Some(Fabric { state, status, clique, cluster_uuid, health_mask })
}

/// The fabric of a board. `None`: the board has none, or the driver does not report it.
pub fn read(nvml: &Nvml, device: &Device<'_>) -> Option<Fabric> {
    let lib = nvml.lib();
    // SAFETY: the handle is used only for the calls below.
    let handle = unsafe { device.handle() };
    if let Ok(symbol) = lib.nvmlDeviceGetGpuFabricInfoV.as_ref() {
        for version in [version_of::<nvmlGpuFabricInfoV_t>(3), version_of::<nvmlGpuFabricInfo_v2_t>(2)] {
            // SAFETY: a plain C struct, for which zeroes are a value.
            let mut found: nvmlGpuFabricInfoV_t = unsafe { std::mem::zeroed() };
            found.version = version;
            // SAFETY: the handle comes from this library, and the pointer is to a local of at least the version's size.
            match unsafe { symbol(handle, &raw mut found) } {
                0 => {
                    let info = nvmlGpuFabricInfo_t {
                        clusterUuid: found.clusterUuid,
                        status: found.status,
                        cliqueId: found.cliqueId,
                        state: found.state,
                    };
                    return fabric(&info, Some(found.healthMask));
                }
                NOT_SUPPORTED => return None,
                // An older driver does not know the version.
                _ => {}
            }
        }
    }
    let symbol = lib.nvmlDeviceGetGpuFabricInfo.as_ref().ok()?;
    // SAFETY: a plain C struct, for which zeroes are a value.
    let mut found: nvmlGpuFabricInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the handle comes from this library, and the pointer is to a local of the type it asks for.
    let code = unsafe { symbol(handle, &raw mut found) };
    if code == 0 { fabric(&found, None) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_without_a_fabric_has_none() {
        let info = |state: u32| nvmlGpuFabricInfo_t {
            clusterUuid: [7; 16],
            status: 0,
            cliqueId: 4,
            state: u8::try_from(state).unwrap(),
        };
        let state = |number: u32| fabric(&info(number), None).map(|fabric| fabric.state);
        assert_eq!((state(0), state(9)), (None, None));
        assert_eq!(state(1), Some(FabricState::NotStarted));
        assert_eq!(state(2), Some(FabricState::InProgress));
        assert_eq!(state(3), Some(FabricState::Completed));
        assert_eq!(fabric(&info(3), Some(5)).map(|f| (f.clique, f.health_mask)), Some((4, Some(5))));
    }
}
