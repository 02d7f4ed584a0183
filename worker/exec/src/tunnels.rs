//! All tunnels of this host. The worker opens each at the request of the portal, as a stream of its own beside the
//! session, so the host needs no open port.

use std::collections::HashMap;
use std::net::TcpStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use berth_contract::TUNNEL_TOKEN;
use berth_proto::portal_client::PortalClient;
use berth_proto::{OpenTunnel, Terminal, open_tunnel};
use berth_shim::model::AttemptKey;
use berth_system::sync::lock;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

use super::entry_process::start_entry;
use super::nsenter::EntryTarget;
use super::port_relay::relay;
use super::terminal_session::{TerminalClient, TerminalSession};
use super::tunnel::{Tunnel, closed};
use berth_system::pty::TerminalSize;

/// The most sessions of one attempt, including those without a client.
const MOST_SESSIONS: usize = 8;
/// The most tunnels of this host: their windows together are below that of the connection. The portal limits the
/// tunnels of an organization.
const MOST_TUNNELS: usize = 48;
/// The frames of a tunnel that wait for the connection.
const QUEUE: usize = 32;

/// A session by its attempt and its id.
type SessionName = (AttemptKey, String);

/// The terminal sessions and connections of this host.
#[derive(Clone)]
pub struct Tunnels {
    sessions: Arc<Mutex<HashMap<SessionName, mpsc::Sender<TerminalClient>>>>,
    /// A sender for each attempt with tunnels. Its drop ends them.
    alive: Arc<Mutex<HashMap<AttemptKey, watch::Sender<()>>>>,
    permits: Arc<Semaphore>,
}

impl Default for Tunnels {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(MOST_TUNNELS));
        Self { sessions: Arc::default(), alive: Arc::default(), permits }
    }
}

impl Tunnels {
    /// Ends the tunnels of attempts that do not run any more.
    pub fn retain(&self, runs: impl Fn(&AttemptKey) -> bool) {
        lock(&self.alive).retain(|key, _| runs(key));
    }

    /// Opens the tunnel that the portal requests. `dir` is the directory of the attempt if it runs.
    pub fn open(&self, request: OpenTunnel, portal: PortalClient<Channel>, dir: Option<PathBuf>) {
        let all = self.clone();
        tokio::spawn(async move {
            if let Err(why) = all.serve(request, portal, dir).await {
                tracing::warn!(why, "a tunnel cannot be opened");
            }
        });
    }

    fn alive(&self, key: &AttemptKey) -> watch::Receiver<()> {
        lock(&self.alive).entry(key.clone()).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    async fn serve(
        &self,
        request: OpenTunnel,
        mut portal: PortalClient<Channel>,
        dir: Option<PathBuf>,
    ) -> Result<(), String> {
        let permit = self.permits.clone().try_acquire_owned().ok();
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let mut call = Request::new(ReceiverStream::new(queue));
        let token: MetadataValue<Ascii> = request.token.parse().map_err(|_| "its token is invalid")?;
        call.metadata_mut().insert(TUNNEL_TOKEN, token);
        let incoming = portal.tunnel(call).await.map_err(|s| s.message().to_owned())?.into_inner();
        let full = permit.is_none();
        let tunnel = Tunnel::new(outgoing, incoming, permit);
        let (Some(id), Some(target), Some(dir)) = (request.attempt, request.target, dir) else {
            tunnel.close(closed("gone", "The job does not run on this node."));
            return Ok(());
        };
        if full {
            tunnel.close(closed("refused", "Too many terminals and connections are open on this node."));
            return Ok(());
        }
        let key = AttemptKey::from(&id);
        match target {
            open_tunnel::Target::Terminal(terminal) => self.terminal(key, terminal, tunnel, &dir).await,
            open_tunnel::Target::Port(port) => self.port(&key, port, tunnel, &dir).await,
        }
        Ok(())
    }

    async fn terminal(&self, key: AttemptKey, request: Terminal, tunnel: Tunnel, dir: &Path) {
        const GONE: &str = "This terminal no longer exists.";
        let size = TerminalSize::clamped(request.cols, request.rows);
        let client = TerminalClient { tunnel, size, from: request.resume_from };
        let name = (key, request.id);
        let known = lock(&self.sessions).get(&name).cloned();
        match known {
            Some(session) => {
                if let Err(mpsc::error::SendError(client)) = session.send(client).await {
                    client.tunnel.close(closed("gone", GONE));
                }
            }
            None if request.resume_from.is_some() => client.tunnel.close(closed("gone", GONE)),
            None => self.run_session(name, client, dir).await,
        }
    }

    /// Registers a new session. `None`: the attempt has too many.
    fn register(
        &self,
        name: &SessionName,
    ) -> Option<(mpsc::Sender<TerminalClient>, mpsc::Receiver<TerminalClient>)> {
        let mut sessions = lock(&self.sessions);
        let of_attempt = sessions.keys().filter(|(key, _)| *key == name.0).count();
        if sessions.contains_key(name) || of_attempt >= MOST_SESSIONS {
            return None;
        }
        let (sender, clients) = mpsc::channel(1);
        sessions.insert(name.clone(), sender.clone());
        Some((sender, clients))
    }

    /// Starts a session, and runs it to its end.
    async fn run_session(&self, name: SessionName, client: TerminalClient, dir: &Path) {
        let Some((sender, clients)) = self.register(&name) else {
            let why = format!("A job has at most {MOST_SESSIONS} open terminals. Close one of them.");
            client.tunnel.close(closed("refused", why));
            return;
        };
        let alive = self.alive(&name.0);
        let session = match start_entry(dir, EntryTarget::Shell(client.size)).await {
            Ok(entry) => TerminalSession::new(entry, clients, alive)
                .map_err(|e| format!("No terminal can be opened: {e}.")),
            Err(why) => Err(why),
        };
        match session {
            Ok(session) => {
                // Another client may have come to the queue first.
                match sender.try_send(client) {
                    Ok(()) => {}
                    Err(
                        mpsc::error::TrySendError::Full(client) | mpsc::error::TrySendError::Closed(client),
                    ) => {
                        client.tunnel.close(closed("taken_over", "The terminal was opened elsewhere."));
                    }
                }
                drop(sender);
                session.run().await;
            }
            Err(why) => client.tunnel.close(closed("refused", why)),
        }
        lock(&self.sessions).remove(&name);
    }

    async fn port(&self, key: &AttemptKey, port: u32, tunnel: Tunnel, dir: &Path) {
        let alive = self.alive(key);
        let port = u16::try_from(port).unwrap_or(0);
        let connected = match start_entry(dir, EntryTarget::Port(port)).await {
            Ok(entry) => {
                let stream = StdStream::from(entry.file);
                let ready = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                ready.map_err(|e| format!("Port {port} of the job cannot be used: {e}."))
            }
            Err(why) => Err(why),
        };
        match connected {
            Ok(stream) => relay(tunnel, &stream, alive).await,
            Err(why) => tunnel.close(closed("refused", why)),
        }
    }
}
