//! NVML calls about the fabric of NVSwitch: the registration of boards by the fabric manager.
//!
//! Hopper boards and later have a fabric if they meet at a switch. Earlier boards report none.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED as COMPLETED, NVML_GPU_FABRIC_STATE_IN_PROGRESS as IN_PROGRESS,
    NVML_GPU_FABRIC_STATE_NOT_STARTED as NOT_STARTED, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED as NO_FABRIC,
    nvmlDevice_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t,
};

use crate::boards::{Handle, nvml};
use crate::fault::Fault;
use crate::faults::FabricFault;
use crate::nvlink::has_links;
use crate::world::look;
use crate::{answer, put};

/// The cluster of all boards of a host.
const CLUSTER: [u8; 16] = [0xbe; 16];

/// The number of a version of NVML's structs.
fn version_of<T>(version: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(0) | version << 24
}

/// The fabric of the board that a handle names.
fn info(device: nvmlDevice_t) -> Result<nvmlGpuFabricInfo_t, Fault> {
    let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
    look(|world| {
        let sim = world.board(index)?;
        let board = sim.board()?;
        let alike = world.boards.iter().filter(|other| other.model == board.model).count();
        let has_fabric = has_links(board) && board.live_toggle && alike > 1;
        let (state, status) = match world.faults.fabric.get(&sim.uuid).filter(|_| has_fabric) {
            None if has_fabric => (COMPLETED, 0),
            None => (NO_FABRIC, 0),
            Some(FabricFault::NotStarted) => (NOT_STARTED, 0),
            Some(FabricFault::InProgress) => (IN_PROGRESS, 0),
            Some(FabricFault::Failed) => (COMPLETED, Fault::Unknown.code()),
        };
        let state = u8::try_from(state).map_err(|_| Fault::Unknown)?;
        Ok(nvmlGpuFabricInfo_t { clusterUuid: CLUSTER, status, cliqueId: 1, state })
    })
}

nvml! {
    fn nvmlDeviceGetGpuFabricInfo(device: nvmlDevice_t, out: *mut nvmlGpuFabricInfo_t) {
        let info = info(device)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, info) }
    }
    fn nvmlDeviceGetGpuFabricInfoV(device: nvmlDevice_t, out: *mut nvmlGpuFabricInfoV_t) {
        if out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and each version begins with its number by NVML's contract.
        let version = unsafe { (&raw const (*out).version).read() };
        let info = info(device)?;
        if version == version_of::<nvmlGpuFabricInfo_v2_t>(2) {
            let all = nvmlGpuFabricInfo_v2_t {
                version,
                clusterUuid: info.clusterUuid,
                status: info.status,
                cliqueId: info.cliqueId,
                state: info.state,
                healthMask: 0,
            };
            // SAFETY: not null, and of this version.
            return unsafe { put(out.cast::<nvmlGpuFabricInfo_v2_t>(), all) };
        }
        if version != version_of::<nvmlGpuFabricInfoV_t>(3) {
            return Err(Fault::VersionMismatch);
        }
        let all = nvmlGpuFabricInfoV_t {
            version,
            clusterUuid: info.clusterUuid,
            status: info.status,
            cliqueId: info.cliqueId,
            state: info.state,
            healthMask: 0,
            healthSummary: 0,
        };
        // SAFETY: not null, and of this version.
        unsafe { put(out, all) }
    }
}
