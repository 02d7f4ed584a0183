//! What every NVML must keep, be it the simulated one or that of a real host: the same steps on both.
//!
//! `make test-hardware` runs it on the host's own library (`BERTH_HARDWARE=1`). It prints what it did and
//! what it left out, and why. It changes a MIG mode or makes an instance only where it is told to
//! (`BERTH_HARDWARE_MIG=1`), on boards that nobody uses and that have no instances.

use std::path::Path;
use std::time::Instant;

use berth_gpu::board_tasks::run_task;
use berth_gpu::{BoardInfo, GpuError, Gpus, Presence, ResetProgram, open_in_helper};
use berth_mig::{Board, board_by_name};
use berth_proto::{BoardTask, TaskKind};

use crate::boards;

fn told(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "1")
}

/// One line of the report.
fn say(board: &BoardInfo, step: &str, result: &str) {
    println!("GPU {} {}: {step}: {result}", board.index, board.name);
}

fn check_inventory(board: &BoardInfo, uuids: &[&str]) {
    assert!(board.uuid.starts_with("GPU-") && board.memory_mib > 0, "{board:?}");
    assert_eq!(board.silent, None, "{board:?}");
    assert_eq!(uuids.iter().filter(|uuid| **uuid == board.uuid).count(), 1, "a UUID is one board's");
    say(board, "inventory", &format!("{} MiB, {} instances", board.memory_mib, board.slices.len()));
}

fn check_facts(gpus: &Gpus, board: &BoardInfo) {
    let conditions = gpus.conditions();
    let condition = &conditions.iter().find(|(uuid, _)| *uuid == board.uuid).unwrap().1;
    assert_eq!(condition.silent, None);
    let facts = &condition.description;
    assert_eq!(facts.mig.unwrap_or(false), board.mig_enabled);
    let bus = facts.pci_bus_id.as_deref().unwrap();
    assert!(bus.split([':', '.']).all(|part| u32::from_str_radix(part, 16).is_ok()), "{bus}");
    let absent = [
        ("serial", facts.serial.is_none()),
        ("VBIOS", facts.vbios.is_none()),
        ("ECC", facts.ecc.is_none()),
        ("MIG", facts.mig.is_none()),
        ("ECC counts", condition.counts.ecc_uncorrected.is_none()),
        ("replaced rows", condition.counts.rows_corrected.is_none()),
        ("recovery action", condition.counts.recovery.is_none()),
    ];
    let absent: Vec<&str> = absent.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect();
    say(board, "facts", &format!("at {bus}; not reported: {absent:?}"));
}

fn check_readings(gpus: &Gpus, board: &BoardInfo) {
    let reading = gpus.read(&board.uuid, None).unwrap();
    let used = reading.memory_used_mib.unwrap();
    assert!(used >= 0.0 && used <= reading.memory_total_mib, "{reading:?}");
    assert!(!board.mig_enabled || reading.utilization_percent.is_none(), "none under MIG: {reading:?}");
    let between = |value: Option<f64>, most: f64| value.is_none_or(|v| (0.0..=most).contains(&v));
    assert!(between(reading.utilization_percent, 100.0), "{reading:?}");
    assert!(between(reading.power_watts, 2_000.0), "{reading:?}");
    assert!(between(reading.temperature_celsius, 120.0), "{reading:?}");
    assert!(between(reading.sm_clock_mhz, 5_000.0) && between(reading.memory_clock_mhz, 20_000.0));
    let again = gpus.read(&board.uuid, None).unwrap();
    assert!(between(again.nvlink_sent_kib_s, 1e12) && between(again.pcie_sent_kb_s, 1e12), "{again:?}");
    say(board, "readings", &format!("{again:?}"));
}

fn check_presence(gpus: &Gpus, board: &BoardInfo) {
    assert_eq!(gpus.presence(&board.uuid, None), Presence::There);
    let none = "MIG-00000000-0000-0000-0000-000000000000";
    assert_eq!(gpus.presence(&board.uuid, Some(none)), Presence::Gone);
    assert!(matches!(gpus.holders(&board.uuid, Some(none)), Err(GpuError::NotFound(_))));
    say(board, "presence", "as it is");
}

/// The tables that placement is reckoned with, against what the driver offers.
fn check_profiles(gpus: &Gpus, board: &BoardInfo) {
    let Some(model) = board_by_name(&board.name) else {
        return say(board, "profiles", "skipped: this model is not in Berth's tables");
    };
    let offered = match gpus.profiles(&board.uuid) {
        Ok(offered) if !offered.is_empty() => offered,
        other => return say(board, "profiles", &format!("skipped: the driver offers none ({other:?})")),
    };
    for (id, memory_mib) in &offered {
        let Some(profile) = model.profile(*id) else {
            say(board, "profiles", &format!("the driver offers {id}, which Berth does not know"));
            continue;
        };
        // Drivers differ by a few MiB of their own.
        let apart = profile.memory_mib.abs_diff(*memory_mib);
        assert!(apart * 10 <= profile.memory_mib, "{}: {memory_mib} MiB", profile.name);
    }
    let missing = |p: &&berth_mig::Profile| offered.iter().all(|(id, _)| *id != p.id);
    let missing: Vec<&str> = model.profiles.iter().filter(missing).map(|p| p.name.as_str()).collect();
    say(board, "profiles", &format!("{} offered; not offered here: {missing:?}", offered.len()));
}

/// Why instances of a board are left alone; `None`: they need not be.
fn hands_off(gpus: &Gpus, board: &BoardInfo, may: bool) -> Option<String> {
    if !may {
        return Some("BERTH_HARDWARE_MIG=1 was not given".to_owned());
    }
    if board_by_name(&board.name).is_none() {
        return Some("this model is not in Berth's tables".to_owned());
    }
    if !board.slices.is_empty() {
        return Some("it has instances already, which are somebody's".to_owned());
    }
    gpus.check(&board.uuid).err()
}

fn smallest(model: &Board) -> &berth_mig::Profile {
    let plain = model.profiles.iter().filter(|p| p.group.is_none());
    plain.min_by_key(|p| (p.size, p.id)).unwrap()
}

/// Makes instances beside each other and takes them away; puts the mode back as it was.
fn check_instances(gpus: &Gpus, board: &BoardInfo, may: bool) {
    if let Some(why) = hands_off(gpus, board, may) {
        return say(board, "instances", &format!("skipped: {why}"));
    }
    let gpu = board.uuid.as_str();
    match gpus.set_mig(gpu, true) {
        Ok(()) => {}
        Err(GpuError::ResetRequired) => {
            // Called off, so that nothing is left for the next reset.
            gpus.set_mig(gpu, false).unwrap();
            return say(board, "instances", "skipped: its MIG mode changes only with a reset");
        }
        Err(error @ (GpuError::InUse | GpuError::NotSupported)) => {
            return say(board, "instances", &format!("skipped: {error}"));
        }
        Err(error) => panic!("{gpu}: {error}"),
    }
    let profile = smallest(board_by_name(&board.name).unwrap());
    let (start, other) = (profile.starts[0], profile.starts[1]);
    let made = gpus.create_slice(gpu, profile.id, start).unwrap();
    assert_eq!((made.profile_id, made.start), (profile.id, start));
    let uuid = made.mig_uuid.clone().unwrap();
    assert!(uuid.starts_with("MIG-"), "{uuid}");
    assert!(matches!(gpus.create_slice(gpu, profile.id, start), Err(GpuError::InUse)));
    assert!(matches!(gpus.create_slice(gpu, profile.id, 63), Err(GpuError::Insufficient)));
    let neighbour = gpus.create_slice(gpu, profile.id, other).unwrap();
    assert_eq!(gpus.slices(gpu).unwrap().len(), 2);
    assert_eq!(gpus.presence(gpu, Some(&uuid)), Presence::There);
    assert!(gpus.holders(gpu, Some(&uuid)).unwrap().is_empty());
    assert!(gpus.read(gpu, Some(&uuid)).unwrap().memory_total_mib > 0.0);
    assert!(matches!(gpus.set_mig(gpu, false), Err(GpuError::InUse)), "not while there are instances");
    gpus.destroy_slice(gpu, profile.id, start, None).unwrap();
    gpus.destroy_slice(gpu, profile.id, start, None).unwrap();
    assert_eq!(gpus.presence(gpu, Some(&uuid)), Presence::Gone);
    assert_eq!(gpus.slices(gpu).unwrap(), [neighbour], "its neighbour stays");
    gpus.destroy_slice(gpu, profile.id, other, None).unwrap();
    if !board.mig_enabled {
        gpus.set_mig(gpu, false).unwrap();
    }
    assert_eq!(gpus.check(gpu), Ok(()));
    say(board, "instances", &format!("two of {} were made and taken away", profile.name));
}

/// Closes NVML and opens it again, as the reset of a board does, with a program that resets nothing.
fn check_session(gpus: &Gpus, board: &BoardInfo) {
    if let Err(why) = gpus.check(&board.uuid) {
        return say(board, "session", &format!("skipped: {why}"));
    }
    let began = Instant::now();
    let task = BoardTask {
        gpu_uuid: board.uuid.clone(),
        number: 1,
        kind: TaskKind::Reset.into(),
        ..BoardTask::default()
    };
    run_task(gpus, &task).unwrap();
    assert_eq!(gpus.presence(&board.uuid, None), Presence::There);
    assert!(gpus.read(&board.uuid, None).unwrap().memory_total_mib > 0.0);
    say(board, "session", &format!("closed and opened again in {} ms", began.elapsed().as_millis()));
}

#[test]
fn the_library_keeps_its_word() {
    let real = told("BERTH_HARDWARE");
    if !real && boards::simulate("2xH100-80GB,1xA30,1xA100-80GB,1xH200-141GB").is_none() {
        return;
    }
    let library = (!real).then(boards::library);
    let gpus = match open_in_helper(Path::new(env!("CARGO_BIN_EXE_berth-worker")), library.as_deref()) {
        // No board of a host is reset here.
        Ok(gpus) => gpus.with_reset_program(ResetProgram::new("/bin/true".into())),
        Err(error) => panic!("there is no NVML to test: {error}"),
    };
    println!("driver {}", gpus.driver_version().unwrap());
    let boards = gpus.inventory().unwrap();
    assert!(!boards.is_empty(), "there is no board to test");
    let uuids: Vec<&str> = boards.iter().map(|board| board.uuid.as_str()).collect();
    for board in &boards {
        check_inventory(board, &uuids);
        check_facts(&gpus, board);
        check_readings(&gpus, board);
        check_presence(&gpus, board);
        check_profiles(&gpus, board);
        check_instances(&gpus, board, !real || told("BERTH_HARDWARE_MIG"));
        check_session(&gpus, board);
    }
    assert!(matches!(gpus.create_slice("GPU-none", 19, 0), Err(GpuError::NotFound(_))));
}
