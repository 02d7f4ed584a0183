//! Tests of the install script of a node, fetched from a portal and run with its own root directory.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::TestPortal;
use axum::body::Body;
use axum::http::Request;
use berth_foundation::Settings;
use berth_store::Db;
use serde_json::json;
use tower::ServiceExt;

async fn fetch(t: &TestPortal, path: &str) -> (u16, String) {
    let request = Request::builder().uri(path).body(Body::empty()).unwrap();
    let answer = t.router.clone().oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn run(script: &Path, root: &Path, token: &str) -> Output {
    run_with(script, root, token, "")
}

fn run_with(script: &Path, root: &Path, token: &str, simulate: &str) -> Output {
    let mut command = Command::new("sh");
    command.arg(script).env("DESTDIR", root);
    command.env("BERTH_JOIN_TOKEN", token).env("BERTH_SIMULATE", simulate).output().unwrap()
}

fn read(root: &Path, file: &str) -> (String, u32) {
    let path = root.join(file);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    (std::fs::read_to_string(path).unwrap(), mode)
}

/// Makes an installed node one with simulated boards, which needs the simulation library of the portal. `settings` is
/// the file of its settings before.
async fn assert_simulated_boards_installed(t: &TestPortal, dir: &Path, settings: &str) {
    let (script, root) = (dir.join("worker.sh"), dir.join("root"));
    let simulated = |text: String| {
        std::fs::write(&script, text).unwrap();
        run_with(&script, &root, "", "2xH100-80GB,1xA30")
    };
    let out = simulated(fetch(t, "/install/worker.sh").await.1);
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("simulated boards: lib"));
    std::fs::write(dir.join("libberth_nvml_sim.so"), "a library").unwrap();
    let out = simulated(fetch(t, "/install/worker.sh").await.1);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let library = "usr/local/lib/berth/libberth_nvml_sim.so";
    assert_eq!(read(&root, library), ("a library".to_owned(), 0o644));
    let settings = format!("{settings}BERTH_SIMULATE=2xH100-80GB,1xA30\n");
    assert_eq!(read(&root, "etc/berth/worker.env").0, settings);
    // The setting stays without the environment variable.
    std::fs::remove_file(root.join(library)).unwrap();
    assert!(run(&script, &root, "").status.success());
    assert_eq!((read(&root, library).1, read(&root, "etc/berth/worker.env").0), (0o644, settings));
    let odd = run_with(&script, &root, "", "1xA30; reboot");
    assert!(!odd.status.success() && !String::from_utf8_lossy(&odd.stderr).contains("reboot"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_install_command_makes_a_host_a_node_and_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("berth-worker");
    std::fs::write(&program, "#!/bin/sh\necho first\n").unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let public = format!("http://{}", listener.local_addr().unwrap());
    let (worker_program, public_url) = (Some(program.clone()), public.clone());
    let db = Db::sqlite(&dir.path().join("berth.db")).await.unwrap();
    let t = TestPortal::with(db, |settings| Settings { worker_program, public_url, ..settings });
    let router = t.router.clone();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let operator = t.operator().await;
    let made = t.post(&operator, "/operator/join-tokens", json!({"approve": true})).await.expect(201);
    let (token, command) = (made["secret"].as_str().unwrap(), made["command"].as_str().unwrap());
    assert!(command.contains(&format!("{public}/install/worker.sh | BERTH_JOIN_TOKEN='{token}' sudo ")));

    let script = dir.path().join("worker.sh");
    let (status, text) = fetch(&t, "/install/worker.sh").await;
    assert_eq!(status, 200);
    assert!(!text.contains('@'), "every place is filled: {text}");
    std::fs::write(&script, &text).unwrap();
    assert!(Command::new("sh").arg("-n").arg(&script).status().unwrap().success());

    let root = dir.path().join("root");
    let none = run(&script, &root, "");
    assert!(!none.status.success() && String::from_utf8_lossy(&none.stderr).contains("join token"));
    let bad = run(&script, &root, "a b; reboot");
    assert!(!bad.status.success() && !String::from_utf8_lossy(&bad.stderr).contains("reboot"));
    assert!(!root.exists(), "a refusal leaves nothing");

    let out = run(&script, &root, token);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(read(&root, "usr/local/bin/berth-worker"), ("#!/bin/sh\necho first\n".to_owned(), 0o755));
    let settings = format!(
        "BERTH_PORTAL=https://127.0.0.1:8081\nBERTH_WORKER_DATA=/var/lib/berth-worker\nBERTH_JOIN_TOKEN={token}\n"
    );
    assert_eq!(read(&root, "etc/berth/worker.env"), (settings.clone(), 0o600));
    let (unit, _) = read(&root, "etc/systemd/system/berth-worker.service");
    for line in
        ["Restart=always", "KillMode=process", "Delegate=yes", "EnvironmentFile=/etc/berth/worker.env"]
    {
        assert!(unit.lines().any(|l| l == line), "{line}: {unit}");
    }
    let data = std::fs::metadata(root.join("var/lib/berth-worker")).unwrap();
    assert_eq!(data.permissions().mode() & 0o777, 0o700);

    // The script runs again, after an upgrade of the portal and with an operator's setting.
    std::fs::write(root.join("etc/berth/worker.env"), format!("BERTH_LABELS=rack=r1\n{settings}")).unwrap();
    std::fs::write(&program, "#!/bin/sh\necho the second\n").unwrap();
    std::fs::write(&script, fetch(&t, "/install/worker.sh").await.1).unwrap();
    std::fs::write(root.join("var/lib/berth-worker/identity.json"), "{}").unwrap();
    let out = run(&script, &root, "");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(read(&root, "usr/local/bin/berth-worker").0.contains("second"));
    assert_eq!(read(&root, "etc/berth/worker.env"), (format!("BERTH_LABELS=rack=r1\n{settings}"), 0o600));

    // The program differs from the hash in the script.
    std::fs::write(&program, "#!/bin/sh\necho another\n").unwrap();
    let out = run(&script, &root, token);
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("is unchanged"));
    assert!(read(&root, "usr/local/bin/berth-worker").0.contains("second"));
    let left = std::fs::read_dir(root.join("usr/local/bin")).unwrap().count();
    assert_eq!(left, 1);

    assert_simulated_boards_installed(&t, dir.path(), &format!("BERTH_LABELS=rack=r1\n{settings}")).await;
}

#[test]
fn an_update_without_a_program_for_networks_stops_before_its_begin() {
    let script = include_str!("../../src/install/worker.sh");
    assert!(script.find("|| networks\n").unwrap() < script.find(" fetch berth-worker ").unwrap());
    // The check alone, on a host with these settings and programs.
    let check =
        script.replace(":/usr/sbin:/sbin", "").replace("\nmain\n", "\nSETTINGS=$1\nPATH=$2\nnetworks\n");
    let dir = tempfile::tempdir().unwrap();
    let (settings, programs) = (dir.path().join("worker.env"), dir.path().join("programs"));
    std::fs::create_dir(&programs).unwrap();
    let grep = ["/usr/bin/grep", "/bin/grep"].map(Path::new).into_iter().find(|path| path.exists()).unwrap();
    std::os::unix::fs::symlink(grep, programs.join("grep")).unwrap();
    let install = |name: &str| {
        std::fs::write(programs.join(name), "").unwrap();
        std::fs::set_permissions(programs.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    };
    let errors = || {
        let mut command = Command::new("/bin/sh");
        let out = command.args(["-c", &check, "sh"]).args([&settings, &programs]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.success(), text.is_empty(), "{text}");
        text
    };
    assert!(errors().starts_with("berth: ip is missing"));
    install("ip");
    std::fs::write(&settings, "BERTH_JOB_NETWORK=own\n").unwrap();
    let text = errors();
    assert!(text.contains("nft is missing") && text.contains("Nothing was changed"), "{text}");
    std::fs::write(&settings, "BERTH_LABELS=rack=r1\nBERTH_JOB_NETWORK=host\n").unwrap();
    assert_eq!(errors(), "");
    std::fs::remove_file(&settings).unwrap();
    install("nft");
    assert_eq!(errors(), "");
}

#[tokio::test]
async fn without_a_worker_program_the_install_routes_answer_404() {
    let t = TestPortal::sqlite().await;
    for path in ["/install/worker.sh", "/install/berth-worker", "/install/libberth_nvml_sim.so"] {
        assert_eq!(fetch(&t, path).await.0, 404);
    }
    let operator = t.operator().await;
    let made = t.post(&operator, "/operator/join-tokens", json!({"approve": true})).await.expect(201);
    let command = made["command"].as_str().unwrap();
    assert!(
        command.starts_with("BERTH_JOIN_TOKEN='") && command.contains("berth-worker run --portal https://")
    );
}
