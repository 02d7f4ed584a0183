//! How boards are: what describes them, what they have counted, and the proof that one is fit for work.

#![expect(unsafe_code, reason = "the wrapper has no call for the rows of memory that were replaced")]

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper_sys::bindings::nvmlFieldValue_t;

use super::library::{Library, mig_enabled};
use super::{GpuError, Gpus, changes, sentence};

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const RECOVERY_ACTION: u32 = 230;
/// What an idle board may have in use without anybody on it, in MiB: the driver's own.
const IDLE_MOST_MIB: u64 = 512;
/// What may come on top of what was in use before, in MiB.
const SLACK_MIB: u64 = 64;

/// What describes a board and hardly ever changes. What NVML does not report is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub serial: Option<String>,
    pub vbios: Option<String>,
    pub pci_bus_id: Option<String>,
    pub compute_capability: Option<String>,
    pub power_limit_watts: Option<u32>,
    pub ecc: Option<bool>,
    pub ecc_pending: Option<bool>,
    /// Absent where the board cannot do MIG.
    pub mig: Option<bool>,
    pub mig_pending: Option<bool>,
    /// Links that are up.
    pub nvlinks: u32,
}

/// What a board has counted since its driver was loaded. What NVML does not report is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub ecc_corrected: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    pub rows_corrected: Option<u32>,
    pub rows_uncorrected: Option<u32>,
    /// Rows or pages of memory wait for a reset to be replaced.
    pub replacement_pending: Option<bool>,
    /// One could not be replaced.
    pub replacement_failed: Option<bool>,
    /// What the driver asks for: 0 nothing, 1 a reset of the board, 2 a reboot, 3 and 4 a drain.
    pub recovery: Option<u32>,
}

/// How a board is at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// Why it does not answer; then the rest is unknown.
    pub silent: Option<String>,
    pub facts: Facts,
    pub counts: Counts,
}

/// Rows replaced for corrected and uncorrected errors, whether some wait for a reset, whether one failed.
fn rows(library: &Library, device: &Device<'_>) -> Option<(u32, u32, bool, bool)> {
    let symbol = library.nvml.lib().nvmlDeviceGetRemappedRows.as_ref().ok()?;
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle is used only for this call, and pointers are to locals of the type it asks for.
    let code = unsafe {
        symbol(device.handle(), &raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed)
    };
    (code == 0).then_some((corrected, uncorrected, pending != 0, failed != 0))
}

/// What the driver wants done with a board.
fn recovery(library: &Library, device: &Device<'_>) -> Option<u32> {
    let symbol = library.nvml.lib().nvmlDeviceGetFieldValues.as_ref().ok()?;
    // SAFETY: a plain C struct, for which zeroes are a value.
    let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    value.fieldId = RECOVERY_ACTION;
    // SAFETY: the handle is used only for this call, and the pointer is to one local of the type it asks for.
    let code = unsafe { symbol(device.handle(), 1, &raw mut value) };
    // SAFETY: the field is an unsigned int, and the union was zeroed before.
    if code == 0 && value.nvmlReturn == 0 { Some(unsafe { value.value.uiVal }) } else { None }
}

fn facts(library: &Library, device: &Device<'_>) -> Facts {
    let ecc = device.is_ecc_enabled().ok();
    let mig = device.mig_mode().ok();
    Facts {
        serial: device.serial().ok(),
        vbios: device.vbios_version().ok(),
        pci_bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
        compute_capability: device.cuda_compute_capability().ok().map(|c| format!("{}.{}", c.major, c.minor)),
        power_limit_watts: device.power_management_limit().ok().map(|milliwatts| milliwatts / 1_000),
        ecc: ecc.as_ref().map(|mode| mode.currently_enabled),
        ecc_pending: ecc.as_ref().map(|mode| mode.pending_enabled),
        mig: mig.as_ref().map(|mode| mode.current == 1),
        mig_pending: mig.as_ref().map(|mode| mode.pending == 1),
        nvlinks: super::nvlink::links(library.nvml, device).active(),
    }
}

fn counts(library: &Library, device: &Device<'_>) -> Counts {
    let ecc = |kind: MemoryError| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
    let rows = rows(library, device);
    // Before Ampere it was pages.
    let pages = device.are_pages_pending_retired().ok();
    Counts {
        ecc_corrected: ecc(MemoryError::Corrected),
        ecc_uncorrected: ecc(MemoryError::Uncorrected),
        rows_corrected: rows.map(|r| r.0),
        rows_uncorrected: rows.map(|r| r.1),
        replacement_pending: rows.map(|r| r.2).or(pages),
        replacement_failed: rows.map(|r| r.3),
        recovery: recovery(library, device),
    }
}

/// Why a board with these counts is not fit for work, as sentences.
pub fn complaints(facts: &Facts, counts: &Counts) -> Vec<String> {
    let mut out = Vec::new();
    if counts.replacement_failed == Some(true) {
        out.push("Worn memory could not be replaced.".to_owned());
    }
    if counts.replacement_pending == Some(true) {
        out.push("Worn memory is replaced only when the board is reset.".to_owned());
    }
    match counts.recovery.unwrap_or(0) {
        0 => {}
        2 => out.push("The driver asks for a reboot of the host.".to_owned()),
        _ => out.push("The driver asks for a reset of the board.".to_owned()),
    }
    if facts.mig != facts.mig_pending {
        out.push("Its MIG mode changes only when the board is reset.".to_owned());
    }
    if facts.ecc != facts.ecc_pending {
        out.push("Its ECC mode changes only when the board is reset.".to_owned());
    }
    out
}

impl Gpus {
    /// How every known board is.
    pub fn conditions(&self) -> Vec<(String, Condition)> {
        let look = |uuid: String| {
            let condition = self.condition(&uuid);
            (uuid, condition)
        };
        self.known().into_iter().map(look).collect()
    }

    fn condition(&self, gpu_uuid: &str) -> Condition {
        let gpu = gpu_uuid.to_owned();
        let looked = self.look(gpu_uuid, move |library| {
            let device = library.device(&gpu)?;
            device.memory_info()?;
            Ok((facts(library, &device), counts(library, &device)))
        });
        match looked {
            // A change that hangs is as bad.
            Ok(_) if self.lanes.is_stuck(&changes(gpu_uuid)) => {
                Condition { silent: Some(sentence(&GpuError::Unresponsive)), ..Condition::default() }
            }
            Ok((facts, counts)) => Condition { silent: None, facts, counts },
            Err(error) => Condition { silent: Some(sentence(&error)), ..Condition::default() },
        }
    }

    /// Proves that a board is fit for work: it answers, nobody is on it, its memory is given back, and
    /// nothing waits for a reset. Why not, in sentences, when it is not.
    pub fn check(&self, gpu_uuid: &str) -> Result<(), String> {
        let gpu = gpu_uuid.to_owned();
        let looked = self.change(gpu_uuid, move |library| library.check(&gpu));
        let complaints = looked.map_err(|error| sentence(&error))?;
        if complaints.is_empty() { Ok(()) } else { Err(complaints.join(" ")) }
    }

    /// MiB in use on a board.
    pub fn used_mib(&self, gpu_uuid: &str) -> Result<u64, GpuError> {
        let gpu = gpu_uuid.to_owned();
        self.look(gpu_uuid, move |library| Ok(library.device(&gpu)?.memory_info()?.used >> 20))
    }
}

/// Whether a board's memory is given back, when so much was in use before.
pub fn is_given_back(used_mib: u64, before_mib: Option<u64>) -> bool {
    used_mib <= before_mib.map_or(IDLE_MOST_MIB, |before| IDLE_MOST_MIB.max(before.saturating_add(SLACK_MIB)))
}

impl Library {
    fn check(&self, gpu_uuid: &str) -> Result<Vec<String>, GpuError> {
        let device = self.device(gpu_uuid)?;
        let used_mib = device.memory_info()?.used >> 20;
        let mut pids = self.holders(gpu_uuid)?;
        if mig_enabled(&device)? {
            let slices = super::mig::slices(self.nvml, &device)?;
            for uuid in slices.iter().filter_map(|slice| slice.mig_uuid.as_deref()) {
                pids.extend(self.holders(uuid)?);
            }
        }
        pids.sort_unstable();
        pids.dedup();
        let mut out = complaints(&facts(self, &device), &counts(self, &device));
        if !pids.is_empty() {
            out.insert(0, format!("Processes are on it: {pids:?}."));
        } else if !is_given_back(used_mib, None) {
            out.insert(0, format!("{used_mib} MiB are in use on it, and no process is."));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_is_fit_when_nothing_waits() {
        let fit = Facts { mig: Some(true), mig_pending: Some(true), ..Facts::default() };
        assert!(complaints(&fit, &Counts::default()).is_empty(), "what is not reported is no complaint");
        let old = Counts { ecc_uncorrected: Some(9), rows_corrected: Some(3), ..Counts::default() };
        assert!(complaints(&fit, &old).is_empty(), "what was, was");
        let worn = Counts {
            replacement_pending: Some(true),
            replacement_failed: Some(true),
            recovery: Some(1),
            ..Counts::default()
        };
        assert_eq!(complaints(&fit, &worn).len(), 3);
        let waits = Facts { mig_pending: Some(false), ecc: Some(true), ecc_pending: Some(false), ..fit };
        assert_eq!(complaints(&waits, &Counts::default()).len(), 2);
    }

    #[test]
    fn memory_is_given_back_when_it_is_near_what_it_was() {
        assert!(is_given_back(0, None) && is_given_back(512, None) && !is_given_back(513, None));
        assert!(is_given_back(512, Some(0)), "the driver's own");
        assert!(is_given_back(2_064, Some(2_000)) && !is_given_back(2_065, Some(2_000)));
        assert!(is_given_back(u64::MAX, Some(u64::MAX)));
    }
}
