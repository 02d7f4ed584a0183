//! The helper process: `berth-worker clear-memory`.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

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

/// Clears the memory of one device. Prints one JSON value in each line. The exit code is 1 after a failure. The process
/// ends with its input.
pub fn run(args: &ClearMemoryArgs) -> ExitCode {
    let watched = end_with_daemon().map_err(|error| format!("the helper process has no thread: {error}"));
    let (message, code) = match watched.and_then(|()| clear(args)) {
        Ok(Some(cleared)) => (Message::Cleared(cleared), ExitCode::SUCCESS),
        Ok(None) => (Message::Ready, ExitCode::SUCCESS),
        Err(why) => (Message::Failed(why), ExitCode::FAILURE),
    };
    print(&message);
    code
}

/// Ends this process with its input, which the daemon holds open. A process without its daemon would keep the memory of
/// the device from the next start.
fn end_with_daemon() -> io::Result<()> {
    let watch = || {
        // The daemon writes nothing.
        let _ = io::stdin().lock().read(&mut [0; 1]);
        // An orderly exit runs code of the driver, which can hang.
        let _ = kill(Pid::this(), Signal::SIGKILL);
    };
    thread::Builder::new().name("daemon end".to_owned()).spawn(watch).map(|_| ())
}

/// Prints a message. A daemon that does not read any more needs none.
fn print(message: &Message) {
    let mut out = io::stdout().lock();
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
