//! Tests of the network between the ranks of a job on two nodes, with real packets.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::common::left_out::left_out;
use crate::namespaced::{NamespacedCluster, WORKERS, serve};
use crate::process::eventually;
use berth_store as store;
use serde_json::json;

/// The text that the ranks send to each other.
const MARK: &str = "the-text-that-nobody-may-read";

/// Counts packets on the cable of the first node: all, those with the text, and those to the ports of gangs. It prints
/// `ready` first and the counts at the end of its input.
const CAPTURE: &str = r#"
import select, socket, struct, sys
mark = sys.argv[1].encode()
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(("cable0", 0))
wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
print("ready", flush=True)
plain = gang = total = 0
while True:
    ready, _, _ = select.select([wire, sys.stdin], [], [])
    if wire in ready:
        packet = wire.recv(1 << 16)
        total += 1
        plain += mark in packet
        if packet[12:14] == b"\x08\x00" and packet[23] == 17:
            start = 14 + 4 * (packet[14] & 15)
            port = struct.unpack("!H", packet[start + 2:start + 4])[0]
            gang += 51821 <= port <= 52844
    elif sys.stdin in ready:
        break
print(total, plain, gang, flush=True)
"#;

/// Two ranks that send the text a hundred times, and know each other by name.
const TALK: &str = r#"
import os, socket, time
rank, port = int(os.environ["NODE_RANK"]), int(os.environ["MASTER_PORT"])
names = sorted(name for _, name in socket.if_nameindex())
print(os.environ["MASTER_ADDR"], os.environ["NCCL_SOCKET_IFNAME"], socket.gethostbyname(socket.gethostname()), names, port, flush=True)
if rank == 0:
    server = socket.create_server((os.environ["MASTER_ADDR"], port))
    peer = server.accept()[0]
    lines = peer.makefile("rw")
    for line in lines:
        lines.write(line)
        lines.flush()
    print("rank 0 is done", flush=True)
else:
    for _ in range(400):
        try:
            lines = socket.create_connection(("rank-0", port)).makefile("rw")
            break
        except OSError:
            time.sleep(0.05)
    for n in range(100):
        lines.write(f"MARK {n}\n")
        lines.flush()
        assert lines.readline() == f"MARK {n}\n"
        time.sleep(0.05)
    print("rank 1 is done", flush=True)
"#;

/// Another organization's job, which tries each address and port of the ranks, and of the nodes.
const INTRUDE: &str = r#"
import socket
found = []
for address in ["100.124.0.1", "100.124.0.2", "10.213.0.10", "10.213.0.11"]:
    for port in [PORT, 22, 8081, 51821, 51822]:
        s = socket.socket()
        s.settimeout(0.2)
        if s.connect_ex((address, port)) == 0:
            found.append((address, port))
        s.close()
print("open", found, flush=True)
"#;

/// A capture on the bridge between the nodes.
struct Capture {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Capture {
    fn start(cluster: &NamespacedCluster) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", CAPTURE, MARK]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = cluster.net.inside("hub", move || command.spawn().unwrap());
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { process, output }
    }

    /// The numbers of all packets, of those with the text, and of those to the ports of gangs.
    fn end(mut self) -> [u64; 3] {
        drop(self.process.stdin.take());
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        self.process.wait().unwrap();
        let counts: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
        counts.try_into().unwrap()
    }
}

/// Sends the text once from one node to the other, as ranks on the host's network would.
fn send_in_plain(cluster: &NamespacedCluster) {
    cluster.net.inside("0", || {
        let socket = std::net::UdpSocket::bind("10.213.0.10:0").unwrap();
        socket.send_to(MARK.as_bytes(), "10.213.0.11:9").unwrap();
    });
}

/// The tunnels of gangs that run in a place.
fn tunnels(cluster: &NamespacedCluster, place: usize) -> usize {
    cluster.net.processes(&place.to_string()).iter().filter(|command| command.contains("\0tunnel\0")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_share_an_encrypted_network_that_outlives_kills_and_that_nobody_else_enters() {
    let Some(mut cluster) = NamespacedCluster::open(60).await else { return };
    if !cluster.has_gang_networks() {
        return;
    }
    let capture = Capture::start(&cluster);
    let program = TALK.replace("MARK", MARK);
    let spec = json!({"offering": "h100-80gb", "nodes": 2, "command": ["python3", "talk.py"], "files": {"talk.py": program}});
    let gang = cluster.submit(&cluster.ada, spec);
    cluster.until(&cluster.ada, &gang, |j| j["state"] == "running");
    let mut port = String::new();
    for rank in 0..2 {
        let first = format!("100.124.0.1 gang0 100.124.0.{} ['eth0', 'gang0', 'lo'] ", rank + 1);
        let log = cluster.log(&gang, rank, first.len() + 6);
        let line = log.lines().next().unwrap();
        port = line.strip_prefix(&first).unwrap_or_else(|| panic!("{log}")).to_owned();
    }
    let intruder = INTRUDE.replace("PORT", &port);
    let spec = json!({"command": ["python3", "intrude.py"], "files": {"intrude.py": intruder}});
    let intruder = cluster.submit(&cluster.bob, spec);

    for n in 0..WORKERS {
        cluster.workers[n].0.kill().unwrap();
        cluster.workers[n].0.wait().unwrap();
        let worker = cluster.worker(n);
        cluster.workers[n] = worker;
        cluster.served.kill();
        cluster.served = serve(&cluster.net, &cluster.dir, cluster.lease_s);
    }
    let done = cluster.until_ended(&cluster.ada, &gang);
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(1)), "{done}");
    for rank in 0..2 {
        let last = format!("rank {rank} is done\n");
        let log = eventually(|| {
            let log = cluster.log(&gang, rank, 1);
            if log.ends_with(&last) { Ok(log) } else { Err(log) }
        });
        assert!(!log.contains("Error"), "{log}");
    }
    let done = cluster.until_ended(&cluster.bob, &intruder);
    assert_eq!(done["state"], "succeeded", "{done}");
    assert_eq!(cluster.log(&intruder, 0, "open []\n".len()), "open []\n");

    let [total, plain, packets] = capture.end();
    assert_eq!(plain, 0, "of {total} packets, none has the text in plain");
    let capture = Capture::start(&cluster);
    send_in_plain(&cluster);
    let [_, plain, _] = capture.end();
    assert!(plain > 0, "the capture sees a text in plain");
    assert!(packets >= 200, "{packets} of {total} packets are of the gang");
    eventually(|| match (tunnels(&cluster, 0), tunnels(&cluster, 1)) {
        (0, 0) => Ok(()),
        left => Err(format!("{left:?} tunnels are left")),
    });
    let db = cluster.settle().await;
    let mut conn = db.read().await.unwrap();
    let kept = store::gangs::find(&mut conn.tx(), gang.parse().unwrap(), 1).await.unwrap();
    assert_eq!(kept, None, "the keys go with the last rank");
}

/// Limits the packets from the hub to a place. `false`: this machine cannot.
fn slow_down(cluster: &NamespacedCluster, place: usize) -> bool {
    let rule = format!("qdisc add dev cable{place} root tbf rate 10mbit burst 32kbit latency 400ms");
    let done = cluster.net.inside("hub", || {
        Command::new("tc")
            .args(rule.split_whitespace())
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .stderr(Stdio::null())
            .status()
    });
    done.is_ok_and(|status| status.success())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_link_is_found_before_the_start_and_is_not_charged() {
    let Some(cluster) = NamespacedCluster::open(60).await else { return };
    if !cluster.has_gang_networks() {
        return;
    }
    let spec = json!({"offering": "h100-80gb", "nodes": 2, "command": ["true"]});
    for _ in 0..3 {
        let gang = cluster.submit(&cluster.ada, spec.clone());
        let done = cluster.until_ended(&cluster.ada, &gang);
        assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(1)), "{done}");
    }
    assert!(cluster.nodes().iter().all(|node| node["set_aside"].is_null()), "{:?}", cluster.nodes());
    if !slow_down(&cluster, 0) {
        left_out("tc cannot limit a cable on this machine");
        return;
    }
    let gang = cluster.submit(&cluster.ada, spec);
    let tried = cluster.until(&cluster.ada, &gang, |j| j["retries"] == 1);
    assert_eq!((&tried["state"], &tried["cost_micros"]), (&json!("queued"), &json!(0)), "{tried}");
    for node in cluster.nodes() {
        let reason = node["set_aside"]["reason"].as_str().unwrap_or_else(|| panic!("{node}"));
        assert!(reason.contains("place-0") && reason.contains("place-1"), "{reason}");
        assert!(reason.ends_with(" are expected."), "{reason}");
    }
    cluster.cancel(&cluster.ada, &gang);
    cluster.until_ended(&cluster.ada, &gang);
    cluster.close().await;
}
