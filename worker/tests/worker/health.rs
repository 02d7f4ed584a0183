//! How the worker bears boards that hang, vanish, fail and are looked at, over the simulated library.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use berth_gpu::board_health::BoardHealthStore;
use berth_gpu::board_tasks::run_task;
use berth_gpu::{BoardEvent, BoardEventKind, Deadlines, GpuError, Gpus, Presence};
use berth_proto::{BoardTask, TaskKind};
use berth_worker::telemetry::{BoardReading, Telemetry};

use crate::boards::{library, simulate};
use crate::load;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

/// Replaces what goes wrong, in one step as it is read all the time.
pub fn put(dir: &Path, faults: &str) {
    let new = dir.join("faults.new");
    std::fs::write(&new, faults).unwrap();
    std::fs::rename(new, dir.join("faults.json")).unwrap();
}

/// A process on a device, ended and reaped when this is dropped.
pub struct Tenant(pub Child);

impl Tenant {
    pub fn on(uuid: &str) -> Self {
        let child = Command::new("sh")
            .args(["-c", "echo ready; read -r _"])
            .env("CUDA_VISIBLE_DEVICES", uuid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut tenant = Self(child.unwrap());
        let mut said = [0; 6];
        tenant.0.stdout.take().unwrap().read_exact(&mut said).unwrap();
        tenant
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Hears of what happens to the boards from when the first event of `hello` came.
pub fn listen(gpus: &Arc<Gpus>) -> Receiver<BoardEvent> {
    let (tell, heard) = channel();
    let gpus = gpus.clone();
    std::thread::spawn(move || berth_gpu::watch(&gpus, |happened| tell.send(happened).is_ok()));
    heard
}

pub fn silent(gpus: &Gpus, uuid: &str) -> Option<String> {
    gpus.conditions().into_iter().find(|(of, _)| of == uuid).unwrap().1.silent
}

/// Raises XIDs until one is heard: whoever listens may not have registered yet.
pub fn raise(
    dir: &Path,
    heard: &Receiver<BoardEvent>,
    uuid: &str,
    xid: u64,
    start: u32,
    at: &mut u64,
) -> BoardEvent {
    let deadline = Instant::now() + LONG;
    let mut raised = Vec::new();
    loop {
        *at += 1;
        raised.push(format!(r#"{{"gpu": "{uuid}", "xid": {xid}, "at": {at}, "start": {start}}}"#));
        put(dir, &format!(r#"{{"xid": [{}]}}"#, raised.join(", ")));
        match heard.recv_timeout(Duration::from_millis(300)) {
            Ok(happened) if happened.kind == BoardEventKind::Xid(xid) => return happened,
            // One that was raised before, and was slow.
            Ok(_) => {}
            Err(_) => assert!(Instant::now() < deadline, "nothing was heard"),
        }
    }
}

#[test]
fn boards_that_fail_take_nothing_with_them() {
    let _quiet = load::quiet();
    let Some(dir) = simulate("2xH100-80GB,1xA30") else { return };
    let short = Deadlines { read: Duration::from_millis(400), change: Duration::from_secs(3) };
    let gpus = Arc::new(Gpus::open(Some(&library())).unwrap().with_deadlines(short));
    let boards = gpus.inventory().unwrap();
    let (first, second, ampere) = (&boards[0].uuid, &boards[1].uuid, &boards[2].uuid);
    assert_eq!(gpus.known_boards(), boards);
    let conditions = gpus.conditions();
    let facts = &conditions[0].1.description;
    assert_eq!((facts.pci_bus_id.as_deref(), facts.nvlinks), (Some("00000000:10:00.0"), 18));
    assert_eq!((facts.mig, facts.mig_pending, facts.ecc), (Some(false), Some(false), Some(true)));
    assert!(facts.vbios.is_some() && facts.power_limit_watts == Some(700));
    assert_eq!((conditions[2].1.description.mig, conditions[2].1.description.nvlinks), (Some(true), 0));
    assert_eq!(conditions[0].1.counts.ecc_uncorrected, Some(0));

    // Readings: what the driver does not report is left out.
    let whole = gpus.read(first, None).unwrap();
    assert!(whole.sm_clock_mhz.unwrap() > 0.0 && whole.pcie_sent_kb_s == Some(0.0));
    assert_eq!((whole.throttle_reasons, whole.nvlink_sent_kib_s), (Some(1), None), "idle, and no rate yet");
    assert_eq!(gpus.read(first, None).unwrap().nvlink_sent_kib_s, Some(0.0));
    assert_eq!(gpus.read(ampere, None).unwrap().nvlink_sent_kib_s, None, "it has no links");

    // One hangs: it is said so at once from the second call on, and the others answer.
    put(&dir, &format!(r#"{{"hang_ms": {{"{first}": 2500}}}}"#));
    assert_eq!(gpus.read(first, None), Err(GpuError::Unresponsive));
    let begun = Instant::now();
    assert_eq!(gpus.presence(first, None), Presence::Unknown, "which says nothing about its jobs");
    assert_eq!(gpus.create_slice(first, 19, 0), Err(GpuError::Unresponsive));
    assert!(gpus.read(second, None).is_ok() && gpus.read(ampere, None).is_ok());
    assert!(begun.elapsed() < Duration::from_millis(1_500));
    let read = gpus.snapshots(&boards);
    assert_eq!(read[0], Err(GpuError::Unresponsive));
    assert!(read[1].is_ok() && read[2].is_ok());
    let read = Telemetry::new("quay", true).read(&gpus, &[]);
    assert_eq!(read.iter().map(BoardReading::is_late).collect::<Vec<_>>(), [true, false, false]);
    let found = gpus.inventory().unwrap();
    assert_eq!(found.len(), 3);
    assert_eq!(found[0].silent.as_deref(), Some("NVML does not answer for the board."));
    assert_eq!((found[0].nvlink_island, found[1].nvlink_island), (1, 1), "as it was when it answered");
    put(&dir, "{}");
    let deadline = Instant::now() + LONG;
    while silent(&gpus, first).is_some() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(silent(&gpus, first), None, "it answers again");
    assert!(gpus.slices(first).unwrap().is_empty(), "what was given up was not done later");

    // One vanishes and comes back.
    put(&dir, &format!(r#"{{"lost": ["{second}"]}}"#));
    assert_eq!(silent(&gpus, second).as_deref(), Some("The board has fallen off the bus."));
    assert_eq!(gpus.check(second), Err("The board has fallen off the bus.".to_owned()));
    put(&dir, "{}");
    assert_eq!((silent(&gpus, second), gpus.check(second)), (None, Ok(())));

    // Events come with the slice that they happened on.
    gpus.set_mig(second, true).unwrap();
    let slice = gpus.create_slice(second, 19, 3).unwrap();
    let heard = listen(&gpus);
    let mut at = 0;
    let told = raise(&dir, &heard, second, 94, 3, &mut at);
    assert_eq!(told, BoardEvent { gpu_uuid: second.clone(), kind: BoardEventKind::Xid(94), start: Some(3) });
    let told = raise(&dir, &heard, second, 48, 9, &mut at);
    assert_eq!((told.kind, told.start), (BoardEventKind::Xid(48), None), "no slice starts there");

    // Fit for work is what nobody is on, nothing is left in, and nothing waits for a reset.
    put(&dir, "{}");
    let tenant = Tenant::on(slice.mig_uuid.as_deref().unwrap());
    let why = gpus.check(second).unwrap_err();
    assert!(why.contains(&tenant.0.id().to_string()), "{why}");
    let in_use = run_task(&gpus, &task(second, 1, TaskKind::MigOff)).unwrap_err();
    assert!(in_use.contains("one of its instances is in use"), "{in_use}");
    drop(tenant);
    assert_eq!(gpus.check(second), Ok(()), "an empty instance is no harm");
    put(&dir, &format!(r#"{{"remapped": {{"{second}": {{"pending": true}}}}}}"#));
    assert!(gpus.check(second).unwrap_err().contains("reset"));
    let mut store = BoardHealthStore::open(&dir.join("kept.json"));
    store.record_conditions(gpus.conditions(), 1);
    let health = store.next_report().unwrap();
    let faulty: Vec<&str> =
        health.boards.iter().filter_map(|b| b.fault.as_ref()).map(|f| f.code.as_str()).collect();
    assert_eq!(faulty, ["gpu.memory"]);

    // Modes: at once, or with the next reset.
    put(&dir, "{}");
    gpus.destroy_slice(second, 19, 3, None).unwrap();
    assert_eq!(run_task(&gpus, &task(second, 2, TaskKind::MigOff)), Ok("MIG mode is off.".to_owned()));
    let waits = run_task(&gpus, &task(ampere, 1, TaskKind::MigOff)).unwrap_err();
    assert!(waits.contains("reset"), "{waits}");
    assert!(gpus.check(ampere).unwrap_err().contains("MIG mode"));
    put(&dir, &format!(r#"{{"reset": {{"{ampere}": 1}}}}"#));
    assert_eq!(gpus.check(ampere), Ok(()));
    assert_eq!(run_task(&gpus, &task(ampere, 2, TaskKind::MigOff)), Ok("MIG mode is off.".to_owned()));

    // A monitor that holds a board for a moment does not keep it.
    put(&dir, &format!(r#"{{"in_use": ["{first}"]}}"#));
    let (path, begun) = (dir.clone(), Instant::now());
    let lets_go = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        put(&path, "{}");
    });
    gpus.set_mig(first, true).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(150), "it was tried again");
    lets_go.join().unwrap();

    // A session waits for its hello, and the hello for no board: whatever calls may take, a board that hangs is
    // told of as it was, and one that nobody has seen yet is left out until it answers.
    let patient = Deadlines { read: LONG, change: LONG };
    let patient = Gpus::open(Some(&library())).unwrap().with_deadlines(patient);
    assert_eq!(patient.inventory().unwrap().len(), 3);
    let newcomer = Gpus::open(Some(&library())).unwrap().with_deadlines(short);
    put(&dir, &format!(r#"{{"hang_ms": {{"{first}": 9000}}}}"#));
    let begun = Instant::now();
    let found = patient.inventory().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
    assert_eq!(found.iter().map(|b| b.silent.is_some()).collect::<Vec<_>>(), [true, false, false]);
    assert!(!patient.is_incomplete());
    let found = newcomer.inventory().unwrap();
    assert_eq!(found.iter().map(|b| &b.uuid).collect::<Vec<_>>(), [second, ampere]);
    assert!(newcomer.is_incomplete());
    put(&dir, "{}");
    let deadline = Instant::now() + LONG;
    while newcomer.inventory().unwrap().len() < 3 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!newcomer.is_incomplete() && newcomer.known_boards().len() == 3);
}

pub fn task(gpu_uuid: &str, number: u64, kind: TaskKind) -> BoardTask {
    BoardTask { gpu_uuid: gpu_uuid.to_owned(), number, kind: kind.into(), group: Vec::new() }
}
