//! A portal and two workers as processes, each in a network namespace of its own on one machine, under
//! whatever jobs, cables and operators may do to them. Where the privilege is missing each test says so and
//! is left out.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::TestPortal;
use crate::common::left_out::left_out;
use crate::netns::{HUB, Net};
use crate::process::{Ending, Served, call, eventually, serve_with};
use berth_foundation::Settings;
use berth_store::{self as store, Db};
use berth_worker::cgroups::{Cgroups, Controller};
use berth_worker::shim::{Records, Start, exists};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

const WORKERS: usize = 2;

/// Bombs of one test would hold up the short leases of another.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A tenant with a token of its own.
struct Tenant {
    org: String,
    token: String,
}

/// Everything in its namespaces. Processes end before their namespaces do.
struct Yard {
    served: Served,
    workers: Vec<Ending>,
    net: Net,
    dir: tempfile::TempDir,
    lease_s: u32,
    operator: String,
    tickets: Vec<String>,
    ada: Tenant,
    bob: Tenant,
    _alone: MutexGuard<'static, ()>,
}

fn serve(net: &Net, dir: &tempfile::TempDir, lease_s: u32) -> Served {
    let args = ["--lease-s".to_owned(), lease_s.to_string()];
    net.inside("hub", || serve_with(dir.path(), &format!("{HUB}:8081"), &args, None))
}

fn secret(made: &Value) -> String {
    made["secret"].as_str().unwrap().to_owned()
}

impl Yard {
    /// `None`, and said, where there are no namespaces.
    async fn open(lease_s: u32) -> Option<Self> {
        let _alone = ONE_AT_A_TIME.lock().await;
        let net = Net::open(WORKERS)?;
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_owned();
        let database = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
        let t = TestPortal::with(database, |settings| Settings { data, ..settings });
        t.clock.set_by_the_machine();
        let operator = t.operator().await;
        let mut tenants = Vec::new();
        for name in ["lab", "bobs"] {
            let (who, org) = t.tenant(name).await;
            let new = json!({"name": "script", "role": "member"});
            let token = secret(&t.post(&who, &format!("/orgs/{org}/tokens"), new).await.expect(201));
            let credit = json!({"amount_micros": 1_000_000_000, "memo": "Welcome"});
            t.post(&operator, &format!("/operator/orgs/{org}/credits"), credit).await.expect(201);
            tenants.push(Tenant { org, token });
        }
        t.stock(&operator, &tenants[0].org, 0).await;
        let price = json!({"offering": "h100-80gb", "per_hour_micros": 3_600_000});
        t.post(&operator, "/operator/prices", price).await.expect(201);
        let mut tickets = Vec::new();
        for _ in 0..WORKERS {
            tickets.push(secret(&t.post(&operator, "/operator/join-tokens", json!({})).await.expect(201)));
        }
        let named = json!({"name": "script"});
        let operator = secret(&t.post(&operator, "/operator/tokens", named).await.expect(201));
        drop(t);
        let served = serve(&net, &dir, lease_s);
        let (bob, ada) = (tenants.pop().unwrap(), tenants.pop().unwrap());
        let workers = Vec::new();
        let mut yard = Self { served, workers, net, dir, lease_s, operator, tickets, ada, bob, _alone };
        for n in 0..WORKERS {
            let worker = yard.worker(n);
            yard.workers.push(worker);
        }
        eventually(|| {
            let nodes = yard.nodes();
            let ready = nodes.iter().filter(|n| n["state"] == "ready").count();
            if ready == WORKERS { Ok(()) } else { Err(format!("{nodes:?}")) }
        });
        Some(yard)
    }

    fn data(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("worker-{n}"))
    }

    fn worker(&self, n: usize) -> Ending {
        let built = std::env::current_exe().unwrap();
        let program = built.parent().unwrap().parent().unwrap().join("berth-worker");
        // Two workers on one host keep out of each other's way.
        let users = format!("{}-{}", 600_000 + n * 10_000, 609_999 + n * 10_000);
        let mut command = Command::new(program);
        command
            .args(["run", "--simulate", "2xH100-80GB", "--allow-unisolated", "--stop-grace-s", "1"])
            .args(["--job-pids", "64", "--job-disk-mib", "16", "--job-users", users.as_str()])
            .args(["--name", format!("place-{n}").as_str(), "--join-token", self.tickets[n].as_str()])
            .args(["--portal", format!("https://{HUB}:8081").as_str(), "--data"])
            .arg(self.data(n))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.net.inside(&n.to_string(), move || Ending(command.spawn().unwrap()))
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

    fn ended(&self, tenant: &Tenant, job: &str) -> Value {
        let over = ["succeeded", "failed", "cancelled", "timed_out"];
        self.until(tenant, job, |j| over.iter().any(|state| j["state"] == *state))
    }

    fn cancel(&self, tenant: &Tenant, job: &str) {
        let path = format!("/orgs/{}/jobs/{job}/cancel", tenant.org);
        let (status, answer) = self.ask(&tenant.token, "POST", &path, &Value::Null).unwrap();
        assert_eq!(status, 202, "{answer}");
    }

    /// The log of a rank of the first try, when it is as long as this or longer.
    fn log(&self, job: &str, rank: u32, length: usize) -> String {
        let path = self.dir.path().join("logs").join(job).join(format!("1-{rank}.log"));
        eventually(|| {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            if log.len() >= length { Ok(log) } else { Err(format!("{} of {length} bytes", log.len())) }
        })
    }

    /// The worker that has an attempt, and the attempt's directory there, once its process began.
    fn began(&self, job: &str, number: u32) -> (usize, PathBuf, Start) {
        eventually(|| {
            for n in 0..WORKERS {
                let dir = self.data(n).join("attempts").join(format!("{job}-{number}"));
                if let Some(start) = Records::read(&dir).start {
                    return Ok((n, dir, start));
                }
            }
            Err(self.job(&self.ada, job).to_string())
        })
    }

    /// What was charged for a job of one slice or one board is what its meter says.
    fn charged_once(&self, tenant: &Tenant, job: &Value) {
        let path = format!("/orgs/{}/transfers?limit=200", tenant.org);
        let (_, page) = self.ask(&tenant.token, "GET", &path, &Value::Null).unwrap();
        let rows = page["items"].as_array().unwrap().iter();
        let usage = rows.filter(|r| r["kind"] == "usage" && r["source_id"] == job["id"]);
        let charged: i64 = usage.map(|r| -r["amount_micros"].as_i64().unwrap()).sum();
        assert_eq!(charged, job["metered_ms"].as_i64().unwrap(), "one micro a millisecond: {job}");
    }

    /// Nothing is on a board, no attempt is kept, and the books are right.
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

/// Rank 0 says what the others sent it.
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
async fn ranks_meet_across_namespaces_and_a_pulled_cable_runs_nothing_twice() {
    let Some(yard) = Yard::open(3).await else { return };
    let command = json!(["python3", "meet.py"]);
    let gang = json!({"offering": "h100-80gb", "nodes": 2, "command": command, "files": {"meet.py": MEET}});
    let gang = yard.submit(&yard.ada, gang);
    let done = yard.ended(&yard.ada, &gang);
    assert_eq!(done["state"], "succeeded", "{done}");
    assert_ne!(done["devices"][0]["node"], done["devices"][1]["node"], "{done}");
    assert_eq!(yard.log(&gang, 0, "heard rank 1\n".len()), "heard rank 1\n");
    assert_eq!(yard.log(&gang, 1, "said\n".len()), "said\n");

    // It does not heed SIGTERM, so that only SIGKILL ends it.
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    let retry = json!({"max": 3, "on": ["node_lost"]});
    let job = yard.submit(&yard.ada, json!({"script": script, "retry": retry}));
    let (first, dir, start) = yard.began(&job, 1);
    yard.until(&yard.ada, &job, |j| j["state"] == "running" && j["metered_ms"].as_i64().unwrap() > 0);
    yard.net.pull(first);
    let name = format!("place-{first}");
    // Suspect first, but not for long: its lease may have ended before its silence is noticed.
    for states in [["suspect", "lost"], ["lost", "lost"]] {
        eventually(|| {
            let node = yard.node(&name);
            let there = states.iter().any(|state| node["silence"]["state"] == *state);
            if there { Ok(()) } else { Err(node.to_string()) }
        });
    }
    let (second, _, again) = yard.began(&job, 2);
    assert_ne!(second, first);
    let exit = Records::read(&dir).exit.unwrap();
    assert_eq!(exit.failure.unwrap().0, "lease.ended");
    assert!(exit.boottime_ms.unwrap() < again.boottime_ms, "{:?} {again:?}", exit.boottime_ms);
    assert!(!exists(&start));
    yard.until(&yard.ada, &job, |j| j["attempt"] == 2 && j["state"] == "running");
    yard.net.plug(first);
    eventually(|| if dir.exists() { Err(format!("{} is still there", dir.display())) } else { Ok(()) });
    eventually(|| {
        let node = yard.node(&name);
        let back = node["state"] == "ready" && node.get("silence").is_none();
        if back { Ok(()) } else { Err(node.to_string()) }
    });
    let after = yard.job(&yard.ada, &job);
    assert_eq!((&after["attempt"], &after["state"]), (&json!(2), &json!("running")), "{after}");
    assert!(exists(&again), "nobody disturbed the second");
    yard.cancel(&yard.ada, &job);
    let done = yard.until(&yard.ada, &job, |j| j["state"] == "cancelled");
    yard.charged_once(&yard.ada, &done);
    yard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_is_killed_under_load_and_no_job_notices() {
    let Some(mut yard) = Yard::open(60).await else { return };
    let lines = "i=0; while [ $i -lt 160 ]; do echo line $i; i=$((i+1)); sleep 0.05; done";
    let jobs: Vec<String> = (0..8).map(|_| yard.submit(&yard.ada, json!({"script": lines}))).collect();
    let burst = "for i in 1 2 3 4 5 6 7 8; do head -c 2000000 /dev/zero | tr '\\0' x; sleep 1; done";
    let burst = yard.submit(&yard.bob, json!({"script": burst}));
    for job in &jobs {
        yard.until(&yard.ada, job, |j| j["state"] == "running");
    }
    for n in 0..WORKERS {
        yard.workers[n].0.kill().unwrap();
        yard.workers[n].0.wait().unwrap();
        let worker = yard.worker(n);
        yard.workers[n] = worker;
        yard.served.kill();
        yard.served = serve(&yard.net, &yard.dir, yard.lease_s);
    }
    let expected: String = (0..160).map(|i| format!("line {i}\n")).collect();
    for job in &jobs {
        let done = yard.ended(&yard.ada, job);
        assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(1)), "{done}");
        assert_eq!(yard.log(job, 0, expected.len()), expected);
        yard.charged_once(&yard.ada, &done);
    }
    let done = yard.ended(&yard.bob, &burst);
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(1)), "{done}");
    let log = yard.log(&burst, 0, 16_000_000);
    assert!(log.len() == 16_000_000 && log.bytes().all(|b| b == b'x'), "{} bytes", log.len());
    yard.charged_once(&yard.bob, &done);
    yard.close().await;
}

/// A job of Python.
fn python(text: &str, memory_mib: u64) -> Value {
    json!({"command": ["python3", "job.py"], "files": {"job.py": text}, "memory_mib": memory_mib})
}

#[tokio::test(flavor = "multi_thread")]
async fn bombs_of_one_tenant_leave_the_jobs_of_another_whole() {
    let limited = Cgroups::find("berth-test", std::path::Path::new("/"));
    if [Controller::Memory, Controller::Pids].iter().any(|c| limited.words(*c).is_none()) {
        left_out("no cgroup limits memory and processes on this machine");
        return;
    }
    let Some(yard) = Yard::open(60).await else { return };
    let steady = "i=0; while [ $i -lt 160 ]; do echo line $i; i=$((i+1)); sleep 0.05; done; exit 7";
    let steady: Vec<String> =
        (0..4).map(|_| yard.submit(&yard.bob, json!({"script": steady, "memory_mib": 64}))).collect();
    for job in &steady {
        yard.until(&yard.bob, job, |j| j["state"] == "running");
    }
    let forks = "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.1)";
    let memory = "x = []\nwhile True:\n    x.append(bytearray(1 << 24))";
    let disk = "while :; do i=$((i+1)); head -c 1000000 /dev/zero > f$i; sleep 0.05; done";
    let burst = "head -c 20000000 /dev/zero | tr '\\0' x";
    let escapes = "(setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 0.1; done' </dev/null >/dev/null 2>&1 &)\n\
        trap '' TERM; kill -STOP $$";
    let forks = yard.submit(&yard.ada, python(forks, 256));
    let memory = yard.submit(&yard.ada, python(memory, 64));
    let disk = yard.submit(&yard.ada, json!({"script": disk}));
    let burst = yard.submit(&yard.ada, json!({"script": burst}));
    let escapes = yard.submit(&yard.ada, json!({"script": escapes}));

    let expected: String = (0..160).map(|i| format!("line {i}\n")).collect();
    for job in &steady {
        let done = yard.ended(&yard.bob, job);
        let found = (&done["state"], &done["exit_code"], &done["attempt"]);
        assert_eq!(found, (&json!("failed"), &json!(7), &json!(1)), "{done}");
        assert_eq!(done["failure"]["code"], "process.exit", "{done}");
        assert_eq!(yard.log(job, 0, expected.len()), expected);
        yard.charged_once(&yard.bob, &done);
    }
    for (job, code) in [(&memory, "memory.exceeded"), (&disk, "disk.exceeded")] {
        let done = yard.ended(&yard.ada, job);
        assert_eq!(done["failure"]["code"], code, "{done}");
    }
    assert_eq!(yard.ended(&yard.ada, &burst)["state"], "succeeded");
    assert_eq!(yard.log(&burst, 0, 20_000_000).len(), 20_000_000);
    for job in [&forks, &escapes] {
        yard.until(&yard.ada, job, |j| j["state"] == "running");
        yard.cancel(&yard.ada, job);
        assert_eq!(yard.ended(&yard.ada, job)["state"], "cancelled");
    }
    // Every attempt is proved clean: nothing of a bomb is left in its cgroup or on its slice.
    yard.close().await;
}
