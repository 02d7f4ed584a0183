use super::*;
use berth_mig::board_by_name;
use proptest::prelude::*;

fn node(n: u128) -> NodeId {
    NodeId::from_uuid(berth_types_uuid(n))
}

fn berth_types_uuid(n: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(n)
}

fn gpu(n: u128, name: &str, model: &str) -> Gpu {
    let board = board_by_name(model).unwrap();
    Gpu {
        node: node(n),
        uuid: name.to_owned(),
        board,
        mig_enabled: !board.live_toggle,
        ready: true,
        quarantined: false,
        occupants: vec![],
    }
}

fn slice(profile: &str) -> Shape {
    Shape { model: "H100-80GB".into(), profile: Some(profile.into()), count: 1 }
}

fn whole(model: &str, count: u32) -> Shape {
    Shape { model: model.into(), profile: None, count }
}

fn waiting(n: u128, shape: Shape) -> Waiting {
    Waiting {
        job: JobId::from_uuid(berth_types_uuid(n)),
        generation: 1,
        shape,
        priority: Priority::Normal,
        queued_at: Timestamp::from_micros(i64::try_from(n).unwrap()),
    }
}

fn starts(plan: &[Assignment]) -> Vec<(String, Option<u32>)> {
    plan.iter()
        .flat_map(|a| a.slots.iter().map(|s| (s.gpu_uuid.clone(), s.instance.map(|i| i.start))))
        .collect()
}

#[test]
fn slices_share_a_board_and_leave_the_other_whole() {
    let gpus = vec![gpu(1, "a", "H100-80GB"), gpu(1, "b", "H100-80GB")];
    let queue =
        vec![waiting(1, slice("1g.10gb")), waiting(2, slice("3g.40gb")), waiting(3, whole("H100-80GB", 1))];
    let plan = plan(&Snapshot { gpus, queue });
    assert_eq!(starts(&plan), [("a".into(), Some(6)), ("a".into(), Some(0)), ("b".into(), None)]);
}

#[test]
fn high_priority_goes_first_then_age() {
    let gpus = vec![gpu(1, "a", "H100-80GB")];
    let high = Waiting { priority: Priority::High, ..waiting(9, whole("H100-80GB", 1)) };
    let queue = vec![waiting(2, whole("H100-80GB", 1)), waiting(1, whole("H100-80GB", 1)), high.clone()];
    let plan = plan(&Snapshot { gpus, queue });
    assert_eq!(plan.iter().map(|a| a.job).collect::<Vec<_>>(), [high.job]);
}

#[test]
fn several_devices_come_from_one_node_or_not_at_all() {
    let gpus = vec![gpu(1, "a", "H100-80GB"), gpu(2, "b", "H100-80GB"), gpu(2, "c", "H100-80GB")];
    let plan = plan(&Snapshot { gpus: gpus.clone(), queue: vec![waiting(1, whole("H100-80GB", 2))] });
    assert_eq!(starts(&plan), [("b".into(), None), ("c".into(), None)]);
    let three = whole("H100-80GB", 3);
    assert_eq!(trial(&gpus, &three), None);
    let why = explain(&gpus, &three, 0, Timestamp::default());
    assert_eq!(why.blockers[0].code, "capacity.none");
}

#[test]
fn a_board_that_needs_a_reset_is_lent_whole_as_its_largest_instance() {
    let gpus = vec![gpu(1, "a", "A30")];
    let plan = plan(&Snapshot { gpus, queue: vec![waiting(1, whole("A30-24GB", 1))] });
    assert_eq!(plan[0].slots[0].instance, Some(Instance { profile_id: 0, start: 0 }));
}

#[test]
fn nothing_goes_to_a_board_that_is_sick_or_away() {
    for change in [|g: &mut Gpu| g.ready = false, |g: &mut Gpu| g.quarantined = true] {
        let mut board = gpu(1, "a", "H100-80GB");
        change(&mut board);
        let gpus = vec![board];
        assert!(plan(&Snapshot { gpus: gpus.clone(), queue: vec![waiting(1, slice("1g.10gb"))] }).is_empty());
        assert_eq!(availability(&gpus, &slice("1g.10gb")), (0, 7));
        assert_eq!(explain(&gpus, &slice("1g.10gb"), 0, Timestamp::default()).blockers.len(), 1);
    }
}

#[test]
fn the_estimate_is_when_enough_has_ended() {
    let mut board = gpu(1, "a", "H100-80GB");
    let second = |s: i64| Timestamp::from_micros(s * 1_000_000);
    for (start, end) in [(0, 50), (4, 90)] {
        board
            .occupants
            .push(Occupant { instance: Some(Instance { profile_id: 9, start }), ends_by: Some(second(end)) });
    }
    let why = explain(&[board.clone()], &slice("3g.40gb"), 2, second(10));
    assert_eq!(why.earliest_start, Some(second(50)));
    assert_eq!(
        why.blockers.iter().map(|b| b.code.as_str()).collect::<Vec<_>>(),
        ["capacity.busy", "queue.ahead"]
    );
    assert_eq!(explain(&[board], &whole("H100-80GB", 1), 0, second(10)).earliest_start, Some(second(90)));
}

proptest! {
    #[test]
    fn nothing_is_given_twice(shapes in prop::collection::vec((0usize..7, 1u32..3), 0..40)) {
        let gpus: Vec<Gpu> = vec![gpu(1, "a", "H100-80GB"), gpu(1, "b", "H100-80GB"), gpu(2, "c", "A30")];
        let names = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];
        let queue: Vec<Waiting> = shapes.iter().enumerate().map(|(i, (shape, count))| {
            let shape = names.get(*shape).map_or_else(|| whole("H100-80GB", *count), |n| Shape { count: *count, ..slice(n) });
            waiting(i as u128 + 1, shape)
        }).collect();
        let decisions = plan(&Snapshot { gpus: gpus.clone(), queue });
        let mut cluster = gpus;
        for decision in &decisions {
            prop_assert!(still_fits(&cluster, decision));
            for slot in &decision.slots {
                let board = cluster.iter_mut().find(|g| g.uuid == slot.gpu_uuid).unwrap();
                prop_assert_eq!(board.node, decision.node);
                board.take(slot, None);
            }
        }
        for decision in &decisions {
            prop_assert!(!still_fits(&cluster, decision), "what is taken cannot be taken again");
        }
    }
}
