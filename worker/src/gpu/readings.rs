//! Readings of boards and slices. What the driver does not report is absent, never zero.

use std::sync::PoisonError;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;

use super::{GpuError, Gpus, mig_enabled};

/// One reading of a board or a slice.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    /// Share of the time in which the graphics or compute engine was busy, 0 to 1.
    pub engine_active: Option<f64>,
}

/// Whether a device is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It answered.
    There,
    /// It was asked and did not answer: its board is off the bus or wants a reset, or its instance is gone.
    Gone,
    /// The library could not be asked, which says nothing about the device.
    Unknown,
}

/// Asks a device for something that only it knows.
fn asked(device: &Device<'_>) -> Result<(), NvmlError> {
    match device.memory_info() {
        // Some boards have no memory of their own to tell of.
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

impl Gpus {
    /// Whether a board, or a slice of it, answers.
    pub fn presence(&self, gpu_uuid: &str, mig_uuid: Option<&str>) -> Presence {
        let found = self.nvml.device_by_uuid(mig_uuid.unwrap_or(gpu_uuid)).and_then(|d| asked(&d));
        match found {
            Ok(()) => Presence::There,
            // NVML's search by UUID may also stop at another board that is lost.
            Err(NvmlError::GpuLost) if self.answers_by_index(gpu_uuid, mig_uuid) => Presence::There,
            Err(error) if is_gone(&error) => Presence::Gone,
            Err(_) => Presence::Unknown,
        }
    }

    fn answers_by_index(&self, gpu_uuid: &str, mig_uuid: Option<&str>) -> bool {
        let is = |device: &Device<'_>, uuid: &str| device.uuid().is_ok_and(|own| own == uuid);
        let count = self.nvml.device_count().unwrap_or(0);
        let mut boards = (0..count).filter_map(|index| self.nvml.device_by_index(index).ok());
        let Some(board) = boards.find(|board| is(board, gpu_uuid)) else { return false };
        let Some(slice) = mig_uuid else { return asked(&board).is_ok() };
        (0..board.mig_device_count().unwrap_or(0))
            .filter_map(|index| board.mig_device_by_index(index).ok())
            .any(|device| is(&device, slice) && asked(&device).is_ok())
    }

    /// Reads a board, or a slice of it.
    pub fn read(&self, gpu_uuid: &str, mig_uuid: Option<&str>) -> Result<Reading, GpuError> {
        let board = self.device(gpu_uuid)?;
        let memory_of = match mig_uuid {
            Some(uuid) => self.device(uuid)?,
            None => self.device(gpu_uuid)?,
        };
        let memory = memory_of.memory_info()?;
        let utilization_percent = match mig_uuid {
            None if mig_enabled(&board)? => None,
            None => board.utilization_rates().ok().map(|u| f64::from(u.gpu)),
            Some(_) => self.slice_utilization(&board, gpu_uuid, &memory_of),
        };
        Ok(Reading {
            utilization_percent,
            memory_used_mib: Some(mib(memory.used)),
            memory_total_mib: mib(memory.total),
            power_watts: board.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1_000.0),
            temperature_celsius: board.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
            sm_clock_mhz: None,
            memory_clock_mhz: None,
            energy_millijoules: None,
            engine_active: None,
        })
    }

    /// How busy a slice was since it was asked about last; absent the first time, and on boards
    /// without performance monitoring.
    fn slice_utilization(&self, board: &Device<'static>, gpu_uuid: &str, slice: &Device<'_>) -> Option<f64> {
        if !board.gpm_support().ok()? {
            return None;
        }
        let gi = super::mig::instance_of(self.nvml.lib(), slice).ok()?;
        self.busy_percent(board, gpu_uuid, Some(gi))
    }

    /// How busy a board, or a GPU instance of it, was since it was asked about last; absent the first time.
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
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        // No instance has this number.
        let key = (gpu_uuid.to_owned(), instance.unwrap_or(u32::MAX));
        let percent = samples.get(&key).and_then(|before| {
            let metrics = gpm_metrics_get(self.nvml, before, &sample, &[GpmMetricId::GraphicsUtil]).ok()?;
            metrics.into_iter().next()?.ok().map(|m| m.value)
        });
        samples.insert(key, sample);
        percent
    }
}
