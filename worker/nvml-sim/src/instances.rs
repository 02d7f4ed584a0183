//! NVML calls about MIG instances: profiles, placements, create and destroy.

use std::ffi::c_uint;
use std::mem::size_of;

use berth_mig::{Board, Instance, Profile, legal, room_for};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t, nvmlDevice_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
};

use crate::boards::{Handle, device_uuids, nvml, on_whole_board};
use crate::details::text;
use crate::fault::Fault;
use crate::load::fresh;
use crate::world::{Compute, SimBoard, World, change, look};
use crate::{answer, put, put_rows};

fn profile_of(board: &'static Board, id: c_uint) -> Result<&'static Profile, Fault> {
    board.profile(id).ok_or(Fault::InvalidArgument)
}

/// The profile at an index of the call for profiles.
fn profile_at(device: nvmlDevice_t, index: c_uint) -> Result<&'static Profile, Fault> {
    // The header of NVML 13 ends at index 16.
    if index > 16 {
        return Err(Fault::InvalidArgument);
    }
    let board = on_whole_board(device, |_, board| Ok(board))?;
    // A board without MIG knows no profile of any index.
    board.profiles.iter().find(|p| p.index == index).ok_or(Fault::NotSupported)
}

/// The version that NVML has for a struct.
fn version_of<T>(number: u32) -> c_uint {
    size_of::<T>() as c_uint | number << 24
}

/// The compute instance profile of an index for a GPU instance: the one that fills it.
fn filling_at(instance: nvmlGpuInstance_t, index: c_uint) -> Result<&'static Profile, Fault> {
    let p = on_instance(instance, |_, sim, board, id| filling(sim, board, id))?;
    match index {
        index if index == p.ci_profile => Ok(p),
        0..=7 => Err(Fault::NotSupported),
        _ => Err(Fault::InvalidArgument),
    }
}

/// Runs `work` on the board and GPU instance that a handle names.
fn on_instance<R>(
    handle: *mut nvml_wrapper_sys::bindings::nvmlGpuInstance_st,
    work: impl FnOnce(usize, &SimBoard, &'static Board, u32) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let Handle::Instance(index, id) = Handle::read(handle)? else { return Err(Fault::InvalidArgument) };
    look(|world| {
        let sim = world.board(index)?;
        sim.instance(id)?;
        let board = sim.board()?;
        work(index, sim, board, id)
    })
}

/// Refuses a change of instances without the right to it, or while somebody holds the board or what is on it.
fn may_change(world: &World, index: usize, instance: Option<u32>) -> Result<(), Fault> {
    let sim = world.board(index)?;
    let uuids = match instance {
        // A new instance takes nothing from those that are there.
        None => vec![sim.uuid.clone()],
        Some(_) => device_uuids(sim, instance),
    };
    world.may_change(&uuids)
}

/// The one compute instance profile offered for a GPU instance: the one that fills it.
fn filling(sim: &SimBoard, board: &'static Board, id: u32) -> Result<&'static Profile, Fault> {
    profile_of(board, sim.instance(id)?.placed.profile_id)
}

nvml! {
    fn nvmlDeviceGetGpuInstanceProfileInfoV(device: nvmlDevice_t, index: c_uint, out: *mut nvmlGpuInstanceProfileInfo_v2_t) {
        if out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and the caller has set its version.
        let version = unsafe { (*out).version };
        if version == version_of::<nvmlGpuInstanceProfileInfo_v3_t>(3) {
            let p = profile_at(device, index)?;
            let info = nvmlGpuInstanceProfileInfo_v3_t {
                version,
                id: p.id,
                sliceCount: p.compute,
                instanceCount: p.max,
                multiprocessorCount: p.sm,
                copyEngineCount: p.copy_engines,
                decoderCount: p.decoders,
                encoderCount: p.encoders,
                jpegCount: p.jpeg,
                ofaCount: p.ofa,
                memorySizeMB: p.memory_mib,
                name: text(&format!("MIG {}", p.name)),
                capabilities: 0,
            };
            // SAFETY: not null, and of this version, by NVML's contract.
            return unsafe { put(out.cast(), info) };
        }
        if version != version_of::<nvmlGpuInstanceProfileInfo_v2_t>(2) {
            return Err(Fault::VersionMismatch);
        }
        let p = profile_at(device, index)?;
        let info = nvmlGpuInstanceProfileInfo_v2_t {
            version,
            id: p.id,
            isP2pSupported: 0,
            sliceCount: p.compute,
            instanceCount: p.max,
            multiprocessorCount: p.sm,
            copyEngineCount: p.copy_engines,
            decoderCount: p.decoders,
            encoderCount: p.encoders,
            jpegCount: p.jpeg,
            ofaCount: p.ofa,
            memorySizeMB: p.memory_mib,
            name: text(&format!("MIG {}", p.name)),
        };
        // SAFETY: not null, and valid by NVML's contract.
        unsafe { put(out, info) }
    }
    fn nvmlDeviceGetGpuInstanceProfileInfo(device: nvmlDevice_t, index: c_uint, out: *mut nvmlGpuInstanceProfileInfo_t) {
        let p = profile_at(device, index)?;
        let info = nvmlGpuInstanceProfileInfo_t {
            id: p.id,
            isP2pSupported: 0,
            sliceCount: p.compute,
            instanceCount: p.max,
            multiprocessorCount: p.sm,
            copyEngineCount: p.copy_engines,
            decoderCount: p.decoders,
            encoderCount: p.encoders,
            jpegCount: p.jpeg,
            ofaCount: p.ofa,
            memorySizeMB: p.memory_mib,
        };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, info) }
    }
    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(device: nvmlDevice_t, profile: c_uint, out: *mut nvmlGpuInstancePlacement_t, count: *mut c_uint) {
        if count.is_null() {
            return Err(Fault::InvalidArgument);
        }
        let p = on_whole_board(device, |_, board| profile_of(board, profile))?;
        let rows: Vec<_> = p.starts.iter().map(|s| nvmlGpuInstancePlacement_t { start: *s, size: p.size }).collect();
        if out.is_null() {
            // SAFETY: not null, and valid by NVML's contract.
            return unsafe { put(count, rows.len() as c_uint) };
        }
        // SAFETY: `count` is not null and `out` holds `*count` rows, by NVML's contract.
        unsafe { put_rows(count, out, &rows) }
    }
    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: nvmlDevice_t, profile: c_uint, out: *mut c_uint) {
        let room = on_whole_board(device, |sim, board| {
            profile_of(board, profile)?;
            if sim.mig { Ok(room_for(board, &sim.placed(), profile)) } else { Err(Fault::NotSupported) }
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, room) }
    }
    fn nvmlDeviceCreateGpuInstance(device: nvmlDevice_t, profile: c_uint, out: *mut nvmlGpuInstance_t) {
        let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
        let id = change(|world| {
            may_change(world, index, None)?;
            let sim = world.board_mut(index)?;
            let board = sim.board()?;
            // Left to itself the driver takes the first place that is free.
            let placed = sim.placed();
            let mut starts = profile_of(board, profile)?.starts.iter();
            let free = starts.find(|s| legal(board, &placed, Instance { profile_id: profile, start: **s }).is_ok());
            sim.create(profile, *free.ok_or(Fault::InsufficientResources)?)
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, Handle::Instance(index, id).dress()) }
    }
    fn nvmlDeviceCreateGpuInstanceWithPlacement(device: nvmlDevice_t, profile: c_uint, placement: *const nvmlGpuInstancePlacement_t, out: *mut nvmlGpuInstance_t) {
        let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
        if placement.is_null() || out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and valid by NVML's contract.
        let wanted = unsafe { placement.read() };
        let id = change(|world| {
            may_change(world, index, None)?;
            let sim = world.board_mut(index)?;
            if profile_of(sim.board()?, profile)?.size != wanted.size {
                return Err(Fault::InvalidArgument);
            }
            sim.create(profile, wanted.start)
        })?;
        // SAFETY: not null, and valid by NVML's contract.
        unsafe { put(out, Handle::Instance(index, id).dress()) }
    }
    fn nvmlGpuInstanceDestroy(instance: nvmlGpuInstance_t) {
        let Handle::Instance(index, id) = Handle::read(instance)? else { return Err(Fault::InvalidArgument) };
        change(|world| {
            may_change(world, index, Some(id))?;
            world.board_mut(index)?.destroy(id)
        })
    }
    fn nvmlDeviceGetGpuInstances(device: nvmlDevice_t, profile: c_uint, out: *mut nvmlGpuInstance_t, count: *mut c_uint) {
        let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
        if count.is_null() || out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        let ids = on_whole_board(device, |sim, _| {
            Ok(sim.instances.iter().filter(|i| i.placed.profile_id == profile).map(|i| i.id).collect::<Vec<_>>())
        })?;
        let rows: Vec<nvmlGpuInstance_t> = ids.into_iter().map(|id| Handle::Instance(index, id).dress()).collect();
        // NVML asks for room for the profile's maximum here and reads no count, so all are written.
        // SAFETY: both are not null, and `out` holds the maximum by NVML's contract.
        unsafe {
            count.write(rows.len() as c_uint);
            put_rows(count, out, &rows)
        }
    }
    fn nvmlDeviceGetGpuInstanceById(device: nvmlDevice_t, id: c_uint, out: *mut nvmlGpuInstance_t) {
        let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::InvalidArgument) };
        on_whole_board(device, |sim, _| sim.instance(id).map(|_| ()))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, Handle::Instance(index, id).dress()) }
    }
    fn nvmlGpuInstanceGetInfo(instance: nvmlGpuInstance_t, out: *mut nvmlGpuInstanceInfo_t) {
        let info = on_instance(instance, |index, sim, board, id| {
            let placed = sim.instance(id)?.placed;
            let size = profile_of(board, placed.profile_id)?.size;
            let placement = nvmlGpuInstancePlacement_t { start: placed.start, size };
            Ok((Handle::Board(index), id, placed.profile_id, placement))
        })?;
        let (device, id, profile, placement) = info;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, nvmlGpuInstanceInfo_t { device: device.dress(), id, profileId: profile, placement }) }
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(instance: nvmlGpuInstance_t, profile: c_uint, _engine: c_uint, out: *mut nvmlComputeInstanceProfileInfo_t) {
        let p = filling_at(instance, profile)?;
        let info = nvmlComputeInstanceProfileInfo_t {
            id: p.ci_profile,
            sliceCount: p.compute,
            instanceCount: 1,
            multiprocessorCount: p.sm,
            sharedCopyEngineCount: p.copy_engines,
            sharedDecoderCount: p.decoders,
            sharedEncoderCount: p.encoders,
            sharedJpegCount: p.jpeg,
            sharedOfaCount: p.ofa,
        };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, info) }
    }
    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance: nvmlGpuInstance_t, profile: c_uint, _engine: c_uint, out: *mut nvmlComputeInstanceProfileInfo_v2_t) {
        if out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        // SAFETY: not null, and the caller has set its version.
        let version = unsafe { (*out).version };
        if version != version_of::<nvmlComputeInstanceProfileInfo_v2_t>(2) {
            return Err(Fault::VersionMismatch);
        }
        let p = filling_at(instance, profile)?;
        let info = nvmlComputeInstanceProfileInfo_v2_t {
            version,
            id: p.ci_profile,
            sliceCount: p.compute,
            instanceCount: 1,
            multiprocessorCount: p.sm,
            sharedCopyEngineCount: p.copy_engines,
            sharedDecoderCount: p.decoders,
            sharedEncoderCount: p.encoders,
            sharedJpegCount: p.jpeg,
            sharedOfaCount: p.ofa,
            name: text(&format!("MIG {}", p.name)),
        };
        // SAFETY: not null, and valid by NVML's contract.
        unsafe { put(out, info) }
    }
    fn nvmlGpuInstanceCreateComputeInstance(instance: nvmlGpuInstance_t, profile: c_uint, out: *mut nvmlComputeInstance_t) {
        let Handle::Instance(index, id) = Handle::read(instance)? else { return Err(Fault::InvalidArgument) };
        change(|world| {
            let seed = (index as u64) << 32 | u64::from(id);
            let salt = world.board(index)?.uuid.bytes().fold(seed, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
            let uuid = world.new_uuid("MIG", salt);
            let sim = world.board_mut(index)?;
            let board = sim.board()?;
            if filling(sim, board, id)?.ci_profile != profile {
                return Err(Fault::InvalidArgument);
            }
            let slot = sim.instance_mut(id)?;
            if slot.compute.is_some() {
                return Err(Fault::InsufficientResources);
            }
            slot.compute = Some(Compute { id: 0, profile_id: profile, uuid });
            Ok(())
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, Handle::Compute(index, id).dress()) }
    }
    fn nvmlGpuInstanceGetComputeInstances(instance: nvmlGpuInstance_t, profile: c_uint, out: *mut nvmlComputeInstance_t, count: *mut c_uint) {
        if count.is_null() || out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        let found = on_instance(instance, |index, sim, _, id| {
            let has = sim.instance(id)?.compute.as_ref().is_some_and(|c| c.profile_id == profile);
            Ok(has.then_some(Handle::Compute(index, id)))
        })?;
        let rows: Vec<nvmlComputeInstance_t> = found.map(Handle::dress).into_iter().collect();
        // SAFETY: both are not null, and `out` holds the maximum by NVML's contract.
        unsafe {
            count.write(rows.len() as c_uint);
            put_rows(count, out, &rows)
        }
    }
    fn nvmlGpuInstanceGetComputeInstanceById(instance: nvmlGpuInstance_t, id: c_uint, out: *mut nvmlComputeInstance_t) {
        let handle = on_instance(instance, |index, sim, _, gi| {
            let there = sim.instance(gi)?.compute.as_ref().is_some_and(|c| c.id == id);
            if there { Ok(Handle::Compute(index, gi)) } else { Err(Fault::NotFound) }
        })?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, handle.dress()) }
    }
    fn nvmlComputeInstanceGetInfo_v2(compute: nvmlComputeInstance_t, out: *mut nvmlComputeInstanceInfo_t) {
        let Handle::Compute(index, gi) = Handle::read(compute)? else { return Err(Fault::InvalidArgument) };
        let (id, profile_id, size) = look(|world| {
            let sim = world.board(index)?;
            let board = sim.board()?;
            let size = filling(sim, board, gi)?.compute;
            let compute = sim.instance(gi)?.compute.clone().ok_or(Fault::NotFound)?;
            Ok((compute.id, compute.profile_id, size))
        })?;
        let info = nvmlComputeInstanceInfo_t {
            device: Handle::Board(index).dress(),
            gpuInstance: Handle::Instance(index, gi).dress(),
            id,
            profileId: profile_id,
            placement: nvmlComputeInstancePlacement_t { start: 0, size },
        };
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, info) }
    }
    fn nvmlComputeInstanceDestroy(compute: nvmlComputeInstance_t) {
        let Handle::Compute(index, gi) = Handle::read(compute)? else { return Err(Fault::InvalidArgument) };
        let scan = fresh();
        change(|world| {
            may_change(world, index, Some(gi))?;
            let slot = world.board_mut(index)?.instance_mut(gi)?;
            let compute = slot.compute.as_ref().ok_or(Fault::NotFound)?;
            // A process on the device keeps its instance, as a driver does.
            if !scan.pids(&compute.uuid).is_empty() {
                return Err(Fault::InUse);
            }
            slot.compute = None;
            Ok(())
        })
    }
}
