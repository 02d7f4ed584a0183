//! A portal and two workers as processes in separate network namespaces of one machine. Without the privilege a test is
//! skipped with a message.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail loudly, like tests")]

mod capture;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::TestPortal;
use crate::common::left_out::left_out;
use crate::netns::{HUB, NAMESPACES, Net};
use crate::process::{
    ChildGuard, PortalProcess, USUAL_LIMIT, call, eventually, eventually_within, serve_with,
};
use berth_foundation::Settings;
use berth_shim::{CommandStart, ShimRecords};
use berth_store::{self as store, Db};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

pub use capture::{Capture, Captured};

pub const WORKERS: usize = 2;

/// The load of one test would delay the short leases of another.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// An organization with its API token.
pub struct Tenant {
    pub org: String,
    pub token: String,
}

/// A portal and workers in their namespaces. The processes end before the namespaces.
pub struct NamespacedCluster {
    pub served: PortalProcess,
    pub workers: Vec<ChildGuard>,
    pub net: Net,
    pub dir: tempfile::TempDir,
    pub lease_s: u32,
    /// The boards of each worker.
    boards: usize,
    /// The kind of networks between ranks that the next worker gets. `None`: the default.
    pub gang_network: Option<&'static str>,
    operator: String,
    join_tokens: Vec<String>,
    pub ada: Tenant,
    pub bob: Tenant,
    pub carol: Tenant,
    _alone: MutexGuard<'static, ()>,
}

pub fn serve(net: &Net, dir: &tempfile::TempDir, lease_s: u32) -> PortalProcess {
    // Tests beside this one make the processors of this machine busy, and thus good links slow.
    let args = ["--lease-s", &lease_s.to_string(), "--gang-min-percent", "10"].map(str::to_owned);
    net.inside("hub", || serve_with(dir.path(), &format!("{HUB}:8081"), &args, None))
}

fn secret(made: &Value) -> String {
    made["secret"].as_str().unwrap().to_owned()
}

/// The network namespaces of the ranks of a job's first attempt.
pub fn rank_namespaces(job: &str) -> Vec<String> {
    let entries = std::fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.ends_with(&format!("-{job}-1"))).collect()
}

impl NamespacedCluster {
    /// Starts everything, with two boards for each worker. `None` with a message if the machine has no namespaces.
    pub async fn open(lease_s: u32) -> Option<Self> {
        Self::open_with_boards(lease_s, 2).await
    }

    /// Does the same with another number of boards.
    pub async fn open_with_boards(lease_s: u32, boards: usize) -> Option<Self> {
        let _alone = ONE_AT_A_TIME.lock().await;
        let net = Net::open(WORKERS)?;
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_owned();
        let database = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
        let t = TestPortal::with(database, |settings| Settings { data, ..settings });
        t.clock.set_to_system_time();
        let operator = t.operator().await;
        let mut tenants = Vec::new();
        for name in ["lab", "bobs", "carols"] {
            let (caller, org) = t.tenant(name).await;
            let new = json!({"name": "script", "role": "member"});
            let token = secret(&t.post(&caller, &format!("/orgs/{org}/tokens"), new).await.expect(201));
            let credit = json!({"amount_micros": 1_000_000_000, "memo": "Welcome"});
            t.post(&operator, &format!("/operator/orgs/{org}/credits"), credit).await.expect(201);
            tenants.push(Tenant { org, token });
        }
        t.add_price_and_credit(&operator, &tenants[0].org, 0).await;
        let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
        t.post(&operator, "/operator/prices", price).await.expect(201);
        let mut join_tokens = Vec::new();
        for _ in 0..WORKERS {
            join_tokens.push(secret(
                &t.post(&operator, "/operator/join-tokens", json!({"approve": true})).await.expect(201),
            ));
        }
        let named = json!({"name": "script"});
        let operator = secret(&t.post(&operator, "/operator/tokens", named).await.expect(201));
        drop(t);
        let served = serve(&net, &dir, lease_s);
        let [ada, bob, carol]: [Tenant; 3] = tenants.try_into().ok().unwrap();
        let mut cluster = Self {
            served,
            workers: Vec::new(),
            net,
            dir,
            lease_s,
            boards,
            gang_network: None,
            operator,
            join_tokens,
            ada,
            bob,
            carol,
            _alone,
        };
        for n in 0..WORKERS {
            let worker = cluster.worker(n);
            cluster.workers.push(worker);
        }
        eventually(|| {
            let nodes = cluster.nodes();
            let ready = nodes.iter().filter(|n| n["state"] == "ready").count();
            if ready == WORKERS { Ok(()) } else { Err(format!("{nodes:?}")) }
        });
        Some(cluster)
    }

    fn data(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("worker-{n}"))
    }

    pub fn worker(&self, n: usize) -> ChildGuard {
        let built = std::env::current_exe().unwrap();
        let program = built.parent().unwrap().parent().unwrap().join("berth-worker");
        // Two workers on one host need different users for jobs.
        let users = format!("{}-{}", 600_000 + n * 10_000, 609_999 + n * 10_000);
        let boards = format!("{}xH100-80GB", self.boards);
        let mut command = Command::new(program);
        command
            .args(["run", "--simulate", boards.as_str(), "--allow-unisolated", "--stop-grace-s", "1"])
            .args(["--job-pids", "64", "--job-disk-mib", "16", "--job-users", users.as_str()])
            .args(["--name", format!("place-{n}").as_str(), "--join-token", self.join_tokens[n].as_str()])
            .args(["--portal", format!("https://{HUB}:8081").as_str(), "--data"])
            .arg(self.data(n))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // The networks of jobs change the place alone. No job of these tests resolves a name.
        if std::path::Path::new("/usr/sbin/nft").exists() {
            command.args(["--job-resolver", "192.0.2.53"]);
            if let Some(kind) = self.gang_network {
                command.args(["--gang-network", kind]);
            } else if !std::path::Path::new("/dev/net/tun").exists() {
                left_out("ranks on several nodes have no networks of their own without /dev/net/tun");
                command.args(["--gang-network", "host"]);
            }
        } else {
            left_out("jobs have no networks of their own without nftables");
            command.args(["--job-network", "host"]);
        }
        self.net.inside(&n.to_string(), move || ChildGuard(command.spawn().unwrap()))
    }

    /// Kills a worker and starts it again.
    pub fn restart_worker(&mut self, n: usize) {
        self.workers[n].0.kill().unwrap();
        self.workers[n].0.wait().unwrap();
        self.workers[n] = self.worker(n);
    }

    fn ask(&self, token: &str, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        self.net.inside("hub", || call(&self.served.address, method, path, token, body))
    }

    pub fn nodes(&self) -> Vec<Value> {
        let (_, nodes) = self.ask(&self.operator, "GET", "/operator/nodes", &Value::Null).unwrap();
        nodes["items"].as_array().unwrap().clone()
    }

    pub fn node(&self, name: &str) -> Value {
        self.nodes().into_iter().find(|n| n["name"] == name).unwrap()
    }

    /// False with a message if the ranks of jobs on several nodes have no network of their own.
    pub fn has_gang_networks(&self) -> bool {
        let kind = self.node("place-0")["isolation"]["gang_network"].to_string();
        if kind.starts_with("\"WireGuard") {
            return true;
        }
        left_out(format!("jobs on several nodes have no networks of their own on this machine: {kind}"));
        false
    }

    /// Releases a node that is set aside for jobs on several nodes.
    pub fn release(&self, node: &Value) {
        let path = format!("/operator/nodes/{}/set-aside", node["id"].as_str().unwrap());
        let (status, freed) = self.ask(&self.operator, "DELETE", &path, &Value::Null).unwrap();
        assert_eq!((status, &freed["set_aside"]), (200, &Value::Null), "{freed}");
    }

    pub fn submit(&self, tenant: &Tenant, spec: Value) -> String {
        let mut body = json!({"name": "train", "offering": "h100-80gb.1g.10gb", "max_duration_s": 120});
        body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let path = format!("/orgs/{}/jobs", tenant.org);
        let (status, job) = self.ask(&tenant.token, "POST", &path, &body).unwrap();
        assert_eq!(status, 201, "{job}");
        job["id"].as_str().unwrap().to_owned()
    }

    pub fn job(&self, tenant: &Tenant, job: &str) -> Value {
        let path = format!("/orgs/{}/jobs/{job}", tenant.org);
        self.ask(&tenant.token, "GET", &path, &Value::Null).unwrap().1
    }

    pub fn until(&self, tenant: &Tenant, job: &str, ready: impl Fn(&Value) -> bool) -> Value {
        eventually(|| {
            let now = self.job(tenant, job);
            if ready(&now) { Ok(now) } else { Err(now.to_string()) }
        })
    }

    pub fn until_ended(&self, tenant: &Tenant, job: &str) -> Value {
        self.until_ended_within(USUAL_LIMIT, tenant, job)
    }

    /// The same with a deadline after `limit`.
    pub fn until_ended_within(&self, limit: Duration, tenant: &Tenant, job: &str) -> Value {
        let over = ["succeeded", "failed", "cancelled", "timed_out"];
        eventually_within(limit, || {
            let now = self.job(tenant, job);
            if over.iter().any(|state| now["state"] == *state) { Ok(now) } else { Err(now.to_string()) }
        })
    }

    pub fn cancel(&self, tenant: &Tenant, job: &str) {
        let path = format!("/orgs/{}/jobs/{job}/cancel", tenant.org);
        let (status, answer) = self.ask(&tenant.token, "POST", &path, &Value::Null).unwrap();
        assert_eq!(status, 202, "{answer}");
    }

    /// Waits until the log of a rank of the first attempt has `length` bytes.
    pub fn log(&self, job: &str, rank: u32, length: usize) -> String {
        let path = self.dir.path().join("logs").join(job).join(format!("1-{rank}.log"));
        eventually(|| {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            if log.len() >= length { Ok(log) } else { Err(format!("{} of {length} bytes", log.len())) }
        })
    }

    /// The complete lines of the log of a rank of the first attempt.
    pub fn lines(&self, job: &str, rank: u32) -> Vec<String> {
        let path = self.dir.path().join("logs").join(job).join(format!("1-{rank}.log"));
        let log = std::fs::read_to_string(path).unwrap_or_default();
        log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }

    /// Waits for the first process of an attempt; returns its worker and its directory.
    pub fn until_started(&self, job: &str, number: u32) -> (usize, PathBuf, CommandStart) {
        eventually(|| {
            for n in 0..WORKERS {
                let dir = self.data(n).join("attempts").join(format!("{job}-{number}"));
                if let Some(start) = ShimRecords::read(&dir).start {
                    return Ok((n, dir, start));
                }
            }
            Err(self.job(&self.ada, job).to_string())
        })
    }

    /// Asserts that the charge of a job for one slice or board equals its meter.
    pub fn assert_charged_once(&self, tenant: &Tenant, job: &Value) {
        let path = format!("/orgs/{}/transfers?limit=200", tenant.org);
        let (_, page) = self.ask(&tenant.token, "GET", &path, &Value::Null).unwrap();
        let rows = page["items"].as_array().unwrap().iter();
        let usage = rows.filter(|r| r["kind"] == "usage" && r["source_id"] == job["id"]);
        let charged: i64 = usage.map(|r| -r["amount_micros"].as_i64().unwrap()).sum();
        assert_eq!(charged, job["metered_ms"].as_i64().unwrap(), "one micro a millisecond: {job}");
    }

    /// Waits for empty boards without kept attempts, ends all processes, and opens the database.
    pub async fn settle(&mut self) -> Db {
        eventually(|| {
            let nodes = self.nodes();
            let boards = nodes.iter().flat_map(|n| n["gpus"].as_array().unwrap());
            let held = boards.filter(|g| g["tiles"] != json!([])).count();
            let kept = |n| std::fs::read_dir(self.data(n).join("attempts")).unwrap().count();
            let kept: usize = (0..WORKERS).map(kept).sum();
            if (held, kept) == (0, 0) { Ok(()) } else { Err(format!("{kept} attempts kept: {nodes:?}")) }
        });
        self.workers.clear();
        self.served.kill();
        Db::sqlite(&self.dir.path().join("berth.db")).await.unwrap()
    }

    /// Asserts empty boards, no kept attempts and a correct ledger.
    pub async fn close(mut self) {
        let db = self.settle().await;
        let mut conn = db.read().await.unwrap();
        assert_eq!(store::ledger::mismatches(&mut conn.tx()).await.unwrap(), Vec::<String>::new());
    }
}
