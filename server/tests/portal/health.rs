//! Boards that fail: out of service by what their workers say, and the ways back.

use crate::common::engines;
use crate::harbour::{Harbour, node};
use crate::quay::{Quay, eventually};
use berth_proto::{BoardFacts, BoardFault, BoardHealth, Health, TaskDone, TaskKind};
use serde_json::{Value, json};

const GPU: &str = "GPU-1-0";

fn well(gpu: &str) -> BoardHealth {
    let facts =
        BoardFacts { mig: Some(false), mig_pending: Some(false), nvlinks: 18, ..BoardFacts::default() };
    BoardHealth { gpu_uuid: gpu.to_owned(), facts: Some(facts), ..BoardHealth::default() }
}

fn faulty(serial: u64, detail: &str) -> BoardHealth {
    let fault = BoardFault { serial, code: "gpu.xid".to_owned(), detail: detail.to_owned() };
    BoardHealth { fault: Some(fault), ..well(GPU) }
}

async fn say(h: &Harbour, n: u128, board: BoardHealth) {
    h.t.portal.health.apply_health(node(n), Health { boards: vec![board] }).await.unwrap();
}

/// The board as its node's operator sees it.
async fn board(h: &Harbour) -> Value {
    let page = h.t.get(&h.operator, &format!("/operator/nodes/{}/gpus", node(1))).await.expect(200);
    page["items"].as_array().unwrap().iter().find(|gpu| gpu["uuid"] == GPU).unwrap().clone()
}

/// What a tenant reads beside the board.
async fn told(h: &Harbour) -> Value {
    let page = h.t.get(&h.ada, &format!("/orgs/{}/nodes", h.org)).await.expect(200);
    let nodes = page["items"].as_array().unwrap().clone();
    let mut boards = nodes.iter().flat_map(|n| n["gpus"].as_array().unwrap());
    boards.find(|gpu| gpu["uuid"] == GPU).unwrap()["quarantined"].clone()
}

async fn post(h: &Harbour, what: &str, body: Value) -> crate::common::Reply {
    h.t.post(&h.operator, &format!("/operator/gpus/{GPU}/{what}"), body).await
}

async fn audited(h: &Harbour, action: &str) -> usize {
    let page = h.t.get(&h.operator, "/operator/audit-events?limit=200").await.expect(200);
    page["items"].as_array().unwrap().iter().filter(|e| e["action"] == action).count()
}

#[tokio::test]
async fn a_fault_is_acted_on_once_and_a_check_ends_it() {
    for (engine, db, _place) in engines("health_faults").await {
        let h = Harbour::on(db).await;
        say(&h, 1, well(GPU)).await;
        assert_eq!((told(&h).await, board(&h).await["facts"]["nvlinks"].clone()), (Value::Null, json!(18)));
        // Another node says nothing of it.
        say(&h, 2, faulty(9, "not mine")).await;
        assert_eq!(told(&h).await, Value::Null, "{engine}");
        for _ in 0..2 {
            say(&h, 1, faulty(10, "XID 79")).await;
        }
        assert_eq!(told(&h).await, "XID 79", "{engine}");
        let shown = board(&h).await["quarantine"].clone();
        assert_eq!((&shown["code"], &shown["reason"]), (&json!("gpu.xid"), &json!("XID 79")), "{engine}");
        assert_eq!(audited(&h, "gpu.quarantined").await, 1, "{engine}");
        // Neither a new session nor a release is undone or does more than it says.
        h.report(1).await;
        assert_eq!(told(&h).await, "XID 79", "{engine}: a new session proves nothing");
        post(&h, "mode", json!({"mig": true})).await.problem(409, "gpu.quarantined");
        post(&h, "release", Value::Null).await.expect(200);
        say(&h, 1, faulty(10, "XID 79")).await;
        assert_eq!(told(&h).await, Value::Null, "{engine}: what was released stays so");
        post(&h, "release", Value::Null).await.problem(409, "gpu.not_quarantined");
        say(&h, 1, faulty(11, "XID 48")).await;
        assert_eq!(told(&h).await, "XID 48", "{engine}");

        // A check that fails changes nothing; one that is passed ends it, once.
        assert!(h.t.portal.health.board_tasks(node(1)).await.unwrap().is_empty());
        let asked = post(&h, "check", Value::Null).await.expect(200);
        assert_eq!(asked["task"], json!({"kind": "check"}), "{engine}");
        let task = h.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        assert_eq!((task.gpu_uuid.as_str(), task.kind()), (GPU, TaskKind::Check), "{engine}");
        assert!(h.t.portal.health.board_tasks(node(2)).await.unwrap().is_empty(), "{engine}");
        let done = |number, good| TaskDone { number, good, words: "a process is on it".to_owned() };
        let failed = BoardHealth { done: Some(done(task.number, false)), ..faulty(11, "XID 48") };
        say(&h, 1, failed.clone()).await;
        assert_eq!(
            (told(&h).await, board(&h).await["task"]["good"].clone()),
            (json!("XID 48"), json!(false))
        );
        assert!(h.t.portal.health.board_tasks(node(1)).await.unwrap().is_empty(), "{engine}");
        post(&h, "check", Value::Null).await.expect(200);
        say(&h, 1, failed).await;
        assert_eq!(told(&h).await, "XID 48", "{engine}: that was the one before");
        let second = h.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        assert!(second.number > task.number, "{engine}");
        let passed = BoardHealth { done: Some(done(second.number, true)), ..well(GPU) };
        say(&h, 1, passed.clone()).await;
        assert_eq!(told(&h).await, Value::Null, "{engine}");
        assert_eq!(audited(&h, "gpu.cleared").await, 1, "{engine}");
        // Heard again with what happened since.
        say(&h, 1, BoardHealth { fault: faulty(12, "XID 95").fault, ..passed }).await;
        assert_eq!(told(&h).await, "XID 95", "{engine}");
    }
}

#[tokio::test]
async fn a_board_that_is_silent_is_back_when_it_answers() {
    for (engine, db, _place) in engines("health_silent").await {
        let h = Harbour::on(db).await;
        say(&h, 1, well(GPU)).await;
        let why = "NVML does not answer for it.";
        say(&h, 1, BoardHealth { silent: Some(why.to_owned()), facts: None, ..well(GPU) }).await;
        assert_eq!(told(&h).await, why, "{engine}");
        let shown = board(&h).await;
        assert_eq!((&shown["silent"], &shown["quarantine"]), (&json!(why), &Value::Null), "{engine}");
        assert_eq!(shown["facts"]["nvlinks"], 18, "{engine}: what is known of it stays");
        post(&h, "release", Value::Null).await.problem(409, "gpu.not_quarantined");
        post(&h, "mode", json!({"mig": true})).await.problem(409, "gpu.silent");
        say(&h, 1, well(GPU)).await;
        assert_eq!(told(&h).await, Value::Null, "{engine}");
    }
}

#[tokio::test]
async fn a_mode_changes_once_the_board_is_empty() {
    for (engine, db, _place) in engines("health_mode").await {
        let h = Harbour::on(db).await;
        for n in 1..=2 {
            for i in 0..2 {
                say(&h, n, well(&format!("GPU-{n}-{i}"))).await;
            }
        }
        // All boards are taken, this one too.
        let body =
            json!({"name": "train", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
        for _ in 0..4 {
            h.t.post(&h.ada, &format!("/orgs/{}/jobs", h.org), body.clone()).await.expect(201);
        }
        let held = async || {
            h.t.portal.scheduler.pass().await.unwrap();
            let nodes = h.t.get(&h.operator, "/operator/nodes").await.expect(200);
            let gpus = nodes["items"][0]["gpus"].as_array().unwrap().clone();
            gpus.iter().all(|gpu| gpu["tiles"] != json!([])).then_some(())
        };
        eventually("its boards are taken", held).await;
        post(&h, "mode", json!({"mig": "yes"})).await.problem(422, "request.invalid");
        let asked = post(&h, "mode", json!({"mig": true})).await.expect(200);
        assert_eq!(
            (&asked["quarantine"]["code"], &asked["task"]["kind"]),
            (&json!("gpu.mode"), &json!("mig_on"))
        );
        assert!(
            h.t.portal.health.board_tasks(node(1)).await.unwrap().is_empty(),
            "{engine}: something runs on it"
        );
        post(&h, "mode", json!({"mig": true})).await.problem(409, "gpu.quarantined");
        // Released, nothing waits any more.
        post(&h, "release", Value::Null).await.expect(200);
        assert_eq!(board(&h).await["task"], Value::Null, "{engine}");

        let other = "GPU-2-9";
        h.t.post(&h.operator, &format!("/operator/gpus/{other}/check"), Value::Null)
            .await
            .problem(404, "object.not_found");
        h.t.post(&h.ada, &format!("/operator/gpus/{GPU}/release"), Value::Null)
            .await
            .problem(404, "object.not_found");
        h.t.get(&h.ada, &format!("/operator/nodes/{}/gpus", node(1))).await.problem(404, "object.not_found");
        h.t.get(&h.operator, &format!("/operator/nodes/{}/gpus", node(7)))
            .await
            .problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn a_mode_that_was_changed_puts_the_board_back() {
    for (engine, db, _place) in engines("health_moded").await {
        let h = Harbour::on(db).await;
        say(&h, 1, well(GPU)).await;
        post(&h, "mode", json!({"mig": true})).await.expect(200);
        let task = h.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        assert_eq!(task.kind(), TaskKind::MigOn, "{engine}");
        let done = |number, good, words: &str| Some(TaskDone { number, good, words: words.to_owned() });
        say(&h, 1, BoardHealth { done: done(task.number, false, "It needs a reset."), ..well(GPU) }).await;
        assert_eq!(told(&h).await, "It needs a reset.", "{engine}: not that it waits for anything");
        post(&h, "release", Value::Null).await.expect(200);
        post(&h, "mode", json!({"mig": true})).await.expect(200);
        let task = h.t.portal.health.board_tasks(node(1)).await.unwrap().remove(0);
        let facts = Some(BoardFacts { mig: Some(true), mig_pending: Some(true), ..BoardFacts::default() });
        say(&h, 1, BoardHealth { done: done(task.number, true, "MIG mode is on."), facts, ..well(GPU) })
            .await;
        let shown = board(&h).await;
        assert_eq!((&shown["mig_enabled"], &shown["quarantine"]), (&json!(true), &Value::Null), "{engine}");
        // One that cannot do it has no mode.
        say(&h, 1, BoardHealth { facts: Some(BoardFacts::default()), ..well(GPU) }).await;
        post(&h, "mode", json!({"mig": true})).await.problem(409, "gpu.no_mig");
    }
}

fn faults(quay: &Quay, faults: &Value) {
    let boards = quay.data.join("simulated-boards");
    // Renamed to its place, so that no call finds half of it.
    std::fs::write(boards.join("next"), faults.to_string()).unwrap();
    std::fs::rename(boards.join("next"), boards.join("faults.json")).unwrap();
}

/// The one board of the worker, as its operator sees it.
async fn its_board(quay: &Quay) -> Value {
    let nodes = quay.t.get(&quay.operator, "/operator/nodes").await.expect(200);
    let path = format!("/operator/nodes/{}/gpus", nodes["items"][0]["id"].as_str().unwrap());
    quay.t.get(&quay.operator, &path).await.expect(200)["items"][0].clone()
}

async fn its_board_when(quay: &Quay, what: &str, ready: impl Fn(&Value) -> bool) -> Value {
    let look = async || Some(its_board(quay).await).filter(|board| ready(board));
    eventually(what, look).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_ends_with_its_board_and_the_next_waits_for_the_check() {
    let mut quay = Quay::open().await;
    let job = quay.script("exec sleep 300").await;
    let running = quay.until(&job, |j| j["evidence"][0]["device_ms"].as_i64() > Some(0)).await;
    let gpu = running["devices"][0]["gpu_uuid"].as_str().unwrap().to_owned();
    let before = its_board_when(&quay, "its facts", |b| b["facts"]["pci_bus_id"].is_string()).await;
    assert_eq!((&before["uuid"], &before["quarantine"]), (&json!(gpu), &Value::Null), "{before}");
    assert!(
        before["facts"]["vbios"].is_string() && before["reading"]["sm_clock_mhz"].is_number(),
        "{before}"
    );

    // One that is the program's own fault changes nothing; this one ends it.
    faults(&quay, &json!({"xid": [{"gpu": gpu, "xid": 13, "at": 1}, {"gpu": gpu, "xid": 48, "at": 2}]}));
    let done = quay.ended(&job).await;
    assert_eq!(
        (&done["state"], &done["failure"]["code"]),
        (&json!("failed"), &json!("device.failed")),
        "{done}"
    );
    let detail = done["failure"]["detail"].as_str().unwrap();
    assert!(detail.contains("XID 48") && !detail.contains("13"), "{detail}");
    its_board_when(&quay, "its quarantine", |b| b["quarantine"]["code"] == "gpu.xid").await;
    quay.all_free().await;

    // Nothing is placed there, and whoever waits reads why; a daemon that starts anew does not forget it.
    let next = quay.script("echo after").await;
    let waits = quay.until(&next, |j| j["reasons"].to_string().contains("in quarantine")).await;
    assert_eq!(waits["state"], "queued", "{waits}");
    quay.worker.as_mut().unwrap().kill();
    quay.start_worker(None).unwrap();
    its_board_when(&quay, "the new session", |b| b["present"] == true && b["quarantine"].is_object()).await;

    let check = format!("/operator/gpus/{gpu}/check");
    faults(&quay, &json!({"remapped": {gpu.as_str(): {"pending": true}}}));
    quay.t.post(&quay.operator, &check, Value::Null).await.expect(200);
    let failed = its_board_when(&quay, "a check that fails", |b| b["task"]["good"] == false).await;
    assert!(failed["task"]["words"].as_str().unwrap().contains("reset"), "{failed}");
    assert!(failed["quarantine"].is_object(), "{failed}");
    faults(&quay, &json!({"reset": {gpu.as_str(): 1}}));
    quay.t.post(&quay.operator, &check, Value::Null).await.expect(200);
    its_board_when(&quay, "a check that is passed", |b| b["task"]["good"] == true).await;
    assert_eq!(quay.ended(&next).await["state"], "succeeded");
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waited_for_a_reset_finds_the_board_in_its_new_mode() {
    let mut quay = crate::quay::portal().await;
    let token = quay.join_token(json!({})).await;
    quay.start_worker_with("1xA30", Some(&token)).unwrap();
    quay.t.stock(&quay.operator, &quay.org, 1_000_000_000).await;
    let gpu = its_board_when(&quay, "its mode", |b| b["facts"]["mig"] == true).await["uuid"].clone();
    let gpu = gpu.as_str().unwrap();
    let price = json!({"offering": "a30-24gb", "per_hour_micros": 3_600_000});
    quay.t.post(&quay.operator, "/operator/prices", price).await.expect(201);
    quay.t
        .post(&quay.operator, &format!("/operator/gpus/{gpu}/mode"), json!({"mig": false}))
        .await
        .expect(200);
    let waits = its_board_when(&quay, "its reset is asked for", |b| b["task"]["good"] == false).await;
    assert!(waits["quarantine"]["reason"].as_str().unwrap().contains("when the board is reset"), "{waits}");
    // A whole board of that kind is to be had only in the other mode.
    let job = quay.submit(json!({"script": "echo whole", "offering": "a30-24gb"})).await;
    quay.until(&job, |j| j["reasons"].to_string().contains("in quarantine")).await;
    faults(&quay, &json!({"reset": {gpu: 1}}));
    quay.t.post(&quay.operator, &format!("/operator/gpus/{gpu}/check"), Value::Null).await.expect(200);
    let done = quay.ended(&job).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    let board = its_board(&quay).await;
    assert_eq!((&board["mig_enabled"], &board["quarantine"]), (&json!(false), &Value::Null), "{board}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_that_hangs_does_not_hold_up_the_daemon() {
    let quay = Quay::open().await;
    let board = its_board_when(&quay, "its facts", |b| b["facts"]["pci_bus_id"].is_string()).await;
    let gpu = board["uuid"].as_str().unwrap();
    faults(&quay, &json!({"hang_ms": {gpu: 6_500}}));
    let silent = its_board_when(&quay, "its silence", |b| b["silent"].is_string()).await;
    assert_eq!(silent["silent"], "NVML does not answer for it.");
    let nodes = quay.t.get(&quay.operator, "/operator/nodes").await.expect(200);
    assert_eq!(nodes["items"][0]["state"], "ready", "the daemon lives: {nodes}");
    let job = quay.script("echo later").await;
    quay.until(&job, |j| j["reasons"].to_string().contains("in quarantine")).await;
    faults(&quay, &json!({}));
    its_board_when(&quay, "its answer", |b| b["silent"].is_null()).await;
    assert_eq!(quay.ended(&job).await["state"], "succeeded");
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_starts_beside_a_board_that_hangs_serves_without_it() {
    let mut quay = Quay::open().await;
    let board = its_board_when(&quay, "its facts", |b| b["facts"]["pci_bus_id"].is_string()).await;
    let gpu = board["uuid"].as_str().unwrap();
    quay.worker.as_mut().unwrap().kill();
    faults(&quay, &json!({"hang_ms": {gpu: 8_000}}));
    quay.start_worker(None).unwrap();
    its_board_when(&quay, "a session without it", |b| b["present"] == false).await;
    let nodes = quay.t.get(&quay.operator, "/operator/nodes").await.expect(200);
    assert_eq!(nodes["items"][0]["state"], "ready", "{nodes}");
    // It is told of when it answers, without anybody's doing.
    faults(&quay, &json!({}));
    its_board_when(&quay, "its answer", |b| b["present"] == true && b["silent"].is_null()).await;
    let job = quay.script("echo later").await;
    assert_eq!(quay.ended(&job).await["state"], "succeeded");
    quay.all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_xid_that_no_daemon_heard_ends_what_ran_on_its_board() {
    let mut quay = crate::quay::portal().await;
    let log = quay.data.join("simulated-boards/kmsg");
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    std::fs::write(&log, "6,1,1,-;the host is up\n").unwrap();
    let token = quay.join_token(json!({})).await;
    quay.start_worker(Some(&token)).unwrap();
    quay.t.stock(&quay.operator, &quay.org, 1_000_000_000).await;
    let job = quay.script("exec sleep 300").await;
    quay.until(&job, |j| j["evidence"][0]["device_ms"].as_i64() > Some(0)).await;
    let board = its_board_when(&quay, "its facts", |b| b["facts"]["pci_bus_id"].is_string()).await;
    let kept = quay.data.join("boards.json");
    let noted = async || std::fs::read_to_string(&kept).ok()?.contains("boot_id").then_some(());
    eventually("how far the log is known", noted).await;

    quay.worker.as_mut().unwrap().kill();
    // As the kernel writes it, without what NVML puts before and behind it.
    let at = board["facts"]["pci_bus_id"].as_str().unwrap();
    let at = at.strip_prefix("0000").unwrap().strip_suffix(".0").unwrap();
    let xid = format!("6,1,1,-;the host is up\n4,7,9,-;NVRM: Xid (PCI:{at}): 48, pid=1, DBE\n");
    std::fs::write(&log, xid).unwrap();
    quay.start_worker(None).unwrap();
    let done = quay.ended(&job).await;
    assert_eq!(done["failure"]["code"], "device.failed", "{done}");
    assert!(done["failure"]["detail"].as_str().unwrap().contains("XID 48"), "{done}");
    its_board_when(&quay, "its quarantine", |b| b["quarantine"]["code"] == "gpu.xid").await;
    quay.all_free().await;

    // A check ends it, and the next daemon does not hear it again.
    let gpu = board["uuid"].as_str().unwrap();
    quay.t.post(&quay.operator, &format!("/operator/gpus/{gpu}/check"), Value::Null).await.expect(200);
    its_board_when(&quay, "a check that is passed", |b| b["task"]["good"] == true).await;
    quay.worker.as_mut().unwrap().kill();
    quay.start_worker(None).unwrap();
    let next = quay.script("sleep 7; echo after").await;
    assert_eq!(quay.ended(&next).await["state"], "succeeded", "it outlives the next look at the boards");
    assert_eq!(its_board(&quay).await["quarantine"], Value::Null);
    quay.all_free().await;
}
