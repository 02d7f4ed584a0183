//! Which boards reach each other by NVLink: links as NVML tells them, and islands made of them.

#![expect(unsafe_code, reason = "what is at a link's far end is only there as a C symbol")]

use nvml_wrapper::struct_wrappers::device::PciInfo;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::NVML_NVLINK_MAX_LINKS;

/// `NVML_NVLINK_DEVICE_TYPE_SWITCH`.
const SWITCH: u32 = 2;
/// `NVML_NVLINK_DEVICE_TYPE_UNKNOWN`.
const UNKNOWN: u32 = 255;

/// A place on the PCI bus: domain, bus, device.
type Address = (u32, u32, u32);

/// Where one board is, and where its active links lead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    address: Option<Address>,
    /// A link leads to a switch.
    switch: bool,
    /// Where links lead that do not go to a switch: other boards, or devices that are none.
    direct: Vec<Address>,
    /// Links that are up.
    active: u32,
}

impl Links {
    /// How many of them are up.
    pub fn active(&self) -> u32 {
        self.active
    }

    fn leads_to(&self, other: &Self) -> bool {
        other.address.is_some_and(|address| self.direct.contains(&address))
    }

    /// A link counts even when only one end tells of it. The switches of a host are one fabric: a board
    /// has links to each of them.
    fn joined(&self, other: &Self) -> bool {
        (self.switch && other.switch) || self.leads_to(other) || other.leads_to(self)
    }
}

fn address(of: &PciInfo) -> Address {
    (of.domain, of.bus, of.device)
}

/// Whether a link leads to a switch. The wrapper's own function answers "unknown" whatever the driver
/// said.
fn leads_to_switch(nvml: &Nvml, device: &Device<'_>, number: u32) -> bool {
    let Ok(symbol) = nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref() else { return false };
    let mut kind = UNKNOWN;
    // SAFETY: the handle is used only for this call.
    let handle = unsafe { device.handle() };
    // SAFETY: the handle comes from this library, and the pointer is to a local of the size it asks for.
    let code = unsafe { symbol(handle, number, &raw mut kind) };
    code == 0 && kind == SWITCH
}

/// Walks the links of a board. Whatever NVML refuses to tell is no link: most boards have none, and
/// each says so with an error of its own.
pub fn links(nvml: &Nvml, device: &Device<'_>) -> Links {
    let own = device.pci_info().ok();
    let mut found = Links { address: own.as_ref().map(address), ..Links::default() };
    for number in 0..NVML_NVLINK_MAX_LINKS {
        let link = device.link_wrapper_for(number);
        if !matches!(link.is_active(), Ok(true)) {
            continue;
        }
        found.active += 1;
        // One at a switch is enough: all boards there are joined already, and a board that this one
        // reached directly would tell of that link itself.
        if found.switch || leads_to_switch(nvml, device, number) {
            found.switch = true;
        } else if let Ok(far) = link.remote_pci_info() {
            found.direct.push(address(&far));
        }
    }
    found
}

/// The island of each board, in the same order: 0 for a board that is joined to no other, equal numbers
/// from 1 on for boards that reach each other, if need be through others. Numbers follow the first board
/// of each island, so the same host always gets the same ones.
pub fn islands(boards: &[Links]) -> Vec<u32> {
    let mut groups: Vec<Vec<(usize, &Links)>> = Vec::new();
    for (at, board) in boards.iter().enumerate() {
        // A board may join groups that had nothing in common before it.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bus: u32) -> Address {
        (0, bus, 0)
    }

    /// A board on this bus whose links lead to boards on those.
    fn bridged(bus: u32, far: &[u32]) -> Links {
        let direct: Vec<Address> = far.iter().map(|bus| at(*bus)).collect();
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
        // The board between two comes last and joins what was apart.
        let parted = [bridged(1, &[3]), bridged(2, &[3]), bridged(3, &[1, 2])];
        assert_eq!(islands(&parted), [1; 3]);
    }
}
