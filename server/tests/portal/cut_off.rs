//! Tests of portal and workers as processes with system clocks: disconnected, suspended or killed workers
//! during a job with a lease of a few seconds, workers with a full or broken disk, and workers with other
//! clocks.

use crate::netns::admin_command;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::TestPortal;
use crate::common::left_out::left_out;
use crate::process::{
    ChildGuard, PortalProcess, call, eventually, free_address, last_messages, serve_with, worker,
};
use crate::relay::Relay;
use berth_foundation::Settings;
use berth_shim::lease::LeaseRenewal;
use berth_shim::{CommandExit, CommandStart, ShimRecords};
use berth_store::{self as store, Db};
use berth_system::clock::boottime_ms;
use berth_system::files::find_json;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const LEASE_MS: i64 = 3_000;
/// The time from SIGTERM to SIGKILL for this lease, and the tolerated delay of the machine.
const GRACE_MS: i64 = 500;
const LATE_MS: i64 = 2_500;

struct ProcessSetup {
    dir: tempfile::TempDir,
    served: PortalProcess,
    worker_address: String,
    org: String,
    token: String,
    join_tokens: Vec<String>,
}

impl ProcessSetup {
    /// Starts a portal with an organization and join tokens for `workers` workers.
    async fn open(workers: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_owned();
        let database = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
        let t = TestPortal::with(database, |settings| Settings { data, ..settings });
        t.clock.set_to_system_time();
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let new = json!({"name": "script", "role": "member"});
        let created = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
        let mut join_tokens = Vec::new();
        for _ in 0..workers {
            let made = t.post(&operator, "/operator/join-tokens", json!({"approve": true})).await;
            join_tokens.push(made.expect(201)["secret"].as_str().unwrap().to_owned());
        }
        drop(t);
        let worker_address = free_address();
        let served = serve_with(dir.path(), &worker_address, &["--lease-s".to_owned(), "3".to_owned()], None);
        let token = created["secret"].as_str().unwrap().to_owned();
        Self { dir, served, worker_address, org, token, join_tokens }
    }

    fn data(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("worker-{n}"))
    }

    fn start(&self, n: usize, portal: &str) -> ChildGuard {
        worker(&self.data(n), portal, &self.join_tokens[n])
    }

    fn submit(&self, script: &str, retry: bool) -> String {
        let mut spec = json!({"name": "train", "offering": "h100-80gb.1g.10gb", "script": script, "max_duration_s": 600});
        if retry {
            spec["retry"] = json!({"max": 3, "on": ["node_lost"]});
        }
        let path = format!("/orgs/{}/jobs", self.org);
        let (status, job) = call(&self.served.address, "POST", &path, &self.token, &spec).unwrap();
        assert_eq!(status, 201, "{job}");
        job["id"].as_str().unwrap().to_owned()
    }

    fn job(&self, job: &str) -> Value {
        let path = format!("/orgs/{}/jobs/{job}", self.org);
        call(&self.served.address, "GET", &path, &self.token, &Value::Null).unwrap().1
    }

    fn until(&self, job: &str, ready: impl Fn(&Value) -> bool) -> Value {
        eventually(|| {
            let now = self.job(job);
            if ready(&now) { Ok(now) } else { Err(now.to_string()) }
        })
    }

    /// Waits for the first process of an attempt; returns its worker and its directory.
    fn until_started(&self, job: &str, number: u32) -> (usize, PathBuf, CommandStart) {
        eventually(|| {
            for n in 0..self.join_tokens.len() {
                let dir = self.data(n).join("attempts").join(format!("{job}-{number}"));
                if let Some(start) = ShimRecords::read(&dir).start {
                    return Ok((n, dir, start));
                }
            }
            Err(self.job(job).to_string())
        })
    }

    /// Asserts that the charge of a job equals its meter.
    fn assert_charged_once(&self, job: &Value) {
        let path = format!("/orgs/{}/transfers?limit=200", self.org);
        let (_, page) = call(&self.served.address, "GET", &path, &self.token, &Value::Null).unwrap();
        let rows = page["items"].as_array().unwrap().iter();
        let usage = rows.filter(|r| r["kind"] == "usage" && r["source_id"] == job["id"]);
        let charged: i64 = usage.map(|r| -r["amount_micros"].as_i64().unwrap()).sum();
        assert_eq!(charged, job["metered_ms"].as_i64().unwrap(), "one micro a millisecond: {job}");
    }

    async fn close(mut self) {
        self.served.kill();
        let db = Db::sqlite(&self.dir.path().join("berth.db")).await.unwrap();
        let mut conn = db.read().await.unwrap();
        assert_eq!(store::ledger::mismatches(&mut conn.tx()).await.unwrap(), Vec::<String>::new());
    }
}

/// A separate file system for a worker's data, which a test can fill or break.
struct Disk(PathBuf);

/// Returns the error of a command, or `None` after success.
fn command_error(program: &str, args: &[&OsStr]) -> Option<String> {
    match admin_command(program).args(args).output() {
        Ok(out) if out.status.success() => None,
        Ok(out) => Some(String::from_utf8_lossy(&out.stderr).into_owned()),
        Err(error) => Some(error.to_string()),
    }
}

impl Disk {
    /// Mounts a file system with these arguments of `mount`. `None` with a message if the mount is
    /// impossible.
    fn mount(at: &Path, args: &[&str]) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mut all: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        all.push(at.as_os_str());
        match command_error("mount", &all) {
            None => Some(Self(at.to_owned())),
            Some(why) => {
                left_out(format!("no file system can be mounted here: {why}"));
                None
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The unmount also runs after a failed assertion. It is lazy because a process may still have an open
        // file.
        let _ = command_error("umount", &[OsStr::new("--lazy"), self.0.as_os_str()]);
    }
}

fn until_exit(dir: &Path) -> CommandExit {
    eventually(|| ShimRecords::read(dir).exit.ok_or_else(|| format!("{} goes on", dir.display())))
}

/// It ignores SIGTERM, so that only SIGKILL ends it.
const IGNORES_SIGTERM: &str = "trap '' TERM; while :; do sleep 0.1; done";

#[tokio::test(flavor = "multi_thread")]
async fn the_second_attempt_starts_after_the_first_has_ended() {
    let setup = ProcessSetup::open(2).await;
    let relays = [Relay::to(&setup.worker_address), Relay::to(&setup.worker_address)];
    let _workers = [setup.start(0, &relays[0].address), setup.start(1, &relays[1].address)];
    let job = setup.submit(IGNORES_SIGTERM, true);
    let (first, dir, start) = setup.until_started(&job, 1);
    setup.until(&job, |j| j["state"] == "running" && j["metered_ms"].as_i64().unwrap() > 0);
    relays[first].cut();
    let (second, _, again) = setup.until_started(&job, 2);
    assert_ne!(second, first);
    // The shim wrote this record while the node was disconnected.
    let exit = ShimRecords::read(&dir).exit.unwrap();
    assert_eq!(exit.failure.unwrap().0, "lease.ended");
    assert!(exit.boottime_ms.unwrap() < again.boottime_ms, "{exit:?} {again:?}", exit = exit.code);
    assert!(!start.is_running());
    let before = setup.until(&job, |j| j["attempt"] == 2 && j["state"] == "running");
    // The late worker removes the attempt, and the job does not change.
    relays[first].mend();
    eventually(|| if dir.exists() { Err(format!("{} is still there", dir.display())) } else { Ok(()) });
    let after = setup.job(&job);
    assert_eq!((&after["attempt"], &after["state"]), (&json!(2), &json!("running")), "{before} {after}");
    assert!(again.is_running(), "nobody disturbed the second");
    let path = format!("/orgs/{}/jobs/{job}/cancel", setup.org);
    call(&setup.served.address, "POST", &path, &setup.token, &Value::Null).unwrap();
    let done = setup.until(&job, |j| j["state"] == "cancelled");
    setup.assert_charged_once(&done);
    let span = boottime_ms() - start.boottime_ms;
    assert!(done["metered_ms"].as_i64().unwrap() < span, "two at once would cost more than the time: {done}");
    setup.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_suspended_daemon_ends_with_its_lease() {
    let setup = ProcessSetup::open(1).await;
    let daemon = setup.start(0, &setup.worker_address);
    let job = setup.submit(IGNORES_SIGTERM, false);
    let (_, dir, start) = setup.until_started(&job, 1);
    let pid = Pid::from_raw(i32::try_from(daemon.0.id()).unwrap());
    setup.until(&job, |j| j["state"] == "running");
    kill(pid, Signal::SIGSTOP).unwrap();
    let renewed = find_json::<LeaseRenewal>(&setup.data(0).join("lease.json")).unwrap();
    let exit = until_exit(&dir);
    assert_eq!((exit.failure.unwrap().0.as_str(), exit.code), ("lease.ended", 137));
    let after = exit.boottime_ms.unwrap() - renewed.sent_ms;
    // A renewal in transfer may have been stored while the daemon was suspended.
    assert!((LEASE_MS..LEASE_MS + GRACE_MS + 1_000 + LATE_MS).contains(&after), "{after} ms");
    assert!(!start.is_running());
    kill(pid, Signal::SIGCONT).unwrap();
    let done = setup.until(&job, |j| j["state"] == "failed");
    let code = done["failure"]["code"].as_str().unwrap();
    assert!(["lease.ended", "node.lost"].contains(&code), "{done}");
    setup.assert_charged_once(&done);
    drop(daemon);
    setup.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_restart_within_the_lease_keeps_the_job_running() {
    let setup = ProcessSetup::open(1).await;
    let mut daemon = setup.start(0, &setup.worker_address);
    let job = setup.submit("i=0; while [ $i -lt 120 ]; do echo line $i; i=$((i+1)); sleep 0.05; done", false);
    let (_, dir, start) = setup.until_started(&job, 1);
    setup.until(&job, |j| j["state"] == "running");
    for _ in 0..3 {
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        let renewed = find_json::<LeaseRenewal>(&setup.data(0).join("lease.json")).unwrap();
        daemon = setup.start(0, &setup.worker_address);
        // The new daemon renews the lease of the running job.
        eventually(|| {
            let now = find_json::<LeaseRenewal>(&setup.data(0).join("lease.json")).unwrap();
            let ended = daemon.0.try_wait().unwrap();
            let messages = || last_messages(&setup.data(0));
            if now.sent_ms > renewed.sent_ms {
                Ok(())
            } else {
                Err(format!("{now:?} {ended:?} {}", messages()))
            }
        });
        assert!(start.is_running(), "{:?}", ShimRecords::read(&dir).exit);
    }
    let done = setup.until(&job, |j| j["state"] == "succeeded");
    assert_eq!(done["attempt"], 1, "{done}");
    setup.assert_charged_once(&done);
    let log = setup.dir.path().join("logs").join(&job).join("1-0.log");
    let expected: String = (0..120).map(|i| format!("line {i}\n")).collect();
    eventually(|| {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        if log == expected { Ok(()) } else { Err(format!("{} of {} bytes", log.len(), expected.len())) }
    });
    drop(daemon);
    setup.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_fails_new_attempts_and_keeps_running_ones() {
    let setup = ProcessSetup::open(1).await;
    let Some(disk) = Disk::mount(&setup.data(0), &["-t", "tmpfs", "-o", "size=8m,mode=700", "none"]) else {
        return;
    };
    let daemon = setup.start(0, &setup.worker_address);
    // The script ends on a full disk.
    let script = "while [ \"$(stat -f -c %f .)\" != 0 ]; do sleep 0.02; done; exit 5";
    let runs = setup.submit(script, false);
    setup.until_started(&runs, 1);
    let filled = setup.data(0).join("filled");
    let mut file = std::fs::File::create(&filled).unwrap();
    let error = std::io::copy(&mut std::io::repeat(0), &mut file).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let done = setup.until(&runs, |j| j["state"] == "failed");
    assert_eq!((&done["exit_code"], &done["failure"]["code"]), (&json!(5), &json!("process.exit")), "{done}");
    setup.assert_charged_once(&done);
    let attempts = setup.data(0).join("attempts");
    let none_kept = || {
        eventually(|| match std::fs::read_dir(&attempts).unwrap().count() {
            0 => Ok(()),
            kept => Err(format!("{kept} attempts are kept")),
        });
    };
    none_kept();
    // A new attempt fails with the reason.
    std::io::copy(&mut std::io::repeat(0), &mut file).unwrap_err();
    let comes = setup.submit("true", false);
    let done = setup.until(&comes, |j| j["state"] == "failed");
    let detail = done["failure"]["detail"].as_str().unwrap();
    assert!(done["failure"]["code"] == "worker.io" && detail.contains("No space left"), "{done}");
    assert_eq!(done["metered_ms"], 0, "{done}");
    // With room on the disk the node works again without intervention.
    drop(file);
    std::fs::remove_file(&filled).unwrap();
    let next = setup.submit("echo fine", false);
    setup.until(&next, |j| j["state"] == "succeeded");
    none_kept();
    drop(daemon);
    drop(disk);
    setup.close().await;
}

/// Shuts an ext4 file system down: every access then returns EIO.
const BREAK: &str = "import fcntl, os, struct, sys\n\
    fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack('I', 2))";

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_disk_ends_the_running_job_with_its_lease() {
    let setup = ProcessSetup::open(1).await;
    let (image, at) = (setup.dir.path().join("image"), setup.data(0));
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    if let Some(why) = command_error("mkfs.ext4", &[OsStr::new("-q"), OsStr::new("-F"), image.as_os_str()]) {
        left_out(format!("no file system can be made here: {why}"));
        return;
    }
    let image = image.display().to_string();
    let Some(disk) = Disk::mount(&at, &["-o", "loop", &image]) else { return };
    let daemon = setup.start(0, &setup.worker_address);
    let job = setup.submit(IGNORES_SIGTERM, false);
    let (_, _, start) = setup.until_started(&job, 1);
    setup.until(&job, |j| j["state"] == "running" && j["metered_ms"].as_i64().unwrap() > 0);
    if let Some(why) = command_error("python3", &[OsStr::new("-c"), OsStr::new(BREAK), at.as_os_str()]) {
        left_out(format!("this file system cannot be broken: {why}"));
        return;
    }
    assert!(std::fs::write(at.join("probe"), "x").is_err(), "it is broken");
    // The daemon cannot store renewals, so the shim ends the job.
    eventually(|| if start.is_running() { Err("it goes on without a lease".to_owned()) } else { Ok(()) });
    // The end cannot be recorded, and the failure code shows this.
    let done = setup.until(&job, |j| j["state"] == "failed");
    let code = done["failure"]["code"].as_str().unwrap();
    // The simulated boards are on the same file system, so their loss may be noticed first.
    assert!(code == "attempt.unknown_outcome" || code.starts_with("device."), "{done}");
    setup.assert_charged_once(&done);
    drop(daemon);
    drop(disk);
    setup.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_clocks_weeks_ahead_meters_the_same() {
    // The worker gets its own monotonic clocks, because a test must not change the machine's clocks.
    let ahead = ["--time", "--monotonic", "2000000", "--boottime", "2000000"];
    let arguments: Vec<&OsStr> = ahead.iter().chain(&["true"]).map(OsStr::new).collect();
    if let Some(why) = command_error("unshare", &arguments) {
        left_out(format!("no time namespace can be made here: {why}"));
        return;
    }
    let setup = ProcessSetup::open(1).await;
    let built = std::env::current_exe().unwrap();
    let program = built.parent().unwrap().parent().unwrap().join("berth-worker");
    let child = Command::new("unshare")
        .args(ahead)
        .arg(program)
        .args(["run", "--simulate", "1xH100-80GB", "--allow-unisolated"])
        .args(["--job-network", "host", "--join-token", setup.join_tokens[0].as_str()])
        .args(["--portal", format!("https://{}", setup.worker_address).as_str(), "--data"])
        .arg(setup.data(0))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let daemon = ChildGuard(child.unwrap());
    // The job is longer than its lease, so that the worker renews the lease with these clocks.
    let job = setup.submit("cut -d. -f1 /proc/uptime; sleep 6; echo done", false);
    let done = setup.until(&job, |j| j["state"] == "succeeded");
    let metered = done["metered_ms"].as_i64().unwrap();
    assert!((6_000..30_000).contains(&metered), "{done}");
    setup.assert_charged_once(&done);
    let log = setup.dir.path().join("logs").join(&job).join("1-0.log");
    let uptime = eventually(|| {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let whole = log.strip_suffix("done\n").and_then(|uptime| uptime.trim().parse::<u64>().ok());
        whole.ok_or(log)
    });
    assert!(uptime > 2_000_000, "it really was there: {uptime}");
    drop(daemon);
    setup.close().await;
}
