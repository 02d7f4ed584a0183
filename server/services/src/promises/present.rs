//! The present windows of services. A read of counts sums all rows of the window so far, so its result serves for some
//! seconds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use berth_autoscaling::promise::{Promise, PromiseWatch};
use berth_foundation::Context;
use berth_service_types::promises::PresentWindow;
use berth_store::services::promises::StoredChoice;
use berth_store::{StoreError, Tx};
use berth_types::ids::ServiceId;
use berth_types::time::Timestamp;

use super::evidence;
use super::terms::promise;

/// The greatest age of shown counts in milliseconds.
const FRESH_MS: i64 = 30_000;
/// Services with counts in memory.
const MAX_SERVICES: usize = 1_000;

/// The counts of a window of a choice at a time.
#[derive(Debug, Clone)]
struct Counted {
    chosen_at: Timestamp,
    window: i64,
    at: Timestamp,
    shown: PresentWindow,
}

/// The last counts of a service; locked during a read of them.
type Slot = Arc<tokio::sync::Mutex<Option<Counted>>>;

/// The last counts of the present windows.
#[derive(Debug, Default)]
pub struct PresentWindows(Mutex<HashMap<ServiceId, Slot>>);

/// Counts the window until now.
async fn count(
    tx: &mut Tx<'_>,
    row: &StoredChoice,
    terms: &Promise,
    window: i64,
    now: Timestamp,
) -> Result<PresentWindow, StoreError> {
    let (begin_at, end_at) = (terms.begin(window), terms.begin(window.saturating_add(1)));
    let found = evidence::read(tx, row, terms, (begin_at, end_at), now).await?.evidence;
    // Without the time for late evidence the window would be due at its end.
    let terms = Promise { late_s: 0, ..*terms };
    let judgement = PromiseWatch::stored(window).judge(&terms, window, &found, end_at);
    let misses = judgement.map(|judgement| judgement.misses).unwrap_or_default();
    let misses = misses.iter().map(ToString::to_string).collect();
    Ok(PresentWindow { begin_at, end_at, evidence: evidence::wire(&found), misses })
}

impl PresentWindows {
    /// The slot of a service. Beyond the limit those go that nobody reads now.
    fn slot(&self, service: ServiceId) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= MAX_SERVICES && !slots.contains_key(&service) {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        slots.entry(service).or_default().clone()
    }

    /// The window of this moment with its counts so far, at most [`FRESH_MS`] old; `None` before the first whole one.
    /// Questions at the same time share one read. The caller must hold no connection, because a question waits for the
    /// read of another.
    pub async fn find(
        &self,
        context: &Context,
        row: &StoredChoice,
    ) -> Result<Option<PresentWindow>, StoreError> {
        let slot = self.slot(row.service_id);
        let mut last = slot.lock().await;
        let (terms, now) = (promise(&row.terms.0), context.now());
        let window = terms.window(now);
        if window < row.next_window {
            return Ok(None);
        }
        let is_fresh = |last: &Counted| {
            (last.chosen_at, last.window) == (row.chosen_at, window)
                && (0..FRESH_MS).contains(&now.millis_since(last.at))
        };
        if let Some(last) = last.as_ref().filter(|last| is_fresh(last)) {
            return Ok(Some(last.shown.clone()));
        }
        let mut conn = context.db.read().await?;
        let shown = count(&mut conn.tx(), row, &terms, window, now).await?;
        *last = Some(Counted { chosen_at: row.chosen_at, window, at: now, shown: shown.clone() });
        Ok(Some(shown))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn counts_in_memory_are_bounded_and_a_read_keeps_its_slot() {
        let windows = PresentWindows::default();
        let service = |n: usize| ServiceId::from_uuid(Uuid::from_u128(n as u128));
        let read = windows.slot(service(0));
        for n in 1..=MAX_SERVICES * 2 {
            windows.slot(service(n));
            assert!(windows.0.lock().unwrap().len() <= MAX_SERVICES, "{n}");
        }
        assert!(Arc::ptr_eq(&read, &windows.slot(service(0))));
    }
}
