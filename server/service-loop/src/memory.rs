//! The memory of the loop about a service between its runs. A start of the portal begins anew: the number of replicas is in
//! the row of the service, and a step of a rollout is judged again from its begin.

use std::collections::BTreeMap;

use berth_autoscaling::GatewayId;
use berth_autoscaling::rollout::{Judge, RevisionNumber, RevisionState, Rule, Verdict};
use berth_autoscaling::scaling::{Decision, Fleet, Policy, Report, Scaler};
use berth_service_types::revisions::RolloutRule;
use berth_service_types::scaling::{Scaling, ScalingDecision};
use berth_types::ids::RevisionId;
use berth_types::time::Timestamp;

use super::plan::{Judged, MOST_PAUSE_S, Refusal, WAITED_PAUSE_S};
use super::world::World;
use berth_services::loads::{Counts, LoadBoard};
use berth_services::schedules;

/// The number of replicas rises at once to at most twice the ready ones and this number.
const STEP: u32 = 2;
/// A decision with the same number is stored again after this time in seconds.
const STORED_AGAIN_S: i64 = 15;
/// Characters of the text of a refusal.
const MAX_REFUSAL_CHARS: usize = 300;

/// A step of a canary.
#[derive(Debug, Clone, Copy)]
struct Step {
    canary: (RevisionNumber, u8),
    live: RevisionNumber,
    ids: [RevisionId; 2],
    judge: Judge,
    /// The counts of the canary and of the live revision at its begin.
    before: (Counts, Counts),
}

/// The refused submissions of a revision in sequence.
#[derive(Debug, Clone)]
struct Refused {
    count: u32,
    at: Timestamp,
    last: Refusal,
}

/// The memory of one service.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    scaler: Scaler,
    step: Option<Step>,
    refused: BTreeMap<RevisionId, Refused>,
}

fn rule(rollout: &RolloutRule) -> Rule {
    Rule {
        min_requests: rollout.min_requests,
        min_s: rollout.min_seconds,
        permitted_errors_permille: u16::from(rollout.error_percent) * 10,
    }
}

fn policy(scaling: &Scaling) -> Policy {
    Policy {
        target: scaling.target_requests.max(1),
        floor: scaling.min_replicas.min(scaling.max_replicas),
        ceiling: scaling.max_replicas.max(1),
        up_delay_s: scaling.up_delay_s,
        down_delay_s: scaling.down_delay_s,
        idle_s: scaling.idle_s,
        step: STEP,
        schedule: schedules::windows(scaling),
        shadow: scaling.shadow,
    }
}

/// The number of replicas that a decision lets the service have.
pub fn wanted(scaling: &Scaling, decision: &Decision) -> u32 {
    if decision.applied { decision.replicas } else { scaling.min_replicas.max(1) }
}

/// The stored decision; `None` before the first, or for a text of another version.
fn parse(stored: &str) -> Option<ScalingDecision> {
    serde_json::from_str(stored).ok()
}

/// The text of a decision for the row of its service. It changes with the number, and else from time to time.
pub fn decision_text(stored: &str, decision: &Decision, now: Timestamp) -> String {
    let new = ScalingDecision {
        at: now,
        replicas: decision.replicas,
        applied: decision.applied,
        reason: decision.to_string(),
        in_flight: decision.load.in_flight,
        waiting: decision.load.waiting,
    };
    let keep = parse(stored).is_some_and(|last| {
        let same = (last.replicas, last.applied) == (new.replicas, new.applied);
        let unchanged = last.reason == new.reason;
        let recent = now < last.at.plus_seconds(STORED_AGAIN_S);
        // The reason of a sleeping service names the time of its sleep, which grows.
        same && (unchanged || recent || new.replicas == 0)
    });
    if keep { stored.to_owned() } else { serde_json::to_string(&new).unwrap_or_default() }
}

impl Memory {
    /// Decides the number of replicas from the reports of gateways. `stored` is the last decision.
    pub fn decide(
        &mut self,
        (scaling, stored): (&Scaling, &str),
        reports: Vec<(u64, Report)>,
        world: &World,
        now: Timestamp,
    ) -> Decision {
        for (gateway, report) in reports {
            self.scaler.report(GatewayId(gateway), report);
        }
        // A new service begins with a replica, so that it is seen to work before it falls asleep.
        let first = scaling.min_replicas.max(1);
        let last = parse(stored).map_or(first, |last| if last.applied { last.replicas } else { first });
        let present = if scaling.shadow { first } else { last };
        let ready = world.replicas.iter().filter(|replica| replica.ready && replica.draining_since.is_none());
        let ready = u32::try_from(ready.count()).unwrap_or(u32::MAX);
        // The number that the loop keeps up, and not the replicas of this moment: one that failed is replaced.
        let fleet = Fleet { replicas: present, ready: ready.min(present) };
        self.scaler.decide(&policy(scaling), fleet, now, schedules::utc_offset_min(scaling, now))
    }

    /// The end of the delay that the last decision names.
    pub fn delay_ends(&self, scaling: &Scaling, decision: &Decision) -> Option<Timestamp> {
        self.scaler.delay_ends(&policy(scaling), decision)
    }

    /// Judges the canary of a service by its requests since the begin of its step. A good one goes on only by itself if the
    /// rule permits it.
    pub fn judge(
        &mut self,
        rollout: &RolloutRule,
        world: &World,
        board: &LoadBoard,
        now: Timestamp,
    ) -> Option<Judged> {
        let rule = rule(rollout);
        let canary = world.rollout.revisions().find(|(_, revision)| revision.state == RevisionState::Canary);
        let canary = canary.map(|(number, revision)| (number, revision.percent));
        let (Some(canary), Some(live)) = (canary, world.rollout.live()) else {
            self.step = None;
            return None;
        };
        let id = |number: RevisionNumber| world.revisions.iter().find(|r| r.number == number).map(|r| r.id);
        let ids = [id(canary.0)?, id(live)?];
        let [canary_counts, live_counts] = ids.map(|revision| board.watch(revision));
        let counts = (canary_counts, live_counts);
        let same = self.step.is_some_and(|step| (step.canary, step.live) == (canary, live));
        if !same {
            self.step = Some(Step { canary, live, ids, judge: Judge::new(&rule, now), before: counts });
            return None;
        }
        let step = self.step.as_mut()?;
        let evidence = (counts.0.since(&step.before.0), counts.1.since(&step.before.1));
        let fault = match step.judge.judge(&rule, &evidence.0, &evidence.1, now) {
            Verdict::Wait { .. } => return None,
            Verdict::Promote if !rollout.automatic => return None,
            Verdict::Promote => None,
            Verdict::Rollback(fault) => Some(fault.to_string()),
        };
        Some(Judged { revision: canary.0, percent: canary.1, fault })
    }

    /// The revisions whose requests are counted for the present step.
    pub fn watched(&self) -> impl Iterator<Item = RevisionId> {
        self.step.into_iter().flat_map(|step| step.ids)
    }

    /// The refusals of revisions. While requests wait, a try soon finds new credit or a higher limit.
    pub fn refusals(&self, has_waiting: bool) -> BTreeMap<RevisionId, Refusal> {
        let shown = |refused: &Refused| {
            let Refusal { until, detail } = refused.last.clone();
            let soon = refused.at.plus_seconds(WAITED_PAUSE_S);
            Refusal { until: if has_waiting { until.min(soon) } else { until }, detail }
        };
        self.refused.iter().map(|(revision, refused)| (*revision, shown(refused))).collect()
    }

    /// Remembers that the submission of a replica was refused. The next one follows after a pause.
    pub fn refuse(&mut self, revision: RevisionId, detail: &str, now: Timestamp) {
        let count = self.refused.get(&revision).map_or(0, |refused| refused.count).saturating_add(1);
        let pause_s = (1_i64 << count.min(16)).min(MOST_PAUSE_S);
        let detail = detail.chars().take(MAX_REFUSAL_CHARS).collect();
        let last = Refusal { until: now.plus_seconds(pause_s), detail };
        self.refused.insert(revision, Refused { count, at: now, last });
    }

    /// Forgets the refusals of a revision after a submission.
    pub fn accept(&mut self, revision: RevisionId) {
        self.refused.remove(&revision);
    }

    /// Forgets the refusals of revisions without a replica that waits for its submission.
    pub fn retain_refusals(&mut self, waiting: &[RevisionId]) {
        self.refused.retain(|revision, _| waiting.contains(revision));
    }
}

#[cfg(test)]
mod tests {
    use berth_autoscaling::rollout::{Plan, Revision as Progress, Rollout};
    use berth_serving::reports::Use;
    use berth_types::ids::{JobId, ServiceId};
    use uuid::Uuid;

    use crate::world::{Replica, ReplicaJob, Revision, Terms};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(0).plus_seconds(seconds)
    }

    fn empty() -> World {
        let rollout = Rollout::new(Plan::default());
        World { halted: false, rollout, revisions: Vec::new(), replicas: Vec::new() }
    }

    fn decide(memory: &mut Memory, scaling: &Scaling, stored: &str, load: (u32, u32), now: i64) -> Decision {
        let report = Report { in_flight: load.0, waiting: load.1, begun: false, at: at(now) };
        memory.decide((scaling, stored), vec![(1, report)], &empty(), at(now))
    }

    #[test]
    fn a_new_service_begins_with_a_replica_and_falls_asleep_after_its_idle_time() {
        let scaling = Scaling { min_replicas: 0, down_delay_s: 10, idle_s: 60, ..Scaling::default() };
        let (mut memory, mut stored) = (Memory::default(), String::new());
        let mut numbers = Vec::new();
        for now in (0..100).step_by(5) {
            let decision = decide(&mut memory, &scaling, &stored, (0, 0), now);
            stored = decision_text(&stored, &decision, at(now));
            numbers.push(wanted(&scaling, &decision));
        }
        assert_eq!((numbers.first(), numbers.last()), (Some(&1), Some(&0)));
        assert!(numbers.is_sorted_by(|a, b| a >= b), "{numbers:?}");
        // The first request wakes it at once.
        let decision = decide(&mut memory, &scaling, &stored, (0, 1), 101);
        assert_eq!(wanted(&scaling, &decision), 1);
    }

    /// docs/services.md, "The number of replicas", has this bound in words.
    #[test]
    fn a_rise_is_at_most_to_twice_the_ready_replicas_and_two_more() {
        let ready = Replica {
            id: JobId::from_uuid(Uuid::from_u128(1)),
            revision: RevisionId::from_uuid(Uuid::from_u128(2)),
            created_at: at(0),
            job: ReplicaJob::Running { since: at(0), until: at(900) },
            ready: true,
            first_ready_at: Some(at(0)),
            unready_since: None,
            draining_since: None,
            ended_at: None,
            failed: false,
            is_of_node: false,
            fault: String::new(),
        };
        let scaling = Scaling { max_replicas: 50, target_requests: 1, up_delay_s: 0, ..Scaling::default() };
        let report = || Report { in_flight: 100, waiting: 0, begun: false, at: at(9) };
        let mut stored = String::new();
        for (count, expected) in [(1, 4), (4, 10), (10, 22), (22, 46), (46, 50)] {
            let world = World { replicas: vec![ready.clone(); count], ..empty() };
            let mut memory = Memory::default();
            let decision = memory.decide((&scaling, &stored), vec![(1, report())], &world, at(9));
            assert_eq!(wanted(&scaling, &decision), expected, "{count} ready: {decision}");
            stored = decision_text(&stored, &decision, at(9));
        }
    }

    #[test]
    fn a_restart_keeps_the_number_and_shadow_mode_applies_none() {
        let scaling = Scaling { min_replicas: 0, max_replicas: 9, ..Scaling::default() };
        let mut memory = Memory::default();
        let decision = decide(&mut memory, &scaling, "", (0, 0), 0);
        let stored = decision_text("", &Decision { replicas: 5, ..decision }, at(0));
        let silent = Memory::default().decide((&scaling, &stored), Vec::new(), &empty(), at(9));
        assert_eq!(wanted(&scaling, &silent), 5);
        let shadow = Scaling { shadow: true, ..scaling };
        let decision = decide(&mut Memory::default(), &shadow, &stored, (40, 0), 9);
        assert_eq!((wanted(&shadow, &decision), decision.applied), (1, false));
    }

    #[test]
    fn a_decision_is_stored_with_each_new_number_and_else_rarely() {
        let scaling = Scaling::default();
        let first = decide(&mut Memory::default(), &scaling, "", (1, 0), 0);
        let stored = decision_text("", &first, at(0));
        let more = decide(&mut Memory::default(), &scaling, "", (2, 0), 0);
        assert_eq!((first.replicas, more.replicas), (1, 1));
        assert_eq!(decision_text(&stored, &more, at(14)), stored);
        assert_ne!(decision_text(&stored, &more, at(15)), stored);
        assert_eq!(decision_text(&stored, &first, at(900)), stored, "nothing is new");
        let other = Decision { replicas: 2, ..first };
        assert_ne!(decision_text(&stored, &other, at(1)), stored);
    }

    #[test]
    fn the_floor_of_a_schedule_holds_and_its_reason_names_it() {
        // The first instant is on a Thursday at 00:00 UTC, which is 09:00 in Tokyo.
        let schedule = serde_json::json!([{
            "begin": {"day": "thursday", "minute": 540}, "end": {"day": "thursday", "minute": 541}, "floor": 3,
        }]);
        let scaling = Scaling {
            max_replicas: 4,
            schedule: serde_json::from_value(schedule).unwrap(),
            time_zone: "Asia/Tokyo".to_owned(),
            ..Scaling::default()
        };
        let decision = decide(&mut Memory::default(), &scaling, "", (0, 0), 59);
        assert_eq!(wanted(&scaling, &decision), 3);
        assert!(decision.to_string().ends_with("; the schedule has the floor 3"), "{decision}");
        let after = decide(&mut Memory::default(), &scaling, "", (0, 0), 60);
        assert!(wanted(&scaling, &after) == 1 && !after.to_string().contains("schedule"), "{after}");
    }

    /// A live revision and a canary with a tenth of the requests.
    fn with_canary() -> World {
        let progress = |state: RevisionState, percent: u8| Progress {
            state,
            percent,
            goal: percent,
            held: false,
            returns: false,
            before: None,
        };
        let rows = [(1, progress(RevisionState::Live, 0)), (2, progress(RevisionState::Canary, 10))];
        let terms = Terms { ready_within_s: 600, canary_percent: vec![10], max_duration_s: 600 };
        let revision = |number: RevisionNumber| Revision {
            id: RevisionId::from_uuid(Uuid::from_u128(number.into())),
            number,
            terms: terms.clone(),
        };
        World {
            rollout: Rollout::restored(Plan::new(vec![10]).unwrap(), rows),
            revisions: vec![revision(1), revision(2)],
            ..empty()
        }
    }

    #[test]
    fn a_canary_goes_on_and_back_by_the_rule_of_its_service() {
        let used = |number: u128, requests: u64, errors: u64| Use {
            service: ServiceId::from_uuid(Uuid::from_u128(1)),
            revision: RevisionId::from_uuid(Uuid::from_u128(number)),
            key: None,
            requests,
            errors,
            prompt_tokens: 0,
            completion_tokens: 0,
            token_nanos: 0,
            first_byte: Vec::new(),
        };
        let slow = RolloutRule { min_requests: 9, min_seconds: 30, error_percent: 5, automatic: true };
        let by_hand = RolloutRule { automatic: false, ..slow };
        for (rule, errors, after_s, expected) in [
            (slow, 0, 29, None),
            (slow, 0, 30, Some(false)),
            (RolloutRule { min_requests: 11, ..slow }, 0, 30, None),
            (by_hand, 0, 30, None),
            (slow, 10, 30, Some(true)),
            (by_hand, 10, 30, Some(true)),
            (RolloutRule { error_percent: 100, ..slow }, 10, 30, Some(false)),
        ] {
            let (world, board) = (with_canary(), LoadBoard::new(at(0)));
            let mut memory = Memory::default();
            assert_eq!(memory.judge(&rule, &world, &board, at(0)), None);
            board.evidence(&used(2, 10, errors));
            let judged = memory.judge(&rule, &world, &board, at(after_s));
            let faults = judged.map(|judged| judged.fault.is_some());
            assert_eq!(faults, expected, "{rule:?} {errors} {after_s}");
        }
    }

    #[test]
    fn pauses_after_refusals_double_and_end_with_a_submission() {
        let revision = RevisionId::from_uuid(Uuid::from_u128(1));
        let mut memory = Memory::default();
        for pause_s in [2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            memory.refuse(revision, "Not enough credit.", at(0));
            assert_eq!(memory.refusals(false)[&revision].until, at(pause_s));
            // A request that comes during a long pause ends it.
            assert_eq!(memory.refusals(true)[&revision].until, at(pause_s.min(15)));
        }
        memory.accept(revision);
        assert!(memory.refusals(false).is_empty());
        memory.refuse(revision, &"x".repeat(1_000), at(0));
        assert_eq!(memory.refusals(false)[&revision].detail.len(), MAX_REFUSAL_CHARS);
        memory.retain_refusals(&[]);
        assert!(memory.refusals(false).is_empty());
    }
}
