//! Who is let in: a daemon whose certificate is good and that is not the second of its node.
//!
//! Whether a daemon is there at all, only an answer proves: what arrives late was sent by somebody who
//! may be gone.

use std::io;
use std::time::Duration;

use berth_fleet::clone_detection::{Daemon, Verdict};
use berth_proto as proto;
use futures::StreamExt;
use tonic::body::Body;
use tonic::{Status, Streaming};

use super::Session;
use crate::tls::Peer;
use berth_fleet::enrolment::TWICE;
use berth_foundation::live::SessionGuard;

/// Who has not given a sign of life for so long is taken to be gone.
const ANSWER: Duration = Duration::from_secs(3);
/// Bytes of a request without a certificate: it can only be one for a certificate.
const JOINING: usize = 64 << 10;

/// A message is read whole before anybody asks who sent it; of a stranger's, little is read.
pub(super) fn few_bytes_of_strangers(request: http::Request<Body>) -> http::Request<Body> {
    if request.extensions().get::<Peer>().and_then(Peer::certificate).is_some() {
        return request;
    }
    request.map(|body| {
        let mut left = JOINING;
        let few = axum::body::Body::new(body).into_data_stream().map(move |piece| {
            let piece = piece.map_err(io::Error::other)?;
            left = left.checked_sub(piece.len()).ok_or_else(|| io::Error::other("this is too long"))?;
            Ok::<_, io::Error>(piece)
        });
        Body::new(axum::body::Body::from_stream(few))
    })
}

impl Session {
    /// Lets the daemon of this session in, or tells it why not.
    pub(super) async fn enter(
        &mut self,
        hello: &proto::Hello,
        up: &mut Streaming<proto::Up>,
    ) -> Result<(), String> {
        let claim =
            Daemon { instance: hello.instance.clone(), epoch: hello.epoch, connection: hello.connection };
        if claim.instance.is_empty() || claim.instance.len() > 64 {
            return self
                .refuse("A worker says which daemon it is; this one is too old for this portal.")
                .await;
        }
        let twice = match self.portal.enrolment.judge(self.node, &claim).await.map_err(|e| e.to_string())? {
            Verdict::Welcome => false,
            Verdict::Restart => self.former_lives().await,
            Verdict::Behind => self.is_there(up).await?,
            Verdict::Shut => return self.refuse(TWICE).await,
        };
        if twice {
            self.portal.enrolment.suspect(self.node).await.map_err(|e| e.to_string())?;
            return self.refuse(TWICE).await;
        }
        if self.portal.enrolment.admit(self.node, &claim).await.map_err(|e| e.to_string())? {
            Ok(())
        } else {
            // Another came first. When this one is really there it comes again, and is judged again.
            Err("a newer daemon was let in".to_owned())
        }
    }

    async fn refuse(&self, why: &'static str) -> Result<(), String> {
        // Whoever is gone, or does not listen, need not be told.
        let _ = tokio::time::timeout(ANSWER, self.down.send(Err(Status::permission_denied(why)))).await;
        Err(why.to_owned())
    }

    /// Whether the daemon that was let in before still answers. A directory is held by one daemon at a
    /// time, so when it does, this one works with a copy.
    async fn former_lives(&self) -> bool {
        let Some(answered) = self.portal.context.live.ask_alive(self.node) else { return false };
        matches!(tokio::time::timeout(ANSWER, answered).await, Ok(Ok(())))
    }

    /// Whether there is anybody at the other end of this session.
    async fn is_there(&mut self, up: &mut Streaming<proto::Up>) -> Result<bool, String> {
        self.probe += 1;
        let nonce = self.probe;
        self.say(proto::down::What::Probe(proto::Probe { nonce })).await?;
        let answer = async {
            // What else it says is of no interest before it is let in.
            while let Ok(Some(message)) = up.message().await {
                if matches!(message.what, Some(proto::up::What::Probe(probe)) if probe.nonce == nonce) {
                    return true;
                }
            }
            false
        };
        Ok(tokio::time::timeout(ANSWER, answer).await.unwrap_or(false))
    }

    /// Passes on the wish for a sign of life.
    pub(super) async fn ask(&mut self, guard: &SessionGuard) -> Result<(), String> {
        let asked = guard.asked();
        if asked.is_empty() {
            return Ok(());
        }
        self.asked.extend(asked);
        self.probe += 1;
        let nonce = self.probe;
        self.say(proto::down::What::Probe(proto::Probe { nonce })).await
    }

    /// A sign of life. One that was asked for earlier does not count.
    pub(super) fn answered(&mut self, probe: &proto::Probe) {
        if probe.nonce == self.probe {
            for asked in self.asked.drain(..) {
                // Whoever asked may have stopped waiting.
                let _ = asked.send(());
            }
        }
    }

    /// Ends a session whose certificate has expired or was revoked.
    pub(super) async fn still_good(&self) -> Result<(), String> {
        let now = self.portal.enrolment.credential(self.node, &self.credential.serial).await;
        match now.map_err(|e| e.to_string())? {
            Ok(_) => Ok(()),
            Err(why) => self.refuse(why).await,
        }
    }
}
