//! The throughput between two nodes by RDMA, measured by `ib_write_bw` of perftest on all ports at the same time.

use std::io::{self, PipeReader, Read};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use berth_system::listeners::{LOOPBACKS, has_listener};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use super::stream::left_until;
use crate::programs::find_program;

/// The program of perftest.
const PROGRAM: &str = "ib_write_bw";
/// The most ports of a node that are measured.
pub const MOST_PORTS: usize = 64;
/// The TCP port of the check on a node. The users of jobs cannot listen below 1,024, and clients of NFS and of RPC take
/// ports from 512 on.
pub(super) const MEETING_PORT: u16 = 288;
/// The TCP port of the measurement of the first port. Each further port has the next one.
const FIRST_TCP_PORT: u16 = 289;
/// The bytes of a message.
const MESSAGE_BYTES: u64 = 65_536;
/// The bytes in a two-hundredth of a second at one megabit a second: the length of a measurement. A link with a hundredth
/// of its rate has half a second.
const BYTES_PER_MBPS: u64 = 625;
/// The fewest messages of a measurement, also at an unknown rate, and the most.
const FEWEST_MESSAGES: u64 = 100;
const MOST_MESSAGES: u64 = 50_000;
/// The longest wait until the servers listen, and the time between two looks. The kernel has no signal for it.
const LISTEN_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The longest run of the programs of one direction, and the time of a pass that is left for the words after it.
const RUN_WITHIN: Duration = Duration::from_secs(10);
const WORDS_WITHIN: Duration = Duration::from_secs(1);
/// The most bytes of the output of a program.
const MOST_OUTPUT_BYTES: usize = 16 << 10;
/// The most characters of its error, and the most lines.
const MOST_ERROR_CHARS: usize = 200;
const MOST_ERROR_LINES: usize = 3;

/// The RDMA ports of a rank, and the nodes of all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPlan {
    /// The path of `ib_write_bw`.
    pub program: PathBuf,
    /// The ports, each of which is measured with the port of the same name of the other node.
    pub ports: Vec<CheckedPort>,
    /// The addresses of the nodes, by rank.
    pub addresses: Vec<Ipv4Addr>,
}

/// A port of an RDMA device of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedPort {
    /// Such as `mlx5_0`.
    pub device: String,
    /// From 1.
    pub number: u32,
    /// In megabits a second; 0 if unknown.
    pub rate_mbps: u64,
    /// The index of its address for RoCE. `None`: the choice of the program.
    pub gid_index: Option<u32>,
}

/// The offer of a rank for a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    /// The messages for each port.
    messages: u64,
    /// The devices with the numbers of their ports.
    ports: Vec<(String, u32)>,
}

/// A measurement to which both ranks agree.
pub(super) struct Measurement<'a> {
    /// For each port.
    messages: u64,
    ports: Vec<&'a CheckedPort>,
}

/// The measurements with one peer.
pub(super) struct RdmaPair<'a> {
    plan: &'a RdmaPlan,
    peer: Ipv4Addr,
}

/// Finds the program that measures RDMA links.
pub fn find_rdma_program() -> Option<PathBuf> {
    find_program(PROGRAM)
}

impl RdmaPlan {
    pub(super) fn address(&self, rank: u32) -> Ipv4Addr {
        let index = usize::try_from(rank).ok();
        index.and_then(|index| self.addresses.get(index)).copied().unwrap_or(Ipv4Addr::UNSPECIFIED)
    }

    pub(super) fn pair(&self, peer: u32) -> RdmaPair<'_> {
        RdmaPair { plan: self, peer: self.address(peer) }
    }
}

/// A running program, which ends with this value.
struct Running {
    child: Child,
    /// Its output and its errors.
    output: PipeReader,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It can have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Servers for one direction, which end with this value.
pub(super) struct Servers {
    _running: Vec<Running>,
}

/// The arguments of the program for a port. A client has the address of its server.
fn arguments(port: &CheckedPort, tcp_port: u16, messages: u64, server: Option<Ipv4Addr>) -> Vec<String> {
    let mut all = vec![("-d", port.device.clone()), ("-i", port.number.to_string())];
    all.extend(port.gid_index.map(|index| ("-x", index.to_string())));
    all.push(("-p", tcp_port.to_string()));
    all.push(("-s", MESSAGE_BYTES.to_string()));
    all.push(("-n", messages.to_string()));
    let mut texts: Vec<String> = all.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
    // Without it a processor with a variable frequency is an error.
    texts.push("-F".to_owned());
    texts.extend(server.map(|address| address.to_string()));
    texts
}

/// The whole part of the mean throughput in the output of the program: the fourth number of the row of this size. The
/// program calls 2^20 bytes MiB, and older versions call them MB.
fn parse_throughput(output: &str) -> Option<u64> {
    let size = MESSAGE_BYTES.to_string();
    let row = output.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
    let mean = row.filter(|row| row.first() == Some(&size.as_str())).find_map(|row| row.get(3).copied());
    mean?.split('.').next()?.parse().ok()
}

/// The last lines of an output with words, as one short line.
fn last_lines(output: &str) -> String {
    let has_words = |line: &&str| line.contains(char::is_alphabetic);
    let mut lines: Vec<&str> =
        output.lines().map(str::trim).rev().filter(has_words).take(MOST_ERROR_LINES).collect();
    lines.reverse();
    let text = if lines.is_empty() { "it ended without a word".to_owned() } else { lines.join(" ") };
    text.chars().filter(|c| !c.is_control()).take(MOST_ERROR_CHARS).collect()
}

/// Reads the output of a program to its end, at most 16 KiB.
fn read_to_end(output: &mut PipeReader, deadline: Instant) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut part = [0; 4 << 10];
    while bytes.len() < MOST_OUTPUT_BYTES {
        let left =
            left_until(deadline).ok_or_else(|| io::Error::other("the measurement did not end in time"))?;
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut wait = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        if !matches!(poll(&mut wait, timeout), Ok(1)) {
            continue;
        }
        match output.read(&mut part)? {
            0 => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            count => bytes.extend_from_slice(part.get(..count).unwrap_or_default()),
        }
    }
    Err(io::Error::other("the output of the measurement is too long"))
}

impl<'a> RdmaPair<'a> {
    /// The offer of this rank: its ports, and messages for the fastest of them.
    pub(super) fn offer(&self) -> Offer {
        let ports = self.plan.ports.iter().take(MOST_PORTS);
        let rate_mbps = ports.clone().map(|port| port.rate_mbps).max().unwrap_or(0);
        let messages = rate_mbps.saturating_mul(BYTES_PER_MBPS) / MESSAGE_BYTES;
        Offer {
            messages: messages.clamp(FEWEST_MESSAGES, MOST_MESSAGES),
            ports: ports.map(|port| (port.device.clone(), port.number)).collect(),
        }
    }

    /// The measurement after the offers of both ranks. `None`: a rank has no port. Ports of the same name are usually on
    /// the same switch. Nodes without a common name have their ports measured in the order of the names.
    pub(super) fn agree(&self, other: &Offer) -> Option<Measurement<'a>> {
        let own = self.plan.ports.iter().take(MOST_PORTS);
        let is_common = |port: &&CheckedPort| {
            other.ports.iter().any(|(device, number)| *device == port.device && *number == port.number)
        };
        let mut ports: Vec<&CheckedPort> = own.clone().filter(is_common).collect();
        // Both ranks have the same order then.
        ports.sort_by(|one, other| (&one.device, one.number).cmp(&(&other.device, other.number)));
        if ports.is_empty() {
            ports = own.take(other.ports.len()).collect();
        }
        let messages = self.offer().messages.min(other.messages).max(FEWEST_MESSAGES);
        (!ports.is_empty()).then_some(Measurement { messages, ports })
    }

    /// Starts the program for each port.
    fn start(&self, measurement: &Measurement<'_>, server: Option<Ipv4Addr>) -> io::Result<Vec<Running>> {
        let start = |(port, tcp_port)| {
            let (output, errors) = io::pipe()?;
            let child = Command::new(&self.plan.program)
                .args(arguments(port, tcp_port, measurement.messages, server))
                .env_clear()
                .env("LC_ALL", "C")
                .stdin(Stdio::null())
                .stdout(errors.try_clone()?)
                .stderr(errors)
                .spawn()?;
            Ok(Running { child, output })
        };
        measurement.ports.iter().copied().zip(FIRST_TCP_PORT..).map(start).collect()
    }

    /// Starts the servers of one direction, and waits until all listen.
    pub(super) fn serve(&self, measurement: &Measurement<'_>, deadline: Instant) -> io::Result<Servers> {
        let listens = |tcp_port: u16| {
            LOOPBACKS.iter().any(|(_, addresses)| has_listener(&["self".to_owned()], tcp_port, addresses))
        };
        let tcp_ports = || (FIRST_TCP_PORT..).take(measurement.ports.len());
        if tcp_ports().any(listens) {
            let text = format!("a TCP port from {FIRST_TCP_PORT} on, which the measurement needs, is in use");
            return Err(io::Error::other(text));
        }
        let mut running = self.start(measurement, None)?;
        let until = deadline.min(Instant::now() + LISTEN_WITHIN);
        while !tcp_ports().all(listens) {
            for server in &mut running {
                if server.child.try_wait()?.is_some() {
                    let output = read_to_end(&mut server.output, until)?;
                    return Err(io::Error::other(format!("{PROGRAM}: {}", last_lines(&output))));
                }
            }
            let left = left_until(until).ok_or_else(|| io::Error::other("the servers do not listen"))?;
            thread::sleep(LOOK_EVERY.min(left));
        }
        Ok(Servers { _running: running })
    }

    /// Sends to the servers of the peer. Returns the MiB in a second of the slowest port. The peer gets its words before
    /// the deadline.
    pub(super) fn send(&self, measurement: &Measurement<'_>, deadline: Instant) -> io::Result<u64> {
        let deadline =
            deadline.checked_sub(WORDS_WITHIN).unwrap_or(deadline).min(Instant::now() + RUN_WITHIN);
        let mut slowest = u64::MAX;
        for mut client in self.start(measurement, Some(self.peer))? {
            let output = read_to_end(&mut client.output, deadline)?;
            let status = client.child.wait()?;
            let failed = || io::Error::other(format!("{PROGRAM}: {}", last_lines(&output)));
            let measured = parse_throughput(&output).filter(|_| status.success()).ok_or_else(failed)?;
            slowest = slowest.min(measured);
        }
        Ok(slowest)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use berth_test_programs::write_program;

    use super::*;

    /// The output of a client of perftest 4.5 in Debian 12, between two hosts over `rdma_rxe`.
    const OUTPUT: &str =
        "---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : rxe0
 Number of qps   : 1		Transport type : IB
 Mtu             : 1024[B]
 local address: LID 0000 QPN 0x0012 PSN 0x3fd8a5 RKey 0x00053b VAddr 0x007f5ad6b31000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      200              0.00               7.72   		   0.000124
---------------------------------------------------------------------------------------
";

    fn plan_of(program: PathBuf, ports: Vec<CheckedPort>) -> RdmaPlan {
        RdmaPlan { program, ports, addresses: vec![Ipv4Addr::LOCALHOST] }
    }

    fn port(name: &str) -> CheckedPort {
        CheckedPort { device: name.to_owned(), number: 1, rate_mbps: 400_000, gid_index: None }
    }

    #[test]
    fn the_mean_throughput_is_read() {
        assert_eq!(parse_throughput(OUTPUT), Some(7));
        assert_eq!(parse_throughput(&OUTPUT.replace("7.72", "46512.80")), Some(46_512));
        assert_eq!(parse_throughput(&OUTPUT.replace("7.72", "inf")), None);
        assert_eq!(parse_throughput(&OUTPUT.replace(" 65536 ", " 65535 ")), None);
        assert_eq!(parse_throughput(""), None);
        let words =
            last_lines("a\nb\n IB device rxe9 not found\n Unable to find the Infiniband/RoCE device\n---\n");
        assert_eq!(words, "b IB device rxe9 not found Unable to find the Infiniband/RoCE device");
        assert_eq!(last_lines("---\n"), "it ended without a word");
    }

    #[test]
    fn the_program_gets_the_port_and_a_size_after_its_rate() {
        let server = Some(Ipv4Addr::new(192, 0, 2, 7));
        let roce = CheckedPort { gid_index: Some(3), ..port("mlx5_1") };
        let texts = |port: &CheckedPort, server| arguments(port, 943, 500, server).join(" ");
        assert_eq!(texts(&roce, server), "-d mlx5_1 -i 1 -x 3 -p 943 -s 65536 -n 500 -F 192.0.2.7");
        assert_eq!(texts(&port("mlx5_0"), None), "-d mlx5_0 -i 1 -p 943 -s 65536 -n 500 -F");
        for (rates, ports, messages) in [
            (vec![], 0, 100),
            (vec![0], 1, 100),
            (vec![2_500], 1, 100),
            (vec![100_000, 400_000], 2, 3_814),
            (vec![u64::MAX; 65], 64, 50_000),
        ] {
            let with_rate = |rate_mbps| CheckedPort { rate_mbps, ..port("mlx5_0") };
            let plan = plan_of(PathBuf::new(), rates.into_iter().map(with_rate).collect());
            let offer = plan.pair(0).offer();
            assert_eq!((offer.ports.len(), offer.messages), (ports, messages));
        }
    }

    #[test]
    fn ports_of_the_same_name_are_measured_also_beside_a_port_that_is_down() {
        let plan = |names: &[&str]| plan_of(PathBuf::new(), names.iter().copied().map(port).collect());
        let agreed = |own: &[&str], other: &[&str]| {
            let (own, other) = (plan(own), plan(other));
            let measured = own.pair(0).agree(&other.pair(0).offer());
            let names = |all: Measurement<'_>| {
                all.ports.iter().map(|port| port.device.clone()).collect::<Vec<String>>()
            };
            measured.map(names)
        };
        let names =
            |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>());
        let (all, some) = (["mlx5_0", "mlx5_2", "mlx5_10"], ["mlx5_2", "mlx5_10"]);
        assert_eq!(agreed(&all, &some), names(&["mlx5_10", "mlx5_2"]));
        assert_eq!(agreed(&some, &all), agreed(&all, &some), "both ranks have one order");
        assert_eq!(agreed(&all, &["rocep1"]), names(&["mlx5_0"]), "no common name");
        assert_eq!(agreed(&["rocep1"], &all), names(&["rocep1"]));
        assert_eq!(agreed(&all, &[]), None);
        assert_eq!(agreed(&[], &all), None);
    }

    /// A program in place of perftest.
    fn program(dir: &Path, text: &str) -> PathBuf {
        let path = dir.join("program");
        write_program(&path, &format!("#!/bin/sh\n{text}\n")).unwrap();
        path
    }

    #[test]
    fn the_slowest_port_counts_and_each_error_has_its_words() {
        let dir = tempfile::tempdir().unwrap();
        let measure = |text: &str, within: Duration| {
            let plan = plan_of(program(dir.path(), text), vec![port("mlx5_0"), port("mlx5_1")]);
            let pair = plan.pair(0);
            let measurement = pair.agree(&pair.offer()).unwrap();
            pair.send(&measurement, Instant::now() + within).map_err(|error| error.to_string())
        };
        let long = Duration::from_secs(20);
        let rows = "case $2 in mlx5_0) echo '65536 9 0.00 900.5 0';; *) echo '65536 9 0.00 90.5 0';; esac";
        assert_eq!(measure(rows, long), Ok(90));
        let words = measure("echo 'no such device' >&2; exit 1", long);
        assert_eq!(words, Err("ib_write_bw: no such device".to_owned()));
        let failed = measure("echo '65536 9 0.00 900.5 0'; exit 1", long);
        assert!(failed.is_err(), "a row of a run that failed");
        assert_eq!(
            measure("exec sleep 600", Duration::from_millis(1_200)),
            Err("the measurement did not end in time".to_owned())
        );
        let endless = measure("exec yes", long);
        assert_eq!(endless, Err("the output of the measurement is too long".to_owned()));
    }

    #[test]
    fn a_server_that_ends_or_does_not_listen_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let serve = |text: &str, within: Duration| {
            let plan = plan_of(program(dir.path(), text), vec![port("mlx5_0")]);
            let pair = plan.pair(0);
            let measurement = pair.agree(&pair.offer()).unwrap();
            let served = pair.serve(&measurement, Instant::now() + within);
            served.map(|_| ()).map_err(|error| error.to_string())
        };
        let ended = serve("echo 'Failed to create CQ'; exit 1", Duration::from_secs(20));
        assert_eq!(ended, Err("ib_write_bw: Failed to create CQ".to_owned()));
        let silent = serve("exec sleep 600", Duration::from_millis(200));
        assert_eq!(silent, Err("the servers do not listen".to_owned()));
    }
}
