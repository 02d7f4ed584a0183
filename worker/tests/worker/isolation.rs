//! Each claim of docs/isolation.md, tried from inside a real sandbox. Where a machine cannot do something
//! the test says so and leaves it out.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use berth_exec::attempt_processes;
use berth_isolation::cgroups::Controller;
use berth_isolation::disk::{self, DiskUsage};
use berth_proto::Secret;
use berth_shim::Limits;

use crate::left_out::left_out;
use crate::stage::{FakeNode, Running, Script, Stage};

#[test]
fn a_neighbour_and_the_worker_cannot_be_seen_or_touched() {
    let Some(stage) = Stage::sandboxed() else { return };
    let text = "echo hush > mine; chmod 666 mine; echo up; sleep 300";
    let neighbour = stage.start("neighbour", &Script { text, ..Script::default() });
    neighbour.until("up");
    let (root, pid) = (stage.root.path().display().to_string(), neighbour.started().pid);
    let text = format!(
        "for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; done | grep JOB_NAME | sort -u\n\
         kill -0 {pid} && echo REACHED-PROCESS\n\
         ls {root}/* && echo SAW-WORKER\n\
         cat {root}/neighbour/work/mine && echo READ-FILE\n\
         echo '{{}}' >> {root}/curious/shim.lock && echo WROTE-RECORD\n\
         cat /proc/1/root{root}/neighbour/work/mine && echo READ-ROUND\n\
         test -z \"$(ls /sys/fs/cgroup)\" || echo SAW-CGROUPS\n\
         for f in /usr/x /etc/x /etc/passwd /home/x /run/x /root/x; do touch $f && echo WROTE-SYSTEM $f; done\n\
         mknod n c 1 3 && echo MADE-NODE\n\
         echo x >> /etc/passwd && echo WROTE-USERS\n\
         echo uid $(id -u), $(id -un) on $(hostname), $(getent passwd root | cut -d: -f3); touch ~/own /tmp/own /dev/shm/own && echo wrote-own"
    );
    let curious = stage.start("curious", &Script { text: &text, ..Script::default() });
    let uid = curious.uid;
    let work = curious.dir.join("work");
    let (exit, log) = curious.ended();
    assert_eq!(exit.code, 0, "{log}");
    for bad in ["REACHED-", "SAW-", "READ-", "WROTE-", "MADE-", "hush", "JOB_NAME=neighbour"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    assert!(log.contains("JOB_NAME=curious") && log.contains("wrote-own"), "{log}");
    let inside = uid.unwrap_or(1_000);
    assert!(log.contains(&format!("uid {inside}, job on berth, 0")), "{log}");
    if let (Some(uid), Some(other)) = (uid, neighbour.uid) {
        assert_ne!(uid, other, "each has a user of its own");
        assert_eq!(std::fs::metadata(work.join("own")).unwrap().uid(), uid, "outside the sandbox too");
    }
    assert_eq!(std::fs::read_to_string(neighbour.dir.join("work/mine")).unwrap(), "hush\n");
    neighbour.stop();
}

/// Prints a line for each call with the number of its error.
const CALLS: &str = r#"
import ctypes, fcntl, os, platform, struct
libc = ctypes.CDLL(None, use_errno=True)
def say(name, done):
    print(name, 0 if done >= 0 else ctypes.get_errno())
def call(name, number, *args):
    say(name, libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in args]))
x86 = platform.machine() == "x86_64"
say("mount", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
say("umount", libc.umount2(b"/tmp", 2))
say("unshare-user", libc.unshare(0x10000000))
say("unshare-net", libc.unshare(0x40000000))
say("unshare-files", libc.unshare(0x400))
say("setns", libc.setns(os.open("/proc/self/ns/net", os.O_RDONLY), 0))
say("personality", libc.personality(ctypes.c_ulong(0x0040000)))
say("personality-ask", libc.personality(ctypes.c_ulong(0xffffffff)))
call("keyctl", 250 if x86 else 219, 0, -3, 0)
call("bpf", 321 if x86 else 280, 0, 0, 0)
call("perf", 298 if x86 else 241, 0, 0, -1, -1, 0)
call("userfaultfd", 323 if x86 else 282, 0)
call("io_uring", 425, 1, 0)
call("clone3", 435, 0, 0)
call("fsopen", 430, 0, 0)
if x86:
    call("x32", 0x40000000 | 39)
try:
    fcntl.ioctl(os.open("/dev/null", os.O_RDWR), 0x5412, b"x")
    print("TIOCSTI 0")
except OSError as error:
    print("TIOCSTI", error.errno)
try:
    os.open("/dev/tty", os.O_RDWR)
    print("tty 0")
except OSError as error:
    print("tty", error.errno)
import threading
thread = threading.Thread(target=lambda: print("thread 0"))
thread.start(); thread.join()
"#;

#[test]
fn calls_that_no_job_needs_are_refused() {
    let Some(stage) = Stage::sandboxed() else { return };
    let (exit, log) = stage.script("calls", &format!("python3 - <<'END'\n{CALLS}\nEND"));
    assert_eq!(exit.code, 0, "{log}");
    let (forbidden, unknown, no_terminal) = (1, 38, 6);
    let mut expected = vec![
        ("mount", forbidden),
        ("umount", forbidden),
        ("unshare-user", forbidden),
        ("unshare-net", forbidden),
        ("unshare-files", 0),
        ("setns", forbidden),
        ("personality", forbidden),
        ("personality-ask", 0),
        ("keyctl", forbidden),
        ("bpf", forbidden),
        ("perf", forbidden),
        ("userfaultfd", forbidden),
        ("io_uring", unknown),
        ("clone3", unknown),
        ("fsopen", forbidden),
        ("TIOCSTI", forbidden),
        ("tty", no_terminal),
        ("thread", 0),
    ];
    if cfg!(target_arch = "x86_64") {
        expected.push(("x32", unknown));
    }
    for (name, errno) in expected {
        assert!(log.lines().any(|line| line == format!("{name} {errno}")), "{name} {errno}: {log}");
    }
    let status = "grep -E 'Seccomp:|NoNewPrivs|CapEff|CapBnd' /proc/self/status";
    let (_, log) = stage.script("status", status);
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"] {
        assert!(
            log.contains(line) || (line.starts_with("CapBnd") && !stage.sandbox.has_users()),
            "{line}: {log}"
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_call_by_another_table_ends_the_process() {
    let Some(stage) = Stage::sandboxed() else { return };
    // `mov eax, 20; int 0x80; ret`: the process number, as 32-bit programs ask for it.
    let text = r#"python3 - <<'END'
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
print("begun", flush=True)
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("SURVIVED")
END"#;
    let (exit, log) = stage.script("table", text);
    assert!(log.contains("begun") && !log.contains("SURVIVED"), "{log}");
    // SIGSYS by the filter; SIGSEGV where the kernel has no such table at all.
    assert!([128 + 31, 128 + 11].contains(&exit.code), "{}: {log}", exit.code);
}

#[test]
fn debuggers_work_inside_and_only_there() {
    let Some(stage) = Stage::sandboxed() else { return };
    let text = r#"python3 - <<'END'
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, None, None)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(7)
os.waitpid(child, 0)
print("traced", libc.ptrace(7, child, None, None))
print("ended", os.WEXITSTATUS(os.waitpid(child, 0)[1]))
END"#;
    let (_, log) = stage.script("debugger", text);
    assert!(log.contains("traced 0") && log.contains("ended 7"), "{log}");
}

#[test]
fn without_a_network_nothing_is_reached() {
    let Some(stage) = Stage::sandboxed() else { return };
    if !stage.sandbox.cuts_network() {
        left_out("no network namespace can be made on this machine");
        return;
    }
    let name = format!("berth-test-{}", std::process::id());
    let abstract_socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    let text = format!(
        r#"python3 - <<'END'
import socket
def reach(what, family, address):
    try:
        socket.socket(family).connect(address)
        print(what, "REACHED")
    except OSError as error:
        print(what, "no", error.errno)
reach("abstract", socket.AF_UNIX, "\0{name}")
reach("host", socket.AF_INET, ("127.0.0.1", {port}))
reach("world", socket.AF_INET, ("192.0.2.1", 9))
own = socket.create_server(("127.0.0.1", 0))
reach("own", socket.AF_INET, own.getsockname())
print("routes", len(open("/proc/net/route").readlines()) - 1)
END"#
    );
    let script = Script { text: &text, network: false, ..Script::default() };
    let (_, log) = stage.run("alone", &script);
    for line in ["abstract no 111", "host no 111", "world no 101", "own REACHED", "routes 0"] {
        assert!(log.lines().any(|l| l == line), "{line}: {log}");
    }
    // What is shared with a network is said in docs/isolation.md; it must stay true there.
    let shared = text.replace("reach(\"world\"", "#");
    let (_, log) = stage.script("shared", &shared);
    for line in ["abstract REACHED", "host REACHED"] {
        assert!(log.lines().any(|l| l == line), "{line}: {log}");
    }
    drop(abstract_socket);
}

#[test]
fn who_forks_without_end_is_held() {
    let Some(stage) = Stage::sandboxed() else { return };
    let text = r#"python3 - <<'END'
import os, time
n = 0
try:
    while n < 1000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        n += 1
    print("FORKED", n)
except OSError as error:
    print("held", n, "errno", error.errno)
END"#;
    let (_, log) = stage.run("forks", &Script { text, pids: 64, ..Script::default() });
    let held = log.lines().find_map(|l| l.strip_prefix("held ")).unwrap_or_else(|| panic!("{log}"));
    let (count, errno) = held.split_once(" errno ").unwrap();
    assert!(count.parse::<u32>().unwrap() < 64 && errno == "11", "{log}");
}

#[test]
fn who_takes_too_much_memory_is_killed_and_told() {
    let Some(stage) = Stage::sandboxed() else { return };
    if !stage.limits(Controller::Memory) {
        return;
    }
    let text = "exec python3 -c 'x = bytearray(1 << 29); print(\"HAD-IT\")'";
    let (exit, log) = stage.run("memory", &Script { text, memory_mib: 64, ..Script::default() });
    assert!(!log.contains("HAD-IT"), "{log}");
    let (code, detail) = exit.failure.unwrap();
    assert_eq!((exit.code, code.as_str()), (137, "memory.exceeded"), "{detail}");
    assert!(detail.contains("its 64 MiB") && detail.contains("at 6"), "{detail}");
    // What is in /tmp counts too, and has its own end.
    let text = "head -c 268435456 /dev/zero > /tmp/x; ls -s --block-size=M /tmp/x";
    let (exit, log) = stage.run("scratch", &Script { text, memory_mib: 256, ..Script::default() });
    assert!(log.contains("64M /tmp/x") && exit.failure.is_none(), "{log}");
}

#[test]
fn processors_are_limited() {
    let Some(stage) = Stage::sandboxed() else { return };
    if !stage.limits(Controller::Cpu) {
        return;
    }
    let text = "exec python3 -c '\nimport time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time())'";
    let (_, log) = stage.run("busy", &Script { text, cpu_milli: 200, ..Script::default() });
    let used: f64 = log.trim().parse().unwrap();
    assert!(used < 0.9, "a fifth of two seconds, and what one period lets through: {used}");
}

#[test]
fn a_directory_that_grows_too_large_ends_its_job() {
    let Some(stage) = Stage::sandboxed() else { return };
    let text = "head -c 3000000 /dev/zero > large; exec sleep 50";
    let (exit, log) = stage.run("disk", &Script { text, disk_mib: 1, ..Script::default() });
    let (code, detail) = exit.failure.unwrap_or_else(|| panic!("it was not stopped: {log}"));
    assert_eq!(code, "disk.exceeded", "{detail}");
    assert!(detail.contains("exceeded 1 MiB"), "{detail}");
}

#[test]
fn a_link_out_of_the_directory_leads_nowhere() {
    let Some(stage) = Stage::sandboxed() else { return };
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("kept"), vec![1; 4 << 20]).unwrap();
    let at = outside.path().display();
    let running =
        stage.start("links", &Script { text: &format!("ln -s {at} out; ln -s / all"), ..Script::default() });
    let work = running.dir.join("work");
    running.ended();
    assert!(std::fs::symlink_metadata(work.join("all")).unwrap().is_symlink());
    assert!(matches!(disk::measure(&work, u64::MAX), Ok(DiskUsage::Bytes(n)) if n < 1 << 20));
    std::fs::remove_dir_all(&work).unwrap();
    assert!(outside.path().join("kept").exists());
}

#[test]
fn only_a_jobs_own_nodes_are_there() {
    let Some(stage) = Stage::sandboxed() else { return };
    let (Some(own), Some(other)) = (FakeNode::make(200), FakeNode::make(201)) else { return };
    let text = format!("cat {}; cat {}; ls /dev", own.name(), other.name());
    let (_, log) =
        stage.run("nodes", &Script { text: &text, devices: vec![own.0.clone()], ..Script::default() });
    assert!(log.contains(&format!("{}: No such device or address", own.name())), "allowed: {log}");
    assert!(log.contains(&format!("{}: No such file", other.name())), "not there: {log}");
    for device in ["sda", "vda", "kvm", "fuse", "mem"] {
        assert!(!log.lines().any(|l| l == device), "{device}: {log}");
    }
}

#[test]
fn a_node_in_a_directory_can_be_opened_by_its_job() {
    let Some(stage) = Stage::sandboxed() else { return };
    let nodes = (FakeNode::make_in_directory(202), FakeNode::make_in_directory(203));
    let (Some(own), Some(other)) = nodes else { return };
    let folder = own.0.parent().unwrap().display();
    let text = format!("cat {}; ls {folder}; cat {}; touch {folder}/more", own.name(), other.name());
    let (_, log) =
        stage.run("folder", &Script { text: &text, devices: vec![own.0.clone()], ..Script::default() });
    assert!(log.contains(&format!("{}: No such device or address", own.name())), "allowed: {log}");
    assert!(log.lines().any(|line| line == "node"), "listed: {log}");
    assert!(log.contains(&format!("{}: No such file", other.name())), "not there: {log}");
    assert!(log.contains(&format!("touch: cannot touch '{folder}/more'")), "not writable: {log}");
}

#[test]
fn the_devices_cgroup_keeps_nodes_apart_by_itself() {
    let stage = Stage::open();
    if !stage.limits(Controller::Devices) {
        return;
    }
    let (Some(own), Some(other)) = (FakeNode::make(210), FakeNode::make(211)) else { return };
    let text = format!("cat {}; cat {}; echo fine > /dev/null && echo usual", own.name(), other.name());
    let (_, log) =
        stage.run("nodes", &Script { text: &text, devices: vec![own.0.clone()], ..Script::default() });
    assert!(log.contains(&format!("{}: No such device or address", own.name())), "{log}");
    assert!(log.contains(&format!("{}: Operation not permitted", other.name())), "{log}");
    assert!(log.contains("usual"), "{log}");
}

#[test]
fn open_files_locked_memory_and_core_dumps_are_limited() {
    let Some(stage) = Stage::sandboxed() else { return };
    let limits = Limits { open_files: 2_048, locked_memory: true, ..Limits::default() };
    let text = "echo files $(ulimit -Sn) $(ulimit -Hn) core $(ulimit -Hc); echo locked $(ulimit -Sl)";
    let (_, log) = stage.run("limits", &Script { text, limits, ..Script::default() });
    assert!(log.lines().any(|l| l == "files 2048 2048 core 0"), "{log}");
    if std::process::Command::new("sh").args(["-c", "ulimit -l unlimited"]).status().unwrap().success() {
        assert!(log.lines().any(|l| l == "locked unlimited"), "{log}");
    } else {
        left_out("no limit of locked memory can be raised on this machine");
        let (_, other) = stage.script("same", "echo locked $(ulimit -Hl)");
        assert!(log.ends_with(&other), "the limit of before is the bound: {log} {other}");
    }
}

#[test]
fn nothing_outlives_a_killed_shim() {
    // Without a sandbox, so that only the cgroup holds what was left.
    let stage = Stage::open();
    if !stage.limits(Controller::Pids) {
        return;
    }
    let text = "for i in 1 2 3; do setsid sleep 300 & done; echo up; wait";
    let mut running = stage.start("orphans", &Script { text, ..Script::default() });
    running.until("up");
    running.shim.kill().unwrap();
    running.shim.wait().unwrap();
    let left = running.group.processes().unwrap();
    assert!(left.len() >= 3, "the command ends with its shim, its children do not: {left:?}");
    // As a daemon that starts again does, which knows only what is written.
    let known = serde_json::to_string(&running.group).unwrap();
    let known: berth_isolation::cgroups::AttemptCgroups = serde_json::from_str(&known).unwrap();
    known.end().unwrap();
    assert!(running.group.processes().unwrap().is_empty());
    for pid in left {
        assert!(!std::path::Path::new(&format!("/proc/{pid}/exe")).exists(), "{pid} is gone");
    }
}

#[test]
fn a_secret_is_in_the_job_and_nowhere_else() {
    let Some(stage) = Stage::sandboxed() else { return };
    let secret = |env: &str, file: &str, value: &str| Secret {
        name: "any".to_owned(),
        value: value.to_owned(),
        env: env.to_owned(),
        file: file.to_owned(),
    };
    let text = "stat -c 'file %a %u' /run/secrets/key; stat -c 'dir %a' /run/secrets; id -u\n\
        cat /run/secrets/key; cat /run/secrets/key | tr a-z A-Z; echo \"token $TOKEN\"; echo \"$TOKEN\" | tr a-z A-Z\n\
        chmod 644 /run/secrets/key && echo CHANGED; touch /run/secrets/new && echo WROTE; ls /dev/shm\n\
        printf 'tok_abcdef'; sleep 0.3; printf 'ghij\\n'; echo up; sleep 300";
    let name = format!("secrets-{}", std::process::id());
    let secrets = vec![secret("", "key", "file-abcdefgh\n"), secret("TOKEN", "", "tok_abcdefghij")];
    let running = stage.start(&name, &Script { text, secrets, ..Script::default() });
    running.until("up");
    let place = std::path::Path::new("/dev/shm").join(format!("berth-{name}"));
    let inside = running.uid.unwrap_or(1_000);
    let (dir, log) = (running.dir.clone(), running.log());
    for line in [
        format!("file 400 {inside}").as_str(),
        "dir 500",
        inside.to_string().as_str(),
        "**************FILE-ABCDEFGH",
        "token **************",
        "TOK_ABCDEFGHIJ",
        // Written in two pieces.
        "**************",
    ] {
        assert!(log.lines().any(|l| l == line), "{line}: {log}");
    }
    for bad in ["abcdefgh", "CHANGED", "WROTE", "berth-"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            assert!(!text.contains("abcdefgh"), "{}", path.display());
        }
    }
    assert!(place.exists() || dir.join("secrets").exists());
    running.stop();
    assert!(!place.exists() && !dir.join("secrets").exists(), "gone with the job");
}

/// What a shell that is let into a running attempt says to a script typed into it.
fn visit(dir: &std::path::Path, typed: &str) -> String {
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, OwnedFd};
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut door = std::process::Command::new(env!("CARGO_BIN_EXE_berth-worker"))
        .arg("enter")
        .arg(dir)
        .env_clear()
        .stdin(OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    let mut screen = std::fs::File::from(berth_system::pty::receive_file(ours.as_fd()).unwrap());
    screen.write_all(format!("{typed}\nexit\n").as_bytes()).unwrap();
    let (mut said, mut piece) = (Vec::new(), [0; 4_096]);
    // A terminal whose other side is closed gives an error.
    while let Ok(length @ 1..) = screen.read(&mut piece) {
        said.extend_from_slice(piece.get(..length).unwrap());
    }
    door.wait().unwrap();
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn who_is_let_in_has_no_more_rights_than_the_job() {
    let Some(stage) = Stage::sandboxed() else { return };
    let text = "echo up; sleep 300";
    let host = stage.start("host", &Script { text, ..Script::default() });
    host.until("up");
    put_record(&host);
    let said = visit(
        &host.dir,
        "grep -E 'CapEff|NoNewPrivs|Seccomp:|CapBnd' /proc/self/status | tr -d '\\t'; id -u | sed s/^/uid=/\n\
         for p in /proc/[0-9]*; do [ \"$(cat $p/comm)\" = sleep ] && job=$p; done\n\
         for n in mnt pid ipc uts user cgroup net; do [ $(readlink /proc/self/ns/$n) = $(readlink $job/ns/$n) ] && echo same-$n; done\n\
         unshare -m true 2>&1 | sed s/permitted/refused/; tty; ls -d /root/* | wc -l | sed s/^/roots=/; ls /proc/self/fd | tr '\\n' ,",
    );
    for line in
        ["CapEff:0000000000000000", "CapBnd:0000000000000000", "NoNewPrivs:1", "Seccomp:2", "not refused"]
    {
        assert!(said.contains(line), "{line}: {said}");
    }
    for name in ["mnt", "pid", "ipc", "uts", "user", "cgroup", "net"] {
        assert!(said.contains(&format!("same-{name}")), "{name}: {said}");
    }
    let uid = host.uid.unwrap_or(1_000);
    assert!(said.contains(&format!("uid={uid}")) && said.contains("/dev/pts/"), "{said}");
    assert!(said.contains("roots=0") && said.contains("0,1,2,3,"), "nothing of the worker is open: {said}");
    assert!(!said.contains("0,1,2,3,4,"), "{said}");
    // Nobody is left at the door, and nobody is let into what has ended.
    berth_exec::entries::end_all(&host.dir).unwrap();
    assert!(attempt_processes::entered(&host.dir).is_empty());
    let dir = host.dir.clone();
    host.stop();
    let late = std::process::Command::new(env!("CARGO_BIN_EXE_berth-worker")).arg("enter").arg(dir).output();
    assert!(String::from_utf8_lossy(&late.unwrap().stderr).contains("The job has ended."));
}

/// The attempt's record, as a daemon keeps it beside what the shim has.
fn put_record(running: &Running) {
    let record = serde_json::json!({
        "job": "host",
        "number": 1,
        "devices": [],
        "limit_ms": 60_000,
        "failure": null,
        "stop_asked": false,
        "clean": false,
        "uid": running.uid,
        "group": running.group,
    });
    berth_system::files::put_json(&running.dir.join("attempt.json"), &record, false).unwrap();
}
