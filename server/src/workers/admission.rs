//! The admission of workers: one daemon for each node, with a valid certificate.
//!
//! Only the answer to a probe proves that a daemon is connected: the sender of a late message may be gone.

use std::io;
use std::time::Duration;

use berth_fleet::clone_detection::{DaemonIdentity, Verdict};
use berth_proto::{self as proto, portal_message, worker_message};
use futures::StreamExt;
use tonic::body::Body;
use tonic::{Status, Streaming};

use super::Session;
use crate::tls::Peer;
use berth_fleet::enrolment::{CLONED, CredentialError};
use berth_foundation::live::SessionGuard;

/// The time without an answer after which a daemon counts as disconnected.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of a request without a certificate: its only purpose can be `Join`.
const ANONYMOUS_BODY_LIMIT: usize = 64 << 10;

/// Limits the body of a request without a certificate: its message is read before the check of its sender.
pub(super) fn limit_anonymous_body(request: http::Request<Body>) -> http::Request<Body> {
    if request.extensions().get::<Peer>().and_then(Peer::certificate).is_some() {
        return request;
    }
    request.map(|body| {
        let mut left = ANONYMOUS_BODY_LIMIT;
        let limited = axum::body::Body::new(body).into_data_stream().map(move |chunk| {
            let chunk = chunk.map_err(io::Error::other)?;
            left =
                left.checked_sub(chunk.len()).ok_or_else(|| io::Error::other("the request is too long"))?;
            Ok::<_, io::Error>(chunk)
        });
        Body::new(axum::body::Body::from_stream(limited))
    })
}

impl Session {
    /// Admits the daemon of this session.
    ///
    /// # Errors
    /// The daemon names no instance, or another daemon uses its certificate; it gets these reasons. Or a
    /// newer daemon was admitted.
    pub(super) async fn admit(
        &mut self,
        hello: &proto::Hello,
        up: &mut Streaming<proto::WorkerMessage>,
    ) -> Result<(), String> {
        let daemon = DaemonIdentity {
            instance: hello.instance.clone(),
            epoch: hello.epoch,
            connection: hello.connection,
        };
        if daemon.instance.is_empty() || daemon.instance.len() > 64 {
            return self
                .refuse("The worker is too old for this portal: it does not identify its daemon. Update the worker.")
                .await;
        }
        let cloned = match self.portal.enrolment.judge(self.node, &daemon).await.map_err(|e| e.to_string())? {
            Verdict::Accepted => false,
            Verdict::Restart => self.former_daemon_answers().await,
            Verdict::Behind => self.worker_answers(up).await?,
            Verdict::Refused => return self.refuse(CLONED).await,
        };
        if cloned {
            self.portal.enrolment.mark_cloned(self.node).await.map_err(|e| e.to_string())?;
            return self.refuse(CLONED).await;
        }
        if self.portal.enrolment.admit(self.node, &daemon).await.map_err(|e| e.to_string())? {
            Ok(())
        } else {
            // Another daemon came first. If this one still runs, it connects again and is judged again.
            Err("a newer daemon was admitted".to_owned())
        }
    }

    /// Ends the session; the worker gets the reason.
    pub(super) async fn refuse(&self, why: &'static str) -> Result<(), String> {
        // A failure means that the worker is gone or does not read.
        let _ =
            tokio::time::timeout(ANSWER_TIMEOUT, self.down.send(Err(Status::permission_denied(why)))).await;
        Err(why.to_owned())
    }

    /// True if the daemon that was admitted before still answers. One daemon at a time holds a data directory,
    /// so the new daemon then has a copy of it.
    async fn former_daemon_answers(&self) -> bool {
        let Some(answered) = self.portal.context.live.ping(self.node) else { return false };
        matches!(tokio::time::timeout(ANSWER_TIMEOUT, answered).await, Ok(Ok(())))
    }

    /// True if the worker of this session answers a probe.
    async fn worker_answers(&mut self, up: &mut Streaming<proto::WorkerMessage>) -> Result<bool, String> {
        self.last_probe += 1;
        let nonce = self.last_probe;
        self.send(portal_message::Body::Probe(proto::Probe { nonce })).await?;
        let answer = async {
            // Other messages before the admission are ignored.
            while let Ok(Some(message)) = up.message().await {
                if matches!(message.body, Some(worker_message::Body::Probe(probe)) if probe.nonce == nonce) {
                    return true;
                }
            }
            false
        };
        Ok(tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or(false))
    }

    /// Sends a probe for the callers of `Live::ping`, if there are any.
    pub(super) async fn send_requested_probe(&mut self, guard: &SessionGuard) -> Result<(), String> {
        let pings = guard.take_pings();
        if pings.is_empty() {
            return Ok(());
        }
        self.probe_waiters.extend(pings);
        self.last_probe += 1;
        let nonce = self.last_probe;
        self.send(portal_message::Body::Probe(proto::Probe { nonce })).await
    }

    /// Informs the callers that await a probe. The answer to an earlier probe does not count.
    pub(super) fn on_probe_answer(&mut self, probe: &proto::Probe) {
        if probe.nonce == self.last_probe {
            for waiter in self.probe_waiters.drain(..) {
                // The caller may have stopped waiting.
                let _ = waiter.send(());
            }
        }
    }

    /// Ends a session whose certificate has expired or was revoked.
    pub(super) async fn check_certificate(&self) -> Result<(), String> {
        match self.portal.enrolment.credential(self.node, &self.credential.serial).await {
            Ok(_) => Ok(()),
            Err(CredentialError::Refused(why)) => self.refuse(why).await,
            Err(CredentialError::Store(error)) => Err(error.to_string()),
        }
    }
}
