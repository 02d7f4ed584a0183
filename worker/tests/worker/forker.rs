//! Shims that are forked: the real forker and the real shim around a script, and what becomes of them when the
//! forker or its daemon is lost.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use berth_shim::forker::{ForkedShim, Forker};
use berth_shim::{Launch, Limits, ShimRecords, ShimSecrets, shim_pid};
use berth_system::files::{find_json, put_json};
use berth_system::processes::stat;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

const LONG: Duration = Duration::from_secs(20);
/// Ends with 3 when it is let go.
const WAITS: &str = "while [ ! -e go ]; do sleep 0.02; done; exit 3";

fn forker() -> Forker {
    Forker::new(env!("CARGO_BIN_EXE_berth-worker").into())
}

fn until(what: &str, ready: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !ready() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The directory of an attempt that is ready to be started.
fn prepared(root: &Path, name: &str, text: &str, has_secrets: bool) -> PathBuf {
    let dir = root.join(name);
    std::fs::create_dir(&dir).unwrap();
    let launch = Launch {
        argv: ["/bin/sh", "-c", text].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cwd: dir.clone(),
        limit_ms: 20_000,
        grace_ms: 100,
        sandbox_depth: 0,
        limits: Limits::default(),
        has_secrets,
        secrets: None,
        lease: None,
        container: None,
        storage_group: None,
    };
    put_json(&dir.join(berth_shim::LAUNCH), &launch, false).unwrap();
    dir
}

/// One whose command and variables are these.
fn with(root: &Path, name: &str, argv: &[&str], env: &[(&str, &str)]) -> PathBuf {
    let dir = prepared(root, name, "", false);
    let mut launch: Launch = find_json(&dir.join(berth_shim::LAUNCH)).unwrap();
    launch.argv = argv.iter().map(|word| (*word).to_owned()).collect();
    launch.env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    put_json(&dir.join(berth_shim::LAUNCH), &launch, false).unwrap();
    dir
}

/// Waits for a shim that runs: its pid, and its forker's.
fn running(dir: &Path) -> (i32, i32) {
    until("it never began", || ShimRecords::read(dir).start.is_some());
    let pid = shim_pid(dir).unwrap();
    (pid, stat(pid).unwrap().parent)
}

fn let_go(dir: &Path) {
    std::fs::write(dir.join("go"), "").unwrap();
}

fn wait(ended: ForkedShim) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LONG, ended.wait()).await }).unwrap();
}

fn code(dir: &Path) -> Option<i32> {
    ShimRecords::read(dir).exit.map(|exit| exit.code)
}

fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join(berth_shim::LOG)).unwrap_or_default()
}

fn end(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    // It is collected when the daemon's side knows of its end.
    until("it was never collected", || stat(pid).is_none());
}

#[test]
fn shims_are_forked_side_by_side_and_their_ends_are_told() {
    let root = tempfile::tempdir().unwrap();
    let forker = forker();
    forker.start().unwrap();
    let (slow, quick) =
        (prepared(root.path(), "slow", WAITS, false), prepared(root.path(), "quick", "exit 4", false));
    let slow_ends = forker.fork_shim(&slow, None).unwrap();
    wait(forker.fork_shim(&quick, None).unwrap());
    assert_eq!((code(&quick), code(&slow)), (Some(4), None));
    let (shim, parent) = running(&slow);
    assert_ne!(parent, i32::try_from(std::process::id()).unwrap());
    let_go(&slow);
    wait(slow_ends);
    assert_eq!(code(&slow), Some(3));
    assert!(stat(shim).is_none(), "collected");
    // What cannot be started ends too, and so does what was started before.
    let empty = root.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    wait(forker.fork_shim(&empty, None).unwrap());
    wait(forker.fork_shim(&quick, None).unwrap());
    assert_eq!((code(&empty), code(&quick)), (None, Some(4)));
}

#[test]
fn a_shim_begins_like_a_program_that_was_just_started() {
    let root = tempfile::tempdir().unwrap();
    let text = "cat /proc/$PPID/comm; grep SigBlk /proc/self/status; ls -ln /proc/$PPID/fd; true";
    let dir = prepared(root.path(), "job_01h455vb4pex5vsknk084sn02q-1", text, false);
    wait(forker().fork_shim(&dir, None).unwrap());
    let log = log(&dir);
    assert_eq!(code(&dir), Some(0), "{log}");
    assert!(log.starts_with("shim 084sn02q-1\nSigBlk:\t0000000000000000\n"), "{log}");
    assert!(log.contains("/dev/null") && !log.contains("socket:"), "{log}");
}

#[test]
fn a_command_is_found_by_its_own_path_and_begins_with_its_own_variables() {
    let root = tempfile::tempdir().unwrap();
    let forker = forker();
    let bin = root.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let hello = bin.join("hello");
    std::fs::write(&hello, "not executable").unwrap();
    let path = bin.display().to_string();
    let env = [("PATH", "/nowhere"), ("B", "one=two"), ("PATH", path.as_str()), ("A", "")];
    let run = |dir: PathBuf| {
        wait(forker.fork_shim(&dir, None).unwrap());
        (code(&dir), log(&dir), ShimRecords::read(&dir).start.is_some())
    };
    let (code, log, started) = run(with(root.path(), "not executable", &["hello"], &env));
    assert_eq!((code, started), (Some(126), true), "{log}");
    std::fs::remove_file(&hello).unwrap();
    std::os::unix::fs::symlink("/usr/bin/env", &hello).unwrap();
    let (code, log, _) = run(with(root.path(), "found", &["hello"], &env));
    assert_eq!(code, Some(0), "{log}");
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["A=", "B=one=two", &format!("PATH={path}")], "the later of two counts");
    for argv in [&["hello"][..], &["/nowhere/hello"], &[""], &[]] {
        let (code, log, _) = run(with(root.path(), &format!("{argv:?}").replace('/', "_"), argv, &env[..1]));
        assert_eq!(code, Some(127), "{argv:?}");
        assert!(log.starts_with("berth: the command cannot be started: "), "{log}");
    }
    let (code, log, started) = run(with(root.path(), "nul", &["/bin/true", "a\0b"], &[]));
    assert_eq!((code, started), (Some(127), false), "{log}");
}

#[test]
fn whatever_signal_ends_a_command_is_its_code() {
    // None of them is ignored, as the shim itself does with one.
    let root = tempfile::tempdir().unwrap();
    let forker = forker();
    for (name, of) in [("KILL", 137), ("PIPE", 141), ("40", 168)] {
        let dir = prepared(root.path(), name, &format!("kill -{name} $$"), false);
        wait(forker.fork_shim(&dir, None).unwrap());
        assert_eq!(code(&dir), Some(of), "{name}");
    }
}

#[test]
fn a_told_secret_arrives_and_one_cut_short_starts_nothing() {
    let root = tempfile::tempdir().unwrap();
    let forker = forker();
    let dir = prepared(root.path(), "told", "echo ${#TOKEN}", true);
    let (hears, tells) = io::pipe().unwrap();
    let ended = forker.fork_shim(&dir, Some(hears.into())).unwrap();
    // More than a pipe holds.
    let given = ShimSecrets { env: vec![("TOKEN".to_owned(), "s".repeat(100_000))], redacted: Vec::new() };
    given.send(tells);
    wait(ended);
    assert_eq!((code(&dir), log(&dir).as_str()), (Some(0), "100000\n"));
    for told in ["never", "lost"] {
        let dir = prepared(root.path(), told, "true", true);
        let (hears, tells) = io::pipe().unwrap();
        let ended = forker.fork_shim(&dir, (told == "lost").then(|| hears.into())).unwrap();
        drop(tells);
        wait(ended);
        assert!(code(&dir).is_none() && ShimRecords::read(&dir).start.is_none(), "{told}");
    }
}

#[test]
fn signals_to_the_daemons_group_leave_the_forker_and_shims_hear_theirs() {
    let root = tempfile::tempdir().unwrap();
    let forker = forker();
    let first = prepared(root.path(), "first", WAITS, false);
    let first_ends = forker.fork_shim(&first, None).unwrap();
    let (_, parent) = running(&first);
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        kill(Pid::from_raw(parent), signal).unwrap();
    }
    let second = prepared(root.path(), "second", WAITS, false);
    let second_ends = forker.fork_shim(&second, None).unwrap();
    assert_eq!(running(&second).1, parent, "it goes on");
    berth_shim::send_signal(&second, Signal::SIGTERM);
    wait(second_ends);
    assert_eq!((code(&second), code(&first)), (Some(128 + Signal::SIGTERM as i32), None));
    let_go(&first);
    wait(first_ends);
}

#[test]
fn a_forker_that_is_lost_before_it_answers_leaves_it_to_the_lock() {
    let root = tempfile::tempdir().unwrap();
    let forker = forker();
    let other = prepared(root.path(), "other", WAITS, false);
    let other_ends = forker.fork_shim(&other, None).unwrap();
    let (_, parent) = running(&other);
    kill(Pid::from_raw(parent), Signal::SIGSTOP).unwrap();
    let dir = prepared(root.path(), "asked", "true", false);
    let ended = std::thread::scope(|scope| {
        let asked = scope.spawn(|| forker.fork_shim(&dir, None).unwrap());
        let stopped =
            pidfd_open(rustix::process::Pid::from_raw(parent).unwrap(), PidfdFlags::empty()).unwrap();
        let its_side = pidfd_getfd(&stopped, 0, PidfdGetfdFlags::empty()).unwrap();
        let mut heard = [PollFd::new(its_side.as_fd(), PollFlags::POLLIN)];
        let most = PollTimeout::try_from(LONG).unwrap();
        assert_eq!(poll(&mut heard, most).unwrap(), 1, "it was never asked");
        // Else the line would stay open.
        drop(its_side);
        end(parent);
        asked.join().unwrap()
    });
    assert_eq!(ended.pid, None, "nobody said it");
    wait(ended);
    assert_eq!(ShimRecords::read(&dir), ShimRecords::default(), "there was none");
    wait(forker.fork_shim(&dir, None).unwrap());
    assert_eq!(code(&dir), Some(0), "another one does it");
    let_go(&other);
    wait(other_ends);
}

#[test]
fn a_forker_that_is_lost_is_replaced_and_its_shims_go_on() {
    let root = tempfile::tempdir().unwrap();
    let forker = forker();
    let left = prepared(root.path(), "left", WAITS, false);
    let ended = forker.fork_shim(&left, None).unwrap();
    let (shim, parent) = running(&left);
    end(parent);
    let next = prepared(root.path(), "next", WAITS, false);
    let next_ends = forker.fork_shim(&next, None).unwrap();
    assert_ne!(running(&next).1, parent);
    let_go(&next);
    wait(next_ends);
    assert_eq!((code(&next), shim_pid(&left)), (Some(3), Some(shim)));
    // Waited for by what it holds, since nobody tells of its end.
    let held = std::thread::spawn(move || wait(ended));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!held.is_finished());
    let_go(&left);
    held.join().unwrap();
    assert_eq!(code(&left), Some(3));
}

#[test]
fn a_forker_ends_with_its_daemon_and_its_shims_go_on() {
    let root = tempfile::tempdir().unwrap();
    let forker = forker();
    let left = prepared(root.path(), "left", WAITS, false);
    let ended = forker.fork_shim(&left, None).unwrap();
    let (shim, parent) = running(&left);
    drop(forker);
    until("the forker is still there", || stat(parent).is_none());
    assert_eq!(shim_pid(&left), Some(shim));
    let_go(&left);
    wait(ended);
    assert_eq!(code(&left), Some(3));
}

#[test]
fn without_a_program_there_is_an_error() {
    let forker = Forker::new("/no/such/program".into());
    assert!(forker.start().is_err());
    assert!(forker.fork_shim(Path::new("/tmp"), None).is_err());
}
