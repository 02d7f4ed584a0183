//! The connections between the ranks of a gang: the higher rank of a pair connects to the lower one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::stream::{left_until, prepare, read_all, write_all};
use super::{Preflight, TOKEN_BYTES};

/// The first bytes of a connection.
const MAGIC: [u8; 4] = *b"BGC2";
/// The answer to a connection with the right token.
const WELCOME: [u8; 1] = *b"+";
/// The last word of the rank that connected: it has read the answer, and did not give the connection up before.
const PRESENT: [u8; 1] = *b"!";
/// The bytes of a rank.
const RANK_BYTES: usize = 4;
/// The longest wait for the first bytes of a connection, and for their answer.
const HELLO_WITHIN: Duration = Duration::from_secs(2);
/// The longest try of a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// The most connections without a known rank at the same time.
const MOST_UNKNOWN: usize = 64;
/// The time between two looks at the ranks that are known now.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The time between two tries.
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// True for equal tokens. The time does not depend on the place of a difference.
fn is_token(given: &[u8], token: &[u8; TOKEN_BYTES]) -> bool {
    given.len() == token.len() && given.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

fn connect_once(plan: &Preflight, to: SocketAddr, left: Duration) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, left.min(CONNECT_WITHIN))?;
    prepare(&stream)?;
    let deadline = Instant::now() + HELLO_WITHIN;
    let hello: Vec<u8> = MAGIC.into_iter().chain(plan.token).chain(plan.rank.to_be_bytes()).collect();
    write_all(&mut stream, &hello, deadline)?;
    let mut answer = [0; 1];
    read_all(&mut stream, &mut answer, deadline)?;
    if answer != WELCOME {
        return Err(io::ErrorKind::InvalidData.into());
    }
    write_all(&mut stream, &PRESENT, deadline)?;
    Ok(stream)
}

/// Connects to a lower rank until the deadline. A peer that is not ready refuses the connection or does not answer.
fn connect(plan: &Preflight, to: SocketAddr, deadline: Instant) -> Option<TcpStream> {
    while let Some(left) = left_until(deadline) {
        match connect_once(plan, to, left) {
            Ok(stream) => return Some(stream),
            Err(_) => thread::sleep(RETRY_EVERY.min(left)),
        }
    }
    None
}

/// Reads the first bytes of a connection. Returns the rank of a peer with the token.
fn welcome(plan: &Preflight, stream: &mut TcpStream, deadline: Instant) -> io::Result<u32> {
    prepare(stream)?;
    let deadline = deadline.min(Instant::now() + HELLO_WITHIN);
    let (mut magic, mut token, mut rank) = ([0; MAGIC.len()], [0; TOKEN_BYTES], [0; RANK_BYTES]);
    read_all(stream, &mut magic, deadline)?;
    read_all(stream, &mut token, deadline)?;
    read_all(stream, &mut rank, deadline)?;
    if magic != MAGIC || !is_token(&token, &plan.token) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    write_all(stream, &WELCOME, deadline)?;
    let mut present = [0; 1];
    read_all(stream, &mut present, deadline)?;
    if present == PRESENT { Ok(u32::from_be_bytes(rank)) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Accepts the connections of higher ranks until all are there, or until the deadline. A silent connection keeps no
/// other one waiting.
fn accept(
    plan: &Preflight,
    listener: &TcpListener,
    expected: &BTreeSet<u32>,
    deadline: Instant,
) -> BTreeMap<u32, TcpStream> {
    let (sender, welcomed) = mpsc::channel();
    let unknown = AtomicUsize::new(0);
    thread::scope(|scope| {
        let mut met = BTreeMap::new();
        loop {
            // A peer may come a second time: it gave its first connection up.
            met.extend(welcomed.try_iter());
            if met.len() >= expected.len() {
                return met;
            }
            let Some(left) = left_until(deadline) else { return met };
            let timeout = PollTimeout::try_from(left.min(LOOK_EVERY)).unwrap_or(PollTimeout::MAX);
            let mut wait = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            if !matches!(poll(&mut wait, timeout), Ok(1)) {
                continue;
            }
            let Ok((mut stream, _)) = listener.accept() else {
                // Without a free descriptor the connection stays in the queue, and the poll would return at once.
                thread::sleep(RETRY_EVERY.min(left));
                continue;
            };
            // A further one is closed. A peer tries again.
            if unknown.fetch_add(1, Ordering::Relaxed) >= MOST_UNKNOWN {
                unknown.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (sender, unknown) = (sender.clone(), &unknown);
            scope.spawn(move || {
                if let Ok(rank) = welcome(plan, &mut stream, deadline)
                    && expected.contains(&rank)
                {
                    // The meeting can be over.
                    let _ = sender.send((rank, stream));
                }
                unknown.fetch_sub(1, Ordering::Relaxed);
            });
        }
    })
}

/// Connects this rank with these peers. Returns the connections until the deadline.
///
/// # Errors
/// This rank cannot listen.
pub(super) fn meet(
    plan: &Preflight,
    peers: &[u32],
    address: &(dyn Fn(u32) -> SocketAddr + Sync),
    deadline: Instant,
) -> io::Result<BTreeMap<u32, TcpStream>> {
    let listener = TcpListener::bind(address(plan.rank))?;
    listener.set_nonblocking(true)?;
    let higher: BTreeSet<u32> = peers.iter().copied().filter(|peer| *peer > plan.rank).collect();
    let lower = peers.iter().copied().filter(|peer| *peer < plan.rank);
    Ok(thread::scope(|scope| {
        let tries: Vec<_> =
            lower.map(|peer| (peer, scope.spawn(move || connect(plan, address(peer), deadline)))).collect();
        let mut met = accept(plan, &listener, &higher, deadline);
        for (peer, tried) in tries {
            met.extend(tried.join().ok().flatten().map(|stream| (peer, stream)));
        }
        met
    }))
}
