//! Tunnels into running jobs. The portal asks a worker to dial and passes the worker's stream to the waiting
//! request.
//!
//! Must not decide about rights: `terminals` and `ports` do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_contract::TUNNEL_CHUNK;
use berth_contract::window::{Incoming, Outgoing};
use berth_types::ids::{JobId, NodeId, OrgId, TerminalId, UserId};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use berth_foundation::credentials::{fingerprint, new_opaque};
use berth_foundation::live::{TunnelRequest, TunnelTarget};
use berth_foundation::{Change, Context, Listener};

/// Timeouts for the worker's dial, and for the opening after it.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// Tunnels of one organization into one node: a third of a worker's limit, so no organization uses up all of
/// them.
const MAX_PER_ORG: usize = 16;
/// The wait for a free tunnel of the organization. Browsers open a few connections at once.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Frames in the queue of the connection.
const QUEUE: usize = 32;

/// The end of a tunnel, as the worker reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The exit code of the shell; absent if the shell has not ended or never started.
    pub exit_code: Option<i32>,
    /// `ended` (the shell or the connection), `job_ended`, `taken_over`, `gone` or `refused`.
    pub cause: String,
    /// The cause as text.
    pub detail: String,
}

/// A frame from the worker.
#[derive(Debug, PartialEq, Eq)]
pub enum WorkerFrame {
    /// The first frame, after the shell or connection is open: the offset of the tunnel's first byte.
    Begins(u64),
    Data(Vec<u8>),
    /// The total of the bytes that the job has consumed.
    Taken(u64),
    /// The last frame.
    Closed(Closed),
}

/// A frame to the worker.
#[derive(Debug, PartialEq, Eq)]
pub enum PortalFrame {
    Data(Vec<u8>),
    /// The total of the bytes that the client has consumed.
    Taken(u64),
    /// The size of the terminal in characters.
    Size {
        cols: u32,
        rows: u32,
    },
    /// The shell or connection ends now.
    HangUp,
}

/// The portal's end of a tunnel.
pub struct Tunnel {
    replies: mpsc::Sender<PortalFrame>,
    /// Ends with the connection.
    frames: BoxStream<'static, WorkerFrame>,
    outgoing: Outgoing,
    incoming: Incoming,
    /// The number of consumed bytes that the worker must learn next.
    ack_due: Option<u64>,
    /// Closes at the revocation of the node. Absent until the delivery to the waiting request.
    node_open: Option<watch::Receiver<()>>,
    /// The tunnel's share of the limit of its organization.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Waits for the revocation of a node.
async fn wait_for_revocation(node_open: Option<&mut watch::Receiver<()>>) {
    match node_open {
        Some(node_open) => while node_open.changed().await.is_ok() {},
        None => std::future::pending().await,
    }
}

/// A message of the worker, or the end of the tunnel.
#[derive(Debug, PartialEq)]
pub enum TunnelEvent {
    /// The tunnel is open. The number is the offset of its first byte.
    Begins(u64),
    Data(Vec<u8>),
    /// The job has consumed this number of bytes.
    Taken(u64),
    Closed(Closed),
    /// The connection broke, or the worker violated the protocol.
    Gone,
}

impl Tunnel {
    /// Makes a tunnel from the frames of a worker. The returned receiver has the frames for the worker.
    pub fn new(frames: BoxStream<'static, WorkerFrame>) -> (Self, mpsc::Receiver<PortalFrame>) {
        let (replies, receiver) = mpsc::channel(QUEUE);
        let (outgoing, incoming) = (Outgoing::default(), Incoming::default());
        let tunnel =
            Self { replies, frames, outgoing, incoming, ack_due: None, node_open: None, _permit: None };
        (tunnel, receiver)
    }

    /// The next message of the worker. Cancel-safe.
    pub async fn next(&mut self) -> TunnelEvent {
        let frame = tokio::select! {
            () = wait_for_revocation(self.node_open.as_mut()) => return TunnelEvent::Gone,
            frame = self.frames.next() => frame,
        };
        match frame {
            Some(WorkerFrame::Data(data)) => match self.incoming.note_came(data.len() as u64) {
                true => TunnelEvent::Data(data),
                false => TunnelEvent::Gone,
            },
            Some(WorkerFrame::Taken(taken)) => {
                self.outgoing.note_taken(taken);
                TunnelEvent::Taken(taken)
            }
            Some(WorkerFrame::Begins(offset)) => TunnelEvent::Begins(offset),
            Some(WorkerFrame::Closed(closed)) => TunnelEvent::Closed(closed),
            None => TunnelEvent::Gone,
        }
    }

    /// Number of bytes that may be sent now in one piece.
    pub fn send_capacity(&self) -> usize {
        usize::try_from(self.outgoing.room()).unwrap_or(0).min(TUNNEL_CHUNK)
    }

    /// Notes the number of received bytes that were passed on.
    pub fn note_taken(&mut self, bytes: u64) {
        self.incoming.note_taken(bytes);
        self.ack_due = self.incoming.due().or(self.ack_due);
    }

    async fn send_frame(&mut self, frame: PortalFrame) -> Result<(), ()> {
        self.replies.send(frame).await.map_err(|_| ())
    }

    /// Sends the number of consumed bytes to the worker, if that is due.
    pub async fn send_ack(&mut self) -> Result<(), ()> {
        match self.ack_due.take() {
            Some(taken) => self.send_frame(PortalFrame::Taken(taken)).await,
            None => Ok(()),
        }
    }

    /// Sends a piece of at most [`Self::send_capacity`] bytes. An error means that the connection to the
    /// worker is lost.
    pub async fn send(&mut self, data: Vec<u8>) -> Result<(), ()> {
        self.outgoing.note_sent(data.len() as u64);
        self.send_frame(PortalFrame::Data(data)).await
    }

    pub async fn resize(&mut self, cols: u32, rows: u32) -> Result<(), ()> {
        self.send_frame(PortalFrame::Size { cols, rows }).await
    }

    /// Asks the worker to close the other end of the tunnel.
    pub async fn hang_up(&mut self) {
        // An error does not matter: a worker without the connection closes its end anyway.
        let _ = self.send_frame(PortalFrame::HangUp).await;
    }
}

/// A single-use right to the socket of a terminal.
struct StoredTicket {
    terminal: TerminalId,
    user: UserId,
    expires_at: Timestamp,
}

/// The requests that wait for tunnels, and the tickets of terminals.
#[derive(Default)]
pub struct Tunnels {
    /// By the hash of the tunnel's token.
    pending: Mutex<HashMap<String, (NodeId, oneshot::Sender<Tunnel>)>>,
    /// By the hash of the ticket.
    tickets: Mutex<HashMap<String, StoredTicket>>,
    /// A sender is dropped at the revocation of its node.
    nodes: Mutex<HashMap<NodeId, watch::Sender<()>>>,
    permits: Mutex<HashMap<(NodeId, OrgId), Arc<Semaphore>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tunnels {
    /// Passes a worker's stream to the waiting request. Returns `false` if no request waits for this token
    /// and node.
    pub fn deliver(&self, node: NodeId, token: &str, tunnel: Tunnel) -> bool {
        let mut pending = lock(&self.pending);
        let key = fingerprint(token);
        // A token for another node stays valid for that node.
        if pending.get(&key).is_none_or(|(owner, _)| *owner != node) {
            return false;
        }
        let node_open = lock(&self.nodes).entry(node).or_insert_with(|| watch::channel(()).0).subscribe();
        let tunnel = Tunnel { node_open: Some(node_open), ..tunnel };
        pending.remove(&key).is_some_and(|(_, sender)| sender.send(tunnel).is_ok())
    }

    /// Ends all tunnels of a node.
    pub fn close_node(&self, node: NodeId) {
        lock(&self.nodes).remove(&node);
    }

    /// The semaphore of an organization's tunnels into a node.
    fn semaphore(&self, node: NodeId, org: OrgId) -> Arc<Semaphore> {
        let mut permits = lock(&self.permits);
        // Open tunnels and waiting requests hold a reference.
        permits.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        permits.entry((node, org)).or_insert_with(|| Arc::new(Semaphore::new(MAX_PER_ORG))).clone()
    }

    /// Stores a ticket and removes expired tickets.
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
        tickets.insert(fingerprint(ticket), StoredTicket { terminal, user, expires_at });
    }

    /// Uses up a ticket. Returns true if it was valid for this terminal and user.
    pub fn use_ticket(&self, ticket: &str, terminal: TerminalId, user: UserId, now: Timestamp) -> bool {
        let stored = lock(&self.tickets).remove(&fingerprint(ticket));
        stored.is_some_and(|t| t.terminal == terminal && t.user == user && t.expires_at > now)
    }
}

/// Removes a pending request at the end of its wait, in every case.
struct PendingGuard {
    tunnels: Arc<Tunnels>,
    key: String,
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        lock(&self.tunnels.pending).remove(&self.key);
    }
}

/// The reason of a failed tunnel.
pub enum TunnelError {
    /// The worker does not answer now, but may answer later.
    Unreachable(Problem),
    /// The organization is at its limit of tunnels into this node.
    Full,
    /// The worker refused or ended the tunnel.
    Closed(Closed),
}

/// The text for an organization at its limit of tunnels into a node.
pub fn limit_text() -> String {
    format!(
        "The organization has {MAX_PER_ORG} terminals and connections open on this node, the maximum. Close some of them."
    )
}

fn worker_unreachable() -> TunnelError {
    TunnelError::Unreachable(Problem::unavailable(
        "The worker of the job is unreachable. Try again in a moment.",
        2,
    ))
}

impl Listener for Tunnels {
    fn on_change(&self, change: &Change) {
        if let Change::NodeRevoked(node) = change {
            self.close_node(*node);
        }
    }
}

impl Tunnels {
    /// Creates the list of tunnels and subscribes it to changes. The revocation of a node ends the node's
    /// tunnels.
    pub fn subscribed(context: &Context) -> Arc<Self> {
        let tunnels: Arc<Self> = Arc::default();
        context.changes.subscribe(tunnels.clone());
        tunnels
    }

    /// Opens a tunnel into an attempt of an organization. Returns the tunnel and the offset of its first
    /// byte.
    pub async fn open(
        self: &Arc<Self>,
        context: &Context,
        node: NodeId,
        org: OrgId,
        (job, attempt): (JobId, u32),
        target: TunnelTarget,
    ) -> Result<(Tunnel, u64), TunnelError> {
        let permit = self.semaphore(node, org).acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout(PERMIT_TIMEOUT, permit).await else {
            return Err(TunnelError::Full);
        };
        let token = context.random(new_opaque);
        let key = fingerprint(&token);
        let (sender, delivered) = oneshot::channel();
        lock(&self.pending).insert(key.clone(), (node, sender));
        let _pending = PendingGuard { tunnels: self.clone(), key };
        if !context.live.request_tunnel(node, TunnelRequest { token, job, attempt, target }) {
            return Err(worker_unreachable());
        }
        let Ok(Ok(mut tunnel)) = tokio::time::timeout(DIAL_TIMEOUT, delivered).await else {
            return Err(worker_unreachable());
        };
        match tokio::time::timeout(OPEN_TIMEOUT, tunnel.next()).await {
            Ok(TunnelEvent::Begins(offset)) => {
                tunnel._permit = Some(permit);
                Ok((tunnel, offset))
            }
            Ok(TunnelEvent::Closed(closed)) => Err(TunnelError::Closed(closed)),
            Ok(_) | Err(_) => Err(worker_unreachable()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_ticket_is_valid_once_for_one_user_and_terminal() {
        let tunnels = Tunnels::default();
        let terminal = |n: u128| TerminalId::from_uuid(uuid::Uuid::from_u128(n));
        let user = |n: u128| UserId::from_uuid(uuid::Uuid::from_u128(n));
        let at = Timestamp::from_micros;
        let put = |ticket: &str| tunnels.put_ticket(ticket, terminal(1), user(1), at(10), at(0));
        put("a");
        assert!(tunnels.use_ticket("a", terminal(1), user(1), at(9)));
        assert!(!tunnels.use_ticket("a", terminal(1), user(1), at(9)), "once");
        for (id, by, now) in [(2, 1, 9), (1, 2, 9), (1, 1, 10)] {
            put("b");
            assert!(!tunnels.use_ticket("b", terminal(id), user(by), at(now)), "{id} {by} {now}");
        }
        assert!(!tunnels.use_ticket("forged", terminal(1), user(1), at(0)));
        put("old");
        tunnels.put_ticket("new", terminal(1), user(1), at(30), at(20));
        assert_eq!(lock(&tunnels.tickets).len(), 1, "what is too old is not kept");
    }

    #[test]
    fn an_organization_has_a_limited_part_of_the_tunnels_of_a_node() {
        let tunnels = Tunnels::default();
        let acquire = |node: u128, org: u128| {
            let (node, org) = (uuid::Uuid::from_u128(node), uuid::Uuid::from_u128(org));
            tunnels.semaphore(NodeId::from_uuid(node), OrgId::from_uuid(org)).try_acquire_owned()
        };
        let mut held: Vec<_> = (0..MAX_PER_ORG).map(|_| acquire(1, 1).unwrap()).collect();
        assert!(acquire(1, 1).is_err());
        assert!(acquire(1, 2).is_ok() && acquire(2, 1).is_ok(), "another's, and those of another node");
        held.pop();
        held.push(acquire(1, 1).unwrap());
        assert!(acquire(1, 1).is_err());
        drop(held);
        assert!(acquire(3, 1).is_ok());
        assert_eq!(lock(&tunnels.permits).len(), 1, "what nobody is in is forgotten");
    }
    #[test]
    fn the_revocation_of_a_node_ends_its_tunnels_and_no_others() {
        let tunnels = Tunnels::default();
        let node = |n: u128| NodeId::from_uuid(uuid::Uuid::from_u128(n));
        let open = [1, 2]
            .map(|n| lock(&tunnels.nodes).entry(node(n)).or_insert_with(|| watch::channel(()).0).subscribe());
        let ended = || open.each_ref().map(|tunnel| tunnel.has_changed().is_err());
        tunnels.on_change(&Change::Boards);
        tunnels.on_change(&Change::Assignments(node(1)));
        assert_eq!(ended(), [false, false]);
        tunnels.on_change(&Change::NodeRevoked(node(1)));
        assert_eq!(ended(), [true, false]);
    }
}
