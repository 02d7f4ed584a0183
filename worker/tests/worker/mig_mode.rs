//! Changes of the MIG mode that the driver refuses or delays, over the simulated library.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use berth_gpu::board_tasks::run_task;
use berth_gpu::{GpuError, Gpus, Presence};
use berth_proto::{BoardTask, TaskKind};
use nvml_wrapper::Nvml;

use crate::boards::{library, simulate};

/// Replaces the faults in one step, because the library reads them all the time.
fn put(dir: &Path, faults: &str) {
    let new = dir.join("faults.new");
    std::fs::write(&new, faults).unwrap();
    std::fs::rename(new, dir.join("faults.json")).unwrap();
}

fn task(gpu_uuid: &str, kind: TaskKind) -> BoardTask {
    BoardTask { gpu_uuid: gpu_uuid.to_owned(), number: 1, kind: kind.into(), group: Vec::new() }
}

#[test]
fn a_refused_mode_leaves_nothing_for_the_next_reset() {
    let Some(dir) = simulate("1xH100-80GB,1xA30") else { return };
    let gpus = Gpus::open(Some(&library())).unwrap();
    let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
    let boards = gpus.inventory().unwrap();
    let (hopper, ampere) = (boards[0].uuid.as_str(), boards[1].uuid.as_str());
    let modes = |uuid: &str| {
        let mode = nvml.device_by_uuid(uuid).unwrap().mig_mode().unwrap();
        (mode.current, mode.pending)
    };

    // A monitor holds the board: the driver answers with success and keeps the mode pending.
    put(&dir, &format!(r#"{{"in_use": ["{hopper}"]}}"#));
    assert_eq!(gpus.set_mig(hopper, true), Err(GpuError::InUse));
    assert_eq!(modes(hopper), (0, 0), "the pending mode is withdrawn");
    let held = run_task(&gpus, &task(hopper, TaskKind::MigOn)).unwrap_err();
    assert!(held.contains("stays unchanged"), "{held}");
    assert_eq!(modes(hopper), (0, 0));

    // A board that changes its mode by a reset only: an attempt leaves nothing, an operator may wait.
    assert_eq!(gpus.set_mig(ampere, false), Err(GpuError::ResetRequired));
    assert_eq!(modes(ampere), (1, 1));
    let waits = run_task(&gpus, &task(ampere, TaskKind::MigOff)).unwrap_err();
    assert!(waits.contains("reset"), "{waits}");
    assert_eq!(modes(ampere), (1, 0));
    gpus.set_mig(ampere, true).unwrap();
    assert_eq!(modes(ampere), (1, 1), "the present mode withdraws the request");
}

#[test]
fn an_instance_of_another_creator_is_not_destroyed() {
    if simulate("1xH100-80GB").is_none() {
        return;
    }
    let gpus = Gpus::open(Some(&library())).unwrap();
    let board = gpus.inventory().unwrap().remove(0).uuid;
    gpus.set_mig(&board, true).unwrap();
    let slice = gpus.create_slice(&board, 19, 6).unwrap();
    gpus.destroy_slice(&board, 19, 6, Some(slice.gi + 1)).unwrap();
    assert_eq!(gpus.presence(&board, slice.mig_uuid.as_deref()), Presence::There);
    gpus.destroy_slice(&board, 19, 6, Some(slice.gi)).unwrap();
    assert!(gpus.slices(&board).unwrap().is_empty());
}

/// A process that holds a device by a variable, ended and collected when this is dropped.
struct Client(Child);

impl Client {
    fn start(variable: &str, uuid: &str) -> Self {
        let child = Command::new("sh")
            .args(["-c", "echo ready; read -r _"])
            .env(variable, uuid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut client = Self(child.unwrap());
        let mut ready = [0; 6];
        client.0.stdout.take().unwrap().read_exact(&mut ready).unwrap();
        client
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_of_every_kind_hold_a_device() {
    if simulate("1xH100-80GB").is_none() {
        return;
    }
    let gpus = Gpus::open(Some(&library())).unwrap();
    let board = gpus.inventory().unwrap().remove(0).uuid;
    assert!(gpus.holders(&board, None).unwrap().is_empty());
    for variable in ["CUDA_VISIBLE_DEVICES", "BERTH_NVML_SIM_GRAPHICS", "BERTH_NVML_SIM_MPS"] {
        let client = Client::start(variable, &board);
        assert_eq!(gpus.holders(&board, None).unwrap(), [client.0.id()], "{variable}");
        assert!(gpus.check(&board).unwrap_err().contains("Processes use the board"), "{variable}");
        assert_eq!(gpus.set_mig(&board, true), Err(GpuError::InUse), "{variable}");
    }
}

#[test]
fn a_board_of_an_unknown_name_is_read_from_nvml() {
    if simulate("1xL40S,1xZ900-96GB,1xH100-ODD").is_none() {
        return;
    }
    let gpus = Gpus::open(Some(&library())).unwrap();
    let boards = gpus.inventory().unwrap();
    let shown: Vec<(&str, u64)> = boards.iter().map(|b| (b.name.as_str(), b.memory_mib)).collect();
    let expected = [("NVIDIA L40S", 46_068), ("NVIDIA Z900 96GB", 98_304), ("NVIDIA H100 80GB HBM3", 81_559)];
    assert_eq!(shown, expected);
    let (plain, future, odd) = (&boards[0].uuid, &boards[1].uuid, &boards[2].uuid);

    // A board without MIG works whole, and takes no mode.
    gpus.set_mig(plain, false).unwrap();
    assert_eq!(gpus.set_mig(plain, true), Err(GpuError::NotSupported));
    assert_eq!((gpus.check(plain), gpus.slices(plain)), (Ok(()), Ok(vec![])));
    let profiles = |uuid: &str| {
        let all = gpus.conditions();
        all.into_iter().find(|(of, _)| of == uuid).unwrap().1.description.mig_profiles
    };
    assert!(profiles(plain).is_empty() && profiles(future).is_empty(), "without MIG mode");

    // The profiles and their placements are those of the driver.
    gpus.set_mig(future, true).unwrap();
    gpus.set_mig(odd, true).unwrap();
    let starts = |uuid: &str| {
        let smallest = profiles(uuid).into_iter().find(|profile| profile.name == "1g.10gb").unwrap();
        (smallest.id, smallest.size, smallest.starts)
    };
    assert_eq!(starts(future), (19, 1, (0..7).collect()));
    assert_eq!(starts(odd), (19, 1, vec![0, 2, 4, 6]));
    assert!(profiles(odd).iter().all(|profile| profile.name != "1g.10gb+me"));
    assert_eq!(gpus.create_slice(odd, 19, 1), Err(GpuError::Insufficient));
    let slice = gpus.create_slice(odd, 19, 2).unwrap();
    gpus.destroy_slice(odd, 19, 2, Some(slice.gi)).unwrap();
}
