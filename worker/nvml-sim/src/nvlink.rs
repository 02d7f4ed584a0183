//! NVML calls about NVLink: which boards of the simulated host reach each other through a switch.
//!
//! Boards that are built for a baseboard with switches are joined as soon as there are two of one
//! model, with every link. Boards in PCIe slots have no NVLink here, not even by a bridge.

use std::ffi::c_uint;

use berth_mig::{Board, boards};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEnableState_t, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH,
    nvmlIntNvLinkDeviceType_t, nvmlPciInfo_t,
};

use crate::boards::{Handle, nvml};
use crate::details::pci_at;
use crate::fault::Fault;
use crate::world::look;
use crate::{answer, put};

/// The bus of the first model's switch: above those of the 64 boards that a host has at most.
const FIRST_SWITCH_BUS: c_uint = 0xc0;

/// How many links a model has to its switches; none for boards in PCIe slots, and for the GH200, which
/// stands alone in its host.
fn link_count(board: &Board) -> Option<c_uint> {
    match board.model.as_str() {
        "A100-40GB" | "A100-80GB" => Some(12),
        "H100-80GB" | "H20-96GB" | "H200-141GB" | "B200-180GB" | "GB200-186GB" | "B300-269GB" => Some(18),
        _ => None,
    }
}

/// True if a model has NVLink.
pub fn has_links(board: &Board) -> bool {
    link_count(board).is_some()
}

/// The board that a handle names, and whether this link of it is active. A MIG device has no links.
fn linked(device: nvmlDevice_t, link: c_uint) -> Result<(&'static Board, bool), Fault> {
    let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
    look(|world| {
        let board = world.board(index)?.board()?;
        if link >= link_count(board).ok_or(Fault::NotSupported)? {
            return Err(Fault::InvalidArgument);
        }
        let alike = world.boards.iter().filter(|other| other.model == board.model).count();
        Ok((board, alike > 1))
    })
}

/// The board whose link leads to a switch. An inactive link leads nowhere, so it is an error there.
fn switched(device: nvmlDevice_t, link: c_uint) -> Result<&'static Board, Fault> {
    let (board, active) = linked(device, link)?;
    if active { Ok(board) } else { Err(Fault::NotSupported) }
}

nvml! {
    fn nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, out: *mut nvmlEnableState_t) {
        let (_, active) = linked(device, link)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, c_uint::from(active)) }
    }
    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: nvmlDevice_t, link: c_uint, out: *mut nvmlIntNvLinkDeviceType_t) {
        switched(device, link)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, SWITCH) }
    }
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: nvmlDevice_t, link: c_uint, out: *mut nvmlPciInfo_t) {
        let board = switched(device, link)?;
        // One switch for each model: boards of different models never share one.
        let model = boards().iter().position(|other| other.model == board.model).ok_or(Fault::Unknown)?;
        let bus = FIRST_SWITCH_BUS + c_uint::try_from(model).map_err(|_| Fault::Unknown)?;
        let switch_id = if board.live_toggle { 0x22a3_10de } else { 0x1af1_10de };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, pci_at(bus, switch_id, 0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_with_switches_is_in_the_tables() {
        let with_switches = boards().iter().filter(|b| link_count(b).is_some());
        let models: Vec<&str> = with_switches.map(|b| b.model.as_str()).collect();
        assert_eq!(
            models,
            [
                "A100-40GB",
                "A100-80GB",
                "H100-80GB",
                "H20-96GB",
                "H200-141GB",
                "B200-180GB",
                "GB200-186GB",
                "B300-269GB"
            ]
        );
    }
}
