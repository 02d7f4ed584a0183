//! Tests of a portal and two workers as processes in separate network namespaces of one machine, with hostile
//! jobs, network cuts and kills. Without the privilege a test is skipped with a message.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::TestPortal;
use crate::common::left_out::left_out;
use crate::netns::{HUB, Net};
use crate::process::{ChildGuard, PortalProcess, call, eventually, serve_with};
use berth_foundation::Settings;
use berth_store::{self as store, Db};
use berth_worker::isolation::cgroups::{Cgroups, Controller};
use berth_worker::shim::{CommandStart, ShimRecords};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

const WORKERS: usize = 2;

/// The load of one test would delay the short leases of another.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// An organization with its API token.
struct Tenant {
    org: String,
    token: String,
}

/// A portal and workers in their namespaces. The processes end before the namespaces.
struct NamespacedCluster {
    served: PortalProcess,
    workers: Vec<ChildGuard>,
    net: Net,
    dir: tempfile::TempDir,
    lease_s: u32,
    operator: String,
    join_tokens: Vec<String>,
    ada: Tenant,
    bob: Tenant,
    _alone: MutexGuard<'static, ()>,
}

fn serve(net: &Net, dir: &tempfile::TempDir, lease_s: u32) -> PortalProcess {
    let args = ["--lease-s".to_owned(), lease_s.to_string()];
    net.inside("hub", || serve_with(dir.path(), &format!("{HUB}:8081"), &args, None))
}

fn secret(made: &Value) -> String {
    made["secret"].as_str().unwrap().to_owned()
}

impl NamespacedCluster {
    /// Starts everything. `None` with a message if the machine has no namespaces.
    async fn open(lease_s: u32) -> Option<Self> {
        let _alone = ONE_AT_A_TIME.lock().await;
        let net = Net::open(WORKERS)?;
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_owned();
        let database = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
        let t = TestPortal::with(database, |settings| Settings { data, ..settings });
        t.clock.set_to_system_time();
        let operator = t.operator().await;
        let mut tenants = Vec::new();
        for name in ["lab", "bobs"] {
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
        let (bob, ada) = (tenants.pop().unwrap(), tenants.pop().unwrap());
        let workers = Vec::new();
        let mut cluster =
            Self { served, workers, net, dir, lease_s, operator, join_tokens, ada, bob, _alone };
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

    fn worker(&self, n: usize) -> ChildGuard {
        let built = std::env::current_exe().unwrap();
        let program = built.parent().unwrap().parent().unwrap().join("berth-worker");
        // Two workers on one host need different users for jobs.
        let users = format!("{}-{}", 600_000 + n * 10_000, 609_999 + n * 10_000);
        let mut command = Command::new(program);
        command
            .args(["run", "--simulate", "2xH100-80GB", "--allow-unisolated", "--stop-grace-s", "1"])
            .args(["--job-pids", "64", "--job-disk-mib", "16", "--job-users", users.as_str()])
            .args(["--name", format!("place-{n}").as_str(), "--join-token", self.join_tokens[n].as_str()])
            .args(["--portal", format!("https://{HUB}:8081").as_str(), "--data"])
            .arg(self.data(n))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.net.inside(&n.to_string(), move || ChildGuard(command.spawn().unwrap()))
    }

    fn ask(&self, token: &str, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        self.net.inside("hub", || call(&self.served.address, method, path, token, body))
    }

    fn nodes(&self) -> Vec<Value> {
        let (_, nodes) = self.ask(&self.operator, "GET", "/operator/nodes", &Value::Null).unwrap();
        nodes["items"].as_array().unwrap().clone()
    }

    fn node(&self, name: &str) -> Value {
        self.nodes().into_iter().find(|n| n["name"] == name).unwrap()
    }

    fn submit(&self, tenant: &Tenant, spec: Value) -> String {
        let mut body = json!({"name": "train", "offering": "h100-80gb.1g.10gb", "max_duration_s": 120});
        body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let path = format!("/orgs/{}/jobs", tenant.org);
        let (status, job) = self.ask(&tenant.token, "POST", &path, &body).unwrap();
        assert_eq!(status, 201, "{job}");
        job["id"].as_str().unwrap().to_owned()
    }

    fn job(&self, tenant: &Tenant, job: &str) -> Value {
        let path = format!("/orgs/{}/jobs/{job}", tenant.org);
        self.ask(&tenant.token, "GET", &path, &Value::Null).unwrap().1
    }

    fn until(&self, tenant: &Tenant, job: &str, ready: impl Fn(&Value) -> bool) -> Value {
        eventually(|| {
            let now = self.job(tenant, job);
            if ready(&now) { Ok(now) } else { Err(now.to_string()) }
        })
    }

    fn until_ended(&self, tenant: &Tenant, job: &str) -> Value {
        let over = ["succeeded", "failed", "cancelled", "timed_out"];
        self.until(tenant, job, |j| over.iter().any(|state| j["state"] == *state))
    }

    fn cancel(&self, tenant: &Tenant, job: &str) {
        let path = format!("/orgs/{}/jobs/{job}/cancel", tenant.org);
        let (status, answer) = self.ask(&tenant.token, "POST", &path, &Value::Null).unwrap();
        assert_eq!(status, 202, "{answer}");
    }

    /// Waits until the log of a rank of the first attempt has `length` bytes.
    fn log(&self, job: &str, rank: u32, length: usize) -> String {
        let path = self.dir.path().join("logs").join(job).join(format!("1-{rank}.log"));
        eventually(|| {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            if log.len() >= length { Ok(log) } else { Err(format!("{} of {length} bytes", log.len())) }
        })
    }

    /// Waits for the first process of an attempt; returns its worker and its directory.
    fn until_started(&self, job: &str, number: u32) -> (usize, PathBuf, CommandStart) {
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
    fn assert_charged_once(&self, tenant: &Tenant, job: &Value) {
        let path = format!("/orgs/{}/transfers?limit=200", tenant.org);
        let (_, page) = self.ask(&tenant.token, "GET", &path, &Value::Null).unwrap();
        let rows = page["items"].as_array().unwrap().iter();
        let usage = rows.filter(|r| r["kind"] == "usage" && r["source_id"] == job["id"]);
        let charged: i64 = usage.map(|r| -r["amount_micros"].as_i64().unwrap()).sum();
        assert_eq!(charged, job["metered_ms"].as_i64().unwrap(), "one micro a millisecond: {job}");
    }

    /// Asserts empty boards, no kept attempts and a correct ledger.
    async fn close(mut self) {
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
        let db = Db::sqlite(&self.dir.path().join("berth.db")).await.unwrap();
        let mut conn = db.read().await.unwrap();
        assert_eq!(store::ledger::mismatches(&mut conn.tx()).await.unwrap(), Vec::<String>::new());
    }
}

/// Rank 0 prints the message of the other rank.
const MEET: &str = r#"
import os, socket, time
rank, place = int(os.environ["NODE_RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    peer, _ = socket.create_server(place).accept()
    print("heard", peer.makefile().readline().strip())
else:
    for _ in range(400):
        try:
            socket.create_connection(place).sendall(f"rank {rank}\n".encode())
            print("said")
            break
        except OSError:
            time.sleep(0.05)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn ranks_connect_across_namespaces_and_a_cut_network_runs_no_job_twice() {
    let Some(cluster) = NamespacedCluster::open(3).await else { return };
    let command = json!(["python3", "meet.py"]);
    let gang = json!({"offering": "h100-80gb", "nodes": 2, "command": command, "files": {"meet.py": MEET}});
    let gang = cluster.submit(&cluster.ada, gang);
    let done = cluster.until_ended(&cluster.ada, &gang);
    assert_eq!(done["state"], "succeeded", "{done}");
    assert_ne!(done["devices"][0]["node"], done["devices"][1]["node"], "{done}");
    assert_eq!(cluster.log(&gang, 0, "heard rank 1\n".len()), "heard rank 1\n");
    assert_eq!(cluster.log(&gang, 1, "said\n".len()), "said\n");

    // It ignores SIGTERM, so that only SIGKILL ends it.
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    let retry = json!({"max": 3, "on": ["node_lost"]});
    let job = cluster.submit(&cluster.ada, json!({"script": script, "retry": retry}));
    let (first, dir, start) = cluster.until_started(&job, 1);
    cluster.until(&cluster.ada, &job, |j| j["state"] == "running" && j["metered_ms"].as_i64().unwrap() > 0);
    cluster.net.pull(first);
    let name = format!("place-{first}");
    // The node is suspect only shortly, because its lease may end before the portal notices the silence.
    for states in [["suspect", "lost"], ["lost", "lost"]] {
        eventually(|| {
            let node = cluster.node(&name);
            let there = states.iter().any(|state| node["silence"]["state"] == *state);
            if there { Ok(()) } else { Err(node.to_string()) }
        });
    }
    let (second, _, again) = cluster.until_started(&job, 2);
    assert_ne!(second, first);
    let exit = ShimRecords::read(&dir).exit.unwrap();
    assert_eq!(exit.failure.unwrap().0, "lease.ended");
    assert!(exit.boottime_ms.unwrap() < again.boottime_ms, "{:?} {again:?}", exit.boottime_ms);
    assert!(!start.is_running());
    cluster.until(&cluster.ada, &job, |j| j["attempt"] == 2 && j["state"] == "running");
    cluster.net.plug(first);
    eventually(|| if dir.exists() { Err(format!("{} is still there", dir.display())) } else { Ok(()) });
    eventually(|| {
        let node = cluster.node(&name);
        let back = node["state"] == "ready" && node.get("silence").is_none();
        if back { Ok(()) } else { Err(node.to_string()) }
    });
    let after = cluster.job(&cluster.ada, &job);
    assert_eq!((&after["attempt"], &after["state"]), (&json!(2), &json!("running")), "{after}");
    assert!(again.is_running(), "nobody disturbed the second");
    cluster.cancel(&cluster.ada, &job);
    let done = cluster.until(&cluster.ada, &job, |j| j["state"] == "cancelled");
    cluster.assert_charged_once(&cluster.ada, &done);
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_portal_and_workers_under_load_keep_all_jobs_running() {
    let Some(mut cluster) = NamespacedCluster::open(60).await else { return };
    let lines = "i=0; while [ $i -lt 160 ]; do echo line $i; i=$((i+1)); sleep 0.05; done";
    let jobs: Vec<String> = (0..8).map(|_| cluster.submit(&cluster.ada, json!({"script": lines}))).collect();
    let burst = "for i in 1 2 3 4 5 6 7 8; do head -c 2000000 /dev/zero | tr '\\0' x; sleep 1; done";
    let burst = cluster.submit(&cluster.bob, json!({"script": burst}));
    for job in &jobs {
        cluster.until(&cluster.ada, job, |j| j["state"] == "running");
    }
    for n in 0..WORKERS {
        cluster.workers[n].0.kill().unwrap();
        cluster.workers[n].0.wait().unwrap();
        let worker = cluster.worker(n);
        cluster.workers[n] = worker;
        cluster.served.kill();
        cluster.served = serve(&cluster.net, &cluster.dir, cluster.lease_s);
    }
    let expected: String = (0..160).map(|i| format!("line {i}\n")).collect();
    for job in &jobs {
        let done = cluster.until_ended(&cluster.ada, job);
        assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(1)), "{done}");
        assert_eq!(cluster.log(job, 0, expected.len()), expected);
        cluster.assert_charged_once(&cluster.ada, &done);
    }
    let done = cluster.until_ended(&cluster.bob, &burst);
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(1)), "{done}");
    let log = cluster.log(&burst, 0, 16_000_000);
    assert!(log.len() == 16_000_000 && log.bytes().all(|b| b == b'x'), "{} bytes", log.len());
    cluster.assert_charged_once(&cluster.bob, &done);
    cluster.close().await;
}

/// A submission of a Python program.
fn python(text: &str, memory_mib: u64) -> Value {
    json!({"command": ["python3", "job.py"], "files": {"job.py": text}, "memory_mib": memory_mib})
}

#[tokio::test(flavor = "multi_thread")]
async fn resource_exhaustion_by_one_tenant_spares_the_jobs_of_another() {
    let limited = Cgroups::find("berth-test", std::path::Path::new("/"));
    if [Controller::Memory, Controller::Pids].iter().any(|c| limited.version_text(*c).is_none()) {
        left_out("no cgroup limits memory and processes on this machine");
        return;
    }
    let Some(cluster) = NamespacedCluster::open(60).await else { return };
    let steady = "i=0; while [ $i -lt 160 ]; do echo line $i; i=$((i+1)); sleep 0.05; done; exit 7";
    let steady: Vec<String> =
        (0..4).map(|_| cluster.submit(&cluster.bob, json!({"script": steady, "memory_mib": 64}))).collect();
    for job in &steady {
        cluster.until(&cluster.bob, job, |j| j["state"] == "running");
    }
    let forks = "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.1)";
    let memory = "x = []\nwhile True:\n    x.append(bytearray(1 << 24))";
    let disk = "while :; do i=$((i+1)); head -c 1000000 /dev/zero > f$i; sleep 0.05; done";
    let burst = "head -c 20000000 /dev/zero | tr '\\0' x";
    let escapes = "(setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 0.1; done' </dev/null >/dev/null 2>&1 &)\n\
        trap '' TERM; kill -STOP $$";
    let forks = cluster.submit(&cluster.ada, python(forks, 256));
    let memory = cluster.submit(&cluster.ada, python(memory, 64));
    let disk = cluster.submit(&cluster.ada, json!({"script": disk}));
    let burst = cluster.submit(&cluster.ada, json!({"script": burst}));
    let escapes = cluster.submit(&cluster.ada, json!({"script": escapes}));

    let expected: String = (0..160).map(|i| format!("line {i}\n")).collect();
    for job in &steady {
        let done = cluster.until_ended(&cluster.bob, job);
        let found = (&done["state"], &done["exit_code"], &done["attempt"]);
        assert_eq!(found, (&json!("failed"), &json!(7), &json!(1)), "{done}");
        assert_eq!(done["failure"]["code"], "process.exit", "{done}");
        assert_eq!(cluster.log(job, 0, expected.len()), expected);
        cluster.assert_charged_once(&cluster.bob, &done);
    }
    for (job, code) in [(&memory, "memory.exceeded"), (&disk, "disk.exceeded")] {
        let done = cluster.until_ended(&cluster.ada, job);
        assert_eq!(done["failure"]["code"], code, "{done}");
    }
    assert_eq!(cluster.until_ended(&cluster.ada, &burst)["state"], "succeeded");
    assert_eq!(cluster.log(&burst, 0, 20_000_000).len(), 20_000_000);
    for job in [&forks, &escapes] {
        cluster.until(&cluster.ada, job, |j| j["state"] == "running");
        cluster.cancel(&cluster.ada, job);
        assert_eq!(cluster.until_ended(&cluster.ada, job)["state"], "cancelled");
    }
    // Every attempt is proved clean: no process is left in its cgroup or on its slice.
    cluster.close().await;
}
