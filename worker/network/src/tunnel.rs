//! WireGuard in a process of its own, for kernels without it. The process outlives the daemon, as jobs do, and ends
//! with its interface.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use berth_system::processes::close_inherited;
use boringtun::device::{DeviceConfig, DeviceHandle};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The command of the worker for this process.
pub const TUNNEL_COMMAND: &str = "tunnel";
/// The threads of a tunnel.
const THREADS: usize = 2;
/// The most bytes of a configuration: 64 ranks need about 12 KiB.
const MAX_CONFIGURATION_BYTES: u64 = 64 << 10;
/// The longest start of a tunnel, and the longest wait for an answer of its device.
const START_WITHIN: Duration = Duration::from_secs(10);
/// The line of a tunnel that works.
const READY: &str = "ready";

/// Waits for the first line of the process. `false`: it did not come in time, or is another one.
fn is_ready(child: &mut Child) -> bool {
    let Some(output) = child.stdout.take() else { return false };
    let timeout = PollTimeout::try_from(START_WITHIN).unwrap_or(PollTimeout::MAX);
    let mut wait = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
    if !matches!(poll(&mut wait, timeout), Ok(1)) {
        return false;
    }
    let mut line = String::new();
    BufReader::new(output.take(64)).read_line(&mut line).is_ok() && line.trim_end() == READY
}

/// Starts the process of an interface by the worker's program. The interface exists afterwards in the network of the
/// host.
///
/// # Errors
/// The process did not start in time.
pub(crate) fn start(program: &Path, interface: &str, configuration: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("the process of the network cannot be started: {error}");
    let mut child = Command::new(program)
        .args([TUNNEL_COMMAND, interface])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    // It reads its input before all else.
    let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(configuration.as_bytes()));
    let ready = written.is_ok() && is_ready(&mut child);
    if !ready {
        // It has not been reaped.
        let _ = child.kill();
    }
    // The daemon reaps it while it runs, and the host's first process afterwards.
    thread::Builder::new().name("tunnel end".to_owned()).spawn(move || child.wait()).map_err(failed)?;
    if ready { Ok(()) } else { Err("the process of the network did not start".to_owned()) }
}

/// Sends the configuration to the device of this process.
fn configure(mut device: &UnixStream, configuration: &str) -> Result<(), String> {
    let limited = device.set_read_timeout(Some(START_WITHIN));
    limited.and_then(|()| device.write_all(configuration.as_bytes())).map_err(|error| error.to_string())?;
    let mut answer = String::new();
    BufReader::new(device.take(64)).read_line(&mut answer).map_err(|error| error.to_string())?;
    if answer.trim_end() == "errno=0" { Ok(()) } else { Err(format!("the device answered {answer:?}")) }
}

/// The process of an interface: reads its configuration, makes the interface, says so, and runs until the interface is
/// removed.
///
/// # Errors
/// The interface cannot be made.
pub fn run(interface: &str) -> Result<(), String> {
    close_inherited().map_err(|error| error.to_string())?;
    let mut configuration = String::new();
    io::stdin()
        .take(MAX_CONFIGURATION_BYTES)
        .read_to_string(&mut configuration)
        .map_err(|error| error.to_string())?;
    // No socket with a name: another process cannot ask for the keys. The device ends with this end of the pair.
    let (own_end, device_end) = UnixStream::pair().map_err(|error| error.to_string())?;
    let config = DeviceConfig {
        n_threads: THREADS,
        // Each further queue is opened by the name of the interface in a thread that can begin after `READY`. The
        // interface is in another namespace by then, so the thread would make a second one and lose its packets there.
        use_multi_queue: false,
        // A connected socket receives the packets of its peer before any other socket with this port. The tunnel of an
        // earlier gang that ends late would receive those of this one.
        use_connected_socket: false,
        uapi_fd: device_end.into_raw_fd(),
    };
    let mut device = DeviceHandle::new(interface, config).map_err(|error| error.to_string())?;
    configure(&own_end, &configuration)?;
    drop(configuration);
    println!("{READY}");
    io::stdout().flush().map_err(|error| error.to_string())?;
    device.wait();
    Ok(())
}
