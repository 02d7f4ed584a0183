//! Tests of the rollout, against a model that is a table.

use std::collections::BTreeSet;

use super::RevisionState::{Canary, Draining, Live, Retired, RolledBack, Staging};
use super::*;

/// The kinds of events in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Submit,
    Ready,
    Good,
    Bad,
    Traffic,
    /// A traffic with the present percentage.
    Same,
    Excess,
    Rollback,
    Drained,
}

/// The condition of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    AnotherReturns,
    AnotherIsUnderway,
    NoneIsLive,
    GoalIsAll,
    GoalIsReached,
    IsHeld,
    Returns,
    HasBefore,
}

/// The result of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    Refuse(Refusal),
    StageAll,
    StageFirst,
    Promote,
    ReachGoal,
    NextGoal,
    GiveUp,
    DrainAgain,
    Set,
    Retire,
    ReturnBefore,
    ReturnWhole,
    EndTheReturn,
}

/// The first row with the state, the event and a true condition counts. No state: any.
const TABLE: &[(Option<RevisionState>, Kind, When, Then)] = &[
    (None, Kind::Submit, When::Always, Then::Refuse(Refusal::Known)),
    (Some(Staging), Kind::Ready, When::GoalIsAll, Then::Promote),
    (Some(Staging), Kind::Ready, When::Always, Then::ReachGoal),
    (Some(Canary), Kind::Ready, When::GoalIsAll, Then::Promote),
    (Some(Canary), Kind::Ready, When::GoalIsReached, Then::Nothing),
    (Some(Canary), Kind::Ready, When::Always, Then::ReachGoal),
    (None, Kind::Ready, When::Always, Then::Nothing),
    (Some(Canary), Kind::Good, When::IsHeld, Then::Nothing),
    (Some(Canary), Kind::Good, When::GoalIsReached, Then::NextGoal),
    (None, Kind::Good, When::Always, Then::Nothing),
    (Some(Staging), Kind::Bad, When::Returns, Then::DrainAgain),
    (Some(Staging), Kind::Bad, When::Always, Then::GiveUp),
    (Some(Canary), Kind::Bad, When::Returns, Then::DrainAgain),
    (Some(Canary), Kind::Bad, When::Always, Then::GiveUp),
    (None, Kind::Bad, When::Always, Then::Nothing),
    (None, Kind::Excess, When::Always, Then::Refuse(Refusal::Percent)),
    (Some(Staging), Kind::Traffic, When::NoneIsLive, Then::Nothing),
    (Some(Staging), Kind::Traffic, When::Always, Then::Set),
    (Some(Canary), Kind::Traffic, When::Always, Then::Set),
    (None, Kind::Traffic, When::Always, Then::Refuse(Refusal::NotCandidate)),
    (Some(Staging), Kind::Same, When::NoneIsLive, Then::Nothing),
    (Some(Staging), Kind::Same, When::Always, Then::Set),
    (Some(Canary), Kind::Same, When::IsHeld, Then::Set),
    (Some(Canary), Kind::Same, When::Always, Then::Nothing),
    (None, Kind::Same, When::Always, Then::Refuse(Refusal::NotCandidate)),
    (Some(Staging), Kind::Rollback, When::Returns, Then::ReturnWhole),
    (Some(Staging), Kind::Rollback, When::Always, Then::GiveUp),
    (Some(Canary), Kind::Rollback, When::Returns, Then::ReturnWhole),
    (Some(Canary), Kind::Rollback, When::Always, Then::GiveUp),
    (Some(Live), Kind::Rollback, When::HasBefore, Then::ReturnBefore),
    (None, Kind::Rollback, When::Always, Then::Refuse(Refusal::NothingBefore)),
    (Some(Draining), Kind::Drained, When::Always, Then::Retire),
    (None, Kind::Drained, When::Always, Then::Nothing),
];

/// The rows for a number without a revision.
const ABSENT: &[(Kind, When, Then)] = &[
    (Kind::Submit, When::AnotherReturns, Then::EndTheReturn),
    (Kind::Submit, When::AnotherIsUnderway, Then::Refuse(Refusal::Underway)),
    (Kind::Submit, When::NoneIsLive, Then::StageAll),
    (Kind::Submit, When::Always, Then::StageFirst),
    (Kind::Excess, When::Always, Then::Refuse(Refusal::Percent)),
    (Kind::Traffic, When::Always, Then::Refuse(Refusal::NotCandidate)),
    (Kind::Rollback, When::Always, Then::Refuse(Refusal::NothingBefore)),
    (Kind::Ready, When::Always, Then::Nothing),
    (Kind::Good, When::Always, Then::Nothing),
    (Kind::Bad, When::Always, Then::Nothing),
    (Kind::Drained, When::Always, Then::Nothing),
];

/// The revisions 1 to 3 of the model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Model([Option<Revision>; 3]);

const NUMBERS: [RevisionNumber; 3] = [1, 2, 3];

impl Model {
    fn place(number: RevisionNumber) -> usize {
        usize::try_from(number).unwrap() - 1
    }

    fn percent(&self, number: RevisionNumber) -> Option<u8> {
        self.0[Self::place(number)].as_ref().map(|revision| revision.percent)
    }

    fn with(&self, states: &[RevisionState]) -> Option<RevisionNumber> {
        let is = |n: &u32| self.0[Self::place(*n)].as_ref().is_some_and(|r| states.contains(&r.state));
        NUMBERS.into_iter().find(is)
    }

    fn holds(&self, when: When, revision: Option<&Revision>) -> bool {
        let is = |check: fn(&Revision) -> bool| revision.is_some_and(check);
        match when {
            When::Always => true,
            When::AnotherReturns => self.0.iter().flatten().any(|other| other.returns),
            When::AnotherIsUnderway => self.with(&[Staging, Canary]).is_some(),
            When::NoneIsLive => self.with(&[Live]).is_none(),
            When::GoalIsAll => is(|r| r.goal == 100),
            When::GoalIsReached => is(|r| r.goal == r.percent),
            When::IsHeld => is(|r| r.held),
            When::Returns => is(|r| r.returns),
            When::HasBefore => is(|r| r.before.is_some()),
        }
    }

    fn row(&self, kind: Kind, revision: Option<&Revision>) -> Then {
        let Some(revision) = revision else {
            let fits = |(k, when, _): &&(Kind, When, Then)| *k == kind && self.holds(*when, None);
            return ABSENT.iter().find(fits).unwrap().2;
        };
        let fits = |(state, k, when, _): &&(Option<RevisionState>, Kind, When, Then)| {
            state.is_none_or(|state| state == revision.state)
                && *k == kind
                && self.holds(*when, Some(revision))
        };
        TABLE.iter().find(fits).unwrap().3
    }

    fn apply(&mut self, steps: &[u8], event: Event) -> Result<Effect, Refusal> {
        let target = self.with(&[Staging, Canary]).or(self.with(&[Live]));
        let (number, kind, percent) = match event {
            Event::Submit(n) => (Some(n), Kind::Submit, 0),
            Event::Ready(n) => (Some(n), Kind::Ready, 0),
            Event::Good(n) => (Some(n), Kind::Good, 0),
            Event::Bad(n) => (Some(n), Kind::Bad, 0),
            Event::Traffic(n, percent) if percent > 100 => (Some(n), Kind::Excess, 0),
            Event::Traffic(n, percent) if self.percent(n) == Some(percent) => (Some(n), Kind::Same, percent),
            Event::Traffic(n, percent) => (Some(n), Kind::Traffic, percent),
            Event::Rollback => (target, Kind::Rollback, 0),
            Event::Drained(n) => (Some(n), Kind::Drained, 0),
        };
        let revision = number.and_then(|n| self.0[Self::place(n)].clone());
        let then = self.row(kind, revision.as_ref());
        let old = self.clone();
        if let Then::Refuse(refusal) = then {
            return Err(refusal);
        }
        if let Some(number) = number {
            self.perform(steps, number, revision, then, percent);
        }
        Ok(if *self == old { Effect::Nothing } else { Effect::Changed })
    }

    fn perform(&mut self, steps: &[u8], n: RevisionNumber, old: Option<Revision>, then: Then, percent: u8) {
        let fresh =
            Revision { state: Staging, percent: 0, goal: 100, held: false, returns: false, before: None };
        let live = self.with(&[Live]);
        let old = old.unwrap_or_else(|| fresh.clone());
        let resting = |state| Revision { state, goal: 0, before: old.before, ..fresh.clone() };
        let new = match then {
            Then::Nothing | Then::Refuse(_) => return,
            Then::StageAll => fresh.clone(),
            Then::StageFirst => Revision { goal: steps.first().copied().unwrap_or(100), ..fresh.clone() },
            Then::ReachGoal => Revision { state: Canary, percent: old.goal, ..old },
            Then::NextGoal => {
                let goal = steps.iter().copied().filter(|step| *step > old.percent).min().unwrap_or(100);
                Revision { goal, ..old }
            }
            Then::GiveUp => resting(RolledBack),
            Then::DrainAgain => resting(Draining),
            Then::Set => Revision { held: true, goal: percent, percent: old.percent.min(percent), ..old },
            Then::Retire => Revision { state: Retired, ..old },
            Then::Promote => {
                if let Some(live) = live {
                    let after = if old.returns { RolledBack } else { Draining };
                    self.0[Self::place(live)].as_mut().unwrap().state = after;
                }
                let before = if old.returns { old.before } else { live };
                Revision { before, ..resting(Live) }
            }
            Then::ReturnBefore => {
                let place = Self::place(old.before.unwrap());
                let before = self.0[place].as_mut().unwrap();
                *before = Revision { state: Staging, goal: 100, returns: true, ..before.clone() };
                return;
            }
            Then::ReturnWhole => Revision { goal: 100, held: false, ..old },
            Then::EndTheReturn => {
                let place = Self::place(self.with(&[Staging, Canary]).unwrap());
                let other = self.0[place].as_mut().unwrap();
                *other = Revision { state: Draining, goal: 0, before: other.before, ..fresh.clone() };
                Revision { goal: steps.first().copied().unwrap_or(100), ..fresh.clone() }
            }
        };
        self.0[Self::place(n)] = Some(new);
    }
}

fn events() -> Vec<Event> {
    let each = |n: RevisionNumber| {
        [Event::Submit(n), Event::Ready(n), Event::Good(n), Event::Bad(n), Event::Drained(n)]
            .into_iter()
            .chain([0, 40, 100, 101].map(|percent| Event::Traffic(n, percent)))
    };
    NUMBERS.into_iter().flat_map(each).chain([Event::Rollback]).collect()
}

/// The rules that hold after every event.
fn check(old: &Rollout, event: Event, new: &Rollout) {
    let weights: BTreeMap<_, _> = new.weights().into_iter().collect();
    let sum: u32 = weights.values().map(|percent| u32::from(*percent)).sum();
    assert_eq!(sum, if new.live().is_some() { 100 } else { 0 }, "{new:?}");
    let count = |states: &[RevisionState]| new.revisions().filter(|(_, r)| states.contains(&r.state)).count();
    assert!(count(&[Live]) <= 1 && count(&[Staging, Canary]) <= 1, "{new:?}");
    assert!(old.live().is_none() || new.live().is_some(), "a service never loses its live revision: {new:?}");
    let needed = new.replicas(10);
    let before: BTreeMap<_, _> = old.weights().into_iter().collect();
    for (number, percent) in weights {
        let replicas = needed.get(&number).copied().unwrap_or(0);
        assert!(replicas * 10 >= u32::from(percent), "{number} has too few replicas: {new:?}");
        let more = percent > before.get(&number).copied().unwrap_or(0);
        // The live revision has replicas for all requests, so it may get back what a canary had.
        let ready = event == Event::Ready(number) || old.live() == Some(number);
        assert!(!more || ready, "{number} got weight by {event:?} without ready replicas: {old:?} {new:?}");
    }
}

#[test]
fn all_histories_of_three_revisions_agree_with_the_table() {
    let mut states = 0;
    for steps in [vec![], vec![10, 50], vec![0, 30]] {
        // Equal worlds have equal futures, so each is continued once.
        let start = (Rollout::new(Plan::new(steps.clone()).unwrap()), Model::default());
        let mut worlds = BTreeSet::from([start]);
        let mut seen = worlds.clone();
        for _ in 0..7 {
            let mut next = BTreeSet::new();
            for (rollout, model) in &worlds {
                for event in events() {
                    let (mut new, mut expected) = (rollout.clone(), model.clone());
                    let result = new.apply(event);
                    assert_eq!(result, expected.apply(&steps, event), "{event:?} in {rollout:?}");
                    let known = |n: RevisionNumber| expected.0[Model::place(n)].clone().map(|r| (n, r));
                    let listed: Vec<_> = new.revisions().map(|(n, r)| (n, r.clone())).collect();
                    assert_eq!(
                        listed,
                        NUMBERS.into_iter().filter_map(known).collect::<Vec<_>>(),
                        "{event:?}"
                    );
                    assert!(result != Ok(Effect::Nothing) && result.is_ok() || new == *rollout, "{event:?}");
                    check(rollout, event, &new);
                    if seen.insert((new.clone(), expected.clone())) {
                        next.insert((new, expected));
                    }
                }
            }
            worlds = next;
        }
        states += seen.len();
    }
    assert!(states > 300, "{states}");
}

#[test]
fn a_bad_revision_returns_all_requests_at_once() {
    let mut rollout = Rollout::new(Plan::new(vec![5, 50]).unwrap());
    for event in [Event::Submit(1), Event::Ready(1), Event::Submit(2), Event::Ready(2)] {
        assert_eq!(rollout.apply(event), Ok(Effect::Changed));
    }
    assert_eq!(rollout.weights(), [(1, 95), (2, 5)]);
    assert_eq!(rollout.replicas(8), BTreeMap::from([(1, 8), (2, 1)]));
    assert_eq!(rollout.replicas(1), BTreeMap::from([(1, 1), (2, 1)]));
    assert_eq!(rollout.apply(Event::Good(2)), Ok(Effect::Changed));
    assert_eq!(
        (rollout.weights(), rollout.replicas(8)),
        (vec![(1, 95), (2, 5)], BTreeMap::from([(1, 8), (2, 4)]))
    );
    assert_eq!(rollout.apply(Event::Ready(2)), Ok(Effect::Changed));
    assert_eq!(rollout.weights(), [(1, 50), (2, 50)]);
    assert_eq!(rollout.apply(Event::Bad(2)), Ok(Effect::Changed));
    assert_eq!((rollout.weights(), rollout.replicas(8)), (vec![(1, 100)], BTreeMap::from([(1, 8)])));
}

#[test]
fn a_canary_sleeps_with_the_live_revision_and_a_revision_that_starts_does_not() {
    let mut rollout = Rollout::new(Plan::new(vec![10]).unwrap());
    for event in [Event::Submit(1), Event::Ready(1), Event::Submit(2)] {
        assert_eq!(rollout.apply(event), Ok(Effect::Changed));
    }
    assert_eq!(rollout.replicas(0), BTreeMap::from([(1, 0), (2, 1)]));
    assert_eq!(rollout.apply(Event::Ready(2)), Ok(Effect::Changed));
    assert_eq!(rollout.replicas(0), BTreeMap::from([(1, 0), (2, 0)]));
    assert_eq!(rollout.replicas(1), BTreeMap::from([(1, 1), (2, 1)]));
    // A higher share waits for no request.
    assert_eq!(rollout.apply(Event::Traffic(2, 100)), Ok(Effect::Changed));
    assert_eq!(rollout.replicas(0), BTreeMap::from([(1, 0), (2, 1)]));
    assert_eq!(rollout.apply(Event::Ready(2)), Ok(Effect::Changed));
    assert_eq!((rollout.live(), rollout.replicas(0)), (Some(2), BTreeMap::from([(2, 0)])));
}

#[test]
fn a_traffic_with_the_present_percentage_keeps_the_steps() {
    let mut rollout = Rollout::new(Plan::new(vec![10, 50]).unwrap());
    for event in [Event::Submit(1), Event::Ready(1), Event::Submit(2), Event::Ready(2)] {
        assert_eq!(rollout.apply(event), Ok(Effect::Changed));
    }
    assert_eq!(rollout.apply(Event::Traffic(2, 10)), Ok(Effect::Nothing));
    assert_eq!(rollout.apply(Event::Good(2)), Ok(Effect::Changed), "the steps go on");
    assert_eq!(rollout.apply(Event::Traffic(2, 10)), Ok(Effect::Nothing), "the next step starts");
    assert_eq!(rollout.apply(Event::Ready(2)), Ok(Effect::Changed));
    assert_eq!(rollout.weights(), [(1, 50), (2, 50)]);
    // A part that a person set stays, and one that is not reached yet is withdrawn.
    assert_eq!(rollout.apply(Event::Traffic(2, 60)), Ok(Effect::Changed));
    assert_eq!(rollout.apply(Event::Traffic(2, 50)), Ok(Effect::Changed));
    assert_eq!(rollout.apply(Event::Ready(2)), Ok(Effect::Nothing));
    assert_eq!(rollout.apply(Event::Good(2)), Ok(Effect::Nothing));
    assert_eq!(rollout.weights(), [(1, 50), (2, 50)]);
}

#[test]
fn the_revision_before_comes_back_when_it_is_ready() {
    let mut rollout = Rollout::new(Plan::new(vec![]).unwrap());
    for event in [Event::Submit(1), Event::Ready(1), Event::Submit(2), Event::Ready(2), Event::Drained(1)] {
        assert_eq!(rollout.apply(event), Ok(Effect::Changed));
    }
    assert_eq!(rollout.apply(Event::Rollback), Ok(Effect::Changed));
    assert_eq!((rollout.weights(), rollout.replicas(4)), (vec![(2, 100)], BTreeMap::from([(1, 4), (2, 4)])));
    assert_eq!(rollout.apply(Event::Ready(1)), Ok(Effect::Changed));
    assert_eq!(rollout.weights(), [(1, 100)]);
    let states: Vec<_> = rollout.revisions().map(|(_, revision)| revision.state).collect();
    assert_eq!(states, [Live, RolledBack]);
    assert_eq!(rollout.apply(Event::Rollback), Err(Refusal::NothingBefore));
}

#[test]
fn a_way_back_that_never_ends_keeps_no_new_revision_out() {
    let mut rollout = Rollout::new(Plan::new(vec![]).unwrap());
    for event in [Event::Submit(1), Event::Ready(1), Event::Submit(2), Event::Ready(2), Event::Drained(1)] {
        assert_eq!(rollout.apply(event), Ok(Effect::Changed));
    }
    assert_eq!(rollout.apply(Event::Rollback), Ok(Effect::Changed));
    // A share that a person set ends with the next way back.
    assert_eq!(rollout.apply(Event::Traffic(1, 30)), Ok(Effect::Changed));
    assert_eq!(rollout.apply(Event::Rollback), Ok(Effect::Changed));
    assert_eq!(rollout.apply(Event::Rollback), Ok(Effect::Nothing));
    assert_eq!(rollout.apply(Event::Submit(3)), Ok(Effect::Changed));
    assert_eq!((rollout.weights(), rollout.candidate()), (vec![(2, 100)], Some(3)));
    assert_eq!(rollout.replicas(4), BTreeMap::from([(2, 4), (3, 4)]));
    assert_eq!(rollout.apply(Event::Submit(4)), Err(Refusal::Underway));
    // The way back to the same revision is open again.
    assert_eq!(rollout.apply(Event::Rollback), Ok(Effect::Changed));
    assert_eq!(rollout.apply(Event::Rollback), Ok(Effect::Changed));
    assert_eq!(rollout.candidate(), Some(1));
}

#[test]
fn old_revisions_are_forgotten_and_the_one_before_is_not() {
    let mut rollout = Rollout::new(Plan::new(vec![]).unwrap());
    for number in 1..=300 {
        for event in [Event::Submit(number), Event::Ready(number), Event::Drained(number.saturating_sub(1))] {
            rollout.apply(event).unwrap();
        }
        assert!(rollout.revisions().count() <= MAX_REVISIONS);
    }
    assert_eq!((rollout.live(), rollout.apply(Event::Rollback)), (Some(300), Ok(Effect::Changed)));
}

#[test]
fn plans_rise_to_less_than_the_whole() {
    for (steps, error) in [
        (vec![10, 10], PlanError::Order),
        (vec![50, 10], PlanError::Order),
        (vec![100], PlanError::Order),
        ((0..21).collect(), PlanError::TooMany),
    ] {
        assert_eq!(Plan::new(steps), Err(error));
    }
    assert!(Plan::new((0..20).collect()).is_ok());
}
