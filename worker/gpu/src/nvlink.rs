//! NVLink: the links of boards according to NVML, and the islands that they form.

#![expect(unsafe_code, reason = "what is at a link's far end is only there as a C symbol")]

use nvml_wrapper::struct_wrappers::device::PciInfo;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_NVLINK_MAX_LINKS, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN as UNKNOWN,
};
use serde::{Deserialize, Serialize};

use super::board::BoardInfo;

/// The driver resets boards of this major CUDA capability and later one by one, and earlier ones with NVLink together.
const RESET_ALONE_FROM: u32 = 8;

/// A PCI address: domain, bus, device.
type PciAddress = (u32, u32, u32);

/// The address of a board, and the far ends of its active links.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Links {
    address: Option<PciAddress>,
    /// A link leads to a switch.
    switch: bool,
    /// The far ends of links to other devices than switches.
    direct: Vec<PciAddress>,
    /// Links that are up.
    active: u32,
}

impl Links {
    /// The number of active links.
    pub fn active(&self) -> u32 {
        self.active
    }

    fn leads_to(&self, other: &Self) -> bool {
        other.address.is_some_and(|address| self.direct.contains(&address))
    }

    /// A link counts if one of its ends reports it. The switches of a host are one fabric: a board has links to each.
    fn joined(&self, other: &Self) -> bool {
        (self.switch && other.switch) || self.leads_to(other) || other.leads_to(self)
    }
}

fn address(pci: &PciInfo) -> PciAddress {
    (pci.domain, pci.bus, pci.device)
}

/// True if a link leads to a switch. The wrapper's function always answers "unknown".
fn leads_to_switch(nvml: &Nvml, device: &Device<'_>, number: u32) -> bool {
    let Ok(symbol) = nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref() else { return false };
    let mut kind = UNKNOWN;
    // SAFETY: the handle is used only for this call.
    let handle = unsafe { device.handle() };
    // SAFETY: the handle comes from this library, and the pointer is to a local of the size it asks for.
    let code = unsafe { symbol(handle, number, &raw mut kind) };
    code == 0 && kind == SWITCH
}

/// The links of a board. An error of NVML counts as no link: most boards have none, and the error for that differs.
pub fn links(nvml: &Nvml, device: &Device<'_>) -> Links {
    let own = device.pci_info().ok();
    let mut found = Links { address: own.as_ref().map(address), ..Links::default() };
    for number in 0..NVML_NVLINK_MAX_LINKS {
        let link = device.link_wrapper_for(number);
        if !matches!(link.is_active(), Ok(true)) {
            continue;
        }
        found.active += 1;
        // One link to a switch is enough: it joins all boards there, and a board with a direct link reports
        // that link itself.
        if found.switch || leads_to_switch(nvml, device, number) {
            found.switch = true;
        } else if let Ok(far) = link.remote_pci_info() {
            found.direct.push(address(&far));
        }
    }
    found
}

/// The island of each board, in the same order: 0 for a board without links to others, equal numbers from 1 on for
/// boards that reach each other directly or through others. The numbers follow the first board of each island, so
/// they are stable.
pub fn islands(boards: &[Links]) -> Vec<u32> {
    let mut groups: Vec<Vec<(usize, &Links)>> = Vec::new();
    for (at, board) in boards.iter().enumerate() {
        // A board may join groups that were separate before it.
        let (touched, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.iter().any(|(_, other)| board.joined(other)));
        groups = apart;
        groups.push(touched.into_iter().flatten().chain([(at, board)]).collect());
    }
    groups.retain(|group| group.len() > 1);
    groups.sort_by_key(|group| group.iter().map(|(at, _)| *at).min());
    let island_of = |at: usize| {
        let mut numbered = (1_u32..).zip(&groups);
        let own = numbered.find(|(_, group)| group.iter().any(|(member, _)| *member == at));
        own.map_or(0, |(number, _)| number)
    };
    (0..boards.len()).map(island_of).collect()
}

/// The UUIDs of all boards that the driver resets only together with a board, with this board, by index; empty for a
/// board that is reset alone. Islands follow from the last known links, so they include boards off the bus.
pub fn reset_group(boards: &[BoardInfo], gpu_uuid: &str, compute_capability: Option<&str>) -> Vec<String> {
    let major = compute_capability.and_then(|text| text.split_once('.')?.0.parse::<u32>().ok());
    let island = boards.iter().find(|board| board.uuid == gpu_uuid).map_or(0, |board| board.nvlink_island);
    if island == 0 || major.is_none_or(|major| major >= RESET_ALONE_FROM) {
        return Vec::new();
    }
    let together = boards.iter().filter(|board| board.nvlink_island == island);
    together.map(|board| board.uuid.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_before_ampere_are_reset_with_their_island() {
        let board = |index: u32, nvlink_island: u32| BoardInfo {
            index,
            uuid: format!("GPU-{index}"),
            name: "Tesla V100-SXM2-16GB".to_owned(),
            memory_mib: 16_384,
            mig_enabled: false,
            nvlink_island,
            pci_bus_id: None,
            slices: Vec::new(),
            silent: None,
        };
        let boards = [board(0, 1), board(1, 2), board(2, 0), board(3, 1)];
        let group = |uuid: &str, capability| reset_group(&boards, uuid, capability);
        for capability in ["6.0", "7.0", "7.5"] {
            assert_eq!(group("GPU-3", Some(capability)), ["GPU-0", "GPU-3"], "{capability}");
        }
        for capability in [Some("8.0"), Some("9.0"), Some("10.0"), Some("x"), None] {
            assert!(group("GPU-3", capability).is_empty(), "{capability:?}");
        }
        assert!(group("GPU-2", Some("7.0")).is_empty(), "a board without NVLink");
        assert!(group("GPU-9", Some("7.0")).is_empty(), "an unknown board");
    }

    fn at(bus: u32) -> PciAddress {
        (0, bus, 0)
    }

    /// A board on this bus with links to boards on other buses.
    fn bridged(bus: u32, far: &[u32]) -> Links {
        let direct: Vec<PciAddress> = far.iter().map(|bus| at(*bus)).collect();
        Links { address: Some(at(bus)), direct, ..Links::default() }
    }

    fn switched(bus: u32) -> Links {
        Links { switch: true, ..bridged(bus, &[]) }
    }

    #[test]
    fn boards_without_nvlink_are_on_no_island() {
        assert!(islands(&[]).is_empty());
        assert_eq!(islands(&[bridged(1, &[]), bridged(2, &[]), Links::default(), Links::default()]), [0; 4]);
        assert_eq!(islands(&[bridged(1, &[9]), bridged(2, &[2])]), [0, 0], "nobody else is there");
    }

    #[test]
    fn boards_at_switches_are_one_island() {
        assert_eq!(islands(&[switched(1), switched(2), bridged(3, &[]), switched(4)]), [1, 1, 0, 1]);
        assert_eq!(islands(&[switched(1), bridged(2, &[])]), [0, 0], "alone at its switch");
    }

    #[test]
    fn a_bridge_joins_two_boards_and_leaves_a_third() {
        assert_eq!(islands(&[bridged(1, &[3, 3]), bridged(2, &[]), bridged(3, &[1, 1])]), [1, 0, 1]);
        assert_eq!(islands(&[bridged(1, &[]), bridged(2, &[1])]), [1, 1], "one end's word is enough");
    }

    #[test]
    fn islands_are_numbered_by_their_first_boards() {
        let pairs = [bridged(1, &[4]), bridged(2, &[3]), bridged(3, &[2]), bridged(4, &[1])];
        assert_eq!(islands(&pairs), [1, 2, 2, 1]);
        let beside = [bridged(1, &[]), switched(2), bridged(3, &[4]), bridged(4, &[3]), switched(5)];
        assert_eq!(islands(&beside), [0, 1, 2, 2, 1]);
    }

    #[test]
    fn a_chain_is_one_island() {
        let chain = [bridged(1, &[2]), bridged(2, &[1, 3]), bridged(3, &[2, 4]), bridged(4, &[3])];
        assert_eq!(islands(&chain), [1; 4]);
        // The board between two others comes last and joins their groups.
        let parted = [bridged(1, &[3]), bridged(2, &[3]), bridged(3, &[1, 2])];
        assert_eq!(islands(&parted), [1; 3]);
    }
}
