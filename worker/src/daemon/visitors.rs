//! People who want into an attempt, at the portal's word.

use berth_proto::Dial;
use berth_proto::portal_client::PortalClient;

use super::Daemon;
use crate::agent::{Key, Seen};

impl Daemon {
    /// Opens the tunnel that the portal waits for.
    pub(super) fn dial(&self, dial: Dial) {
        let (Some(outbox), Some(id)) = (&self.outbox, &dial.attempt) else { return };
        let key = Key { job: id.job.clone(), number: id.number };
        let attempt = self.attempts.get(&key).filter(|a| matches!(a.seen(), Seen::Running { .. }));
        let dir = attempt.map(|a| a.dir.clone());
        self.tunnels.dial(dial, PortalClient::new(outbox.portal.clone()), dir);
    }
}
