//! Tests of the state of one service.

use std::net::SocketAddr;

use berth_serving::snapshot::{Access, Name, Protocol, Replica, ReplicaProtocol, ReplicaToken, Revision};
use berth_types::ids::{JobId, NodeId, OrgId};
use uuid::Uuid;

use super::*;

fn replica(number: u128, concurrency: u32) -> Replica {
    Replica {
        id: ReplicaId { job: JobId::from_uuid(Uuid::from_u128(number)), attempt: 1, rank: 0 },
        org: OrgId::from_uuid(Uuid::from_u128(1)),
        node: NodeId::from_uuid(Uuid::from_u128(1)),
        address: SocketAddr::from(([127, 0, 0, 1], 1)),
        port: 1,
        token: ReplicaToken::try_from("token".to_owned()).unwrap(),
        ready_for_ms: 3_600_000,
        concurrency,
        draining: false,
    }
}

fn service(replicas: Vec<Replica>) -> Service {
    Service {
        id: ServiceId::from_uuid(Uuid::from_u128(1)),
        org: OrgId::from_uuid(Uuid::from_u128(1)),
        name: Name::try_from("digits".to_owned()).unwrap(),
        access: Access::Public,
        protocol: Protocol::Http,
        addresses: Vec::new(),
        models: Vec::new(),
        max_body_bytes: 1_000,
        nano_per_prompt_token: 0,
        nano_per_completion_token: 0,
        revisions: vec![Revision {
            id: RevisionId::from_uuid(Uuid::from_u128(1)),
            weight_percent: 100,
            replica_protocol: ReplicaProtocol::Http1,
            pinned_keys: Vec::new(),
            replicas,
        }],
    }
}

fn demand(wait_ms: u64) -> Demand {
    let deadline_ms = now_ms() + wait_ms;
    Demand { key: None, session: None, prefix: None, bytes: 0, deadline_ms, except: Vec::new() }
}

fn state(replicas: Vec<Replica>) -> Arc<ServiceState> {
    let state = ServiceState::new(service(Vec::new()).id, Arc::default());
    state.update(&service(replicas));
    state
}

fn placed(entry: Entry) -> Place {
    match entry {
        Entry::Placed(place) => place,
        Entry::Waits(_) => panic!("a place"),
    }
}

fn waits(entry: Entry) -> Turn {
    match entry {
        Entry::Waits(turn) => turn,
        Entry::Placed(_) => panic!("a turn"),
    }
}

#[tokio::test]
async fn waiting_requests_start_in_order_as_places_become_free() {
    let state = state(vec![replica(1, 1)]);
    let first = placed(state.enter(demand(60_000)).unwrap());
    let (second, third) = (state.enter(demand(60_000)).unwrap(), state.enter(demand(60_000)).unwrap());
    let (second, third) = (waits(second), waits(third));
    assert_eq!(state.counts(), (1, 2));
    first.finish(Outcome::Answered);
    let second = second.place().await.unwrap();
    assert_eq!(state.counts(), (1, 1));
    drop(second);
    drop(third);
    assert_eq!(state.counts(), (0, 0), "a caller that left keeps no place");
    // They began and ended between two reports.
    let load = || state.load().map(|load| (load.in_flight, load.waiting, load.begun));
    assert_eq!([load(), load()], [Some((0, 0, true)), Some((0, 0, false))]);
    let lost = ServiceLoad { begun: true, ..state.load().unwrap() };
    state.restore_load(&lost);
    assert_eq!([load(), load()], [Some((0, 0, true)), Some((0, 0, false))]);
}

#[tokio::test]
async fn a_request_that_never_began_is_in_no_report() {
    let asleep = state(Vec::new());
    drop(waits(asleep.enter(demand(60_000)).unwrap()));
    assert_eq!(asleep.load(), None);
}

#[tokio::test]
async fn a_request_waits_for_a_wake_until_its_deadline() {
    let asleep = state(Vec::new());
    let turn = waits(asleep.enter(demand(60_000)).unwrap());
    asleep.waits.notified().await;
    assert_eq!(asleep.load().map(|load| load.waiting), Some(1));
    asleep.update(&service(vec![replica(1, 1)]));
    assert!(turn.place().await.is_ok());
    let late = waits(state(Vec::new()).enter(demand(0)).unwrap());
    assert!(matches!(late.place().await, Err(Refusal::WaitedTooLong { .. })));
}

#[tokio::test]
async fn a_wake_that_nobody_waits_for_any_more_has_no_time() {
    let state = state(Vec::new());
    let waiting = || waits(state.enter(demand(60_000)).unwrap());
    let retry_after_s = || match state.no_replica() {
        Refusal::WaitedTooLong { retry_after_s } => retry_after_s,
        other => panic!("{other:?}"),
    };
    drop(waiting());
    state.update(&service(vec![replica(1, 1)]));
    state.update(&service(Vec::new()));
    let turn = waiting();
    assert_eq!(retry_after_s(), 30, "the time of no wake is known");
    state.update(&service(vec![replica(1, 1)]));
    drop(turn);
    state.update(&service(Vec::new()));
    let turn = waiting();
    assert_eq!(retry_after_s(), 1, "the last wake took a moment");
    drop(turn);
}

#[tokio::test]
async fn the_end_of_a_service_ends_its_waits() {
    let state = state(Vec::new());
    let turn = waits(state.enter(demand(60_000)).unwrap());
    state.leave();
    assert_eq!(turn.place().await.err(), Some(Refusal::UnknownAddress));
    assert_eq!(state.enter(demand(60_000)).err(), Some(Refusal::UnknownAddress), "it is late");
    assert_eq!(state.counts(), (0, 0));
    assert!(!state.is_over(), "the next reports name its replicas");
    state.lock().left_at_ms = Some(0);
    state.leave();
    let over = [LEFT_MS - 1, LEFT_MS].map(|now| state.is_over_at(now));
    assert_eq!(over, [false, true], "a later snapshot does not begin its time anew");
    state.come_back();
    assert!(!state.is_over_at(LEFT_MS));
    let turn = waits(state.enter(demand(60_000)).unwrap());
    state.update(&service(vec![replica(1, 1)]));
    assert!(turn.place().await.is_ok());
    assert!(state.enter(demand(60_000)).is_ok() && state.free_after_leave().is_empty());
}

#[tokio::test]
async fn the_last_request_of_a_service_that_left_keeps_it_for_the_next_reports() {
    let state = state(vec![replica(1, 1)]);
    let place = placed(state.enter(demand(60_000)).unwrap());
    state.leave();
    state.lock().left_at_ms = Some(0);
    assert!(!state.is_over_at(LEFT_MS) && state.free_after_leave().is_empty(), "its request goes on");
    place.finish(Outcome::Answered);
    assert_eq!((state.is_over(), state.free_after_leave()), (false, vec![replica(1, 1).id]));
}

#[tokio::test]
async fn a_failed_request_avoids_its_replica_for_a_while() {
    let state = state(vec![replica(1, 4), replica(2, 4)]);
    let first = placed(state.enter(demand(60_000)).unwrap()).replica();
    for _ in 0..8 {
        let retried = Demand { except: vec![first], ..demand(60_000) };
        assert_ne!(placed(state.enter(retried).unwrap()).replica(), first);
    }
    let both = Demand { except: vec![replica(1, 1).id, replica(2, 1).id], ..demand(60_000) };
    let turn = waits(state.enter(both).unwrap());
    state.lock().waiters.values_mut().for_each(|waiter| waiter.avoids_until_ms = 0);
    state.tick();
    assert!(turn.place().await.is_ok());
}
