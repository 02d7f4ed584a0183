use super::*;
use berth_mig::board_by_name;
use uuid::Uuid;

fn gpu(n: u128, name: &str, model: &str) -> BoardState {
    let board = board_by_name(model);
    BoardState {
        node: NodeId::from_uuid(Uuid::from_u128(n)),
        uuid: name.to_owned(),
        model: board.map_or(model, |board| board.model.as_str()).to_owned(),
        board,
        mig_enabled: board.is_some_and(|board| !board.live_toggle),
        ready: true,
        dedicated_to: None,
        pool: NodePool::Both,
        quarantined: false,
        occupants: vec![],
    }
}

fn assignment(slots: &[(&str, Option<(u32, u32)>)]) -> Assignment {
    let slot = |(gpu, instance): &(&str, Option<(u32, u32)>)| AssignedDevice {
        gpu_uuid: (*gpu).to_owned(),
        instance: instance.map(|(profile_id, start)| Instance { profile_id, start }),
        share_milli: None,
        size: 1,
    };
    Assignment {
        job: JobId::from_uuid(Uuid::from_u128(1)),
        org: OrgId::from_uuid(Uuid::from_u128(1)),
        own_nodes_only: false,
        work: Work::Training,
        generation: 1,
        attempt: 1,
        ranks: vec![(NodeId::from_uuid(Uuid::from_u128(1)), slots.iter().map(slot).collect())],
    }
}

#[test]
fn the_last_look_finds_what_is_in_the_way() {
    let mut gpus = vec![gpu(1, "a", "H100-80GB"), gpu(1, "b", "H100-80GB"), gpu(2, "c", "H100-80GB")];
    gpus[0].occupants.push(Occupant { instance: Some(Instance { profile_id: 19, start: 6 }), share: None });
    for (slots, fits) in [
        (vec![("b", None)], true),
        (vec![("a", None)], false),
        (vec![("a", Some((19, 5)))], true),
        (vec![("a", Some((19, 6)))], false),
        (vec![("a", Some((9, 0))), ("a", Some((9, 0)))], false),
        (vec![("b", Some((9, 0))), ("b", None)], false),
        (vec![("c", None)], false),
        (vec![("none", None)], false),
    ] {
        assert_eq!(still_fits(&gpus, &assignment(&slots)), fits, "{slots:?}");
    }
    let fixed = |mig_enabled| [BoardState { mig_enabled, ..gpu(1, "a", "A30-24GB") }];
    assert!(still_fits(&fixed(false), &assignment(&[("a", None)])));
    assert!(!still_fits(&fixed(true), &assignment(&[("a", None)])), "a board in MIG mode is no whole board");
    gpus[1].quarantined = true;
    assert!(!still_fits(&gpus, &assignment(&[("b", None)])));
    gpus[1].quarantined = false;
    gpus[1].ready = false;
    assert!(!still_fits(&gpus, &assignment(&[("b", None)])));
}

#[test]
fn shares_stand_beside_those_of_their_organization_only() {
    let mut gpus = vec![gpu(1, "a", "H100-80GB"), gpu(1, "b", "A30-24GB")];
    let share = |gpu: &str, org: u128, milli| {
        let mut assignment = assignment(&[(gpu, None)]);
        assignment.org = OrgId::from_uuid(Uuid::from_u128(org));
        assignment.ranks[0].1[0].share_milli = Some(milli);
        assignment
    };
    assert!(still_fits(&gpus, &share("a", 1, 999)));
    assert!(!still_fits(&gpus, &share("b", 1, 1)), "a board in MIG mode until its next reset");
    occupy(&mut gpus, &share("a", 1, 600));
    for (org, milli, fits) in [(1, 400, true), (1, 401, false), (2, 1, false)] {
        assert_eq!(still_fits(&gpus, &share("a", org, milli)), fits, "{org} {milli}");
    }
    assert!(!still_fits(&gpus, &assignment(&[("a", None)])));
    assert!(!still_fits(&gpus, &assignment(&[("a", Some((19, 0)))])));
}

#[test]
fn devices_collide_where_they_overlap() {
    let slot = |gpu: &str, start: Option<u32>| {
        let mut slot = assignment(&[(gpu, start.map(|s| (9, s)))]).ranks[0].1[0].clone();
        slot.size = 4;
        slot
    };
    for (a, b, collide) in [
        (slot("a", None), slot("a", None), true),
        (slot("a", None), slot("b", None), false),
        (slot("a", None), slot("a", Some(4)), true),
        (slot("a", Some(0)), slot("a", Some(4)), false),
        (slot("a", Some(0)), slot("a", Some(3)), true),
    ] {
        assert_eq!((a.collides(&b), b.collides(&a)), (collide, collide), "{a:?} {b:?}");
    }
}

#[test]
fn what_is_free_is_counted() {
    let mut gpus = vec![gpu(1, "a", "H100-80GB"), gpu(1, "b", "H100-80GB")];
    gpus[0].occupants.push(Occupant { instance: Some(Instance { profile_id: 19, start: 6 }), share: None });
    let shape = |profile: Option<&str>| OfferingShape {
        model: "H100-80GB".into(),
        profile: profile.map(str::to_owned),
        count: 1,
    };
    assert_eq!(availability(&gpus, &shape(None)), (1, 2));
    assert_eq!(availability(&gpus, &shape(Some("1g.10gb"))), (13, 14));
    gpus[1].ready = false;
    assert_eq!(availability(&gpus, &shape(None)), (0, 2));
    assert_eq!(availability(&gpus, &OfferingShape { model: "A30-24GB".into(), ..shape(None) }), (0, 0));
}

#[test]
fn free_devices_are_the_board_and_its_profiles_from_the_smallest() {
    let text = |board: &BoardState| {
        let free = board.free_devices().into_iter();
        free.map(|(profile, count)| format!("{count} {}", profile.unwrap_or("board"))).collect::<Vec<_>>()
    };
    let mut board = gpu(1, "a", "A30-24GB");
    let slices = ["4 1g.6gb", "1 1g.6gb+me", "2 2g.12gb", "1 2g.12gb+me", "1 4g.24gb"];
    assert_eq!(text(&board), slices, "a board in MIG mode until its next reset");
    board.mig_enabled = false;
    assert_eq!(text(&board), ["1 board"]);
    board.mig_enabled = true;
    let small = board.board.unwrap().profile_by_name("1g.6gb").unwrap().id;
    board.occupants.push(Occupant { instance: Some(Instance { profile_id: small, start: 0 }), share: None });
    assert_eq!(text(&board), ["3 1g.6gb", "1 1g.6gb+me", "1 2g.12gb", "1 2g.12gb+me"]);
    board.ready = false;
    assert!(text(&board).is_empty());
}

#[test]
fn a_board_of_a_model_without_a_table_is_free_as_a_whole() {
    let mut board = gpu(1, "a", "L40S");
    assert_eq!(board.free_devices(), [(None, 1)]);
    assert!(still_fits(std::slice::from_ref(&board), &assignment(&[("a", None)])));
    assert!(!still_fits(std::slice::from_ref(&board), &assignment(&[("a", Some((19, 0)))])), "no slices");
    board.mig_enabled = true;
    assert!(board.free_devices().is_empty(), "not in a MIG mode that nothing is known of");
}

#[test]
fn the_last_check_keeps_to_dedicated_nodes() {
    let org = |n| OrgId::from_uuid(Uuid::from_u128(n));
    for (dedicated_to, own_nodes_only, fits) in [
        (None, false, true),
        (None, true, false),
        (Some(org(1)), false, true),
        (Some(org(1)), true, true),
        (Some(org(2)), false, false),
        (Some(org(2)), true, false),
    ] {
        let gpus = [BoardState { dedicated_to, ..gpu(1, "a", "H100-80GB") }];
        let assignment = Assignment { own_nodes_only, ..assignment(&[("a", None)]) };
        assert_eq!(still_fits(&gpus, &assignment), fits, "{dedicated_to:?}, {own_nodes_only}");
    }
}

#[test]
fn the_last_check_keeps_to_pools() {
    for (pool, work, fits) in [
        (NodePool::Both, Work::Training, true),
        (NodePool::Inference, Work::Training, false),
        (NodePool::Inference, Work::Preemptible, true),
        (NodePool::Training, Work::Replica, false),
    ] {
        let gpus = [BoardState { pool, ..gpu(1, "a", "H100-80GB") }];
        let assignment = Assignment { work, ..assignment(&[("a", None)]) };
        assert_eq!(still_fits(&gpus, &assignment), fits, "{pool:?}, {work:?}");
    }
}
