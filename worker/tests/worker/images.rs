//! Containers under the real shim, in an image that is made here of this machine's own programs: nothing is
//! fetched. Where podman does not work the tests say so and leave it out.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_images::cdi::{AttemptDevices, SPECIFICATION_DIR};
use berth_images::container;
use berth_images::driver_files::LIBRARY_DIR;
use berth_images::{ImageLimits, Podman};
use berth_isolation::cgroups::{Allowance, AttemptCgroups, Cgroups, Controller};
use berth_isolation::sandbox::{BindMount, SandboxNetwork};
use berth_isolation::secret_files;
use berth_proto::{RegistryAuth, Secret, Spec};
use berth_shim::model::JobFailure;
use berth_shim::{CommandExit, CommandStart, Launch, Limits, ShimRecords, ShimSecrets};
use berth_system::files::put_json;
use berth_system::processes::descendants;
use nix::sys::signal::Signal;

use crate::left_out::left_out;
use crate::stage::FakeNode;

const IMAGE: &str = "localhost/berth-test:1";
const UID: u32 = 654_321;
/// The devices that a specification names; no argument and no variable of a test does.
const UUIDS: [&str; 2] = ["GPU-1", "MIG-2"];

/// A system of a few programs of this machine with their libraries, as a tar file.
const SYSTEM: &str = r#"set -e
mkdir root && cd root && mkdir -p bin lib64 etc tmp var/tmp proc sys dev run home
chmod 1777 tmp var/tmp
for name in sh cat sleep id ls env grep touch head tail mknod chmod; do
    program=$(command -v $name); cp -L $program bin/
    for library in $(ldd $program | grep -o '/[^ ]*'); do
        mkdir -p .${library%/*}; test -e .$library || cp -L $library .$library
    done
done
tar cf ../system.tar ."#;

/// A job that asks for nothing but its image.
fn in_image() -> Spec {
    Spec { image: IMAGE.to_owned(), ..Spec::default() }
}

struct Stage {
    root: tempfile::TempDir,
    podman: Podman,
    cgroups: Cgroups,
    /// The driver's files.
    driver: Vec<BindMount>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.podman.sweep(&HashSet::new());
        let _ = std::fs::remove_dir_all(self.podman.volatile());
    }
}

struct Running {
    name: String,
    dir: PathBuf,
    shim: Child,
    group: AttemptCgroups,
    podman: Podman,
}

impl Stage {
    fn open() -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        let limits = ImageLimits { longest: Duration::from_secs(30), most_mib: 1_024, auth_file: None };
        let podman = match Podman::probe(root.path(), limits) {
            Ok(podman) => podman,
            Err(why) => {
                left_out(&why);
                return None;
            }
        };
        let cgroups = Cgroups::find("berth-test", root.path());
        if cgroups.is_empty() {
            left_out("no cgroups can be made on this machine");
            return None;
        }
        let made = Command::new("/bin/sh").args(["-c", SYSTEM]).current_dir(root.path()).status().unwrap();
        assert!(made.success(), "a system of this machine's programs");
        let tar = root.path().join("system.tar").display().to_string();
        let imported = podman.command(&["import", "--quiet", &tar, IMAGE]).output().unwrap();
        if !imported.status.success() {
            left_out(String::from_utf8_lossy(&imported.stderr));
            return None;
        }
        Some(Self { root, podman, cgroups, driver: Vec::new() })
    }

    fn start(&self, name: &str, text: &str, memory_mib: u64, nodes: &[PathBuf]) -> Running {
        let command = ["sh", "-c", text].map(str::to_owned);
        self.launch(name, &command, memory_mib, nodes, &in_image()).unwrap()
    }

    fn launch(
        &self,
        name: &str,
        command: &[String],
        memory_mib: u64,
        nodes: &[PathBuf],
        spec: &Spec,
    ) -> Result<Running, JobFailure> {
        let dir = self.root.path().join(name);
        let work = dir.join("work");
        std::fs::create_dir_all(&work).unwrap();
        std::os::unix::fs::chown(&work, Some(UID), Some(UID)).unwrap();
        let allowance = Allowance { cpu_milli: 0, memory_mib, pids: 256, devices: vec![] };
        let (group, cgroup) = self.cgroups.create_nested(name, &allowance).unwrap();
        let place = secret_files::directory(&dir, spec);
        place.iter().for_each(|place| secret_files::write(place, spec, Some(UID)).unwrap());
        let terms = container::ContainerSpec {
            name,
            image: &self.podman.find(IMAGE).unwrap(),
            dir: &dir,
            work: &work,
            uid: UID,
            network: SandboxNetwork::None,
            devices: AttemptDevices { uuids: &UUIDS, nodes, driver: &self.driver },
            rdma: &[],
            secrets: place.as_deref(),
            scratch_mib: 32,
            cgroup: &cgroup,
            pids: 256,
            open_files: 2_048,
            locked_memory: false,
            volumes: &[],
            storage_group: None,
        };
        let mut env = [("HOME", "/home/job"), ("JOB_NAME", name), ("ODD", "a \"b\" # c=d")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .to_vec();
        env.extend(spec.env.clone());
        env.extend(secret_files::variables(spec));
        let made = self.podman.create(&terms, &env, command);
        if made.is_err() {
            group.end().unwrap();
        }
        let (confined, env, container) = made?;
        let launch = Launch {
            argv: confined.argv,
            env,
            cwd: confined.cwd,
            limit_ms: 60_000,
            grace_ms: 2_000,
            sandbox_depth: confined.sandbox_depth,
            limits: Limits {
                group: group.clone(),
                memory_mib,
                pids: 256,
                disk: Some((work, 1_024)),
                nested: true,
                ..Limits::default()
            },
            has_secrets: !spec.secrets.is_empty(),
            secrets: place,
            lease: None,
            container: Some(container),
            storage_group: None,
        };
        put_json(&dir.join(berth_shim::LAUNCH), &launch, false).unwrap();
        let mut shim = Command::new(env!("CARGO_BIN_EXE_berth-worker"))
            .arg("shim")
            .arg(&dir)
            .env_clear()
            .stdin(if launch.has_secrets { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if let Some(pipe) = shim.stdin.take() {
            ShimSecrets::from_spec(spec).send(pipe);
        }
        Ok(Running { name: name.to_owned(), dir, shim, group, podman: self.podman.clone() })
    }

    fn run(&self, name: &str, text: &str) -> (CommandExit, String) {
        self.start(name, text, 0, &[]).ended()
    }
}

impl Running {
    fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.join(berth_shim::LOG)).unwrap_or_default())
            .into_owned()
    }

    fn until(&self, said: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.log().contains(said) {
            assert!(Instant::now() < deadline, "it never said {said}: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ended(mut self) -> (CommandExit, String) {
        self.shim.wait().unwrap();
        let exit = ShimRecords::read(&self.dir).exit.unwrap();
        self.group.end().unwrap();
        self.podman.remove(&self.name).unwrap();
        (exit, self.log())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.shim.kill();
        let _ = self.shim.wait();
        let _ = self.group.end();
        let _ = self.podman.remove(&self.name);
    }
}

#[test]
fn a_command_in_an_image_is_as_shut_in_as_any_other() {
    let Some(stage) = Stage::open() else { return };
    let root = stage.root.path().display();
    let text = format!(
        "id; env; grep -E 'NoNewPrivs|CapEff|CapBnd|Seccomp:' /proc/self/status\n\
         for f in /x /bin/x /etc/x /run/x; do touch $f && echo WROTE $f; done\n\
         touch own /tmp/own /dev/shm/own && echo wrote-own\n\
         for d in /home/job /tmp /var/tmp /dev/shm; do echo 'echo ran-in $0' >$d/p; chmod +x $d/p; $d/p; done\n\
         ls {root} && echo SAW-WORKER\n\
         ls /usr/bin && echo SAW-HOST\n\
         mknod n c 1 3 && echo MADE-NODE\n\
         grep -c : /proc/net/dev; echo problem >&2; exit 7"
    );
    let (exit, log) = stage.run("shut-in", &text);
    assert_eq!(exit.code, 7, "{log}");
    for bad in ["WROTE", "SAW-", "MADE-"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    for line in [
        "HOME=/home/job",
        "JOB_NAME=shut-in",
        "ODD=a \"b\" # c=d",
        "NoNewPrivs:\t1",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "Seccomp:\t2",
        "wrote-own",
        "ran-in /home/job/p",
        "ran-in /tmp/p",
        "ran-in /var/tmp/p",
        "ran-in /dev/shm/p",
        "problem",
    ] {
        assert!(log.lines().any(|l| l == line), "{line}: {log}");
    }
    assert!(log.contains(&format!("uid={UID}")), "{log}");
    let own = std::fs::metadata(stage.root.path().join("shut-in/work/own")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&own), UID, "outside too it is nobody's but the job's");
}

#[test]
fn a_container_gets_its_node_and_the_drivers_libraries() {
    let Some(mut stage) = Stage::open() else { return };
    let (Some(own), Some(other)) = (FakeNode::make(230), FakeNode::make(231)) else { return };
    let library = stage.root.path().join("libcuda.so.550.54.15");
    std::fs::write(&library, "driver 550.54.15\n").unwrap();
    let to = Path::new(LIBRARY_DIR).join("libcuda.so.1");
    stage.driver = vec![BindMount { from: library.clone(), to: to.clone(), writable: false }];
    let (nodes, at) = ([own.0.clone()], to.display());
    let text = format!(
        "cat {at}; echo search $LD_LIBRARY_PATH; echo x > {at} || echo unchanged; cat {}; cat {}\n\
         echo files $(ulimit -Hn) core $(ulimit -Hc); echo boards $NVIDIA_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES",
        own.name(),
        other.name()
    );
    let command = ["sh", "-c", text.as_str()].map(str::to_owned);
    let (_, log) = stage.launch("driver", &command, 0, &nodes, &in_image()).unwrap().ended();
    for line in [
        "driver 550.54.15".to_owned(),
        format!("search {LIBRARY_DIR}"),
        "unchanged".to_owned(),
        format!("cat: {}: No such device or address", own.name()),
        format!("cat: {}: No such file or directory", other.name()),
        "files 2048 core 0".to_owned(),
        // Only the specification has them.
        "boards GPU-1,MIG-2 GPU-1,MIG-2".to_owned(),
    ] {
        assert!(log.lines().any(|l| l == line), "{line}: {log}");
    }
    assert_eq!(std::fs::read_to_string(&library).unwrap(), "driver 550.54.15\n");
    let spec = Spec { env: [("LD_LIBRARY_PATH".to_owned(), "/opt/lib".to_owned())].into(), ..in_image() };
    let command = ["sh", "-c", "echo search $LD_LIBRARY_PATH"].map(str::to_owned);
    let (_, log) = stage.launch("own-path", &command, 0, &nodes, &spec).unwrap().ended();
    assert_eq!(log, format!("search /opt/lib:{LIBRARY_DIR}\n"));
}

/// True if the host has a specification of this container.
fn is_specified(name: &str) -> bool {
    let entries = std::fs::read_dir(SPECIFICATION_DIR).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.any(|file| file.ends_with(&format!("-{name}.json")))
}

#[test]
fn a_specification_goes_with_its_container_and_a_left_one_at_the_next_start() {
    let Some(stage) = Stage::open() else { return };
    let Some(node) = FakeNode::make(232) else { return };
    let (nodes, process) = ([node.0.clone()], std::process::id());
    let (ended, left) = (format!("ended-{process}"), format!("left-{process}"));
    let running = stage.start(&ended, "echo up; sleep 300", 0, &nodes);
    running.until("up");
    assert!(is_specified(&ended));
    // A daemon that starts again knows the attempt.
    stage.podman.sweep(&HashSet::from([ended.clone()]));
    assert!(is_specified(&ended));
    berth_shim::send_signal(&running.dir, Signal::SIGTERM);
    running.ended();
    assert!(!is_specified(&ended), "gone with the container");
    let running = stage.start(&left, "echo up", 0, &nodes);
    running.until("up");
    assert!(is_specified(&left));
    stage.podman.sweep(&HashSet::from([ended]));
    assert!(!is_specified(&left), "no known attempt has it");
    running.ended();
}

/// What a process was started with: its words and its variables. Nothing when it is gone.
fn started_with(pid: i32) -> String {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&[read("cmdline"), read("environ")].concat()).into_owned()
}

#[test]
fn a_jobs_variables_and_secrets_are_its_containers_and_nobody_elses() {
    let Some(stage) = Stage::open() else { return };
    let secret = |env: &str, file: &str, value: &str| Secret {
        name: "any".to_owned(),
        value: value.to_owned(),
        env: env.to_owned(),
        file: file.to_owned(),
    };
    let odd = ["CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "XDG_RUNTIME_DIR", "LD_LIBRARY_PATH", "PATH"];
    let env = odd.map(|name| (name.to_owned(), "/bin:/odd-place".to_owned())).into();
    let secrets = vec![
        secret("TOKEN", "", "tok_Zq7w9x2m4k"),
        // Of the names that podman itself would heed.
        secret("HTTPS_PROXY", "", "http://odd-place:1"),
        secret("", "key", "key_Zq7w9x2m4k"),
    ];
    let spec = Spec { env, secrets, ..in_image() };
    let text = "echo $XDG_RUNTIME_DIR $LD_LIBRARY_PATH; echo say $TOKEN. $HTTPS_PROXY; cat /run/secrets/key; echo\n\
        touch /run/secrets/other && echo WROTE; echo up; sleep 300";
    let command = ["sh", "-c", text].map(str::to_owned);
    let running = stage.launch("secrets-in-image", &command, 0, &[], &spec).unwrap();
    running.until("up\n");
    let inside = running.group.processes().unwrap();
    let shim = i32::try_from(running.shim.id()).unwrap();
    let below = descendants(shim).into_iter().map(|(pid, _)| pid);
    let outside: Vec<i32> = below.chain([shim]).filter(|pid| !inside.contains(pid)).collect();
    let start: CommandStart = ShimRecords::read(&running.dir).start.unwrap();
    assert!(outside.contains(&start.pid), "podman is among them: {outside:?}");
    for pid in outside {
        let with = started_with(pid);
        assert!(!with.contains("odd-place") && !with.contains("Zq7w9x2m4k"), "{pid}: {with:?}");
    }
    assert!(inside.iter().any(|pid| started_with(*pid).contains("TOKEN=tok_Zq7w9x2m4k")));
    let place = secret_files::directory(&running.dir, &spec).unwrap();
    assert!(place.exists());
    berth_shim::send_signal(&running.dir, Signal::SIGTERM);
    let (_, log) = running.ended();
    let stars = "*".repeat(14);
    let expected = format!("/bin:/odd-place /bin:/odd-place\nsay {stars}. {}\n{stars}\n", "*".repeat(18));
    assert!(log.starts_with(&expected) && log.contains("up\n") && !log.contains("WROTE"), "{log}");
    assert!(!log.contains("Zq7w9x2m4k"), "{log}");
    assert!(!place.exists(), "gone with the job");
    let kept = Command::new("grep").args(["-rlaE", "Zq7w9x2m4k|http://odd"]).arg(stage.root.path()).output();
    assert_eq!(String::from_utf8_lossy(&kept.unwrap().stdout), "", "on no disk when it is gone");
}

#[test]
fn what_cannot_be_run_says_so() {
    let Some(stage) = Stage::open() else { return };
    let missing = ["/no/such/program".to_owned()];
    let (exit, log) = stage.launch("missing", &missing, 0, &[], &in_image()).unwrap().ended();
    assert!(exit.code != 0 && log.contains("No such file"), "{}: {log}", exit.code);
    // A device that is not there is found when the container is made, before anything is charged.
    let ghost = [PathBuf::from("/dev/no-such-node")];
    let failure = stage.launch("ghost", &missing, 0, &ghost, &in_image()).map(|_| ()).unwrap_err();
    assert_eq!(failure.0, "image.not_started", "{}", failure.1);
    // The job's own 125 is not taken for podman's.
    let (exit, _) = stage.run("own-code", "exit 125");
    assert_eq!((exit.code, exit.failure), (125, None));
}

#[test]
fn a_stop_reaches_the_job_and_then_kills_it() {
    let Some(stage) = Stage::open() else { return };
    let polite =
        stage.start("polite", "trap 'echo saved; exit 3' TERM; echo up; while :; do sleep 0.1; done", 0, &[]);
    polite.until("up");
    berth_shim::send_signal(&polite.dir, Signal::SIGTERM);
    let (exit, log) = polite.ended();
    assert_eq!((exit.code, log.contains("saved")), (3, true), "{log}");
    let deaf = stage.start("deaf", "trap '' TERM; echo up; while :; do sleep 0.1; done", 0, &[]);
    deaf.until("up");
    berth_shim::send_signal(&deaf.dir, Signal::SIGTERM);
    let (exit, log) = deaf.ended();
    assert_eq!(exit.code, 137, "{log}");
}

#[test]
fn who_takes_too_much_memory_is_killed_and_told() {
    let Some(stage) = Stage::open() else { return };
    if stage.cgroups.version_text(Controller::Memory).is_none() {
        left_out("no cgroup limits memory on this machine");
        return;
    }
    let text = "head -c 300000000 /dev/zero | exec tail -c 200000000 > /dev/null; exit 9";
    let (exit, log) = stage.start("memory", text, 64, &[]).ended();
    let (code, detail) = exit.failure.unwrap_or_else(|| panic!("{}: {log}", exit.code));
    // Version 1 kills one process, here not the one whose end is the job's; version 2 kills the job whole.
    let ended = if stage.cgroups.version_text(Controller::Memory) == Some("cgroup v2") { 137 } else { 9 };
    assert_eq!((exit.code, code.as_str()), (ended, "memory.exceeded"), "{detail}");
    assert!(detail.contains("its 64 MiB"), "{detail}");
}

#[test]
fn nothing_outlives_a_killed_shim() {
    let Some(stage) = Stage::open() else { return };
    let mut running = stage.start("orphan", "echo up; sleep 300", 0, &[]);
    running.until("up");
    let inside = running.group.processes().unwrap();
    assert!(!inside.is_empty(), "its processes are in its own cgroups");
    let below = descendants(i32::try_from(running.shim.id()).unwrap());
    assert!(inside.iter().all(|pid| below.iter().any(|(b, _)| b == pid)), "{inside:?} below {below:?}");
    running.shim.kill().unwrap();
    running.shim.wait().unwrap();
    // As a daemon that starts again does, which knows only what is written.
    running.group.end().unwrap();
    running.podman.remove("orphan").unwrap();
    for pid in inside {
        assert!(!Path::new(&format!("/proc/{pid}/exe")).exists(), "{pid} is gone");
    }
    running.podman.remove("orphan").unwrap();
}

#[test]
fn a_pull_that_fails_leaves_nothing_behind() {
    let Some(stage) = Stage::open() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (registry, username, password) = ("127.0.0.1:9".to_owned(), "ada".to_owned(), "hunter2".to_owned());
    let spec = Spec {
        // Nobody listens there.
        image: "127.0.0.1:9/none/such:1".to_owned(),
        registry_auth: Some(RegistryAuth { registry, username, password, ..RegistryAuth::default() }),
        ..Spec::default()
    };
    let told = std::cell::RefCell::new(Vec::new());
    let fetch = |spec: &Spec| {
        stage.podman.pull(spec, dir.path(), &|| None, &|text: String| told.borrow_mut().push(text))
    };
    let (code, detail) = fetch(&spec).unwrap_err();
    assert_eq!(code, "image.pull_failed", "{detail}");
    assert!(detail.contains("127.0.0.1:9/none/such:1") && !detail.contains("hunter2"), "{detail}");
    assert!(told.borrow().first().is_some_and(|t| t.contains("waiting for the registry")));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no credentials, no scratch");
    for (image, code) in [("dir:/etc", "image.invalid"), ("localhost/none:1", "image.pull_failed")] {
        let spec = Spec { image: image.to_owned(), ..Spec::default() };
        assert_eq!(fetch(&spec).unwrap_err().0, code, "{image}");
    }
    let local = Spec { image: IMAGE.to_owned(), ..Spec::default() };
    assert!(fetch(&local).unwrap().digest.starts_with("sha256:"));
}
