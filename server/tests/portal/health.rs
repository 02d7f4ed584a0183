//! Tests of board faults: quarantine by worker reports, and the ways back into service.

use crate::common::engines;
use crate::idle_portal::{IdlePortal, node};
use crate::worker_portal::{WorkerPortal, eventually};
use berth_fleet::reports::{BoardReport, GpuTaskResult, ReportedFault};
use berth_jobs::reports::{AttemptPhase, AttemptReport};
use berth_system::processes::descendants;
use berth_types::health::{GpuFacts, GpuTaskKind};
use berth_types::ids::{JobId, NodeId};
use berth_types::jobs::Failure;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

pub const GPU: &str = "GPU-1-0";

pub fn healthy(gpu: &str) -> BoardReport {
    let facts = GpuFacts { mig: Some(false), mig_pending: Some(false), nvlinks: 18, ..GpuFacts::default() };
    BoardReport {
        gpu_uuid: gpu.to_owned(),
        silent: None,
        fault: None,
        done: None,
        facts: Some(facts),
        mig_profiles: vec![],
    }
}

pub fn faulty(serial: i64, detail: &str) -> BoardReport {
    let fault = ReportedFault { serial, code: "gpu.xid".to_owned(), detail: detail.to_owned() };
    BoardReport { fault: Some(fault), ..healthy(GPU) }
}

/// The result of a task of a board.
pub fn done(number: i64, good: bool, message: &str) -> Option<GpuTaskResult> {
    Some(GpuTaskResult { number, good, message: message.to_owned() })
}

pub async fn send_health(setup: &IdlePortal, n: u128, board: BoardReport) {
    setup.t.portal.health.apply_health(node(n), vec![board]).await.unwrap();
}

/// Returns the board as operators see it.
pub async fn board(setup: &IdlePortal) -> Value {
    let page = setup.t.get(&setup.operator, &format!("/operator/nodes/{}/gpus", node(1))).await.expect(200);
    page["items"].as_array().unwrap().iter().find(|gpu| gpu["uuid"] == GPU).unwrap().clone()
}

/// Returns the quarantine reason that an organization sees.
pub async fn quarantine_reason(setup: &IdlePortal) -> Value {
    let page = setup.t.get(&setup.ada, &format!("/orgs/{}/nodes", setup.org)).await.expect(200);
    let seen = reason_in(&page);
    let page = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    let reason = reason_in(&page);
    // An organization sees no cause.
    let expected = if reason.is_null() { Value::Null } else { json!("This board is out of service.") };
    assert_eq!(seen, expected);
    reason
}

fn reason_in(page: &Value) -> Value {
    let nodes = page["items"].as_array().unwrap().clone();
    let mut boards = nodes.iter().flat_map(|n| n["gpus"].as_array().unwrap());
    boards.find(|gpu| gpu["uuid"] == GPU).unwrap()["quarantined"].clone()
}

pub async fn post_to_gpu(setup: &IdlePortal, action: &str, body: Value) -> crate::common::Reply {
    setup.t.post(&setup.operator, &format!("/operator/gpus/{GPU}/{action}"), body).await
}

pub async fn count_audit_events(setup: &IdlePortal, action: &str) -> usize {
    let page = setup.t.get(&setup.operator, "/operator/audit-events?limit=200").await.expect(200);
    page["items"].as_array().unwrap().iter().filter(|e| e["action"] == action).count()
}

#[tokio::test]
async fn a_fault_of_a_host_takes_no_board_out_of_service() {
    for (engine, db, _location) in engines("health_of_host").await {
        let setup = IdlePortal::on(db).await;
        // A missing device node, then a board without an answer.
        for (code, boards) in [("worker.isolation", 0), ("device.unavailable", 1)] {
            let body =
                json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
            let made = setup.t.post(&setup.ada, &format!("/orgs/{}/jobs", setup.org), body).await.expect(201);
            let id = made["id"].as_str().unwrap();
            let (path, job): (_, JobId) = (format!("/orgs/{}/jobs/{id}", setup.org), id.parse().unwrap());
            let mut passes = 0;
            while setup.t.get(&setup.ada, &path).await.expect(200)["state"] == "queued" {
                setup.t.portal.scheduler.pass().await.unwrap();
                passes += 1;
                assert!(passes < 100, "{engine}: it never starts");
            }
            let placed = setup.t.get(&setup.ada, &path).await.expect(200);
            let at: NodeId = placed["devices"][0]["node"].as_str().unwrap().parse().unwrap();
            let failure = Failure { code: code.to_owned(), detail: "The job was not started.".to_owned() };
            let report = AttemptReport {
                failure: Some(failure),
                log_bytes: Some(0),
                ..AttemptReport::new(job, 1, AttemptPhase::Clean)
            };
            setup.t.portal.attempts.apply_status(at, report).await.unwrap();
            let ended = setup.t.get(&setup.ada, &path).await.expect(200);
            assert_eq!(
                (&ended["state"], &ended["failure"]["code"], &ended["cost_micros"]),
                (&json!("failed"), &json!(code), &json!(0)),
                "{engine} {ended}"
            );
            let page = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
            let all = page["items"].as_array().unwrap().iter().flat_map(|n| n["gpus"].as_array().unwrap());
            let quarantined = all.filter(|gpu| !gpu["quarantined"].is_null()).count();
            assert_eq!(quarantined, boards, "{engine} {code}");
        }
    }
}

#[tokio::test]
async fn a_fault_quarantines_its_board_once_until_a_check() {
    for (engine, db, _location) in engines("health_faults").await {
        let setup = IdlePortal::on(db).await;
        send_health(&setup, 1, healthy(GPU)).await;
        assert_eq!(
            (quarantine_reason(&setup).await, board(&setup).await["facts"]["nvlinks"].clone()),
            (Value::Null, json!(18))
        );
        // A report of another node changes nothing.
        send_health(&setup, 2, faulty(9, "not mine")).await;
        assert_eq!(quarantine_reason(&setup).await, Value::Null, "{engine}");
        for _ in 0..2 {
            send_health(&setup, 1, faulty(10, "XID 79")).await;
        }
        assert_eq!(quarantine_reason(&setup).await, "XID 79", "{engine}");
        let shown = board(&setup).await["quarantine"].clone();
        assert_eq!((&shown["code"], &shown["reason"]), (&json!("gpu.xid"), &json!("XID 79")), "{engine}");
        assert_eq!(count_audit_events(&setup, "gpu.quarantined").await, 1, "{engine}");
        // A new session does not end the quarantine, and a repeated report does not undo a release.
        setup.report(1).await;
        assert_eq!(quarantine_reason(&setup).await, "XID 79", "{engine}: a new session proves nothing");
        post_to_gpu(&setup, "mode", json!({"mig": true})).await.problem(409, "gpu.quarantined");
        post_to_gpu(&setup, "release", Value::Null).await.expect(200);
        send_health(&setup, 1, faulty(10, "XID 79")).await;
        assert_eq!(quarantine_reason(&setup).await, Value::Null, "{engine}: what was released stays so");
        post_to_gpu(&setup, "release", Value::Null).await.problem(409, "gpu.not_quarantined");
        send_health(&setup, 1, faulty(11, "XID 48")).await;
        assert_eq!(quarantine_reason(&setup).await, "XID 48", "{engine}");

        // A failed check changes nothing; a passed check ends the quarantine once.
        assert!(setup.t.portal.health.board_tasks(node(1)).await.unwrap().is_empty());
        let asked = post_to_gpu(&setup, "check", Value::Null).await.expect(200);
        assert_eq!(asked["task"], json!({"kind": "check"}), "{engine}");
        let task = setup.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        assert_eq!((task.gpu_uuid.as_str(), task.kind), (GPU, GpuTaskKind::Check), "{engine}");
        assert!(setup.t.portal.health.board_tasks(node(2)).await.unwrap().is_empty(), "{engine}");
        let busy = "a process is on it";
        let failed = BoardReport { done: done(task.number, false, busy), ..faulty(11, "XID 48") };
        send_health(&setup, 1, failed.clone()).await;
        assert_eq!(
            (quarantine_reason(&setup).await, board(&setup).await["task"]["good"].clone()),
            (json!("XID 48"), json!(false))
        );
        assert!(setup.t.portal.health.board_tasks(node(1)).await.unwrap().is_empty(), "{engine}");
        post_to_gpu(&setup, "check", Value::Null).await.expect(200);
        send_health(&setup, 1, failed).await;
        assert_eq!(quarantine_reason(&setup).await, "XID 48", "{engine}: that was the one before");
        let second = setup.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        assert!(second.number > task.number, "{engine}");
        let passed = BoardReport { done: done(second.number, true, "it is free"), ..healthy(GPU) };
        send_health(&setup, 1, passed.clone()).await;
        assert_eq!(quarantine_reason(&setup).await, Value::Null, "{engine}");
        assert_eq!(count_audit_events(&setup, "gpu.cleared").await, 1, "{engine}");
        // The same result is reported again with a new fault.
        send_health(&setup, 1, BoardReport { fault: faulty(12, "XID 95").fault, ..passed }).await;
        assert_eq!(quarantine_reason(&setup).await, "XID 95", "{engine}");
    }
}

#[tokio::test]
async fn a_silent_board_is_in_service_again_when_it_answers() {
    for (engine, db, _location) in engines("health_silent").await {
        let setup = IdlePortal::on(db).await;
        send_health(&setup, 1, healthy(GPU)).await;
        let why = "NVML does not answer for the board.";
        send_health(&setup, 1, BoardReport { silent: Some(why.to_owned()), facts: None, ..healthy(GPU) })
            .await;
        assert_eq!(quarantine_reason(&setup).await, why, "{engine}");
        let shown = board(&setup).await;
        assert_eq!((&shown["silent"], &shown["quarantine"]), (&json!(why), &Value::Null), "{engine}");
        assert_eq!(shown["facts"]["nvlinks"], 18, "{engine}: what is known of it stays");
        post_to_gpu(&setup, "release", Value::Null).await.problem(409, "gpu.not_quarantined");
        post_to_gpu(&setup, "mode", json!({"mig": true})).await.problem(409, "gpu.silent");
        send_health(&setup, 1, healthy(GPU)).await;
        assert_eq!(quarantine_reason(&setup).await, Value::Null, "{engine}");
    }
}

#[tokio::test]
async fn a_mig_mode_change_waits_for_an_empty_board() {
    for (engine, db, _location) in engines("health_mode").await {
        let setup = IdlePortal::on(db).await;
        for n in 1..=2 {
            for i in 0..2 {
                send_health(&setup, n, healthy(&format!("GPU-{n}-{i}"))).await;
            }
        }
        // All boards are occupied.
        let body =
            json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
        for _ in 0..4 {
            setup.t.post(&setup.ada, &format!("/orgs/{}/jobs", setup.org), body.clone()).await.expect(201);
        }
        let held = async || {
            setup.t.portal.scheduler.pass().await.unwrap();
            let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
            let gpus = nodes["items"][0]["gpus"].as_array().unwrap().clone();
            gpus.iter().all(|gpu| gpu["tiles"] != json!([])).then_some(())
        };
        eventually("its boards are taken", held).await;
        post_to_gpu(&setup, "mode", json!({"mig": "yes"})).await.problem(422, "request.invalid");
        let asked = post_to_gpu(&setup, "mode", json!({"mig": true})).await.expect(200);
        assert_eq!(
            (&asked["quarantine"]["code"], &asked["task"]["kind"]),
            (&json!("gpu.mode"), &json!("mig_on"))
        );
        assert!(
            setup.t.portal.health.board_tasks(node(1)).await.unwrap().is_empty(),
            "{engine}: something runs on it"
        );
        post_to_gpu(&setup, "mode", json!({"mig": true})).await.problem(409, "gpu.quarantined");
        // A release cancels the task.
        post_to_gpu(&setup, "release", Value::Null).await.expect(200);
        assert_eq!(board(&setup).await["task"], Value::Null, "{engine}");

        let other = "GPU-2-9";
        setup
            .t
            .post(&setup.operator, &format!("/operator/gpus/{other}/check"), Value::Null)
            .await
            .problem(404, "object.not_found");
        setup
            .t
            .post(&setup.ada, &format!("/operator/gpus/{GPU}/release"), Value::Null)
            .await
            .problem(404, "object.not_found");
        setup
            .t
            .get(&setup.ada, &format!("/operator/nodes/{}/gpus", node(1)))
            .await
            .problem(404, "object.not_found");
        setup
            .t
            .get(&setup.operator, &format!("/operator/nodes/{}/gpus", node(7)))
            .await
            .problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn a_board_is_in_service_again_after_its_mig_mode_change() {
    for (engine, db, _location) in engines("health_moded").await {
        let setup = IdlePortal::on(db).await;
        send_health(&setup, 1, healthy(GPU)).await;
        post_to_gpu(&setup, "mode", json!({"mig": true})).await.expect(200);
        let task = setup.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        assert_eq!(task.kind, GpuTaskKind::MigOn, "{engine}");
        send_health(
            &setup,
            1,
            BoardReport { done: done(task.number, false, "It needs a reset."), ..healthy(GPU) },
        )
        .await;
        assert_eq!(
            quarantine_reason(&setup).await,
            "It needs a reset.",
            "{engine}: not that it waits for anything"
        );
        post_to_gpu(&setup, "release", Value::Null).await.expect(200);
        post_to_gpu(&setup, "mode", json!({"mig": true})).await.expect(200);
        let task = setup.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        let facts = Some(GpuFacts { mig: Some(true), mig_pending: Some(true), ..GpuFacts::default() });
        send_health(
            &setup,
            1,
            BoardReport { done: done(task.number, true, "MIG mode is on."), facts, ..healthy(GPU) },
        )
        .await;
        let shown = board(&setup).await;
        assert_eq!((&shown["mig_enabled"], &shown["quarantine"]), (&json!(true), &Value::Null), "{engine}");
        // A board without MIG refuses the change.
        send_health(&setup, 1, BoardReport { facts: Some(GpuFacts::default()), ..healthy(GPU) }).await;
        post_to_gpu(&setup, "mode", json!({"mig": true})).await.problem(409, "gpu.no_mig");
    }
}

pub fn write_faults(setup: &WorkerPortal, faults: &Value) {
    let boards = setup.data.join("simulated-boards");
    // The rename is atomic, so that no call reads a partial file.
    std::fs::write(boards.join("next"), faults.to_string()).unwrap();
    std::fs::rename(boards.join("next"), boards.join("faults.json")).unwrap();
}

/// Returns the worker's only board as operators see it.
async fn get_board(setup: &WorkerPortal) -> Value {
    let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    let path = format!("/operator/nodes/{}/gpus", nodes["items"][0]["id"].as_str().unwrap());
    setup.t.get(&setup.operator, &path).await.expect(200)["items"][0].clone()
}

pub async fn until_board(setup: &WorkerPortal, condition: &str, ready: impl Fn(&Value) -> bool) -> Value {
    let board_if_ready = async || Some(get_board(setup).await).filter(|board| ready(board));
    eventually(condition, board_if_ready).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_fault_fails_its_job_and_the_next_job_waits_for_a_check() {
    let mut setup = WorkerPortal::open().await;
    let job = setup.submit_script("exec sleep 300").await;
    let running = setup.until(&job, |j| j["evidence"][0]["device_ms"].as_i64() > Some(0)).await;
    let gpu = running["devices"][0]["gpu_uuid"].as_str().unwrap().to_owned();
    let before = until_board(&setup, "its facts", |b| b["facts"]["pci_bus_id"].is_string()).await;
    assert_eq!((&before["uuid"], &before["quarantine"]), (&json!(gpu), &Value::Null), "{before}");
    assert!(
        before["facts"]["vbios"].is_string() && before["reading"]["sm_clock_mhz"].is_number(),
        "{before}"
    );

    // XID 13 is a fault of the program and has no effect; XID 48 ends the job.
    write_faults(
        &setup,
        &json!({"xid": [{"gpu": gpu, "xid": 13, "at": 1}, {"gpu": gpu, "xid": 48, "at": 2}]}),
    );
    let done = setup.until_ended(&job).await;
    assert_eq!(
        (&done["state"], &done["failure"]["code"]),
        (&json!("failed"), &json!("device.failed")),
        "{done}"
    );
    let detail = done["failure"]["detail"].as_str().unwrap();
    assert!(detail.contains("XID 48") && !detail.contains("13"), "{detail}");
    until_board(&setup, "its quarantine", |b| b["quarantine"]["code"] == "gpu.xid").await;
    setup.until_all_free().await;

    // The board takes no work, the explanation has the reason, and a daemon restart does not end the
    // quarantine.
    let next = setup.submit_script("echo after").await;
    let waits = setup.until(&next, |j| j["reasons"].to_string().contains("in quarantine")).await;
    assert_eq!(waits["state"], "queued", "{waits}");
    setup.worker.as_mut().unwrap().kill();
    setup.start_worker(None).unwrap();
    until_board(&setup, "the new session", |b| b["present"] == true && b["quarantine"].is_object()).await;

    let check = format!("/operator/gpus/{gpu}/check");
    write_faults(&setup, &json!({"remapped": {gpu.as_str(): {"pending": true}}}));
    setup.t.post(&setup.operator, &check, Value::Null).await.expect(200);
    let failed = until_board(&setup, "a check that fails", |b| b["task"]["good"] == false).await;
    assert!(failed["task"]["words"].as_str().unwrap().contains("reset"), "{failed}");
    assert!(failed["quarantine"].is_object(), "{failed}");
    write_faults(&setup, &json!({"reset": {gpu.as_str(): 1}}));
    setup.t.post(&setup.operator, &check, Value::Null).await.expect(200);
    until_board(&setup, "a check that is passed", |b| b["task"]["good"] == true).await;
    assert_eq!(setup.until_ended(&next).await["state"], "succeeded");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_is_sold_whole_after_the_reset_that_ends_its_mig_mode() {
    let mut setup = crate::worker_portal::without_worker().await;
    let token = setup.join_token(json!({})).await;
    setup.start_worker_with("1xA30", Some(&token)).unwrap();
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    let gpu = until_board(&setup, "its mode", |b| b["facts"]["mig"] == true).await["uuid"].clone();
    let gpu = gpu.as_str().unwrap();
    let capacity = setup.t.get(&setup.ada, &format!("/orgs/{}/capacity", setup.org)).await.expect(200);
    let first = &capacity["models"][0]["steps"][0];
    assert_eq!((&first["free"], &first["unavailable"]), (&json!(0), &json!(1)), "{capacity}");
    let price = json!({"offering": "a30-24gb", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    setup
        .t
        .post(&setup.operator, &format!("/operator/gpus/{gpu}/mode"), json!({"mig": false}))
        .await
        .expect(200);
    let waits = until_board(&setup, "its reset is asked for", |b| b["task"]["good"] == false).await;
    assert!(
        waits["quarantine"]["reason"].as_str().unwrap().contains("needs a reset of the board"),
        "{waits}"
    );
    // This offering needs the board without MIG mode.
    let whole =
        json!({"name": "whole", "script": "echo whole", "offering": "a30-24gb", "max_duration_s": 60});
    let jobs = format!("/orgs/{}/jobs", setup.org);
    setup.t.post(&setup.ada, &jobs, whole.clone()).await.problem(422, "job.never_starts");
    write_faults(&setup, &json!({"reset": {gpu: 1}}));
    until_board(&setup, "its new mode", |b| b["mig_enabled"] == false).await;
    let job = setup.submit(whole).await;
    setup.until(&job, |j| j["reasons"].to_string().contains("in quarantine")).await;
    setup.t.post(&setup.operator, &format!("/operator/gpus/{gpu}/check"), Value::Null).await.expect(200);
    let done = setup.until_ended(&job).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    let board = get_board(&setup).await;
    assert_eq!((&board["mig_enabled"], &board["quarantine"]), (&json!(false), &Value::Null), "{board}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_board_does_not_block_the_daemon() {
    let setup = WorkerPortal::open().await;
    let board = until_board(&setup, "its facts", |b| b["facts"]["pci_bus_id"].is_string()).await;
    let gpu = board["uuid"].as_str().unwrap();
    write_faults(&setup, &json!({"hang_ms": {gpu: 6_500}}));
    let silent = until_board(&setup, "its silence", |b| b["silent"].is_string()).await;
    assert_eq!(silent["silent"], "NVML does not answer for the board.");
    let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    assert_eq!(nodes["items"][0]["state"], "ready", "the daemon lives: {nodes}");
    let job = setup.submit_script("echo later").await;
    setup.until(&job, |j| j["reasons"].to_string().contains("in quarantine")).await;
    write_faults(&setup, &json!({}));
    until_board(&setup, "its answer", |b| b["silent"].is_null()).await;
    assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_helper_of_nvml_touches_no_job() {
    let setup = WorkerPortal::open().await;
    let job = setup.submit_script("exec sleep 12").await;
    let device_ms = |j: &Value| j["evidence"][0]["device_ms"].as_i64().unwrap_or(0);
    setup.until(&job, |j| device_ms(j) > 0).await;
    let daemon = i32::try_from(setup.worker.as_ref().unwrap().process.id()).unwrap();
    let line = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut below = descendants(daemon).into_iter().map(|(pid, _)| pid);
    let helper = below.find(|pid| line(*pid).contains("\0nvml\0")).unwrap();
    kill(Pid::from_raw(helper), Signal::SIGKILL).unwrap();
    let at_kill = device_ms(&setup.job(&job).await);
    let ended = setup.until_ended(&job).await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
    assert!(device_ms(&ended) > at_kill + 2_000, "readings come back: {ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_starts_without_a_hanging_board() {
    let mut setup = WorkerPortal::open().await;
    let board = until_board(&setup, "its facts", |b| b["facts"]["pci_bus_id"].is_string()).await;
    let gpu = board["uuid"].as_str().unwrap();
    setup.worker.as_mut().unwrap().kill();
    write_faults(&setup, &json!({"hang_ms": {gpu: 8_000}}));
    setup.start_worker(None).unwrap();
    until_board(&setup, "a hello without it", |b| b["present"] == false).await;
    let nodes = async || setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    let ready = async || (nodes().await["items"][0]["state"] == "ready").then_some(());
    eventually("the session after it", ready).await;
    write_faults(&setup, &json!({}));
    until_board(&setup, "its answer", |b| b["present"] == true && b["silent"].is_null()).await;
    let job = setup.submit_script("echo later").await;
    assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_xid_before_the_daemons_start_fails_the_job_of_its_board() {
    let mut setup = crate::worker_portal::without_worker().await;
    let log = setup.data.join("simulated-boards/kmsg");
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    std::fs::write(&log, "6,1,1,-;the host is up\n").unwrap();
    let token = setup.join_token(json!({})).await;
    setup.start_worker(Some(&token)).unwrap();
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    let job = setup.submit_script("exec sleep 300").await;
    setup.until(&job, |j| j["evidence"][0]["device_ms"].as_i64() > Some(0)).await;
    let board = until_board(&setup, "its facts", |b| b["facts"]["pci_bus_id"].is_string()).await;
    let kept = setup.data.join("boards.json");
    let noted = async || std::fs::read_to_string(&kept).ok()?.contains("boot_id").then_some(());
    eventually("how far the log is known", noted).await;

    setup.worker.as_mut().unwrap().kill();
    // The kernel writes a shorter PCI address than NVML.
    let at = board["facts"]["pci_bus_id"].as_str().unwrap();
    let at = at.strip_prefix("0000").unwrap().strip_suffix(".0").unwrap();
    let xid = format!("6,1,1,-;the host is up\n4,7,9,-;NVRM: Xid (PCI:{at}): 48, pid=1, DBE\n");
    std::fs::write(&log, xid).unwrap();
    setup.start_worker(None).unwrap();
    let done = setup.until_ended(&job).await;
    assert_eq!(done["failure"]["code"], "device.failed", "{done}");
    assert!(done["failure"]["detail"].as_str().unwrap().contains("XID 48"), "{done}");
    until_board(&setup, "its quarantine", |b| b["quarantine"]["code"] == "gpu.xid").await;
    setup.until_all_free().await;

    // A check ends the quarantine, and the next daemon does not report the same XID again.
    let gpu = board["uuid"].as_str().unwrap();
    setup.t.post(&setup.operator, &format!("/operator/gpus/{gpu}/check"), Value::Null).await.expect(200);
    until_board(&setup, "a check that is passed", |b| b["task"]["good"] == true).await;
    setup.worker.as_mut().unwrap().kill();
    setup.start_worker(None).unwrap();
    let next = setup.submit_script("sleep 7; echo after").await;
    assert_eq!(
        setup.until_ended(&next).await["state"],
        "succeeded",
        "it outlives the next look at the boards"
    );
    assert_eq!(get_board(&setup).await["quarantine"], Value::Null);
    setup.until_all_free().await;
}
