//! Readings of boards and slices. What the driver does not report is absent, never zero.

use std::sync::PoisonError;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::gpm::GpmMetricId;
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
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Gpus {
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
        })
    }

    /// How busy a slice was since it was asked about last; absent the first time, and on boards
    /// without performance monitoring.
    fn slice_utilization(&self, board: &Device<'static>, gpu_uuid: &str, slice: &Device<'_>) -> Option<f64> {
        if !board.gpm_support().ok()? {
            return None;
        }
        let gi = super::mig::instance_of(self.nvml.lib(), slice).ok()?;
        let sample = board.gpm_mig_sample(gi).ok()?;
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (gpu_uuid.to_owned(), gi);
        let percent = samples.get(&key).and_then(|before| {
            let metrics = gpm_metrics_get(self.nvml, before, &sample, &[GpmMetricId::GraphicsUtil]).ok()?;
            metrics.into_iter().next()?.ok().map(|m| m.value)
        });
        samples.insert(key, sample);
        percent
    }
}
