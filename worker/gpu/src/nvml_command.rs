//! The helper process for NVML: `berth-worker nvml`. It loads the library and answers the requests of the daemon on its
//! standard input, a socket.
//!
//! The daemon ends it if a call hangs or a board is reset. The process has no deadlines of its own.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use berth_system::sync::lock;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::error::GpuError;
use super::executor::BoardExecutors;
use super::frames::{AnswerMessage, RequestMessage, read_message, write_message};
use super::library::Library;

/// The command of the worker's program.
pub const NVML_COMMAND: &str = "nvml";

/// The daemon's end of the socket.
struct Daemon {
    socket: Mutex<UnixStream>,
}

impl Daemon {
    fn answer(&self, id: u64, result: Result<Value, GpuError>) {
        let mut socket = lock(&self.socket);
        let sent = write_message(&mut *socket, &AnswerMessage { id, result }).or_else(|error| {
            if error.kind() != ErrorKind::InvalidData {
                return Err(error);
            }
            let result = Err(GpuError::Nvml("the answer is too long".to_owned()));
            write_message(&mut *socket, &AnswerMessage { id, result })
        });
        if let Err(error) = sent {
            tracing::error!(%error, "an answer of NVML cannot be passed on");
            end();
        }
    }
}

/// Ends this process. An orderly exit runs code of the driver, which can hang.
fn end() {
    let _ = kill(Pid::this(), Signal::SIGKILL);
}

/// Loads NVML beside the reader of the socket, so that the process ends with the daemon even during a start that hangs.
fn start(library: Option<PathBuf>, daemon: &Arc<Daemon>) -> io::Result<Arc<OnceLock<Arc<Library>>>> {
    let (started, daemon) = (Arc::new(OnceLock::new()), daemon.clone());
    let loaded = started.clone();
    let load = move || {
        let result = Library::open(library.as_deref()).map(|library| {
            // This thread alone sets it.
            let _ = loaded.set(Arc::new(library));
            Value::Null
        });
        daemon.answer(0, result);
    };
    thread::Builder::new().name("gpu start".to_owned()).spawn(load)?;
    Ok(started)
}

/// Answers requests until the end of the daemon. It returns only after a failure.
///
/// # Errors
/// The reason, as a sentence without its full stop.
pub fn run(library: Option<PathBuf>) -> Result<(), String> {
    let failed = |error: io::Error| format!("the helper process for NVML cannot work: {error}");
    let mut requests = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
    let daemon = Arc::new(Daemon { socket: Mutex::new(requests.try_clone().map_err(failed)?) });
    let started = start(library, &daemon).map_err(failed)?;
    let executors = BoardExecutors::default();
    loop {
        let Ok(RequestMessage { id, executor, request }) = read_message(&mut requests) else {
            // The kernel closes the socket at the end of the daemon.
            end();
            return Ok(());
        };
        let (replies, started) = (daemon.clone(), started.clone());
        let call = move || {
            let result = match started.get() {
                Some(library) => request.answer(library),
                None => Err(GpuError::Unresponsive),
            };
            replies.answer(id, result);
        };
        if executors.start(&executor, Duration::MAX, call).is_none() {
            daemon.answer(id, Err(GpuError::Unresponsive));
        }
    }
}
