//! A terminal session: a shell in an attempt with its terminal, its last output, and its client at the portal. Each
//! session is one task.

#![expect(unsafe_code, reason = "registering a descriptor with the runtime promises that it stays open")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use berth_contract::window::{Incoming, Outgoing};
use berth_contract::{TERMINAL_PATIENCE, TUNNEL_CHUNK, TUNNEL_WINDOW};
use berth_proto::{Closed, Frame, frame};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::entry_process::EntryProcess;
use super::tunnel::{Tunnel, attempt_ended, closed};
use berth_system::pty::{self, TerminalSize};
use berth_system::scrollback::Scrollback;

/// The exit code after SIGKILL, and the wait for the end of the job, which may have been the cause.
const KILLED: i32 = 137;
const HOLD: Duration = Duration::from_secs(2);

/// A client that asks for the session.
pub struct TerminalClient {
    pub tunnel: Tunnel,
    pub size: TerminalSize,
    /// The offset of the first output byte for the client; absent: only new output.
    pub from: Option<u64>,
}

/// The present client of the session.
struct AttachedClient {
    tunnel: Tunnel,
    /// The offset of the next output byte for the client.
    next: u64,
    out: Outgoing,
    typed: Incoming,
    /// An acknowledgement of input that is to be sent.
    acknowledge: Option<u64>,
}

/// An event of the session.
enum TerminalEvent {
    Client(Option<Box<TerminalClient>>),
    Exit(io::Result<ExitStatus>),
    JobEnded,
    Abandoned,
    Frame(Option<frame::Body>),
    /// The outgoing queue has space; `false`: the client is gone.
    Room(bool),
    Readable(io::Result<()>),
    Writable(io::Result<()>),
    HoldEnded,
}

/// True if the session goes on.
enum Continue {
    Yes,
    No,
}

pub struct TerminalSession {
    terminal: AsyncFd<OwnedFd>,
    /// Dropped to end it.
    socket: Option<UnixStream>,
    child: Child,
    clients: mpsc::Receiver<TerminalClient>,
    /// Closes at the end of the attempt.
    alive: watch::Receiver<()>,
    output: Scrollback,
    client: Option<AttachedClient>,
    /// Input that the terminal has not taken yet.
    typed: VecDeque<u8>,
    exit: Option<i32>,
    /// The terminal has no more output.
    dry: bool,
    /// After a kill of the shell: the end of the job may become known a little later.
    hold_until: Instant,
    alone_until: Instant,
}

/// The next frame of the client. `None`: the client is gone.
async fn next_frame(tunnel: Option<&mut Tunnel>) -> Option<frame::Body> {
    let Some(tunnel) = tunnel else { return std::future::pending().await };
    tunnel.next().await
}

impl TerminalSession {
    /// A session with the terminal of an entry process.
    pub fn new(
        entry: EntryProcess,
        clients: mpsc::Receiver<TerminalClient>,
        alive: watch::Receiver<()>,
    ) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&entry.file, true)?;
        // SAFETY: the registered value owns the descriptor, never replaces it, and closes it at its own end.
        let terminal = unsafe { AsyncFd::register(entry.file) }.map_err(io::Error::from)?;
        Ok(Self {
            terminal,
            socket: Some(entry.socket),
            child: entry.child,
            clients,
            alive,
            output: Scrollback::new(usize::try_from(TUNNEL_WINDOW).unwrap_or(0)),
            client: None,
            typed: VecDeque::new(),
            exit: None,
            dry: false,
            hold_until: Instant::now(),
            alone_until: Instant::now() + TERMINAL_PATIENCE,
        })
    }

    /// Runs until the end of the shell or of the attempt, or too long without a client.
    pub async fn run(mut self) {
        loop {
            self.read_rest();
            if self.all_sent() {
                self.close_client("ended", "The shell has ended.");
                return;
            }
            let event = self.wait().await;
            if matches!(self.handle(event), Continue::No) {
                return;
            }
        }
    }

    /// The bytes that may be read now: output without an acknowledgement must stay in the scrollback.
    fn readable(&self) -> usize {
        let received = |client: &AttachedClient| client.next - client.out.under_way();
        let ahead =
            self.client.as_ref().map_or(0, |client| self.output.end().saturating_sub(received(client)));
        let room = if self.dry { 0 } else { TUNNEL_WINDOW.saturating_sub(ahead) };
        usize::try_from(room).unwrap_or(0).min(TUNNEL_CHUNK)
    }

    /// The bytes that may be sent now.
    fn sendable(&self) -> u64 {
        self.client.as_ref().map_or(0, |client| (self.output.end() - client.next).min(client.out.room()))
    }

    fn is_on_hold(&self) -> bool {
        Instant::now() < self.hold_until
    }

    /// True if the shell has ended and the client has all of its output.
    fn all_sent(&self) -> bool {
        let all = |client: &AttachedClient| client.next == self.output.end();
        self.exit.is_some() && self.dry && !self.is_on_hold() && self.client.as_ref().is_some_and(all)
    }

    async fn wait(&mut self) -> TerminalEvent {
        let (may_read, may_write) = (self.readable() > 0, !self.typed.is_empty());
        let must_acknowledge = self.client.as_ref().is_some_and(|client| client.acknowledge.is_some());
        let may_send = self.sendable() > 0 || must_acknowledge;
        let (attached, ended, on_hold) = (self.client.is_some(), self.exit.is_some(), self.is_on_hold());
        let outgoing = self.client.as_ref().map(|client| client.tunnel.outgoing.clone());
        let room = async move {
            match outgoing {
                Some(outgoing) => outgoing.reserve().await.is_ok(),
                None => std::future::pending().await,
            }
        };
        let tunnel = self.client.as_mut().map(|client| &mut client.tunnel);
        tokio::select! {
            client = self.clients.recv() => TerminalEvent::Client(client.map(Box::new)),
            status = self.child.wait(), if !ended => TerminalEvent::Exit(status),
            () = attempt_ended(&mut self.alive) => TerminalEvent::JobEnded,
            () = tokio::time::sleep_until(self.alone_until), if !attached => TerminalEvent::Abandoned,
            frame = next_frame(tunnel), if attached => TerminalEvent::Frame(frame),
            open = room, if may_send => TerminalEvent::Room(open),
            () = tokio::time::sleep_until(self.hold_until), if on_hold => TerminalEvent::HoldEnded,
            ready = self.terminal.readable(), if may_read => TerminalEvent::Readable(ready.map(|_| ())),
            ready = self.terminal.writable(), if may_write => TerminalEvent::Writable(ready.map(|_| ())),
        }
    }

    fn handle(&mut self, event: TerminalEvent) -> Continue {
        match event {
            TerminalEvent::Client(Some(client)) => self.attach(*client),
            // The daemon holds the sender for its whole life.
            TerminalEvent::Client(None) | TerminalEvent::Abandoned => return Continue::No,
            TerminalEvent::JobEnded => {
                self.close_client("job_ended", "The job has ended.");
                return Continue::No;
            }
            TerminalEvent::Exit(status) => {
                let code = |s: ExitStatus| s.code().unwrap_or_else(|| 128 + s.signal().unwrap_or(0));
                let code = status.map_or(255, code);
                if code == KILLED {
                    self.hold_until = Instant::now() + HOLD;
                }
                self.exit = Some(code);
            }
            TerminalEvent::Frame(frame) => self.handle_frame(frame),
            TerminalEvent::Room(true) => self.send_next(),
            TerminalEvent::Room(false) => self.detach(),
            TerminalEvent::HoldEnded => {}
            TerminalEvent::Readable(ready) => {
                if ready.is_err() || !self.read() {
                    self.dry = true;
                }
            }
            TerminalEvent::Writable(ready) => {
                if ready.is_err() {
                    self.typed.clear();
                } else {
                    self.write();
                }
            }
        }
        Continue::Yes
    }

    /// Attaches a client, in place of the present one.
    fn attach(&mut self, client: TerminalClient) {
        self.close_client("taken_over", "The terminal was opened elsewhere.");
        let TerminalClient { tunnel, size, from } = client;
        let from = from.unwrap_or(self.output.end()).clamp(self.output.start(), self.output.end());
        // The queue of a new tunnel has space for its first frame.
        let _ = tunnel.outgoing.try_send(frame::Body::StartOffset(from).into());
        self.resize(size);
        let (out, typed) = (Outgoing::default(), Incoming::default());
        self.client = Some(AttachedClient { tunnel, next: from, out, typed, acknowledge: None });
    }

    /// Closes the tunnel of the client with a reason.
    fn close_client(&mut self, cause: &str, detail: &str) {
        if let Some(client) = self.client.take() {
            let exit_code = self.exit.filter(|_| cause == "ended");
            client.tunnel.close(Closed { exit_code, ..closed(cause, detail) });
        }
    }

    /// Drops a client that is gone. The session waits for another one.
    fn detach(&mut self) {
        self.client = None;
        self.alone_until = Instant::now() + TERMINAL_PATIENCE;
    }

    fn resize(&self, size: TerminalSize) {
        if let Err(error) = pty::resize(self.terminal.get_ref().as_fd(), size) {
            tracing::warn!(%error, "the size of a terminal cannot be changed");
        }
    }

    fn handle_frame(&mut self, frame: Option<frame::Body>) {
        let Some(client) = &mut self.client else { return };
        match frame {
            Some(frame::Body::Data(data)) => {
                if client.typed.note_came(data.len() as u64) {
                    self.typed.extend(data);
                } else {
                    tracing::warn!("the portal exceeds the window of a tunnel");
                    self.detach();
                }
            }
            Some(frame::Body::AcknowledgedBytes(taken)) => client.out.note_taken(taken),
            Some(frame::Body::Size(size)) => self.resize(TerminalSize::clamped(size.cols, size.rows)),
            // The entry process ends the shell and reports its exit code.
            Some(frame::Body::CloseTunnel(_)) => self.socket = None,
            Some(frame::Body::StartOffset(_) | frame::Body::Closed(_)) => {}
            None => self.detach(),
        }
    }

    /// Sends one frame to the client; the queue has space for it.
    fn send_next(&mut self) {
        let most = usize::try_from(self.sendable()).unwrap_or(0).min(TUNNEL_CHUNK);
        let Some(client) = &mut self.client else { return };
        if let Some(taken) = client.acknowledge.take() {
            let _ = client.tunnel.outgoing.try_send(frame::Body::AcknowledgedBytes(taken).into());
            return;
        }
        let data = self.output.copy(client.next, most);
        let length = data.len() as u64;
        if length > 0 && client.tunnel.outgoing.try_send(Frame::from(frame::Body::Data(data))).is_ok() {
            client.next += length;
            client.out.note_sent(length);
        }
    }

    /// Reads output of the terminal. `false`: there is no more.
    fn read(&mut self) -> bool {
        let mut buffer = [0u8; TUNNEL_CHUNK];
        let room = buffer.get_mut(..self.readable()).unwrap_or_default();
        let read = self.terminal.try_io(Interest::READABLE, |fd| Ok(nix::unistd::read(fd, room)?));
        match read {
            // No process has the other side open any more.
            Ok(0) => false,
            Ok(length) => {
                self.output.push(buffer.get(..length).unwrap_or_default());
                true
            }
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Reads the rest of the output after the end of the shell. Its children may keep the terminal open, so the end
    /// of the output is not waited for.
    fn read_rest(&mut self) {
        while self.exit.is_some() && self.readable() > 0 {
            let mut buffer = [0u8; TUNNEL_CHUNK];
            let room = buffer.get_mut(..self.readable()).unwrap_or_default();
            match nix::unistd::read(self.terminal.get_ref(), room) {
                Ok(length) if length > 0 => self.output.push(buffer.get(..length).unwrap_or_default()),
                _ => self.dry = true,
            }
        }
    }

    /// Writes input to the terminal.
    fn write(&mut self) {
        let (first, _) = self.typed.as_slices();
        let written = self.terminal.try_io(Interest::WRITABLE, |fd| Ok(nix::unistd::write(fd, first)?));
        match written {
            Ok(length) => {
                self.typed.drain(..length.min(self.typed.len()));
                if let Some(client) = &mut self.client {
                    client.typed.note_taken(length as u64);
                    client.acknowledge = client.typed.due().or(client.acknowledge);
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // No process reads the terminal any more.
            Err(_) => self.typed.clear(),
        }
    }
}
