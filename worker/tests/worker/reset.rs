//! Resets of boards, and the state of their fabric, over the simulated library.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use berth_gpu::board_health::BoardHealthStore;
use berth_gpu::board_tasks::{run_task, run_tasks};
use berth_gpu::kernel_log::LoggedXid;
use berth_gpu::{BoardCondition, BoardEventKind, FabricState, Gpus, Presence, hold_driver};
use berth_proto::{BoardTask, TaskKind};
use nvml_wrapper::Nvml;

use crate::boards::{library, open_gpus, simulate};
use crate::health::{Tenant, listen, put, raise, task};

#[test]
fn a_board_is_reset_without_its_users_and_without_nvml() {
    let Some(dir) = simulate("2xH100-80GB") else { return };
    let gpus = Arc::new(open_gpus());
    let boards = gpus.inventory().unwrap();
    let (first, second) = (&boards[0].uuid, &boards[1].uuid);
    let mut number = 0;
    let mut reset = |gpu_uuid: &str| {
        number += 1;
        run_task(&gpus, &task(gpu_uuid, number, TaskKind::Reset))
    };
    // The listener holds NVML until a reset needs it.
    let heard = listen(&gpus);
    let mut at = 0;
    raise(&dir, &heard, second, 13, 0, &mut at);

    // A process on a slice of the board refuses its reset, and so does another client of the driver.
    gpus.set_mig(first, true).unwrap();
    let slice = gpus.create_slice(first, 19, 6).unwrap();
    let tenant = Tenant::on(slice.mig_uuid.as_deref().unwrap());
    let used = reset(first).unwrap_err();
    assert!(used.contains("Processes use the board") && used.contains("was not reset"), "{used}");
    drop(tenant);
    let monitor = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
    let refused = reset(first).unwrap_err();
    assert!(refused.contains("in use by another process"), "{refused}");
    assert_eq!(gpus.slices(first).unwrap().len(), 1, "nothing was changed, and NVML answers");
    drop(monitor);
    assert!(reset("GPU-none").unwrap_err().contains("does not know the board"));

    // A board off the bus comes back, without its instances. Its neighbour answers after the reset too.
    put(&dir, &format!(r#"{{"xid": [{{"gpu": "{first}", "xid": 79, "at": 1}}]}}"#));
    assert_eq!(gpus.presence(first, None), Presence::Gone);
    assert_eq!(reset(first), Ok("The board was reset and is free of faults.".to_owned()));
    assert_eq!((gpus.presence(first, None), gpus.presence(second, None)), (Presence::There, Presence::There));
    assert!(gpus.slices(first).unwrap().is_empty());
    assert_eq!(gpus.conditions().len(), 2);

    // A board that is not fit after its reset stays out of service.
    put(&dir, &format!(r#"{{"remapped": {{"{first}": {{"failure": true}}}}}}"#));
    let unfit = reset(first).unwrap_err();
    assert!(unfit.contains("was reset, and is not fit for work"), "{unfit}");

    // The events of both boards are requested anew.
    for (uuid, xid) in [(first, 48), (second, 95)] {
        let event = raise(&dir, &heard, uuid, xid, 0, &mut at);
        assert_eq!((&event.gpu_uuid, event.kind), (uuid, BoardEventKind::Xid(xid)));
    }

    // A reset waits for CUDA, and the proof after an attempt on another board waits for the reset.
    let (gpus, (begin, begun)) = (&gpus, mpsc::channel());
    let held = hold_driver(gpus).unwrap();
    std::thread::scope(|scope| {
        let resetting = scope.spawn(|| run_task(gpus, &task(second, 100, TaskKind::Reset)));
        let until = Instant::now() + Duration::from_secs(20);
        while gpus.presence(first, None) != Presence::Unknown {
            assert!(Instant::now() < until, "NVML is not closed");
            std::thread::yield_now();
        }
        assert!(!resetting.is_finished());
        let proof = scope.spawn(move || {
            begin.send(()).unwrap();
            gpus.holders(first, None)
        });
        begun.recv().unwrap();
        drop(held);
        assert_eq!(resetting.join().unwrap(), Ok("The board was reset and is free of faults.".to_owned()));
        assert_eq!(proof.join().unwrap(), Ok(Vec::new()));
    });
}

#[test]
fn boards_with_nvlink_before_ampere_are_reset_together() {
    let Some(dir) = simulate("3xV100,1xL40S") else { return };
    let gpus = open_gpus();
    let boards = gpus.inventory().unwrap();
    let group: Vec<String> = boards[..3].iter().map(|board| board.uuid.clone()).collect();
    let groups = || -> Vec<Vec<String>> {
        gpus.conditions().into_iter().map(|(_, condition)| condition.description.reset_group).collect()
    };
    assert_eq!(groups(), [group.clone(), group.clone(), group.clone(), Vec::new()]);
    let mut number = 0;
    let mut reset = || {
        number += 1;
        let member =
            |gpu_uuid: &String| BoardTask { group: group.clone(), ..task(gpu_uuid, number, TaskKind::Reset) };
        let ended = run_tasks(&gpus, group.iter().map(member).collect());
        ended.into_iter().map(|(_, result)| result).collect::<Vec<Result<String, String>>>()
    };
    let good = || Ok("The board was reset and is free of faults.".to_owned());

    // The driver names the boards that a request for one lacks.
    let alone = run_task(&gpus, &task(&group[0], 100, TaskKind::Reset)).unwrap_err();
    assert!(alone.contains(&group[1]) && alone.contains(&group[2]), "{alone}");
    assert_eq!(run_task(&gpus, &task(&boards[3].uuid, 101, TaskKind::Reset)), good());

    // A process on one board refuses the reset of all.
    let tenant = Tenant::on(&group[2]);
    for used in reset() {
        let used = used.unwrap_err();
        assert!(used.starts_with(&group[2]) && used.contains("Processes use the board"), "{used}");
    }
    drop(tenant);

    // A board off the bus stays in its group, although the links of the others to it are down.
    put(&dir, &format!(r#"{{"xid": [{{"gpu": "{}", "xid": 79, "at": 1}}]}}"#, group[1]));
    assert_eq!(gpus.inventory().unwrap().iter().filter(|board| board.silent.is_some()).count(), 1);
    assert_eq!(groups(), [group.clone(), Vec::new(), group.clone(), Vec::new()]);
    assert_eq!(reset(), [good(), good(), good()]);
    assert_eq!(gpus.presence(&group[1], None), Presence::There);

    // Each board has its own check.
    put(&dir, &format!(r#"{{"remapped": {{"{}": {{"pending": true}}}}}}"#, group[0]));
    let results = reset();
    let unfit = results[0].clone().unwrap_err();
    assert!(unfit.contains("was reset, and is not fit for work"), "{unfit}");
    assert_eq!(results[1..], [good(), good()]);
}

#[test]
fn the_reset_of_a_group_starts_on_all_of_its_boards() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("boards.json");
    let mut store = BoardHealthStore::open(&file);
    let member = |gpu_uuid: &str, number: u64| BoardTask {
        group: vec!["GPU-1".to_owned(), "GPU-2".to_owned()],
        ..task(gpu_uuid, number, TaskKind::Reset)
    };
    let (group, check) = ([member("GPU-1", 7), member("GPU-2", 8)], task("GPU-2", 3, TaskKind::Check));
    assert_eq!(store.start_tasks(std::slice::from_ref(&check)).len(), 1);
    assert!(store.start_tasks(&group).is_empty(), "a check runs on one of them");
    store.finish_task(&check, Ok(String::new()));
    assert_eq!(store.requested(), group, "they start after its end");
    assert!(store.start_tasks(&group[..1]).is_empty(), "the task of the other is missing");
    assert_eq!(store.start_tasks(&group), group);
    assert!(store.start_tasks(&group).is_empty(), "it runs");
    let mut store = BoardHealthStore::open(&file);
    assert!(store.start_tasks(&group).is_empty(), "a reset is not repeated");
    let conditions = ["GPU-1", "GPU-2"].map(|uuid| (uuid.to_owned(), BoardCondition::default()));
    store.record_conditions(conditions.to_vec(), 1);
    let results = store.next_report().unwrap().boards.into_iter().map(|board| board.task_result.unwrap());
    let results: Vec<(u64, bool)> = results.map(|result| (result.number, result.succeeded)).collect();
    assert_eq!(results, [(7, false), (8, false)]);
}

#[test]
fn a_host_without_the_program_resets_no_board() {
    if simulate("1xH100-80GB").is_none() {
        return;
    }
    let gpus = Gpus::open(Some(&library())).unwrap();
    let board = gpus.inventory().unwrap().remove(0).uuid;
    let missing = run_task(&gpus, &task(&board, 1, TaskKind::Reset)).unwrap_err();
    assert!(missing.contains("nvidia-smi is not installed"), "{missing}");
}

#[test]
fn a_reset_that_a_daemon_did_not_end_has_an_unknown_result() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("boards.json");
    let (reset, other) = (task("GPU-1", 7, TaskKind::Reset), task("GPU-2", 8, TaskKind::Check));
    let mut store = BoardHealthStore::open(&file);
    assert_eq!(store.start_tasks(&[reset.clone(), other.clone()]).len(), 2);
    let mut store = BoardHealthStore::open(&file);
    assert_eq!(store.start_tasks(&[reset, other.clone()]), [other], "a reset is not repeated");
    store.record_conditions(vec![("GPU-1".to_owned(), BoardCondition::default())], 1);
    let result = store.next_report().unwrap().boards[0].task_result.clone().unwrap();
    assert_eq!((result.number, result.succeeded), (7, false));
    assert!(result.message.contains("unknown"), "{}", result.message);
}

#[test]
fn xids_during_a_reset_come_from_the_kernels_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = BoardHealthStore::open(&dir.path().join("boards.json"));
    let missed = |store: &mut BoardHealthStore, seq: Option<u64>| {
        let line = |seq: u64| format!("4,{seq},1,-;NVRM: Xid (PCI:0000:10:00): 79, it fell off");
        let logged = seq.and_then(|seq| LoggedXid::parse(&line(seq)));
        store.missed_xids(logged.into_iter().collect(), "boot").len()
    };
    assert_eq!(missed(&mut store, None), 0);
    assert_eq!(missed(&mut store, Some(8)), 0, "NVML reports it");
    let reset = task("GPU-1", 7, TaskKind::Reset);
    assert_eq!(store.start_tasks(std::slice::from_ref(&reset)).len(), 1);
    assert_eq!(missed(&mut store, Some(9)), 1, "NVML is closed");
    store.finish_task(&reset, Ok(String::new()));
    assert_eq!(missed(&mut store, Some(10)), 1, "it may be from the end of the reset");
    assert_eq!(missed(&mut store, Some(11)), 0);
}

#[test]
fn a_board_has_the_state_of_its_fabric() {
    let Some(dir) = simulate("2xH100-80GB,1xA30") else { return };
    let gpus = Gpus::open(Some(&library())).unwrap();
    let boards = gpus.inventory().unwrap();
    let fabric = |index: usize| {
        let (_, condition) = gpus.conditions().remove(index);
        condition.description.fabric.map(|fabric| (fabric.state, fabric.status, fabric.health_mask.is_some()))
    };
    assert_eq!(fabric(0), Some((FabricState::Completed, 0, true)));
    assert_eq!(fabric(2), None, "a board in a PCIe slot");
    for (fault, state) in [("not_started", FabricState::NotStarted), ("in_progress", FabricState::InProgress)]
    {
        put(&dir, &format!(r#"{{"fabric": {{"{}": "{fault}"}}}}"#, boards[0].uuid));
        assert_eq!(fabric(0), Some((state, 0, true)));
        assert_eq!(fabric(1), Some((FabricState::Completed, 0, true)), "its neighbour");
    }
    put(&dir, &format!(r#"{{"fabric": {{"{}": "failed"}}}}"#, boards[0].uuid));
    assert!(fabric(0).is_some_and(|(state, status, _)| state == FabricState::Completed && status != 0));
}
