//! The dialer of a replica: `berth-worker enter DIR --dialer`.
//!
//! One entry process opens all connections of gateways to an attempt, because an entry for each connection would be
//! slower than most requests. The daemon itself enters no namespace. The process passes no bytes itself, and ends with
//! the daemon or the attempt.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::dial_messages::{DialRefusal, receive_request, send_answer};
use super::nsenter::{EnteredAttempt, Loopback, enter};
use berth_system::pty;

/// The most connections on their way at the same time.
pub(super) const MOST_DIALS: usize = 256;
/// The time limit for a port to accept a connection. A full queue of a port keeps back only its own connections.
pub(super) const ACCEPT_WITHIN: Duration = Duration::from_secs(2);

/// Enters an attempt and opens connections until the daemon or the attempt ends. Returns the exit code; the daemon gets
/// the text of a failure.
pub fn run(dir: &Path) -> Result<i32, String> {
    let control = io::stdin().as_fd().try_clone_to_owned().map_err(|e| e.to_string())?;
    let result = enter(dir, false).and_then(|entered| {
        let dialer =
            Dialer { entered: &entered, dir, control: control.as_fd(), dials: Vec::new(), last: None };
        dialer.serve().map_err(|e| e.to_string())
    });
    result.map(|()| 0).inspect_err(|why| {
        // The daemon may be gone.
        let _ = pty::send_error(control.as_fd(), why);
    })
}

/// A connection on its way.
struct PendingDial {
    number: u32,
    port: u16,
    at: Loopback,
    socket: OwnedFd,
    deadline: Instant,
}

struct Dialer<'a> {
    entered: &'a EnteredAttempt,
    dir: &'a Path,
    control: BorrowedFd<'a>,
    dials: Vec<PendingDial>,
    /// The port and the place of the last open connection. The search for a place reads the table of all sockets of the
    /// host, so with many connections it takes longer than all else here.
    last: Option<(u16, Loopback)>,
}

/// The result of a wait.
struct Wakeup {
    requested: bool,
    /// For each dial: its connection is open or has failed.
    settled: Vec<bool>,
}

impl Dialer<'_> {
    fn serve(mut self) -> io::Result<()> {
        loop {
            let wakeup = self.wait()?;
            let now = Instant::now();
            let dials = std::mem::take(&mut self.dials);
            for (dial, settled) in dials.into_iter().zip(wakeup.settled) {
                if settled || dial.deadline <= now {
                    let number = dial.number;
                    let result = self.finish(dial, settled);
                    send_answer(self.control, number, result.as_ref().map(AsFd::as_fd).map_err(|why| *why))?;
                } else {
                    self.dials.push(dial);
                }
            }
            if wakeup.requested {
                let Some((number, port)) = receive_request(self.control)? else { return Ok(()) };
                match self.begin(number, port) {
                    Ok(dial) => self.dials.push(dial),
                    Err(why) => send_answer(self.control, number, Err(why))?,
                }
            }
        }
    }

    /// Waits for a request, for a connection, or for the end of the time of one.
    fn wait(&self) -> io::Result<Wakeup> {
        let mut events: Vec<PollFd<'_>> =
            self.dials.iter().map(|dial| PollFd::new(dial.socket.as_fd(), PollFlags::POLLOUT)).collect();
        // Without room for another dial the requests wait in the socket.
        if self.dials.len() < MOST_DIALS {
            events.push(PollFd::new(self.control, PollFlags::POLLIN));
        }
        let timeout = match self.dials.iter().map(|dial| dial.deadline).min() {
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now()).as_millis();
                PollTimeout::try_from(left + 1).unwrap_or(PollTimeout::ZERO)
            }
            None => PollTimeout::NONE,
        };
        match poll(&mut events, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut settled: Vec<bool> = events.iter().map(|event| event.any().unwrap_or(true)).collect();
        let requested = settled.len() > self.dials.len() && settled.pop().unwrap_or(false);
        Ok(Wakeup { requested, settled })
    }

    /// Begins a connection to a port that the attempt listens on.
    fn begin(&mut self, number: u32, port: u16) -> Result<PendingDial, DialRefusal> {
        let at = match self.last.filter(|(last, _)| *last == port) {
            Some((_, at)) => at,
            None => self.entered.loopback_of(self.dir, port).ok().flatten().ok_or(DialRefusal::NoListener)?,
        };
        let family = if at.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
            .map_err(|_| DialRefusal::NoAnswer)?;
        match rustix::net::connect(&socket, &SocketAddr::new(at.address, port)) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(_) => {
                self.last = None;
                return Err(DialRefusal::NoListener);
            }
        }
        Ok(PendingDial { number, port, at, socket, deadline: Instant::now() + ACCEPT_WITHIN })
    }

    /// The connection of a dial. `settled`: it is open or has failed.
    fn finish(&mut self, dial: PendingDial, settled: bool) -> Result<OwnedFd, DialRefusal> {
        if !settled {
            return Err(DialRefusal::NoAnswer);
        }
        let open = matches!(rustix::net::sockopt::socket_error(&dial.socket), Ok(Ok(())));
        let listens = || self.entered.listens_still(self.dir, dial.port, dial.at).unwrap_or(false);
        if !open || !listens() {
            self.last = None;
            return Err(DialRefusal::NoListener);
        }
        // On the network of the host the owner of the port is searched each time.
        self.last = self.entered.has_own_network().then_some((dial.port, dial.at));
        Ok(dial.socket)
    }
}
