//! The replicas of this host, with their readiness, and the admission of connections by tokens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use berth_shim::model::AttemptKey;
use berth_system::sync::lock;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::dial::Dial;
use super::handshake::HandshakeAnswer;
use super::probe::probe;
use super::readiness::Readiness;
use super::relay::wait_until_ended;
use super::settings::ReplicaSettings;

/// Connections of one replica: an eighth of those of the worker, so that one leaves room for others.
const MOST_CONNECTIONS: usize = 4_096;

/// The receiver of changes of the readiness.
type ReadinessListener = Arc<dyn Fn(&AttemptKey, bool) + Send + Sync>;

/// The replicas that run on this host.
#[derive(Clone)]
pub struct Replicas(Arc<ReplicaTable>);

struct ReplicaTable {
    replicas: Mutex<HashMap<AttemptKey, Replica>>,
    on_change: ReadinessListener,
}

struct Replica {
    settings: ReplicaSettings,
    dial: Dial,
    connections: Arc<Semaphore>,
    /// Its drop ends the probes and the connections.
    alive: watch::Sender<()>,
}

/// A connection that a replica has room for.
pub(crate) struct Admission {
    pub(crate) dial: Dial,
    pub(crate) port: u16,
    pub(crate) alive: watch::Receiver<()>,
    pub(crate) permit: OwnedSemaphorePermit,
}

impl Replicas {
    /// Without a replica. `on_change` gets each change of the readiness of one.
    pub fn new(on_change: impl Fn(&AttemptKey, bool) + Send + Sync + 'static) -> Self {
        Self(Arc::new(ReplicaTable { replicas: Mutex::default(), on_change: Arc::new(on_change) }))
    }

    /// Ends the service of attempts that do not run any more, with their connections.
    pub fn retain(&self, runs: impl Fn(&AttemptKey) -> bool) {
        lock(&self.0.replicas).retain(|key, _| runs(key));
    }

    /// Serves a running attempt, unless it is served already. A replica is not ready at first.
    pub fn serve(&self, key: &AttemptKey, settings: &ReplicaSettings, dial: impl FnOnce() -> Dial) {
        let mut replicas = lock(&self.0.replicas);
        if replicas.contains_key(key) {
            return;
        }
        let (alive, ended) = watch::channel(());
        let dial = dial();
        let (probing, on_change) = (dial.clone(), self.0.on_change.clone());
        tokio::spawn(keep_probing(key.clone(), settings.clone(), probing, ended, on_change));
        let most = usize::try_from(settings.max_connections).unwrap_or(usize::MAX).min(MOST_CONNECTIONS);
        let connections = Arc::new(Semaphore::new(most));
        replicas.insert(key.clone(), Replica { settings: settings.clone(), dial, connections, alive });
    }

    /// Admits a connection by its token.
    pub(crate) fn admit(&self, token: &[u8]) -> Result<Admission, HandshakeAnswer> {
        // A comparison of hashes has no useful timing.
        let hash: [u8; 32] = Sha256::digest(token).into();
        let replicas = lock(&self.0.replicas);
        let replica = replicas.values().find(|replica| replica.settings.token_sha256 == hash);
        let replica = replica.ok_or(HandshakeAnswer::UnknownToken)?;
        let permit = replica.connections.clone().try_acquire_owned();
        Ok(Admission {
            permit: permit.map_err(|_| HandshakeAnswer::TooManyConnections)?,
            dial: replica.dial.clone(),
            port: replica.settings.port,
            alive: replica.alive.subscribe(),
        })
    }
}

/// Probes a replica until its end, and reports each change of its readiness.
async fn keep_probing(
    key: AttemptKey,
    settings: ReplicaSettings,
    dial: Dial,
    mut alive: watch::Receiver<()>,
    on_change: ReadinessListener,
) {
    let mut readiness = Readiness::default();
    loop {
        let answered = tokio::select! {
            answered = probe(&dial, &settings) => answered,
            () = wait_until_ended(&mut alive) => return,
        };
        let before = readiness.is_ready();
        let pause = readiness.note(answered);
        if readiness.is_ready() != before {
            on_change(&key, readiness.is_ready());
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = wait_until_ended(&mut alive) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::dial::Dialing;
    use super::*;

    fn key(job: &str) -> AttemptKey {
        AttemptKey { job: job.to_owned(), number: 1 }
    }

    fn settings(token: &str, max_connections: u32) -> ReplicaSettings {
        ReplicaSettings {
            port: 1,
            readiness_path: "/".to_owned(),
            http2: false,
            token_sha256: Sha256::digest(token.as_bytes()).into(),
            max_connections,
        }
    }

    fn nowhere() -> Dial {
        Arc::new(|_| -> Dialing { Box::pin(async { Err("Nobody is there.".to_owned()) }) })
    }

    /// The steps of a history of connections.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Step {
        Open(&'static str),
        CloseOldest,
        EndFirst,
    }

    const STEPS: [Step; 5] =
        [Step::Open("a"), Step::Open("b"), Step::Open("strange"), Step::CloseOldest, Step::EndFirst];

    #[tokio::test]
    async fn connections_are_counted_for_each_replica() {
        let limits = BTreeMap::from([("a", 1), ("b", 2)]);
        for history in 0..STEPS.len().pow(5) {
            let steps: Vec<Step> =
                (0..5u32).map(|at| STEPS[history / STEPS.len().pow(at) % STEPS.len()]).collect();
            let replicas = Replicas::new(|_, _| {});
            for (token, most) in &limits {
                replicas.serve(&key(token), &settings(token, *most), nowhere);
            }
            // By the definition: the tokens of open connections, and whether `a` still runs.
            let (mut open, mut running) = (Vec::new(), true);
            let mut admitted = Vec::new();
            for step in &steps {
                match *step {
                    Step::CloseOldest if open.is_empty() => {}
                    Step::CloseOldest => {
                        open.remove(0);
                        admitted.remove(0);
                    }
                    Step::EndFirst => {
                        running = false;
                        replicas.retain(|known| known.job != "a");
                    }
                    Step::Open(token) => {
                        let known = limits.get(token).filter(|_| token != "a" || running);
                        let used = open.iter().filter(|other| **other == token).count();
                        let expected = match known {
                            None => Err(HandshakeAnswer::UnknownToken),
                            Some(most) if used >= *most as usize => Err(HandshakeAnswer::TooManyConnections),
                            Some(_) => Ok(()),
                        };
                        let result = replicas.admit(token.as_bytes());
                        assert_eq!(
                            result.as_ref().map(|_| ()).map_err(|answer| *answer),
                            expected,
                            "{steps:?}"
                        );
                        if let Ok(admission) = result {
                            open.push(token);
                            admitted.push(admission);
                        }
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn an_attempt_is_served_once_and_its_connections_end_with_it() {
        let replicas = Replicas::new(|_, _| {});
        replicas.serve(&key("a"), &settings("a", 1), nowhere);
        let Ok(mut first) = replicas.admit(b"a") else { panic!("no connection") };
        replicas.serve(&key("a"), &settings("a", 1), || panic!("it has a dialer"));
        assert_eq!(replicas.admit(b"a").err(), Some(HandshakeAnswer::TooManyConnections));
        replicas.retain(|_| true);
        assert!(first.alive.has_changed().is_ok(), "it goes on");
        replicas.retain(|_| false);
        wait_until_ended(&mut first.alive).await;
        assert_eq!(replicas.admit(b"a").err(), Some(HandshakeAnswer::UnknownToken));
        // Another attempt of the job begins anew.
        replicas.serve(&key("a"), &settings("a", 1), nowhere);
        assert!(replicas.admit(b"a").is_ok());
    }
}
