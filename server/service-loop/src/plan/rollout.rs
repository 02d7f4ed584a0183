//! The events of the rollout in a plan.

use berth_autoscaling::rollout::RevisionState;

use super::{Event, Failures, RevisionNumber, Work};

impl Work<'_> {
    /// Applies the events that follow from replicas and evidence.
    pub(super) fn roll(&mut self) {
        if !self.world.halted
            && let Some(candidate) = self.plan.rollout.candidate()
        {
            self.judge(candidate);
            self.promote(candidate);
        }
        self.retire();
    }

    /// The loop has no events of persons, so none is refused.
    fn apply(&mut self, event: Event) {
        let _ = self.plan.rollout.apply(event);
    }

    /// Rolls a candidate back that does not start or is worse than the live revision; lets a good canary go on.
    fn judge(&mut self, candidate: RevisionNumber) {
        let (world, inputs) = (self.world, self.inputs);
        let Some(revision) = world.revisions.iter().find(|revision| revision.number == candidate) else {
            return;
        };
        let failures = self.failures(revision.id);
        if self.never_starts(candidate) && self.plan.rollout.live().is_some() {
            let Failures { own, own_job, own_detail, .. } = failures;
            let detail = format!("Its last {own} replicas failed, the last one was {own_job}. {own_detail}");
            self.withdraw(candidate, detail);
            return;
        }
        let Some(judged) = inputs.judged.as_ref().filter(|judged| judged.revision == candidate) else {
            return;
        };
        let present = self.plan.rollout.revisions().any(|(number, revision)| {
            number == candidate
                && revision.state == RevisionState::Canary
                && revision.percent == judged.percent
        });
        match &judged.fault {
            _ if !present => {}
            Some(fault) => self.withdraw(candidate, format!("It was worse than the live revision: {fault}.")),
            None => self.apply(Event::Good(candidate)),
        }
    }

    fn withdraw(&mut self, candidate: RevisionNumber, detail: String) {
        let returns =
            self.plan.rollout.revisions().any(|(number, revision)| number == candidate && revision.returns);
        if let Some(live) = self.plan.rollout.live().filter(|_| returns) {
            // It stays, so it has no reason to go any more.
            self.plan.details.insert(live, String::new());
        }
        self.apply(Event::Bad(candidate));
        self.plan.details.insert(candidate, detail);
    }

    /// Gives a candidate its weight as soon as its replicas for it are ready.
    fn promote(&mut self, candidate: RevisionNumber) {
        if self.plan.rollout.candidate() != Some(candidate) {
            return;
        }
        let needed = self.needs().get(&candidate).copied().unwrap_or(u32::MAX);
        let revision = self.world.revisions.iter().find(|revision| revision.number == candidate);
        if revision.is_some_and(|revision| self.ready(revision.id) >= needed.max(1)) {
            self.apply(Event::Ready(candidate));
        }
    }

    /// Retires draining revisions without a replica.
    fn retire(&mut self) {
        let world = self.world;
        for revision in &world.revisions {
            let present = world.replicas.iter().any(|replica| {
                let ends = self.plan.ended.iter().any(|((id, _), _)| *id == replica.id);
                replica.revision == revision.id && replica.ended_at.is_none() && !ends
            });
            if !present {
                self.apply(Event::Drained(revision.number));
            }
        }
    }
}
