//! What it costs to read a host once a second: eight simulated boards with seven slices each. Prints
//! `{"percent": …, "devices": …, "seconds": …}`; `percent` is of one core, the simulated driver included.

#![expect(unsafe_code, reason = "the environment is set before the library loads")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_gpu::Gpus;
use berth_worker::telemetry::Telemetry;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// 1g.10gb.
const PROFILE: u32 = 19;
const SECONDS: u32 = 30;

/// The library that cargo built with this program.
fn library() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let beside = this.parent().and_then(|dir| dir.parent()).ok_or("no directory")?;
    let places = [beside.join("libberth_nvml_sim.so"), beside.join("deps/libberth_nvml_sim.so")];
    places.into_iter().find(|place| place.exists()).ok_or_else(|| "build berth-nvml-sim first".to_owned())
}

/// Processor time of this process so far.
fn used() -> Result<Duration, String> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(|e| e.to_string())?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(micros.unsigned_abs()))
}

fn main() -> Result<(), String> {
    let dir = std::env::temp_dir().join(format!("berth-sampling-{}", std::process::id()));
    // SAFETY: no other thread was started.
    unsafe {
        std::env::set_var("BERTH_NVML_SIM_DIR", &dir);
        std::env::set_var("BERTH_NVML_SIM_FLEET", "8xH100-80GB");
    }
    let measured = measure();
    // What is in it was made here.
    let _ = std::fs::remove_dir_all(&dir);
    println!("{}", measured?);
    Ok(())
}

fn measure() -> Result<String, String> {
    let said = |e: berth_gpu::GpuError| e.to_string();
    let gpus = Arc::new(Gpus::open(Some(&library()?)).map_err(said)?);
    for board in gpus.inventory().map_err(said)? {
        gpus.set_mig(&board.uuid, true).map_err(said)?;
        for start in 0..7 {
            gpus.create_slice(&board.uuid, PROFILE, start).map_err(said)?;
        }
    }
    let telemetry = Telemetry::new("bench", true);
    // The first look finds the boards; it comes once a minute at most.
    telemetry.record(&telemetry.read(&gpus, &[]), &[]);
    let (began, before) = (Instant::now(), used()?);
    let mut devices = 0;
    for second in 1..=SECONDS {
        let found = telemetry.read(&gpus, &[]);
        let read = found.iter().filter_map(|f| f.read.as_ref().ok());
        devices = read.map(|board| 1 + board.slices.len()).sum::<usize>();
        telemetry.record(&found, &[]);
        let next = began + Duration::from_secs(u64::from(second));
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let spent = used()?.saturating_sub(before);
    let percent = 100.0 * spent.as_secs_f64() / began.elapsed().as_secs_f64();
    Ok(format!("{{\"percent\": {percent:.3}, \"devices\": {devices}, \"seconds\": {SECONDS}}}"))
}
