//! The MIG mode of a board that is not idle, through the binding that the worker uses.

#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test fails loudly, and sets the environment before load"
)]

use std::path::PathBuf;

use nvml_wrapper::Nvml;

/// The library that cargo built with this test.
fn library() -> PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [beside.join("libberth_nvml_sim.so"), beside.join("../libberth_nvml_sim.so")];
    places.into_iter().find(|p| p.exists()).unwrap()
}

#[test]
fn a_board_in_use_answers_with_success_and_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: this test is the only one of its process and has started no thread.
    unsafe {
        std::env::set_var("BERTH_NVML_SIM_DIR", dir.path());
        std::env::set_var("BERTH_NVML_SIM_FLEET", "1xH100-80GB");
    }
    let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
    let board = nvml.device_by_index(0).unwrap();
    let faults = dir.path().join("faults.json");
    let modes = || {
        let mode = board.mig_mode().unwrap();
        (mode.current, mode.pending)
    };
    std::fs::write(&faults, format!(r#"{{"in_use": ["{}"]}}"#, board.uuid().unwrap())).unwrap();
    assert_eq!(board.set_mig_mode(true).unwrap(), 19, "the activation status is \"in use\"");
    assert_eq!(modes(), (0, 1));
    assert_eq!(board.set_mig_mode(false).unwrap(), 0);
    assert_eq!(modes(), (0, 0), "the present mode takes the pending one back");
    assert_eq!(board.set_mig_mode(true).unwrap(), 19);
    std::fs::remove_file(&faults).unwrap();
    assert_eq!(modes(), (0, 1), "it does not come into force by itself");
    assert_eq!(board.set_mig_mode(true).unwrap(), 0);
    assert_eq!(modes(), (1, 1));
}
