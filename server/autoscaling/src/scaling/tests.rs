//! Tests of the number of replicas, against a model with the wish of every second.

use super::*;
use crate::ReplicaId;
use proptest::prelude::*;

fn second(second: i64) -> Timestamp {
    // A Monday, 00:00 UTC.
    Timestamp::from_micros(1_795_392_000_000_000).plus_seconds(second)
}

fn policy() -> Policy {
    Policy {
        target: 16,
        floor: 0,
        ceiling: 8,
        up_delay_s: 0,
        down_delay_s: 0,
        idle_s: 600,
        step: 4,
        schedule: Vec::new(),
        shadow: false,
    }
}

fn report(in_flight: u32, waiting: u32, s: i64) -> Report {
    Report { in_flight, waiting, begun: false, at: second(s) }
}

/// Decides with one report of one gateway, for replicas that are all ready.
fn decided(scaler: &mut Scaler, policy: &Policy, replicas: u32, requests: u32, s: i64) -> Decision {
    scaler.report(GatewayId(1), report(requests, 0, s));
    scaler.decide(policy, Fleet { replicas, ready: replicas }, second(s), 0)
}

#[test]
fn a_delay_ends_when_the_number_changes_and_not_before() {
    let policy = Policy { up_delay_s: 3, down_delay_s: 7, ..policy() };
    // A short peak in between begins each delay anew.
    for (replicas, loads, ends_s, then) in [
        (1, vec![(0, 16), (10, 40)], 13, 3),
        (1, vec![(0, 16), (10, 40), (11, 10), (12, 40)], 15, 3),
        (3, vec![(0, 48), (10, 20)], 17, 2),
        (3, vec![(0, 48), (10, 20), (11, 48), (12, 20)], 19, 2),
    ] {
        let mut scaler = Scaler::default();
        let mut last = None;
        for (s, requests) in &loads {
            last = Some(decided(&mut scaler, &policy, replicas, *requests, *s));
        }
        let last = last.unwrap();
        assert_eq!(scaler.delay_ends(&policy, &last), Some(second(ends_s)), "{last}");
        let requests = loads.last().unwrap().1;
        let before = decided(&mut scaler, &policy, replicas, requests, ends_s - 1);
        assert_eq!(before.replicas, replicas, "{before}");
        let after = decided(&mut scaler, &policy, replicas, requests, ends_s);
        assert_eq!((after.replicas, scaler.delay_ends(&policy, &after)), (then, None), "{after}");
    }
}

#[test]
fn the_reason_is_a_sentence() {
    let mut scaler = Scaler::default();
    let first = decided(&mut scaler, &policy(), 1, 41, 0);
    assert_eq!(first.to_string(), "3 replicas: 41 requests in flight, 16 for each");
    scaler.report(GatewayId(2), report(0, 5, 1));
    let shadow = Policy { shadow: true, ..policy() };
    let more = scaler.decide(&shadow, Fleet { replicas: 3, ready: 3 }, second(1), 0);
    assert_eq!(more.to_string(), "would be 3 replicas: 41 requests in flight and 5 waiting, 16 for each");
    let cases = [
        (
            Policy { ceiling: 2, ..policy() },
            1,
            41,
            "2 replicas: 41 requests in flight, 16 for each; the ceiling holds",
        ),
        (
            Policy { floor: 2, ..policy() },
            1,
            1,
            "2 replicas: 1 request in flight, 16 for each; the floor holds",
        ),
        (
            Policy { up_delay_s: 9, ..policy() },
            1,
            41,
            "1 replica: 41 requests in flight, 16 for each; the delay up has not passed",
        ),
        (
            Policy { down_delay_s: 9, ..policy() },
            3,
            1,
            "3 replicas: 1 request in flight, 16 for each; the delay down has not passed",
        ),
        (
            Policy { step: 1, ..policy() },
            1,
            99,
            "3 replicas: 99 requests in flight, 16 for each; the next step comes when these are ready",
        ),
        (policy(), 0, 1, "1 replica: 1 request in flight, 16 for each; the first request wakes the service"),
        (policy(), 1, 0, "1 replica: 0 requests in flight, 16 for each; the idle time has not passed"),
        (policy(), 0, 0, "0 replicas: no request for 0 s"),
    ];
    for (policy, replicas, requests, text) in cases {
        assert_eq!(decided(&mut Scaler::default(), &policy, replicas, requests, 0).to_string(), text);
    }
}

#[test]
fn silent_gateways_age_out_and_without_any_the_number_stays() {
    let mut scaler = Scaler::default();
    scaler.report(GatewayId(1), report(32, 0, 0));
    scaler.report(GatewayId(2), report(32, 0, 10));
    let fleet = Fleet { replicas: 4, ready: 4 };
    assert_eq!(scaler.decide(&policy(), fleet, second(14), 0).replicas, 4);
    assert_eq!(scaler.decide(&policy(), fleet, second(15), 0).replicas, 2, "the first one is 15 s old");
    let silent = scaler.decide(&policy(), fleet, second(10_000), 0);
    assert_eq!((silent.replicas, silent.cause), (4, Cause::Silent));
    assert_eq!(silent.to_string(), "4 replicas: no gateway reports, so the number stays");
    // The silence is no idle time.
    let back = decided(&mut scaler, &policy(), 4, 0, 10_001);
    assert_eq!((back.replicas, back.cause), (1, Cause::Awake));
    scaler.report(GatewayId(1), report(99, 0, 9_000));
    assert_eq!(
        decided(&mut scaler, &policy(), 1, 0, 10_002).load,
        Load::default(),
        "an old report does not count"
    );
}

#[test]
fn an_idle_service_sleeps_and_the_first_request_wakes_it() {
    let slow = Policy { up_delay_s: 60, down_delay_s: 60, ..policy() };
    let mut scaler = Scaler::default();
    assert_eq!(decided(&mut scaler, &slow, 1, 1, 0).replicas, 1);
    for s in (10..600).step_by(10) {
        assert_eq!(decided(&mut scaler, &slow, 1, 0, s).replicas, 1, "{s}");
    }
    let asleep = decided(&mut scaler, &slow, 1, 0, 600);
    assert_eq!((asleep.replicas, asleep.cause), (0, Cause::Idle { millis: 600_000 }));
    assert_eq!(decided(&mut scaler, &slow, 0, 0, 610).replicas, 0);
    scaler.report(GatewayId(1), report(0, 1, 611));
    let woken = scaler.decide(&slow, Fleet { replicas: 0, ready: 0 }, second(611), 0);
    assert_eq!(
        (woken.replicas, woken.cause),
        (1, Cause::Wake),
        "the delay up does not hold for the first replica"
    );
    let floor = Policy { floor: 1, ..slow };
    assert_eq!(decided(&mut scaler, &floor, 1, 0, 9_999).replicas, 1, "with a floor it never sleeps");
}

#[test]
fn requests_that_end_between_two_reports_keep_a_service_awake() {
    let mut scaler = Scaler::default();
    let awake = |scaler: &mut Scaler, begun: bool, s: i64| {
        scaler.report(GatewayId(1), Report { begun, ..report(0, 0, s) });
        scaler.report(GatewayId(2), report(0, 0, s));
        let decision = scaler.decide(&policy(), Fleet { replicas: 1, ready: 1 }, second(s), 0);
        assert_eq!(decision.load, Load::default(), "no request is open");
        decision.replicas == 1
    };
    for s in 0..2_000 {
        assert!(awake(&mut scaler, s % 500 == 0, s), "{s}: a request each 500 s, and an idle time of 600 s");
    }
    for s in 2_000..2_200 {
        assert_eq!(awake(&mut scaler, false, s), s < 2_100, "{s}: the last request was at 1,500 s");
    }
}

#[test]
fn a_step_waits_for_ready_replicas() {
    let mut scaler = Scaler::default();
    let big = Policy { ceiling: 100, step: 2, ..policy() };
    let mut fleet = Fleet { replicas: 1, ready: 1 };
    for (ready, expected) in [(1, 4), (1, 4), (4, 10), (3, 10), (10, 22), (22, 46), (46, 94), (94, 100)] {
        scaler.report(GatewayId(1), report(10_000, 0, 0));
        fleet.ready = ready;
        fleet.replicas = scaler.decide(&big, fleet, second(0), 0).replicas;
        assert_eq!(fleet.replicas, expected);
    }
}

#[test]
fn a_schedule_sets_floors_in_its_time_zone() {
    let window = |from_min, until_min, floor| WeeklyWindow { from_min, until_min, floor };
    // Monday 08:00 to 18:00, and Sunday 23:00 to Monday 01:00.
    let windows = [window(480, 1_080, 3), window(6 * 1_440 + 1_380, 60, 5)];
    for (hour, minute, offset, floor) in [
        (0, 0, 0, 5),
        (0, 59, 0, 5),
        (1, 0, 0, 0),
        (7, 59, 0, 0),
        (8, 0, 0, 3),
        (17, 59, 0, 3),
        (18, 0, 0, 0),
        (6, 30, 90, 3),
        (0, 0, -60, 5),
        (0, 0, -61, 0),
        (24 * 6 + 23, 0, 0, 5),
        (-1, 0, 0, 5),
    ] {
        let at = second(hour * 3_600 + minute * 60);
        assert_eq!(scheduled_floor(&windows, at, offset), floor, "{hour}:{minute} {offset}");
    }
    let planned = Policy { schedule: windows.to_vec(), up_delay_s: 60, ..policy() };
    let at_once = decided(&mut Scaler::default(), &planned, 0, 0, 0);
    assert_eq!(at_once.replicas, 5, "without the delay");
    assert_eq!(
        at_once.to_string(),
        "5 replicas: 0 requests in flight, 16 for each; the floor holds; the schedule has the floor 5"
    );
    let silent = Scaler::default().decide(&planned, Fleet { replicas: 1, ready: 1 }, second(0), 0);
    assert_eq!(
        silent.to_string(),
        "5 replicas: no gateway reports, so the number stays; the schedule has the floor 5"
    );
}

#[test]
fn each_minute_of_a_week_has_the_floor_of_a_count_and_the_next_change() {
    let window = |from_min, until_min, floor| WeeklyWindow { from_min, until_min, floor };
    let week = i64::from(MINUTES_A_WEEK);
    let schedules = [
        vec![window(480, 1_080, 3), window(600, 700, 5), window(700, 720, 1)],
        vec![window(6 * 1_440 + 1_380, 60, 5), window(0, 1, 2)],
        vec![window(10, 9, 4)],
        Vec::new(),
    ];
    for windows in schedules {
        // The floors by counting each window's minutes from its begin.
        let mut floors = vec![0; usize::from(MINUTES_A_WEEK)];
        for window in &windows {
            let mut minute = window.from_min;
            while minute != window.until_min {
                let floor: &mut u32 = &mut floors[usize::from(minute)];
                *floor = (*floor).max(window.floor);
                minute = (minute + 1) % MINUTES_A_WEEK;
            }
        }
        // The minutes to the next begin or end, counted backwards over two weeks.
        let bounds: Vec<u16> =
            windows.iter().flat_map(|window| [window.from_min, window.until_min]).collect();
        let mut left: Vec<Option<i64>> = vec![None; usize::from(MINUTES_A_WEEK)];
        let mut next: Option<i64> = None;
        for minute in (0..2 * MINUTES_A_WEEK).rev().map(|minute| minute % MINUTES_A_WEEK) {
            left[usize::from(minute)] = next.map(|next| next + 1);
            next = if bounds.contains(&minute) { Some(0) } else { left[usize::from(minute)] };
        }
        for offset in [0, -210, 345] {
            for minute in 0..week {
                let at = second(minute * 60 + 59);
                let local = usize::try_from((minute + i64::from(offset)).rem_euclid(week)).unwrap();
                assert_eq!(scheduled_floor(&windows, at, offset), floors[local], "{minute} {offset}");
                let expected = left[local].map(|left| second((minute + left) * 60));
                assert_eq!(next_change(&windows, at, offset), expected, "{minute} {offset}");
            }
        }
    }
}

#[test]
fn policies_beyond_their_limits_are_refused() {
    assert_eq!(policy().check(), Ok(()));
    let window = WeeklyWindow { from_min: 5, until_min: 5, floor: 1 };
    let over = WeeklyWindow { from_min: 5, until_min: MINUTES_A_WEEK, floor: 1 };
    let high = WeeklyWindow { from_min: 5, until_min: 6, floor: 9 };
    let many = vec![WeeklyWindow { from_min: 5, until_min: 6, floor: 1 }; MAX_WINDOWS + 1];
    for (bad, error) in [
        (Policy { target: 0, ..policy() }, PolicyError::Target),
        (Policy { ceiling: 0, ..policy() }, PolicyError::Ceiling),
        (Policy { ceiling: 1_001, ..policy() }, PolicyError::Ceiling),
        (Policy { floor: 9, ..policy() }, PolicyError::Floor),
        (Policy { up_delay_s: 3_601, ..policy() }, PolicyError::Delay),
        (Policy { down_delay_s: 700, ..policy() }, PolicyError::Idle),
        (Policy { idle_s: MAX_IDLE_S + 1, ..policy() }, PolicyError::Idle),
        (Policy { step: 0, ..policy() }, PolicyError::Step),
        (Policy { schedule: many, ..policy() }, PolicyError::Windows),
        (Policy { schedule: vec![window], ..policy() }, PolicyError::Window),
        (Policy { schedule: vec![over], ..policy() }, PolicyError::Window),
        (Policy { schedule: vec![high], ..policy() }, PolicyError::Window),
    ] {
        assert_eq!(bad.check(), Err(error));
    }
}

/// The rule with the wish of every second, for one gateway and replicas that are ready at once.
struct Naive {
    wishes: Vec<u32>,
    first: u32,
    busy: i64,
}

impl Naive {
    fn wish_at(&self, s: i64) -> u32 {
        usize::try_from(s).map_or(self.first, |s| self.wishes[s])
    }

    fn decide(&mut self, policy: &Policy, replicas: u32, requests: u32, s: i64) -> u32 {
        // The last wish holds until now.
        while self.wishes.len() < usize::try_from(s).unwrap() {
            self.wishes.push(*self.wishes.last().unwrap());
        }
        if requests > 0 {
            self.busy = s;
        }
        let idle = s - self.busy >= i64::from(policy.idle_s);
        let needed = requests / policy.target + u32::from(!requests.is_multiple_of(policy.target));
        let kept = if needed == 0 && replicas > 0 && !idle { 1 } else { needed };
        let wish = kept.max(policy.floor).min(policy.ceiling);
        self.wishes.push(wish);
        if wish == 0 {
            return 0;
        }
        let window = |delay: u32| (s - i64::from(delay)..=s).map(|s| self.wish_at(s)).collect::<Vec<_>>();
        let low = window(policy.up_delay_s).into_iter().min().unwrap();
        let high = window(policy.down_delay_s).into_iter().max().unwrap();
        let low = if replicas == 0 && requests > 0 { low.max(1) } else { low };
        let number = match replicas {
            _ if low > replicas => low.min(2 * replicas + policy.step),
            _ if high < replicas => high,
            _ => replicas,
        };
        number.max(policy.floor).min(policy.ceiling)
    }
}

#[test]
fn all_loads_of_six_decisions_agree_with_the_wish_of_every_second() {
    let loads = [0_u32, 5, 20, 70];
    for case in 0..54_u32 {
        let pick = |place: u32, values: [u32; 3]| values[usize::try_from(case / place % 3).unwrap()];
        let (up_delay_s, down_delay_s) = (pick(1, [0, 2, 7]), pick(3, [0, 3, 9]));
        let floor = pick(9, [0, 1, 2]);
        let step = if case < 27 { 1 } else { 4 };
        let rule =
            Policy { up_delay_s, down_delay_s, floor, step, idle_s: 9, target: 8, ceiling: 6, ..policy() };
        for history in 0..4_usize.pow(6) {
            let mut scaler = Scaler::default();
            let mut replicas = floor.max(1);
            let mut naive = Naive { wishes: Vec::new(), first: replicas, busy: 0 };
            for turn in 0..6_u32 {
                let requests = loads[history / 4_usize.pow(turn) % 4];
                let s = i64::from(turn) * 3;
                let expected = naive.decide(&rule, replicas, requests, s);
                let number = decided(&mut scaler, &rule, replicas, requests, s).replicas;
                assert_eq!(number, expected, "{rule:?} {history} {turn}");
                replicas = number;
            }
        }
    }
}

#[test]
fn replicas_without_readiness_are_drained_first_and_then_the_quietest() {
    let replica = |id, ready, created, outstanding| Replica {
        id: ReplicaId(id),
        ready,
        created: second(created),
        outstanding,
    };
    let all = [
        replica(1, true, 1, 4),
        replica(2, true, 2, 0),
        replica(3, true, 3, 0),
        replica(4, false, 4, 0),
        replica(5, false, 5, 0),
        replica(6, true, 6, 1),
    ];
    let order = [5, 4, 3, 2, 6, 1].map(ReplicaId);
    for wanted in 0..8_u32 {
        for floor in 0..8_u32 {
            let kept = usize::try_from(wanted.max(floor)).unwrap();
            assert_eq!(
                replicas_to_drain(&all, wanted, floor),
                order[..6_usize.saturating_sub(kept)],
                "{wanted} {floor}"
            );
        }
    }
}

#[test]
fn a_drained_replica_ends_with_its_requests_or_at_its_deadline() {
    let drain = Drain { deadline: second(30) };
    let seen = |knows, outstanding| DrainReport { knows, outstanding };
    for (reports, early, late) in [
        (vec![], Some(DrainEnd::Finished), Some(DrainEnd::Finished)),
        (vec![seen(true, 0), seen(true, 0)], Some(DrainEnd::Finished), Some(DrainEnd::Finished)),
        (vec![seen(true, 0), seen(true, 1)], None, Some(DrainEnd::Deadline)),
        (vec![seen(true, 0), seen(false, 0)], None, Some(DrainEnd::Deadline)),
    ] {
        assert_eq!((drain.end(&reports, second(29)), drain.end(&reports, second(30))), (early, late));
    }
}

proptest! {
    #[test]
    fn every_number_is_within_its_bounds(
        steps in prop::collection::vec((any::<u32>(), any::<u32>(), 0u32..50, 0u32..50, -40i64..100), 1..50),
        floor in 0u32..4, offset in -900i32..900,
    ) {
        let rule = Policy { floor, up_delay_s: 20, down_delay_s: 30, ..policy() };
        let (mut scaler, mut s) = (Scaler::default(), 0);
        for (in_flight, waiting, replicas, ready, passed) in steps {
            s += passed;
            scaler.report(GatewayId(u64::from(in_flight % 3)), report(in_flight, waiting, s));
            let ready = ready.min(replicas);
            let number = scaler.decide(&rule, Fleet { replicas, ready }, second(s), offset).replicas;
            prop_assert!((floor..=rule.ceiling).contains(&number), "{}", number);
            prop_assert!(number <= replicas.max(2 * ready + rule.step).max(floor), "{}", number);
        }
    }
}
