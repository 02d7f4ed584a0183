//! MIG instances through NVML's C interface: the wrapper has no calls for them.

#![expect(unsafe_code, reason = "NVML's calls for MIG instances are only there as C symbols")]

use std::mem::{size_of, zeroed};
use std::time::Duration;

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    self, NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstanceProfileInfo_t,
    nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t,
};

use super::board::{MigProfile, Slice};
use super::error::{GpuError, from_code};

/// A bound for the search: NVML answers "invalid argument" after the last profile.
const MOST_PROFILES: u32 = 64;
/// The most instances of one profile on a board.
const MOST_INSTANCES: usize = 16;

/// The tries of a change that finds something in use, and the time between them. The handle of a monitor holds an
/// instance for a moment, and NVML has no event for its release.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(150);

/// Repeats a change while it finds something in use.
pub fn retry_while_in_use<T>(change: impl Fn() -> Result<T, GpuError>) -> Result<T, GpuError> {
    for _ in 1..TRIES {
        match change() {
            Err(GpuError::InUse) => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    change()
}

fn check(code: u32) -> Result<(), GpuError> {
    if code == 0 { Ok(()) } else { Err(from_code(code)) }
}

macro_rules! call {
    ($lib:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let symbol = $lib.$name.as_ref().map_err(|_| GpuError::Nvml(concat!(stringify!($name), " is missing").to_owned()))?;
        // SAFETY: handles come from this library, and pointers are to locals of the sizes it asks for.
        unsafe { symbol($($arg),*) }
    }};
}

/// A board's GPU instance profiles.
fn profile_infos(
    lib: &NvmlLib,
    device: &Device<'_>,
) -> Result<Vec<nvmlGpuInstanceProfileInfo_v2_t>, GpuError> {
    let mut out = Vec::new();
    for index in 0..MOST_PROFILES {
        // SAFETY: a plain C struct, for which zeroes are a value.
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { zeroed() };
        info.version = u32::try_from(size_of::<nvmlGpuInstanceProfileInfo_v2_t>()).unwrap_or(0) | 2 << 24;
        // SAFETY: the handle is used only for this call.
        let handle = unsafe { device.handle() };
        match call!(lib, nvmlDeviceGetGpuInstanceProfileInfoV(handle, index, &raw mut info)) {
            0 => out.push(info),
            bindings::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => {}
            bindings::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => break,
            other => return Err(from_code(other)),
        }
    }
    Ok(out)
}

/// The ids of a board's GPU instance profiles, each with its memory in MiB.
pub fn profiles(lib: &NvmlLib, device: &Device<'_>) -> Result<Vec<(u32, u64)>, GpuError> {
    Ok(profile_infos(lib, device)?.iter().map(|info| (info.id, info.memorySizeMB)).collect())
}

/// The name of a profile, such as 1g.10gb.
fn profile_name(info: &nvmlGpuInstanceProfileInfo_v2_t) -> String {
    let bytes = info.name.iter().map(|c| u8::from_ne_bytes(c.to_ne_bytes()));
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8_lossy(&bytes);
    text.strip_prefix("MIG ").unwrap_or(&text).to_owned()
}

/// The names of a board's GPU instance profiles by their ids, such as 1g.10gb.
pub fn profile_names(lib: &NvmlLib, device: &Device<'_>) -> Result<Vec<(u32, String)>, GpuError> {
    Ok(profile_infos(lib, device)?.iter().map(|info| (info.id, profile_name(info))).collect())
}

/// The profiles of a board in MIG mode with their possible placements.
pub fn profile_table(lib: &NvmlLib, device: &Device<'_>) -> Result<Vec<MigProfile>, GpuError> {
    let mut out = Vec::new();
    for info in profile_infos(lib, device)? {
        let placements = placements(lib, device, info.id)?;
        out.push(MigProfile {
            id: info.id,
            name: profile_name(&info),
            size: placements.first().map_or(0, |placement| placement.size),
            starts: placements.iter().map(|placement| placement.start).collect(),
            memory_mib: info.memorySizeMB,
        });
    }
    Ok(out)
}

fn instances(
    lib: &NvmlLib,
    device: &Device<'_>,
    profile_id: u32,
) -> Result<Vec<nvmlGpuInstance_t>, GpuError> {
    let mut rows: [nvmlGpuInstance_t; MOST_INSTANCES] = [std::ptr::null_mut(); MOST_INSTANCES];
    let mut count = 0;
    // SAFETY: the handle is used only for this call.
    let handle = unsafe { device.handle() };
    check(call!(lib, nvmlDeviceGetGpuInstances(handle, profile_id, rows.as_mut_ptr(), &raw mut count)))?;
    Ok(rows.into_iter().take(count as usize).collect())
}

fn info(lib: &NvmlLib, instance: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t, GpuError> {
    // SAFETY: a plain C struct, for which zeroes are a value.
    let mut info: nvmlGpuInstanceInfo_t = unsafe { zeroed() };
    check(call!(lib, nvmlGpuInstanceGetInfo(instance, &raw mut info)))?;
    Ok(info)
}

/// The compute instance profile that fills a GPU instance: the one with the most multiprocessors.
fn filling_profile(lib: &NvmlLib, instance: nvmlGpuInstance_t) -> Result<u32, GpuError> {
    let mut best: Option<(u32, u32)> = None;
    for profile in 0..MOST_PROFILES {
        // SAFETY: a plain C struct, for which zeroes are a value.
        let mut found: nvmlComputeInstanceProfileInfo_t = unsafe { zeroed() };
        match call!(lib, nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, 0, &raw mut found)) {
            0 => best = best.max(Some((found.multiprocessorCount, found.id))),
            bindings::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => {}
            bindings::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => break,
            other => return Err(from_code(other)),
        }
    }
    best.map(|(_, id)| id).ok_or(GpuError::NotSupported)
}

fn compute_instances(
    lib: &NvmlLib,
    instance: nvmlGpuInstance_t,
) -> Result<Vec<nvmlComputeInstance_t>, GpuError> {
    let mut out = Vec::new();
    for profile in 0..MOST_PROFILES {
        // SAFETY: a plain C struct, for which zeroes are a value.
        let mut found: nvmlComputeInstanceProfileInfo_t = unsafe { zeroed() };
        match call!(lib, nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, 0, &raw mut found)) {
            0 => {}
            bindings::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => continue,
            bindings::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => break,
            other => return Err(from_code(other)),
        }
        let mut rows: [nvmlComputeInstance_t; MOST_INSTANCES] = [std::ptr::null_mut(); MOST_INSTANCES];
        let mut count = 0;
        check(call!(
            lib,
            nvmlGpuInstanceGetComputeInstances(instance, found.id, rows.as_mut_ptr(), &raw mut count)
        ))?;
        out.extend(rows.into_iter().take(count as usize));
    }
    Ok(out)
}

/// The id of the GPU instance of a MIG device.
pub fn instance_of(lib: &NvmlLib, slice: &Device<'_>) -> Result<u32, GpuError> {
    let mut id = 0;
    // SAFETY: the handle is used only for this call.
    let handle = unsafe { slice.handle() };
    check(call!(lib, nvmlDeviceGetGpuInstanceId(handle, &raw mut id)))?;
    Ok(id)
}

/// The UUID of the MIG device of a GPU instance with a compute instance.
fn mig_uuid(device: &Device<'_>, lib: &NvmlLib, gi: u32) -> Result<Option<String>, GpuError> {
    let most = device.mig_device_count()?;
    for index in 0..most {
        // Indexes have gaps.
        let Ok(slice) = device.mig_device_by_index(index) else { continue };
        if instance_of(lib, &slice)? == gi {
            return Ok(Some(slice.uuid()?));
        }
    }
    Ok(None)
}

fn slice(
    lib: &NvmlLib,
    device: &Device<'_>,
    found: &nvmlGpuInstanceInfo_t,
    memory_mib: u64,
) -> Result<Slice, GpuError> {
    Ok(Slice {
        gi: found.id,
        profile_id: found.profileId,
        start: found.placement.start,
        size: found.placement.size,
        mig_uuid: mig_uuid(device, lib, found.id)?,
        memory_mib,
    })
}

/// The GPU instances of these profiles, each with its memory in MiB.
fn placed_instances(
    lib: &NvmlLib,
    device: &Device<'_>,
    profiles: &[(u32, u64)],
) -> Result<Vec<(nvmlGpuInstanceInfo_t, u64)>, GpuError> {
    let mut out = Vec::new();
    for (profile, memory_mib) in profiles {
        for instance in instances(lib, device, *profile)? {
            out.push((info(lib, instance)?, *memory_mib));
        }
    }
    Ok(out)
}

/// All GPU instances of a board, also those without a compute instance.
pub fn slices(nvml: &Nvml, device: &Device<'_>) -> Result<Vec<Slice>, GpuError> {
    let lib = nvml.lib();
    let mut out = Vec::new();
    for (found, memory_mib) in placed_instances(lib, device, &profiles(lib, device)?)? {
        out.push(slice(lib, device, &found, memory_mib)?);
    }
    out.sort_by_key(|s| s.start);
    Ok(out)
}

fn find(
    lib: &NvmlLib,
    device: &Device<'_>,
    profile_id: u32,
    start: u32,
) -> Result<Option<nvmlGpuInstance_t>, GpuError> {
    for instance in instances(lib, device, profile_id)? {
        if info(lib, instance)?.placement.start == start {
            return Ok(Some(instance));
        }
    }
    Ok(None)
}

/// The possible placements of a profile on an empty board.
fn placements(
    lib: &NvmlLib,
    device: &Device<'_>,
    profile_id: u32,
) -> Result<Vec<nvmlGpuInstancePlacement_t>, GpuError> {
    let mut rows = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; 64];
    let mut count = u32::try_from(rows.len()).unwrap_or(0);
    // SAFETY: the handle is used only for this call.
    let handle = unsafe { device.handle() };
    check(call!(
        lib,
        nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle, profile_id, rows.as_mut_ptr(), &raw mut count)
    ))?;
    Ok(rows.into_iter().take(count as usize).collect())
}

/// The number of slices of a profile at this start. NVML decides about the placement itself.
fn size_at(lib: &NvmlLib, device: &Device<'_>, profile_id: u32, start: u32) -> Result<u32, GpuError> {
    let mut there = placements(lib, device, profile_id)?.into_iter();
    there.find(|p| p.start == start).map(|p| p.size).ok_or(GpuError::Insufficient)
}

/// Creates a GPU instance at a start, with a compute instance that fills it. An existing instance is left alone.
pub fn create(nvml: &Nvml, device: &Device<'_>, profile_id: u32, start: u32) -> Result<Slice, GpuError> {
    let lib = nvml.lib();
    let profiles = profiles(lib, device)?;
    let known = profiles.iter().find(|(id, _)| *id == profile_id);
    let memory_mib = known.map(|(_, mib)| *mib).ok_or(GpuError::NotSupported)?;
    if find(lib, device, profile_id, start)?.is_some() {
        // The creator of the existing instance may use it.
        return Err(GpuError::InUse);
    }
    let size = size_at(lib, device, profile_id, start)?;
    let overlaps = |at: &nvmlGpuInstancePlacement_t| at.start < start + size && start < at.start + at.size;
    if placed_instances(lib, device, &profiles)?.iter().any(|(other, _)| overlaps(&other.placement)) {
        return Err(GpuError::Insufficient);
    }
    let placement = nvmlGpuInstancePlacement_t { start, size };
    let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
    // SAFETY: the handle is used only for this call.
    let handle = unsafe { device.handle() };
    let out = &raw mut instance;
    retry_while_in_use(|| {
        check(call!(
            lib,
            nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile_id, &raw const placement, out)
        ))
    })?;
    let found = info(lib, instance)?;
    let mut compute: nvmlComputeInstance_t = std::ptr::null_mut();
    let made = filling_profile(lib, instance).and_then(|profile| {
        check(call!(lib, nvmlGpuInstanceCreateComputeInstance(instance, profile, &raw mut compute)))
    });
    if let Err(error) = made {
        // An instance without its compute instance is useless. If it stays, it counts as foreign later.
        let _ = check(call!(lib, nvmlGpuInstanceDestroy(instance)));
        return Err(error);
    }
    slice(lib, device, &found, memory_mib)
}

/// Destroys the compute instances of a GPU instance, then the instance itself. Returns its id if it existed. With the
/// id `own`, another instance at its place is left alone.
pub fn destroy(
    nvml: &Nvml,
    device: &Device<'_>,
    profile_id: u32,
    start: u32,
    own: Option<u32>,
) -> Result<Option<u32>, GpuError> {
    let lib = nvml.lib();
    let Some(instance) = find(lib, device, profile_id, start)? else { return Ok(None) };
    let id = info(lib, instance)?.id;
    if own.is_some_and(|own| own != id) {
        return Ok(None);
    }
    for compute in compute_instances(lib, instance)? {
        // SAFETY: a plain C struct, for which zeroes are a value.
        let mut known: nvmlComputeInstanceInfo_t = unsafe { zeroed() };
        if call!(lib, nvmlComputeInstanceGetInfo_v2(compute, &raw mut known)) == 0 {
            retry_while_in_use(|| check(call!(lib, nvmlComputeInstanceDestroy(compute))))?;
        }
    }
    retry_while_in_use(|| check(call!(lib, nvmlGpuInstanceDestroy(instance))))?;
    Ok(Some(id))
}
