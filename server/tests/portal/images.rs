//! Jobs in images: where they may go, and under a real worker what becomes of them. The image is made here of
//! this machine's own programs; nothing is fetched.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::left_out::left_out;
use crate::harbour::{Harbour, node};
use crate::quay::{Quay, worker_program};
use serde_json::{Value, json};

const IMAGE: &str = "localhost/berth-test:1";

/// A system of a few programs of this machine with their libraries, as a tar file.
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
async fn an_image_is_checked_kept_and_keeps_a_job_from_nodes_without_podman() {
    for (engine, db, _place) in crate::common::engines("images").await {
        let harbour = Harbour::on(db).await;
        let path = format!("/orgs/{}/jobs", harbour.org);
        let job = |image: &str| json!({"name": "x", "offering": "h100-80gb", "command": ["true"], "image": image, "max_duration_s": 60});
        for bad in ["", "dir:/etc", "docker://alpine", "-v", "a b", "Alpine"] {
            let problem = harbour.t.post(&harbour.ada, &path, job(bad)).await.problem(422, "request.invalid");
            assert_eq!(problem["errors"][0]["pointer"], "/image", "{engine} {bad:?}");
        }
        let plan = harbour.t.post(&harbour.ada, &format!("{path}?dry_run=true"), job("alpine")).await;
        let plan = plan.expect(200).to_string();
        assert!(plan.contains("but run no images"), "{engine}: {plan}");
        let made = harbour.t.post(&harbour.ada, &path, job("alpine:3.20")).await.expect(201);
        assert_eq!(made["image"], "alpine:3.20", "{engine}");
        let one = format!("{path}/{}", made["id"].as_str().unwrap());
        let why = harbour.t.get(&harbour.ada, &format!("{one}/explanation")).await.expect(200);
        assert_eq!(why["blockers"][0]["code"], "capacity.images", "{engine}: {why}");
        let shown = harbour.t.get(&harbour.ada, &one).await.expect(200);
        assert_eq!((&shown["state"], &shown["image"]), (&json!("queued"), &json!("alpine:3.20")), "{engine}");
        let nodes = harbour.t.get(&harbour.operator, "/operator/nodes").await.expect(200);
        assert_eq!(nodes["items"].as_array().unwrap().len(), 2, "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_is_told_who_asks() {
    for (engine, db, _place) in crate::common::engines("image_registry").await {
        let harbour = Harbour::on(db).await;
        for n in 1..=2 {
            harbour.report_with(n, true).await;
        }
        for (name, value) in [("pull", "ada:pw-Zq7w9x2m\n"), ("other", "no-colon-in-here")] {
            let path = format!("/orgs/{}/secrets/{name}", harbour.org);
            harbour.t.call(&harbour.ada, "PUT", &path, json!({"value": value})).await.expect(201);
        }
        let path = format!("/orgs/{}/jobs", harbour.org);
        let image = json!("r.example:5000/x:1");
        let job = |image: &Value, secret: &str| json!({"name": "x", "offering": "h100-80gb", "command": ["true"], "image": image, "registry": {"secret": secret}, "max_duration_s": 60});
        for (body, pointer) in [
            (job(&image, "none"), "/registry/secret"),
            (job(&image, "../x"), "/registry/secret"),
            (job(&Value::Null, "pull"), "/registry"),
            (job(&json!("localhost/x:1"), "pull"), "/registry"),
        ] {
            for path in [path.clone(), format!("{path}?dry_run=true")] {
                let refused = harbour.t.post(&harbour.ada, &path, body.clone()).await;
                let problem = refused.problem(422, "request.invalid");
                assert_eq!(problem["errors"][0]["pointer"], pointer, "{engine} {body}");
            }
        }
        let made = harbour.t.post(&harbour.ada, &path, job(&image, "pull")).await.expect(201);
        assert!(!made.to_string().contains("Zq7w9x2m"), "{engine}");
        harbour.t.post(&harbour.ada, &path, job(&image, "other")).await.expect(201);
        for _ in 0..2 {
            harbour.t.portal.scheduler.pass().await.unwrap();
        }
        let mut sent = Vec::new();
        for n in 1..=2 {
            sent.extend(harbour.t.portal.attempts.desired(node(n)).await.unwrap().attempts);
        }
        assert_eq!(sent.len(), 2, "{engine}");
        for assignment in sent {
            let (id, spec) = (assignment.attempt.unwrap().job, assignment.spec.unwrap());
            assert_eq!((spec.image.as_str(), spec.secrets.len()), ("r.example:5000/x:1", 0), "{engine}");
            assert!(!format!("{spec:?}").contains("Zq7w9x2m"), "{engine}: it is not written down");
            if made["id"] == json!(id) {
                let auth = spec.registry_auth.unwrap();
                let told = (auth.registry.as_str(), auth.username.as_str(), auth.password.as_str());
                assert_eq!(told, ("r.example:5000", "ada", "pw-Zq7w9x2m"), "{engine}");
                assert!(spec.unusable.is_none(), "{engine}");
            } else {
                assert_eq!(spec.unusable.unwrap().code, "secret.no_credentials", "{engine}");
                assert!(spec.registry_auth.is_none(), "{engine}");
            }
        }
    }
}

/// What podman keeps outside of the worker's data is removed with this.
struct Leftovers(PathBuf);

impl Drop for Leftovers {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn podman(data: &Path, words: &[&str]) -> String {
    let mut command = Command::new(worker_program());
    let out = command.arg("podman").arg("--data").arg(data).arg("--").args(words).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// A portal with a worker that has the image; `None`, and said, where no images are run.
async fn with_image() -> Option<(Quay, Leftovers)> {
    let quay = Quay::open().await;
    let words = crate::quay::eventually("the worker has said what it runs", async || {
        let nodes = quay.t.get(&quay.operator, "/operator/nodes").await.expect(200);
        nodes["items"][0]["isolation"]["images"].as_str().map(str::to_owned)
    })
    .await;
    if !words.starts_with("podman ") {
        left_out(format!("images are {words}"));
        return None;
    }
    let made = Command::new("/bin/sh").args(["-c", SYSTEM]).current_dir(quay.t.data.path()).status().unwrap();
    assert!(made.success(), "a system of this machine's programs");
    let run = PathBuf::from(podman(&quay.data, &["info", "--format", "{{.Store.RunRoot}}"]));
    let leftovers = Leftovers(run.parent().unwrap().to_owned());
    let tar = quay.t.data.path().join("system.tar").display().to_string();
    podman(&quay.data, &["import", "--quiet", &tar, IMAGE]);
    Some((quay, leftovers))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_in_an_image_is_a_job_like_any_other() {
    let Some((mut quay, _leftovers)) = with_image().await else { return };
    let script =
        "ls /; id -u; cat data.txt; echo $BERTH_JOB_ID $CUDA_VISIBLE_DEVICES; echo kept > out && exit 0";
    let job = quay.submit(json!({"script": script, "image": IMAGE, "files": {"data.txt": "given\n"}})).await;
    let done = quay.ended(&job).await;
    let log = String::from_utf8(quay.whole_log(&job).await).unwrap();
    assert_eq!(done["state"], "succeeded", "{done}: {log}");
    assert!(log.contains("given") && log.contains(&job) && log.contains("MIG-"), "{log}");
    assert!(!log.lines().any(|l| l == "srv" || l == "0"), "not the host's system, not root: {log}");
    let digest = done["image_digests"][0].as_str().unwrap();
    assert!(digest.starts_with("sha256:"), "{done}");
    quay.settled(&done).await;
    quay.all_free().await;

    // A daemon that starts again goes on with what runs.
    let job = quay.submit(json!({"script": "echo up; sleep 4; echo over; exit 4", "image": IMAGE})).await;
    quay.until(&job, |j| j["state"] == "running").await;
    quay.worker.as_mut().unwrap().kill();
    quay.start_worker(None).unwrap();
    let done = quay.ended(&job).await;
    assert_eq!((&done["exit_code"], &done["attempt"]), (&json!(4), &json!(1)), "{done}");
    assert!(String::from_utf8(quay.whole_log(&job).await).unwrap().ends_with("over\n"));
    quay.settled(&done).await;

    let polite = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let job = quay.submit(json!({"script": polite, "image": IMAGE})).await;
    crate::quay::eventually("it runs", async || quay.log(&job).await.starts_with(b"up").then_some(())).await;
    let path = format!("/orgs/{}/jobs/{job}/cancel", quay.org);
    quay.t.post(&quay.ada, &path, Value::Null).await.expect(202);
    assert_eq!(quay.ended(&job).await["state"], "cancelled");
    assert!(quay.whole_log(&job).await.ends_with(b"bye\n"));
    quay.all_free().await;
    assert_eq!(podman(&quay.data, &["ps", "--all", "--quiet"]), "", "no container is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_had_ends_its_job_at_no_charge() {
    let Some((quay, _leftovers)) = with_image().await else { return };
    // Nobody listens there.
    for image in ["127.0.0.1:9/none/such:1", "localhost/none:1"] {
        let job = quay.submit(json!({"script": "true", "image": image})).await;
        let done = quay.ended(&job).await;
        assert_eq!(
            (&done["state"], &done["failure"]["code"], &done["cost_micros"]),
            (&json!("failed"), &json!("image.pull_failed"), &json!(0)),
            "{done}"
        );
        assert!(done["failure"]["detail"].as_str().unwrap().contains(image), "{done}");
        quay.settled(&done).await;
    }
    quay.all_free().await;
}
