//! Jobs that mean harm, in a real sandbox under a real shim: what they do ends with them, reaches no
//! neighbour, and does not spoil the record of their end. Where a machine cannot do something the test says
//! so and leaves it out.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use berth_exec::attempt_processes;
use berth_isolation::cgroups::Controller;
use berth_shim::{CommandExit, LOG, ShimRecords};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::left_out::left_out;
use crate::load;
use crate::stage::{FakeNode, Running, Script, Stage};

/// A script of Python for the shell.
fn python(text: &str) -> String {
    format!("exec /usr/bin/env python3 - <<'END'\n{text}\nEND")
}

/// Asks it to end and waits for its shim. What is left then, of what was there before and in its cgroups.
fn left_of(mut running: Running) -> (CommandExit, Vec<String>) {
    let before = attempt_processes::all(&running.dir);
    assert!(!before.is_empty());
    berth_shim::send_signal(&running.dir, Signal::SIGTERM);
    running.shim.wait().unwrap();
    let mut left: Vec<String> = Vec::new();
    for pid in before {
        left.extend(Path::new(&format!("/proc/{pid}")).exists().then(|| pid.to_string()));
    }
    left.extend(running.group.processes().unwrap().iter().map(|pid| format!("{pid} in its cgroup")));
    (ShimRecords::read(&running.dir).exit.unwrap(), left)
}

#[test]
fn bombs_leave_a_neighbour_whole() {
    let Some(stage) = Stage::sandboxed() else { return };
    if !stage.limits(Controller::Memory) || !stage.limits(Controller::Pids) {
        return;
    }
    let _heavy = load::heavy();
    let text = "i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); sleep 0.05; done; exit 7";
    let neighbour = stage.start("neighbour", &Script { text, ..Script::default() });
    neighbour.until("line 0");
    let forks = python(
        "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        os.write(1, b'full\\n')\n        time.sleep(0.1)",
    );
    let forks = Script { text: &forks, pids: 64, cpu_milli: 500, memory_mib: 512, ..Script::default() };
    let forks = stage.start("forks", &forks);
    let memory = python("x = []\nwhile True:\n    x.append(bytearray(1 << 24))");
    let memory = stage.start("memory", &Script { text: &memory, memory_mib: 64, ..Script::default() });
    let text = "while :; do i=$((i+1)); head -c 1000000 /dev/zero > f$i; sleep 0.05; done";
    let disk = stage.start("disk", &Script { text, disk_mib: 8, ..Script::default() });
    let text = "head -c 50000000 /dev/zero | tr '\\0' x";
    let burst = stage.start("burst", &Script { text, ..Script::default() });
    forks.until("full");

    let (exit, log) = neighbour.ended();
    let expected: String = (0..60).map(|i| format!("line {i}\n")).collect();
    assert_eq!((exit.code, exit.failure, log), (7, None, expected));
    let failure = |exit: &CommandExit| exit.failure.clone().unwrap_or_default().0;
    let (exit, log) = memory.ended();
    assert_eq!((exit.code, failure(&exit).as_str()), (137, "memory.exceeded"), "{log}");
    let (exit, log) = disk.ended();
    assert_eq!(failure(&exit), "disk.exceeded", "{log}");
    let (exit, log) = burst.ended();
    assert_eq!((exit.code, exit.log_bytes, log.len()), (0, 50_000_000, 50_000_000));
    let (exit, left) = left_of(forks);
    assert!(left.is_empty() && exit.failure.is_none(), "{left:?} {}", exit.code);
}

/// Ignores whatever can be ignored, with children that are stopped, that left its session and closed
/// everything, and that wait in the kernel where only SIGKILL reaches them.
const STUBBORN: &str = r#"
import ctypes, os, signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
def child(work):
    if os.fork() == 0:
        work()
        os._exit(0)
def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)
def escaped():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.closerange(0, 100)
    time.sleep(1000)
def stuck():
    # Who forks so waits, uninterruptibly, until the child becomes another program.
    if ctypes.CDLL(None).vfork() == 0:
        while True:
            time.sleep(1000)
for work in (stopped, escaped, stuck):
    child(work)
def states():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                yield open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()[0]
            except OSError:
                pass
while not {"D", "T"} <= set(states()):
    time.sleep(0.02)
print("all there", flush=True)
while True:
    time.sleep(1000)
"#;

#[test]
fn what_heeds_no_signal_ends_all_the_same() {
    let Some(stage) = Stage::sandboxed() else { return };
    let text = python(STUBBORN);
    let running = stage.start("stubborn", &Script { text: &text, ..Script::default() });
    running.until("all there");
    assert!(attempt_processes::all(&running.dir).len() >= 6, "{:?}", attempt_processes::all(&running.dir));
    let began = Instant::now();
    let (exit, left) = left_of(running);
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(exit.code, 137);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_daemon_ends_with_the_job_that_left_it() {
    let Some(stage) = Stage::sandboxed() else { return };
    let text = "(setsid sh -c 'setsid sleep 1000 & sleep 1000' </dev/null >/dev/null 2>&1 &)\n\
        while [ $(grep -lx sleep /proc/[0-9]*/comm 2>/dev/null | wc -l) -lt 2 ]; do sleep 0.05; done\n\
        echo up; while [ ! -e go ]; do sleep 0.05; done; echo bye";
    let mut running = stage.start("leaver", &Script { text, ..Script::default() });
    running.until("up");
    let before = attempt_processes::all(&running.dir);
    std::fs::write(running.dir.join("work/go"), "").unwrap();
    running.shim.wait().unwrap();
    assert_eq!(running.group.processes().unwrap(), Vec::<i32>::new());
    for pid in before {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid} is left");
    }
    let (exit, log) = running.ended();
    assert_eq!((exit.code, log.as_str()), (0, "up\nbye\n"));
}

#[test]
fn a_neighbours_processes_are_out_of_reach() {
    let Some(stage) = Stage::sandboxed() else { return };
    let text = "echo up; while :; do sleep 0.1; done";
    let neighbour = stage.start("neighbour", &Script { text, ..Script::default() });
    neighbour.until("up");
    let targets: Vec<String> = attempt_processes::all(&neighbour.dir)
        .iter()
        .chain([&neighbour.shim.id()])
        .map(u32::to_string)
        .collect();
    let text = python(&format!(
        r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(64)
class Piece(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("length", ctypes.c_size_t)]
piece = ctypes.byref(Piece(ctypes.addressof(room), 16))
def say(name, done):
    print(name, "REACHED" if done >= 0 else "no", flush=True)
for pid in ({targets},):
    say("attach", libc.ptrace(16, pid, None, None))
    say("seize", libc.ptrace(0x4206, pid, None, None))
    say("read", libc.process_vm_readv(pid, piece, 1, piece, 1, 0))
    say("write", libc.process_vm_writev(pid, piece, 1, piece, 1, 0))
    say("handle", libc.syscall(434, pid, 0))
    say("limits", libc.prlimit(pid, 7, None, room))
    say("priority", libc.setpriority(0, pid, 19))
    say("affinity", libc.sched_getaffinity(pid, 64, room))
    say("kill", libc.kill(pid, 9))
    say("kill-group", libc.kill(-pid, 9))
    for name in ("mem", "maps", "environ", "root", "cwd", "fd", "ns/net"):
        say(name, 0 if os.path.lexists(f"/proc/{{pid}}/{{name}}") else -1)
print("everybody", flush=True)
libc.kill(-1, 9)
print("alone", flush=True)
"#,
        targets = targets.join(", ")
    ));
    let (_, log) = stage.script("curious", &text);
    assert!(log.contains("everybody") && !log.contains("REACHED"), "{log}");
    assert!(neighbour.started().is_running(), "{}", neighbour.log());
    neighbour.stop();
}

/// What lets a process out of its place, by the programs that people use for it.
const WAYS_OUT: &str = "
try() { \"$@\" >/dev/null 2>&1 </dev/null && echo WORKED \"$*\"; }
for kind in user mount net pid ipc uts cgroup time; do try unshare --fork --$kind true; done
try unshare --user --map-root-user --mount true
try mount -t tmpfs none /tmp
try mount --bind /tmp /home/job
try mount -o remount,rw /
try umount /run
try chroot / true
try nsenter --target 1 --net true
try bwrap --ro-bind / / true
try setpriv --reuid 0 true
try su -c true
try chown 0 /home/job
try sh -c 'echo 1 > /proc/sys/vm/drop_caches'
try sh -c 'echo h > /proc/sysrq-trigger'
echo tried";

#[test]
fn the_ways_out_are_closed() {
    let Some(stage) = Stage::sandboxed() else { return };
    let (_, log) = stage.script("ways", WAYS_OUT);
    assert_eq!(log, "tried\n");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn namespaces_mounts_and_keys_are_refused_by_number() {
    let Some(stage) = Stage::sandboxed() else { return };
    let text = r#"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(name, wanted, number, *args):
    ctypes.set_errno(0)
    done = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in args], *[ctypes.c_long(0)] * (6 - len(args)))
    found = 0 if done >= 0 else ctypes.get_errno()
    print(name, "refused" if found == wanted else f"ANSWERED {found}", flush=True)
# With SIGCHLD, as fork does; each kind of namespace alone.
for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    call(f"clone {bit:#x}", 1, 56, bit | 17)
    call(f"unshare {bit:#x}", 1, 272, bit)
call("unshare time", 1, 272, 0x80)
for name, number in {"pivot_root": 155, "mount": 165, "umount2": 166, "open_tree": 428, "move_mount": 429,
                     "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
                     "setns": 308, "open_by_handle_at": 304, "add_key": 248, "request_key": 249, "keyctl": 250,
                     "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "fanotify_init": 300,
                     "init_module": 175, "finit_module": 313, "syslog": 103, "adjtimex": 159,
                     "clock_adjtime": 305, "clock_settime": 227, "quotactl": 179, "modify_ldt": 154}.items():
    call(name, 1, number)
for name, number in {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435}.items():
    call(name, 38, number)
print("tried")
"#;
    let (_, log) = stage.script("numbers", &python(text));
    assert!(log.ends_with("tried\n") && !log.contains("ANSWERED"), "{log}");
}

#[test]
fn a_node_of_a_device_opens_nothing_in_a_jobs_directory() {
    let Some(stage) = Stage::sandboxed() else { return };
    let Some(other) = FakeNode::make(220) else { return };
    // As if it had come with files from elsewhere.
    let work = stage.root.path().join("nodes/work");
    std::fs::create_dir_all(&work).unwrap();
    let (planted, all) = (work.join("planted"), Mode::from_bits_truncate(0o666));
    mknod(&planted, SFlag::S_IFCHR, all, makedev(195, 220)).unwrap();
    std::fs::set_permissions(&planted, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    // Outside, who opens it gets as far as the driver, which is not there.
    if !matches!(File::open(&planted), Err(error) if error.raw_os_error() == Some(6)) {
        left_out("where the files of this test are, no node can be opened at all");
        return;
    }
    let text = python(&format!(
        r#"
import os, stat
def say(name, work):
    try:
        work()
        print(name, 0)
    except OSError as error:
        print(name, error.errno)
number = os.makedev(195, 220)
say("planted", lambda: open("planted", "rb"))
say("through a link", lambda: (os.symlink("planted", "link"), open("link", "rb")))
say("character", lambda: os.mknod("made", 0o666 | stat.S_IFCHR, number))
say("block", lambda: os.mknod("made", 0o666 | stat.S_IFBLK, number))
say("in memory", lambda: os.mknod("/dev/shm/made", 0o666 | stat.S_IFCHR, number))
say("by its name", lambda: open("{}", "rb"))
"#,
        other.name()
    ));
    let (_, log) = stage.script("nodes", &text);
    // EACCES of a mount without devices, or EPERM of a cgroup that denies it.
    for name in ["planted", "through a link"] {
        let refused = [1, 13].map(|errno| format!("{name} {errno}"));
        assert!(log.lines().any(|line| refused.iter().any(|r| r == line)), "{name}: {log}");
    }
    for line in ["character 1", "block 1", "in memory 1", "by its name 2"] {
        assert!(log.lines().any(|l| l == line), "{line}: {log}");
    }
}

#[test]
fn a_job_writes_nothing_into_the_record_of_its_end() {
    let Some(stage) = Stage::sandboxed() else { return };
    let text = r#"
import fcntl, os
print("open", sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")), flush=True)
place = os.path.dirname(os.readlink("/proc/self/fd/1"))
for name in ("shim.lock", "launch.json", "limit.json", "attempt.json"):
    for path in (f"{place}/{name}", f"../{name}", f"/proc/self/fd/1/../{name}"):
        try:
            open(path, "w").write('{"exit":{"code":0}}\n')
            print("WROTE", path, flush=True)
        except OSError:
            pass
try:
    os.open("/proc/self/fd/1", os.O_WRONLY)
    print("OPENED", flush=True)
except OSError:
    pass
print("said", flush=True)
# Its own log is its own to spoil.
fcntl.flock(1, fcntl.LOCK_EX)
fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)
os.pwrite(1, b'{"code":0,"timed_out":false,"metered_ms":0,"log_bytes":0}' * 1000, 1 << 20)
os.ftruncate(1, 64)
os._exit(5)
"#;
    let mut running = stage.start("forger", &Script { text: &python(text), ..Script::default() });
    running.shim.wait().unwrap();
    let (dir, users) = (running.dir.clone(), stage.sandbox.has_users());
    let (exit, log) = running.ended();
    assert_eq!((exit.code, exit.failure, exit.timed_out), (5, None, false), "{log}");
    assert_eq!((exit.log_bytes, std::fs::metadata(dir.join(LOG)).unwrap().len()), (64, 64));
    assert!(!log.contains("WROTE"), "{log}");
    // A worker that is not root has no other user for it.
    assert!(!users || !log.contains("OPENED"), "{log}");
    assert!(log.contains("open [0, 1, 2]\nsaid\n") || !users, "{log}");
}

#[test]
fn a_log_beyond_its_limit_ends_its_job() {
    let Some(stage) = Stage::sandboxed() else { return };
    // A hole counts like bytes, and takes no room on this machine.
    let limit = berth_contract::LOG_LIMIT;
    let text = python(&format!("import os, time\nos.ftruncate(1, {limit} + 1)\ntime.sleep(50)"));
    let mut running = stage.start("flood", &Script { text: &text, ..Script::default() });
    running.shim.wait().unwrap();
    let exit: CommandExit = ShimRecords::read(&running.dir).exit.unwrap();
    assert!(exit.log_full && exit.log_bytes > limit && exit.code != 0, "{} {}", exit.code, exit.log_bytes);
    // Before it is read.
    File::options().write(true).open(running.dir.join(LOG)).unwrap().set_len(0).unwrap();
    running.ended();
}

#[test]
fn abstract_sockets_stay_with_a_job_that_has_no_network() {
    let Some(stage) = Stage::sandboxed() else { return };
    if !stage.sandbox.cuts_network() {
        left_out("no network namespace can be made on this machine");
        return;
    }
    let name = format!("berth-harsh-{}", std::process::id());
    let listen = |name: &str| {
        let text = "import socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0NAME')\ns.listen()\n\
                    print('up', flush=True)\ntime.sleep(1000)";
        python(&text.replace("NAME", name))
    };
    let reach = |name: &str| {
        let text = "import socket\ntry:\n    socket.socket(socket.AF_UNIX).connect('\\0NAME')\n    \
                    print('REACHED')\nexcept OSError as error:\n    print('no', error.errno)";
        python(&text.replace("NAME", name))
    };
    let (text, network) = (listen(&name), false);
    let alone = stage.start("alone", &Script { text: &text, network, ..Script::default() });
    alone.until("up");
    for (job, network) in [("without", false), ("with", true)] {
        let text = reach(&name);
        let script = Script { text: &text, network, ..Script::default() };
        assert_eq!(stage.run(job, &script).1, "no 111\n", "a job {job} the network");
    }
    alone.stop();
    // What jobs with the host's network share is said in docs/isolation.md; it must stay true there.
    let shared = stage.start("shared", &Script { text: &text, ..Script::default() });
    shared.until("up");
    assert_eq!(stage.script("reaching", &reach(&name)).1, "REACHED\n");
    shared.stop();
}

/// A small file system of its own.
struct Small(PathBuf);

impl Small {
    /// `None`, and said, where none can be mounted.
    fn mount(mib: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap().keep();
        let size = format!("size={mib}m,mode=755");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&dir).output();
        if mount.as_ref().is_ok_and(|out| out.status.success()) {
            return Some(Self(dir));
        }
        left_out(format!("no file system can be mounted: {mount:?}"));
        // It is empty.
        let _ = std::fs::remove_dir(&dir);
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // After a failed assertion too.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn the_end_is_recorded_on_a_disk_that_a_neighbour_filled() {
    let Some(small) = Small::mount(4) else { return };
    let Some(stage) = Stage::sandboxed_in(tempfile::tempdir_in(&small.0).unwrap()) else { return };
    let text = "echo up; while [ \"$(stat -f -c %f .)\" != 0 ]; do sleep 0.02; done; exit 5";
    let neighbour = stage.start("neighbour", &Script { text, ..Script::default() });
    neighbour.until("up");
    let text = "trap '' TERM; while :; do cat /dev/zero >> full 2>/dev/null; sleep 0.01; done";
    let filler = stage.start("filler", &Script { text, ..Script::default() });
    let began = Instant::now();
    let (exit, log) = neighbour.ended();
    assert_eq!((exit.code, exit.failure, log.as_str()), (5, None, "up\n"));
    let (exit, left) = left_of(filler);
    assert_eq!((exit.code, left), (137, Vec::<String>::new()));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}
