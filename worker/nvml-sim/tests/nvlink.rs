//! NVLink between boards, through the binding that the worker uses.

#![expect(clippy::unwrap_used, unsafe_code, reason = "a test fails loudly, and drives a C interface")]

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// The library that cargo built with this test.
fn library() -> std::path::PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [beside.join("libberth_nvml_sim.so"), beside.join("../libberth_nvml_sim.so")];
    places.into_iter().find(|p| p.exists()).unwrap()
}

#[test]
fn boards_of_one_model_meet_at_a_switch() {
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: this test is the only one of its process and has started no thread.
    unsafe {
        std::env::set_var("BERTH_NVML_SIM_DIR", dir.path());
        std::env::set_var("BERTH_NVML_SIM_FLEET", "2xH100-80GB,1xA30,1xH200-141GB,2xA100-40GB,4xV100");
    }
    let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
    let board = |index: u32| nvml.device_by_index(index).unwrap();
    let active = |index: u32, link: u32| board(index).link_wrapper_for(link).is_active();
    let far_bus = |index: u32, link: u32| board(index).link_wrapper_for(link).remote_pci_info();
    // The wrapper's own function for this never gives what the library said.
    let far_kind = |index: u32, link: u32| {
        let mut kind = 255;
        // SAFETY: the handle comes from this library and the out-pointer is to a local.
        let code = unsafe {
            nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType(board(index).handle(), link, &raw mut kind)
        };
        (code, kind)
    };

    // Every link of two boards of one model leads to the same switch, which is none of the boards.
    let switch = far_bus(0, 0).unwrap().bus_id;
    assert!((0..6).all(|index| board(index).pci_info().unwrap().bus_id != switch), "{switch}");
    for index in [0, 1] {
        for link in 0..18 {
            assert!(active(index, link).unwrap());
            assert_eq!(far_kind(index, link), (0, 2));
            assert_eq!(far_bus(index, link).unwrap().bus_id, switch);
        }
        assert!(matches!(active(index, 18), Err(NvmlError::InvalidArg)), "it has 18 links");
        assert!(matches!(far_bus(index, 18), Err(NvmlError::InvalidArg)));
        assert_eq!(far_kind(index, 18), (2, 255));
    }

    // Another model has a switch of its own, and its own number of links.
    assert!(active(4, 11).unwrap() && active(5, 11).unwrap());
    assert!(matches!(active(4, 12), Err(NvmlError::InvalidArg)), "it has 12 links");
    assert_ne!(far_bus(4, 0).unwrap().bus_id, switch);

    // The links of a V100 lead to the other boards of its model, without a switch.
    let v100_buses: Vec<String> = (6..10).map(|index: u32| board(index).pci_info().unwrap().bus_id).collect();
    for (place, own) in v100_buses.iter().enumerate() {
        let index = 6 + u32::try_from(place).unwrap();
        let mut ends: Vec<String> = (0..6).map(|link| far_bus(index, link).unwrap().bus_id).collect();
        assert!((0..6).all(|link| far_kind(index, link) == (0, 0)), "to boards");
        ends.sort_unstable();
        ends.dedup();
        let others: Vec<&String> = v100_buses.iter().filter(|bus| *bus != own).collect();
        assert_eq!(ends.iter().collect::<Vec<_>>(), others);
        assert!(matches!(active(index, 6), Err(NvmlError::InvalidArg)), "it has 6 links");
    }

    // A board in a PCIe slot has no NVLink; one that is alone of its model has nobody to reach.
    assert!(matches!(active(2, 0), Err(NvmlError::NotSupported)));
    assert!(matches!(active(2, 99), Err(NvmlError::NotSupported)));
    assert_eq!(far_kind(2, 0), (3, 255));
    assert!(!active(3, 17).unwrap());
    assert!(matches!(far_bus(3, 17), Err(NvmlError::NotSupported)));

    // SAFETY: the handle comes from this library, which refuses a null out-pointer.
    let refused = unsafe { nvml.lib().nvmlDeviceGetNvLinkState(board(0).handle(), 0, std::ptr::null_mut()) };
    assert_eq!(refused, 2);
}
