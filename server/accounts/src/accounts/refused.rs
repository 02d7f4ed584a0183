//! The audit events of refused sign-ins. They are written after the answers, so that no answer shows by its time
//! whether an address has an account.

use std::sync::Arc;

use berth_foundation::repeated::MINUTE_MS;
use berth_foundation::{Context, RequestSource};
use berth_types::quotas::AuditEvent;
use tokio::sync::Semaphore;

/// Events that are written after their answers at the same time.
const MAX_EVENTS: u32 = 64;

/// The events of refused sign-ins.
#[derive(Clone)]
pub struct Refusals {
    permits: Arc<Semaphore>,
}

impl Default for Refusals {
    fn default() -> Self {
        let permits = usize::try_from(MAX_EVENTS).unwrap_or(1);
        Self { permits: Arc::new(Semaphore::new(permits)) }
    }
}

impl Refusals {
    /// Writes an event in a task of its own. With too many such tasks the request waits for its event, so that none is
    /// lost.
    pub async fn record(&self, context: &Context, cause: String, event: AuditEvent) {
        let Ok(permit) = self.permits.clone().try_acquire_owned() else {
            context.record_repeated(&cause, MINUTE_MS, None, event).await;
            return;
        };
        let (context, source) = (context.clone(), RequestSource::present());
        tokio::spawn(async move {
            source.scope(context.record_repeated(&cause, MINUTE_MS, None, event)).await;
            drop(permit);
        });
    }

    /// Waits until all events are written.
    pub async fn written(&self) {
        // The semaphore is never closed.
        let _ = self.permits.acquire_many(MAX_EVENTS).await;
    }
}
