//! Performance monitoring of slices, through the binding that the worker uses.

#![expect(clippy::unwrap_used, unsafe_code, reason = "a test fails loudly, and drives a C interface")]

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper_sys::bindings::{nvmlComputeInstance_t, nvmlGpuInstance_t, nvmlGpuInstancePlacement_t};

/// The library that cargo built with this test.
fn library() -> std::path::PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [beside.join("libberth_nvml_sim.so"), beside.join("../libberth_nvml_sim.so")];
    places.into_iter().find(|p| p.exists()).unwrap()
}

/// A process that never ends by itself: ended and reaped here, also when the test fails.
struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_busy_slice_is_busy_and_its_neighbour_is_not() {
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: this test is the only one of its process and has started no thread.
    unsafe {
        std::env::set_var("BERTH_NVML_SIM_DIR", dir.path());
        std::env::set_var("BERTH_NVML_SIM_FLEET", "1xH100-80GB,1xA30");
    }
    let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
    let board = nvml.device_by_index(0).unwrap();
    assert!(board.gpm_support().unwrap());
    let old = nvml.device_by_index(1).unwrap();
    assert!(!old.gpm_support().unwrap(), "an Ampere board has none");
    assert!(matches!(old.gpm_sample(), Err(NvmlError::NotSupported)));
    board.set_mig_mode(true).unwrap();
    let lib = nvml.lib();
    for start in [0, 1] {
        // SAFETY: handles come from this library and out-pointers are to locals.
        unsafe {
            let placement = nvmlGpuInstancePlacement_t { start, size: 1 };
            let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
            let made = lib.nvmlDeviceCreateGpuInstanceWithPlacement(
                board.handle(),
                19,
                &placement,
                &raw mut instance,
            );
            assert_eq!(made, 0);
            let mut compute: nvmlComputeInstance_t = std::ptr::null_mut();
            assert_eq!(lib.nvmlGpuInstanceCreateComputeInstance(instance, 0, &raw mut compute), 0);
        }
    }
    let slices = [board.mig_device_by_index(0).unwrap(), board.mig_device_by_index(1).unwrap()];
    let child = Command::new("sh")
        .args(["-c", "echo ready; while :; do :; done"])
        .env("CUDA_VISIBLE_DEVICES", slices[0].uuid().unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Busy(child);
    let mut said = [0; 6];
    child.0.stdout.take().unwrap().read_exact(&mut said).unwrap();
    let util = |gi: u32, from: &nvml_wrapper::GpmSample<'_>| {
        let to = board.gpm_mig_sample(gi).unwrap();
        let wanted = [GpmMetricId::GraphicsUtil, GpmMetricId::DramBwUtil];
        let mut metrics = gpm_metrics_get(&nvml, from, &to, &wanted).unwrap();
        assert!(metrics.pop().unwrap().is_err(), "what is not simulated is not supported");
        metrics.pop().unwrap().unwrap().value
    };
    let (busy, idle) = (board.gpm_mig_sample(7).unwrap(), board.gpm_mig_sample(8).unwrap());
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut percent = 0.0;
    while percent == 0.0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
        percent = util(7, &busy);
    }
    let neighbour = util(8, &idle);
    drop(child);
    assert!(percent > 0.0 && percent <= 100.0, "{percent}");
    assert!(neighbour == 0.0);
    assert!(board.gpm_mig_sample(1).is_err(), "there is no such instance");
}
