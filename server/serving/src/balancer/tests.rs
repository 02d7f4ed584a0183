use std::collections::BTreeSet;

use super::*;
use crate::snapshot::samples::{key_id, replica, replica_id, revision, revision_id, service};

/// An hour after the readiness of the sample replicas.
const NOW: u64 = 10_000_000;

/// Random numbers from a list, then zeros.
struct Script(Vec<u64>);

impl RngCore for Script {
    fn next_u32(&mut self) -> u32 {
        self.next_u64() as u32
    }

    fn next_u64(&mut self) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.remove(0) }
    }

    fn fill_bytes(&mut self, _: &mut [u8]) {
        panic!("the balancer draws numbers only");
    }
}

/// A uniform number inside the part `index` of `count` equal ones.
fn part(index: u64, count: u64) -> u64 {
    u64::MAX / count * index + u64::MAX / count / 3
}

/// A service with one revision of replicas with these concurrencies, numbered from 1.
fn one_revision(concurrencies: &[u32]) -> Service {
    let numbered = (1..).zip(concurrencies);
    let replicas = numbered.map(|(number, concurrency)| replica(number, 1, *concurrency)).collect();
    let mut service = service(1, 1, "chat", &["llama"]);
    service.revisions = vec![revision(1, 100, replicas)];
    service
}

fn balancer(service: &Service) -> Balancer {
    let mut balancer = Balancer::default();
    balancer.update(service, NOW);
    balancer
}

#[test]
fn a_closed_balancer_knows_its_free_replicas_and_chooses_none() {
    let service = one_revision(&[4, 4]);
    let mut balancer = balancer(&service);
    let pick = |balancer: &mut Balancer| balancer.pick(&Ask::default(), NOW, &mut Script(Vec::new()));
    let busy = pick(&mut balancer).unwrap().replica;
    balancer.close();
    assert_eq!(pick(&mut balancer), Err(NoReplica::Asleep));
    assert!(balancer.free().all(|id| id != busy) && balancer.free().count() == 1);
    balancer.finish(busy, Outcome::Answered, NOW);
    assert_eq!(balancer.free().count(), 2, "both are known until the next update");
    balancer.update(&service, NOW);
    assert!(pick(&mut balancer).is_ok());
}

#[test]
fn a_prefix_chooses_the_replica_and_not_the_revision() {
    let mut service = one_revision(&[4, 4]);
    service.revisions[0].weight_percent = 50;
    service.revisions.push(revision(2, 50, vec![replica(9, 1, 4)]));
    let with = |session: Option<u64>, prefix: u64, draw: u64| {
        let named = |number: u64| Session::new(&number.to_be_bytes());
        let ask = Ask { session: session.map(named), prefix: Some(named(prefix)), ..Ask::default() };
        balancer(&service).pick(&ask, NOW, &mut Script(vec![draw])).unwrap()
    };
    for prefix in 0..20 {
        assert_eq!(with(None, prefix, 0).revision, revision_id(1), "by the draw");
        assert_eq!(with(None, prefix, u64::MAX).revision, revision_id(2));
        assert_eq!(with(Some(7), prefix, 0), with(Some(7), 0, 0), "a session goes first");
    }
    let replicas: BTreeSet<ReplicaId> = (0..20).map(|prefix| with(None, prefix, 0).replica).collect();
    assert_eq!(replicas.len(), 2, "prefixes spread");
}

fn session(number: u64) -> Ask<'static> {
    Ask { session: Some(Session::new(&number.to_be_bytes())), ..Ask::default() }
}

/// The naive model: counts, and a choice by comparison of floating-point loads.
struct Naive {
    outstanding: [u32; 3],
    order: Vec<usize>,
}

impl Naive {
    fn pick(&mut self, concurrency: [u32; 3], draws: (u64, u64)) -> Option<usize> {
        let open: Vec<usize> = (0..3).filter(|r| self.outstanding[*r] < concurrency[*r]).collect();
        let index = |draw: u64, count: usize| (draw as f64 / 2f64.powi(64) * count as f64) as usize;
        let chosen = match open.len() {
            0 => return None,
            1 => open[0],
            count => {
                let first = open[index(draws.0, count)];
                let others: Vec<usize> = open.iter().copied().filter(|r| *r != first).collect();
                let second = others[index(draws.1, count - 1)];
                let load = |r: usize| f64::from(self.outstanding[r] + 1) / f64::from(concurrency[r]);
                if load(first) <= load(second) { first } else { second }
            }
        };
        self.outstanding[chosen] += 1;
        self.order.push(chosen);
        Some(chosen)
    }
}

/// Repeats a schedule of draws and ends in the balancer and in the naive model. After each request the oldest
/// one ends where `ends` has its bit.
fn replay(concurrency: [u32; 3], draws: &[(u64, u64)], ends: u32) {
    let mut balancer = balancer(&one_revision(&concurrency));
    let mut naive = Naive { outstanding: [0; 3], order: Vec::new() };
    for (step, (first, second)) in draws.iter().enumerate() {
        // The first number chooses the revision.
        let picked = balancer.pick(&Ask::default(), NOW, &mut Script(vec![0, *first, *second]));
        let expected = naive.pick(concurrency, (*first, *second));
        let expected = expected.map(|r| replica_id(r as u128 + 1)).ok_or(NoReplica::Full);
        assert_eq!(picked.map(|pick| pick.replica), expected, "{concurrency:?} {draws:?} {ends:b}");
        if (ends >> step) & 1 == 1 && !naive.order.is_empty() {
            let oldest = naive.order.remove(0);
            naive.outstanding[oldest] -= 1;
            balancer.finish(replica_id(oldest as u128 + 1), Outcome::Answered, NOW);
        }
    }
    for (index, outstanding) in naive.outstanding.into_iter().enumerate() {
        assert_eq!(balancer.outstanding(replica_id(index as u128 + 1)), outstanding);
        assert!(outstanding <= concurrency[index]);
    }
}

#[test]
fn all_schedules_of_three_replicas_and_six_requests_equal_the_naive_model() {
    let pairs: Vec<(u64, u64)> =
        (0..3).flat_map(|a| [(part(a, 3), part(0, 2)), (part(a, 3), part(1, 2))]).collect();
    for concurrency in [[1, 1, 1], [1, 2, 4], [8, 2, 8]] {
        // All draws with a few patterns of ends, and all ends with a few patterns of draws.
        for schedule in 0..6_usize.pow(6) {
            let draws: Vec<(u64, u64)> = (0..6).map(|step| pairs[schedule / 6_usize.pow(step) % 6]).collect();
            replay(concurrency, &draws, (schedule % 64) as u32);
        }
        for ends in 0..64 {
            for shift in 0..6 {
                let draws: Vec<(u64, u64)> = (0..6).map(|step| pairs[(step * 5 + shift) % 6]).collect();
                replay(concurrency, &draws, ends);
            }
        }
    }
}

#[test]
fn requests_follow_the_weights_and_the_pins() {
    let mut service = one_revision(&[1_000]);
    service.revisions[0].weight_percent = 90;
    service.revisions.push(revision(2, 10, vec![replica(9, 1, 1_000)]));
    service.revisions[1].pinned_keys = vec![key_id(7)];
    let mut balancer = balancer(&service);
    let mut counts = BTreeMap::new();
    for place in 0..100 {
        let pick = balancer.pick(&Ask::default(), NOW, &mut Script(vec![part(place, 100)])).unwrap();
        *counts.entry(pick.revision).or_insert(0) += 1;
        let pinned = Ask { key: Some(key_id(7)), ..Ask::default() };
        let pick = balancer.pick(&pinned, NOW, &mut Script(vec![part(place, 100)])).unwrap();
        assert_eq!(pick.revision, revision_id(2));
    }
    assert_eq!(counts, BTreeMap::from([(revision_id(1), 90), (revision_id(2), 10)]));
}

/// The canary of a service in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Canary {
    Absent,
    /// Without an open replica.
    Empty,
    Draining,
    Open,
}

#[test]
fn a_listed_key_uses_the_canary_at_any_percentage_while_it_has_a_replica() {
    for canary in [Canary::Absent, Canary::Empty, Canary::Draining, Canary::Open] {
        for percent in [0, 100] {
            // Without a canary the live revision has all requests.
            let weight = if canary == Canary::Absent { 0 } else { percent };
            let mut service = one_revision(&[1_000]);
            service.revisions[0].weight_percent = 100 - weight;
            if canary != Canary::Absent {
                let mut replicas = vec![replica(9, 1, 1_000)];
                replicas[0].draining = canary == Canary::Draining;
                replicas.retain(|_| canary != Canary::Empty);
                service.revisions.push(revision(2, weight, replicas));
                service.revisions[1].pinned_keys = vec![key_id(6), key_id(7)];
            }
            let mut balancer = balancer(&service);
            for key in [None, Some(key_id(7)), Some(key_id(8))] {
                let expected = match (canary, percent, key == Some(key_id(7))) {
                    (Canary::Absent, _, _) | (Canary::Empty | Canary::Draining, 0, _) => Ok(revision_id(1)),
                    // The live revision has no weight, and the canary cannot answer.
                    (Canary::Empty | Canary::Draining, _, _) => Err(NoReplica::Asleep),
                    (Canary::Open, _, true) | (Canary::Open, 100, false) => Ok(revision_id(2)),
                    (Canary::Open, _, false) => Ok(revision_id(1)),
                };
                for (session, place) in [(None, 0), (None, u64::MAX), (Some(1), 0), (Some(2), u64::MAX)] {
                    let session = session.map(|number: u64| Session::new(&number.to_be_bytes()));
                    let ask = Ask { key, session, ..Ask::default() };
                    let pick = balancer.pick(&ask, NOW, &mut Script(vec![place]));
                    let found = pick.map(|pick| pick.revision);
                    assert_eq!(found, expected, "{canary:?} {percent} {key:?} {session:?}");
                }
            }
        }
    }
}

#[test]
fn a_revision_without_a_replica_leaves_its_requests_to_the_others() {
    let mut service = one_revision(&[1]);
    service.revisions[0].weight_percent = 50;
    service.revisions.push(revision(2, 50, Vec::new()));
    let mut balancer = balancer(&service);
    let pick = balancer.pick(&Ask::default(), NOW, &mut Script(vec![u64::MAX])).unwrap();
    assert_eq!(pick.revision, revision_id(1));
    let full = balancer.pick(&Ask::default(), NOW, &mut Script(Vec::new()));
    assert_eq!(full, Err(NoReplica::Full));
    service.revisions[0].replicas.clear();
    balancer.update(&service, NOW);
    assert_eq!(balancer.pick(&Ask::default(), NOW, &mut Script(Vec::new())), Err(NoReplica::Asleep));
}

#[test]
fn a_draining_or_failed_replica_gets_no_request_and_keeps_its_count() {
    let mut service = one_revision(&[2, 2]);
    let mut balancer = balancer(&service);
    let first = balancer.pick(&session(1), NOW, &mut Script(Vec::new())).unwrap().replica;
    let retry = Ask { except: &[first], ..session(1) };
    assert_ne!(balancer.pick(&retry, NOW, &mut Script(Vec::new())).unwrap().replica, first);
    for replica in &mut service.revisions[0].replicas {
        replica.draining = replica.id == first;
    }
    balancer.update(&service, NOW);
    assert_ne!(balancer.pick(&session(1), NOW, &mut Script(Vec::new())).unwrap().replica, first);
    assert_eq!(balancer.pick(&session(1), NOW, &mut Script(Vec::new())), Err(NoReplica::Full));
    assert_eq!(balancer.outstanding(first), 1, "its stream goes on");
    service.revisions[0].replicas.retain(|replica| replica.id != first);
    balancer.update(&service, NOW);
    assert_eq!(balancer.outstanding(first), 1);
    balancer.finish(first, Outcome::Answered, NOW);
    assert!(!balancer.replicas.contains_key(&first), "the last end forgets it");
    balancer.finish(first, Outcome::Answered, NOW);
}

#[test]
fn a_replica_that_leaves_moves_its_own_sessions_only() {
    let home = |service: &Service, number: u64| {
        balancer(service).pick(&session(number), NOW, &mut Script(Vec::new())).unwrap().replica
    };
    let all = one_revision(&[4; 8]);
    let mut counts = BTreeMap::new();
    for number in 0..400 {
        let before = home(&all, number);
        *counts.entry(before).or_insert(0) += 1;
        for leaving in 1..=8 {
            let mut fewer = all.clone();
            fewer.revisions[0].replicas.retain(|replica| replica.id != replica_id(leaving));
            let after = home(&fewer, number);
            assert_eq!(after == before, before != replica_id(leaving));
        }
    }
    assert_eq!(counts.len(), 8);
    assert!(counts.values().all(|count| (25..=80).contains(count)), "{counts:?}");
}

#[test]
fn the_load_of_sessions_never_goes_over_its_bound() {
    for concurrencies in [vec![4; 5], vec![1, 100], vec![1, 2, 3, 50, 7]] {
        let service = one_revision(&concurrencies);
        let total: u32 = concurrencies.iter().sum();
        for few in [1, 2, 7] {
            let mut balancer = balancer(&service);
            for request in 1..=u64::from(total) {
                let pick = balancer.pick(&session(request % few), NOW, &mut Script(Vec::new())).unwrap();
                let index = service.revisions[0].replicas.iter().position(|r| r.id == pick.replica).unwrap();
                let mean = request as f64 * f64::from(concurrencies[index]) / f64::from(total);
                let load = balancer.outstanding(pick.replica);
                assert!(f64::from(load) <= (1.25 * mean).ceil() + 1e-9, "{concurrencies:?} {request} {load}");
                assert!(load <= concurrencies[index]);
            }
            assert_eq!(balancer.pick(&session(0), NOW, &mut Script(Vec::new())), Err(NoReplica::Full));
        }
    }
}

#[test]
fn a_new_replica_comes_to_its_share_slowly() {
    let mut service = one_revision(&[10, 10]);
    service.revisions[0].replicas[1].ready_for_ms = 0;
    let after = |passed_ms: u64| {
        let mut balancer = balancer(&service);
        for _ in 0..10 {
            // Both replicas are compared each time.
            balancer.pick(&Ask::default(), NOW + passed_ms, &mut Script(Vec::new())).unwrap();
        }
        balancer.outstanding(replica_id(2))
    };
    assert_eq!(after(0), 0, "one request is a tenth of the other's load for each");
    assert_eq!(after(5_000), 3);
    assert_eq!(after(10_000), 5);
    assert_eq!(after(60_000), 5);
}

#[test]
fn at_most_half_of_a_revision_is_ejected() {
    for count in 1..=5_u128 {
        let mut service = one_revision(&vec![100; count as usize]);
        let mut balancer = balancer(&service);
        for replica in 1..=count {
            for _ in 0..10 {
                balancer.finish(replica_id(replica), Outcome::Failed, NOW);
            }
        }
        let out = |balancer: &Balancer, now| balancer.ejected(revision_id(1), now).1;
        assert_eq!(out(&balancer, NOW), count as usize / 2, "{count}");
        for _ in 0..20 {
            let pick = balancer.pick(&session(1), NOW, &mut Script(Vec::new())).unwrap();
            assert!(pick.replica > replica_id(count / 2), "the first half is ejected");
        }
        service.revisions[0].replicas.truncate(1);
        balancer.update(&service, NOW);
        assert_eq!(out(&balancer, NOW), 0, "the only one left returns");
        assert!(balancer.pick(&Ask::default(), NOW, &mut Script(Vec::new())).is_ok());
    }
}

#[test]
fn an_abandoned_request_is_no_evidence() {
    let mut balancer = balancer(&one_revision(&[100, 100]));
    for _ in 0..100 {
        balancer.finish(replica_id(1), Outcome::Abandoned, NOW);
    }
    assert_eq!(balancer.ejected(revision_id(1), NOW), (2, 0));
}
