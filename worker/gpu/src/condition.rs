//! The condition of boards: description, error counts, and the check for fitness.

#![expect(unsafe_code, reason = "the wrapper has no call for the rows of memory that were replaced")]

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper_sys::bindings::{
    field_id, nvmlDeviceGpuRecoveryAction_s_NVML_GPU_RECOVERY_ACTION_NODE_REBOOT as NODE_REBOOT,
    nvmlDeviceGpuRecoveryAction_s_NVML_GPU_RECOVERY_ACTION_NONE as NONE, nvmlFieldValue_t,
};
use serde::{Deserialize, Serialize};

use super::board::MigProfile;
use super::error::{GpuError, silence_reason};
use super::fabric::{self, Fabric};
use super::library::{Library, mig_enabled};
use super::{mig, nvlink};

/// The most memory that the driver itself uses on an idle board, in MiB.
const IDLE_MOST_MIB: u64 = 512;
/// The permitted growth over the use before an attempt, in MiB.
const SLACK_MIB: u64 = 64;

/// The description of a board, which hardly changes. Values that NVML does not report are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardDescription {
    pub serial: Option<String>,
    pub vbios: Option<String>,
    pub pci_bus_id: Option<String>,
    pub compute_capability: Option<String>,
    pub power_limit_watts: Option<u32>,
    pub ecc: Option<bool>,
    pub ecc_pending: Option<bool>,
    /// Absent without support for MIG.
    pub mig: Option<bool>,
    pub mig_pending: Option<bool>,
    /// The number of active links.
    pub nvlinks: u32,
    /// The boards that the driver resets only together with this one; empty for a board that is reset alone.
    pub reset_group: Vec<String>,
    /// The fabric of NVSwitch; absent for a board without one.
    pub fabric: Option<Fabric>,
    /// The MIG profiles of the driver; empty without MIG mode.
    pub mig_profiles: Vec<MigProfile>,
}

/// The error counts of a board since the load of its driver. Values that NVML does not report are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCounts {
    pub ecc_corrected: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    pub rows_corrected: Option<u32>,
    pub rows_uncorrected: Option<u32>,
    /// Rows or pages of memory wait for a reset for their replacement.
    pub replacement_pending: Option<bool>,
    /// The replacement of a row failed.
    pub replacement_failed: Option<bool>,
    /// The request of the driver: 0 nothing, 1 a reset of the board, 2 a reboot, 3 and 4 a drain.
    pub recovery: Option<u32>,
}

/// The condition of a board at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardCondition {
    /// The reason if the board does not answer. The rest is unknown then.
    pub silent: Option<String>,
    pub description: BoardDescription,
    pub counts: ErrorCounts,
}

impl BoardCondition {
    /// A board that does not answer.
    pub(super) fn silent(error: &GpuError) -> Self {
        Self { silent: Some(silence_reason(error)), ..Self::default() }
    }
}

/// Reads the condition of a board.
pub(super) fn read(library: &Library, gpu_uuid: &str) -> Result<BoardCondition, GpuError> {
    let device = library.device(gpu_uuid)?;
    device.memory_info()?;
    Ok(BoardCondition {
        silent: None,
        description: describe(library, &device),
        counts: counts(library, &device),
    })
}

/// Replaced rows for corrected and for uncorrected errors, whether some wait for a reset, whether one failed.
fn replaced_rows(library: &Library, device: &Device<'_>) -> Option<(u32, u32, bool, bool)> {
    let symbol = library.nvml.lib().nvmlDeviceGetRemappedRows.as_ref().ok()?;
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle is used only for this call, and pointers are to locals of the type it asks for.
    let code = unsafe {
        symbol(device.handle(), &raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed)
    };
    (code == 0).then_some((corrected, uncorrected, pending != 0, failed != 0))
}

/// The request of the driver for a board.
fn recovery_action(library: &Library, device: &Device<'_>) -> Option<u32> {
    let symbol = library.nvml.lib().nvmlDeviceGetFieldValues.as_ref().ok()?;
    // SAFETY: a plain C struct, for which zeroes are a value.
    let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    value.fieldId = field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
    // SAFETY: the handle is used only for this call, and the pointer is to one local of the type it asks for.
    let code = unsafe { symbol(device.handle(), 1, &raw mut value) };
    // SAFETY: the field is an unsigned int, and the union was zeroed before.
    if code == 0 && value.nvmlReturn == 0 { Some(unsafe { value.value.uiVal }) } else { None }
}

/// The MIG profiles of the driver. The driver knows the possible placements only in MIG mode.
fn mig_profiles(library: &Library, device: &Device<'_>) -> Vec<MigProfile> {
    if !mig_enabled(device).unwrap_or(false) {
        return Vec::new();
    }
    mig::profile_table(library.nvml.lib(), device).unwrap_or_default()
}

fn describe(library: &Library, device: &Device<'_>) -> BoardDescription {
    let ecc = device.is_ecc_enabled().ok();
    let mig = device.mig_mode().ok();
    BoardDescription {
        serial: device.serial().ok(),
        vbios: device.vbios_version().ok(),
        pci_bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
        compute_capability: device.cuda_compute_capability().ok().map(|c| format!("{}.{}", c.major, c.minor)),
        power_limit_watts: device.power_management_limit().ok().map(|milliwatts| milliwatts / 1_000),
        ecc: ecc.as_ref().map(|mode| mode.currently_enabled),
        ecc_pending: ecc.as_ref().map(|mode| mode.pending_enabled),
        mig: mig.as_ref().map(|mode| mode.current == 1),
        mig_pending: mig.as_ref().map(|mode| mode.pending == 1),
        nvlinks: nvlink::links(library.nvml, device).active(),
        // Set when all boards are known.
        reset_group: Vec::new(),
        fabric: fabric::read(library.nvml, device),
        mig_profiles: mig_profiles(library, device),
    }
}

fn counts(library: &Library, device: &Device<'_>) -> ErrorCounts {
    let ecc = |kind: MemoryError| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
    let rows = replaced_rows(library, device);
    // Boards before Ampere retire pages.
    let pages = device.are_pages_pending_retired().ok();
    ErrorCounts {
        ecc_corrected: ecc(MemoryError::Corrected),
        ecc_uncorrected: ecc(MemoryError::Uncorrected),
        rows_corrected: rows.map(|r| r.0),
        rows_uncorrected: rows.map(|r| r.1),
        replacement_pending: rows.map(|r| r.2).or(pages),
        replacement_failed: rows.map(|r| r.3),
        recovery: recovery_action(library, device),
    }
}

/// The reasons against work on a board with this condition, as sentences.
pub(super) fn complaints(description: &BoardDescription, counts: &ErrorCounts) -> Vec<String> {
    let mut out = Vec::new();
    if counts.replacement_failed == Some(true) {
        out.push("The replacement of faulty memory failed.".to_owned());
    }
    if counts.replacement_pending == Some(true) {
        out.push("The replacement of faulty memory needs a reset of the board.".to_owned());
    }
    match counts.recovery.unwrap_or(NONE) {
        NONE => {}
        NODE_REBOOT => out.push("The driver requests a restart of the host.".to_owned()),
        _ => out.push("The driver requests a reset of the board.".to_owned()),
    }
    if description.mig != description.mig_pending {
        out.push("The change of the MIG mode needs a reset of the board.".to_owned());
    }
    if description.ecc != description.ecc_pending {
        out.push("The change of the ECC mode needs a reset of the board.".to_owned());
    }
    out
}

/// True if the memory of a board is free again, with so much in use before an attempt.
pub fn is_memory_free(used_mib: u64, before_mib: Option<u64>) -> bool {
    used_mib <= before_mib.map_or(IDLE_MOST_MIB, |before| IDLE_MOST_MIB.max(before.saturating_add(SLACK_MIB)))
}

impl Library {
    /// The processes on a board and on its slices, in ascending order.
    pub(super) fn all_holders(&self, gpu_uuid: &str) -> Result<Vec<u32>, GpuError> {
        let device = self.device(gpu_uuid)?;
        let mut pids = self.holders(gpu_uuid)?;
        if mig_enabled(&device)? {
            let slices = mig::slices(self.nvml, &device)?;
            for uuid in slices.iter().filter_map(|slice| slice.mig_uuid.as_deref()) {
                pids.extend(self.holders(uuid)?);
            }
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// The complaints about a board.
    pub(super) fn check(&self, gpu_uuid: &str) -> Result<Vec<String>, GpuError> {
        let device = self.device(gpu_uuid)?;
        let used_mib = device.memory_info()?.used >> 20;
        let pids = self.all_holders(gpu_uuid)?;
        let mut out = complaints(&describe(self, &device), &counts(self, &device));
        if !pids.is_empty() {
            out.insert(0, format!("Processes use the board: {pids:?}."));
        } else if !is_memory_free(used_mib, None) {
            out.insert(0, format!("{used_mib} MiB of its memory are in use without a process."));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_is_fit_when_nothing_waits() {
        let fit =
            BoardDescription { mig: Some(true), mig_pending: Some(true), ..BoardDescription::default() };
        assert!(complaints(&fit, &ErrorCounts::default()).is_empty(), "what is not reported is no complaint");
        let old = ErrorCounts { ecc_uncorrected: Some(9), rows_corrected: Some(3), ..ErrorCounts::default() };
        assert!(complaints(&fit, &old).is_empty(), "what was, was");
        let worn = ErrorCounts {
            replacement_pending: Some(true),
            replacement_failed: Some(true),
            recovery: Some(1),
            ..ErrorCounts::default()
        };
        assert_eq!(complaints(&fit, &worn).len(), 3);
        let waits =
            BoardDescription { mig_pending: Some(false), ecc: Some(true), ecc_pending: Some(false), ..fit };
        assert_eq!(complaints(&waits, &ErrorCounts::default()).len(), 2);
    }

    #[test]
    fn memory_is_memory_free_when_it_is_near_what_it_was() {
        assert!(is_memory_free(0, None) && is_memory_free(512, None) && !is_memory_free(513, None));
        assert!(is_memory_free(512, Some(0)), "the driver's own");
        assert!(is_memory_free(2_064, Some(2_000)) && !is_memory_free(2_065, Some(2_000)));
        assert!(is_memory_free(u64::MAX, Some(u64::MAX)));
    }
}
