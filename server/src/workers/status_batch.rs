//! Batches of statuses: messages that have arrived are processed together, so that their writes share a
//! commit and one read of the desired state follows them.
//!
//! Decides nothing. The statuses of one attempt keep their order.

use std::collections::HashMap;

use berth_proto::{self as proto, portal_message, worker_message};
use berth_types::ids::JobId;
use futures::{FutureExt, StreamExt, stream};
use tonic::Streaming;

use super::reports::attempt_report;
use super::{Session, attempt_key};
use berth_foundation::live::SessionGuard;

/// Messages in one batch, before the session does anything else.
const MAX_BATCH: usize = 256;
/// Attempts whose statuses are applied at the same time.
const CONCURRENCY: usize = 16;

impl Session {
    /// Processes a message and those that have already arrived. Returns true if the worker ended the session.
    pub(super) async fn on_ready_messages(
        &mut self,
        first: proto::WorkerMessage,
        up: &mut Streaming<proto::WorkerMessage>,
        guard: &SessionGuard,
    ) -> Result<bool, String> {
        let mut statuses = Vec::new();
        let mut next = Some(first);
        let (mut count, mut end) = (0, None);
        while let Some(message) = next.take() {
            if !guard.is_current() {
                return Err("a newer session took over".to_owned());
            }
            match message.body {
                Some(worker_message::Body::Status(status)) => statuses.push(status),
                body => {
                    self.apply_statuses(std::mem::take(&mut statuses)).await?;
                    self.on_message(proto::WorkerMessage { body }).await?;
                }
            }
            count += 1;
            if count < MAX_BATCH {
                match up.message().now_or_never() {
                    Some(Ok(Some(message))) => next = Some(message),
                    Some(Ok(None)) => end = Some(Ok(true)),
                    Some(Err(status)) => end = Some(Err(status.message().to_owned())),
                    None => {}
                }
            }
        }
        self.apply_statuses(statuses).await?;
        end.unwrap_or(Ok(false))
    }

    /// Applies and acknowledges statuses: those of one attempt in order, those of several attempts at once.
    pub(super) async fn apply_statuses(&mut self, statuses: Vec<proto::Status>) -> Result<(), String> {
        let mut by_attempt: HashMap<Option<(JobId, u32)>, Vec<proto::Status>> = HashMap::new();
        let mut seqs = Vec::with_capacity(statuses.len());
        for status in statuses {
            let key = attempt_key(status.attempt.as_ref());
            if let (Some(key), Some(length)) = (key, status.log_bytes) {
                self.final_log_bytes.insert(key, length);
            }
            seqs.push(status.seq);
            by_attempt.entry(key).or_default().push(status);
        }
        let mut all = Vec::with_capacity(by_attempt.len());
        for statuses in by_attempt.into_values() {
            let (portal, node) = (self.portal.clone(), self.node);
            all.push(async move {
                // A status without a valid attempt is acknowledged, or its worker would repeat it.
                for status in statuses {
                    let Some(report) = attempt_report(&status) else { continue };
                    portal.attempts.apply_status(node, report).await.map_err(|e| e.to_string())?;
                }
                Ok::<(), String>(())
            });
        }
        // A failure does not cancel the others: their committed changes must still be published.
        let done: Vec<Result<(), String>> = stream::iter(all).buffer_unordered(CONCURRENCY).collect().await;
        done.into_iter().collect::<Result<(), String>>()?;
        for seq in seqs {
            self.send(portal_message::Body::StatusAck(proto::StatusAck { seq })).await?;
        }
        Ok(())
    }
}
