//! Attempts without a daemon: the real shim, sandbox, filters and cgroups around a script.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_isolation::cgroups::{Allowance, AttemptCgroups, Cgroups};
use berth_isolation::sandbox::{BindMount, Sandbox, SandboxNetwork, SandboxSpec};
use berth_isolation::secret_files;
use berth_job_files::transfer::tree::change_owner;
use berth_network::{Egress, JobNetwork};
use berth_proto::{Secret, Spec};
use berth_shim::lease::ShimLease;
use berth_shim::{CommandExit, CommandStart, Launch, Limits, ShimRecords, ShimSecrets};
use berth_system::files::put_json;
use nix::sys::signal::Signal;

use crate::left_out::left_out;

/// A script with what it may have.
pub struct Script<'a> {
    pub text: &'a str,
    pub network: bool,
    /// The policy of a network of its own.
    pub egress: Egress,
    pub devices: Vec<PathBuf>,
    pub cpu_milli: u64,
    pub memory_mib: u64,
    pub pids: u64,
    pub disk_mib: u64,
    /// Its other limits.
    pub limits: Limits,
    pub secrets: Vec<Secret>,
    pub lease: Option<ShimLease>,
    /// Made before it starts, and its own.
    pub volumes: Vec<BindMount>,
    /// Directories of host mounts, which stay the worker's.
    pub host_volumes: Vec<BindMount>,
    /// The group of its organization on host mounts.
    pub storage_group: Option<u32>,
}

impl Default for Script<'_> {
    fn default() -> Self {
        Self {
            text: "true",
            network: true,
            egress: Egress::INTERNET,
            devices: Vec::new(),
            cpu_milli: 0,
            memory_mib: 0,
            pids: 4_096,
            disk_mib: 1_024,
            limits: Limits::default(),
            secrets: Vec::new(),
            lease: None,
            volumes: Vec::new(),
            host_volumes: Vec::new(),
            storage_group: None,
        }
    }
}

pub struct Stage {
    pub root: tempfile::TempDir,
    pub sandbox: Sandbox,
    pub cgroups: Cgroups,
    /// Jobs with a network have one of their own; the test removes it. `None`: they have the host's.
    pub network: Option<JobNetwork>,
}

/// A script that runs.
pub struct Running {
    pub dir: PathBuf,
    pub uid: Option<u32>,
    pub shim: Child,
    pub group: AttemptCgroups,
}

impl Stage {
    /// With the sandbox; `None`, and said, where the system itself can run none.
    pub fn sandboxed() -> Option<Self> {
        Self::sandboxed_in(tempfile::tempdir().unwrap())
    }

    /// With its files in a directory of the test's choice.
    pub fn sandboxed_in(root: tempfile::TempDir) -> Option<Self> {
        let plain = ["--unshare-pid", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"];
        if !Command::new("bwrap").args(plain).status().is_ok_and(|s| s.success()) {
            left_out("no sandbox works on this machine");
            return None;
        }
        let mut stage = Self::open_in(root);
        let hidden = vec![stage.root.path().canonicalize().unwrap()];
        stage.sandbox = Sandbox::probe(hidden, (600_000, 1_000)).unwrap();
        Some(stage)
    }

    /// Without a sandbox.
    pub fn open() -> Self {
        Self::open_in(tempfile::tempdir().unwrap())
    }

    fn open_in(root: tempfile::TempDir) -> Self {
        let cgroups = Cgroups::find("berth-test", root.path());
        Self { root, sandbox: Sandbox::Process, cgroups, network: None }
    }

    /// True if the kernel limits this here; said where it does not.
    pub fn limits(&self, controller: berth_isolation::cgroups::Controller) -> bool {
        let limits = self.cgroups.version_text(controller).is_some();
        if !limits {
            left_out(format!("no cgroup limits {controller:?} on this machine"));
        }
        limits
    }

    pub fn start(&self, name: &str, script: &Script<'_>) -> Running {
        let dir = self.root.path().join(name);
        let work = dir.join("work");
        std::fs::create_dir_all(&work).unwrap();
        let uid = self.sandbox.pick_user(name, &HashSet::new());
        if let Some(uid) = uid {
            std::os::unix::fs::chown(&work, Some(uid), Some(uid)).unwrap();
        }
        let allowance = Allowance {
            cpu_milli: script.cpu_milli,
            memory_mib: script.memory_mib,
            pids: script.pids,
            devices: script.devices.clone(),
        };
        let group = self.cgroups.create(name, &allowance).unwrap();
        let spec = Spec { secrets: script.secrets.clone(), ..Spec::default() };
        let place = secret_files::directory(&dir, &spec);
        if let Some(place) = &place {
            secret_files::write(place, &spec, uid).unwrap();
        }
        for BindMount { from, to, writable } in &script.volumes {
            // Its place in the job's directory is there before the sandbox, and is the job's.
            if let Ok(below) = to.strip_prefix("/home/job") {
                let mut at = work.clone();
                for part in below {
                    at.push(part);
                    std::fs::create_dir(&at).unwrap();
                    std::os::unix::fs::chown(&at, uid, uid).unwrap();
                }
            }
            if let Some(uid) = uid {
                change_owner(from, uid, *writable).unwrap();
            }
        }
        let passwd = self.write_passwd(&dir, uid);
        let own = self.network.as_ref().filter(|_| script.network);
        let namespace = own.and_then(|network| network.create_with(name, &script.egress, None).unwrap());
        let volumes = [script.volumes.as_slice(), script.host_volumes.as_slice()].concat();
        let sandbox_spec = SandboxSpec {
            work: &work,
            uid: uid.unwrap_or(0),
            network: SandboxNetwork::new(namespace.as_ref(), !script.network),
            devices: &script.devices,
            secrets: place.as_deref(),
            scratch_mib: 64,
            passwd: passwd.as_deref(),
            volumes: &volumes,
            storage_group: script.storage_group,
        };
        let command = ["/bin/sh", "-c", script.text].map(str::to_owned).to_vec();
        let confined = self.sandbox.confine(&sandbox_spec, command);
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let launch = Launch {
            argv: confined.argv,
            env: vec![
                ("PATH".to_owned(), path.to_owned()),
                ("HOME".to_owned(), confined.home),
                ("JOB_NAME".to_owned(), name.to_owned()),
            ],
            cwd: confined.cwd,
            limit_ms: 60_000,
            grace_ms: 200,
            sandbox_depth: confined.sandbox_depth,
            limits: Limits {
                group: group.clone(),
                memory_mib: script.memory_mib,
                pids: script.pids,
                disk: Some((work, script.disk_mib)),
                volumes: script.volumes.iter().map(|bind| bind.from.clone()).collect(),
                ..script.limits.clone()
            },
            has_secrets: !spec.secrets.is_empty(),
            secrets: place,
            lease: script.lease.clone(),
            container: None,
            storage_group: script.storage_group,
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
            ShimSecrets::from_spec(&spec).send(pipe);
        }
        Running { dir, uid, shim, group }
    }

    fn write_passwd(&self, dir: &Path, uid: Option<u32>) -> Option<PathBuf> {
        let text = self.sandbox.passwd(uid)?;
        let file = dir.join("passwd");
        std::fs::write(&file, text).unwrap();
        Some(file)
    }

    /// Runs it to its end: how it ended, and what it wrote.
    pub fn run(&self, name: &str, script: &Script<'_>) -> (CommandExit, String) {
        self.start(name, script).ended()
    }

    pub fn script(&self, name: &str, text: &str) -> (CommandExit, String) {
        self.run(name, &Script { text, ..Script::default() })
    }
}

impl Running {
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.join(berth_shim::LOG)).unwrap_or_default())
            .into_owned()
    }

    /// Waits until it has written this.
    pub fn until(&self, said: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.log().contains(said) {
            assert!(Instant::now() < deadline, "it never said {said}: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn started(&self) -> CommandStart {
        ShimRecords::read(&self.dir).start.unwrap()
    }

    pub fn ended(mut self) -> (CommandExit, String) {
        self.shim.wait().unwrap();
        let exit = ShimRecords::read(&self.dir).exit.unwrap();
        self.group.end().unwrap();
        (exit, self.log())
    }

    pub fn stop(self) {
        berth_shim::send_signal(&self.dir, Signal::SIGTERM);
        self.ended();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After a failed assertion too nothing of it may be left.
        let _ = self.shim.kill();
        let _ = self.shim.wait();
        let _ = self.group.end();
    }
}

/// A character device of NVIDIA's number, for which no driver is here: who may open it gets ENXIO.
pub struct FakeNode(pub PathBuf);

impl FakeNode {
    /// `None`, and said, where no node can be made.
    pub fn make(minor: u64) -> Option<Self> {
        Self::make_at(&Path::new("/dev").join(format!("berth-test-{}-{minor}", std::process::id())), minor)
    }

    /// A node in a directory of its own, as those of MIG instances and of RDMA devices are.
    pub fn make_in_directory(minor: u64) -> Option<Self> {
        let folder = Path::new("/dev").join(format!("berth-tests-{}-{minor}", std::process::id()));
        if let Err(error) = std::fs::create_dir(&folder) {
            left_out(format!("no directory of device nodes can be made: {error}"));
            return None;
        }
        let made = Self::make_at(&folder.join("node"), minor);
        if made.is_none() {
            std::fs::remove_dir(&folder).unwrap();
        }
        made
    }

    fn make_at(path: &Path, minor: u64) -> Option<Self> {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        let all = Mode::from_bits_truncate(0o666);
        if let Err(errno) = mknod(path, SFlag::S_IFCHR, all, makedev(195, minor)) {
            left_out(format!("no device node can be made: {errno}"));
            return None;
        }
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        Some(Self(path.to_owned()))
    }

    pub fn name(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        // Only the directory of one node becomes empty.
        if let Some(folder) = self.0.parent().filter(|folder| *folder != Path::new("/dev")) {
            let _ = std::fs::remove_dir(folder);
        }
    }
}
