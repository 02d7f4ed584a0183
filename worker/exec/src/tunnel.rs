//! One tunnel: a byte stream from the portal, beside the session.

use std::time::Duration;

use berth_proto::{Closed, Frame, frame};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tonic::Streaming;

/// The time limit for the last frame of a tunnel.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// The worker's end of a tunnel.
pub struct Tunnel {
    /// Frames to the portal.
    pub outgoing: mpsc::Sender<Frame>,
    incoming: Streaming<Frame>,
    /// Absent if the tunnel is opened only to refuse it.
    permit: Option<OwnedSemaphorePermit>,
}

/// The last frame of a tunnel.
pub fn closed(cause: &str, detail: impl Into<String>) -> Closed {
    Closed { exit_code: None, cause: cause.to_owned(), detail: detail.into() }
}

impl Tunnel {
    pub fn new(
        outgoing: mpsc::Sender<Frame>,
        incoming: Streaming<Frame>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { outgoing, incoming, permit }
    }

    /// The next frame of the portal. `None`: the tunnel is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<frame::Body> {
        loop {
            let Ok(Some(frame)) = self.incoming.message().await else { return None };
            if frame.body.is_some() {
                return frame.body;
            }
        }
    }

    /// Sends the last frame after all others.
    pub fn close(self, last: Closed) {
        let Self { outgoing, mut incoming, permit } = self;
        tokio::spawn(async move {
            let sent = async {
                if outgoing.send(frame::Body::Closed(last).into()).await.is_ok() {
                    drop(outgoing);
                    // The portal closes first: otherwise frames on their way would be lost.
                    while let Ok(Some(_)) = incoming.message().await {}
                }
            };
            // A portal that does not read for so long misses the frame.
            let _ = tokio::time::timeout(CLOSE_WITHIN, sent).await;
            drop(permit);
        });
    }
}

/// Waits for the end of an attempt.
pub async fn attempt_ended(alive: &mut watch::Receiver<()>) {
    while alive.changed().await.is_ok() {}
}
