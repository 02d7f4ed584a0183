//! What describes a board, through the binding that the worker uses.

#![expect(clippy::unwrap_used, unsafe_code, reason = "a test fails loudly, and sets the environment first")]

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{nvmlMemory_t, nvmlMemory_v2_t};

/// The library that cargo built with this test.
fn library() -> std::path::PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [beside.join("libberth_nvml_sim.so"), beside.join("../libberth_nvml_sim.so")];
    places.into_iter().find(|p| p.exists()).unwrap()
}

#[test]
fn a_board_describes_itself_until_it_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: this test is the only one of its process and has started no thread.
    unsafe {
        std::env::set_var("BERTH_NVML_SIM_DIR", dir.path());
        std::env::set_var("BERTH_NVML_SIM_FLEET", "1xH100-80GB,1xA30");
    }
    let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    let boards = [nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap()];
    let capability = boards[1].cuda_compute_capability().unwrap();
    assert_eq!((capability.major, capability.minor), (8, 0));
    assert_eq!(boards[0].pci_info().unwrap().bus_id, "00000000:10:00.0");
    assert_eq!(boards[1].pci_info().unwrap().bus_id, "00000000:11:00.0");
    let serials = [boards[0].serial().unwrap(), boards[1].serial().unwrap()];
    assert!(serials[0] != serials[1] && serials[0].len() == 13, "{serials:?}");
    for board in &boards {
        assert!(board.clock_info(Clock::SM).unwrap() > 1_000);
        assert!(board.power_usage().unwrap() < board.power_management_limit().unwrap());
    }

    let by_address = nvml.device_by_pci_bus_id("0000:11:00.0").unwrap();
    assert_eq!(by_address.uuid().unwrap(), boards[1].uuid().unwrap());
    assert!(matches!(nvml.device_by_pci_bus_id("0000:12:00.0"), Err(NvmlError::NotFound)));

    let memory = boards[0].memory_info().unwrap();
    assert_eq!(memory.total, memory.reserved + memory.used + memory.free);
    // SAFETY: plain C structs, for which zeroes are a value; the handle comes from this library.
    unsafe {
        let mut first: nvmlMemory_t = std::mem::zeroed();
        assert_eq!(nvml.lib().nvmlDeviceGetMemoryInfo(boards[0].handle(), &raw mut first), 0);
        assert_eq!(first.used, memory.reserved + memory.used, "the first version counts all memory in use");
        let mut unversioned: nvmlMemory_v2_t = std::mem::zeroed();
        let code = nvml.lib().nvmlDeviceGetMemoryInfo_v2(boards[0].handle(), &raw mut unversioned);
        assert_eq!(code, 25, "the second version wants its version");
    }

    let uuid = boards[0].uuid().unwrap();
    let faults = dir.path().join("faults.json");
    std::fs::write(&faults, format!(r#"{{"lost": ["{uuid}"]}}"#)).unwrap();
    assert!(matches!(boards[0].power_usage(), Err(NvmlError::GpuLost)));
    assert!(matches!(boards[0].memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_uuid(uuid.as_str()), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    assert!(boards[1].power_usage().is_ok(), "its neighbour stays");
    std::fs::write(&faults, r#"{"lost": []}"#).unwrap();
    assert_eq!(nvml.device_by_uuid(uuid.as_str()).unwrap().uuid().unwrap(), uuid, "it is back as it was");
    std::fs::remove_file(&faults).unwrap();
    assert!(boards[0].power_usage().is_ok());
}
