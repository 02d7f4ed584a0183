//! The check of the network of a gang, or of the RDMA links between its nodes, before the program of any rank starts.
//!
//! A process of its own, in the namespace of the rank or for RDMA in that of the host, connects to other ranks, measures
//! each pair, writes the result and ends. So no port stays open, and the daemon stays in the network of the host.

mod all_reduce;
mod meeting;
mod pair;
mod rdma;
mod schedule;
mod stream;
mod verdict;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use berth_system::processes::close_inherited;
use berth_types::gangs::rank_address;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

pub use rdma::{CheckedPort, MOST_PORTS, RdmaPlan, find_rdma_program};

/// The command of the worker for this process.
pub const PREFLIGHT_COMMAND: &str = "preflight";
/// The length of the token that the ranks of a gang share.
pub const TOKEN_BYTES: usize = 32;
/// The most ranks of a gang.
const MOST_RANKS: u32 = 64;
/// The port of the check. The users of jobs cannot listen below 1,024, so nothing of a job collides with it.
const PORT: u16 = 941;
/// The longest wait for the connections of all pairs. A busy node can begin its rank much later than another.
const MEET_WITHIN: Duration = Duration::from_secs(45);
/// The longest check of the network of a gang, and of RDMA links.
const CHECK_WITHIN: Duration = Duration::from_secs(110);
const CHECK_RDMA_WITHIN: Duration = Duration::from_secs(170);
/// The time of the check after the last pair.
const VERDICTS_WITHIN: Duration = Duration::from_secs(10);
/// The time after the longest check until the daemon ends the process.
const ENDED_AFTER: Duration = Duration::from_secs(5);
/// The time between two questions of the daemon, whether the attempt is still wanted.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// The most bytes of the plan, and of the result.
const MOST_TEXT_BYTES: u64 = 32 << 10;

/// The check from one rank.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preflight {
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    pub token: [u8; TOKEN_BYTES],
    /// The least throughput of the link to each rank in MiB a second, by rank.
    pub minima: Vec<u64>,
    /// The RDMA ports to measure. Absent: TCP in the network of the gang is measured.
    pub rdma: Option<RdmaPlan>,
}

/// The figures of a pair of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFigures {
    /// The median of the round trips over TCP in microseconds.
    pub rtt_us: u64,
    /// The throughput of the slower direction in MiB a second. With RDMA that of the slowest port, with all at work.
    pub mib_per_s: u64,
}

/// The link to another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub peer: u32,
    /// `None`: the two ranks did not connect, or lost their connection.
    pub figures: Option<LinkFigures>,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// The links of this rank. Links that were not measured for an absent rank are left out.
    pub links: Vec<Link>,
    /// True if no rank has a bad link.
    pub all_good: bool,
    /// The first error of a measurement by RDMA.
    pub fault: Option<String>,
}

/// The token must not reach a log.
impl fmt::Debug for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Preflight({} of {})", self.rank, self.ranks)
    }
}

impl Preflight {
    /// True for a link that suffices.
    pub fn accepts(&self, link: &Link) -> bool {
        link.figures.is_some_and(|figures| figures.mib_per_s >= self.minimum(link.peer))
    }

    /// The least throughput of the link to a rank in MiB a second.
    pub fn minimum(&self, peer: u32) -> u64 {
        let index = usize::try_from(peer).ok();
        index.and_then(|index| self.minima.get(index)).copied().unwrap_or(0)
    }

    fn parse(line: &str) -> Option<Self> {
        let plan: Self = serde_json::from_str(line).ok()?;
        let is_complete = |count: usize| u32::try_from(count) == Ok(plan.ranks);
        let has_addresses = plan.rdma.as_ref().is_none_or(|rdma| is_complete(rdma.addresses.len()));
        let is_valid = plan.rank < plan.ranks && plan.ranks <= MOST_RANKS && is_complete(plan.minima.len());
        (is_valid && has_addresses).then_some(plan)
    }

    /// The address of a rank for the check. The own one is the address on which this rank listens.
    fn address(&self, rank: u32) -> SocketAddr {
        let address = match &self.rdma {
            None => rank_address(rank),
            // The address of a node may be one that a router translates.
            Some(_) if rank == self.rank => Ipv4Addr::UNSPECIFIED,
            Some(rdma) => rdma.address(rank),
        };
        SocketAddr::new(IpAddr::V4(address), if self.rdma.is_some() { rdma::MEETING_PORT } else { PORT })
    }

    /// The longest check.
    const fn check_within(&self) -> Duration {
        if self.rdma.is_some() { CHECK_RDMA_WITHIN } else { CHECK_WITHIN }
    }
}

/// The error of a measurement in words.
fn fault_text(error: &io::Error) -> String {
    match error.kind() {
        // A read or a write has one of them after its deadline.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "the other rank gave no answer in time".to_owned()
        }
        _ => error.to_string(),
    }
}

impl Checked {
    fn parse(text: &str) -> Option<Self> {
        let checked: Self = serde_json::from_str(text).ok()?;
        Some(checked).filter(|checked| !checked.all_good || !checked.links.is_empty())
    }
}

/// Meets the other ranks, measures each pair, sums words of all ranks, and agrees on a verdict.
fn check(
    plan: &Preflight,
    address: &(dyn Fn(u32) -> SocketAddr + Sync),
    meet_within: Duration,
) -> io::Result<Checked> {
    let began = Instant::now();
    let peers = schedule::peers_in_order(plan.rank, plan.ranks);
    let mut met = meeting::meet(plan, &peers, address, began + meet_within)?;
    let deadline = began + plan.check_within();
    let rounds = schedule::exchanges(plan.ranks);
    // A rank that waits for an absent one measures nothing until its time ends, so nobody measures without all ranks.
    let is_complete = met.len() == peers.len();
    if !verdict::exchange(&mut met, is_complete, rounds, deadline) {
        let absent = peers.into_iter().filter(|peer| !met.contains_key(peer));
        let links = absent.map(|peer| Link { peer, figures: None }).collect();
        return Ok(Checked { links, all_good: false, fault: None });
    }
    let begun = Instant::now();
    let slot = deadline.saturating_duration_since(begun + VERDICTS_WITHIN) / schedule::rounds(plan.ranks);
    let pairs = schedule::peers_by_round(plan.rank, plan.ranks);
    let mut fault = None;
    let measured = pairs.into_iter().map(|(round, peer)| {
        // A rank that lets one peer wait spends no time of other pairs.
        let until = begun + slot * (round + 1);
        let minimum = plan.minimum(peer);
        let rdma = plan.rdma.as_ref().map(|rdma| rdma.pair(peer));
        let lost = || Err(io::ErrorKind::NotConnected.into());
        let measure = |stream| pair::measure(stream, plan.rank < peer, minimum, until, rdma.as_ref());
        let measured = met.get_mut(&peer).map_or_else(lost, measure);
        if let Err(error) = &measured {
            // A connection in the middle of a measurement carries no verdict.
            met.remove(&peer);
            fault = fault.take().or_else(|| plan.rdma.as_ref().map(|_| fault_text(error)));
        }
        Link { peer, figures: measured.ok() }
    });
    let links: Vec<Link> = measured.collect();
    let is_good = links.iter().all(|link| plan.accepts(link));
    // A rank does not begin the all-reduce before all ranks have good links, and its result is a second verdict.
    let all_good = verdict::exchange(&mut met, is_good, rounds, deadline) && {
        let reduced = all_reduce::all_reduce(&mut met, (plan.rank, plan.ranks), deadline).is_ok();
        verdict::exchange(&mut met, reduced, rounds, deadline)
    };
    Ok(Checked { links, all_good, fault })
}

/// The process of a check: reads its plan, enters the namespace, and writes its result. It ends with its input, so it
/// does not outlive the daemon.
///
/// # Errors
/// The plan is invalid, the namespace cannot be entered, or the process cannot listen there.
pub fn run(namespace: &Path) -> Result<(), String> {
    close_inherited().map_err(|error| error.to_string())?;
    let mut input = BufReader::new(io::stdin().take(MOST_TEXT_BYTES));
    let mut line = String::new();
    input.read_line(&mut line).map_err(|error| error.to_string())?;
    let plan = Preflight::parse(&line).ok_or("the plan of the check is invalid")?;
    // RDMA links are those of the host, whose network the process has already.
    if plan.rdma.is_none() {
        let file = File::open(namespace).map_err(|error| format!("{}: {error}", namespace.display()))?;
        setns(file, CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string())?;
    }
    let watch = move || {
        let mut rest = [0; 1];
        if matches!(input.read(&mut rest), Ok(0) | Err(_)) {
            end_group(Pid::this());
            std::process::exit(1);
        }
    };
    thread::Builder::new().name("daemon end".to_owned()).spawn(watch).map_err(|error| error.to_string())?;
    let checked = check(&plan, &|rank| plan.address(rank), MEET_WITHIN).map_err(|error| error.to_string())?;
    let text = serde_json::to_string(&checked).map_err(|error| error.to_string())?;
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(|error| error.to_string())
}

/// Ends a process of a check with the programs that it runs: it leads their process group.
fn end_group(process: Pid) {
    // The group can have ended.
    let _ = killpg(process, Signal::SIGKILL);
}

fn spawn(namespace: &Path) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg(PREFLIGHT_COMMAND)
        .arg(namespace)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

/// Waits for the output of the process. `None`: the attempt is not wanted any more.
fn wait_for_output(
    child: &mut Child,
    within: Duration,
    given_up: &dyn Fn() -> bool,
) -> Result<Option<String>, String> {
    let output = child.stdout.take().ok_or("the check of the network has no output")?;
    let (sender, receiver) = mpsc::channel();
    let read = move || {
        let mut text = String::new();
        let result = output.take(MOST_TEXT_BYTES).read_to_string(&mut text).map(|_| text);
        // The daemon may have given up.
        let _ = sender.send(result);
    };
    thread::Builder::new().name("preflight".to_owned()).spawn(read).map_err(|error| error.to_string())?;
    let deadline = Instant::now() + within + ENDED_AFTER;
    loop {
        match receiver.recv_timeout(ASK_EVERY) {
            Ok(result) => return result.map(Some).map_err(|error| error.to_string()),
            Err(RecvTimeoutError::Timeout) if given_up() => return Ok(None),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            Err(_) => return Err("the check of the network did not end in time".to_owned()),
        }
    }
}

/// Measures the links of a rank to other ranks from its namespace, which takes at most 115 seconds, and 175 with RDMA.
/// `None`: the attempt is not wanted any more.
///
/// # Errors
/// The process cannot be started, or it failed.
pub fn measure_links(
    namespace: &Path,
    plan: &Preflight,
    given_up: &dyn Fn() -> bool,
) -> Result<Option<Checked>, String> {
    let failed = |error: io::Error| format!("the check of the network cannot be started: {error}");
    let mut child = spawn(namespace).map_err(failed)?;
    // Its end ends the process, so it stays open until the result.
    let mut input = child.stdin.take();
    let line = serde_json::to_string(plan).map_err(io::Error::from);
    let written = line
        .and_then(|line| input.as_mut().map_or(Ok(()), |input| input.write_all((line + "\n").as_bytes())));
    let output =
        written.map_err(failed).and_then(|()| wait_for_output(&mut child, plan.check_within(), given_up));
    if let Ok(process) = i32::try_from(child.id()).map(Pid::from_raw) {
        // It ends by itself after its output. A process that was given up, or that hangs, is ended.
        if matches!(output, Ok(Some(_))) {
            let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
            // Until it is reaped below, no other process has its id.
            let _ = waitid(Id::Pid(process), ended);
        }
        end_group(process);
    }
    let status = child.wait().map_err(failed)?;
    drop(input);
    let Some(text) = output? else { return Ok(None) };
    match Checked::parse(&text).filter(|_| status.success()) {
        Some(checked) => Ok(Some(checked)),
        None => Err("the check of the network failed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses of ranks on the loopback of this machine. A port for each test.
    fn loopback(port: u16) -> impl Fn(u32) -> SocketAddr + Sync {
        move |rank| {
            SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 77, 0, u8::try_from(rank + 1).unwrap())), port)
        }
    }

    fn plan(rank: u32, ranks: u32, token: u8) -> Preflight {
        let minima = vec![0; ranks as usize];
        Preflight { rank, ranks, token: [token; TOKEN_BYTES], minima, rdma: None }
    }

    #[test]
    fn plans_are_read_as_a_whole_or_refused() {
        let whole = plan(3, 64, 0xab);
        let line = serde_json::to_string(&whole).unwrap();
        assert_eq!(Preflight::parse(&line), Some(whole.clone()));
        assert!(!format!("{whole:?}").contains("171"), "{whole:?}");
        let addresses = |count: u8| (0..count).map(|rank| Ipv4Addr::new(192, 0, 2, rank)).collect();
        let port =
            CheckedPort { device: "mlx5_0".to_owned(), number: 1, rate_mbps: 400_000, gid_index: Some(3) };
        let rdma = |count: u8| {
            let ports = vec![port.clone(); rdma::MOST_PORTS];
            Some(RdmaPlan { program: "/usr/bin/ib_write_bw".into(), ports, addresses: addresses(count) })
        };
        let large = Preflight { rdma: rdma(64), minima: vec![u64::MAX; 64], ..whole.clone() };
        let line = serde_json::to_string(&large).unwrap();
        assert!(u64::try_from(line.len()).unwrap() < MOST_TEXT_BYTES, "{} bytes", line.len());
        assert_eq!(Preflight::parse(&line), Some(large));
        let short = Preflight { minima: vec![0; 63], ..whole.clone() };
        let without_address = Preflight { rdma: rdma(63), ..whole };
        for bad in [short, without_address, plan(2, 2, 1), plan(0, 65, 1)] {
            assert_eq!(Preflight::parse(&serde_json::to_string(&bad).unwrap()), None, "{bad:?}");
        }
        assert_eq!(Preflight::parse(""), None);
    }

    #[test]
    fn a_good_result_has_a_link() {
        let figures = Some(LinkFigures { rtt_us: 210, mib_per_s: 940 });
        for links in [vec![], vec![Link { peer: 1, figures }], vec![Link { peer: 2, figures: None }]] {
            for all_good in [true, false] {
                let checked = Checked { links: links.clone(), all_good, fault: Some("x".to_owned()) };
                let text = serde_json::to_string(&checked).unwrap();
                let expected = (!all_good || !links.is_empty()).then_some(checked);
                assert_eq!(Checked::parse(&text), expected);
            }
        }
        assert_eq!(Checked::parse("good"), None);
    }

    #[test]
    fn ranks_with_rdma_meet_at_the_addresses_of_their_nodes() {
        let addresses = vec![Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
        let rdma = RdmaPlan { program: "/usr/bin/ib_write_bw".into(), ports: Vec::new(), addresses };
        let plan = Preflight { rdma: Some(rdma), ..plan(1, 2, 1) };
        assert_eq!(plan.address(0).to_string(), "192.0.2.1:288");
        assert_eq!(plan.address(1).to_string(), "0.0.0.0:288");
    }

    /// Runs the check of these plans at the same time.
    fn check_all(port: u16, plans: &[Preflight], meet_within: Duration) -> Vec<Checked> {
        let address = loopback(port);
        thread::scope(|scope| {
            let address = &address;
            let ranks =
                plans.iter().map(|plan| scope.spawn(move || check(plan, address, meet_within).unwrap()));
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_pairs_have_the_same_figures_at_both_ranks_and_one_slow_link_is_known_to_all() {
        let mut plans: Vec<Preflight> = (0..3).map(|rank| plan(rank, 3, 1)).collect();
        let checked = check_all(47_411, &plans, Duration::from_secs(10));
        let figures = |rank: u32, peer: u32| {
            let links = &checked[rank as usize].links;
            links.iter().find(|link| link.peer == peer).unwrap().figures.unwrap()
        };
        for (low, high) in [(0, 1), (0, 2), (1, 2)] {
            assert_eq!(figures(low, high), figures(high, low));
            assert!(figures(low, high).mib_per_s > 0, "{checked:?}");
        }
        assert!(checked.iter().all(|checked| checked.all_good), "{checked:?}");
        plans[0].minima[1] = u64::MAX;
        plans[1].minima[0] = u64::MAX;
        let checked = check_all(47_413, &plans, Duration::from_secs(10));
        assert!(checked.iter().all(|checked| !checked.all_good), "{checked:?}");
        assert!(checked[2].links.iter().all(|link| plans[2].accepts(link)), "{checked:?}");
    }

    #[test]
    fn a_rank_without_the_token_and_an_absent_rank_are_not_connected() {
        let plans = [plan(0, 4, 1), plan(1, 4, 2), plan(2, 4, 1)];
        let checked = check_all(47_412, &plans, Duration::from_secs(6));
        let absent = |checked: &Checked| {
            assert!(checked.links.iter().all(|link| link.figures.is_none()), "{checked:?}");
            checked.links.iter().map(|link| link.peer).collect::<std::collections::BTreeSet<u32>>()
        };
        let absent: Vec<_> = checked.iter().map(absent).collect();
        assert_eq!(absent, [[1, 3].into(), [0, 2, 3].into(), [1, 3].into()]);
        assert!(checked.iter().all(|checked| !checked.all_good));
    }

    #[test]
    fn a_rank_that_begins_late_is_not_called_absent_for_an_absent_one() {
        let address = loopback(47_414);
        let (meet_within, late) = (Duration::from_secs(7), Duration::from_secs(1));
        let checked = thread::scope(|scope| {
            let address = &address;
            let ranks = [(0, Duration::ZERO), (1, late)].map(|(rank, delay)| {
                scope.spawn(move || {
                    thread::sleep(delay);
                    check(&plan(rank, 3, 1), address, meet_within).unwrap()
                })
            });
            ranks.map(|rank| rank.join().unwrap())
        });
        let absent = Link { peer: 2, figures: None };
        assert_eq!(checked[0], Checked { links: vec![absent], all_good: false, fault: None });
        assert_eq!(checked[1], Checked { links: vec![absent], all_good: false, fault: None });
    }

    #[test]
    fn a_connection_without_its_last_word_is_no_peer() {
        let address = loopback(47_415);
        let ranks = thread::scope(|scope| {
            let address = &address;
            let lower = scope.spawn(move || check(&plan(0, 2, 1), address, Duration::from_secs(6)).unwrap());
            let until = Instant::now() + Duration::from_secs(5);
            let mut stream = loop {
                match std::net::TcpStream::connect(address(0)) {
                    Ok(stream) => break stream,
                    Err(error) => assert!(Instant::now() < until, "{error}"),
                }
                thread::sleep(Duration::from_millis(5));
            };
            let hello: Vec<u8> =
                b"BGC2".iter().copied().chain([1; TOKEN_BYTES]).chain([0, 0, 0, 1]).collect();
            stream.write_all(&hello).unwrap();
            stream.shutdown(std::net::Shutdown::Both).unwrap();
            lower.join().unwrap()
        });
        let links = vec![Link { peer: 1, figures: None }];
        assert_eq!(ranks, Checked { links, all_good: false, fault: None });
    }

    #[test]
    fn silent_connections_keep_no_rank_waiting() {
        let address = loopback(47_416);
        let within = Duration::from_secs(20);
        let (lower, higher) = thread::scope(|scope| {
            let address = &address;
            let lower = scope.spawn(move || check(&plan(0, 2, 1), address, within).unwrap());
            let until = Instant::now() + Duration::from_secs(10);
            let mut silent = Vec::new();
            while silent.len() < 30 {
                match std::net::TcpStream::connect(address(0)) {
                    Ok(stream) => silent.push(stream),
                    Err(error) => assert!(Instant::now() < until, "{error}"),
                }
            }
            let higher = scope.spawn(move || check(&plan(1, 2, 1), address, within).unwrap());
            (lower.join().unwrap(), higher.join().unwrap())
        });
        assert!(lower.all_good && higher.all_good, "{lower:?} {higher:?}");
    }
}
