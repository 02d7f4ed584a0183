//! NVML calls that only describe a board, for tools that show them. Nothing depends on the values.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{self, nvmlClockType_t, nvmlDevice_t, nvmlPciInfo_t};

use crate::boards::{Handle, nvml, on_board, on_whole_board};
use crate::fault::Fault;
use crate::sheets::{Sheet, data_sheet};
use crate::{answer, put, put_text};

/// A text in a C array of a fixed length, with its NUL.
pub fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out: [c_char; N] = [0; N];
    for (to, from) in out.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *to = from.cast_signed();
    }
    out
}

/// The address of a board in the second version of its call, which has no long address.
#[repr(C)]
pub struct PciInfoSecond {
    bus_id: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
}

/// The address and the ids of a board.
fn pci_of(device: nvmlDevice_t) -> Result<nvmlPciInfo_t, Fault> {
    let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
    let sheet = on_whole_board(device, |_, board| data_sheet(board))?;
    Ok(pci_at(bus_of_board(index), sheet.device_id, sheet.subsystem_id))
}

/// The bus of the first board.
const FIRST_BUS: c_uint = 0x10;

/// The bus of a board.
pub fn bus_of_board(index: usize) -> c_uint {
    FIRST_BUS + index as c_uint
}

/// The board at an address such as `00000000:10:00.0`; the domain may be shorter, and case does not matter.
pub fn board_at(address: &str) -> Option<usize> {
    let (domain, rest) = address.split_once(':')?;
    let (bus, device) = rest.split_once(':')?;
    let is_ours = u32::from_str_radix(domain, 16) == Ok(0) && (device == "00.0" || device == "00");
    let index = u32::from_str_radix(bus, 16).ok()?.checked_sub(FIRST_BUS)?;
    is_ours.then_some(index as usize)
}

/// The greatest clock of a kind.
pub fn greatest_mhz(sheet: &Sheet, kind: nvmlClockType_t) -> Result<c_uint, Fault> {
    match kind {
        bindings::nvmlClockType_enum_NVML_CLOCK_GRAPHICS | bindings::nvmlClockType_enum_NVML_CLOCK_SM => {
            Ok(sheet.sm_mhz)
        }
        bindings::nvmlClockType_enum_NVML_CLOCK_MEM => Ok(sheet.memory_mhz),
        bindings::nvmlClockType_enum_NVML_CLOCK_VIDEO => Ok(sheet.video_mhz),
        _ => Err(Fault::InvalidArgument),
    }
}

/// What is on this bus of the simulated host, as NVML writes it.
pub fn pci_at(bus: c_uint, device_id: c_uint, subsystem_id: c_uint) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: text(&format!("0000:{bus:02X}:00.0")),
        domain: 0,
        bus,
        device: 0,
        pciDeviceId: device_id,
        pciSubSystemId: subsystem_id,
        busId: text(&format!("00000000:{bus:02X}:00.0")),
    }
}

nvml! {
    fn nvmlSystemGetCudaDriverVersion_v2(out: *mut c_int) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, 13_000) }
    }
    fn nvmlDeviceGetSerial(device: nvmlDevice_t, out: *mut c_char, length: c_uint) {
        let number = on_whole_board(device, |sim, _| {
            Ok(sim.uuid.bytes().fold(0_u64, |n, b| n.wrapping_mul(31).wrapping_add(u64::from(b))))
        })?;
        // SAFETY: the caller's buffer is valid for `length` bytes.
        unsafe { put_text(out, length, &format!("{:013}", number % 10_000_000_000_000)) }
    }
    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, out: *mut nvmlPciInfo_t) {
        let pci = pci_of(device)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, pci) }
    }
    fn nvmlDeviceGetPciInfo_v2(device: nvmlDevice_t, out: *mut PciInfoSecond) {
        let pci = pci_of(device)?;
        let second = PciInfoSecond {
            bus_id: pci.busIdLegacy,
            domain: pci.domain,
            bus: pci.bus,
            device: pci.device,
            device_id: pci.pciDeviceId,
            subsystem_id: pci.pciSubSystemId,
        };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, second) }
    }
    fn nvmlDeviceGetClockInfo(device: nvmlDevice_t, kind: nvmlClockType_t, out: *mut c_uint) {
        let mhz = on_whole_board(device, |_, board| greatest_mhz(data_sheet(board)?, kind))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, mhz) }
    }
    fn nvmlDeviceGetPowerManagementLimit(device: nvmlDevice_t, out: *mut c_uint) {
        let watts = on_whole_board(device, |_, board| Ok(data_sheet(board)?.default_watts))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, watts * 1_000) }
    }
    fn nvmlDeviceGetCudaComputeCapability(device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int) {
        let capability = on_board(device, |_, board, _| Ok(board.compute_capability.as_str()))?;
        let (first, second) = capability.split_once('.').ok_or(Fault::Unknown)?;
        let number = |digits: &str| digits.parse::<c_int>().map_err(|_| Fault::Unknown);
        let (first, second) = (number(first)?, number(second)?);
        // SAFETY: null or valid, by NVML's contract.
        unsafe {
            put(major, first)?;
            put(minor, second)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_is_found_at_its_address() {
        for address in ["00000000:11:00.0", "0000:11:00.0", "0:11:00"] {
            assert_eq!(board_at(address), Some(1), "{address}");
        }
        for address in ["", "11:00.0", "0001:11:00.0", "0000:0f:00.0", "0000:11:00.1", "0000:1g:00.0"] {
            assert_eq!(board_at(address), None, "{address}");
        }
    }
}
