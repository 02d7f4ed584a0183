//! The library under programs that others wrote, where they are installed: NVIDIA's own binding for Python, and
//! monitoring programs. Scripts in Python drive them.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

#[path = "../../tests/left_out/mod.rs"]
mod left_out;

use std::process::Command;

use left_out::left_out;

/// True if Python has a module. Otherwise the test says what it leaves out.
fn has(module: &str, package: &str) -> bool {
    let found = Command::new("python3").args(["-c", &format!("import {module}")]).output();
    let has = found.is_ok_and(|out| out.status.success());
    if !has {
        left_out(format!("python3 has no module {module} (pip install {package})"));
    }
    has
}

/// Runs a script of this folder over a fleet of its own until it says that it is done.
fn drive(script: &str, arguments: &[&str], fleet: &str) {
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [beside.join("libberth_nvml_sim.so"), beside.join("../libberth_nvml_sim.so")];
    let library = places.into_iter().find(|p| p.exists()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The programs look for the library by a name that the driver installs, and nvtop by that for compilers first.
    for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
        std::os::unix::fs::symlink(library.canonicalize().unwrap(), dir.path().join(name)).unwrap();
    }
    let out = Command::new("python3")
        .arg(format!("{}/tests/{script}", env!("CARGO_MANIFEST_DIR")))
        .args(arguments)
        .env("LD_LIBRARY_PATH", dir.path())
        .env("BERTH_NVML_SIM_DIR", dir.path().join("boards"))
        .env("BERTH_NVML_SIM_FLEET", fleet)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && said.contains("driven"),
        "{said}{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn the_binding_for_python_drives_it() {
    if has("pynvml", "nvidia-ml-py") {
        drive("binding.py", &[], "1xH100-80GB,1xA30");
    }
}

#[test]
fn monitoring_programs_read_it_as_a_driver() {
    let programs = ["nvitop", "gpustat", "py3nvml"];
    let there: Vec<&str> = programs.into_iter().filter(|program| has(program, program)).collect();
    if !there.is_empty() && has("pynvml", "nvidia-ml-py") {
        drive("witnesses.py", &there, "1xH100-80GB,1xA30,1xL4");
    }
}

#[test]
fn nvtop_reads_it_as_a_driver() {
    let found = Command::new("nvtop").arg("--version").output();
    if !found.is_ok_and(|out| out.status.success()) {
        left_out("nvtop is absent (apt-get install nvtop)");
        return;
    }
    if has("pyte", "pyte") && has("pynvml", "nvidia-ml-py") {
        drive("nvtop.py", &[], "1xH100-80GB,1xL4,1xRTX-4090,1xT4");
    }
}
