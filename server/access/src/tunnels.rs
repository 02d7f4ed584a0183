//! Tunnels into running jobs: a worker is asked to dial, and its stream is handed to whoever waits for it.
//!
//! Must not decide who may have one: `terminals` and `ports` do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_proto::window::{Incoming, Outgoing};
use berth_proto::{AttemptId, Closed, Dial, Frame, TUNNEL_CHUNK, dial, frame};
use berth_types::ids::{NodeId, OrgId, TerminalId, UserId};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tonic::{Status, Streaming};

use berth_foundation::credentials::{fingerprint, new_opaque};
use berth_foundation::{Change, Context, Listener};

/// A worker that was asked to dial does so within this time, and has opened within that.
const DIALLED: Duration = Duration::from_secs(10);
const OPENED: Duration = Duration::from_secs(15);
/// Tunnels of one organization into one node, a third of what a worker has for all: nobody takes every one.
const MOST_OF_ORG: usize = 16;
/// A place among them is waited for so long, since browsers open a few connections at once.
const PLACED: Duration = Duration::from_secs(5);
/// Frames that wait for the connection.
const QUEUE: usize = 32;

/// One end of a tunnel.
pub struct Tunnel {
    words: mpsc::Sender<Result<Frame, Status>>,
    frames: Streaming<Frame>,
    out: Outgoing,
    inn: Incoming,
    /// What the worker must be told of what was taken.
    tell: Option<u64>,
    /// Closes when its node is shut out. Absent until it was handed over.
    life: Option<watch::Receiver<()>>,
    /// Its place among those of its organization, for as long as it is there.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Waits until a node is shut out.
async fn cut(life: Option<&mut watch::Receiver<()>>) {
    match life {
        Some(life) => while life.changed().await.is_ok() {},
        None => std::future::pending().await,
    }
}

/// What came through a tunnel.
#[derive(Debug, PartialEq)]
pub enum Heard {
    Begins(u64),
    Data(Vec<u8>),
    /// The job has taken so many bytes.
    Taken(u64),
    Closed(Closed),
    /// The connection broke, or the worker does not keep to the rules.
    Gone,
}

impl Tunnel {
    /// Around a stream that a worker opened; what is said goes into the other.
    pub fn new(frames: Streaming<Frame>) -> (Self, mpsc::Receiver<Result<Frame, Status>>) {
        let (words, replies) = mpsc::channel(QUEUE);
        let (out, inn) = (Outgoing::default(), Incoming::default());
        (Self { words, frames, out, inn, tell: None, life: None, _permit: None }, replies)
    }

    /// What the worker says next. Cancel-safe.
    pub async fn next(&mut self) -> Heard {
        loop {
            let frame = tokio::select! {
                () = cut(self.life.as_mut()) => return Heard::Gone,
                frame = self.frames.message() => frame,
            };
            let Ok(Some(frame)) = frame else { return Heard::Gone };
            match frame.what {
                Some(frame::What::Data(data)) => {
                    return if self.inn.note_came(data.len() as u64) {
                        Heard::Data(data)
                    } else {
                        Heard::Gone
                    };
                }
                Some(frame::What::Taken(taken)) => {
                    self.out.note_taken(taken);
                    return Heard::Taken(taken);
                }
                Some(frame::What::Begins(place)) => return Heard::Begins(place),
                Some(frame::What::Closed(closed)) => return Heard::Closed(closed),
                Some(frame::What::Size(_) | frame::What::HangUp(_)) | None => {}
            }
        }
    }

    /// Bytes that may be sent now, in one piece.
    pub fn room(&self) -> usize {
        usize::try_from(self.out.room()).unwrap_or(0).min(TUNNEL_CHUNK)
    }

    /// Notes that so many bytes of what came were passed on.
    pub fn note_taken(&mut self, bytes: u64) {
        self.inn.note_taken(bytes);
        self.tell = self.inn.due().or(self.tell);
    }

    async fn say(&mut self, what: frame::What) -> Result<(), ()> {
        self.words.send(Ok(what.into())).await.map_err(|_| ())
    }

    /// Says what was taken, when that is due.
    pub async fn tell(&mut self) -> Result<(), ()> {
        match self.tell.take() {
            Some(taken) => self.say(frame::What::Taken(taken)).await,
            None => Ok(()),
        }
    }

    /// Sends a piece that fits the room. An error says that the worker is gone.
    pub async fn send(&mut self, data: Vec<u8>) -> Result<(), ()> {
        self.out.note_sent(data.len() as u64);
        self.say(frame::What::Data(data)).await
    }

    pub async fn resize(&mut self, cols: u32, rows: u32) -> Result<(), ()> {
        self.say(frame::What::Size(berth_proto::Size { cols, rows })).await
    }

    /// Says that nobody wants what is at the other end.
    pub async fn hang_up(&mut self) {
        // Whoever is gone has let go by that.
        let _ = self.say(frame::What::HangUp(berth_proto::HangUp {})).await;
    }
}

/// Opens a terminal's socket once.
struct Ticket {
    terminal: TerminalId,
    user: UserId,
    expires_at: Timestamp,
}

/// Whoever waits for a tunnel, and what opens a socket.
#[derive(Default)]
pub struct Tunnels {
    awaited: Mutex<HashMap<String, (NodeId, oneshot::Sender<Tunnel>)>>,
    tickets: Mutex<HashMap<String, Ticket>>,
    /// Dropped when a node is shut out.
    nodes: Mutex<HashMap<NodeId, watch::Sender<()>>>,
    rooms: Mutex<HashMap<(NodeId, OrgId), Arc<Semaphore>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tunnels {
    /// Gives a worker's stream to whoever waits for it; `false` when nobody waits for one of this node.
    pub fn hand_over(&self, node: NodeId, token: &str, tunnel: Tunnel) -> bool {
        let mut awaited = lock(&self.awaited);
        let key = fingerprint(token);
        // A token of another node's is left to that node.
        if awaited.get(&key).is_none_or(|(of, _)| *of != node) {
            return false;
        }
        let life = lock(&self.nodes).entry(node).or_insert_with(|| watch::channel(()).0).subscribe();
        let tunnel = Tunnel { life: Some(life), ..tunnel };
        awaited.remove(&key).is_some_and(|(_, taker)| taker.send(tunnel).is_ok())
    }

    /// Ends every tunnel of a node.
    pub fn cut(&self, node: NodeId) {
        lock(&self.nodes).remove(&node);
    }

    /// What counts an organization's tunnels into a node.
    fn room(&self, node: NodeId, org: OrgId) -> Arc<Semaphore> {
        let mut rooms = lock(&self.rooms);
        // Whoever is in one, or waits for that, holds it.
        rooms.retain(|_, room| Arc::strong_count(room) > 1);
        rooms.entry((node, org)).or_insert_with(|| Arc::new(Semaphore::new(MOST_OF_ORG))).clone()
    }

    /// Keeps a ticket; those that are too old go.
    pub fn put_ticket(
        &self,
        ticket: &str,
        terminal: TerminalId,
        user: UserId,
        expires_at: Timestamp,
        now: Timestamp,
    ) {
        let mut tickets = lock(&self.tickets);
        tickets.retain(|_, ticket| ticket.expires_at > now);
        tickets.insert(fingerprint(ticket), Ticket { terminal, user, expires_at });
    }

    /// Uses a ticket up; whether it was good for this terminal and person.
    pub fn use_ticket(&self, ticket: &str, terminal: TerminalId, user: UserId, now: Timestamp) -> bool {
        let kept = lock(&self.tickets).remove(&fingerprint(ticket));
        kept.is_some_and(|kept| kept.terminal == terminal && kept.user == user && kept.expires_at > now)
    }
}

/// Forgets who waited, whatever became of it.
struct Waiting {
    tunnels: Arc<Tunnels>,
    key: String,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.tunnels.awaited).remove(&self.key);
    }
}

/// Why there is no tunnel.
pub enum Shut {
    /// The worker does not answer now; it may later.
    Away(Problem),
    /// The organization has as many into this node as it may.
    Full,
    /// The worker's last word.
    Closed(Closed),
}

/// What is said where there is no further place.
pub fn full() -> String {
    format!(
        "The organization has {MOST_OF_ORG} terminals and connections open on this node, as many as it may. Close some of them."
    )
}

fn away() -> Shut {
    Shut::Away(Problem::unavailable("The job's worker is out of reach; try again in a moment.", 2))
}

impl Listener for Tunnels {
    fn hear(&self, change: &Change) {
        if let Change::NodeRevoked(node) = change {
            self.cut(*node);
        }
    }
}

impl Tunnels {
    /// Tunnels that end when their node is revoked.
    pub fn subscribed(context: &Context) -> Arc<Self> {
        let tunnels: Arc<Self> = Arc::default();
        context.changes.subscribe(tunnels.clone());
        tunnels
    }

    /// A tunnel into an attempt of an organization's, and the place at which its bytes begin.
    pub async fn open(
        self: &Arc<Self>,
        context: &Context,
        node: NodeId,
        org: OrgId,
        attempt: AttemptId,
        to: dial::To,
    ) -> Result<(Tunnel, u64), Shut> {
        let room = self.room(node, org).acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout(PLACED, room).await else { return Err(Shut::Full) };
        let token = context.random(new_opaque);
        let key = fingerprint(&token);
        let (taker, taken) = oneshot::channel();
        lock(&self.awaited).insert(key.clone(), (node, taker));
        let _waiting = Waiting { tunnels: self.clone(), key };
        if !context.live.dial(node, Dial { token, attempt: Some(attempt), to: Some(to) }) {
            return Err(away());
        }
        let Ok(Ok(mut tunnel)) = tokio::time::timeout(DIALLED, taken).await else { return Err(away()) };
        match tokio::time::timeout(OPENED, tunnel.next()).await {
            Ok(Heard::Begins(place)) => {
                tunnel._permit = Some(permit);
                Ok((tunnel, place))
            }
            Ok(Heard::Closed(closed)) => Err(Shut::Closed(closed)),
            Ok(_) | Err(_) => Err(away()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_once_for_one_person_and_terminal() {
        let tunnels = Tunnels::default();
        let terminal = |n: u128| TerminalId::from_uuid(uuid::Uuid::from_u128(n));
        let user = |n: u128| UserId::from_uuid(uuid::Uuid::from_u128(n));
        let at = Timestamp::from_micros;
        let put = |ticket: &str| tunnels.put_ticket(ticket, terminal(1), user(1), at(10), at(0));
        put("a");
        assert!(tunnels.use_ticket("a", terminal(1), user(1), at(9)));
        assert!(!tunnels.use_ticket("a", terminal(1), user(1), at(9)), "once");
        for (of, by, now) in [(2, 1, 9), (1, 2, 9), (1, 1, 10)] {
            put("b");
            assert!(!tunnels.use_ticket("b", terminal(of), user(by), at(now)), "{of} {by} {now}");
        }
        assert!(!tunnels.use_ticket("forged", terminal(1), user(1), at(0)));
        put("old");
        tunnels.put_ticket("new", terminal(1), user(1), at(30), at(20));
        assert_eq!(lock(&tunnels.tickets).len(), 1, "what is too old is not kept");
    }

    #[test]
    fn an_organization_has_a_part_of_a_nodes_tunnels() {
        let tunnels = Tunnels::default();
        let take = |node: u128, org: u128| {
            let (node, org) = (uuid::Uuid::from_u128(node), uuid::Uuid::from_u128(org));
            tunnels.room(NodeId::from_uuid(node), OrgId::from_uuid(org)).try_acquire_owned()
        };
        let mut held: Vec<_> = (0..MOST_OF_ORG).map(|_| take(1, 1).unwrap()).collect();
        assert!(take(1, 1).is_err());
        assert!(take(1, 2).is_ok() && take(2, 1).is_ok(), "another's, and those of another node");
        held.pop();
        held.push(take(1, 1).unwrap());
        assert!(take(1, 1).is_err());
        drop(held);
        assert!(take(3, 1).is_ok());
        assert_eq!(lock(&tunnels.rooms).len(), 1, "what nobody is in is forgotten");
    }
}
