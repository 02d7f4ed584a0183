//! The session with the portal: connects, and connects again, for as long as the worker lives.
//!
//! Knows how to carry messages, not what they mean.

use std::time::Duration;

use berth_proto::portal_client::PortalClient;
use berth_proto::{Down, MESSAGE_LIMIT, NODE_KEY, Up};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Endpoint;

use crate::identity::Identity;

/// Where a session's messages go. Words are few and never wait; bulk waits for the portal to read.
#[derive(Clone)]
pub struct Outbox {
    pub words: mpsc::UnboundedSender<Up>,
    pub bulk: mpsc::Sender<Up>,
}

pub enum LinkEvent {
    /// A session begins: the hello is expected now.
    Open(Outbox),
    Down(Down),
    Closed,
}

/// Keeps a session open; what happens goes to `events`. Ends when nobody listens.
pub async fn keep(portal: Endpoint, identity: Identity, events: mpsc::Sender<LinkEvent>) {
    let mut pause = Duration::from_millis(100);
    loop {
        let began = tokio::time::Instant::now();
        match session(&portal, &identity, &events).await {
            Ok(()) => tracing::info!("the portal closed the session"),
            Err(error) => tracing::warn!(%error, "no session with the portal"),
        }
        if events.send(LinkEvent::Closed).await.is_err() {
            return;
        }
        if began.elapsed() > Duration::from_secs(10) {
            pause = Duration::from_millis(100);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

async fn session(
    portal: &Endpoint,
    identity: &Identity,
    events: &mpsc::Sender<LinkEvent>,
) -> Result<(), String> {
    let channel = portal.connect().await.map_err(|e| e.to_string())?;
    let (words, word_queue) = mpsc::unbounded_channel();
    let (bulk, bulk_queue) = mpsc::channel(8);
    let up = UnboundedReceiverStream::new(word_queue).merge(ReceiverStream::new(bulk_queue));
    let mut request = Request::new(up);
    let node = MetadataValue::try_from(&identity.node).map_err(|e| e.to_string())?;
    let secret = MetadataValue::try_from(format!("Bearer {}", identity.secret)).map_err(|e| e.to_string())?;
    request.metadata_mut().insert(NODE_KEY, node);
    request.metadata_mut().insert("authorization", secret);
    let mut client = PortalClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let mut down = client.session(request).await.map_err(|s| s.message().to_owned())?.into_inner();
    if events.send(LinkEvent::Open(Outbox { words, bulk })).await.is_err() {
        return Ok(());
    }
    while let Some(message) = down.message().await.map_err(|s| s.message().to_owned())? {
        if events.send(LinkEvent::Down(message)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
