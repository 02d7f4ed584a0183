//! NVML calls that only describe a board, for tools that show them. Nothing depends on the values.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{self, nvmlClockType_t, nvmlDevice_t, nvmlPciInfo_t};

use crate::boards::{Handle, milliwatts, nvml, on_board, on_whole_board};
use crate::world::Fault;
use crate::{answer, put, put_text};

/// A text in a C array of a fixed length, with its NUL.
fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out: [c_char; N] = [0; N];
    for (to, from) in out.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *to = from.cast_signed();
    }
    out
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
        let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
        let newer = on_whole_board(device, |_, board| Ok(board.live_toggle))?;
        let bus = 0x10 + index as c_uint;
        let (device_id, subsystem_id) =
            if newer { (0x2330_10de, 0x16c1_10de) } else { (0x20b7_10de, 0x1532_10de) };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, pci_at(bus, device_id, subsystem_id)) }
    }
    fn nvmlDeviceGetClockInfo(device: nvmlDevice_t, kind: nvmlClockType_t, out: *mut c_uint) {
        let newer = on_whole_board(device, |_, board| Ok(board.live_toggle))?;
        let (new, old) = match kind {
            bindings::nvmlClockType_enum_NVML_CLOCK_GRAPHICS
            | bindings::nvmlClockType_enum_NVML_CLOCK_SM => (1_980, 1_440),
            bindings::nvmlClockType_enum_NVML_CLOCK_MEM => (2_619, 1_215),
            bindings::nvmlClockType_enum_NVML_CLOCK_VIDEO => (1_545, 1_305),
            _ => return Err(Fault::InvalidArgument),
        };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, if newer { new } else { old }) }
    }
    fn nvmlDeviceGetPowerManagementLimit(device: nvmlDevice_t, out: *mut c_uint) {
        let (_, most) = on_whole_board(device, |_, board| Ok(milliwatts(board)))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, most) }
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
