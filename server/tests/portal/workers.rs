//! Tests of a portal in process with real workers: the daemon's program, its shims, real processes and
//! simulated boards.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::left_out::left_out;
use crate::worker_portal::{EventStream, WorkerPortal, without_worker};
use berth_shim::ShimRecords;
use berth_system::processes::descendants;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn event_streams_deliver_changes_costs_and_logs_and_can_be_resumed() {
    let setup = WorkerPortal::open_at_system_time().await;
    let mut org = EventStream::open(&setup, "/events", None).await;
    // A browser ignores an event without data.
    assert_eq!(org.next_named("beat").await.data, "ok");
    // The portal keeps no readings of more than a minute after its own time.
    setup.t.clock.catch_up();
    let job = setup
        .submit_script("for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.4; done; printf 'sh\u{f6}n'")
        .await;
    let mut events = EventStream::open(&setup, &format!("/jobs/{job}/events?after=0"), None).await;
    let mut states = Vec::new();
    let mut costs = Vec::new();
    while states.last().is_none_or(|s| s != "succeeded") {
        let event = events.next().await.unwrap();
        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
        match event.name.as_str() {
            "change" => {
                assert_eq!(event.id, data["event"]["seq"].to_string());
                states.push(data["event"]["state"].as_str().unwrap().to_owned());
            }
            "cost" => costs.push(data["metered_ms"].as_i64().unwrap()),
            other => assert_eq!(other, "beat"),
        }
    }
    assert_eq!(states, ["queued", "assigned", "starting", "running", "succeeded"]);
    assert!(costs.len() >= 2 && costs.is_sorted(), "{costs:?}");
    // The cost at the end comes after the change, and has no hold any more.
    let last: Value = serde_json::from_str(&events.next_named("cost").await.data).unwrap();
    assert_eq!(last["held_micros"], 0, "{last}");
    // The client resumes after the third change and gets the rest without repetition.
    let mut again = EventStream::open(&setup, &format!("/jobs/{job}/events?after=0"), Some("3")).await;
    assert_eq!([again.next_named("change").await.id, again.next_named("change").await.id], ["4", "5"]);
    let change: Value = serde_json::from_str(&org.next_named("change").await.data).unwrap();
    assert_eq!(change["job"]["id"], job);

    let whole = setup.whole_log(&job).await;
    assert!(whole.ends_with("sh\u{f6}n".as_bytes()));
    for (from, last) in [(0, None), (7, None), (0, Some("9"))] {
        let mut log = EventStream::open(&setup, &format!("/jobs/{job}/logs?from={from}"), last).await;
        let start: usize = last.map_or(from, |l| l.parse().unwrap());
        let mut got = Vec::new();
        loop {
            let event = log.next().await.unwrap();
            match event.name.as_str() {
                "log" => {
                    let chunk: Value = serde_json::from_str(&event.data).unwrap();
                    assert_eq!(chunk["from"], start + got.len());
                    got.extend_from_slice(chunk["text"].as_str().unwrap().as_bytes());
                    assert_eq!(event.id, (start + got.len()).to_string());
                }
                "end" => {
                    assert_eq!(event.data, "complete");
                    break;
                }
                other => assert_eq!(other, "beat"),
            }
        }
        assert_eq!(got, whole[start..]);
        assert!(log.next().await.is_none(), "a complete log's stream ends");
    }
    let metrics =
        setup.t.get(&setup.ada, &format!("/orgs/{}/jobs/{job}/metrics", setup.org)).await.expect(200);
    let series = &metrics["series"][0];
    assert!(series["at_s"].as_array().unwrap().len() >= 2, "{metrics}");
    let utilization = series["utilization_percent"].as_array().unwrap();
    assert!(utilization.iter().any(Value::is_number), "a slice of this board reports its use: {metrics}");
    assert_eq!(series["memory_total_mib"], 9_984.0);
    assert!(series["power_watts"][0].as_f64().unwrap() >= 70.0);
}

/// Asserts that the meter is at most the life of the process, and at most a second less.
fn assert_evidence_proves_meter(done: &Value) {
    let seen = |field: &str| done["evidence"][0][field].as_i64().unwrap();
    let (process, metered) = (seen("process_ms"), done["metered_ms"].as_i64().unwrap());
    assert!((process - 1_000..=process).contains(&metered), "{done}");
    assert_eq!((seen("lost_ms"), &done["credited_micros"]), (0, &json!(0)), "{done}");
    assert!(seen("device_ms") <= process, "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_on_its_slice_and_is_charged_for_its_metered_time() {
    let setup = WorkerPortal::open().await;
    let job = setup
        .submit(json!({
            "command": ["python3", "main.py", "a b"],
            "env": {"COLOUR": "green", "CUDA_VISIBLE_DEVICES": "all"},
            "files": {"main.py": "import os, sys, util\nprint(sys.argv[1], os.environ['COLOUR'], util.X)\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n", "util.py": "X = 7\n"},
        }))
        .await;
    let done = setup.until_ended(&job).await;
    assert_eq!((&done["state"], &done["exit_code"]), (&json!("succeeded"), &json!(0)), "{done}");
    assert_eq!(done["devices"][0]["placement"], json!({"start": 6, "size": 1}));
    let log = String::from_utf8(setup.whole_log(&job).await).unwrap();
    let uuid = done["devices"][0]["mig_uuid"].as_str().unwrap();
    assert_eq!(log, format!("a b green 7\n{uuid}\n"));
    assert!(done["metered_ms"].as_i64().unwrap() > 0);
    assert_evidence_proves_meter(&done);
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
    let events = setup.t.get(&setup.ada, &format!("/orgs/{}/jobs/{job}/events", setup.org)).await.expect(200);
    let states: Vec<&str> =
        events["items"].as_array().unwrap().iter().map(|e| e["state"].as_str().unwrap()).collect();
    assert_eq!(states.first(), Some(&"queued"));
    assert_eq!(states.last(), Some(&"succeeded"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_end_is_reported_and_leaves_nothing_behind() {
    let setup = WorkerPortal::open().await;
    for (script, state, code, failure) in [
        ("exit 3", "failed", 3, "process.exit"),
        ("exec no-such-program", "failed", 127, "command.not_runnable"),
        ("kill -9 $$", "failed", 137, "process.signalled"),
        ("printf 'bye\\377\\000'", "succeeded", 0, ""),
    ] {
        let job = setup.submit_script(script).await;
        let done = setup.until_ended(&job).await;
        assert_eq!((&done["state"], &done["exit_code"]), (&json!(state), &json!(code)), "{script}: {done}");
        assert_eq!(done["failure"]["code"].as_str().unwrap_or(""), failure, "{script}");
        setup.assert_settled(&done).await;
    }
    let job = setup.submit(json!({"command": ["/no/such/program"]})).await;
    assert_eq!(setup.until_ended(&job).await["exit_code"], 127);
    let job = setup.submit(json!({"script": "sleep 60", "max_duration_s": 1})).await;
    let done = setup.until_ended(&job).await;
    assert_eq!(done["state"], "timed_out", "{done}");
    assert_eq!(done["metered_ms"], 1_000, "the meter stops at the limit");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ignores_sigterm_is_killed_with_all_its_children() {
    let setup = WorkerPortal::open().await;
    // The script ignores SIGTERM and has children in their own sessions.
    let mark = format!("berth-test-{}", std::process::id());
    let script = format!(
        "trap '' TERM\nfor i in $(seq 500); do setsid sh -c 'trap \"\" TERM; exec sleep 300' {mark} & done\necho up\nwait; sleep 300"
    );
    let job = setup.submit_script(&script).await;
    setup.until(&job, |j| j["state"] == "running").await;
    let deadline = Instant::now() + Duration::from_secs(30);
    while !setup.log(&job).await.starts_with(b"up") {
        assert!(Instant::now() < deadline, "it never came up");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let path = format!("/orgs/{}/jobs/{job}/cancel", setup.org);
    assert_eq!(setup.t.post(&setup.ada, &path, Value::Null).await.expect(202)["state"], "stopping");
    setup.t.post(&setup.ada, &path, Value::Null).await.expect(202);
    let done = setup.until_ended(&job).await;
    assert_eq!(done["state"], "cancelled", "{done}");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
    let uuid = done["devices"][0]["mig_uuid"].as_str().unwrap();
    let left = std::fs::read_dir("/proc").unwrap().flatten().filter(|p| {
        let environ = std::fs::read(p.path().join("environ")).unwrap_or_default();
        environ.windows(uuid.len()).any(|w| w == uuid.as_bytes())
    });
    assert_eq!(left.count(), 0, "no process of the job is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_a_hundred_megabytes_arrives_complete() {
    let setup = WorkerPortal::open().await;
    let job =
        setup.submit_script("yes 'the quick brown fox \u{1b}[31m<b>jumps</b>' | head -c 104857600").await;
    assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
    let log = setup.whole_log(&job).await;
    let line = "the quick brown fox \u{1b}[31m<b>jumps</b>\n".as_bytes();
    assert_eq!(log.len(), 104_857_600);
    assert!(log.chunks(line.len()).all(|piece| line.starts_with(piece)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_and_restarted_worker_loses_nothing() {
    let mut setup = WorkerPortal::open().await;
    let job = setup
        .submit_script(
            "echo $$; i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); sleep 0.05; done; echo $$",
        )
        .await;
    setup.until(&job, |j| j["state"] == "running").await;
    // The portal bounds the meter by its own clock, which is far behind the worker's on a busy machine.
    setup.t.clock.advance_s(60);
    setup.worker.as_mut().unwrap().kill();
    setup.until(&job, |j| !j["reasons"].as_array().unwrap().is_empty()).await;
    setup.start_worker(None).unwrap();
    let done = setup.until_ended(&job).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    assert_eq!(done["attempt"], 1, "it was not run again");
    let log = String::from_utf8(setup.whole_log(&job).await).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let expected: Vec<String> = (0..60).map(|i| format!("line {i}")).collect();
    assert_eq!(lines[1..61], expected, "no line is lost or repeated");
    assert_eq!(lines[0], lines[61], "the same process from begin to end");
    assert!(done["metered_ms"].as_i64().unwrap() >= 3_000);
    assert_evidence_proves_meter(&done);
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_job_whose_shim_dies_ends_with_its_cause() {
    let mut setup = WorkerPortal::open().await;
    let job = setup.submit_script("sleep 300").await;
    setup.until(&job, |j| j["state"] == "running").await;
    setup.worker.as_mut().unwrap().kill();
    setup.start_worker(None).unwrap();
    setup.until(&job, |j| j["reasons"].as_array().unwrap().is_empty()).await;
    let attempt = std::fs::read_dir(setup.data.join("attempts")).unwrap().next().unwrap().unwrap();
    let pid = ShimRecords::read(&attempt.path()).shim.unwrap().to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    let done = setup.until_ended(&job).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("failed"), &json!(1)), "{done}");
    assert_eq!(done["failure"]["code"], "attempt.unknown_outcome", "{done}");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

/// Ends the processes of an attempt like the init process of a host at shutdown.
fn shut_down(attempt: &Path) {
    let shim = ShimRecords::read(attempt).shim.unwrap();
    let below = descendants(shim).into_iter().map(|(pid, _)| pid);
    let pids: Vec<String> = std::iter::once(shim).chain(below).map(|pid| pid.to_string()).collect();
    for signal in ["-STOP", "-TERM", "-CONT"] {
        // Some may have ended already.
        Command::new("kill").arg(signal).args(&pids).output().unwrap();
    }
    berth_shim::wait_until_released(attempt).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_shutdown_is_reported_apart_from_the_jobs_own_end() {
    let mut setup = WorkerPortal::open().await;
    let again = json!({"max": 1, "on": ["node_lost"]});
    // The command gets the signal too and may end before its shim reads the shutdown.
    let polite = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let deaf = "trap '' TERM; while :; do sleep 0.05; done";
    let mut jobs = Vec::new();
    for script in ["sleep 300", polite, deaf] {
        jobs.push(setup.submit_script(script).await);
    }
    let retried = format!("test $BERTH_ATTEMPT -eq 2 && exit 0; {polite}");
    jobs.push(setup.submit(json!({"script": retried, "retry": again})).await);
    for job in &jobs {
        setup.until(job, |j| j["state"] == "running" && j["reasons"].as_array().unwrap().is_empty()).await;
    }
    setup.worker.as_mut().unwrap().kill();
    for attempt in std::fs::read_dir(setup.data.join("attempts")).unwrap() {
        shut_down(&attempt.unwrap().path());
    }
    setup.start_worker(None).unwrap();
    for job in &jobs[..3] {
        let done = setup.until_ended(job).await;
        assert_eq!((&done["state"], &done["attempt"]), (&json!("failed"), &json!(1)), "{done}");
        assert_eq!(done["failure"]["code"], "node.shutdown", "{done}");
        setup.assert_settled(&done).await;
    }
    let done = setup.until_ended(&jobs[3]).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("succeeded"), &json!(2)), "{done}");
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_jobs_at_once_all_start() {
    let setup = WorkerPortal::open().await;
    let half = "x".repeat(4_194_300);
    let script = "wc -c < a.txt; wc -c < b.txt";
    let mut jobs = Vec::new();
    for _ in 0..7 {
        jobs.push(setup.submit(json!({"script": script, "files": {"a.txt": half, "b.txt": half}})).await);
    }
    for job in &jobs {
        let done = setup.until_ended(job).await;
        assert_eq!(done["state"], "succeeded", "{}", done["failure"]);
        assert_eq!(setup.whole_log(job).await, b"4194300\n4194300\n");
    }
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn join_tokens_work_once_and_expire() {
    let mut setup = without_worker().await;
    let token = setup.join_token(json!({"valid_s": 60})).await;
    let refused = |error: Result<(), String>| {
        let error = error.unwrap_err();
        assert!(error.contains("is used, expired or unknown"), "{error}");
        assert!(!error.contains(&token), "a token is never shown");
    };
    let (_, fingerprint) = token.split_once('.').unwrap();
    refused(setup.start_worker(Some(&format!("guess.{fingerprint}"))));
    assert!(setup.start_worker(None).unwrap_err().contains("--join-token"));
    setup.start_worker(Some(&token)).unwrap();
    setup.worker.as_mut().unwrap().kill();
    // A second host uses the same token.
    setup.data = setup.t.data.path().join("second");
    refused(setup.start_worker(Some(&token)));
    let late = setup.join_token(json!({"valid_s": 60})).await;
    setup.t.clock.advance_s(61);
    let error = setup.start_worker(Some(&late)).unwrap_err();
    assert!(error.contains("is used, expired or unknown"), "{error}");
    for bad in [json!({"valid_s": 0}), json!({"valid_s": 604_801})] {
        setup.t.post(&setup.operator, "/operator/join-tokens", bad).await.problem(422, "request.invalid");
    }
    setup.t.post(&setup.ada, "/operator/join-tokens", json!({})).await.problem(404, "object.not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extended_time_limit_reaches_the_running_job() {
    let setup = WorkerPortal::open().await;
    let job = setup.submit(json!({"script": "sleep 3", "max_duration_s": 2})).await;
    setup.until(&job, |j| j["state"] == "running").await;
    let path = format!("/orgs/{}/jobs/{job}/extend", setup.org);
    setup.t.post(&setup.ada, &path, json!({"max_duration_s": 1})).await.problem(422, "request.invalid");
    let longer = setup.t.post(&setup.ada, &path, json!({"max_duration_s": 20})).await.expect(202);
    assert_eq!(longer["max_duration_s"], 20);
    let done = setup.until_ended(&job).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    setup.assert_settled(&done).await;
    setup.t.post(&setup.ada, &path, json!({"max_duration_s": 30})).await.problem(409, "job.ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn network_and_memory_limits_of_a_job_are_enforced() {
    let setup = WorkerPortal::open().await;
    // A worker that has run a job has reported its isolation.
    let first = setup.submit_script("true").await;
    setup.until_ended(&first).await;
    let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    let isolation = &nodes["items"][0]["isolation"];
    for name in ["sandbox", "seccomp", "users", "memory", "cpu", "pids", "devices", "network", "disk"] {
        assert!(isolation[name].is_string(), "{name}: {isolation}");
    }
    let gang =
        json!({"name": "x", "offering": "h100-80gb", "nodes": 2, "network": "none", "command": ["true"]});
    let path = format!("/orgs/{}/jobs", setup.org);
    setup.t.post(&setup.ada, &path, gang).await.problem(422, "request.invalid");
    if isolation["network"] == "host, or none" {
        let job = setup.submit(json!({"script": "wc -l < /proc/net/route", "network": "none"})).await;
        assert_eq!(setup.until_ended(&job).await["network"], "none");
        assert_eq!(setup.whole_log(&job).await, b"1\n", "only the heading of the table of routes");
    } else {
        left_out("no network namespace can be made on this machine");
    }
    if isolation["memory"] == "not limited" {
        left_out("no cgroup limits memory on this machine");
        return;
    }
    let script = "exec python3 -c 'x = bytearray(1 << 29)'";
    let job = setup.submit(json!({"script": script, "memory_mib": 64})).await;
    let done = setup.until_ended(&job).await;
    assert_eq!(
        (&done["state"], &done["failure"]["code"]),
        (&json!("failed"), &json!("memory.exceeded")),
        "{done}"
    );
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandboxed_job_sees_no_foreign_files_or_processes() {
    let setup = WorkerPortal::open().await;
    // The check uses the system itself, not the worker under test.
    let namespaces = ["--unshare-pid", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"];
    if !Command::new("bwrap").args(namespaces).status().is_ok_and(|s| s.success()) {
        left_out("no sandbox works on this machine");
        return;
    }
    let neighbour = setup.submit_script("echo secret > mine; sleep 300").await;
    setup.until(&neighbour, |j| j["state"] == "running").await;
    let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
    assert_eq!(nodes["items"][0]["unisolated"], false, "where a sandbox works it is used");
    let data = setup.t.data.path().display().to_string();
    std::fs::write(setup.t.data.path().join("berth.db"), "everything").unwrap();
    let script = format!(
        "echo uid $(id -u); grep -h NoNewPrivs /proc/self/status; echo eff $(grep CapEff /proc/self/status)\n\
         cat /etc/shadow > /dev/null && echo READ-SHADOW\n\
         ls {data}/worker/attempts && echo SAW-ATTEMPTS\n\
         cat {data}/berth.db > /dev/null && echo READ-DATABASE\n\
         touch /usr/x && echo WROTE-SYSTEM\n\
         for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; done | grep BERTH_JOB_ID | sort -u\n\
         ls /tmp; touch /tmp/ok ~/ok && echo wrote-own; echo I am $USER, $LOGNAME, $(id -un)"
    );
    let job = setup.submit_script(&script).await;
    setup.until_ended(&job).await;
    let log = String::from_utf8(setup.whole_log(&job).await).unwrap();
    assert!(!log.contains("uid 0\n") && log.contains("NoNewPrivs:\t1"), "{log}");
    assert!(log.contains("eff CapEff: 0000000000000000"), "{log}");
    assert!(log.contains("I am job, job, job\n"), "{log}");
    for bad in ["READ-", "SAW-", "WROTE-", neighbour.as_str(), "secret"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    assert!(log.contains(&format!("BERTH_JOB_ID={job}")) && log.contains("wrote-own"), "{log}");
    setup
        .t
        .post(&setup.ada, &format!("/orgs/{}/jobs/{neighbour}/cancel", setup.org), Value::Null)
        .await
        .expect(202);
    setup.until_ended(&neighbour).await;
    setup.until_all_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jump_of_the_portals_clock_changes_no_meter_and_ends_no_job() {
    let setup = WorkerPortal::open().await;
    let job = setup.submit(json!({"script": "exec sleep 300", "max_duration_s": 600})).await;
    let metered = |j: &Value| j["metered_ms"].as_i64().unwrap();
    let mut last = setup.until(&job, |j| metered(j) > 200).await;
    // The clock goes back an hour and then far beyond the time limit, which must not affect the meter.
    for seconds in [-3_600, 11 * 3_600, -1_800] {
        setup.t.clock.advance_s(seconds);
        setup.t.portal.reservations.tick_reservations().await.unwrap();
        let before = metered(&last);
        last = setup.until(&job, |j| metered(j) != before).await;
        assert_eq!(last["state"], "running", "{seconds}: {last}");
        assert!((before..60_000).contains(&metered(&last)), "{seconds}: {before} {last}");
        let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
        assert_eq!(nodes["items"][0]["state"], "ready", "{seconds}: {nodes}");
    }
    setup
        .t
        .post(&setup.ada, &format!("/orgs/{}/jobs/{job}/cancel", setup.org), Value::Null)
        .await
        .expect(202);
    let done = setup.until_ended(&job).await;
    assert_eq!((&done["state"], &done["attempt"]), (&json!("cancelled"), &json!(1)), "{done}");
    assert!((metered(&last)..60_000).contains(&metered(&done)), "{done}");
    let path = format!("/orgs/{}/jobs/{job}/events?after=0", setup.org);
    let events = setup.t.get(&setup.ada, &path).await.expect(200);
    let order = ["queued", "assigned", "starting", "running", "stopping", "cancelled"];
    let place = |e: &Value| order.iter().position(|state| e["state"] == *state).unwrap();
    let places: Vec<usize> = events["items"].as_array().unwrap().iter().map(place).collect();
    assert!(places.is_sorted(), "no state comes back: {events}");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;
}
