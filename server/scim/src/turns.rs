//! The turns of changes of groups. One change can bring a thousand memberships to another state in one write, and all
//! writes of the portal share a writer. So an organization has one such change at a time, and few wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use tokio::sync::OwnedMutexGuard;

/// The most changes of groups of an organization, the present one included.
const MAX_CHANGES: usize = 16;
/// The seconds to wait before the next try.
const RETRY_S: u64 = 2;

/// The turns of the organizations.
#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<OrgId, Weak<tokio::sync::Mutex<()>>>>>);

impl Turns {
    /// Waits for the turn of a change, in the order of the calls. It lasts until the drop of the guard.
    ///
    /// # Errors
    /// 429 if too many changes wait.
    pub async fn wait(&self, org: OrgId) -> Result<OwnedMutexGuard<()>, Problem> {
        let turn = self.find(org);
        // Each change has one reference.
        if Arc::strong_count(&turn) > MAX_CHANGES {
            let detail = "Too many changes of groups of this organization wait. Nothing was changed. Send the change again later.";
            return Err(Problem::throttled(detail, RETRY_S));
        }
        Ok(turn.lock_owned().await)
    }

    /// The turn of an organization. It is forgotten after its last change.
    fn find(&self, org: OrgId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(&org).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        turns.insert(org, Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn an_organization_has_one_change_of_groups_at_a_time_and_few_wait() {
        let org = |text: &str| text.parse::<OrgId>().unwrap();
        let (lab, other) = (org("org_00000000000000000000000001"), org("org_00000000000000000000000002"));
        let turns = Turns::default();
        let first = turns.wait(lab).now_or_never().unwrap().unwrap();
        let mut waiting: Vec<_> = (1..MAX_CHANGES).map(|_| turns.wait(lab).boxed()).collect();
        for change in &mut waiting {
            assert!(change.as_mut().now_or_never().is_none());
        }
        let refused = turns.wait(lab).now_or_never().unwrap().map_err(|problem| problem.status);
        assert_eq!(refused.err(), Some(429));
        let foreign = turns.wait(other).now_or_never().unwrap();
        assert!(foreign.is_ok());
        drop(first);
        let second = waiting.remove(0).now_or_never().unwrap();
        assert!(second.is_ok());
        assert!(waiting[0].as_mut().now_or_never().is_none());
        drop((second, foreign, waiting));
        // A new turn forgets those without a change.
        drop(turns.wait(other).now_or_never());
        drop(turns.wait(lab).now_or_never());
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }
}
