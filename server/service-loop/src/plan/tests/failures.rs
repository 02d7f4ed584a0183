//! Failures of replicas: pauses, rollbacks, and faults of nodes.

use super::*;

#[test]
fn pauses_after_failures_double_up_to_five_minutes() {
    let mut replicas = Vec::new();
    for (n, pause_s) in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300].into_iter().enumerate() {
        let failed = replica(n, Kind::FailedLongAgo);
        replicas.push(Replica { created_at: at(i64::try_from(n).unwrap()), ended_at: Some(at(0)), ..failed });
        for (after_s, created) in [(pause_s - 1, 0), (pause_s, 1)] {
            let now = at(after_s);
            let done = plan(&live(replicas.clone()), &Inputs { now, ..inputs(3) });
            assert_eq!(done.created.len(), created, "{after_s} s after failure {n}");
            if created == 0 {
                assert_eq!(done.next, Some(at(pause_s)), "failure {n}");
            }
        }
    }
}

#[test]
fn a_replica_that_was_ready_for_long_is_replaced_at_once() {
    for (ready_for_s, created) in [(299, 0), (300, 1)] {
        let failed = Replica { first_ready_at: Some(at(-ready_for_s)), ..replica(0, Kind::Fails) };
        assert_eq!(plan(&live(vec![failed]), &inputs(1)).created.len(), created, "{ready_for_s}");
    }
}

#[test]
fn a_candidate_whose_first_replicas_fail_is_rolled_back_if_another_is_live() {
    for has_live in [false, true] {
        for failures in 0..=4 {
            let mut rows = vec![row(2, RevisionState::Staging, 0, 100)];
            let mut replicas: Vec<Replica> = (0..failures)
                .map(|n| Replica { revision: revision_id(2), ..replica(n, Kind::FailedLongAgo) })
                .collect();
            if has_live {
                rows.insert(0, row(1, RevisionState::Live, 100, 0));
                replicas.push(replica(9, Kind::Ready));
            }
            let done = plan(&world(&rows, &[], replicas), &inputs(1));
            let rolled_back = done.rollout.candidate().is_none();
            assert_eq!(rolled_back, has_live && failures >= 3, "{failures} failures, live: {has_live}");
            let named = done.details.get(&2).map(|text| text.contains(&job_id(failures - 1).to_string()));
            assert_eq!(named, rolled_back.then_some(true), "{failures} failures: {:?}", done.details);
            let expected = match (has_live, failures) {
                (false, 0..=2) => ServiceState::Waking,
                (false, _) => ServiceState::Failed,
                (true, 1 | 2) => ServiceState::Degraded,
                (true, _) => ServiceState::Ready,
            };
            assert_eq!(done.state, expected, "{failures} failures, live: {has_live}: {}", done.detail);
        }
    }
}

#[test]
fn a_first_revision_that_never_starts_is_tried_again_only_for_a_request() {
    for failures in 0..=4 {
        for (wanted, has_live) in [(0, false), (1, false), (0, true)] {
            let mut rows = vec![row(2, RevisionState::Staging, 0, 100)];
            if has_live {
                rows.insert(0, row(1, RevisionState::Live, 100, 0));
            }
            let replicas: Vec<Replica> = (0..failures)
                .map(|n| Replica { revision: revision_id(2), ..replica(n, Kind::FailedLongAgo) })
                .collect();
            let done = plan(&world(&rows, &[], replicas), &inputs(wanted));
            let is_tried = failures < 3 || wanted > 0;
            let context = format!("{failures} failures, {wanted} wanted, live: {has_live}: {}", done.detail);
            assert_eq!(done.created.len(), usize::from(is_tried), "{context}");
            if failures >= 3 && !has_live {
                assert_eq!(done.state, ServiceState::Failed, "{context}");
                assert!(done.detail.contains(&job_id(failures - 1).to_string()), "{context}");
            }
        }
    }
}

/// A replica whose job failed by a fault of its node.
fn failed_on_node(n: usize) -> Replica {
    let job = ReplicaJob::Ended { own_fault: false };
    Replica { job, failed: false, is_of_node: true, ..replica(n, Kind::FailedLongAgo) }
}

#[test]
fn a_fault_of_a_node_makes_a_pause_and_is_no_failure_of_the_revision() {
    for has_live in [false, true] {
        for failures in 1..=12 {
            let mut rows = vec![row(2, RevisionState::Staging, 0, 100)];
            let mut replicas: Vec<Replica> =
                (0..failures).map(|n| Replica { revision: revision_id(2), ..failed_on_node(n) }).collect();
            // The loop sees the end of the last one only now.
            replicas[failures - 1].ended_at = None;
            if has_live {
                rows.insert(0, row(1, RevisionState::Live, 100, 0));
                replicas.push(replica(99, Kind::Ready));
            }
            let context = format!("{failures} failures, live: {has_live}");
            let first = plan(&world(&rows, &[], replicas.clone()), &inputs(1));
            let last = (job_id(failures - 1), revision_id(2));
            assert_eq!(first.ended, [(last, false)], "{context}");
            replicas[failures - 1].ended_at = Some(at(0));
            let pause_s = (1_i64 << (failures - 1)).min(MOST_PAUSE_S);
            for (after_s, created) in [(0, 0), (pause_s - 1, 0), (pause_s, 1)] {
                let now = at(after_s);
                let done = plan(&world(&rows, &[], replicas.clone()), &Inputs { now, ..inputs(1) });
                assert_eq!(done.rollout.candidate(), Some(2), "{context}: it is not rolled back");
                assert_eq!(done.created.len(), created, "{context}, {after_s} s later");
                let state = if has_live { ServiceState::Degraded } else { ServiceState::Waking };
                assert_eq!(done.state, state, "{context}: {}", done.detail);
                assert!(done.detail.contains(&last.0.to_string()), "{context}: {}", done.detail);
            }
            assert!(first.created.is_empty() && first.next == Some(at(pause_s)), "{context}: {first:?}");
        }
    }
}

#[test]
fn a_sleeping_service_does_not_try_a_new_revision_for_ever_on_faulty_nodes() {
    let rows = [row(1, RevisionState::Staging, 0, 100)];
    let replicas: Vec<Replica> = (0..3).map(failed_on_node).collect();
    let later = at(MOST_PAUSE_S);
    for (wanted, created) in [(0, 0), (1, 1)] {
        let now = Inputs { now: later, ..inputs(wanted) };
        let done = plan(&world(&rows, &[], replicas.clone()), &now);
        assert_eq!(done.created.len(), created, "{wanted} wanted");
        assert_eq!(done.state, if wanted == 0 { ServiceState::Asleep } else { ServiceState::Waking });
    }
    let done = plan(&world(&rows, &[], replicas[..2].to_vec()), &Inputs { now: later, ..inputs(0) });
    assert_eq!(done.created.len(), 1, "the third try");
}

#[test]
fn failures_of_the_revision_count_also_between_faults_of_nodes() {
    for own in 0..=4 {
        let rows = [row(1, RevisionState::Live, 100, 0), row(2, RevisionState::Staging, 0, 100)];
        let mut replicas = vec![replica(99, Kind::Ready)];
        for n in 0..own {
            let pair = [failed_on_node(2 * n), replica(2 * n + 1, Kind::FailedLongAgo)];
            replicas.extend(pair.map(|replica| Replica { revision: revision_id(2), ..replica }));
        }
        let done = plan(&world(&rows, &[], replicas), &inputs(1));
        assert_eq!(done.rollout.candidate().is_none(), own >= 3, "{own} failures");
    }
}

#[test]
fn a_drained_replica_without_a_node_makes_no_pause() {
    let ended = Replica { draining_since: Some(at(-20)), ended_at: None, ..failed_on_node(0) };
    assert_eq!(plan(&live(vec![ended]), &inputs(1)).created.len(), 1);
}

#[test]
fn a_replica_that_is_ready_for_long_ends_the_row_of_failures_before_it() {
    let created = |replicas: Vec<Replica>| plan(&live(replicas), &inputs(5)).created.len();
    for (ready_for_s, expected) in [(299, 1), (300, 4)] {
        let ready = Replica { first_ready_at: Some(at(-ready_for_s)), ..replica(1, Kind::Ready) };
        assert_eq!(created(vec![replica(0, Kind::FailedLongAgo), ready.clone()]), expected, "{ready_for_s}");
        assert_eq!(created(vec![ready, replica(2, Kind::FailedLongAgo)]), 1, "a later failure counts");
    }
}
