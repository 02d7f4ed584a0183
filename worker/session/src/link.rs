//! The connection to the portal: opened again after each loss, with a renewal of the certificate in time.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use berth_contract::MESSAGE_LIMIT;
use berth_proto::portal_client::PortalClient;
use berth_proto::{PortalMessage, WorkerMessage, portal_message, worker_message};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::identity::{DaemonStart, Identity};
use super::served_certificate::ServedCertificate;

/// The shortest and the longest time between two tries to connect; the longest for a portal that refuses this worker.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);
const REFUSED: Duration = Duration::from_secs(30);
/// The time limit for a renewal of the certificate, and the time to the next try.
const RENEWAL: Duration = Duration::from_secs(10);
const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// The names of this daemon and this connection in a session.
#[derive(Clone)]
pub struct SessionClaim {
    pub instance: String,
    pub epoch: i64,
    /// Counts the connections since the start.
    pub connection: i64,
}

/// The outgoing queues of a session. Control messages never wait; bulk messages wait for the portal to read.
#[derive(Clone)]
pub struct Outbox {
    pub control: mpsc::UnboundedSender<WorkerMessage>,
    pub bulk: mpsc::Sender<WorkerMessage>,
    /// The connection, for calls beside the session.
    pub portal: Channel,
}

pub enum SessionEvent {
    /// A session is open, and the portal expects the hello.
    Open(Outbox, SessionClaim),
    Message(PortalMessage),
    Closed,
}

/// The endpoint and identity of a worker's sessions.
pub struct Link {
    pub portal: Endpoint,
    pub identity: Identity,
    /// The certificate for connections that come to this node.
    pub served: Arc<ServedCertificate>,
    /// The directory of the identity.
    pub data: PathBuf,
    pub start: DaemonStart,
}

/// The end of a session.
enum SessionEnd {
    Closed,
    /// The certificate was renewed; the next session uses the new one.
    Renewed,
    Refused(String),
    Broken(String),
}

fn end_from_status(status: &Status) -> SessionEnd {
    let why = status.message().to_owned();
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => SessionEnd::Refused(why),
        _ => SessionEnd::Broken(why),
    }
}

/// Keeps a session open and sends its events. Returns when nobody receives them.
pub async fn run(mut link: Link, events: mpsc::Sender<SessionEvent>) {
    let mut pause = SHORTEST;
    let mut connection = 0;
    loop {
        let began = Instant::now();
        connection += 1;
        let end = link.session(connection, &events).await.unwrap_or_else(|end| end);
        let longest = match &end {
            SessionEnd::Closed => {
                tracing::info!("the portal closed the session");
                LONGEST
            }
            SessionEnd::Renewed => {
                tracing::info!("the certificate is renewed");
                pause = Duration::ZERO;
                LONGEST
            }
            SessionEnd::Refused(error) => {
                tracing::error!(error, "the portal refuses this worker");
                REFUSED
            }
            SessionEnd::Broken(error) if link.identity.expired() => {
                tracing::error!(
                    error,
                    "no session with the portal: the certificate has expired. The operator can create a join token for this node"
                );
                REFUSED
            }
            SessionEnd::Broken(error) => {
                tracing::warn!(error, "no session with the portal");
                LONGEST
            }
        };
        if events.send(SessionEvent::Closed).await.is_err() {
            return;
        }
        if began.elapsed() > Duration::from_secs(10) {
            pause = pause.min(SHORTEST);
        }
        tokio::time::sleep(pause.min(longest)).await;
        pause = (pause * 2).clamp(SHORTEST, longest);
    }
}

impl Link {
    async fn session(
        &mut self,
        connection: i64,
        events: &mpsc::Sender<SessionEvent>,
    ) -> Result<SessionEnd, SessionEnd> {
        let connector = self.identity.connector(&self.portal).map_err(SessionEnd::Broken)?;
        let channel = connector.connect().await.map_err(SessionEnd::Broken)?;
        let (control, control_queue) = mpsc::unbounded_channel();
        let (bulk, bulk_queue) = mpsc::channel(8);
        let outgoing = UnboundedReceiverStream::new(control_queue).merge(ReceiverStream::new(bulk_queue));
        let mut client = PortalClient::new(channel.clone()).max_decoding_message_size(MESSAGE_LIMIT);
        let mut incoming = client
            .session(Request::new(outgoing))
            .await
            .map_err(|status| end_from_status(&status))?
            .into_inner();
        let claim =
            SessionClaim { instance: self.start.instance.clone(), epoch: self.start.epoch, connection };
        // A weak sender: the session ends when the daemon drops its outbox.
        let answers = control.downgrade();
        let outbox = Outbox { control, bulk, portal: channel.clone() };
        if events.send(SessionEvent::Open(outbox, claim)).await.is_err() {
            return Ok(SessionEnd::Closed);
        }
        let mut due = pin!(tokio::time::sleep(self.identity.renew_in()));
        loop {
            tokio::select! {
                message = incoming.message() => match message.map_err(|status| end_from_status(&status))? {
                    None => return Ok(SessionEnd::Closed),
                    // The task that holds the session answers: a daemon without the session cannot.
                    Some(PortalMessage { body: Some(portal_message::Body::Probe(probe)) }) => {
                        if let Some(control) = answers.upgrade() {
                            // The next message notices a session that has just ended.
                            let _ = control.send(worker_message::Body::Probe(probe).into());
                        }
                    }
                    Some(message) => {
                        if events.send(SessionEvent::Message(message)).await.is_err() {
                            return Ok(SessionEnd::Closed);
                        }
                    }
                },
                () = &mut due => {
                    let renewal = self.identity.renew(&self.data, channel.clone());
                    let renewed = tokio::time::timeout(RENEWAL, renewal).await;
                    match renewed {
                        Ok(Ok(fresh)) => {
                            self.served.replace(&fresh);
                            self.identity = fresh;
                            return Ok(SessionEnd::Renewed);
                        }
                        Ok(Err(error)) => tracing::warn!(error, "the certificate cannot be renewed; trying again"),
                        Err(_) => tracing::warn!("the portal does not answer a certificate request; trying again"),
                    }
                    due.as_mut().reset(Instant::now() + RENEW_AGAIN);
                }
            }
        }
    }
}
