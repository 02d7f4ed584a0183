//! GPU performance monitoring: how busy a board or a slice was between two samples.
//!
//! A sample is how much processor time the device's processes had used when it was taken. Only boards
//! that have it answer. This is the one place whose opaque pointers are followed: a sample is memory
//! that the caller allocates and frees by calls.

use std::ffi::c_uint;
use std::time::Instant;

use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION as VERSION, nvmlDevice_t, nvmlGpmMetricId_t,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL as GRAPHICS_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL as SM_UTIL, nvmlGpmMetricsGet_t, nvmlGpmSample_t,
    nvmlGpmSupport_t,
};

use crate::boards::{device_uuids, nvml, on_whole_board};
use crate::fault::Fault;
use crate::load::{Load, TICKS_A_SECOND, for_sample};
use crate::{answer, put};

const KNOWN: [nvmlGpmMetricId_t; 2] = [GRAPHICS_UTIL, SM_UTIL];

/// What a sample points at; `None` until it was taken.
struct Taken(Option<(Instant, u64)>);

fn take(device: nvmlDevice_t, instance: Option<u32>, sample: nvmlGpmSample_t) -> Result<(), Fault> {
    if sample.is_null() {
        return Err(Fault::InvalidArgument);
    }
    let taken = on_whole_board(device, |sim, board| {
        if !board.gpm {
            return Err(Fault::NotSupported);
        }
        if let Some(id) = instance {
            sim.instance(id)?;
        }
        let scan = for_sample((device.addr(), instance));
        let loads: Vec<Load> = device_uuids(sim, instance).iter().map(|uuid| scan.load(uuid)).collect();
        let at = loads.iter().map(|load| load.at).max().unwrap_or(scan.at);
        Ok((at, loads.iter().map(|load| load.ticks).sum::<u64>()))
    })?;
    // SAFETY: not null, and allocated by the call below, by NVML's contract.
    unsafe { *sample.cast::<Taken>() = Taken(Some(taken)) };
    Ok(())
}

/// When and what a sample was, if it was taken.
fn read(sample: nvmlGpmSample_t) -> Result<(Instant, u64), Fault> {
    if sample.is_null() {
        return Err(Fault::InvalidArgument);
    }
    // SAFETY: not null, and allocated by the call below, by NVML's contract.
    unsafe { &*sample.cast::<Taken>() }.0.ok_or(Fault::InvalidArgument)
}

nvml! {
    fn nvmlGpmQueryDeviceSupport(device: nvmlDevice_t, out: *mut nvmlGpmSupport_t) {
        if out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and the caller has set its version.
        if unsafe { (*out).version } != VERSION {
            return Err(Fault::VersionMismatch);
        }
        let has = on_whole_board(device, |_, board| Ok(board.gpm))?;
        // SAFETY: not null, and valid by NVML's contract.
        unsafe { put(out, nvmlGpmSupport_t { version: VERSION, isSupportedDevice: c_uint::from(has) }) }
    }
    fn nvmlGpmSampleAlloc(out: *mut nvmlGpmSample_t) {
        if out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and valid by NVML's contract.
        unsafe { put(out, Box::into_raw(Box::new(Taken(None))).cast()) }
    }
    fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) {
        if sample.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and made by the call above and freed once, by NVML's contract.
        drop(unsafe { Box::from_raw(sample.cast::<Taken>()) });
        Ok(())
    }
    fn nvmlGpmSampleGet(device: nvmlDevice_t, sample: nvmlGpmSample_t) {
        take(device, None, sample)
    }
    fn nvmlGpmMigSampleGet(device: nvmlDevice_t, instance: c_uint, sample: nvmlGpmSample_t) {
        take(device, Some(instance), sample)
    }
    fn nvmlGpmMetricsGet(request: *mut nvmlGpmMetricsGet_t) {
        if request.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and valid by NVML's contract.
        let request = unsafe { &mut *request };
        if request.version != VERSION {
            return Err(Fault::VersionMismatch);
        }
        if request.numMetrics as usize > request.metrics.len() {
            return Err(Fault::InvalidArgument);
        }
        let ((from, before), (to, after)) = (read(request.sample1)?, read(request.sample2)?);
        let wall_s = to.saturating_duration_since(from).as_secs_f64();
        if wall_s <= 0.0 {
            return Err(Fault::InvalidArgument);
        }
        // A process that has gone takes its time with it.
        let busy_s = after.saturating_sub(before) as f64 / TICKS_A_SECOND;
        let percent = (100.0 * busy_s / wall_s).clamp(0.0, 100.0);
        for metric in request.metrics.iter_mut().take(request.numMetrics as usize) {
            let known = KNOWN.contains(&metric.metricId);
            metric.nvmlReturn = if known { 0 } else { Fault::NotSupported.code() };
            metric.value = if known { percent } else { 0.0 };
        }
        Ok(())
    }
}
