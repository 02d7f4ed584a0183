//! A shell in an attempt, from its start to its end: its terminal, what it wrote last, and whoever looks at it.
//!
//! One task for each. It knows bytes and places, not who is at the other end; that is the portal's.

#![expect(unsafe_code, reason = "registering a descriptor with the runtime promises that it stays open")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use berth_proto::window::{Incoming, Outgoing};
use berth_proto::{Closed, Frame, TERMINAL_PATIENCE, TUNNEL_CHUNK, TUNNEL_WINDOW, frame};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::enter::Wish;
use crate::pty::{self, Size};
use crate::scrollback::Scrollback;
use crate::tunnels::{Tunnel, closed};

/// A process that should open a door is given up after this long.
const DOOR: Duration = Duration::from_secs(10);
/// The exit code of what SIGKILL ended, and how long it is waited for word of its job's end.
const KILLED: i32 = 137;
const HOLD: Duration = Duration::from_secs(2);

/// A tunnel that wants to this shell.
pub struct Visit {
    pub tunnel: Tunnel,
    pub size: Size,
    /// The byte from which it wants to be told; the end of what there is when absent.
    pub from: Option<u64>,
}

/// What a process inside an attempt opened, and that process. It ends when its socket is dropped.
pub struct Opened {
    pub file: OwnedFd,
    pub socket: UnixStream,
    pub child: Child,
}

/// Starts a process that goes into the attempt of this directory, and takes what it opens there.
pub async fn enter(dir: &Path, wish: Wish) -> Result<Opened, String> {
    let no = |what: &str, error: io::Error| format!("{what}: {error}.");
    let (socket, theirs) = UnixStream::pair().map_err(|e| no("No socket", e))?;
    socket.set_read_timeout(Some(DOOR)).map_err(|e| no("No socket", e))?;
    let this = std::env::current_exe().map_err(|e| no("The worker's program cannot be found", e))?;
    let mut command = Command::new(this);
    command.arg("enter").arg(dir);
    match wish {
        Wish::Shell(size) => {
            command.arg("--cols").arg(size.cols.to_string()).arg("--rows").arg(size.rows.to_string())
        }
        Wish::Port(port) => command.arg("--port").arg(port.to_string()),
    };
    let child = command
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| no("No process can be started", e))?;
    // Dropped with its copy of the socket, so that the end of the process is heard as an end.
    drop(command);
    let (socket, file) = tokio::task::spawn_blocking(move || {
        let file = pty::receive(socket.as_fd());
        (socket, file)
    })
    .await
    .map_err(|e| e.to_string())?;
    Ok(Opened { file: file?, socket, child })
}

/// Who looks at the shell now.
struct Guest {
    tunnel: Tunnel,
    /// The byte that it is told next.
    next: u64,
    out: Outgoing,
    typed: Incoming,
    /// What it must be told of what it typed.
    tell: Option<u64>,
}

/// What happened.
enum Event {
    Visit(Option<Box<Visit>>),
    Exit(io::Result<ExitStatus>),
    JobEnded,
    Tired,
    Frame(Option<frame::What>),
    /// Whether there is still somebody to be told.
    Room(bool),
    Readable(io::Result<()>),
    Writable(io::Result<()>),
    Held,
}

/// Whether the shell goes on.
enum Next {
    On,
    Over,
}

pub struct Shell {
    terminal: AsyncFd<OwnedFd>,
    /// Dropped to end it.
    socket: Option<UnixStream>,
    child: Child,
    visits: mpsc::Receiver<Visit>,
    /// Closes when the attempt ends.
    life: watch::Receiver<()>,
    past: Scrollback,
    guest: Option<Guest>,
    /// What was typed and not taken by the terminal yet.
    typed: VecDeque<u8>,
    exit: Option<i32>,
    /// Nothing more can be read.
    dry: bool,
    /// Who was killed may have been so with its job, which is heard of a little later.
    hold_until: Instant,
    alone_until: Instant,
}

/// Waits for the end of the attempt.
pub async fn life_ends(life: &mut watch::Receiver<()>) {
    while life.changed().await.is_ok() {}
}

/// The next frame of whoever is there; `None` when they have left.
async fn next_frame(guest: Option<&mut Tunnel>) -> Option<frame::What> {
    let Some(tunnel) = guest else { return std::future::pending().await };
    tunnel.next().await
}

impl Shell {
    /// Around what a process inside the attempt opened.
    pub fn new(opened: Opened, visits: mpsc::Receiver<Visit>, life: watch::Receiver<()>) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&opened.file, true)?;
        // SAFETY: the descriptor is owned by what is registered, never replaced, and closed only with it.
        let terminal = unsafe { AsyncFd::register(opened.file) }.map_err(io::Error::from)?;
        Ok(Self {
            terminal,
            socket: Some(opened.socket),
            child: opened.child,
            visits,
            life,
            past: Scrollback::new(usize::try_from(TUNNEL_WINDOW).unwrap_or(0)),
            guest: None,
            typed: VecDeque::new(),
            exit: None,
            dry: false,
            hold_until: Instant::now(),
            alone_until: Instant::now() + TERMINAL_PATIENCE,
        })
    }

    /// Lives until the shell or the attempt ends, or nobody has looked for too long.
    pub async fn run(mut self) {
        loop {
            self.read_rest();
            if self.told_all() {
                self.dismiss("ended", "The shell has ended.");
                return;
            }
            let event = self.wait().await;
            if matches!(self.handle(event), Next::Over) {
                return;
            }
        }
    }

    /// How many bytes may be read now: what is not known to have arrived is no more than is kept.
    fn readable(&self) -> usize {
        let known = |guest: &Guest| guest.next - guest.out.under_way();
        let ahead = self.guest.as_ref().map_or(0, |guest| self.past.end().saturating_sub(known(guest)));
        let room = if self.dry { 0 } else { TUNNEL_WINDOW.saturating_sub(ahead) };
        usize::try_from(room).unwrap_or(0).min(TUNNEL_CHUNK)
    }

    /// Bytes that the guest may be told now.
    fn sendable(&self) -> u64 {
        self.guest.as_ref().map_or(0, |guest| (self.past.end() - guest.next).min(guest.out.room()))
    }

    fn holds(&self) -> bool {
        Instant::now() < self.hold_until
    }

    fn told_all(&self) -> bool {
        let all = |guest: &Guest| guest.next == self.past.end();
        self.exit.is_some() && self.dry && !self.holds() && self.guest.as_ref().is_some_and(all)
    }

    async fn wait(&mut self) -> Event {
        let (may_read, may_write) = (self.readable() > 0, !self.typed.is_empty());
        let speaks = self.sendable() > 0 || self.guest.as_ref().is_some_and(|guest| guest.tell.is_some());
        let (there, ended, holds) = (self.guest.is_some(), self.exit.is_some(), self.holds());
        let words = self.guest.as_ref().map(|guest| guest.tunnel.words.clone());
        let room = async move {
            match words {
                Some(words) => words.reserve().await.is_ok(),
                None => std::future::pending().await,
            }
        };
        let tunnel = self.guest.as_mut().map(|guest| &mut guest.tunnel);
        tokio::select! {
            visit = self.visits.recv() => Event::Visit(visit.map(Box::new)),
            status = self.child.wait(), if !ended => Event::Exit(status),
            () = life_ends(&mut self.life) => Event::JobEnded,
            () = tokio::time::sleep_until(self.alone_until), if !there => Event::Tired,
            frame = next_frame(tunnel), if there => Event::Frame(frame),
            there = room, if speaks => Event::Room(there),
            () = tokio::time::sleep_until(self.hold_until), if holds => Event::Held,
            ready = self.terminal.readable(), if may_read => Event::Readable(ready.map(|_| ())),
            ready = self.terminal.writable(), if may_write => Event::Writable(ready.map(|_| ())),
        }
    }

    fn handle(&mut self, event: Event) -> Next {
        match event {
            Event::Visit(Some(visit)) => self.welcome(*visit),
            // The daemon holds the other end for as long as it lives.
            Event::Visit(None) | Event::Tired => return Next::Over,
            Event::JobEnded => {
                self.dismiss("job_ended", "The job has ended.");
                return Next::Over;
            }
            Event::Exit(status) => {
                let code = |s: ExitStatus| s.code().unwrap_or_else(|| 128 + s.signal().unwrap_or(0));
                let code = status.map_or(255, code);
                if code == KILLED {
                    self.hold_until = Instant::now() + HOLD;
                }
                self.exit = Some(code);
            }
            Event::Frame(frame) => self.hear(frame),
            Event::Room(true) => self.speak(),
            Event::Room(false) => self.leave(),
            Event::Held => {}
            Event::Readable(ready) => {
                if ready.is_err() || !self.read() {
                    self.dry = true;
                }
            }
            Event::Writable(ready) => {
                if ready.is_err() {
                    self.typed.clear();
                } else {
                    self.write();
                }
            }
        }
        Next::On
    }

    /// Takes somebody in; whoever was there has to go.
    fn welcome(&mut self, visit: Visit) {
        self.dismiss("taken_over", "The terminal was opened elsewhere.");
        let from = visit.from.unwrap_or(self.past.end()).clamp(self.past.start(), self.past.end());
        // A new tunnel has room for its first word.
        let _ = visit.tunnel.words.try_send(frame::What::Begins(from).into());
        self.resize(visit.size);
        let (out, typed) = (Outgoing::default(), Incoming::default());
        self.guest = Some(Guest { tunnel: visit.tunnel, next: from, out, typed, tell: None });
    }

    fn dismiss(&mut self, cause: &str, detail: &str) {
        if let Some(guest) = self.guest.take() {
            let exit_code = self.exit.filter(|_| cause == "ended");
            guest.tunnel.close(Closed { exit_code, ..closed(cause, detail) });
        }
    }

    fn leave(&mut self) {
        self.guest = None;
        self.alone_until = Instant::now() + TERMINAL_PATIENCE;
    }

    fn resize(&self, size: Size) {
        if let Err(error) = pty::resize(self.terminal.get_ref().as_fd(), size) {
            tracing::warn!(%error, "a terminal keeps its size");
        }
    }

    fn hear(&mut self, frame: Option<frame::What>) {
        let Some(guest) = &mut self.guest else { return };
        match frame {
            Some(frame::What::Data(data)) => {
                if guest.typed.note_came(data.len() as u64) {
                    self.typed.extend(data);
                } else {
                    tracing::warn!("the portal sends more into a tunnel than it may");
                    self.leave();
                }
            }
            Some(frame::What::Taken(taken)) => guest.out.note_taken(taken),
            Some(frame::What::Size(size)) => self.resize(Size::clamped(size.cols, size.rows)),
            // Its process ends the shell, and tells how.
            Some(frame::What::HangUp(_)) => self.socket = None,
            Some(frame::What::Begins(_) | frame::What::Closed(_)) => {}
            None => self.leave(),
        }
    }

    /// Tells the guest one thing; there is room for it.
    fn speak(&mut self) {
        let most = usize::try_from(self.sendable()).unwrap_or(0).min(TUNNEL_CHUNK);
        let Some(guest) = &mut self.guest else { return };
        if let Some(taken) = guest.tell.take() {
            let _ = guest.tunnel.words.try_send(frame::What::Taken(taken).into());
            return;
        }
        let data = self.past.copy(guest.next, most);
        let length = data.len() as u64;
        if length > 0 && guest.tunnel.words.try_send(Frame::from(frame::What::Data(data))).is_ok() {
            guest.next += length;
            guest.out.note_sent(length);
        }
    }

    /// Reads what the terminal has. `false`: there will be no more.
    fn read(&mut self) -> bool {
        let mut buffer = [0u8; TUNNEL_CHUNK];
        let room = buffer.get_mut(..self.readable()).unwrap_or_default();
        let read = self.terminal.try_io(Interest::READABLE, |fd| Ok(nix::unistd::read(fd, room)?));
        match read {
            // Nobody has the other side open any more.
            Ok(0) => false,
            Ok(length) => {
                self.past.push(buffer.get(..length).unwrap_or_default());
                true
            }
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Reads what is left when the shell has ended. What it started may have the terminal open still, so its
    /// end is not waited for.
    fn read_rest(&mut self) {
        while self.exit.is_some() && self.readable() > 0 {
            let mut buffer = [0u8; TUNNEL_CHUNK];
            let room = buffer.get_mut(..self.readable()).unwrap_or_default();
            match nix::unistd::read(self.terminal.get_ref(), room) {
                Ok(length) if length > 0 => self.past.push(buffer.get(..length).unwrap_or_default()),
                _ => self.dry = true,
            }
        }
    }

    /// Gives the terminal what was typed.
    fn write(&mut self) {
        let (first, _) = self.typed.as_slices();
        let written = self.terminal.try_io(Interest::WRITABLE, |fd| Ok(nix::unistd::write(fd, first)?));
        match written {
            Ok(length) => {
                self.typed.drain(..length.min(self.typed.len()));
                if let Some(guest) = &mut self.guest {
                    guest.typed.note_taken(length as u64);
                    guest.tell = guest.typed.due().or(guest.tell);
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // Nobody reads it any more.
            Err(_) => self.typed.clear(),
        }
    }
}
