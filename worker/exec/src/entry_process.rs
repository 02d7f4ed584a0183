//! The daemon's side of an entry process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use super::nsenter::EntryTarget;
use berth_system::pty;

/// The time limit for an entry process to open its file.
const ENTER_WITHIN: Duration = Duration::from_secs(10);

/// An entry process with the file that it opened. The process ends when its socket is dropped.
pub struct EntryProcess {
    pub file: OwnedFd,
    pub socket: UnixStream,
    pub child: Child,
}

/// Starts an entry process for the attempt in this directory, and receives the file that it opens.
pub async fn start_entry(dir: &Path, target: EntryTarget) -> Result<EntryProcess, String> {
    let failed = |action: &str, error: io::Error| format!("{action}: {error}.");
    let (socket, theirs) = UnixStream::pair().map_err(|e| failed("A socket cannot be created", e))?;
    socket.set_read_timeout(Some(ENTER_WITHIN)).map_err(|e| failed("The socket cannot be set up", e))?;
    let this = std::env::current_exe().map_err(|e| failed("The program of the worker cannot be found", e))?;
    let mut command = Command::new(this);
    command.arg("enter").arg(dir);
    match target {
        EntryTarget::Shell(size) => {
            command.arg("--cols").arg(size.cols.to_string()).arg("--rows").arg(size.rows.to_string())
        }
        EntryTarget::Port(port) => command.arg("--port").arg(port.to_string()),
    };
    let child = command
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| failed("No process can be started", e))?;
    // The command has a copy of the socket, which would hide the end of the process.
    drop(command);
    let (socket, file) = tokio::task::spawn_blocking(move || {
        let file = pty::receive_file(socket.as_fd());
        (socket, file)
    })
    .await
    .map_err(|e| e.to_string())?;
    Ok(EntryProcess { file: file?, socket, child })
}
