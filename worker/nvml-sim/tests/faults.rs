//! What goes wrong with boards, through the binding that the worker uses.

#![expect(clippy::unwrap_used, unsafe_code, reason = "a test fails loudly, and drives a C interface")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, PcieUtilCounter};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{
    nvmlEventData_t, nvmlEventSet_t, nvmlGpuInstance_t, nvmlGpuInstancePlacement_t,
};

/// The library that cargo built with this test.
fn library() -> PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [beside.join("libberth_nvml_sim.so"), beside.join("../libberth_nvml_sim.so")];
    places.into_iter().find(|p| p.exists()).unwrap()
}

/// Replaces what goes wrong, in one step as programs read it all the time.
fn put(dir: &Path, faults: &str) {
    let new = dir.join("faults.new");
    std::fs::write(&new, faults).unwrap();
    std::fs::rename(new, dir.join("faults.json")).unwrap();
}

/// Waits for an event of a set: NVML's code, then kind, data and GPU instance.
fn wait(nvml: &Nvml, set: nvmlEventSet_t, ms: u32) -> (u32, u64, u64, u32) {
    // SAFETY: a plain C struct, for which zeroes are a value; the set comes from this library.
    unsafe {
        let mut data: nvmlEventData_t = std::mem::zeroed();
        let code = nvml.lib().nvmlEventSetWait_v2(set, &raw mut data, ms);
        (code, data.eventType, data.eventData, data.gpuInstanceId)
    }
}

#[test]
fn boards_fail_as_they_are_told_and_recover_by_a_reset() {
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: this test is the only one of its process and has started no thread.
    unsafe {
        std::env::set_var("BERTH_NVML_SIM_DIR", dir.path());
        std::env::set_var("BERTH_NVML_SIM_FLEET", "2xH100-80GB,1xA30");
    }
    let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
    let lib = nvml.lib();
    let board = |index: u32| nvml.device_by_index(index).unwrap();
    let uuid: Vec<String> = (0..3).map(|i| board(i).uuid().unwrap()).collect();
    let first = &uuid[0];
    assert_eq!(board(0).total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).unwrap(), 0);
    assert!(board(0).is_ecc_enabled().unwrap().currently_enabled);
    assert!(matches!(board(0).are_pages_pending_retired(), Err(NvmlError::NotSupported)));
    assert_eq!(board(0).pcie_throughput(PcieUtilCounter::Send).unwrap(), 0, "nothing is on it");
    assert!(board(0).vbios_version().unwrap() != board(2).vbios_version().unwrap());

    // Events: each once, in order, with the slice that they happened on.
    let mut set: nvmlEventSet_t = std::ptr::null_mut();
    let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
    board(0).set_mig_mode(true).unwrap();
    // SAFETY: handles come from this library and out-pointers are to locals.
    unsafe {
        let at = nvmlGpuInstancePlacement_t { start: 2, size: 1 };
        let made =
            lib.nvmlDeviceCreateGpuInstanceWithPlacement(board(0).handle(), 19, &at, &raw mut instance);
        assert_eq!(made, 0);
        assert_eq!(lib.nvmlEventSetCreate(&raw mut set), 0);
        assert_eq!(lib.nvmlDeviceRegisterEvents(board(0).handle(), 0x8 | 0x2, set), 0);
        assert_eq!(lib.nvmlDeviceRegisterEvents(board(0).handle(), 0x4000_0000, set), 3);
    }
    assert_eq!(wait(&nvml, set, 30).0, 10, "nothing happens");
    let xid = |at: u64, code: u64| format!(r#"{{"gpu": "{first}", "xid": {code}, "at": {at}, "start": 2}}"#);
    put(
        dir.path(),
        &format!(
            r#"{{"xid": [{}, {}], "ecc": {{"{first}": {{"corrected": 3, "uncorrected": 1}}}}}}"#,
            xid(2, 94),
            xid(1, 13)
        ),
    );
    assert_eq!(wait(&nvml, set, 5_000), (0, 0x8, 13, 9));
    assert_eq!(wait(&nvml, set, 5_000), (0, 0x8, 94, 9));
    assert_eq!(wait(&nvml, set, 5_000).1, 0x2);
    assert_eq!(wait(&nvml, set, 30).0, 10);
    assert_eq!(board(0).total_ecc_errors(MemoryError::Uncorrected, EccCounter::Aggregate).unwrap(), 1);

    // Held by somebody, and without the right to change it: nothing changes, and its neighbour does not mind.
    put(dir.path(), &format!(r#"{{"in_use": ["{first}"]}}"#));
    // SAFETY: as above.
    let create = |index: u32| unsafe {
        let at = nvmlGpuInstancePlacement_t { start: 4, size: 1 };
        let mut new: nvmlGpuInstance_t = std::ptr::null_mut();
        lib.nvmlDeviceCreateGpuInstanceWithPlacement(board(index).handle(), 19, &at, &raw mut new)
    };
    assert_eq!(create(0), 19);
    assert!(matches!(board(0).set_mig_mode(false), Err(NvmlError::InUse)), "it has an instance");
    assert!(board(1).set_mig_mode(true).is_ok());
    put(dir.path(), r#"{"no_permission": true}"#);
    assert_eq!((create(0), create(1)), (4, 4));

    // A board that hangs is slow alone.
    put(dir.path(), &format!(r#"{{"hang_ms": {{"{first}": 400}}}}"#));
    let begun = Instant::now();
    assert!(nvml.device_by_uuid(uuid[1].as_str()).unwrap().power_usage().is_ok());
    assert!(begun.elapsed() < Duration::from_millis(400));
    assert!(nvml.device_by_uuid(first.as_str()).is_ok());
    assert!(begun.elapsed() >= Duration::from_millis(400));

    // Off the bus until it is reset, which takes its instances with it.
    put(dir.path(), &format!(r#"{{"xid": [{{"gpu": "{first}", "xid": 79, "at": 3}}]}}"#));
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    assert_eq!(wait(&nvml, set, 5_000), (0, 0x8, 79, u32::MAX));
    put(
        dir.path(),
        &format!(
            r#"{{"xid": [{{"gpu": "{first}", "xid": 79, "at": 3}}], "reset": {{"{first}": 1}},
                "remapped": {{"{first}": {{"pending": true}}}}}}"#
        ),
    );
    let mode = board(0).mig_mode().unwrap();
    assert_eq!((mode.current, board(0).mig_device_count().unwrap()), (1, 7));
    // SAFETY: the handle comes from this library, and out-pointers are to locals.
    unsafe {
        assert_eq!(lib.nvmlGpuInstanceDestroy(instance), 6, "it went with the reset");
        let (mut a, mut b, mut pending, mut failure) = (9, 9, 9, 9);
        let rows = lib.nvmlDeviceGetRemappedRows(
            board(0).handle(),
            &raw mut a,
            &raw mut b,
            &raw mut pending,
            &raw mut failure,
        );
        assert_eq!((rows, a, b, pending, failure), (0, 0, 0, 1, 0));
        assert_eq!(lib.nvmlEventSetFree(set), 0);
        assert_eq!(lib.nvmlEventSetFree(set), 2);
    }
    put(dir.path(), r#"{"reboot": 1}"#);
    assert_eq!(board(0).mig_mode().unwrap().current, 0, "a Hopper board forgets it");
    assert_eq!(board(2).mig_mode().unwrap().current, 1, "an Ampere board does not");
}
