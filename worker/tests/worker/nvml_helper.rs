//! The helper process for NVML over the simulated library: calls that hang, its sudden end, resets, and its end with the
//! daemon.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_gpu::board_tasks::run_task;
use berth_gpu::{BoardEventKind, Deadlines, GpuError, Gpus, Presence, event_gaps, simulation};
use berth_proto::TaskKind;
use berth_system::processes::{descendants, stat};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::boards::{library, open_gpus, simulate};
use crate::health::{Tenant, listen, put, raise, silent, task};
use crate::load;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

fn until(condition: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !check() {
        assert!(Instant::now() < deadline, "it never came to that: {condition}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The processes below this one.
fn children() -> Vec<i32> {
    let this = i32::try_from(std::process::id()).unwrap();
    descendants(this).into_iter().map(|(pid, _)| pid).collect()
}

/// The helper process of this one. A zombie has no command line.
fn find_helper() -> Option<i32> {
    let is_helper = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"nvml".as_slice())
    };
    children().into_iter().find(is_helper)
}

fn has_zombie() -> bool {
    children().into_iter().any(|pid| stat(pid).is_some_and(|stat| stat.dead))
}

#[test]
fn a_call_that_hangs_ends_its_helper_and_other_boards_answer() {
    let _quiet = load::quiet();
    let Some(dir) = simulate("2xH100-80GB") else { return };
    let deadlines = Deadlines { read: Duration::from_secs(2), change: Duration::from_secs(10) };
    let gpus = open_gpus().with_deadlines(deadlines);
    let boards = gpus.inventory().unwrap();
    let (first, second) = (&boards[0].uuid, &boards[1].uuid);
    let mut tenant = Tenant::on(second);
    let former = find_helper().unwrap();

    put(&dir, &format!(r#"{{"hang_ms": {{"{first}": 600000}}}}"#));
    assert_eq!(gpus.read(first, None), Err(GpuError::Unresponsive));
    until("the end of the helper", || stat(former).is_none());
    until("readings of the other board", || gpus.read(second, None).is_ok());
    assert_ne!(find_helper(), Some(former));
    assert_eq!(silent(&gpus, first).as_deref(), Some("NVML does not answer for the board."));
    assert_eq!(gpus.presence(first, None), Presence::Unknown, "which says nothing about its jobs");
    assert_eq!(gpus.holders(second, None), Ok(vec![tenant.0.id()]));
    assert_eq!(tenant.0.try_wait().unwrap(), None, "the job goes on");

    // Calls of the board are held back, so the next process lives on.
    let present = find_helper().unwrap();
    let begun = Instant::now();
    assert_eq!(gpus.read(first, None), Err(GpuError::Unresponsive));
    assert!(begun.elapsed() < deadlines.read, "said at once");
    assert_eq!(find_helper(), Some(present));
    put(&dir, "{}");
    until("the answer of the board", || silent(&gpus, first).is_none());
    assert!(!has_zombie());
}

#[test]
fn a_killed_helper_is_replaced_and_touches_no_job() {
    let Some(dir) = simulate("1xH100-80GB,1xA30") else { return };
    let gpus = Arc::new(open_gpus());
    let boards = gpus.inventory().unwrap();
    let (first, second) = (&boards[0].uuid, &boards[1].uuid);
    let mut tenant = Tenant::on(first);
    let heard = listen(&gpus);
    let mut at = 0;
    raise(&dir, &heard, second, 13, 0, &mut at);
    let (former, gaps) = (find_helper().unwrap(), event_gaps(&gpus));
    assert_eq!(gaps % 2, 0, "something listens");

    kill(Pid::from_raw(former), Signal::SIGKILL).unwrap();
    // The call waits for the next process.
    assert!(gpus.read(first, None).is_ok());
    assert!(stat(former).is_none(), "it was collected");
    assert_eq!(gpus.holders(first, None), Ok(vec![tenant.0.id()]));
    assert_eq!(tenant.0.try_wait().unwrap(), None, "the job goes on");

    // Events of both boards are requested anew, and XIDs of the time between come from the kernel's log.
    for (uuid, xid) in [(first, 48), (second, 95)] {
        let event = raise(&dir, &heard, uuid, xid, 0, &mut at);
        assert_eq!((&event.gpu_uuid, event.kind), (uuid, BoardEventKind::Xid(xid)));
    }
    assert!(event_gaps(&gpus) >= gaps + 2 && event_gaps(&gpus).is_multiple_of(2));
    assert!(!has_zombie());
}

#[test]
fn a_reset_ends_the_helper_and_starts_another() {
    if simulate("1xH100-80GB").is_none() {
        return;
    }
    let gpus = open_gpus();
    let board = gpus.inventory().unwrap().remove(0).uuid;
    let reset = |gpus: &Gpus, number: u64| run_task(gpus, &task(&board, number, TaskKind::Reset));
    let former = find_helper().unwrap();
    assert_eq!(reset(&gpus, 1), Ok("The board was reset and is free of faults.".to_owned()));
    assert!(stat(former).is_none());
    assert!(gpus.read(&board, None).is_ok() && find_helper().is_some());
    assert!(!has_zombie());

    // NVML in this process would hold the board, so it resets none.
    let program = simulation::reset_program(env!("CARGO_BIN_EXE_berth-worker").into());
    let in_process = Gpus::open(Some(&library())).unwrap().with_reset_program(program);
    assert_eq!(in_process.inventory().unwrap().len(), 1);
    let refused = reset(&in_process, 2).unwrap_err();
    assert!(refused.contains("NVML cannot be closed") && refused.contains("was not reset"), "{refused}");
    assert!(in_process.read(&board, None).is_ok());
}

#[test]
fn the_helper_gets_no_secrets_and_ends_with_its_owner() {
    if simulate("1xH100-80GB").is_none() {
        return;
    }
    let gpus = open_gpus();
    assert_eq!(gpus.inventory().unwrap().len(), 1);
    let helper = find_helper().unwrap();
    let environ = std::fs::read_to_string(format!("/proc/{helper}/environ")).unwrap();
    let names: Vec<&str> =
        environ.split_terminator('\0').filter_map(|v| Some(v.split_once('=')?.0)).collect();
    let permitted = ["LD_LIBRARY_PATH", "BERTH_LOG", "BERTH_NVML_SIM_DIR", "BERTH_NVML_SIM_FLEET"];
    assert!(
        names.contains(&"BERTH_NVML_SIM_DIR") && names.iter().all(|n| permitted.contains(n)),
        "{names:?}"
    );
    drop(gpus);
    until("the end of the helper", || stat(helper).is_none());
}

/// Reads a message of the helper as text.
fn read_text(socket: &mut UnixStream) -> String {
    let mut length = [0; 4];
    socket.read_exact(&mut length).unwrap();
    let mut text = vec![0; usize::try_from(u32::from_le_bytes(length)).unwrap()];
    socket.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn send_text(socket: &mut UnixStream, text: &str) {
    socket.write_all(&u32::try_from(text.len()).unwrap().to_le_bytes()).unwrap();
    socket.write_all(text.as_bytes()).unwrap();
}

/// Waits for the end of a process. One that does not end is killed, and the test fails.
fn end_signal(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.signal();
        }
        if Instant::now() >= deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the process outlived its daemon");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a helper over simulated boards in a directory; returns the daemon's end of its socket.
fn start_helper(dir: &Path) -> (UnixStream, Child) {
    let (mut daemon, theirs) = UnixStream::pair().unwrap();
    daemon.set_read_timeout(Some(LONG)).unwrap();
    let helper = Command::new(env!("CARGO_BIN_EXE_berth-worker"))
        .args(["nvml", "--library"])
        .arg(library())
        .env("BERTH_NVML_SIM_DIR", dir)
        .env("BERTH_NVML_SIM_FLEET", "1xH100-80GB")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .unwrap();
    assert_eq!(read_text(&mut daemon), r#"{"id":0,"result":{"Ok":null}}"#);
    (daemon, helper)
}

#[test]
fn a_helper_ends_with_its_daemon_even_during_a_call_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    // The first helper makes the boards.
    let (daemon, mut helper) = start_helper(dir.path());
    drop(daemon);
    assert_eq!(end_signal(&mut helper), Some(9));
    let boards = std::fs::read_to_string(dir.path().join("boards.json")).unwrap();
    let uuid: String = boards[boards.find("GPU-").unwrap()..].chars().take(40).collect();
    put(dir.path(), &format!(r#"{{"hang_ms": {{"{uuid}": 600000}}}}"#));
    let (mut daemon, mut helper) = start_helper(dir.path());
    send_text(&mut daemon, r#"{"id":1,"executor":"board 0","request":{"FindUuid":{"index":0}}}"#);
    send_text(&mut daemon, r#"{"id":2,"executor":"host","request":{"ReadDriverVersion":{}}}"#);
    let answer = read_text(&mut daemon);
    assert!(answer.starts_with(r#"{"id":2,"result":{"Ok":""#), "a call that hangs delays no other: {answer}");
    assert_eq!(helper.try_wait().unwrap(), None);
    // The kernel closes the socket at the end of the daemon.
    drop(daemon);
    assert_eq!(end_signal(&mut helper), Some(9));
}
