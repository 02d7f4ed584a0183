//! The state of a service after a plan, with its reason.

use std::collections::BTreeMap;

use berth_service_types::services::ServiceState;

use super::{Failures, MOST_FAILURES, MOST_PAUSE_S, Revision, RevisionNumber, WAITED_PAUSE_S, Work};

impl Work<'_> {
    pub(super) fn find_state(&mut self, needs: &BTreeMap<RevisionNumber, u32>) {
        (self.plan.state, self.plan.detail) = self.state(needs);
    }

    fn state(&self, needs: &BTreeMap<RevisionNumber, u32>) -> (ServiceState, String) {
        if self.world.halted {
            return (ServiceState::Asleep, String::new());
        }
        let rollout = &self.plan.rollout;
        let find = |number: RevisionNumber| self.world.revisions.iter().find(|r| r.number == number);
        let Some(main) = rollout.live().or_else(|| rollout.candidate()).and_then(find) else {
            return (ServiceState::Asleep, "No revision gets requests.".to_owned());
        };
        let need = needs.get(&main.number).copied().unwrap_or(0);
        let ready = self.ready(main.id);
        let failures = self.failures(main.id);
        let refused = self.inputs.refused.contains_key(&main.id);
        let trouble = self.trouble(main, &failures);
        let other = rollout.candidate().filter(|number| *number != main.number).and_then(find);
        if need == 0 && ready == 0 && rollout.live().is_none() && failures.count >= MOST_FAILURES {
            let detail = format!("No replica was ready. The next request starts another one.{trouble}");
            let is_own = failures.own >= MOST_FAILURES;
            return (if is_own { ServiceState::Failed } else { ServiceState::Asleep }, detail);
        }
        if need == 0 && ready == 0 {
            return (ServiceState::Asleep, String::new());
        }
        if ready >= need {
            return other.map_or((ServiceState::Ready, String::new()), |other| self.state_beside(other));
        }
        if ready > 0 {
            let detail = format!("{ready} of {need} replicas are ready.{trouble}");
            return (ServiceState::Degraded, detail);
        }
        let failed = failures.own >= MOST_FAILURES || refused;
        let state = if failed { ServiceState::Failed } else { ServiceState::Waking };
        (state, format!("No replica is ready yet.{trouble}"))
    }

    /// The state of a service with enough ready replicas, beside a revision on its way.
    fn state_beside(&self, candidate: &Revision) -> (ServiceState, String) {
        let trouble = self.trouble(candidate, &self.failures(candidate.id));
        if trouble.is_empty() || self.ready(candidate.id) > 0 {
            return (ServiceState::Ready, String::new());
        }
        (ServiceState::Degraded, format!("Revision {} does not start.{trouble}", candidate.number))
    }

    /// The last failure of a revision, as sentences after a space; empty without one.
    fn trouble(&self, revision: &Revision, failures: &Failures) -> String {
        if let Some(refusal) = self.inputs.refused.get(&revision.id) {
            let minutes = MOST_PAUSE_S / 60;
            return format!(
                " The job of a replica was refused, and the next try follows within {WAITED_PAUSE_S} seconds if requests wait, otherwise within {minutes} minutes: {}",
                refusal.detail
            );
        }
        if failures.count == 0 {
            return String::new();
        }
        format!(" The last replica, {}, failed: {}", failures.job, failures.detail)
    }
}
