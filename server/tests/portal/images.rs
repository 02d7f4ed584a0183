//! Tests of jobs in images: placement, and runs under a real worker. The image consists of this machine's
//! programs, without a download.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::left_out::left_out;
use crate::idle_portal::{IdlePortal, node};
use crate::worker_portal::{WorkerPortal, worker_program};
use serde_json::{Value, json};

const IMAGE: &str = "localhost/berth-test:1";

/// A root file system with a few programs of this machine and their libraries, as a tar file.
const SYSTEM: &str = r#"set -e
mkdir root && cd root && mkdir -p bin lib64 etc tmp var/tmp proc sys dev run home
chmod 1777 tmp var/tmp
for name in sh cat sleep id ls; do
    program=$(command -v $name); cp -L $program bin/
    for library in $(ldd $program | grep -o '/[^ ]*'); do
        mkdir -p .${library%/*}; test -e .$library || cp -L $library .$library
    done
done
tar cf ../system.tar ."#;

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_validated_and_needs_a_node_with_podman() {
    for (engine, db, _location) in crate::common::engines("images").await {
        let setup = IdlePortal::on(db).await;
        let path = format!("/orgs/{}/jobs", setup.org);
        let job = |image: &str| json!({"name": "x", "offering": "h100-80gb", "command": ["true"], "image": image, "max_duration_s": 60});
        for bad in ["", "dir:/etc", "docker://alpine", "-v", "a b", "Alpine"] {
            let problem = setup.t.post(&setup.ada, &path, job(bad)).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/image", "{engine} {bad:?}");
        }
        let plan = setup.t.post(&setup.ada, &format!("{path}?dry_run=true"), job("alpine")).await;
        let plan = plan.expect(200).to_string();
        assert!(plan.contains("but run no images"), "{engine}: {plan}");
        let made = setup.t.post(&setup.ada, &path, job("alpine:3.20")).await.expect(201);
        assert_eq!(made["image"], "alpine:3.20", "{engine}");
        let one = format!("{path}/{}", made["id"].as_str().unwrap());
        let why = setup.t.get(&setup.ada, &format!("{one}/explanation")).await.expect(200);
        assert_eq!(why["blockers"][0]["code"], "capacity.images", "{engine}: {why}");
        let shown = setup.t.get(&setup.ada, &one).await.expect(200);
        assert_eq!((&shown["state"], &shown["image"]), (&json!("queued"), &json!("alpine:3.20")), "{engine}");
        let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
        assert_eq!(nodes["items"].as_array().unwrap().len(), 2, "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn registry_credentials_are_checked_and_sent_to_the_worker() {
    for (engine, db, _location) in crate::common::engines("image_registry").await {
        let setup = IdlePortal::on(db).await;
        for n in 1..=2 {
            setup.report_with_images(n, true).await;
        }
        for (name, value) in [("pull", "ada:pw-Zq7w9x2m\n"), ("other", "no-colon-in-here")] {
            let path = format!("/orgs/{}/secrets/{name}", setup.org);
            setup.t.call(&setup.ada, "PUT", &path, json!({"value": value})).await.expect(201);
        }
        let path = format!("/orgs/{}/jobs", setup.org);
        let image = json!("r.example:5000/x:1");
        let job = |image: &Value, secret: &str| json!({"name": "x", "offering": "h100-80gb", "command": ["true"], "image": image, "registry": {"secret": secret}, "max_duration_s": 60});
        for (body, pointer) in [
            (job(&image, "none"), "/registry/secret"),
            (job(&image, "../x"), "/registry/secret"),
            (job(&Value::Null, "pull"), "/registry"),
            (job(&json!("localhost/x:1"), "pull"), "/registry"),
        ] {
            for path in [path.clone(), format!("{path}?dry_run=true")] {
                let refused = setup.t.post(&setup.ada, &path, body.clone()).await;
                let problem = refused.problem(422, "request.invalid");
                assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine} {body}");
            }
        }
        let made = setup.t.post(&setup.ada, &path, job(&image, "pull")).await.expect(201);
        assert!(!made.to_string().contains("Zq7w9x2m"), "{engine}");
        setup.t.post(&setup.ada, &path, job(&image, "other")).await.expect(201);
        for _ in 0..2 {
            setup.t.portal.scheduler.pass().await.unwrap();
        }
        let mut sent = Vec::new();
        for n in 1..=2 {
            sent.extend(setup.t.portal.attempts.desired(node(n)).await.unwrap());
        }
        assert_eq!(sent.len(), 2, "{engine}");
        for assignment in sent {
            let (id, start) = (assignment.job.to_string(), assignment.start.unwrap());
            let image = start.image.as_deref();
            assert_eq!((image, start.secrets.len()), (Some("r.example:5000/x:1"), 0), "{engine}");
            assert!(!format!("{start:?}").contains("Zq7w9x2m"), "{engine}: it is not written down");
            if made["id"] == json!(id) {
                let login = start.registry_login.unwrap();
                let credentials = (login.registry.as_str(), login.username.as_str(), login.password.as_str());
                assert_eq!(credentials, ("r.example:5000", "ada", "pw-Zq7w9x2m"), "{engine}");
                assert!(start.unusable.is_none(), "{engine}");
            } else {
                assert_eq!(start.unusable.unwrap().code, "secret.no_credentials", "{engine}");
                assert!(start.registry_login.is_none(), "{engine}");
            }
        }
    }
}

/// The podman data outside the worker's directory, removed after the test.
struct Leftovers(PathBuf);

impl Drop for Leftovers {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn podman(data: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(worker_program());
    let out = command.arg("podman").arg("--data").arg(data).arg("--").args(arguments).output().unwrap();
    assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// Starts a portal with a worker that has the image. `None` with a message if this machine cannot run images.
async fn with_image() -> Option<(WorkerPortal, Leftovers)> {
    let setup = WorkerPortal::open().await;
    let images = crate::worker_portal::eventually("the worker has said what it runs", async || {
        let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
        nodes["items"][0]["isolation"]["images"].as_str().map(str::to_owned)
    })
    .await;
    if !images.starts_with("podman ") {
        left_out(format!("images are {images}"));
        return None;
    }
    let made =
        Command::new("/bin/sh").args(["-c", SYSTEM]).current_dir(setup.t.data.path()).status().unwrap();
    assert!(made.success(), "a system of this machine's programs");
    let run = PathBuf::from(podman(&setup.data, &["info", "--format", "{{.Store.RunRoot}}"]));
    let leftovers = Leftovers(run.parent().unwrap().to_owned());
    let tar = setup.t.data.path().join("system.tar").display().to_string();
    podman(&setup.data, &["import", "--quiet", &tar, IMAGE]);
    Some((setup, leftovers))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_in_an_image_has_files_restarts_and_stops_like_others() {
    let Some((mut setup, _leftovers)) = with_image().await else { return };
    let script =
        "ls /; id -u; cat data.txt; echo $BERTH_JOB_ID $CUDA_VISIBLE_DEVICES; echo kept > out && exit 0";
    let job = setup.submit(json!({"script": script, "image": IMAGE, "files": {"data.txt": "given\n"}})).await;
    let done = setup.until_ended(&job).await;
    let log = String::from_utf8(setup.whole_log(&job).await).unwrap();
    assert_eq!(done["state"], "succeeded", "{done}: {log}");
    assert!(log.contains("given") && log.contains(&job) && log.contains("MIG-"), "{log}");
    assert!(!log.lines().any(|l| l == "srv" || l == "0"), "not the host's system, not root: {log}");
    let digest = done["image_digests"][0].as_str().unwrap();
    assert!(digest.starts_with("sha256:"), "{done}");
    setup.assert_settled(&done).await;
    setup.until_all_free().await;

    // A restarted daemon continues with the running job.
    let job = setup.submit(json!({"script": "echo up; sleep 4; echo over; exit 4", "image": IMAGE})).await;
    setup.until(&job, |j| j["state"] == "running").await;
    setup.worker.as_mut().unwrap().kill();
    setup.start_worker(None).unwrap();
    let done = setup.until_ended(&job).await;
    assert_eq!((&done["exit_code"], &done["attempt"]), (&json!(4), &json!(1)), "{done}");
    assert!(String::from_utf8(setup.whole_log(&job).await).unwrap().ends_with("over\n"));
    setup.assert_settled(&done).await;

    let polite = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let job = setup.submit(json!({"script": polite, "image": IMAGE})).await;
    crate::worker_portal::eventually("it runs", async || {
        setup.log(&job).await.starts_with(b"up").then_some(())
    })
    .await;
    let path = format!("/orgs/{}/jobs/{job}/cancel", setup.org);
    setup.t.post(&setup.ada, &path, Value::Null).await.expect(202);
    assert_eq!(setup.until_ended(&job).await["state"], "cancelled");
    assert!(setup.whole_log(&job).await.ends_with(b"bye\n"));
    setup.until_all_free().await;
    assert_eq!(podman(&setup.data, &["ps", "--all", "--quiet"]), "", "no container is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_image_pull_fails_its_job_without_charge() {
    let Some((setup, _leftovers)) = with_image().await else { return };
    // Nothing listens on this port.
    for image in ["127.0.0.1:9/none/such:1", "localhost/none:1"] {
        let job = setup.submit(json!({"script": "true", "image": image})).await;
        let done = setup.until_ended(&job).await;
        assert_eq!(
            (&done["state"], &done["failure"]["code"], &done["cost_micros"]),
            (&json!("failed"), &json!("image.pull_failed"), &json!(0)),
            "{done}"
        );
        assert!(done["failure"]["detail"].as_str().unwrap().contains(image), "{done}");
        setup.assert_settled(&done).await;
    }
    setup.until_all_free().await;
}
