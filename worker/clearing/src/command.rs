//! The helper process: `berth-worker clear-memory`.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::driver::{Driver, parse_uuid};
use super::messages::{Cleared, Message, Progress};
use super::overwrite::overwrite;

/// The time between two reports of the progress. A short clearing has none.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// The options of the helper process. `CUDA_VISIBLE_DEVICES` names the device too.
#[derive(Debug, Clone, clap::Args)]
pub struct ClearMemoryArgs {
    /// The UUID of the board or of the MIG device. Without it only the library is loaded.
    #[arg(long)]
    device: Option<String>,
    /// The CUDA library of simulated boards.
    #[arg(long)]
    library: Option<PathBuf>,
}

/// Clears the memory of one device. Prints one JSON value in each line. The exit code is 1 after a failure.
pub fn run(args: &ClearMemoryArgs) -> ExitCode {
    let (message, code) = match clear(args) {
        Ok(Some(cleared)) => (Message::Cleared(cleared), ExitCode::SUCCESS),
        Ok(None) => (Message::Ready, ExitCode::SUCCESS),
        Err(why) => (Message::Failed(why), ExitCode::FAILURE),
    };
    print(&message);
    code
}

/// Prints a message. A daemon that does not read any more needs none.
fn print(message: &Message) {
    let mut out = std::io::stdout().lock();
    if let Ok(line) = serde_json::to_string(message) {
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

/// `None`: the library has all calls, and no device was named.
fn clear(args: &ClearMemoryArgs) -> Result<Option<Cleared>, String> {
    let driver = Driver::load(args.library.as_deref())?;
    let Some(device) = &args.device else { return Ok(None) };
    let began = Instant::now();
    let uuid = parse_uuid(device).ok_or_else(|| format!("{device} is no UUID of a device"))?;
    let device = driver.open(uuid)?;
    print(&Message::Opened(device.total_bytes));
    let mut reported = began;
    let progress = |progress: Progress| {
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            print(&Message::Progress(progress));
        }
    };
    let seed = RandomState::new().build_hasher().finish();
    overwrite(&device, device.total_bytes, seed, began, progress).map(Some)
}
