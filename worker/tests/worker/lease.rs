//! The end of a lease, and of what cannot begin: the real shim around real processes, without any daemon.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use berth_exec::attempt_processes;
use berth_shim::lease::{LeaseRenewal, LeaseTerm, ShimLease};
use berth_shim::{CommandExit, Launch, Limits, ShimRecords, StopNotice};
use berth_system::clock::{boot_id, boottime_ms};
use berth_system::files::put_json;
use nix::sys::signal::Signal;

use crate::load;
use crate::stage::{Script, Stage};

const GRACE_MS: i64 = 400;
/// What the machine may be late, beyond what is promised.
const LATE_MS: i64 = 2_000;

fn leased(file: &Path, lease_ms: i64, renewed_ms: i64) -> Option<ShimLease> {
    let term = LeaseTerm { lease_ms, answer_ms: 500, grace_ms: GRACE_MS, renewed_ms };
    Some(ShimLease::new(file.to_owned(), term))
}

fn renew(file: &Path, sent_ms: i64) {
    let renewal = LeaseRenewal { boot_id: boot_id().to_owned(), sent_ms, heard_ms: sent_ms };
    put_json(file, &renewal, false).unwrap();
}

/// Prints until it is killed: SIGTERM does not end it, nor its child in a session of its own.
const STUBBORN: &str = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & \
                        echo child $!; while :; do echo on; sleep 0.05; done";

#[test]
fn without_a_word_the_whole_tree_ends() {
    let _quiet = load::quiet();
    let stage = Stage::open();
    let file = stage.root.path().join("lease.json");
    let began = boottime_ms();
    let lease = leased(&file, 1_500, began);
    let running = stage.start("silent", &Script { text: STUBBORN, lease, ..Script::default() });
    running.until("child");
    let mut tree = attempt_processes::all(&running.dir);
    assert!(tree.len() >= 2, "{tree:?}");
    // One renewal, sent a while after the start: it is counted from then.
    let sent = boottime_ms();
    renew(&file, sent);
    let (exit, log) = running.ended();
    let (code, detail) = exit.failure.clone().unwrap();
    assert_eq!((code.as_str(), exit.code), ("lease.ended", 137), "{detail} {log}");
    let after = exit.boottime_ms.unwrap() - sent;
    assert!((1_500 + GRACE_MS..1_500 + GRACE_MS + LATE_MS).contains(&after), "{after} ms");
    tree.retain(|pid| Path::new(&format!("/proc/{pid}")).exists());
    assert!(tree.is_empty(), "{tree:?} are left");
}

#[test]
fn what_ends_by_itself_in_the_grace_may() {
    let stage = Stage::open();
    let file = stage.root.path().join("lease.json");
    let text = "trap 'echo saved; exit 3' TERM; while :; do sleep 0.05; done";
    // A slow machine needs some time to the trap of the script.
    let mut lease = leased(&file, 3_000, boottime_ms()).unwrap();
    lease.term.grace_ms = 10_000;
    let lease = Some(lease);
    let (exit, log) = stage.run("saves", &Script { text, lease, ..Script::default() });
    assert_eq!((exit.failure.unwrap().0.as_str(), exit.code), ("lease.ended", 3), "{log}");
    assert!(log.contains("saved"), "{log}");
}

#[test]
fn a_renewed_lease_disturbs_nobody() {
    let _quiet = load::quiet();
    let stage = Stage::open();
    let file = stage.root.path().join("lease.json");
    let lease = leased(&file, 1_500, boottime_ms());
    let running = stage.start("renewed", &Script { text: "sleep 5; echo done", lease, ..Script::default() });
    let began = boottime_ms();
    while boottime_ms() - began < 5_000 {
        renew(&file, boottime_ms());
        std::thread::sleep(Duration::from_millis(200));
    }
    let (exit, log) = running.ended();
    assert_eq!((exit.failure, exit.code, log.as_str()), (None, 0, "done\n"));
}

#[test]
fn what_comes_after_the_end_renews_nothing_and_nothing_starts() {
    let stage = Stage::open();
    let file = stage.root.path().join("lease.json");
    // The renewal was sent when the lease had ended.
    renew(&file, boottime_ms());
    let lease = leased(&file, 1_000, boottime_ms() - 3_000);
    let mut late = stage.start("late", &Script { text: "echo ran", lease, ..Script::default() });
    assert!(!late.shim.wait().unwrap().success());
    assert_eq!(late.log(), "");
    let known = ShimRecords::read(&late.dir);
    assert!(known.start.is_none() && known.exit.is_none());
}

#[test]
fn a_long_grace_does_not_outlast_the_lease() {
    let _quiet = load::quiet();
    let stage = Stage::open();
    let file = stage.root.path().join("lease.json");
    let began = boottime_ms();
    let lease = leased(&file, 2_000, began);
    let running = stage.start("saving", &Script { text: STUBBORN, lease, ..Script::default() });
    running.until("on");
    let notice = StopNotice { signal: Signal::SIGTERM as i32, grace_ms: 600_000 };
    put_json(&running.dir.join(berth_shim::NOTICE), &notice, false).unwrap();
    berth_shim::send_signal(&running.dir, Signal::SIGTERM);
    let dir = running.dir.clone();
    let (exit, log) = running.ended();
    assert_eq!((exit.failure, exit.code), (None, 137), "it was being stopped already: {log}");
    let after = exit.boottime_ms.unwrap() - began;
    assert!((2_000 + GRACE_MS..2_000 + GRACE_MS + LATE_MS).contains(&after), "{after} ms");
    assert!(ShimRecords::read(&dir).start.is_some());
}

#[test]
fn a_command_that_cannot_begin_ends_as_a_shell_would_say() {
    let root = tempfile::tempdir().unwrap();
    for (name, program, code) in [("missing", "/no/such/program", 127), ("closed", "/etc/passwd", 126)] {
        let dir = root.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        let launch = Launch {
            argv: vec![program.to_owned()],
            env: Vec::new(),
            cwd: dir.clone(),
            limit_ms: 60_000,
            grace_ms: 100,
            sandbox_depth: 0,
            limits: Limits::default(),
            has_secrets: false,
            secrets: None,
            lease: None,
            container: None,
            storage_group: None,
        };
        put_json(&dir.join(berth_shim::LAUNCH), &launch, false).unwrap();
        let worker = env!("CARGO_BIN_EXE_berth-worker");
        assert!(Command::new(worker).arg("shim").arg(&dir).status().unwrap().success());
        let exit: CommandExit = ShimRecords::read(&dir).exit.unwrap();
        assert_eq!((exit.code, exit.metered_ms), (code, 0), "{program}");
        let log = std::fs::read_to_string(dir.join(berth_shim::LOG)).unwrap();
        assert!(log.starts_with("berth: the command cannot be started"), "{log}");
    }
}
