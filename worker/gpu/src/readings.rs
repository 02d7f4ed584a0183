//! Readings of boards and slices. A value that the driver does not report is absent, never zero.

#![expect(unsafe_code, reason = "the wrapper cannot ask for all links of a board at once")]

use std::time::Instant;

use berth_system::sync::lock;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, PcieUtilCounter, TemperatureSensor};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper_sys::bindings::{field_id, nvmlFieldValue_t};
use serde::{Deserialize, Serialize};

use super::error::GpuError;
use super::library::{Library, mig_enabled};
use super::mig;

/// The counters of all links of a board, in KiB.
const NVLINK_SENT: u32 = field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX;
const NVLINK_RECEIVED: u32 = field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
/// All links together.
const ALL_LINKS: u32 = u32::MAX;

/// One reading of a board or a slice.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    pub utilization_percent: Option<f64>,
    pub memory_used_mib: Option<f64>,
    pub memory_total_mib: f64,
    /// Of the whole board.
    pub power_watts: Option<f64>,
    /// Of the whole board.
    pub temperature_celsius: Option<f64>,
    /// Of the whole board, like the next two.
    pub sm_clock_mhz: Option<f64>,
    pub memory_clock_mhz: Option<f64>,
    /// Since the driver was loaded.
    pub energy_millijoules: Option<f64>,
    /// The busy share of the graphics and compute engine, 0 to 1.
    pub engine_active: Option<f64>,
    /// NVML's bits (`nvmlClocksEventReason*`) for the reasons of lower clocks. This and all that follows is of the
    /// whole board, and absent in the reading of a slice.
    pub throttle_reasons: Option<u64>,
    /// Kilobytes a second according to NVML.
    pub pcie_received_kb_s: Option<f64>,
    pub pcie_sent_kb_s: Option<f64>,
    /// Kibibytes a second over all links, since the previous reading.
    pub nvlink_received_kib_s: Option<f64>,
    pub nvlink_sent_kib_s: Option<f64>,
}

/// The presence of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    /// It answered.
    There,
    /// It did not answer: its board is off the bus or needs a reset, or its instance is gone.
    Gone,
    /// The library did not work, which proves nothing about the device.
    Unknown,
}

/// Reads a value that only the device itself has.
fn probe(device: &Device<'_>) -> Result<(), NvmlError> {
    match device.memory_info() {
        // Some boards have no memory of their own.
        Ok(_) | Err(NvmlError::NotSupported) => Ok(()),
        Err(other) => Err(other),
    }
}

const fn is_gone(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::GpuLost
            | NvmlError::NotFound
            | NvmlError::InvalidArg
            | NvmlError::ResetRequired
            | NvmlError::InsufficientPower
            | NvmlError::IrqIssue
            | NvmlError::Timeout
    )
}

pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A counter over all links of a board.
fn over_all_links(library: &Library, device: &Device<'_>, field: u32) -> Option<u64> {
    let symbol = library.nvml.lib().nvmlDeviceGetFieldValues.as_ref().ok()?;
    // SAFETY: a plain C struct, for which zeroes are a value.
    let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    value.fieldId = field;
    value.scopeId = ALL_LINKS;
    // SAFETY: the handle is used only for this call, and the pointer is to one local of the type it asks for.
    let code = unsafe { symbol(device.handle(), 1, &raw mut value) };
    // SAFETY: the field is an unsigned long long, and the union was zeroed before.
    if code == 0 && value.nvmlReturn == 0 { Some(unsafe { value.value.ullVal }) } else { None }
}

/// The reading of a board without its utilization. Clocks and power apply to its slices too.
pub(super) fn board_reading(board: &Device<'_>) -> Result<Reading, GpuError> {
    let memory = board.memory_info()?;
    let clock = |kind: Clock| board.clock_info(kind).ok().map(f64::from);
    Ok(Reading {
        utilization_percent: None,
        memory_used_mib: Some(mib(memory.used)),
        memory_total_mib: mib(memory.total),
        power_watts: board.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1_000.0),
        temperature_celsius: board.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
        sm_clock_mhz: clock(Clock::SM),
        memory_clock_mhz: clock(Clock::Memory),
        energy_millijoules: board.total_energy_consumption().ok().map(|millijoules| millijoules as f64),
        engine_active: None,
        throttle_reasons: None,
        pcie_received_kb_s: None,
        pcie_sent_kb_s: None,
        nvlink_received_kib_s: None,
        nvlink_sent_kib_s: None,
    })
}

impl Library {
    pub(super) fn presence(&self, gpu_uuid: &str, mig_uuid: Option<&str>) -> Presence {
        let found = self.nvml.device_by_uuid(mig_uuid.unwrap_or(gpu_uuid)).and_then(|d| probe(&d));
        match found {
            Ok(()) => Presence::There,
            // NVML's search by UUID may stop at another board that is lost.
            Err(NvmlError::GpuLost) if self.answers_by_index(gpu_uuid, mig_uuid) => Presence::There,
            Err(error) if is_gone(&error) => Presence::Gone,
            Err(_) => Presence::Unknown,
        }
    }

    fn answers_by_index(&self, gpu_uuid: &str, mig_uuid: Option<&str>) -> bool {
        let Some(board) = self.by_index(gpu_uuid) else { return false };
        let Some(slice) = mig_uuid else { return probe(&board).is_ok() };
        (0..board.mig_device_count().unwrap_or(0))
            .filter_map(|index| board.mig_device_by_index(index).ok())
            .any(|device| device.uuid().is_ok_and(|own| own == slice) && probe(&device).is_ok())
    }

    pub(super) fn read(&self, gpu_uuid: &str, mig_uuid: Option<&str>) -> Result<Reading, GpuError> {
        let board = self.device(gpu_uuid)?;
        let mut reading = board_reading(&board)?;
        let Some(uuid) = mig_uuid else {
            if !mig_enabled(&board)? {
                reading.utilization_percent = board.utilization_rates().ok().map(|u| f64::from(u.gpu));
            }
            self.add_board_values(&board, gpu_uuid, &mut reading);
            return Ok(reading);
        };
        let slice = self.device(uuid)?;
        let memory = slice.memory_info()?;
        reading.memory_used_mib = Some(mib(memory.used));
        reading.memory_total_mib = mib(memory.total);
        reading.utilization_percent = self.slice_utilization(&board, gpu_uuid, &slice);
        Ok(reading)
    }

    /// Adds the values that only a whole board has.
    pub(super) fn add_board_values(&self, board: &Device<'_>, gpu_uuid: &str, reading: &mut Reading) {
        let pcie = |way: PcieUtilCounter| board.pcie_throughput(way).ok().map(f64::from);
        reading.throttle_reasons = board.current_throttle_reasons().ok().map(|reasons| reasons.bits());
        reading.pcie_received_kb_s = pcie(PcieUtilCounter::Receive);
        reading.pcie_sent_kb_s = pcie(PcieUtilCounter::Send);
        let received = over_all_links(self, board, NVLINK_RECEIVED);
        let sent = over_all_links(self, board, NVLINK_SENT);
        let (Some(received), Some(sent)) = (received, sent) else { return };
        let now = Instant::now();
        let before = lock(&self.carried).insert(gpu_uuid.to_owned(), (now, received, sent));
        let Some((then, received_then, sent_then)) = before else { return };
        let seconds = now.duration_since(then).as_secs_f64();
        // A reset sets the counters back; then there is no rate.
        let rate =
            |new: u64, old: u64| Some(new.checked_sub(old)? as f64 / seconds).filter(|n| n.is_finite());
        reading.nvlink_received_kib_s = rate(received, received_then);
        reading.nvlink_sent_kib_s = rate(sent, sent_then);
    }

    /// The busy share of a slice since its last reading, in percent. `None`: the first reading, or no performance
    /// monitoring.
    fn slice_utilization(&self, board: &Device<'static>, gpu_uuid: &str, slice: &Device<'_>) -> Option<f64> {
        if !board.gpm_support().ok()? {
            return None;
        }
        let gi = mig::instance_of(self.nvml.lib(), slice).ok()?;
        self.busy_percent(board, gpu_uuid, Some(gi))
    }

    /// The busy share of a board or GPU instance since its last reading, in percent. `None`: the first reading.
    pub(super) fn busy_percent(
        &self,
        board: &Device<'static>,
        gpu_uuid: &str,
        instance: Option<u32>,
    ) -> Option<f64> {
        let sample = match instance {
            Some(gi) => board.gpm_mig_sample(gi).ok()?,
            None => board.gpm_sample().ok()?,
        };
        // No instance has the number `u32::MAX`.
        let key = (gpu_uuid.to_owned(), instance.unwrap_or(u32::MAX));
        // The lock is not held during the call.
        let before = lock(&self.samples).remove(&key);
        let percent = before.and_then(|before| {
            let metrics = gpm_metrics_get(self.nvml, &before, &sample, &[GpmMetricId::GraphicsUtil]).ok()?;
            metrics.into_iter().next()?.ok().map(|m| m.value)
        });
        lock(&self.samples).insert(key, sample);
        percent
    }
}
