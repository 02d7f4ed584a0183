//! The helper process of the clearing over the simulated CUDA library.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::boards::find_library;

const UUID: &str = "GPU-00112233-4455-6677-8899-aabbccddeeff";

/// Waits for the end of a process. One that does not end is killed, and the test fails.
fn wait(mut child: Child) -> ExitStatus {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let (sender, ended) = mpsc::channel();
    let waiting = thread::spawn(move || sender.send(child.wait().unwrap()));
    let status = ended.recv_timeout(Duration::from_secs(20));
    if status.is_err() {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    let _ = waiting.join();
    status.unwrap_or_else(|_| panic!("the process outlived its daemon"))
}

#[test]
fn a_clearing_ends_with_its_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let boards = format!(r#"{{"boards": [{{"model": "H100-80GB", "uuid": "{UUID}"}}], "made": 1}}"#);
    std::fs::write(dir.path().join("boards.json"), boards).unwrap();
    let faults = format!(r#"{{"{UUID}": {{"hangs": true}}}}"#);
    std::fs::write(dir.path().join("cuda-faults.json"), faults).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_berth-worker"))
        .args(["clear-memory", "--device", UUID, "--library"])
        .arg(find_library("libberth_cuda_sim.so"))
        .env("BERTH_NVML_SIM_DIR", dir.path())
        .env("CUDA_VISIBLE_DEVICES", UUID)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, format!("{{\"opened\":{}}}\n", 80_u64 << 30));
    assert_eq!(child.try_wait().unwrap(), None, "a call of the driver hangs");
    // The kernel closes the input at the end of the daemon.
    drop(child.stdin.take());
    assert_eq!(wait(child).signal(), Some(9));
}
