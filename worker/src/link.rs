//! The session with the portal: connects, and connects again, for as long as the worker lives; renews
//! the certificate on the way.
//!
//! Knows how to carry messages, not what they mean.

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use berth_proto::portal_client::PortalClient;
use berth_proto::{Down, MESSAGE_LIMIT, Up, down, up};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::identity::{Identity, Start};

/// Between tries to connect, at least and at most; and at most when the portal refuses this worker.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);
const REFUSED: Duration = Duration::from_secs(30);
/// A portal that does not answer a wish for a certificate for so long is asked again, later.
const RENEWAL: Duration = Duration::from_secs(10);
const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// How this daemon names itself in a session.
#[derive(Clone)]
pub struct Claim {
    pub instance: String,
    pub epoch: i64,
    /// Counts the connections since the start.
    pub connection: i64,
}

/// Where a session's messages go. Words are few and never wait; bulk waits for the portal to read.
#[derive(Clone)]
pub struct Outbox {
    pub words: mpsc::UnboundedSender<Up>,
    pub bulk: mpsc::Sender<Up>,
    /// For what is no part of the session: files.
    pub portal: Channel,
}

pub enum LinkEvent {
    /// A session begins: the hello is expected now.
    Open(Outbox, Claim),
    Down(Down),
    Closed,
}

/// What a worker connects with.
pub struct Link {
    pub portal: Endpoint,
    pub identity: Identity,
    /// Where the identity is kept.
    pub data: PathBuf,
    pub start: Start,
}

/// How a session ended.
enum End {
    Closed,
    /// The certificate is a new one, and the next session proves it.
    Renewed,
    Refused(String),
    Broken(String),
}

fn lost(status: &Status) -> End {
    let why = status.message().to_owned();
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => End::Refused(why),
        _ => End::Broken(why),
    }
}

/// Keeps a session open; what happens goes to `events`. Ends when nobody listens.
pub async fn keep(mut link: Link, events: mpsc::Sender<LinkEvent>) {
    let mut pause = SHORTEST;
    let mut connection = 0;
    loop {
        let began = Instant::now();
        connection += 1;
        let end = link.session(connection, &events).await.unwrap_or_else(|end| end);
        let longest = match &end {
            End::Closed => {
                tracing::info!("the portal closed the session");
                LONGEST
            }
            End::Renewed => {
                tracing::info!("the certificate is renewed");
                pause = Duration::ZERO;
                LONGEST
            }
            End::Refused(error) => {
                tracing::error!(error, "the portal refuses this worker");
                REFUSED
            }
            End::Broken(error) if link.identity.expired() => {
                tracing::error!(
                    error,
                    "no session with the portal; the certificate has expired: an operator makes a join token for this node"
                );
                REFUSED
            }
            End::Broken(error) => {
                tracing::warn!(error, "no session with the portal");
                LONGEST
            }
        };
        if events.send(LinkEvent::Closed).await.is_err() {
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
    async fn session(&mut self, connection: i64, events: &mpsc::Sender<LinkEvent>) -> Result<End, End> {
        let way = self.identity.way(&self.portal).map_err(End::Broken)?;
        let channel = way.connect().await.map_err(End::Broken)?;
        let (words, word_queue) = mpsc::unbounded_channel();
        let (bulk, bulk_queue) = mpsc::channel(8);
        let outgoing = UnboundedReceiverStream::new(word_queue).merge(ReceiverStream::new(bulk_queue));
        let mut client = PortalClient::new(channel.clone()).max_decoding_message_size(MESSAGE_LIMIT);
        let mut incoming =
            client.session(Request::new(outgoing)).await.map_err(|status| lost(&status))?.into_inner();
        let claim = Claim { instance: self.start.instance.clone(), epoch: self.start.epoch, connection };
        // Held weakly: the session ends when the daemon drops its outbox.
        let answers = words.downgrade();
        let outbox = Outbox { words, bulk, portal: channel.clone() };
        if events.send(LinkEvent::Open(outbox, claim)).await.is_err() {
            return Ok(End::Closed);
        }
        let mut due = pin!(tokio::time::sleep(self.identity.renew_in()));
        loop {
            tokio::select! {
                message = incoming.message() => match message.map_err(|status| lost(&status))? {
                    None => return Ok(End::Closed),
                    // Answered here, where the session is: whoever has lost it cannot.
                    Some(Down { what: Some(down::What::Probe(probe)) }) => {
                        if let Some(words) = answers.upgrade() {
                            // A session that just ended is noticed by the next message.
                            let _ = words.send(up::What::Probe(probe).into());
                        }
                    }
                    Some(message) => {
                        if events.send(LinkEvent::Down(message)).await.is_err() {
                            return Ok(End::Closed);
                        }
                    }
                },
                () = &mut due => {
                    let renewal = self.identity.renew(&self.data, channel.clone());
                    let renewed = tokio::time::timeout(RENEWAL, renewal).await;
                    match renewed {
                        Ok(Ok(fresh)) => {
                            self.identity = fresh;
                            return Ok(End::Renewed);
                        }
                        Ok(Err(error)) => tracing::warn!(error, "the certificate cannot be renewed"),
                        Err(_) => tracing::warn!("the portal does not answer a wish for a certificate"),
                    }
                    due.as_mut().reset(Instant::now() + RENEW_AGAIN);
                }
            }
        }
    }
}
