//! Simulated boards: a restart of the program with the settings of the simulated library in its environment.
//!
//! The library reads the environment, and a running program cannot change its own safely.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::reset_program::ResetProgram;

pub(super) const DIR: &str = "BERTH_NVML_SIM_DIR";
pub(super) const FLEET: &str = "BERTH_NVML_SIM_FLEET";
/// The directory of the boards in the worker's data.
const BOARDS: &str = "simulated-boards";
const LIBRARY: &str = "libberth_nvml_sim.so";
/// The command of the worker's program that stands for `nvidia-smi`.
const PROGRAM: &str = "nvidia-smi";
const CUDA_LIBRARY: &str = "libberth_cuda_sim.so";

/// A simulated library: beside this program, in the directory of cargo, or in that of an installation.
fn find_library(this: &Path, name: &str) -> Option<PathBuf> {
    let beside = this.parent().unwrap_or(Path::new("."));
    let places = ["", "deps", "../lib/berth"].map(|place| beside.join(place).join(name));
    places.into_iter().find(|p| p.exists())
}

/// The simulated library of NVML.
fn library() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    find_library(&this, LIBRARY).ok_or_else(|| {
        format!(
            "the simulation needs {LIBRARY} beside {}. Run the join command of this node again: it fetches the file",
            this.display()
        )
    })
}

/// The simulated kernel log. `data` is the worker's data directory.
pub fn kernel_log(data: &Path) -> PathBuf {
    data.join(BOARDS).join("kmsg")
}

/// The program that resets simulated boards: `worker` with its command for that, and with the settings of the simulated
/// library from this process.
pub fn reset_program(worker: PathBuf) -> ResetProgram {
    let setting = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
    let settings = [DIR, FLEET].into_iter().filter_map(setting).collect();
    ResetProgram::new(worker).with_context(vec![PROGRAM.to_owned()], settings)
}

/// Resets simulated boards, as `nvidia-smi` resets boards, and prints the result.
///
/// # Errors
/// The text of the refusal.
pub fn run_nvidia_smi(gpu_uuids: &[String]) -> Result<(), String> {
    let text = berth_nvml_sim::reset_boards(gpu_uuids)?;
    println!("{text}");
    Ok(())
}

/// The simulated CUDA library with the variable that names its boards. `None`: it is not installed. `data` is the
/// worker's data directory.
pub fn find_cuda_library(data: &Path) -> Option<(PathBuf, (String, String))> {
    let library = find_library(&std::env::current_exe().ok()?, CUDA_LIBRARY)?;
    Some((library, (DIR.to_owned(), data.join(BOARDS).display().to_string())))
}

/// Restarts this program with the simulated fleet unless it has that already. Returns the library to load, only in a
/// process with the right environment.
pub fn restart_with_fleet(fleet: &str, data: &Path) -> Result<PathBuf, String> {
    berth_nvml_sim::parse_fleet(fleet)?;
    let library = library()?;
    let dir = data.join(BOARDS);
    let set = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    let dir_text = dir.display().to_string();
    if set(DIR, &dir_text) && set(FLEET, fleet) {
        return Ok(library);
    }
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let error =
        Command::new(this).args(std::env::args_os().skip(1)).env(DIR, &dir_text).env(FLEET, fleet).exec();
    Err(format!("the simulation cannot restart this program: {error}"))
}
