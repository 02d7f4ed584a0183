//! Tunnels between people and attempts: opened when the portal asks, each a stream of its own beside the
//! session, so that none needs an open port on this host.
//!
//! Who may have one is the portal's to decide. Here it is only counted, and ended with its attempt.

use std::collections::{HashMap, VecDeque};
use std::net::TcpStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_proto::portal_client::PortalClient;
use berth_proto::window::{Incoming, Outgoing};
use berth_proto::{Closed, Dial, Frame, TUNNEL_CHUNK, TUNNEL_TOKEN, Terminal, dial, frame};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use crate::agent::Key;
use crate::enter::Wish;
use crate::pty::Size;
use crate::shells::{Shell, Visit, enter, life_ends};

/// Shells in one attempt, those included that wait for somebody to come back.
const MOST_SHELLS: usize = 8;
/// Tunnels of this host, all together: what they may have under way is less than a connection takes. How many
/// of them one organization may have, the portal counts.
const MOST_TUNNELS: usize = 48;
/// A portal that does not take the last word of a tunnel does not get it.
const FAREWELL: Duration = Duration::from_secs(5);
/// Frames that wait for the connection.
const QUEUE: usize = 32;

/// One end of a tunnel.
pub struct Tunnel {
    /// What goes to the portal.
    pub words: mpsc::Sender<Frame>,
    frames: Streaming<Frame>,
    /// Absent where it is only opened to say that there is no room.
    place: Option<OwnedSemaphorePermit>,
}

/// The last word of a tunnel.
pub fn closed(cause: &str, detail: impl Into<String>) -> Closed {
    Closed { exit_code: None, cause: cause.to_owned(), detail: detail.into() }
}

impl Tunnel {
    /// What the portal says next; `None` when it has gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<frame::What> {
        loop {
            let Ok(Some(frame)) = self.frames.message().await else { return None };
            if frame.what.is_some() {
                return frame.what;
            }
        }
    }

    /// Says the last word, after everything before it.
    pub fn close(self, last: Closed) {
        let Self { words, mut frames, place } = self;
        tokio::spawn(async move {
            let said = async {
                if words.send(frame::What::Closed(last).into()).await.is_ok() {
                    drop(words);
                    // What is under way is lost when this end goes first.
                    while let Ok(Some(_)) = frames.message().await {}
                }
            };
            // Whoever does not listen for so long does not miss it.
            let _ = tokio::time::timeout(FAREWELL, said).await;
            drop(place);
        });
    }
}

type Name = (Key, String);

/// Everybody who is in an attempt of this host, or may come back.
#[derive(Clone)]
pub struct Tunnels {
    shells: Arc<Mutex<HashMap<Name, mpsc::Sender<Visit>>>>,
    /// Dropped when the attempt ends, upon which all who are there leave.
    lives: Arc<Mutex<HashMap<Key, watch::Sender<()>>>>,
    places: Arc<Semaphore>,
}

impl Default for Tunnels {
    fn default() -> Self {
        Self { shells: Arc::default(), lives: Arc::default(), places: Arc::new(Semaphore::new(MOST_TUNNELS)) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tunnels {
    /// Ends whatever is in an attempt that does not run any more.
    pub fn keep(&self, runs: impl Fn(&Key) -> bool) {
        lock(&self.lives).retain(|key, _| runs(key));
    }

    /// Opens the tunnel that the portal asks for. `dir` is the attempt's, when it runs.
    pub fn dial(&self, dial: Dial, portal: PortalClient<Channel>, dir: Option<PathBuf>) {
        let all = self.clone();
        tokio::spawn(async move {
            if let Err(why) = all.answer(dial, portal, dir).await {
                tracing::warn!(why, "a tunnel cannot be opened");
            }
        });
    }

    fn life(&self, key: &Key) -> watch::Receiver<()> {
        lock(&self.lives).entry(key.clone()).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    async fn answer(
        &self,
        dial: Dial,
        mut portal: PortalClient<Channel>,
        dir: Option<PathBuf>,
    ) -> Result<(), String> {
        let place = self.places.clone().try_acquire_owned().ok();
        let (words, queue) = mpsc::channel(QUEUE);
        let mut request = Request::new(ReceiverStream::new(queue));
        let token: MetadataValue<Ascii> = dial.token.parse().map_err(|_| "its token is not one")?;
        request.metadata_mut().insert(TUNNEL_TOKEN, token);
        let frames = portal.tunnel(request).await.map_err(|s| s.message().to_owned())?.into_inner();
        let full = place.is_none();
        let tunnel = Tunnel { words, frames, place };
        let (Some(id), Some(to), Some(dir)) = (dial.attempt, dial.to, dir) else {
            tunnel.close(closed("gone", "The job does not run on this node."));
            return Ok(());
        };
        if full {
            tunnel.close(closed("refused", "Too many terminals and connections are open on this node."));
            return Ok(());
        }
        let key = Key { job: id.job, number: id.number };
        match to {
            dial::To::Terminal(wanted) => self.terminal(key, wanted, tunnel, &dir).await,
            dial::To::Port(port) => self.port(&key, port, tunnel, &dir).await,
        }
        Ok(())
    }

    async fn terminal(&self, key: Key, wanted: Terminal, tunnel: Tunnel, dir: &Path) {
        const GONE: &str = "This terminal is not there any more.";
        let size = Size::clamped(wanted.cols, wanted.rows);
        let visit = Visit { tunnel, size, from: wanted.resume_from };
        let name = (key, wanted.id);
        let known = lock(&self.shells).get(&name).cloned();
        match known {
            Some(door) => {
                if let Err(mpsc::error::SendError(visit)) = door.send(visit).await {
                    visit.tunnel.close(closed("gone", GONE));
                }
            }
            None if wanted.resume_from.is_some() => visit.tunnel.close(closed("gone", GONE)),
            None => self.begin(name, visit, dir).await,
        }
    }

    /// Makes a place for a further shell of an attempt, if there may be one.
    fn admit(&self, name: &Name) -> Option<(mpsc::Sender<Visit>, mpsc::Receiver<Visit>)> {
        let mut shells = lock(&self.shells);
        if shells.contains_key(name) || shells.keys().filter(|(key, _)| *key == name.0).count() >= MOST_SHELLS
        {
            return None;
        }
        let (door, visits) = mpsc::channel(1);
        shells.insert(name.clone(), door.clone());
        Some((door, visits))
    }

    /// Starts a shell, and stays with it to its end.
    async fn begin(&self, name: Name, visit: Visit, dir: &Path) {
        let Some((door, visits)) = self.admit(&name) else {
            let why = format!("A job may have {MOST_SHELLS} terminals open; close one of them.");
            visit.tunnel.close(closed("refused", why));
            return;
        };
        let life = self.life(&name.0);
        let made = match enter(dir, Wish::Shell(visit.size)).await {
            Ok(opened) => {
                Shell::new(opened, visits, life).map_err(|e| format!("No terminal can be opened: {e}."))
            }
            Err(why) => Err(why),
        };
        match made {
            Ok(shell) => {
                // The first in the queue; somebody may be waiting behind it already.
                match door.try_send(visit) {
                    Ok(()) => {}
                    Err(
                        mpsc::error::TrySendError::Full(visit) | mpsc::error::TrySendError::Closed(visit),
                    ) => {
                        visit.tunnel.close(closed("taken_over", "The terminal was opened elsewhere."));
                    }
                }
                drop(door);
                shell.run().await;
            }
            Err(why) => visit.tunnel.close(closed("refused", why)),
        }
        lock(&self.shells).remove(&name);
    }

    async fn port(&self, key: &Key, port: u32, tunnel: Tunnel, dir: &Path) {
        let life = self.life(key);
        let port = u16::try_from(port).unwrap_or(0);
        let made = match enter(dir, Wish::Port(port)).await {
            Ok(opened) => {
                let stream = StdStream::from(opened.file);
                let ready = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                ready.map_err(|e| format!("Port {port} of the job cannot be used: {e}."))
            }
            Err(why) => Err(why),
        };
        match made {
            Ok(stream) => relay(tunnel, &stream, life).await,
            Err(why) => tunnel.close(closed("refused", why)),
        }
    }
}

/// What happened between a tunnel and a connection.
enum Event {
    JobEnded,
    Frame(Option<frame::What>),
    Room,
    Readable,
    Writable,
}

/// Carries bytes between a tunnel and a connection until one of them ends.
async fn relay(mut tunnel: Tunnel, stream: &TcpStream, mut life: watch::Receiver<()>) {
    let (mut out, mut inn) = (Outgoing::default(), Incoming::default());
    let mut pending: VecDeque<u8> = VecDeque::new();
    let mut tell: Option<u64> = None;
    let mut buffer = [0u8; TUNNEL_CHUNK];
    // The queue is empty still.
    let _ = tunnel.words.try_send(frame::What::Begins(0).into());
    loop {
        if let Some(taken) = tell
            && tunnel.words.try_send(frame::What::Taken(taken).into()).is_ok()
        {
            tell = None;
        }
        let most = usize::try_from(out.room()).unwrap_or(0).min(TUNNEL_CHUNK);
        let words = tunnel.words.clone();
        let full = words.capacity() == 0;
        let event = tokio::select! {
            () = life_ends(&mut life) => Event::JobEnded,
            frame = tunnel.next() => Event::Frame(frame),
            _ = words.reserve(), if full => Event::Room,
            _ = stream.readable(), if most > 0 && !full => Event::Readable,
            _ = stream.writable(), if !pending.is_empty() => Event::Writable,
        };
        let over = match event {
            Event::JobEnded => Some(closed("job_ended", "The job has ended.")),
            Event::Room => None,
            Event::Frame(Some(frame::What::Data(data))) => {
                let fits = inn.note_came(data.len() as u64);
                pending.extend(data);
                (!fits).then(|| closed("refused", "More came than may be under way."))
            }
            Event::Frame(Some(frame::What::Taken(taken))) => {
                out.note_taken(taken);
                None
            }
            Event::Frame(Some(frame::What::HangUp(_))) => Some(closed("ended", "The connection was closed.")),
            Event::Frame(Some(_)) => None,
            // Nobody is there to be told.
            Event::Frame(None) => return,
            Event::Readable => match stream.try_read(buffer.get_mut(..most).unwrap_or_default()) {
                Ok(0) => Some(closed("ended", "The job closed the connection.")),
                Ok(length) => {
                    let data = buffer.get(..length).unwrap_or_default().to_vec();
                    // There is room for it: nobody else uses this queue.
                    let _ = tunnel.words.try_send(frame::What::Data(data).into());
                    out.note_sent(length as u64);
                    None
                }
                Err(error) => broken(&error),
            },
            Event::Writable => match stream.try_write(pending.as_slices().0) {
                Ok(length) => {
                    pending.drain(..length.min(pending.len()));
                    inn.note_taken(length as u64);
                    tell = inn.due().or(tell);
                    None
                }
                Err(error) => broken(&error),
            },
        };
        if let Some(last) = over {
            tunnel.close(last);
            return;
        }
    }
}

/// The last word when a connection broke; none when it was only not ready.
fn broken(error: &std::io::Error) -> Option<Closed> {
    let waits = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted);
    (!waits).then(|| closed("ended", format!("The connection broke: {error}.")))
}
