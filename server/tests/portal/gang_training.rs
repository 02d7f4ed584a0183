//! A test of PyTorch on two nodes: torchrun starts four processes, which train one model over the network between
//! their ranks.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::left_out::left_out;
use crate::namespaced::NamespacedCluster;
use crate::process::eventually;
use serde_json::{Value, json};

/// Six processes load PyTorch beside other tests. The job has less time, so that its log shows where it stopped.
const LIMIT: Duration = Duration::from_secs(400);

/// Trains one model in all processes, each with its own part of the batch, and prints a report. Process 0 then trains
/// a copy alone with the whole batch.
const TRAIN: &str = r#"
import copy, hashlib, json, os, socket, struct, sys
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

def train(model, points, targets):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(50):
        optimizer.zero_grad()
        mse_loss(model(points), targets).backward()
        optimizer.step()

def connections():
    """The local and the remote address of each open TCP connection in this network namespace."""
    found = set()
    for table in filter(os.path.exists, ["/proc/net/tcp", "/proc/net/tcp6"]):
        with open(table) as lines:
            for line in list(lines)[1:]:
                local, remote, state = line.split()[1:4]
                if state == "01":
                    # The last word of a mapped address of version 6 is that of version 4.
                    words = [int(end.split(":")[0][-8:], 16) for end in (local, remote)]
                    found.add(tuple(socket.inet_ntoa(struct.pack("=I", word)) for word in words))
    return sorted(found)

dist.init_process_group("gloo")
process, processes = dist.get_rank(), dist.get_world_size()
assert processes == int(sys.argv[1]), processes
points = torch.randn(64, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
targets = points @ torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(1)
# Each process begins with other weights, in place of which it gets those of process 0.
torch.manual_seed(process)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
alone = copy.deepcopy(model)
shared = DistributedDataParallel(model)
before = mse_loss(model(points), targets).item()
train(shared, points[process::processes], targets[process::processes])
weights = repr([part.tolist() for part in model.parameters()])
report = {
    "process": process,
    "weights": hashlib.sha256(weights.encode()).hexdigest(),
    "losses": [before, mse_loss(model(points), targets).item()],
    "interface": os.environ["GLOO_SOCKET_IFNAME"],
}
dist.barrier()
report["connections"] = connections()
if process == 0:
    train(alone, points, targets)
    pairs = zip(model.parameters(), alone.parameters())
    report["difference"] = max((a - b).abs().max().item() for a, b in pairs)
# The connections stay until all processes have listed them.
dist.barrier()
# One write, because the processes of a rank share its log.
sys.stdout.write("\nreport " + json.dumps(report) + "\n")
dist.destroy_process_group()
"#;

/// The reports of the two processes of a rank, in their order.
fn reports(cluster: &NamespacedCluster, job: &str, rank: u32) -> Vec<Value> {
    eventually(|| {
        let log = cluster.log(job, rank, 0);
        let lines = log.lines().filter_map(|line| line.strip_prefix("report "));
        let mut reports: Vec<Value> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
        reports.sort_by_key(|report| report["process"].as_u64());
        if reports.len() == 2 { Ok(reports) } else { Err(log) }
    })
}

/// Asserts the smaller loss, and that the processes of a rank have connections in the network of the gang only.
fn assert_trained_over_gang0(report: &Value, rank: u32) {
    let losses = [0_usize, 1].map(|n| report["losses"][n].as_f64().unwrap());
    assert!(losses[1] < losses[0] / 10.0, "{report}");
    assert_eq!(report["interface"], "gang0", "{report}");
    let address = |rank: u32| format!("100.124.0.{}", rank + 1);
    let (own, other) = (address(rank), address(1 - rank));
    let mut expected = [[&own, &own], [&own, &other]];
    expected.sort();
    assert_eq!(report["connections"], json!(expected), "{report}");
}

/// Runs only if `BERTH_TEST_TORCH` names a Python with PyTorch that jobs can read.
#[tokio::test(flavor = "multi_thread")]
async fn torchrun_on_two_nodes_trains_the_model_of_one_process() {
    let Ok(python) = std::env::var("BERTH_TEST_TORCH") else {
        left_out("BERTH_TEST_TORCH names no Python with PyTorch");
        return;
    };
    let Some(cluster) = NamespacedCluster::open(60).await else { return };
    if !cluster.has_gang_networks() {
        return;
    }
    // PyTorch 1.13 with Python 3.11 takes its own default of the last two options for no value. No node has a process 9.
    let script = format!(
        "export OMP_NUM_THREADS=1
        exec {python} -m torch.distributed.run --nnodes=$NNODES --node_rank=$NODE_RANK \
        --nproc_per_node=$NPROC_PER_NODE --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT \
        --monitor_interval=1 --redirects=9:1 --tee=9:1 train.py $WORLD_SIZE"
    );
    let spec = json!({
        "offering": "h100-80gb", "nodes": 2, "count": 2, "max_duration_s": 300,
        "script": script, "files": {"train.py": TRAIN},
    });
    let job = cluster.submit(&cluster.ada, spec);
    let done = cluster.until_ended_within(LIMIT, &cluster.ada, &job);
    let logs = [0, 1].map(|rank| cluster.log(&job, rank, 0)).join("\n");
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(1)), "{done}\n{logs}");

    let (mut processes, mut weights) = (Vec::new(), BTreeSet::new());
    for rank in 0..2 {
        for report in reports(&cluster, &job, rank) {
            assert_trained_over_gang0(&report, rank);
            processes.push(report["process"].as_u64().unwrap());
            weights.insert(report["weights"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(processes, [0, 1, 2, 3]);
    assert_eq!(weights.len(), 1, "all processes have the same weights");
    let report = &reports(&cluster, &job, 0)[0];
    let difference = report["difference"].as_f64().unwrap();
    assert!(difference < 1e-6, "one process with the whole batch has the same weights: {report}");
    cluster.close().await;
}
