//! The library under programs in Python, each a process of its own.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

#[path = "../../tests/left_out/mod.rs"]
mod left_out;

use std::path::{Path, PathBuf};
use std::process::Command;

use left_out::left_out;

const UUID: &str = "GPU-00112233-4455-6677-8899-aabbccddeeff";

/// Where cargo put the library for this run.
fn library() -> PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [beside.join("libberth_cuda_sim.so"), beside.join("../libberth_cuda_sim.so")];
    places.into_iter().find(|place| place.exists()).unwrap()
}

fn boards(dir: &Path) {
    let boards = format!(r#"{{"boards": [{{"model": "H100-80GB", "uuid": "{UUID}"}}], "made": 1}}"#);
    std::fs::write(dir.join("boards.json"), boards).unwrap();
}

/// Runs a program on the board. Returns its output.
fn tenant(dir: &Path, device: &str, act: &str) -> Result<String, String> {
    let mut command = Command::new("python3");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tenant.py")).arg(library());
    run(&mut command, dir, device, act)
}

/// The same by numba.
fn numba_tenant(dir: &Path, act: &str) -> Result<String, String> {
    let mut command = Command::new("python3");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/numba_tenant.py"));
    command.env("NUMBA_CUDA_DRIVER", library());
    run(&mut command, dir, UUID, act)
}

fn run(command: &mut Command, dir: &Path, device: &str, act: &str) -> Result<String, String> {
    command.args([act, "a secret"]).env("BERTH_NVML_SIM_DIR", dir).env("CUDA_VISIBLE_DEVICES", device);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[test]
fn memory_outlives_the_process_that_wrote_it() {
    let dir = tempfile::tempdir().unwrap();
    boards(dir.path());
    assert_eq!(tenant(dir.path(), UUID, "find").as_deref(), Ok("absent"));
    assert_eq!(tenant(dir.path(), UUID, "put").as_deref(), Ok(""));
    assert_eq!(tenant(dir.path(), UUID, "find").as_deref(), Ok("found"));
}

#[test]
fn numba_drives_it() {
    let found = Command::new("python3").args(["-c", "from numba import cuda"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        left_out("python3 has no module numba with CUDA (pip install numba==0.61.2)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    boards(dir.path());
    assert_eq!(numba_tenant(dir.path(), "find").as_deref(), Ok("absent"));
    assert_eq!(numba_tenant(dir.path(), "put").as_deref(), Ok(""));
    assert_eq!(numba_tenant(dir.path(), "find").as_deref(), Ok("found"));
}

#[test]
fn a_program_sees_only_its_devices_and_their_faults() {
    let dir = tempfile::tempdir().unwrap();
    boards(dir.path());
    let failure = tenant(dir.path(), "GPU-other", "find").unwrap_err();
    assert!(failure.ends_with("cuInit fails with 100"), "{failure}");
    std::fs::write(dir.path().join("cuda-faults.json"), format!(r#"{{"{UUID}": {{"broken": true}}}}"#))
        .unwrap();
    let failure = tenant(dir.path(), UUID, "find").unwrap_err();
    assert!(failure.ends_with("cuMemAlloc_v2 fails with 214"), "{failure}");
}
