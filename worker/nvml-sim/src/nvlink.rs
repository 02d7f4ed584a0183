//! NVML calls about NVLink: which boards of the simulated host reach each other, through a switch or directly.
//!
//! Boards that are built for a baseboard are joined as soon as there are two of one model: by switches with every
//! link, or a V100 directly. Boards in PCIe slots have no NVLink here, not even by a bridge.

use std::ffi::c_uint;

use berth_mig::{Board, boards};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEnableState_t, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH, nvmlIntNvLinkDeviceType_t,
    nvmlPciInfo_t,
};

use crate::boards::{Handle, nvml};
use crate::details::{bus_of_board, pci_at};
use crate::fault::Fault;
use crate::sheets::data_sheet;
use crate::world::{SimBoard, World, look};
use crate::{answer, put};

/// The bus of the first model's switch: above those of the 64 boards that a host has at most.
const FIRST_SWITCH_BUS: c_uint = 0xc0;
/// The model whose links lead to other boards of it, without a switch.
const DIRECT: &str = "V100";

/// How many links a model has; none for boards in PCIe slots, and for the GH200, which stands alone in its host.
fn link_count(board: &Board) -> Option<c_uint> {
    match board.model.as_str() {
        DIRECT => Some(6),
        "A100-40GB" | "A100-80GB" => Some(12),
        "H100-80GB" | "H20-96GB" | "H200-141GB" | "B200-180GB" | "GB200-186GB" | "B300-269GB" => Some(18),
        _ => None,
    }
}

/// True if a model has NVLink.
pub fn has_links(board: &Board) -> bool {
    link_count(board).is_some()
}

/// The boards that NVLink joins with a board, and the board itself: all of its model.
pub fn joined<'a>(world: &'a World, board: &'a SimBoard) -> impl Iterator<Item = &'a SimBoard> {
    let is_linked = board.board().is_ok_and(has_links);
    let is_joined =
        move |other: &&SimBoard| other.uuid == board.uuid || (is_linked && other.model == board.model);
    world.boards.iter().filter(is_joined)
}

/// The far end of an active link.
#[derive(Debug, Clone, Copy)]
enum FarEnd {
    /// The switch of a model.
    Switch(&'static Board),
    /// Another board, by its index.
    Board(&'static Board, usize),
}

/// The place of the board at the far end of a direct link, among `count` boards of the model. Links lead one, two and
/// three places on and back, so each has a link back. `None`: the link would lead to the board itself.
fn direct_end(place: usize, count: usize, link: usize) -> Option<usize> {
    let step = (link / 2 + 1).checked_rem(count)?;
    let far = if link.is_multiple_of(2) { place + step } else { place + count - step };
    far.checked_rem(count).filter(|far| *far != place)
}

/// The far end of a link of a board, by its index. A link to a board off the bus is inactive.
fn far_board(world: &World, index: usize, link: c_uint) -> Option<usize> {
    let model = &world.boards.get(index)?.model;
    let boards = world.boards.iter().enumerate();
    let alike: Vec<usize> = boards.filter(|(_, other)| other.model == *model).map(|(at, _)| at).collect();
    let place = alike.iter().position(|at| *at == index)?;
    let far = *alike.get(direct_end(place, alike.len(), link as usize)?)?;
    let board = world.boards.get(far)?;
    (!world.faults.is_lost(&board.uuid, board.mended)).then_some(far)
}

/// The far end of a link; `None` for an inactive link. A MIG device has no links.
fn far_end(device: nvmlDevice_t, link: c_uint) -> Result<Option<FarEnd>, Fault> {
    let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
    look(|world| {
        let board = world.board(index)?.board()?;
        if link >= link_count(board).ok_or(Fault::NotSupported)? {
            return Err(Fault::InvalidArgument);
        }
        if board.model == DIRECT {
            return Ok(far_board(world, index, link).map(|far| FarEnd::Board(board, far)));
        }
        let alike = world.boards.iter().filter(|other| other.model == board.model).count();
        Ok((alike > 1).then_some(FarEnd::Switch(board)))
    })
}

/// The far end of an active link. An inactive link leads nowhere, so it is an error there.
fn active_end(device: nvmlDevice_t, link: c_uint) -> Result<FarEnd, Fault> {
    far_end(device, link)?.ok_or(Fault::NotSupported)
}

/// The address and the ids of a far end.
fn address(far: FarEnd) -> Result<nvmlPciInfo_t, Fault> {
    let board = match far {
        FarEnd::Switch(board) => board,
        FarEnd::Board(board, index) => {
            let sheet = data_sheet(board)?;
            return Ok(pci_at(bus_of_board(index), sheet.device_id, sheet.subsystem_id));
        }
    };
    // One switch for each model: boards of different models never share one.
    let model = boards().iter().position(|other| other.model == board.model).ok_or(Fault::Unknown)?;
    let bus = FIRST_SWITCH_BUS + c_uint::try_from(model).map_err(|_| Fault::Unknown)?;
    let switch_id = if board.live_toggle { 0x22a3_10de } else { 0x1af1_10de };
    Ok(pci_at(bus, switch_id, 0))
}

nvml! {
    fn nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, out: *mut nvmlEnableState_t) {
        let active = far_end(device, link)?.is_some();
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, c_uint::from(active)) }
    }
    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: nvmlDevice_t, link: c_uint, out: *mut nvmlIntNvLinkDeviceType_t) {
        let kind = match active_end(device, link)? {
            FarEnd::Switch(_) => SWITCH,
            FarEnd::Board(..) => GPU,
        };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, kind) }
    }
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: nvmlDevice_t, link: c_uint, out: *mut nvmlPciInfo_t) {
        let address = address(active_end(device, link)?)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, address) }
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

    #[test]
    fn each_direct_link_has_a_link_back() {
        for count in 1..=64 {
            for place in 0..count {
                let ends: Vec<usize> = (0..6).filter_map(|link| direct_end(place, count, link)).collect();
                assert_eq!(ends.is_empty(), count == 1, "{place} of {count}");
                for far in ends.iter().copied() {
                    let forth = ends.iter().filter(|end| **end == far).count();
                    let back = (0..6).filter(|link| direct_end(far, count, *link) == Some(place)).count();
                    assert!(far < count && forth == back, "{place} and {far} of {count}");
                }
            }
        }
    }
}
