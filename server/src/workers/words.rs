//! What a worker says of its attempts: what is here at the same time is taken in together, so that it shares a
//! commit, and one look at what is desired follows it all.
//!
//! Decides nothing; the order of what is said of one attempt stays.

use std::collections::HashMap;

use berth_proto as proto;
use berth_types::ids::JobId;
use futures::{FutureExt, StreamExt, stream};
use tonic::Streaming;

use super::{Session, attempt, told};
use berth_foundation::live::SessionGuard;

/// Messages that are taken in before anything else has its turn.
const MOST: usize = 256;
/// Attempts whose words are applied side by side.
const SIDE_BY_SIDE: usize = 16;

impl Session {
    /// Takes in a message and those that are here already; says whether the worker has ended the session.
    pub(super) async fn hear_ready(
        &mut self,
        first: proto::Up,
        up: &mut Streaming<proto::Up>,
        guard: &SessionGuard,
    ) -> Result<bool, String> {
        let mut statuses = Vec::new();
        let mut next = Some(first);
        let (mut count, mut end) = (0, None);
        while let Some(message) = next.take() {
            if !guard.current() {
                return Err("a newer session took over".to_owned());
            }
            match message.what {
                Some(proto::up::What::Status(status)) => statuses.push(status),
                what => {
                    self.apply(std::mem::take(&mut statuses)).await?;
                    self.hear(proto::Up { what }).await?;
                }
            }
            count += 1;
            if count < MOST {
                match up.message().now_or_never() {
                    Some(Ok(Some(message))) => next = Some(message),
                    Some(Ok(None)) => end = Some(Ok(true)),
                    Some(Err(status)) => end = Some(Err(status.message().to_owned())),
                    None => {}
                }
            }
        }
        self.apply(statuses).await?;
        end.unwrap_or(Ok(false))
    }

    /// Applies statuses and acknowledges them: of one attempt one after the other, of several side by side.
    pub(super) async fn apply(&mut self, statuses: Vec<proto::Status>) -> Result<(), String> {
        let mut by_attempt: HashMap<Option<(JobId, u32)>, Vec<proto::Status>> = HashMap::new();
        let mut seqs = Vec::with_capacity(statuses.len());
        for status in statuses {
            let key = attempt(status.attempt.as_ref());
            if let (Some(key), Some(length)) = (key, status.log_bytes) {
                self.ends.insert(key, length);
            }
            seqs.push(status.seq);
            by_attempt.entry(key).or_default().push(status);
        }
        let mut all = Vec::with_capacity(by_attempt.len());
        for statuses in by_attempt.into_values() {
            let (portal, node) = (self.portal.clone(), self.node);
            all.push(async move {
                for status in statuses {
                    portal
                        .attempts
                        .apply_status(node, told::plain(status))
                        .await
                        .map_err(|e| e.to_string())?;
                }
                Ok::<(), String>(())
            });
        }
        // One that fails breaks none of the others off: what they have written is still to be told.
        let done: Vec<Result<(), String>> = stream::iter(all).buffer_unordered(SIDE_BY_SIDE).collect().await;
        done.into_iter().collect::<Result<(), String>>()?;
        for seq in seqs {
            self.say(proto::down::What::Ack(proto::Ack { seq })).await?;
        }
        Ok(())
    }
}
