//! NVML calls that only monitoring programs make: limits, modes, links to the host, and what a board does not have.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlBrandType_enum_NVML_BRAND_GEFORCE as GEFORCE,
    nvmlBrandType_enum_NVML_BRAND_NVIDIA as NVIDIA, nvmlBrandType_t, nvmlClockType_t, nvmlComputeMode_t,
    nvmlConfComputeMemSizeInfo_t, nvmlDevice_t, nvmlDeviceArchitecture_t, nvmlEnableState_t, nvmlPstates_t,
    nvmlTemperature_t, nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_COUNT as THRESHOLDS,
    nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX as GPU_MAX,
    nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX as MEM_MAX,
    nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN as SHUTDOWN,
    nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN as SLOWDOWN,
    nvmlTemperatureThresholds_t,
};

use crate::boards::{Handle, celsius, nvml, on_board, on_whole_board};
use crate::details::{board_at, bus_of_board, greatest_mhz};
use crate::fault::Fault;
use crate::sheets::{Sheet, data_sheet};
use crate::world::look;
use crate::{answer, put, put_rows};

/// The period of the utilization of the engines for video.
const PERIOD_US: c_uint = 167_000;
/// The clocks of multiprocessors are apart by this, and begin at the least.
const CLOCK_STEP_MHZ: usize = 15;
const LEAST_SM_MHZ: c_uint = 210;

/// The sheet of a whole board.
fn sheet_of_whole(device: nvmlDevice_t) -> Result<&'static Sheet, Fault> {
    on_whole_board(device, |_, board| data_sheet(board))
}

/// Writes a number about a whole board.
///
/// # Safety
/// `out` is null or valid.
unsafe fn put_number(
    device: nvmlDevice_t,
    out: *mut c_uint,
    number: impl FnOnce(&Sheet) -> Result<c_uint, Fault>,
) -> Result<(), Fault> {
    let number = number(sheet_of_whole(device)?)?;
    // SAFETY: null or valid, by this function's contract.
    unsafe { put(out, number) }
}

/// The answer about what a board does not have.
fn absent(device: nvmlDevice_t) -> Result<(), Fault> {
    on_whole_board(device, |_, _| Err(Fault::NotSupported))
}

/// Writes the utilization of an engine for video: simulated processes use none. The driver has none under MIG.
///
/// # Safety
/// `out` and `period_us` are null or valid.
unsafe fn put_idle_engine(
    device: nvmlDevice_t,
    out: *mut c_uint,
    period_us: *mut c_uint,
) -> Result<(), Fault> {
    on_whole_board(device, |sim, _| if sim.mig { Err(Fault::NotSupported) } else { Ok(()) })?;
    // SAFETY: null or valid, by this function's contract.
    unsafe {
        put(out, 0)?;
        put(period_us, PERIOD_US)
    }
}

/// The temperature of a threshold.
fn threshold(sheet: &Sheet, kind: nvmlTemperatureThresholds_t) -> Result<c_uint, Fault> {
    let celsius = match kind {
        SHUTDOWN => sheet.shutdown_celsius,
        SLOWDOWN => sheet.slowdown_celsius,
        MEM_MAX => sheet.max_memory_celsius,
        GPU_MAX => sheet.max_gpu_celsius,
        // Simulated boards have none of the others.
        kind if kind < THRESHOLDS => None,
        _ => return Err(Fault::InvalidArgument),
    };
    celsius.ok_or(Fault::NotSupported)
}

/// The MiB of BAR1 of a board, or the share of a slice.
fn bar1_mib(device: nvmlDevice_t) -> Result<u64, Fault> {
    on_board(device, |sim, board, instance| {
        let total = data_sheet(board)?.bar1_mib.ok_or(Fault::NotSupported)?;
        let Some(id) = instance else { return Ok(total) };
        let profile = board.profile(sim.instance(id)?.placed.profile_id).ok_or(Fault::Unknown)?;
        Ok((total * u64::from(profile.size) / u64::from(board.memory_slices.max(1))).saturating_sub(1))
    })
}

nvml! {
    fn nvmlSystemGetCudaDriverVersion(out: *mut c_int) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, 13_000) }
    }
    fn nvmlDeviceGetHandleByPciBusId_v2(address: *const c_char, out: *mut nvmlDevice_t) {
        if address.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and NUL-terminated by NVML's contract.
        let address = unsafe { CStr::from_ptr(address) }.to_str().map_err(|_| Fault::InvalidArgument)?;
        let index = board_at(address).ok_or(Fault::NotFound)?;
        look(|world| {
            let known = index < world.boards.len();
            if known { world.board(index).map(|_| ()) } else { Err(Fault::NotFound) }
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, Handle::Board(index).dress()) }
    }
    fn nvmlDeviceGetBrand(device: nvmlDevice_t, out: *mut nvmlBrandType_t) {
        let is_game = |name: &String| name.contains("GeForce");
        let game = on_whole_board(device, |_, board| Ok(board.names.iter().any(is_game)))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, if game { GEFORCE } else { NVIDIA }) }
    }
    fn nvmlDeviceGetArchitecture(device: nvmlDevice_t, out: *mut nvmlDeviceArchitecture_t) {
        let architecture = on_board(device, |_, board, _| Ok(data_sheet(board)?.architecture))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, architecture) }
    }
    fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, out: *mut nvmlComputeMode_t) {
        on_board(device, |_, _, _| Ok(()))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, 0) }
    }
    fn nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, out: *mut nvmlEnableState_t) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |_| Ok(1)) }
    }
    fn nvmlDeviceGetDisplayMode(device: nvmlDevice_t, _out: *mut nvmlEnableState_t) {
        // Drivers of the simulated version answer so.
        on_whole_board(device, |_, _| Err(Fault::Deprecated))
    }
    fn nvmlDeviceGetDisplayActive(device: nvmlDevice_t, out: *mut nvmlEnableState_t) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |_| Ok(0)) }
    }
    fn nvmlDeviceGetPerformanceState(device: nvmlDevice_t, out: *mut nvmlPstates_t) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |_| Ok(0)) }
    }
    fn nvmlDeviceGetPowerState(device: nvmlDevice_t, out: *mut nvmlPstates_t) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |_| Ok(0)) }
    }
    fn nvmlDeviceGetMaxClockInfo(device: nvmlDevice_t, kind: nvmlClockType_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |sheet| greatest_mhz(sheet, kind)) }
    }
    fn nvmlDeviceGetApplicationsClock(device: nvmlDevice_t, kind: nvmlClockType_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |sheet| greatest_mhz(sheet, kind)) }
    }
    fn nvmlDeviceGetDefaultApplicationsClock(device: nvmlDevice_t, kind: nvmlClockType_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |sheet| greatest_mhz(sheet, kind)) }
    }
    fn nvmlDeviceGetSupportedMemoryClocks(device: nvmlDevice_t, count: *mut c_uint, out: *mut c_uint) {
        let sheet = sheet_of_whole(device)?;
        if count.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and `out` holds `*count` numbers, by NVML's contract.
        unsafe { put_rows(count, out, &[sheet.memory_mhz]) }
    }
    fn nvmlDeviceGetSupportedGraphicsClocks(device: nvmlDevice_t, memory_mhz: c_uint, count: *mut c_uint, out: *mut c_uint) {
        let sheet = sheet_of_whole(device)?;
        if count.is_null() {
            return Err(Fault::InvalidArgument);
        }
        if memory_mhz != sheet.memory_mhz {
            return Err(Fault::NotFound);
        }
        let rows: Vec<c_uint> = (LEAST_SM_MHZ..=sheet.sm_mhz).rev().step_by(CLOCK_STEP_MHZ).collect();
        // SAFETY: not null, and `out` holds `*count` numbers, by NVML's contract.
        unsafe { put_rows(count, out, &rows) }
    }
    fn nvmlDeviceGetFanSpeed(device: nvmlDevice_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |sheet| if sheet.fan { Ok(0) } else { Err(Fault::NotSupported) }) }
    }
    fn nvmlDeviceGetTemperatureV(device: nvmlDevice_t, out: *mut nvmlTemperature_t) {
        if out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and the caller has set its version and its sensor.
        let asked = unsafe { out.read() };
        if asked.version as usize != size_of::<nvmlTemperature_t>() | 1 << 24 {
            return Err(Fault::VersionMismatch);
        }
        if asked.sensorType != 0 {
            return Err(Fault::InvalidArgument);
        }
        let temperature = on_whole_board(device, |sim, _| Ok(celsius(sim)))?.cast_signed();
        // SAFETY: not null, and valid by NVML's contract.
        unsafe { put(out, nvmlTemperature_t { temperature, ..asked }) }
    }
    fn nvmlDeviceGetEncoderUtilization(device: nvmlDevice_t, out: *mut c_uint, period_us: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_idle_engine(device, out, period_us) }
    }
    fn nvmlDeviceGetDecoderUtilization(device: nvmlDevice_t, out: *mut c_uint, period_us: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_idle_engine(device, out, period_us) }
    }
    fn nvmlDeviceGetBAR1MemoryInfo(device: nvmlDevice_t, out: *mut nvmlBAR1Memory_t) {
        let total = bar1_mib(device)? << 20;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, nvmlBAR1Memory_t { bar1Total: total, bar1Free: total, bar1Used: 0 }) }
    }
    fn nvmlDeviceGetConfComputeMemSizeInfo(device: nvmlDevice_t, out: *mut nvmlConfComputeMemSizeInfo_t) {
        let unprotected = on_whole_board(device, |_, board| Ok(board.total_memory_mib << 10))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, nvmlConfComputeMemSizeInfo_t { protectedMemSizeKib: 0, unprotectedMemSizeKib: unprotected }) }
    }
    fn nvmlDeviceGetEnforcedPowerLimit(device: nvmlDevice_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |sheet| Ok(sheet.default_watts * 1_000)) }
    }
    fn nvmlDeviceGetPowerManagementDefaultLimit(device: nvmlDevice_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |sheet| Ok(sheet.default_watts * 1_000)) }
    }
    fn nvmlDeviceGetPowerManagementLimitConstraints(device: nvmlDevice_t, least: *mut c_uint, most: *mut c_uint) {
        let sheet = sheet_of_whole(device)?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe {
            put(least, sheet.min_watts * 1_000)?;
            put(most, sheet.max_watts * 1_000)
        }
    }
    fn nvmlDeviceGetPowerManagementMode(device: nvmlDevice_t, out: *mut nvmlEnableState_t) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |_| Ok(1)) }
    }
    fn nvmlDeviceGetMaxPcieLinkGeneration(device: nvmlDevice_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |sheet| Ok(sheet.pcie_generation)) }
    }
    fn nvmlDeviceGetCurrPcieLinkGeneration(device: nvmlDevice_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |sheet| Ok(sheet.pcie_generation)) }
    }
    fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |sheet| Ok(sheet.pcie_width)) }
    }
    fn nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |sheet| Ok(sheet.pcie_width)) }
    }
    fn nvmlDeviceGetPcieReplayCounter(device: nvmlDevice_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |_| Ok(0)) }
    }
    fn nvmlDeviceGetMultiGpuBoard(device: nvmlDevice_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |_| Ok(0)) }
    }
    fn nvmlDeviceGetBoardId(device: nvmlDevice_t, out: *mut c_uint) {
        let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |_| Ok(bus_of_board(index) << 8)) }
    }
    fn nvmlDeviceGetAccountingMode(device: nvmlDevice_t, out: *mut nvmlEnableState_t) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |_| Ok(0)) }
    }
    fn nvmlDeviceGetAccountingBufferSize(device: nvmlDevice_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |_| Ok(4_000)) }
    }
    fn nvmlDeviceGetAccountingPids(device: nvmlDevice_t, count: *mut c_uint, _out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, count, |_| Ok(0)) }
    }
    fn nvmlDeviceGetTemperatureThreshold(device: nvmlDevice_t, kind: nvmlTemperatureThresholds_t, out: *mut c_uint) {
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put_number(device, out, |sheet| threshold(sheet, kind)) }
    }
    fn nvmlDeviceGetAutoBoostedClocksEnabled(device: nvmlDevice_t, _is: *mut nvmlEnableState_t, _usual: *mut nvmlEnableState_t) {
        absent(device)
    }
    fn nvmlDeviceGetBridgeChipInfo(device: nvmlDevice_t, _out: *mut c_void) { absent(device) }
    fn nvmlDeviceGetDriverModel(device: nvmlDevice_t, _is: *mut c_uint, _pending: *mut c_uint) { absent(device) }
    fn nvmlDeviceGetDriverModel_v2(device: nvmlDevice_t, _is: *mut c_uint, _pending: *mut c_uint) { absent(device) }
    fn nvmlDeviceGetGpuOperationMode(device: nvmlDevice_t, _is: *mut c_uint, _pending: *mut c_uint) { absent(device) }
    fn nvmlDeviceGetInforomImageVersion(device: nvmlDevice_t, _out: *mut c_char, _length: c_uint) { absent(device) }
    fn nvmlDeviceGetInforomVersion(device: nvmlDevice_t, _object: c_uint, _out: *mut c_char, _length: c_uint) {
        absent(device)
    }
    fn nvmlDeviceGetRunningProcessDetailList(device: nvmlDevice_t, _out: *mut c_void) { absent(device) }
}
