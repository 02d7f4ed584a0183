//! Simulated boards: a restart of the program with the settings of the simulated library in its environment.
//!
//! The library reads the environment, and a running program cannot change its own safely.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const DIR: &str = "BERTH_NVML_SIM_DIR";
const FLEET: &str = "BERTH_NVML_SIM_FLEET";
/// The directory of the boards in the worker's data.
const BOARDS: &str = "simulated-boards";
const LIBRARY: &str = "libberth_nvml_sim.so";

/// The simulated library: beside this program, in the directory of cargo, or in that of an installation.
fn library() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let beside = this.parent().unwrap_or(Path::new("."));
    let places = ["", "deps", "../lib/berth"].map(|place| beside.join(place).join(LIBRARY));
    places.into_iter().find(|p| p.exists()).ok_or_else(|| {
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
