//! The rollout of the revisions of a service: states, weights and replicas.
//!
//! A revision gets weight only after its replicas for this weight are ready. The live revision keeps the replicas
//! for all requests until the promotion, so a rollback waits for no start. A revision drains after it lost its
//! weight. So no step loses a request.

mod judge;

use std::collections::BTreeMap;

pub use judge::{BOUNDS_MS, Evidence, Fault, Histogram, Judge, Rule, Verdict};

/// The number of a revision of a service.
pub type RevisionNumber = u32;

/// The most revisions in memory. The oldest without replicas is forgotten first.
pub const MAX_REVISIONS: usize = 100;
/// The most steps of a plan.
pub const MAX_STEPS: usize = 20;

/// The state of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RevisionState {
    /// Its replicas start; it has no weight.
    Staging,
    /// It has a part of the requests, beside the live revision.
    Canary,
    /// It has all requests that no canary has.
    Live,
    /// It lost its weight, and its requests end.
    Draining,
    /// It has no request and no replica.
    Retired,
    /// It was worse than the live revision, or a person withdrew it.
    RolledBack,
}

/// The steps of a rollout; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Plan {
    /// The percentages of a canary, rising, 0 to 99. At 0 only the requests of the pinned keys reach it.
    steps: Vec<u8>,
}

/// The reason why a plan is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("a plan must have at most {MAX_STEPS} steps")]
    TooMany,
    #[error("the steps of a plan must rise, from 0 to at most 99 percent")]
    Order,
}

impl Plan {
    /// A plan with these percentages. Without steps a ready revision becomes live at once.
    ///
    /// # Errors
    /// Too many steps, or steps that do not rise.
    pub fn new(steps: Vec<u8>) -> Result<Self, PlanError> {
        if steps.len() > MAX_STEPS {
            return Err(PlanError::TooMany);
        }
        let rises = steps.iter().zip(steps.iter().skip(1)).all(|(one, next)| one < next);
        if !rises || steps.last().is_some_and(|last| *last > 99) {
            return Err(PlanError::Order);
        }
        Ok(Self { steps })
    }

    /// The first step, or the whole.
    fn first(&self) -> u8 {
        self.steps.first().copied().unwrap_or(100)
    }

    /// The step after a percentage.
    fn after(&self, percent: u8) -> u8 {
        self.steps.iter().copied().find(|step| *step > percent).unwrap_or(100)
    }
}

/// An event of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// A new revision with a number of its own. It ends the way of a revision that comes back.
    Submit(RevisionNumber),
    /// The replicas of the revision for its goal are ready.
    Ready(RevisionNumber),
    /// The evidence of the present step is good ([`Verdict::Promote`]).
    Good(RevisionNumber),
    /// The evidence is bad ([`Verdict::Rollback`]), or the replicas fail to start.
    Bad(RevisionNumber),
    /// A person sets the percentage of the revision. Another one than the present stays until a person changes it. With
    /// the present one the steps of a canary go on.
    Traffic(RevisionNumber, u8),
    /// A person goes back to the revision before. One that comes back already gets all requests.
    Rollback,
    /// The revision has no request and no replica.
    Drained(RevisionNumber),
}

/// The reason why an event of a person is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Refusal {
    #[error("the number of the revision is in use")]
    Known,
    #[error("another revision is on its way; roll it back or wait for its end")]
    Underway,
    #[error("the revision gets no new requests; only a staging or canary revision has a percentage to set")]
    NotCandidate,
    #[error("a percentage must be 0 to 100")]
    Percent,
    #[error("there is no revision to go back to")]
    NothingBefore,
}

/// The effect of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    Changed,
    /// The event is late, or repeated, or changes nothing in this state.
    Nothing,
}

/// A revision in its rollout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision {
    pub state: RevisionState,
    /// Its part of the requests as a canary.
    pub percent: u8,
    /// The part for which its replicas start now.
    pub goal: u8,
    /// A person set the percentage, so no evidence raises it.
    pub held: bool,
    /// It was live before and comes back.
    pub returns: bool,
    /// The revision that was live before it.
    pub before: Option<RevisionNumber>,
}

/// All revisions of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rollout {
    plan: Plan,
    revisions: BTreeMap<RevisionNumber, Revision>,
}

impl Rollout {
    /// A service without revisions.
    pub const fn new(plan: Plan) -> Self {
        Self { plan, revisions: BTreeMap::new() }
    }

    /// The rollout with these revisions, as [`revisions`](Self::revisions) gave them before.
    pub fn restored(plan: Plan, revisions: impl IntoIterator<Item = (RevisionNumber, Revision)>) -> Self {
        Self { plan, revisions: revisions.into_iter().collect() }
    }

    /// Changes the steps of all later moves.
    pub fn set_plan(&mut self, plan: Plan) {
        self.plan = plan;
    }

    /// All revisions in the order of their numbers.
    pub fn revisions(&self) -> impl Iterator<Item = (RevisionNumber, &Revision)> {
        self.revisions.iter().map(|(number, revision)| (*number, revision))
    }

    fn find(&self, states: &[RevisionState]) -> Option<RevisionNumber> {
        self.revisions().find(|(_, revision)| states.contains(&revision.state)).map(|(number, _)| number)
    }

    /// The live revision.
    pub fn live(&self) -> Option<RevisionNumber> {
        self.find(&[RevisionState::Live])
    }

    /// The revision on its way to become live.
    pub fn candidate(&self) -> Option<RevisionNumber> {
        self.find(&[RevisionState::Staging, RevisionState::Canary])
    }

    /// The candidate that was live before and comes back.
    fn returning(&self) -> Option<RevisionNumber> {
        self.candidate().filter(|number| self.revisions.get(number).is_some_and(|revision| revision.returns))
    }

    /// The percentages of the requests: their sum is 100, or 0 without a live revision.
    pub fn weights(&self) -> Vec<(RevisionNumber, u8)> {
        let canary = self.revisions().find(|(_, revision)| revision.state == RevisionState::Canary);
        let percent = canary.map_or(0, |(_, revision)| revision.percent.min(100));
        let live = self.live().map(|number| (number, 100 - percent));
        live.into_iter().chain(canary.map(|(number, _)| (number, percent))).collect()
    }

    /// The replicas that each revision needs when the service wants `wanted`. A revision without an entry needs
    /// none; its present replicas are drained.
    pub fn replicas(&self, wanted: u32) -> BTreeMap<RevisionNumber, u32> {
        let needed = |revision: &Revision| match revision.state {
            RevisionState::Staging | RevisionState::Canary => {
                let share = u64::from(wanted) * u64::from(revision.goal.max(revision.percent));
                // A revision that starts or gets a higher share proves itself also while the service sleeps. Otherwise a
                // canary sleeps with the live one.
                let moves = revision.state == RevisionState::Staging || revision.goal > revision.percent;
                let least = u32::from(moves || wanted > 0);
                Some(u32::try_from(share.div_ceil(100)).unwrap_or(u32::MAX).max(least))
            }
            RevisionState::Live => Some(wanted),
            RevisionState::Draining | RevisionState::Retired | RevisionState::RolledBack => None,
        };
        self.revisions().filter_map(|(number, revision)| Some((number, needed(revision)?))).collect()
    }

    /// Applies an event. Each event is defined in each state.
    ///
    /// # Errors
    /// Only events of persons are refused; a refusal changes nothing.
    pub fn apply(&mut self, event: Event) -> Result<Effect, Refusal> {
        match event {
            Event::Submit(number) => self.submit(number),
            Event::Ready(number) => Ok(self.ready(number)),
            Event::Good(number) => Ok(self.good(number)),
            Event::Bad(number) => Ok(self.withdraw(number)),
            Event::Traffic(number, percent) => self.traffic(number, percent),
            Event::Rollback => self.roll_back(),
            Event::Drained(number) => Ok(self.drained(number)),
        }
    }

    fn submit(&mut self, number: RevisionNumber) -> Result<Effect, Refusal> {
        if self.revisions.contains_key(&number) {
            return Err(Refusal::Known);
        }
        if let Some(returning) = self.returning() {
            // A way back that waits for ever must keep no new revision out.
            self.withdraw(returning);
        } else if self.candidate().is_some() {
            return Err(Refusal::Underway);
        }
        // Without a live revision nothing is there to compare with.
        let goal = if self.live().is_some() { self.plan.first() } else { 100 };
        let state = RevisionState::Staging;
        let staging = Revision { state, percent: 0, goal, held: false, returns: false, before: None };
        self.revisions.insert(number, staging);
        self.forget();
        Ok(Effect::Changed)
    }

    /// Forgets the oldest revisions beyond the limit that have no replica.
    fn forget(&mut self) {
        while self.revisions.len() > MAX_REVISIONS {
            let before = self.live().and_then(|live| self.revisions.get(&live)?.before);
            let over = [RevisionState::Retired, RevisionState::RolledBack];
            let oldest = self
                .revisions()
                .find(|(number, revision)| Some(*number) != before && over.contains(&revision.state))
                .map(|(number, _)| number);
            let Some(oldest) = oldest else { return };
            self.revisions.remove(&oldest);
        }
    }

    fn candidate_mut(&mut self, number: RevisionNumber) -> Option<&mut Revision> {
        let states = [RevisionState::Staging, RevisionState::Canary];
        self.revisions.get_mut(&number).filter(|revision| states.contains(&revision.state))
    }

    fn ready(&mut self, number: RevisionNumber) -> Effect {
        let Some(revision) = self.candidate_mut(number) else { return Effect::Nothing };
        if revision.goal >= 100 {
            self.promote(number);
            return Effect::Changed;
        }
        if revision.state == RevisionState::Canary && revision.goal == revision.percent {
            return Effect::Nothing;
        }
        revision.state = RevisionState::Canary;
        revision.percent = revision.goal;
        Effect::Changed
    }

    /// Makes a candidate live. The live revision before it drains, or is rolled back by a return.
    fn promote(&mut self, number: RevisionNumber) {
        let live = self.live();
        let Some(revision) = self.candidate_mut(number) else { return };
        let returns = std::mem::take(&mut revision.returns);
        (revision.state, revision.percent, revision.goal, revision.held) = (RevisionState::Live, 0, 0, false);
        if !returns {
            revision.before = live;
        }
        if let Some(old) = live.and_then(|live| self.revisions.get_mut(&live)) {
            old.state = if returns { RevisionState::RolledBack } else { RevisionState::Draining };
        }
    }

    fn good(&mut self, number: RevisionNumber) -> Effect {
        let plan = self.plan.clone();
        match self.candidate_mut(number) {
            Some(revision)
                if revision.state == RevisionState::Canary
                    && !revision.held
                    && revision.goal == revision.percent =>
            {
                revision.goal = plan.after(revision.percent);
                Effect::Changed
            }
            _ => Effect::Nothing,
        }
    }

    /// Ends the way of a candidate. One that was live before drains again.
    fn withdraw(&mut self, number: RevisionNumber) -> Effect {
        let Some(revision) = self.candidate_mut(number) else { return Effect::Nothing };
        let returns = std::mem::take(&mut revision.returns);
        (revision.percent, revision.goal, revision.held) = (0, 0, false);
        revision.state = if returns { RevisionState::Draining } else { RevisionState::RolledBack };
        Effect::Changed
    }

    fn traffic(&mut self, number: RevisionNumber, percent: u8) -> Result<Effect, Refusal> {
        if percent > 100 {
            return Err(Refusal::Percent);
        }
        // The first revision is compared with none, so it gets all requests or none.
        let alone = self.live().is_none();
        let revision = self.candidate_mut(number).ok_or(Refusal::NotCandidate)?;
        if alone {
            return Ok(Effect::Nothing);
        }
        if revision.state == RevisionState::Canary && !revision.held && revision.percent == percent {
            return Ok(Effect::Nothing);
        }
        let before = revision.clone();
        revision.held = true;
        revision.goal = percent;
        // Less is possible at once: the live revision has the replicas for all requests.
        revision.percent = revision.percent.min(percent);
        Ok(if *revision == before { Effect::Nothing } else { Effect::Changed })
    }

    fn roll_back(&mut self) -> Result<Effect, Refusal> {
        if let Some(returning) = self.returning() {
            return Ok(self.return_whole(returning));
        }
        if let Some(candidate) = self.candidate() {
            return Ok(self.withdraw(candidate));
        }
        let before = self.live().and_then(|live| self.revisions.get(&live)?.before);
        let revision = before.and_then(|before| self.revisions.get_mut(&before));
        let revision = revision.ok_or(Refusal::NothingBefore)?;
        (revision.state, revision.goal, revision.returns) = (RevisionState::Staging, 100, true);
        Ok(Effect::Changed)
    }

    /// Ends the percentage that a person set for a revision that comes back.
    fn return_whole(&mut self, number: RevisionNumber) -> Effect {
        let Some(revision) = self.candidate_mut(number) else { return Effect::Nothing };
        let is_whole = revision.goal == 100 && !revision.held;
        (revision.goal, revision.held) = (100, false);
        if is_whole { Effect::Nothing } else { Effect::Changed }
    }

    fn drained(&mut self, number: RevisionNumber) -> Effect {
        match self.revisions.get_mut(&number) {
            Some(revision) if revision.state == RevisionState::Draining => {
                revision.state = RevisionState::Retired;
                Effect::Changed
            }
            _ => Effect::Nothing,
        }
    }
}

#[cfg(test)]
mod tests;
