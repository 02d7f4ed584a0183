//! Portal and workers as processes, with the machine's clocks: workers that are cut off, stopped or killed
//! while a job runs under a lease of a few seconds, whose disk is full or breaks, or whose clocks are others.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::TestPortal;
use crate::common::left_out::left_out;
use crate::process::{Ending, Served, call, eventually, free_address, serve_with, worker};
use crate::relay::Relay;
use berth_foundation::Settings;
use berth_store::{self as store, Db};
use berth_worker::files::find_json;
use berth_worker::lease::Renewal;
use berth_worker::shim::{Exit, Records, Start, boottime_ms, exists};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const LEASE_MS: i64 = 3_000;
/// SIGTERM to SIGKILL for a lease of that length, and what the machine may be late.
const GRACE_MS: i64 = 500;
const LATE_MS: i64 = 2_500;

struct Site {
    dir: tempfile::TempDir,
    served: Served,
    worker_address: String,
    org: String,
    token: String,
    tickets: Vec<String>,
}

impl Site {
    /// A portal with a tenant, and join tokens for so many workers.
    async fn open(workers: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_owned();
        let database = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
        let t = TestPortal::with(database, |settings| Settings { data, ..settings });
        t.clock.set_by_the_machine();
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        t.stock(&operator, &org, 1_000_000_000).await;
        let new = json!({"name": "script", "role": "member"});
        let created = t.post(&ada, &format!("/orgs/{org}/tokens"), new).await.expect(201);
        let mut tickets = Vec::new();
        for _ in 0..workers {
            let made = t.post(&operator, "/operator/join-tokens", json!({})).await;
            tickets.push(made.expect(201)["secret"].as_str().unwrap().to_owned());
        }
        drop(t);
        let worker_address = free_address();
        let served = serve_with(dir.path(), &worker_address, &["--lease-s".to_owned(), "3".to_owned()], None);
        let token = created["secret"].as_str().unwrap().to_owned();
        Self { dir, served, worker_address, org, token, tickets }
    }

    fn data(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("worker-{n}"))
    }

    fn start(&self, n: usize, portal: &str) -> Ending {
        worker(&self.data(n), portal, &self.tickets[n])
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

    /// The worker that has an attempt, and the attempt's directory there, once its process began.
    fn began(&self, job: &str, number: u32) -> (usize, PathBuf, Start) {
        eventually(|| {
            for n in 0..self.tickets.len() {
                let dir = self.data(n).join("attempts").join(format!("{job}-{number}"));
                if let Some(start) = Records::read(&dir).start {
                    return Ok((n, dir, start));
                }
            }
            Err(self.job(job).to_string())
        })
    }

    /// What was charged for a job is what its meter says.
    fn charged_once(&self, job: &Value) {
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

/// A file system of its own for a worker's data, which a test may fill or break.
struct Disk(PathBuf);

/// Why a command did not do what it should; nothing when it did.
fn refused(program: &str, args: &[&OsStr]) -> Option<String> {
    match Command::new(program).args(args).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output() {
        Ok(out) if out.status.success() => None,
        Ok(out) => Some(String::from_utf8_lossy(&out.stderr).into_owned()),
        Err(error) => Some(error.to_string()),
    }
}

impl Disk {
    /// With these arguments of `mount`. `None`, and said, where it cannot be mounted.
    fn mount(at: &Path, args: &[&str]) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mut all: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        all.push(at.as_os_str());
        match refused("mount", &all) {
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
        // After a failed assertion too. Whoever still has something open there keeps it until then.
        let _ = refused("umount", &[OsStr::new("--lazy"), self.0.as_os_str()]);
    }
}

fn ended(dir: &Path) -> Exit {
    eventually(|| Records::read(dir).exit.ok_or_else(|| format!("{} goes on", dir.display())))
}

/// It does not heed SIGTERM, so that only SIGKILL ends it.
const STUBBORN: &str = "trap '' TERM; while :; do sleep 0.1; done";

#[tokio::test(flavor = "multi_thread")]
async fn the_second_attempt_begins_when_the_first_is_dead() {
    let site = Site::open(2).await;
    let ways = [Relay::to(&site.worker_address), Relay::to(&site.worker_address)];
    let _workers = [site.start(0, &ways[0].address), site.start(1, &ways[1].address)];
    let job = site.submit(STUBBORN, true);
    let (first, dir, start) = site.began(&job, 1);
    site.until(&job, |j| j["state"] == "running" && j["metered_ms"].as_i64().unwrap() > 0);
    ways[first].cut();
    let (second, _, again) = site.began(&job, 2);
    assert_ne!(second, first);
    // The attempt's own record, written while nobody could be told of it.
    let exit = Records::read(&dir).exit.unwrap();
    assert_eq!(exit.failure.unwrap().0, "lease.ended");
    assert!(exit.boottime_ms.unwrap() < again.boottime_ms, "{exit:?} {again:?}", exit = exit.code);
    assert!(!exists(&start));
    let before = site.until(&job, |j| j["attempt"] == 2 && j["state"] == "running");
    // It comes back late, is told to forget, and changes nothing.
    ways[first].mend();
    eventually(|| if dir.exists() { Err(format!("{} is still there", dir.display())) } else { Ok(()) });
    let after = site.job(&job);
    assert_eq!((&after["attempt"], &after["state"]), (&json!(2), &json!("running")), "{before} {after}");
    assert!(exists(&again), "nobody disturbed the second");
    let path = format!("/orgs/{}/jobs/{job}/cancel", site.org);
    call(&site.served.address, "POST", &path, &site.token, &Value::Null).unwrap();
    let done = site.until(&job, |j| j["state"] == "cancelled");
    site.charged_once(&done);
    let span = boottime_ms() - start.boottime_ms;
    assert!(done["metered_ms"].as_i64().unwrap() < span, "two at once would cost more than the time: {done}");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_daemon_does_not_keep_its_jobs_alive() {
    let site = Site::open(1).await;
    let daemon = site.start(0, &site.worker_address);
    let job = site.submit(STUBBORN, false);
    let (_, dir, start) = site.began(&job, 1);
    let pid = Pid::from_raw(i32::try_from(daemon.0.id()).unwrap());
    site.until(&job, |j| j["state"] == "running");
    kill(pid, Signal::SIGSTOP).unwrap();
    let renewed = find_json::<Renewal>(&site.data(0).join("lease.json")).unwrap();
    let exit = ended(&dir);
    assert_eq!((exit.failure.unwrap().0.as_str(), exit.code), ("lease.ended", 137));
    let after = exit.boottime_ms.unwrap() - renewed.sent_ms;
    // A renewal that was on its way may have been written down while the daemon was being stopped.
    assert!((LEASE_MS..LEASE_MS + GRACE_MS + 1_000 + LATE_MS).contains(&after), "{after} ms");
    assert!(!exists(&start));
    kill(pid, Signal::SIGCONT).unwrap();
    let done = site.until(&job, |j| j["state"] == "failed");
    let code = done["failure"]["code"].as_str().unwrap();
    assert!(["lease.ended", "node.lost"].contains(&code), "{done}");
    site.charged_once(&done);
    drop(daemon);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_returns_within_the_lease_disturbs_nothing() {
    let site = Site::open(1).await;
    let mut daemon = site.start(0, &site.worker_address);
    let job = site.submit("i=0; while [ $i -lt 120 ]; do echo line $i; i=$((i+1)); sleep 0.05; done", false);
    let (_, dir, start) = site.began(&job, 1);
    site.until(&job, |j| j["state"] == "running");
    for _ in 0..3 {
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        let renewed = find_json::<Renewal>(&site.data(0).join("lease.json")).unwrap();
        daemon = site.start(0, &site.worker_address);
        // It goes on, and keeps the lease from now on.
        eventually(|| {
            let now = find_json::<Renewal>(&site.data(0).join("lease.json")).unwrap();
            if now.sent_ms > renewed.sent_ms { Ok(()) } else { Err(format!("{now:?}")) }
        });
        assert!(exists(&start), "{:?}", Records::read(&dir).exit);
    }
    let done = site.until(&job, |j| j["state"] == "succeeded");
    assert_eq!(done["attempt"], 1, "{done}");
    site.charged_once(&done);
    let log = site.dir.path().join("logs").join(&job).join("1-0.log");
    let expected: String = (0..120).map(|i| format!("line {i}\n")).collect();
    eventually(|| {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        if log == expected { Ok(()) } else { Err(format!("{} of {} bytes", log.len(), expected.len())) }
    });
    drop(daemon);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_fails_what_cannot_be_recorded_and_loses_nothing_that_runs() {
    let site = Site::open(1).await;
    let Some(disk) = Disk::mount(&site.data(0), &["-t", "tmpfs", "-o", "size=8m,mode=700", "none"]) else {
        return;
    };
    let daemon = site.start(0, &site.worker_address);
    // It ends when it sees that there is no room.
    let script = "while [ \"$(stat -f -c %f .)\" != 0 ]; do sleep 0.02; done; exit 5";
    let runs = site.submit(script, false);
    site.began(&runs, 1);
    let filled = site.data(0).join("filled");
    let mut file = std::fs::File::create(&filled).unwrap();
    let error = std::io::copy(&mut std::io::repeat(0), &mut file).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let done = site.until(&runs, |j| j["state"] == "failed");
    assert_eq!((&done["exit_code"], &done["failure"]["code"]), (&json!(5), &json!("process.exit")), "{done}");
    site.charged_once(&done);
    let attempts = site.data(0).join("attempts");
    let none_kept = || {
        eventually(|| match std::fs::read_dir(&attempts).unwrap().count() {
            0 => Ok(()),
            kept => Err(format!("{kept} attempts are kept")),
        });
    };
    none_kept();
    // What comes now is not started, and somebody is told why.
    std::io::copy(&mut std::io::repeat(0), &mut file).unwrap_err();
    let comes = site.submit("true", false);
    let done = site.until(&comes, |j| j["state"] == "failed");
    let words = done["failure"]["detail"].as_str().unwrap();
    assert!(done["failure"]["code"] == "worker.io" && words.contains("No space left"), "{done}");
    assert_eq!(done["metered_ms"], 0, "{done}");
    // With room again the node is as good as before, without anybody's help.
    drop(file);
    std::fs::remove_file(&filled).unwrap();
    let next = site.submit("echo fine", false);
    site.until(&next, |j| j["state"] == "succeeded");
    none_kept();
    drop(daemon);
    drop(disk);
    site.close().await;
}

/// Ends all access to an ext4 file system at once: from now on everything there answers EIO.
const BREAK: &str = "import fcntl, os, struct, sys\n\
    fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack('I', 2))";

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_disk_ends_what_runs_with_its_lease_and_that_is_told() {
    let site = Site::open(1).await;
    let (image, at) = (site.dir.path().join("image"), site.data(0));
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    if let Some(why) = refused("mkfs.ext4", &[OsStr::new("-q"), OsStr::new("-F"), image.as_os_str()]) {
        left_out(format!("no file system can be made here: {why}"));
        return;
    }
    let image = image.display().to_string();
    let Some(disk) = Disk::mount(&at, &["-o", "loop", &image]) else { return };
    let daemon = site.start(0, &site.worker_address);
    let job = site.submit(STUBBORN, false);
    let (_, _, start) = site.began(&job, 1);
    site.until(&job, |j| j["state"] == "running" && j["metered_ms"].as_i64().unwrap() > 0);
    if let Some(why) = refused("python3", &[OsStr::new("-c"), OsStr::new(BREAK), at.as_os_str()]) {
        left_out(format!("this file system cannot be broken: {why}"));
        return;
    }
    assert!(std::fs::write(at.join("probe"), "x").is_err(), "it is broken");
    // Renewals cannot be written down there any more, so the shim ends the job by itself.
    eventually(|| if exists(&start) { Err("it goes on without a lease".to_owned()) } else { Ok(()) });
    // How it ended can be recorded nowhere, which is told.
    let done = site.until(&job, |j| j["state"] == "failed");
    let code = done["failure"]["code"].as_str().unwrap();
    // The simulation keeps its boards there too, so they may be missed before that.
    assert!(code == "attempt.unknown_outcome" || code.starts_with("device."), "{done}");
    site.charged_once(&done);
    drop(daemon);
    drop(disk);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_clocks_are_weeks_ahead_counts_the_same() {
    // Monotonic clocks of its own; nobody may move those of the machine under it.
    let ahead = ["--time", "--monotonic", "2000000", "--boottime", "2000000"];
    let words: Vec<&OsStr> = ahead.iter().chain(&["true"]).map(OsStr::new).collect();
    if let Some(why) = refused("unshare", &words) {
        left_out(format!("no time namespace can be made here: {why}"));
        return;
    }
    let site = Site::open(1).await;
    let built = std::env::current_exe().unwrap();
    let program = built.parent().unwrap().parent().unwrap().join("berth-worker");
    let child = Command::new("unshare")
        .args(ahead)
        .arg(program)
        .args(["run", "--simulate", "1xH100-80GB", "--allow-unisolated"])
        .args(["--join-token", site.tickets[0].as_str()])
        .args(["--portal", format!("https://{}", site.worker_address).as_str(), "--data"])
        .arg(site.data(0))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let daemon = Ending(child.unwrap());
    // Longer than its lease, so that it is renewed by those clocks.
    let job = site.submit("cut -d. -f1 /proc/uptime; sleep 6; echo done", false);
    let done = site.until(&job, |j| j["state"] == "succeeded");
    let metered = done["metered_ms"].as_i64().unwrap();
    assert!((6_000..30_000).contains(&metered), "{done}");
    site.charged_once(&done);
    let log = site.dir.path().join("logs").join(&job).join("1-0.log");
    let uptime = eventually(|| {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let whole = log.strip_suffix("done\n").and_then(|uptime| uptime.trim().parse::<u64>().ok());
        whole.ok_or(log)
    });
    assert!(uptime > 2_000_000, "it really was there: {uptime}");
    drop(daemon);
    site.close().await;
}
