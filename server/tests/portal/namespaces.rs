//! Tests of a portal and two workers as processes in separate network namespaces of one machine, with hostile
//! jobs, network cuts and kills. Without the privilege a test is skipped with a message.

use crate::common::left_out::left_out;
use crate::namespaced::{NamespacedCluster, WORKERS, rank_namespaces, serve};
use crate::process::eventually;
use berth_isolation::cgroups::{Cgroups, Controller};
use berth_shim::ShimRecords;
use serde_json::{Value, json};

/// The number of these jobs whose first attempt has a network of its own.
fn networks(jobs: &[String]) -> usize {
    jobs.iter().filter(|job| !rank_namespaces(job).is_empty()).count()
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
    let network = cluster.node("place-0")["isolation"]["network"].to_string();
    let has_own = network.starts_with("\"own");
    assert_eq!(networks(&jobs), if has_own { jobs.len() } else { 0 }, "{network}");
    for n in 0..WORKERS {
        cluster.restart_worker(n);
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
    assert_eq!(networks(&jobs), 0, "a network goes with its attempt");
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
