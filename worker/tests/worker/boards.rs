//! Simulated boards for one test, in a process of its own.
//!
//! The simulated library reads the environment at each call and keeps one set of boards for a whole process.

use std::path::{Path, PathBuf};
use std::process::Command;

use berth_gpu::{Gpus, open_in_helper};

/// Marks the process of one test.
const OWN_PROCESS: &str = "BERTH_TEST_OWN_PROCESS";
const DIR: &str = "BERTH_NVML_SIM_DIR";
const FLEET: &str = "BERTH_NVML_SIM_FLEET";

/// Returns the path of the simulated library of NVML.
pub fn library() -> PathBuf {
    find_library("libberth_nvml_sim.so")
}

/// Opens the simulated boards as a daemon does, in a helper process.
pub fn open_gpus() -> Gpus {
    open_in_helper(Path::new(env!("CARGO_BIN_EXE_berth-worker")), Some(&library())).unwrap()
}

/// Returns the path of a simulated library. Cargo builds it with the tests.
pub fn find_library(name: &str) -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [folder.join(name), folder.join("..").join(name)];
    places.into_iter().find(|p| p.exists()).unwrap()
}

/// Runs the calling test again in a new process with these boards. Returns the directory of the boards in the new
/// process, and `None` in the old process after a pass of the new one.
pub fn simulate(fleet: &str) -> Option<PathBuf> {
    if std::env::var_os(OWN_PROCESS).is_some() {
        return Some(std::env::var_os(DIR).unwrap().into());
    }
    let dir = tempfile::tempdir().unwrap();
    // A test and its thread have the same name.
    let thread = std::thread::current();
    let test = thread.name().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(OWN_PROCESS, "1")
        .env(DIR, dir.path())
        .env(FLEET, fleet)
        .output()
        .unwrap();
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    // The indent hides the result of the new process from a count of results.
    texts.iter().flat_map(|text| text.lines()).for_each(|line| println!("  {line}"));
    // A wrong name passes without a run.
    assert!(output.status.success() && texts[0].contains(" 1 passed"), "{test}: {}", output.status);
    None
}
