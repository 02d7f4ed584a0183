//! Updates for open streams and worker sessions, and the latest readings of boards.
//!
//! All of it is in memory only. A listener that missed an update reads the database or the recordings.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_types::events::JobEvent;
use berth_types::health::GpuReading;
use berth_types::ids::{JobId, NodeId, OrgId, TerminalId, TokenId, UserId};
use berth_types::time::Timestamp;
use tokio::sync::{Notify, OnceCell, broadcast, oneshot};

use crate::changes::{Change, Listener};
use crate::credentials::SessionKey;

/// Updates that a slow listener may fall behind. A listener further behind must read the database.
const BACKLOG: usize = 256;

/// A changed job. The first stream that sends the change makes the JSON text, and all streams share it.
#[derive(Debug, Clone)]
pub struct ChangedJob {
    pub org: OrgId,
    pub job: JobId,
    /// Absent: only the presentation of the job changed.
    pub event: Option<JobEvent>,
    pub text: Arc<OnceCell<Arc<str>>>,
}

/// An update about a job for its streams. Texts are JSON, made once and shared by all listeners.
#[derive(Debug, Clone)]
pub enum JobUpdate {
    Change(ChangedJob),
    Cost(Arc<str>),
    Sample {
        at: Timestamp,
        text: Arc<str>,
    },
    /// The log grew or is now complete.
    Log,
}

/// The latest reading of a board.
#[derive(Debug, Clone, Copy, Default)]
pub struct BoardReading {
    pub power_watts: Option<f64>,
    pub temperature_celsius: Option<f64>,
    pub utilization_percent: Option<f64>,
}

/// The end of a tunnel in an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelTarget {
    /// A shell. The worker starts it, or sends the output of a present shell again from a byte on.
    Terminal { id: TerminalId, cols: u32, rows: u32, resume_from: Option<u64> },
    /// A TCP port of the job, on its own loopback.
    Port(u16),
}

/// A request to a worker to open a tunnel into an attempt. It has no `Debug`, since the token is a secret.
pub struct TunnelRequest {
    /// The single-use secret that identifies the tunnel.
    pub token: String,
    pub job: JobId,
    pub attempt: u32,
    pub target: TunnelTarget,
}

struct NodeSession {
    number: u64,
    wake: Arc<Notify>,
    /// Requests for a sign of life from the worker. Each sender reports the worker's answer.
    pings: Vec<oneshot::Sender<()>>,
    /// Tunnels for the worker to open.
    tunnels: Vec<TunnelRequest>,
}

#[derive(Default)]
pub struct Live {
    jobs: Mutex<HashMap<JobId, broadcast::Sender<JobUpdate>>>,
    orgs: Mutex<HashMap<OrgId, broadcast::Sender<JobUpdate>>>,
    /// Notified when the rights of a member in an organization change.
    members: Mutex<HashMap<(OrgId, UserId), broadcast::Sender<()>>>,
    /// Notified when an API token is revoked.
    tokens: Mutex<HashMap<TokenId, broadcast::Sender<()>>>,
    /// Notified when a user gets another role of operators, or none.
    operators: Mutex<HashMap<UserId, broadcast::Sender<()>>>,
    /// Notified when a person signs out of a session.
    people: Mutex<HashMap<SessionKey, broadcast::Sender<()>>>,
    sessions: Mutex<HashMap<NodeId, NodeSession>>,
    readings: Mutex<HashMap<String, BoardReading>>,
    /// The latest detailed readings of whole boards, by GPU UUID.
    gpu_readings: Mutex<HashMap<String, GpuReading>>,
    /// Organizations with a webhook for events of jobs.
    webhook_orgs: Mutex<HashSet<OrgId>>,
    counter: AtomicU64,
    /// Wakes the loop of budgets after a charge.
    pub charged: Notify,
    /// Organizations with a charge since the last check of budgets.
    charged_orgs: Mutex<HashSet<OrgId>>,
}

impl Live {
    pub fn has_webhook(&self, org: OrgId) -> bool {
        lock(&self.webhook_orgs).contains(&org)
    }

    /// Removes and returns the organizations with a charge since the last call.
    pub fn remove_charged(&self) -> HashSet<OrgId> {
        std::mem::take(&mut *lock(&self.charged_orgs))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn subscribe<K: Eq + Hash, N: Clone>(
    map: &Mutex<HashMap<K, broadcast::Sender<N>>>,
    key: K,
) -> broadcast::Receiver<N> {
    let mut map = lock(map);
    if !map.contains_key(&key) {
        // `publish` removes only keys that it publishes to, so unused entries of other keys are removed here.
        map.retain(|_, sender| sender.receiver_count() > 0);
    }
    map.entry(key).or_insert_with(|| broadcast::channel(BACKLOG).0).subscribe()
}

/// Waits for the next message of an optional subscription; without one, for ever.
async fn next(messages: &mut Option<broadcast::Receiver<()>>) {
    match messages {
        Some(messages) => {
            let _ = messages.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Sends an update to the listeners of a key. Without a listener `update` is not called.
fn publish<K: Eq + Hash, N>(
    map: &Mutex<HashMap<K, broadcast::Sender<N>>>,
    key: K,
    update: impl FnOnce() -> N,
) {
    let mut map = lock(map);
    if map.get(&key).is_some_and(|sender| sender.send(update()).is_err()) {
        // The last listener is gone.
        map.remove(&key);
    }
}

impl Listener for Live {
    fn on_change(&self, change: &Change) {
        match change {
            Change::Job { org, job, event } => {
                let text: Arc<OnceCell<Arc<str>>> = Arc::default();
                let update = || {
                    let (event, text) = (event.clone(), text.clone());
                    JobUpdate::Change(ChangedJob { org: *org, job: *job, event, text })
                };
                publish(&self.jobs, *job, update);
                publish(&self.orgs, *org, update);
            }
            Change::Assignments(node) => self.wake_node(*node),
            Change::NodeRevoked(node) => self.close_session(*node),
            Change::Charged(org) => {
                lock(&self.charged_orgs).insert(*org);
                self.charged.notify_one();
            }
            Change::Member { org, user } => publish(&self.members, (*org, *user), || ()),
            Change::Operator(user) => publish(&self.operators, *user, || ()),
            Change::TokenRevoked(token) => publish(&self.tokens, *token, || ()),
            Change::SignedOut(session) => publish(&self.people, session.clone(), || ()),
            Change::Webhooks(orgs) => lock(&self.webhook_orgs).clone_from(orgs),
            Change::JobDevices(_)
            | Change::Boards
            | Change::Orgs
            | Change::Reservations
            | Change::Service(_)
            | Change::InferenceKeys(_) => {}
        }
    }
}

impl Live {
    pub fn listen_job(&self, job: JobId) -> broadcast::Receiver<JobUpdate> {
        subscribe(&self.jobs, job)
    }

    pub fn listen_org(&self, org: OrgId) -> broadcast::Receiver<JobUpdate> {
        subscribe(&self.orgs, org)
    }

    /// Resolves when the open streams of a caller in an organization must end: after a change of the caller's
    /// rights, after the sign-out, or after the revocation of the token. Changes count from the call on, not from
    /// the first poll.
    pub fn streams_end(
        &self,
        org: OrgId,
        user: UserId,
        token: Option<TokenId>,
        session: Option<SessionKey>,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut member = subscribe(&self.members, (org, user));
        let mut operator = subscribe(&self.operators, user);
        let mut by_token = token.map(|token| subscribe(&self.tokens, token));
        let mut by_session = session.map(|session| subscribe(&self.people, session));
        async move {
            // Every result ends the streams, also the error about missed messages.
            tokio::select! {
                _ = member.recv() => {}
                _ = operator.recv() => {}
                () = next(&mut by_token) => {}
                () = next(&mut by_session) => {}
            }
        }
    }

    /// True if a stream of this job is open. Otherwise the caller need not make an update.
    pub fn has_listeners(&self, job: JobId) -> bool {
        lock(&self.jobs).get(&job).is_some_and(|s| s.receiver_count() > 0)
    }

    /// Sends an update without a committed change to the streams of a job.
    pub fn publish_job(&self, job: JobId, update: JobUpdate) {
        publish(&self.jobs, job, || update);
    }

    /// Opens the session of a worker and ends an older session of the same node.
    pub fn open_session(self: &Arc<Self>, node: NodeId) -> SessionGuard {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let wake = Arc::new(Notify::new());
        let older = lock(&self.sessions)
            .insert(node, NodeSession { number, wake: wake.clone(), pings: Vec::new(), tunnels: Vec::new() });
        if let Some(older) = older {
            older.wake.notify_one();
        }
        SessionGuard { live: self.clone(), node, number, wake }
    }

    /// The nodes with an open session.
    pub fn connected(&self) -> HashSet<NodeId> {
        lock(&self.sessions).keys().copied().collect()
    }

    /// Makes a node's session send its assignments again.
    fn wake_node(&self, node: NodeId) {
        if let Some(session) = lock(&self.sessions).get(&node) {
            session.wake.notify_one();
        }
    }

    /// Ends a node's session, if it has one.
    pub fn close_session(&self, node: NodeId) {
        if let Some(session) = lock(&self.sessions).remove(&node) {
            session.wake.notify_one();
        }
    }

    /// Makes a node's session ask its worker for a sign of life. The receiver resolves at the worker's answer
    /// and fails at the end of the session. Returns `None` without a session.
    pub fn ping(&self, node: NodeId) -> Option<oneshot::Receiver<()>> {
        let mut sessions = lock(&self.sessions);
        let session = sessions.get_mut(&node)?;
        let (answer, answered) = oneshot::channel();
        session.pings.push(answer);
        session.wake.notify_one();
        Some(answered)
    }

    /// Makes a node's session ask its worker for a tunnel. Returns `false` without a session.
    pub fn request_tunnel(&self, node: NodeId, request: TunnelRequest) -> bool {
        let mut sessions = lock(&self.sessions);
        let Some(session) = sessions.get_mut(&node) else { return false };
        session.tunnels.push(request);
        session.wake.notify_one();
        true
    }

    pub fn put_reading(&self, gpu_uuid: String, reading: BoardReading) {
        lock(&self.readings).insert(gpu_uuid, reading);
    }

    pub fn put_gpu_reading(&self, gpu_uuid: &str, reading: GpuReading) {
        lock(&self.gpu_readings).insert(gpu_uuid.to_owned(), reading);
    }

    pub fn gpu_reading(&self, gpu_uuid: &str) -> GpuReading {
        lock(&self.gpu_readings).get(gpu_uuid).copied().unwrap_or_default()
    }

    pub fn reading(&self, gpu_uuid: &str) -> BoardReading {
        lock(&self.readings).get(gpu_uuid).copied().unwrap_or_default()
    }
}

/// The open session of a worker. The session ends when the guard is dropped.
pub struct SessionGuard {
    live: Arc<Live>,
    node: NodeId,
    number: u64,
    pub wake: Arc<Notify>,
}

impl SessionGuard {
    /// True if this is still the session of the node, neither closed nor replaced by a newer one.
    pub fn is_current(&self) -> bool {
        lock(&self.live.sessions).get(&self.node).is_some_and(|s| s.number == self.number)
    }

    /// Removes and returns the requests for a sign of life since the last call.
    pub fn take_pings(&self) -> Vec<oneshot::Sender<()>> {
        let mut sessions = lock(&self.live.sessions);
        let own = sessions.get_mut(&self.node).filter(|s| s.number == self.number);
        own.map(|session| std::mem::take(&mut session.pings)).unwrap_or_default()
    }

    /// Removes and returns the requested tunnels since the last call.
    pub fn take_tunnels(&self) -> Vec<TunnelRequest> {
        let mut sessions = lock(&self.live.sessions);
        let own = sessions.get_mut(&self.node).filter(|s| s.number == self.number);
        own.map(|session| std::mem::take(&mut session.tunnels)).unwrap_or_default()
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        let mut sessions = lock(&self.live.sessions);
        if sessions.get(&self.node).is_some_and(|s| s.number == self.number) {
            sessions.remove(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn unused_channels_are_removed_at_the_next_subscription() {
        let live = Live::default();
        for n in 0..100 {
            // No update follows, so only the next subscription can remove the entry.
            drop(live.listen_job(JobId::from_uuid(uuid::Uuid::from_u128(n))));
        }
        assert_eq!(lock(&live.jobs).len(), 1);
    }

    #[tokio::test]
    async fn streams_end_for_one_member_of_one_organization() {
        let live = Live::default();
        let org = |n: u128| OrgId::from_uuid(uuid::Uuid::from_u128(n));
        let user = |n: u128| UserId::from_uuid(uuid::Uuid::from_u128(n));
        let (mut ada, mut bob) = (
            Box::pin(live.streams_end(org(1), user(1), None, None)),
            Box::pin(live.streams_end(org(1), user(2), None, None)),
        );
        live.on_change(&Change::Member { org: org(2), user: user(1) });
        live.on_change(&Change::Member { org: org(1), user: user(3) });
        assert!((&mut ada).now_or_never().is_none() && (&mut bob).now_or_never().is_none());
        live.on_change(&Change::Member { org: org(1), user: user(1) });
        assert!((&mut ada).now_or_never().is_some() && (&mut bob).now_or_never().is_none());
    }

    #[tokio::test]
    async fn streams_of_an_operator_end_at_a_change_of_the_role() {
        let live = Live::default();
        let org = OrgId::from_uuid(uuid::Uuid::nil());
        let user = |n: u128| UserId::from_uuid(uuid::Uuid::from_u128(n));
        let mut ada = Box::pin(live.streams_end(org, user(1), None, None));
        let mut bob = Box::pin(live.streams_end(org, user(2), None, None));
        live.on_change(&Change::Operator(user(1)));
        assert!((&mut ada).now_or_never().is_some() && (&mut bob).now_or_never().is_none());
    }

    #[tokio::test]
    async fn streams_of_a_token_end_with_it() {
        let live = Live::default();
        let (org, user) = (OrgId::from_uuid(uuid::Uuid::nil()), UserId::from_uuid(uuid::Uuid::nil()));
        let token = |n: u128| TokenId::from_uuid(uuid::Uuid::from_u128(n));
        let mut one = Box::pin(live.streams_end(org, user, Some(token(1)), None));
        let mut other = Box::pin(live.streams_end(org, user, Some(token(2)), None));
        let mut page = Box::pin(live.streams_end(org, user, None, None));
        live.on_change(&Change::TokenRevoked(token(1)));
        assert!((&mut one).now_or_never().is_some());
        assert!((&mut other).now_or_never().is_none() && (&mut page).now_or_never().is_none());
        live.on_change(&Change::Member { org, user });
        assert!((&mut other).now_or_never().is_some() && (&mut page).now_or_never().is_some());
    }

    #[tokio::test]
    async fn streams_of_a_session_end_at_the_sign_out() {
        let live = Live::default();
        let (org, user) = (OrgId::from_uuid(uuid::Uuid::nil()), UserId::from_uuid(uuid::Uuid::nil()));
        let session = |name: &str| SessionKey::from_cookie(name);
        let mut here = Box::pin(live.streams_end(org, user, None, Some(session("here"))));
        let mut there = Box::pin(live.streams_end(org, user, None, Some(session("there"))));
        live.on_change(&Change::SignedOut(session("here")));
        assert!((&mut here).now_or_never().is_some() && (&mut there).now_or_never().is_none());
    }

    #[test]
    fn a_newer_session_of_a_node_ends_the_older() {
        let live = Arc::new(Live::default());
        let node = NodeId::from_uuid(uuid::Uuid::from_u128(1));
        let older = live.open_session(node);
        let newer = live.open_session(node);
        assert!(!older.is_current() && newer.is_current());
        drop(older);
        assert!(live.connected().contains(&node), "the older one's end does not end the newer");
        drop(newer);
        assert!(live.connected().is_empty());
    }

    #[test]
    fn a_ping_is_answered_or_fails_with_the_session() {
        let live = Arc::new(Live::default());
        let node = NodeId::from_uuid(uuid::Uuid::from_u128(1));
        assert!(live.ping(node).is_none());
        let session = live.open_session(node);
        let mut answered = live.ping(node).unwrap();
        for ping in session.take_pings() {
            ping.send(()).unwrap();
        }
        assert_eq!(answered.try_recv(), Ok(()));
        assert!(session.take_pings().is_empty());
        let mut unanswered = live.ping(node).unwrap();
        live.close_session(node);
        assert_eq!(unanswered.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(!session.is_current() && live.connected().is_empty());
        let newer = live.open_session(node);
        drop(session);
        assert!(newer.is_current(), "the end of one that was closed does not end the next");
    }
}
