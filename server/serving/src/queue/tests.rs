use super::*;
use crate::snapshot::samples::key_id;

const LIMITS: QueueLimits = QueueLimits { requests: 1_000, bytes: 1_000_000 };

fn request(key: u128, class: Class) -> NewRequest {
    NewRequest { key: Some(key_id(key)), class, bytes: 10, deadline_ms: 1_000 }
}

fn queue_of(requests: &[NewRequest]) -> (Queue, Vec<Ticket>) {
    let mut queue = Queue::new(LIMITS);
    let tickets = requests.iter().map(|request| queue.push(*request, 0).unwrap()).collect();
    (queue, tickets)
}

/// The order in which a queue gives its requests.
fn drained(queue: &mut Queue) -> Vec<Ticket> {
    std::iter::from_fn(|| queue.next(|_| true).map(|waiting| waiting.ticket)).collect()
}

/// The naive model: the lower class first; in rounds, each with the next request of each key, where the keys
/// have the order of their first requests.
fn naive_order(requests: &[NewRequest]) -> Vec<usize> {
    let mut order = Vec::new();
    for class in [Class::Retried, Class::New] {
        let of_class: Vec<usize> = (0..requests.len()).filter(|at| requests[*at].class == class).collect();
        let mut keys: Vec<Option<InferenceKeyId>> = Vec::new();
        for at in &of_class {
            if !keys.contains(&requests[*at].key) {
                keys.push(requests[*at].key);
            }
        }
        for round in 0..requests.len() {
            for key in &keys {
                let mut own = of_class.iter().filter(|at| requests[**at].key == *key);
                order.extend(own.nth(round));
            }
        }
    }
    order
}

#[test]
fn each_arrival_order_of_three_keys_and_two_classes_is_fair() {
    for case in 0..6_usize.pow(6) {
        let requests: Vec<NewRequest> = (0..6)
            .map(|at| {
                let kind = case / 6_usize.pow(at) % 6;
                request(kind as u128 % 3, if kind < 3 { Class::New } else { Class::Retried })
            })
            .collect();
        let (mut queue, tickets) = queue_of(&requests);
        let expected: Vec<Ticket> = naive_order(&requests).into_iter().map(|index| tickets[index]).collect();
        assert_eq!(drained(&mut queue), expected, "{case}");
        assert!(queue.is_empty() && queue.of_keys.is_empty() && queue.all.1 == 0);
    }
}

#[test]
fn one_key_never_fills_the_queue() {
    let mut queue = Queue::new(QueueLimits { requests: 12, bytes: 1_000 });
    let mut fill = |key: u128| (0..20).filter(|_| queue.push(request(key, Class::New), 0).is_ok()).count();
    assert_eq!([fill(1), fill(2), fill(3)], [6, 3, 2]);
    assert_eq!([fill(4), fill(5), fill(1)], [1, 0, 0]);
    let mut one_place = Queue::new(QueueLimits { requests: 1, bytes: 10 });
    assert!(one_place.push(request(1, Class::New), 0).is_ok());
    assert_eq!(one_place.push(request(2, Class::New), 0), Err(NoPlace));
}

#[test]
fn bytes_have_a_limit_too() {
    let mut queue = Queue::new(QueueLimits { requests: 100, bytes: 100 });
    let push =
        |queue: &mut Queue, key, bytes| queue.push(NewRequest { bytes, ..request(key, Class::New) }, 0);
    assert_eq!(push(&mut queue, 1, 101), Err(NoPlace));
    assert_eq!(push(&mut queue, 1, u64::MAX), Err(NoPlace));
    assert!(push(&mut queue, 1, 40).is_ok());
    assert_eq!(push(&mut queue, 1, 30), Err(NoPlace), "70 would be more than the 60 that are free");
    assert!(push(&mut queue, 2, 60).is_ok());
    assert_eq!(push(&mut queue, 3, 1), Err(NoPlace));
    assert!(push(&mut queue, 3, 0).is_ok());
    drained(&mut queue);
    assert!(push(&mut queue, 1, 100).is_ok(), "places come back");
}

#[test]
fn a_request_leaves_at_its_deadline_or_with_its_caller() {
    let late = NewRequest { deadline_ms: 2_000, ..request(1, Class::Retried) };
    let (mut queue, tickets) = queue_of(&[request(1, Class::New), late, request(2, Class::New)]);
    assert_eq!(queue.next_deadline_ms(), Some(1_000));
    assert!(queue.expire(999).is_empty());
    assert!(queue.cancel(tickets[2]) && !queue.cancel(tickets[2]));
    let expired: Vec<Ticket> = queue.expire(1_000).iter().map(|waiting| waiting.ticket).collect();
    assert_eq!(expired, [tickets[0]]);
    assert_eq!((queue.len(), queue.next_deadline_ms()), (1, Some(2_000)));
    assert_eq!(drained(&mut queue), [tickets[1]]);
    assert_eq!(queue.next_deadline_ms(), None);
}

#[test]
fn a_head_that_cannot_start_delays_its_own_key_only() {
    let requests = [1, 1, 2, 3].map(|key| request(key, Class::New));
    let (mut queue, tickets) = queue_of(&requests);
    let blocked = |waiting: &Waiting| waiting.request.key != Some(key_id(1));
    assert_eq!(queue.next(blocked).map(|waiting| waiting.ticket), Some(tickets[2]));
    assert_eq!(queue.next(blocked).map(|waiting| waiting.ticket), Some(tickets[3]));
    assert_eq!(queue.next(blocked), None);
    assert_eq!(drained(&mut queue), tickets[..2]);
}
