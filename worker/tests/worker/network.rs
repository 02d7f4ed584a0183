//! Jobs with networks of their own. A network namespace stands for the host and another one for the internet, so the
//! network of this machine stays as it is.

use std::collections::HashSet;
use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use berth_network::{Egress, GangNetworkKind, JobNetwork, JobNetworkKind, NetworkArgs, parse_subnet};
use nix::sched::{CloneFlags, setns};
use nix::unistd::geteuid;

use crate::left_out::left_out;
use crate::stage::{Script, Stage};

/// Set in the process that is inside of the namespace for the host.
const INSIDE: &str = "BERTH_TEST_NETWORK";
const NAMESPACES: &str = "/run/netns";
/// The addresses of the internet, of the host, of servers in private networks, of a resolver and of metadata.
const WORLD: &str = "198.51.100.1";
const HOST: &str = "198.51.100.2";
const PRIVATE: &str = "10.9.9.9";
const STATED: &str = "10.7.7.7";
const RESOLVER: &str = "10.9.9.53";
const METADATA: &str = "169.254.169.254";
/// The ports of servers on the host and in a job.
const HOST_PORT: u16 = 8_001;
const JOB_PORT: u16 = 7_000;
const PATIENCE: Duration = Duration::from_secs(2);

/// True inside of the namespace for the host. Otherwise this runs the test again inside of one.
fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !geteuid().is_root() {
        left_out("only root makes network namespaces");
        return false;
    }
    let probe = Command::new("unshare").args(["--net", "--mount", "nft", "list", "tables"]).output();
    if !probe.as_ref().is_ok_and(|out| out.status.success()) {
        left_out(format!("no network namespace with nftables on this machine: {probe:?}"));
        return false;
    }
    let setup = "mkdir -p /run/netns && mount -t tmpfs none /run/netns && exec \"$@\"";
    let out = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-ec", setup, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
    for line in text.lines().filter(|line| line.starts_with("left out")) {
        left_out(line);
    }
    false
}

/// Runs `ip` with these arguments.
fn ip(arguments: &str) -> String {
    let out = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(out.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Runs `work` in a namespace. Sockets that it opens stay there.
fn within<T: Send>(namespace: &Path, work: impl FnOnce() -> T + Send) -> T {
    let file = File::open(namespace).unwrap();
    std::thread::scope(|scope| {
        let there = scope.spawn(move || {
            // The change applies to this thread only, which ends with the work.
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn internet<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    within(&Path::new(NAMESPACES).join("internet"), work)
}

/// Accepts connections until the test ends.
fn serve(listener: TcpListener) {
    std::thread::spawn(move || listener.incoming().for_each(drop));
}

/// Connects the host to an internet with servers.
fn build_world() {
    for line in [
        "link set lo up",
        "netns add internet",
        "link add uplink mtu 1450 type veth peer name eth0 netns internet",
        "addr add 198.51.100.2/24 dev uplink",
        "link set uplink up",
        "-n internet link set lo up",
        "-n internet addr add 198.51.100.1/24 dev eth0",
        "-n internet link set eth0 up",
        "route add default via 198.51.100.1",
    ] {
        ip(line);
    }
    for address in [PRIVATE, STATED, RESOLVER, METADATA] {
        ip(&format!("-n internet addr add {address}/32 dev lo"));
    }
    for port in [53, 80] {
        serve(internet(move || TcpListener::bind(("0.0.0.0", port)).unwrap()));
    }
    let names = internet(|| UdpSocket::bind((RESOLVER, 53)).unwrap());
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, from)) = names.recv_from(&mut buffer) {
            // A late answer has no reader.
            let _ = names.send_to(&buffer[..length], from);
        }
    });
    for address in [WORLD, PRIVATE, STATED, METADATA] {
        assert!(is_open(address, 80), "the host itself reaches {address}");
    }
}

fn is_open(address: &str, port: u16) -> bool {
    let address = SocketAddr::new(address.parse::<IpAddr>().unwrap(), port);
    TcpStream::connect_timeout(&address, PATIENCE).is_ok()
}

fn open_network(stage: &Stage) -> JobNetwork {
    let args = NetworkArgs {
        job_network: Some(JobNetworkKind::Own),
        job_subnet: parse_subnet("100.125.0.0/24").unwrap(),
        job_resolver: vec![RESOLVER.parse().unwrap()],
        job_reach: vec!["10.7.7.0/24".parse().unwrap()],
        // A machine without tunnels has no networks between ranks; these tests need none.
        gang_network: (!Path::new("/dev/net/tun").exists()).then_some(GangNetworkKind::Host),
        gang_port: 51_821,
    };
    let program = Path::new(env!("CARGO_BIN_EXE_berth-worker"));
    JobNetwork::open(&args, (stage.root.path(), program), stage.sandbox.has_users()).unwrap()
}

/// A stage whose jobs have networks of their own.
fn stage() -> Option<Stage> {
    let mut stage = Stage::sandboxed()?;
    build_world();
    stage.network = Some(open_network(&stage));
    Some(stage)
}

/// Removes the networks of these attempts and the rules, and shows that nothing is left.
fn remove_all(stage: &Stage, attempts: &[&str]) {
    let network = stage.network.as_ref().unwrap();
    for attempt in attempts {
        network.close();
        assert!(!tables().is_empty(), "the rules stay for {attempt}");
        network.remove(attempt).unwrap();
        network.remove(attempt).unwrap();
    }
    network.close();
    assert_eq!(tables(), "");
    let links = ip("-o link");
    assert!(!links.contains("berth-"), "{links}");
    let left: Vec<_> = std::fs::read_dir(NAMESPACES).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["internet"]);
}

fn tables() -> String {
    let out = Command::new("nft").args(["list", "tables"]).output().unwrap();
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// Prints the number of open ports of an address, or the state of one port.
const PROBE: &str = r#"
import select, socket, sys, time
def scan(name, address):
    waiting, found, poll = {}, 0, select.poll()
    for port in range(7800, 8200):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex((address, port))
        waiting[s.fileno()] = s
        poll.register(s, select.POLLOUT)
    end = time.monotonic() + 2
    while waiting and time.monotonic() < end:
        for fd, _ in poll.poll(200):
            poll.unregister(fd)
            try:
                waiting.pop(fd).getpeername()
                found += 1
            except OSError:
                pass
    print(name, found)
def tcp(name, address, port=80, family=socket.AF_INET):
    s = socket.socket(family)
    s.settimeout(2)
    try:
        s.connect(address if family == socket.AF_UNIX else (address, port))
        print(name, "open")
    except OSError:
        print(name, "closed")
def udp(name, address, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(2)
    try:
        s.sendto(b"q", (address, port))
        print(name, "answers" if s.recv(9) == b"q" else "other")
    except OSError:
        print(name, "silent")
def gateway():
    routes = [line.split() for line in open("/proc/net/route")]
    number = next(fields[2] for fields in routes if fields[1] == "00000000")
    return socket.inet_ntoa(bytes.fromhex(number)[::-1])
def own():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("198.51.100.1", 9))
    return s.getsockname()[0]
"#;

fn python(lines: &str) -> String {
    format!("exec python3 -u - <<'END'\n{PROBE}\n{lines}\nEND")
}

#[test]
fn a_job_reaches_the_internet_and_nothing_else() {
    if !inside("network::a_job_reaches_the_internet_and_nothing_else") {
        return;
    }
    let Some(stage) = stage() else { return };
    serve(TcpListener::bind(("0.0.0.0", HOST_PORT)).unwrap());
    let abstract_name = "berth-network-test";
    let abstract_socket =
        UnixListener::bind_addr(&UnixAddress::from_abstract_name(abstract_name).unwrap()).unwrap();
    let text = python(&format!(
        "s = socket.create_server(('0.0.0.0', {JOB_PORT}))\nprint('at', own(), 'up')\ntime.sleep(1000)"
    ));
    let neighbour = stage.start("neighbour", &Script { text: &text, ..Script::default() });
    neighbour.until("up");
    let log = neighbour.log();
    let other = log.split_whitespace().nth(1).unwrap();
    assert!(other.starts_with("100.125.0."), "{log}");
    assert!(!is_open(other, JOB_PORT), "the host itself is no way into a job");

    let lines = format!(
        "scan('host', '{HOST}')\nscan('gateway', gateway())\nscan('loopback', '127.0.0.1')\n\
         tcp('world', '{WORLD}')\ntcp('stated', '{STATED}')\ntcp('private', '{PRIVATE}')\n\
         tcp('metadata', '{METADATA}')\ntcp('neighbour', '{other}', {JOB_PORT})\n\
         tcp('resolver', '{RESOLVER}')\nudp('names', '{RESOLVER}', 53)\ntcp('long-names', '{RESOLVER}', 53)\n\
         tcp('abstract', '\\0{abstract_name}', family=socket.AF_UNIX)\n\
         print(open('/etc/resolv.conf').readline())"
    );
    let (exit, log) = stage.script("curious", &python(&lines));
    assert_eq!(exit.code, 0, "{log}");
    for line in [
        "host 0",
        "gateway 0",
        "loopback 0",
        "world open",
        "stated open",
        "private closed",
        "metadata closed",
        "neighbour closed",
        "resolver closed",
        "names answers",
        "long-names open",
        "abstract closed",
        "nameserver 10.9.9.53",
    ] {
        assert!(log.lines().any(|l| l == line), "{line}: {log}");
    }
    // The same scan finds the server from the host.
    let shared = python(&format!(
        "scan('host', '{HOST}')\ntcp('abstract', '\\0{abstract_name}', family=socket.AF_UNIX)"
    ));
    let out = Command::new("sh").args(["-c", &shared]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "host 1\nabstract open\n");
    drop(abstract_socket);
    neighbour.stop();
    remove_all(&stage, &["neighbour", "curious"]);
}

#[test]
fn a_packet_with_the_address_of_another_is_dropped() {
    if !inside("network::a_packet_with_the_address_of_another_is_dropped") {
        return;
    }
    let Some(stage) = stage() else { return };
    let network = stage.network.as_ref().unwrap();
    let namespace = network.create("forger").unwrap().unwrap();
    let server = internet(|| UdpSocket::bind((WORLD, 9_000)).unwrap());
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    within(&namespace.path, || {
        ip("addr add 198.51.100.77/32 dev eth0");
        let forged = UdpSocket::bind("198.51.100.77:0").unwrap();
        forged.send_to(b"forged", (WORLD, 9_000)).unwrap();
        ip("addr del 198.51.100.77/32 dev eth0");
        UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"honest", (WORLD, 9_000)).unwrap();
    });
    let mut buffer = [0; 16];
    let (length, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from.ip().to_string().as_str()), (&b"honest"[..], HOST));
    remove_all(&stage, &["forger"]);
}

#[test]
fn rules_that_another_program_removed_are_written_again() {
    if !inside("network::rules_that_another_program_removed_are_written_again") {
        return;
    }
    let Some(stage) = stage() else { return };
    let network = stage.network.as_ref().unwrap();
    // As a restart of the host's firewall does; this process is in a namespace of its own.
    let flush = || assert!(Command::new("nft").args(["flush", "ruleset"]).status().unwrap().success());
    let written = tables();
    assert!(written.starts_with("table inet berth_"), "{written}");
    assert_eq!(network.restore_rules(), Ok(false));
    flush();
    assert_eq!((tables().as_str(), network.restore_rules()), ("", Ok(true)));
    assert_eq!(tables(), written);
    flush();
    network.create("late").unwrap().unwrap();
    assert_eq!(tables(), written, "no attempt has a network without rules");
    remove_all(&stage, &["late"]);
}

#[test]
fn a_network_outlives_its_daemon_and_goes_with_its_attempt() {
    if !inside("network::a_network_outlives_its_daemon_and_goes_with_its_attempt") {
        return;
    }
    let Some(mut stage) = stage() else { return };
    let text = python(&format!(
        "import os\nprint('up')\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\ntcp('world', '{WORLD}')"
    ));
    let kept = stage.start("kept", &Script { text: &text, ..Script::default() });
    kept.until("up");
    stage.network.as_ref().unwrap().create("unknown").unwrap().unwrap();
    // A killed daemon removes nothing.
    drop(stage.network.take());
    let network = open_network(&stage);
    network.sweep(&HashSet::from(["kept".to_owned()]));
    let names: Vec<String> = std::fs::read_dir(NAMESPACES)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "internet")
        .collect();
    assert!(matches!(&names[..], [name] if name.ends_with("-kept")), "{names:?}");
    std::fs::write(kept.dir.join("work/go"), "").unwrap();
    let (exit, log) = kept.ended();
    assert_eq!((exit.code, log.as_str()), (0, "up\nworld open\n"));
    stage.network = Some(network);
    remove_all(&stage, &["kept"]);
}

/// The policy with these ranges.
fn policy(internet: bool, ranges: &[&str]) -> Egress {
    let ranges: Vec<String> = ranges.iter().map(|range| (*range).to_owned()).collect();
    Egress::parse(internet, &ranges).unwrap()
}

/// The lines that a job with this policy prints about the addresses.
fn reached(stage: &Stage, name: &str, egress: Egress) -> Vec<String> {
    let lines = format!(
        "tcp('world', '{WORLD}')\ntcp('stated', '{STATED}')\ntcp('private', '{PRIVATE}')\n\
         tcp('metadata', '{METADATA}')\ntcp('host', '{HOST}', {HOST_PORT})\nudp('names', '{RESOLVER}', 53)"
    );
    let running = stage.start(name, &Script { text: &python(&lines), egress, ..Script::default() });
    let (exit, log) = running.ended();
    assert_eq!(exit.code, 0, "{log}");
    log.lines().map(str::to_owned).collect()
}

fn rules_of_attempts() -> bool {
    let out = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    String::from_utf8_lossy(&out.stdout).contains("chain place_")
}

#[test]
fn an_attempt_reaches_what_its_policy_opens() {
    if !inside("network::an_attempt_reaches_what_its_policy_opens") {
        return;
    }
    let Some(stage) = stage() else { return };
    serve(TcpListener::bind(("0.0.0.0", HOST_PORT)).unwrap());
    let closed =
        ["world closed", "stated closed", "private closed", "metadata closed", "host closed", "names silent"];
    assert_eq!(reached(&stage, "none", policy(false, &[])), closed);
    let named =
        ["world closed", "stated closed", "private open", "metadata closed", "host closed", "names silent"];
    // A range with the host and with the metadata of clouds opens neither.
    let ranges = ["10.9.9.8/29", "169.254.0.0/16", "198.51.100.2/32"];
    assert_eq!(reached(&stage, "named", policy(false, &ranges)), named);
    let both =
        ["world open", "stated open", "private open", "metadata closed", "host closed", "names answers"];
    assert_eq!(reached(&stage, "both", policy(true, &ranges)), both);
    let default =
        ["world open", "stated open", "private closed", "metadata closed", "host closed", "names answers"];
    assert_eq!(reached(&stage, "default", Egress::INTERNET), default);
    let network = stage.network.as_ref().unwrap();
    assert!(rules_of_attempts());
    for attempt in ["none", "named", "both"] {
        network.remove(attempt).unwrap();
    }
    assert!(!rules_of_attempts(), "the rules go with their networks");
    assert_eq!(std::fs::read_dir(stage.root.path().join("egress")).unwrap().count(), 0);
    remove_all(&stage, &["default"]);
}

#[test]
fn a_policy_outlives_its_daemon_and_a_removal_of_all_rules() {
    if !inside("network::a_policy_outlives_its_daemon_and_a_removal_of_all_rules") {
        return;
    }
    let Some(mut stage) = stage() else { return };
    let text = python(&format!(
        "import os\nprint('up')\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n\
         tcp('world', '{WORLD}')\ntcp('private', '{PRIVATE}')"
    ));
    let egress = policy(false, &["10.9.9.8/29"]);
    let kept = stage.start("kept", &Script { text: &text, egress, ..Script::default() });
    kept.until("up");
    // A killed daemon removes nothing. The next one replaces the table.
    drop(stage.network.take());
    let network = open_network(&stage);
    assert!(rules_of_attempts(), "the new table has the rules of the attempt");
    assert!(Command::new("nft").args(["flush", "ruleset"]).status().unwrap().success());
    assert_eq!(network.restore_rules(), Ok(true));
    std::fs::write(kept.dir.join("work/go"), "").unwrap();
    let (exit, log) = kept.ended();
    assert_eq!((exit.code, log.as_str()), (0, "up\nworld closed\nprivate open\n"));
    // The rules can be gone at the end of the attempt too.
    assert!(Command::new("nft").args(["flush", "ruleset"]).status().unwrap().success());
    network.remove("kept").unwrap();
    assert_eq!(network.restore_rules(), Ok(true));
    assert!(!rules_of_attempts());
    stage.network = Some(network);
    remove_all(&stage, &[]);
}
