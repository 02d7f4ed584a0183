//! What the worker does with the GPUs of its host, over the simulated library.

#![expect(unsafe_code, reason = "one instance is made raw")]

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_gpu::{GpuError, Gpus, Presence};
use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{nvmlGpuInstance_t, nvmlGpuInstancePlacement_t};

use crate::boards::{library, simulate};

/// A busy process on a device. It is ended when this is dropped, and by its own limit otherwise.
struct Tenant(Child);

impl Tenant {
    fn on(uuid: &str) -> Self {
        let child = Command::new("sh")
            .args(["-c", "ulimit -t 60; echo ready; while :; do :; done"])
            .env("CUDA_VISIBLE_DEVICES", uuid)
            .stdout(Stdio::piped())
            .spawn();
        let mut tenant = Self(child.unwrap());
        let mut said = [0; 6];
        tenant.0.stdout.take().unwrap().read_exact(&mut said).unwrap();
        tenant
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_shared<T: Send + Sync>(_: &T) {}

#[test]
fn slices_are_made_adopted_read_and_given_back() {
    let Some(dir) = simulate("1xH100-80GB,1xA30,1xH100-80GB") else { return };
    let gpus = Gpus::open(Some(&library())).unwrap();
    is_shared(&gpus);
    assert_eq!(gpus.driver_version().unwrap(), "580.00-sim");
    let boards = gpus.inventory().unwrap();
    let islands: Vec<u32> = boards.iter().map(|b| b.nvlink_island).collect();
    assert_eq!(islands, [1, 0, 1], "a switch joins the Hopper boards, nothing joins the Ampere board");
    let (hopper, ampere) = (boards[0].uuid.as_str(), boards[1].uuid.as_str());
    let shown = (boards[0].index, boards[0].name.as_str(), boards[0].memory_mib);
    assert_eq!(shown, (0, "NVIDIA H100 80GB HBM3", 81_559));
    assert!(!boards[0].mig_enabled && boards[0].slices.is_empty() && boards[1].mig_enabled);
    let whole = gpus.read(hopper, None).unwrap();
    assert_eq!((whole.utilization_percent, whole.memory_used_mib), (Some(0.0), Some(0.0)));
    assert_eq!(whole.memory_total_mib, 81_559.0);
    assert!(whole.power_watts.unwrap() > 0.0 && whole.temperature_celsius.unwrap() > 0.0);

    // Made once, where the board allows it.
    assert!(matches!(gpus.create_slice(hopper, 19, 6), Err(GpuError::NotSupported)), "not without MIG mode");
    gpus.set_mig(hopper, true).unwrap();
    gpus.set_mig(hopper, true).unwrap();
    let slice = gpus.create_slice(hopper, 19, 6).unwrap();
    assert_eq!((slice.profile_id, slice.start, slice.size, slice.memory_mib), (19, 6, 1, 9_984));
    let device = slice.mig_uuid.clone().unwrap();
    assert!(matches!(gpus.create_slice(hopper, 19, 6), Err(GpuError::InUse)), "what is there is somebody's");
    assert_eq!(gpus.slices(hopper).unwrap(), std::slice::from_ref(&slice));
    assert!(matches!(gpus.create_slice(hopper, 15, 6), Err(GpuError::Insufficient)), "1g.20gb lies over it");
    assert!(
        matches!(gpus.create_slice(hopper, 0, 0), Err(GpuError::Insufficient)),
        "so does the whole board"
    );
    assert!(matches!(gpus.create_slice(hopper, 19, 7), Err(GpuError::Insufficient)), "no start of its own");
    assert!(matches!(gpus.create_slice(hopper, 77, 0), Err(GpuError::NotSupported)), "no such profile");
    assert!(matches!(gpus.create_slice("GPU-none", 19, 0), Err(GpuError::NotFound(_))));
    assert_eq!(gpus.slices(hopper).unwrap().len(), 1, "refusals leave nothing behind");

    // A GPU instance that lost its maker before it got its compute instance.
    let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
    let board = nvml.device_by_uuid(hopper).unwrap();
    let mut bare: nvmlGpuInstance_t = std::ptr::null_mut();
    let placement = nvmlGpuInstancePlacement_t { start: 0, size: 4 };
    // SAFETY: the handle comes from this library and the out-pointer is to a local.
    let made = unsafe {
        nvml.lib().nvmlDeviceCreateGpuInstanceWithPlacement(board.handle(), 9, &placement, &raw mut bare)
    };
    assert_eq!(made, 0);
    let found = gpus.slices(hopper).unwrap();
    assert_eq!((found[0].start, found[0].size, &found[0].mig_uuid), (0, 4, &None));
    assert!(
        matches!(gpus.create_slice(hopper, 9, 0), Err(GpuError::InUse)),
        "half an instance is left alone"
    );
    gpus.destroy_slice(hopper, 9, 0, None).unwrap();
    let adopted = gpus.create_slice(hopper, 9, 0).unwrap();
    let neighbour = adopted.mig_uuid.clone().unwrap();
    // A worker that starts again finds the same.
    let again = Gpus::open(Some(&library())).unwrap();
    assert_eq!(again.inventory().unwrap()[0].slices, [adopted, slice]);

    // All of a board at once, as it is read every second.
    let found = again.inventory().unwrap();
    let info = &found[0];
    let whole = again.snapshot(info).unwrap();
    assert_eq!((whole.board.utilization_percent, whole.slices.len(), whole.changed), (None, 2, false));
    assert!(whole.board.sm_clock_mhz.unwrap() > 0.0 && whole.board.power_watts.unwrap() > 0.0);
    let memory: Vec<f64> = whole.slices.iter().map(|s| s.reading.memory_total_mib).collect();
    assert_eq!(memory[1], 9_984.0, "{memory:?}");
    assert!(again.profile_names(hopper).unwrap().contains(&(19, "1g.10gb".to_owned())));
    let idle = again.snapshot(info).unwrap();
    assert_eq!(idle.slices[1].reading.engine_active, Some(0.0), "between two readings it did nothing");

    // In use, it stays; its neighbour is idle.
    let tenant = Tenant::on(&device);
    let pid = tenant.0.id();
    assert_eq!(gpus.holders(hopper, Some(&device)).unwrap(), [pid]);
    assert_eq!(gpus.holders(hopper, None).unwrap(), [pid]);
    assert!(gpus.holders(hopper, Some(&neighbour)).unwrap().is_empty());
    assert!(matches!(gpus.destroy_slice(hopper, 19, 6, None), Err(GpuError::InUse)));
    assert!(matches!(gpus.set_mig(hopper, false), Err(GpuError::InUse)));
    assert!(gpus.slices(hopper).unwrap().iter().any(|s| s.mig_uuid.as_deref() == Some(device.as_str())));
    let first = gpus.read(hopper, Some(&device)).unwrap();
    assert_eq!((first.utilization_percent, first.memory_total_mib), (None, 9_984.0));
    assert!(first.memory_used_mib.unwrap() > 0.0);
    assert_eq!(gpus.read(hopper, Some(&neighbour)).unwrap().utilization_percent, None);
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut percent = 0.0;
    while percent == 0.0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
        percent = gpus.read(hopper, Some(&device)).unwrap().utilization_percent.unwrap();
    }
    assert!(percent > 0.0 && percent <= 100.0, "{percent}");
    assert_eq!(gpus.read(hopper, Some(&neighbour)).unwrap().utilization_percent, Some(0.0));
    assert_eq!(gpus.read(hopper, None).unwrap().utilization_percent, None, "no board reports it under MIG");

    // Free, it goes, and going twice is no error.
    drop(tenant);
    gpus.destroy_slice(hopper, 19, 6, None).unwrap();
    gpus.destroy_slice(hopper, 19, 6, None).unwrap();
    assert!(matches!(gpus.holders(hopper, Some(&device)), Err(GpuError::NotFound(name)) if name == device));
    let left = again.snapshot(info).unwrap();
    assert_eq!((left.slices.len(), left.changed), (1, true), "one of them is gone, and that is said");
    gpus.destroy_slice(hopper, 9, 0, None).unwrap();
    assert!(gpus.slices(hopper).unwrap().is_empty());
    gpus.set_mig(hopper, false).unwrap();
    gpus.destroy_slice(hopper, 19, 6, None).unwrap();

    // A board that switches only by a reset says so, and can be told to stay as it is.
    assert!(matches!(gpus.set_mig(ampere, false), Err(GpuError::ResetRequired)));
    assert!(gpus.inventory().unwrap()[1].mig_enabled);
    gpus.set_mig(ampere, true).unwrap();
    let mode = nvml.device_by_uuid(ampere).unwrap().mig_mode().unwrap();
    assert_eq!((mode.current, mode.pending), (1, 1));
    let model = berth_mig::board_by_name("A30").unwrap();
    let small = gpus.create_slice(ampere, model.profile_by_name("1g.6gb").unwrap().id, 3).unwrap();
    let on_ampere = small.mig_uuid.clone().unwrap();
    for _ in 0..2 {
        let reading = gpus.read(ampere, Some(&on_ampere)).unwrap();
        assert_eq!(reading.utilization_percent, None, "it has no performance monitoring");
    }
    // A board off the bus takes its slices with it and nobody else's.
    let faults = dir.join("faults.json");
    let there = || [gpus.presence(ampere, Some(&on_ampere)), gpus.presence(hopper, None)];
    assert_eq!(there(), [Presence::There; 2]);
    std::fs::write(&faults, format!(r#"{{"lost": ["{ampere}"]}}"#)).unwrap();
    assert_eq!(there(), [Presence::Gone, Presence::There]);
    assert_eq!(gpus.presence(ampere, None), Presence::Gone);
    let found = gpus.inventory().unwrap();
    let silent: Vec<Option<&str>> = found.iter().map(|b| b.silent.as_deref()).collect();
    assert_eq!(silent, [None, Some("The board has fallen off the bus."), None], "it is told of as it was");
    assert!(found[1].mig_enabled && found[1].uuid == ampere);
    std::fs::remove_file(&faults).unwrap();
    assert_eq!(there(), [Presence::There; 2]);
    gpus.destroy_slice(ampere, small.profile_id, small.start, None).unwrap();
    assert_eq!(gpus.presence(ampere, Some(&on_ampere)), Presence::Gone, "an instance that was destroyed");
}
