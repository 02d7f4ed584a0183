//! The library as a program meets it: loaded by path, driven by the NVML binding that workers use.

#![expect(
    unsafe_code,
    reason = "MIG creation is reached through raw symbols, and the environment is set before load"
)]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_v2_t,
};

/// Where cargo put the library for this run.
fn library() -> PathBuf {
    let mut dir = std::env::current_exe().unwrap();
    dir.pop();
    dir.join("libberth_nvml_sim.so")
}

#[test]
fn a_slice_is_made_used_and_given_back() {
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: this is the only test of this program, so no other thread reads the environment.
    unsafe {
        std::env::set_var("BERTH_NVML_SIM_DIR", dir.path());
        std::env::set_var("BERTH_NVML_SIM_FLEET", "2xH100-80GB,1xA30");
    }
    let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 3);
    let board = nvml.device_by_index(0).unwrap();
    assert_eq!(board.name().unwrap(), "NVIDIA H100 80GB HBM3");
    assert_eq!(board.memory_info().unwrap().total, 81_559 << 20);
    assert_eq!(board.utilization_rates().unwrap().gpu, 0);
    let uuids: Vec<String> = (0..3).map(|i| nvml.device_by_index(i).unwrap().uuid().unwrap()).collect();
    assert!(uuids[0] != uuids[1] && uuids[1] != uuids[2] && uuids[0].len() == 40, "{uuids:?}");
    assert!(nvml.device_by_index(3).is_err());

    let lib = nvml.lib();
    // SAFETY: handles come from this library and out-pointers are to locals.
    unsafe {
        let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
        let at = |start| nvmlGpuInstancePlacement_t { start, size: 1 };
        let mut create = |start| {
            lib.nvmlDeviceCreateGpuInstanceWithPlacement(board.handle(), 19, &at(start), &raw mut instance)
        };
        assert_eq!(create(6), 3, "not without MIG mode");
        let mut status = 99;
        assert_eq!(lib.nvmlDeviceSetMigMode(board.handle(), 1, &raw mut status), 0);
        assert_eq!((status, create(7)), (0, 2));
        assert_eq!(create(6), 0);
        let first = instance;
        let mut other: nvmlGpuInstance_t = std::ptr::null_mut();
        assert_eq!(
            lib.nvmlDeviceCreateGpuInstanceWithPlacement(board.handle(), 19, &at(6), &raw mut other),
            23
        );
        assert!(matches!(board.utilization_rates(), Err(NvmlError::NotSupported)), "none under MIG");

        let mut info: nvmlGpuInstanceProfileInfo_v2_t = std::mem::zeroed();
        info.version = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as u32 | 2 << 24;
        assert_eq!(lib.nvmlDeviceGetGpuInstanceProfileInfoV(board.handle(), 0, &raw mut info), 0);
        assert_eq!((info.id, info.memorySizeMB), (19, 9_984));
        info.version = 1;
        assert_eq!(lib.nvmlDeviceGetGpuInstanceProfileInfoV(board.handle(), 0, &raw mut info), 25);

        let mut placed: nvmlGpuInstanceInfo_t = std::mem::zeroed();
        assert_eq!(lib.nvmlGpuInstanceGetInfo(first, &raw mut placed), 0);
        assert_eq!((placed.profileId, placed.placement.start, placed.placement.size), (19, 6, 1));
        let mut compute: nvmlComputeInstance_t = std::ptr::null_mut();
        assert_eq!(lib.nvmlGpuInstanceCreateComputeInstance(first, 0, &raw mut compute), 0);

        let slice = board.mig_device_by_index(0).unwrap();
        assert!(slice.mig_is_mig_device_handle().unwrap());
        assert_eq!(slice.memory_info().unwrap().total, 9_984 << 20);
        let uuid = slice.uuid().unwrap();
        assert!(uuid.starts_with("MIG-"));
        assert_eq!(slice.running_compute_processes().unwrap().len(), 0);
        // It says when it runs, and ends by itself when this test does.
        let mut child = Command::new("sh")
            .args(["-c", "echo ready; read -r _"])
            .env("CUDA_VISIBLE_DEVICES", &uuid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 6];
        child.stdout.take().unwrap().read_exact(&mut said).unwrap();
        let on_slice = slice.running_compute_processes().unwrap();
        assert_eq!(on_slice.iter().map(|p| p.pid).collect::<Vec<_>>(), [child.id()]);
        assert!(slice.memory_info().unwrap().used > 0);
        assert_eq!(lib.nvmlComputeInstanceDestroy(compute), 19, "a process is on it");
        assert_eq!(lib.nvmlGpuInstanceDestroy(first), 19, "it has a compute instance");

        // A second session finds the boards as they are.
        let again = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
        assert_eq!(again.device_by_uuid(uuid.as_str()).unwrap().uuid().unwrap(), uuid);

        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(lib.nvmlComputeInstanceDestroy(compute), 0);
        assert_eq!(lib.nvmlGpuInstanceDestroy(first), 0);
        assert_eq!(lib.nvmlGpuInstanceDestroy(first), 6, "gone is gone");
        assert!(nvml.device_by_uuid(uuid.as_str()).is_err());

        let old = nvml.device_by_index(2).unwrap();
        assert_eq!(lib.nvmlDeviceSetMigMode(old.handle(), 0, &raw mut status), 0);
        assert_eq!(status, 16, "an Ampere board wants a reset");
        assert_eq!(lib.nvmlGpuInstanceDestroy(std::ptr::null_mut()), 2);
    }
}
