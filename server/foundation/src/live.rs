//! News for open streams and worker sessions, and the latest readings of boards.
//!
//! Nothing here is kept. A listener that missed something reads the store or the recordings.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_proto::Dial;
use berth_types::events::JobEvent;
use berth_types::health::GpuReading;
use berth_types::ids::{JobId, NodeId, OrgId, TokenId, UserId};
use berth_types::time::Timestamp;
use tokio::sync::{Notify, OnceCell, broadcast, oneshot};

use crate::changes::{Change, Listener};

/// How many pieces of news a slow listener may fall behind before it must read up.
const BACKLOG: usize = 256;

/// A change of a job. The first stream that sends it makes its JSON, which all streams share.
#[derive(Debug, Clone)]
pub struct JobNews {
    pub org: OrgId,
    pub job: JobId,
    /// Absent: only the presentation of the job changed.
    pub event: Option<JobEvent>,
    pub text: Arc<OnceCell<Arc<str>>>,
}

/// One piece of news about a job. Texts are JSON, made once and shared by all listeners.
#[derive(Debug, Clone)]
pub enum News {
    Change(JobNews),
    Cost(Arc<str>),
    Sample {
        at: Timestamp,
        text: Arc<str>,
    },
    /// The log grew, or is now complete.
    Log,
}

/// The latest reading of a board.
#[derive(Debug, Clone, Copy, Default)]
pub struct BoardReading {
    pub power_watts: Option<f64>,
    pub temperature_celsius: Option<f64>,
    pub utilization_percent: Option<f64>,
}

struct NodeSession {
    number: u64,
    wake: Arc<Notify>,
    /// Who wants to know whether its worker still answers.
    asked: Vec<oneshot::Sender<()>>,
    /// Tunnels that its worker should open.
    dials: Vec<Dial>,
}

#[derive(Default)]
pub struct Live {
    jobs: Mutex<HashMap<JobId, broadcast::Sender<News>>>,
    orgs: Mutex<HashMap<OrgId, broadcast::Sender<News>>>,
    /// Told when what somebody may see in an organization became something else.
    members: Mutex<HashMap<(OrgId, UserId), broadcast::Sender<()>>>,
    /// Told when an API token was revoked.
    tokens: Mutex<HashMap<TokenId, broadcast::Sender<()>>>,
    sessions: Mutex<HashMap<NodeId, NodeSession>>,
    readings: Mutex<HashMap<String, BoardReading>>,
    /// What else was read of whole boards.
    whole: Mutex<HashMap<String, GpuReading>>,
    /// Organizations with a webhook that wants to hear of jobs.
    hooked: Mutex<HashSet<String>>,
    counter: AtomicU64,
    /// Wakes those who look at budgets.
    pub charged: Notify,
}

impl Live {
    pub fn is_hooked(&self, org: &str) -> bool {
        lock(&self.hooked).contains(org)
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
        // Nobody tells what nobody listens to any more, so it would never be noticed.
        map.retain(|_, sender| sender.receiver_count() > 0);
    }
    map.entry(key).or_insert_with(|| broadcast::channel(BACKLOG).0).subscribe()
}

/// Gives news to the listeners of a key; without one none are made.
fn publish<K: Eq + Hash, N>(map: &Mutex<HashMap<K, broadcast::Sender<N>>>, key: K, news: impl FnOnce() -> N) {
    let mut map = lock(map);
    if map.get(&key).is_some_and(|sender| sender.send(news()).is_err()) {
        // The last listener has left.
        map.remove(&key);
    }
}

impl Listener for Live {
    fn hear(&self, change: &Change) {
        match change {
            Change::Job { org, job, event } => {
                let text: Arc<OnceCell<Arc<str>>> = Arc::default();
                let news = || {
                    let (event, text) = (event.clone(), text.clone());
                    News::Change(JobNews { org: *org, job: *job, event, text })
                };
                publish(&self.jobs, *job, news);
                publish(&self.orgs, *org, news);
            }
            Change::Assignments(node) => self.wake_node(*node),
            Change::NodeRevoked(node) => self.close_session(*node),
            Change::Charged => self.charged.notify_one(),
            Change::Member { org, user } => publish(&self.members, (*org, *user), || ()),
            Change::TokenRevoked(token) => publish(&self.tokens, *token, || ()),
            Change::Webhooks(orgs) => lock(&self.hooked).clone_from(orgs),
            Change::Claim(_)
            | Change::Boards
            | Change::Orgs
            | Change::Reservations
            | Change::SignedOut(_) => {}
        }
    }
}

impl Live {
    pub fn listen_job(&self, job: JobId) -> broadcast::Receiver<News> {
        subscribe(&self.jobs, job)
    }

    pub fn listen_org(&self, org: OrgId) -> broadcast::Receiver<News> {
        subscribe(&self.orgs, org)
    }

    /// Resolves when the streams of somebody in an organization end, or those of the token by which they came;
    /// listens from the call on.
    pub fn streams_end(
        &self,
        org: OrgId,
        user: UserId,
        token: Option<TokenId>,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut ear = subscribe(&self.members, (org, user));
        let mut by_token = token.map(|token| subscribe(&self.tokens, token));
        async move {
            let revoked = async {
                match &mut by_token {
                    Some(ear) => {
                        let _ = ear.recv().await;
                    }
                    None => std::future::pending().await,
                }
            };
            // Whatever it hears, to have missed something too, is the end.
            tokio::select! {
                _ = ear.recv() => {}
                () = revoked => {}
            }
        }
    }

    /// Whether anyone would hear news of this job: what nobody hears need not be made.
    pub fn heard(&self, job: JobId) -> bool {
        lock(&self.jobs).get(&job).is_some_and(|s| s.receiver_count() > 0)
    }

    /// Gives news that are not recorded to the streams of a job.
    pub fn publish_job(&self, job: JobId, news: News) {
        publish(&self.jobs, job, || news);
    }

    /// A worker's session begins; an older one of the same node ends.
    pub fn open_session(self: &Arc<Self>, node: NodeId) -> SessionGuard {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let wake = Arc::new(Notify::new());
        let older = lock(&self.sessions)
            .insert(node, NodeSession { number, wake: wake.clone(), asked: Vec::new(), dials: Vec::new() });
        if let Some(older) = older {
            older.wake.notify_one();
        }
        SessionGuard { live: self.clone(), node, number, wake }
    }

    /// The nodes that a worker speaks for at this moment.
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

    /// Makes a node's session ask its worker for a sign of life. What is returned hears of it, or fails
    /// when the session ends; `None` when there is no session.
    pub fn ask_alive(&self, node: NodeId) -> Option<oneshot::Receiver<()>> {
        let mut sessions = lock(&self.sessions);
        let session = sessions.get_mut(&node)?;
        let (answer, answered) = oneshot::channel();
        session.asked.push(answer);
        session.wake.notify_one();
        Some(answered)
    }

    /// Makes a node's session ask its worker for a tunnel; `false` when there is no session.
    pub fn dial(&self, node: NodeId, dial: Dial) -> bool {
        let mut sessions = lock(&self.sessions);
        let Some(session) = sessions.get_mut(&node) else { return false };
        session.dials.push(dial);
        session.wake.notify_one();
        true
    }

    pub fn put_reading(&self, gpu_uuid: String, reading: BoardReading) {
        lock(&self.readings).insert(gpu_uuid, reading);
    }

    pub fn put_whole_reading(&self, gpu_uuid: &str, reading: GpuReading) {
        lock(&self.whole).insert(gpu_uuid.to_owned(), reading);
    }

    pub fn whole_reading(&self, gpu_uuid: &str) -> GpuReading {
        lock(&self.whole).get(gpu_uuid).copied().unwrap_or_default()
    }

    pub fn reading(&self, gpu_uuid: &str) -> BoardReading {
        lock(&self.readings).get(gpu_uuid).copied().unwrap_or_default()
    }
}

/// A worker's session, for as long as it is held.
pub struct SessionGuard {
    live: Arc<Live>,
    node: NodeId,
    number: u64,
    pub wake: Arc<Notify>,
}

impl SessionGuard {
    /// Whether no newer session of this node has begun.
    pub fn current(&self) -> bool {
        lock(&self.live.sessions).get(&self.node).is_some_and(|s| s.number == self.number)
    }

    /// Those who have asked for a sign of life since the last call.
    pub fn asked(&self) -> Vec<oneshot::Sender<()>> {
        let mut sessions = lock(&self.live.sessions);
        let own = sessions.get_mut(&self.node).filter(|s| s.number == self.number);
        own.map(|session| std::mem::take(&mut session.asked)).unwrap_or_default()
    }

    /// Tunnels that were asked for since the last call.
    pub fn dials(&self) -> Vec<Dial> {
        let mut sessions = lock(&self.live.sessions);
        let own = sessions.get_mut(&self.node).filter(|s| s.number == self.number);
        own.map(|session| std::mem::take(&mut session.dials)).unwrap_or_default()
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
    fn what_nobody_hears_is_forgotten() {
        let live = Live::default();
        for n in 0..100 {
            // Nothing is ever told of these, so nothing but the next listener can notice.
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
            Box::pin(live.streams_end(org(1), user(1), None)),
            Box::pin(live.streams_end(org(1), user(2), None)),
        );
        live.hear(&Change::Member { org: org(2), user: user(1) });
        live.hear(&Change::Member { org: org(1), user: user(3) });
        assert!((&mut ada).now_or_never().is_none() && (&mut bob).now_or_never().is_none());
        live.hear(&Change::Member { org: org(1), user: user(1) });
        assert!((&mut ada).now_or_never().is_some() && (&mut bob).now_or_never().is_none());
    }

    #[tokio::test]
    async fn streams_of_a_token_end_with_it() {
        let live = Live::default();
        let (org, user) = (OrgId::from_uuid(uuid::Uuid::nil()), UserId::from_uuid(uuid::Uuid::nil()));
        let token = |n: u128| TokenId::from_uuid(uuid::Uuid::from_u128(n));
        let mut one = Box::pin(live.streams_end(org, user, Some(token(1))));
        let mut other = Box::pin(live.streams_end(org, user, Some(token(2))));
        let mut page = Box::pin(live.streams_end(org, user, None));
        live.hear(&Change::TokenRevoked(token(1)));
        assert!((&mut one).now_or_never().is_some());
        assert!((&mut other).now_or_never().is_none() && (&mut page).now_or_never().is_none());
        live.hear(&Change::Member { org, user });
        assert!((&mut other).now_or_never().is_some() && (&mut page).now_or_never().is_some());
    }

    #[test]
    fn a_newer_session_of_a_node_ends_the_older() {
        let live = Arc::new(Live::default());
        let node = NodeId::from_uuid(uuid::Uuid::from_u128(1));
        let older = live.open_session(node);
        let newer = live.open_session(node);
        assert!(!older.current() && newer.current());
        drop(older);
        assert!(live.connected().contains(&node), "the older one's end does not end the newer");
        drop(newer);
        assert!(live.connected().is_empty());
    }

    #[test]
    fn a_session_is_asked_whether_it_lives() {
        let live = Arc::new(Live::default());
        let node = NodeId::from_uuid(uuid::Uuid::from_u128(1));
        assert!(live.ask_alive(node).is_none());
        let session = live.open_session(node);
        let mut answered = live.ask_alive(node).unwrap();
        for asked in session.asked() {
            asked.send(()).unwrap();
        }
        assert_eq!(answered.try_recv(), Ok(()));
        assert!(session.asked().is_empty());
        let mut unanswered = live.ask_alive(node).unwrap();
        live.close_session(node);
        assert_eq!(unanswered.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(!session.current() && live.connected().is_empty());
        let newer = live.open_session(node);
        drop(session);
        assert!(newer.current(), "the end of one that was closed does not end the next");
    }
}
