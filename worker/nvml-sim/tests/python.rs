//! The library under NVIDIA's own binding for Python, where that is installed.

#[path = "../../tests/left_out/mod.rs"]
mod left_out;

use std::process::Command;

use left_out::left_out;

#[test]
fn the_binding_for_python_drives_it() {
    let found = Command::new("python3").args(["-c", "import pynvml"]).output();
    if !found.is_ok_and(|out| out.status.success()) {
        left_out("python3 has no module pynvml (pip install nvidia-ml-py)");
        return;
    }
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [beside.join("libberth_nvml_sim.so"), beside.join("../libberth_nvml_sim.so")];
    let library = places.into_iter().find(|p| p.exists()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The binding looks for the library by the name that the driver installs.
    std::os::unix::fs::symlink(library.canonicalize().unwrap(), dir.path().join("libnvidia-ml.so.1"))
        .unwrap();
    let out = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/binding.py"))
        .env("LD_LIBRARY_PATH", dir.path())
        .env("BERTH_NVML_SIM_DIR", dir.path().join("boards"))
        .env("BERTH_NVML_SIM_FLEET", "1xH100-80GB,1xA30")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && said.contains("driven"),
        "{said}{}",
        String::from_utf8_lossy(&out.stderr)
    );
}
