//! The container of an attempt: the arguments for podman, and the data for its shim.
//!
//! Inside it is like the sandbox of docs/isolation.md, with the system of the image.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use berth_isolation::sandbox::{BindMount, ConfinedCommand, HOME, SECRETS_DIR, SandboxNetwork};
use berth_shim::Container;
use berth_shim::model::{JobFailure, job_failure, start_failure};
use nix::sys::resource::{Resource, getrlimit};

use super::cdi::AttemptDevices;
use super::driver_files::{SEARCH_PATH, search_path};
use super::podman::{Image, Podman};

/// The file with the resolvers of names inside.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";
/// The file with the job's variables for podman, which never has them in its own environment.
const ENVIRONMENT: &str = "/dev/stdin";
/// The pid file of the supervisor, in the attempt's directory.
const SUPERVISOR: &str = "supervisor.pid";
/// A little less than the longest line that podman reads.
const MOST_LINE: usize = 60_000;
/// podman lowers its own limit of processes, and a container with a higher one does not start on every host.
const MOST_PIDS: u64 = 32_768;

/// The description of one container.
#[derive(Debug, Clone)]
pub struct ContainerSpec<'a> {
    /// The name on this host.
    pub name: &'a str,
    pub image: &'a Image,
    /// The attempt's directory, which the job does not see.
    pub dir: &'a Path,
    /// The job's directory, which is its home inside.
    pub work: &'a Path,
    pub uid: u32,
    pub network: SandboxNetwork<'a>,
    pub devices: AttemptDevices<'a>,
    /// The nodes of RDMA devices.
    pub rdma: &'a [PathBuf],
    /// The directory of the secret files.
    pub secrets: Option<&'a Path>,
    /// The limit of each of `/tmp`, `/var/tmp` and `/dev/shm`.
    pub scratch_mib: u64,
    /// The parent of the container's cgroup.
    pub cgroup: &'a str,
    /// The limit of processes and threads of its user, in addition to that of the cgroup.
    pub pids: u64,
    /// Open files of each process; 0: the limit of the worker.
    pub open_files: u64,
    /// Locked memory is unlimited.
    pub locked_memory: bool,
    pub volumes: &'a [BindMount],
    /// The group of its organization for volumes on host mounts, in addition to its own.
    pub storage_group: Option<u32>,
}

/// The limits of a container's processes.
fn ulimits(spec: &ContainerSpec<'_>) -> Vec<String> {
    let files = match spec.open_files {
        0 => own_limit("nofile", Resource::RLIMIT_NOFILE),
        most => format!("nofile={most}:{most}"),
    };
    let pids = spec.pids.clamp(16, MOST_PIDS);
    let mut limits = vec![files, "core=0:0".to_owned(), format!("nproc={pids}:{pids}")];
    if spec.locked_memory {
        limits.push("memlock=-1:-1".to_owned());
    }
    limits
}

/// The options for a group beside that of the user.
fn group_options(group: Option<u32>) -> Vec<(&'static str, String)> {
    // Other jobs of the organization, each with another user, change its files by the common group.
    let options = |group: u32| vec![("--group-add", group.to_string()), ("--umask", "0002".to_owned())];
    group.map(options).unwrap_or_default()
}

/// A resource limit of this process, for the container too. podman would ask for a higher one, which fails on some
/// hosts.
fn own_limit(name: &str, resource: Resource) -> String {
    let (soft, hard) = getrlimit(resource).unwrap_or((1_024, 1_024));
    let text = |n: u64| i64::try_from(n).map_or_else(|_| "-1".to_owned(), |n| n.to_string());
    format!("{name}={}:{}", text(soft), text(hard))
}

/// A path as a field of `--mount`, where commas separate the fields.
fn mount_field(path: &Path) -> Result<String, JobFailure> {
    let text = path.display().to_string();
    if text.contains([',', '"', '\n']) {
        return Err(start_failure(
            "worker.io",
            "The path of the worker's data directory contains a comma or a quote, which podman cannot mount",
        ));
    }
    Ok(text)
}

/// The mount point of a volume as such a field.
fn mount_point_field(path: &Path) -> Result<String, JobFailure> {
    let odd = "The path of a volume contains a comma or a quote, which podman cannot mount. The job was not started. Choose another path.";
    mount_field(path).map_err(|_| job_failure("worker.io", odd))
}

/// The options for the files of the host: the secrets, the volumes and, without a specification, the driver's files.
fn mount_options(
    spec: &ContainerSpec<'_>,
    specified: Option<&str>,
) -> Result<Vec<(&'static str, String)>, JobFailure> {
    let mut options = Vec::new();
    if let Some(dir) = spec.secrets {
        options.push(("--mount", format!("type=bind,src={},dst={SECRETS_DIR},ro", mount_field(dir)?)));
    }
    let driver: &[BindMount] = if specified.is_some() { &[] } else { spec.devices.driver };
    for BindMount { from, to, writable } in spec.volumes.iter().chain(driver) {
        let how = if *writable { "" } else { ",ro" };
        let (from, to) = (mount_field(from)?, mount_point_field(to)?);
        options.push(("--mount", format!("type=bind,src={from},dst={to}{how}")));
    }
    Ok(options)
}

/// The options for devices. `specified` is the name of a specification with the attempt's boards.
fn device_options(spec: &ContainerSpec<'_>, specified: Option<&str>) -> Vec<(&'static str, String)> {
    let nodes: &[PathBuf] = if specified.is_some() { &[] } else { spec.devices.nodes };
    let nodes = nodes.iter().chain(spec.rdma).map(|node| node.display().to_string());
    specified.map(str::to_owned).into_iter().chain(nodes).map(|device| ("--device", device)).collect()
}

/// The options for the network of a container.
fn network_options(network: SandboxNetwork<'_>) -> Result<Vec<(&'static str, String)>, JobFailure> {
    let namespace = match network {
        SandboxNetwork::None => return Ok(vec![("--network", "none".to_owned())]),
        SandboxNetwork::Host => return Ok(vec![("--network", "host".to_owned())]),
        SandboxNetwork::Own(namespace) => namespace,
    };
    let mut options = vec![("--network", format!("ns:{}", namespace.path.display()))];
    for (file, inside) in [(&namespace.resolv_conf, RESOLV_CONF), (&namespace.hosts, HOSTS)] {
        if let Some(BindMount { from, .. }) = file {
            options.push(("--mount", format!("type=bind,src={},dst={inside},ro", mount_field(from)?)));
        }
    }
    Ok(options)
}

impl Podman {
    /// The arguments after `create`. `specified` is the name of a specification with the attempt's boards.
    fn create_args(
        &self,
        spec: &ContainerSpec<'_>,
        specified: Option<&str>,
        command: &[String],
    ) -> Result<Vec<String>, JobFailure> {
        let uid = spec.uid;
        let scratch = spec.scratch_mib;
        let mut args: Vec<String> = Vec::new();
        let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
        add("--name", spec.name.to_owned());
        add("--cgroup-parent", spec.cgroup.to_owned());
        add("--user", format!("{uid}:{uid}"));
        for (option, value) in group_options(spec.storage_group) {
            add(option, value);
        }
        add("--env-file", ENVIRONMENT.to_owned());
        add("--conmon-pidfile", spec.dir.join(SUPERVISOR).display().to_string());
        add("--mount", format!("type=bind,src={},dst={HOME}", mount_field(spec.work)?));
        let files_and_devices =
            mount_options(spec, specified)?.into_iter().chain(device_options(spec, specified));
        for (option, value) in files_and_devices.chain(network_options(spec.network)?) {
            add(option, value);
        }
        add("--workdir", HOME.to_owned());
        // `/dev/shm` too: podman 5 makes its own read-only with the image.
        for place in ["/tmp", "/var/tmp", "/dev/shm"] {
            add("--tmpfs", format!("{place}:rw,nosuid,nodev,mode=1777,size={scratch}m"));
        }
        for limit in ulimits(spec) {
            add("--ulimit", limit);
        }
        if let Some(init) = &self.init {
            add("--init-path", init.display().to_string());
            args.push("--init".to_owned());
        }
        let fixed = [
            "--pull=never",
            // The supervisor belongs to the shim and is outside the job's limits.
            "--cgroups=no-conmon",
            "--pids-limit=-1",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            "--read-only",
            // The writable directories are listed above; podman would add a `/run` as large as the memory.
            "--read-only-tmpfs=false",
            "--pid=private",
            "--ipc=private",
            "--uts=private",
            "--cgroupns=private",
            "--hostname=berth",
            // Only the command runs: no init of the image, no health check, no entry point, no volume of the image.
            "--systemd=false",
            "--no-healthcheck",
            "--image-volume=ignore",
            "--http-proxy=false",
            "--restart=no",
            "--stop-timeout=0",
            // The output goes to podman's own output, which is the shim's log.
            "--log-driver=passthrough",
            "--entrypoint=",
        ];
        args.extend(fixed.map(str::to_owned));
        args.push(spec.image.id.clone());
        args.extend(command.iter().cloned());
        Ok(args)
    }

    /// Writes the specification of the attempt's boards. Returns its name for podman. `None`: the arguments of podman
    /// have the boards, if there are any.
    fn specify(&self, spec: &ContainerSpec<'_>) -> Option<String> {
        if spec.devices.is_empty() {
            return None;
        }
        let written = self.specifications.write(spec.name, &spec.devices);
        if let Err(error) = &written {
            tracing::warn!(error, container = spec.name, "the devices of a container have no specification");
        }
        written.ok()
    }

    /// The variables of a job whose loader also searches the driver's libraries.
    fn with_search_path(
        &self,
        env: &[(String, String)],
        image: &Image,
    ) -> Result<Vec<(String, String)>, JobFailure> {
        let mut env = env.to_vec();
        if let Some((_, value)) = env.iter_mut().find(|(name, _)| name == SEARCH_PATH) {
            *value = search_path(Some(value.as_str()));
            return Ok(env);
        }
        let in_image = self.variable(image, SEARCH_PATH).map_err(|why| {
            start_failure("image.not_started", format!("The variables of the image are not readable: {why}"))
        })?;
        env.push((SEARCH_PATH.to_owned(), search_path(in_image.as_deref())));
        Ok(env)
    }

    /// Creates the container, which its shim starts. Returns the command that attaches to it, the environment of that
    /// command, and the data for the shim. `env` are the job's variables with its secrets.
    pub fn create(
        &self,
        spec: &ContainerSpec<'_>,
        env: &[(String, String)],
        command: &[String],
    ) -> Result<(ConfinedCommand, Vec<(String, String)>, Container), JobFailure> {
        let text = if spec.devices.driver.is_empty() {
            environment_text(env)?
        } else {
            environment_text(&self.with_search_path(env, spec.image)?)?
        };
        let specified = self.specify(spec);
        let args = self.create_args(spec, specified.as_deref(), command)?;
        let mut all = vec!["create"];
        all.extend(args.iter().map(String::as_str));
        self.run_with_input(&all, &text).map_err(|why| {
            start_failure("image.not_started", format!("A container cannot be created from the image: {why}"))
        })?;
        let argv = |args: &[&str]| {
            let mut argv = self.base_args();
            argv.extend(args.iter().map(|arg| (*arg).to_owned()));
            argv
        };
        let confined = ConfinedCommand {
            argv: argv(&["start", "--attach", spec.name]),
            cwd: PathBuf::from("/"),
            home: HOME.to_owned(),
            // The supervisor, and the init of the container.
            sandbox_depth: if self.init.is_some() { 2 } else { 1 },
        };
        let container = Container {
            supervisor: spec.dir.join(SUPERVISOR),
            inspect: argv(&["container", "inspect", "--format", "{{.State.Status}}", spec.name]),
        };
        Ok((confined, self.environment(), container))
    }
}

/// The job's variables in podman's form: one in each line, unquoted.
fn environment_text(env: &[(String, String)]) -> Result<String, JobFailure> {
    let mut text = String::new();
    for (name, value) in env {
        // podman would read another name as a different variable, as a comment, or as one of its own variables.
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(start_failure("image.environment", "The name of a variable is invalid in an image"));
        }
        if value.contains(['\n', '\r']) || name.len() + value.len() >= MOST_LINE {
            let detail = format!(
                "The variable {name} has a line break or more than {MOST_LINE} bytes, which is impossible in an image. The job was not started. Put the value into a file."
            );
            return Err(job_failure("image.environment", detail));
        }
        // A write to a string does not fail.
        let _ = writeln!(text, "{name}={value}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use berth_isolation::sandbox::NetworkNamespace;

    use super::super::podman::tests::podman;
    use super::*;

    /// The arguments for a container with these nodes of boards, and with a specification of them if that has a name.
    fn args(
        network: SandboxNetwork<'_>,
        (nodes, specified): (&[PathBuf], Option<&str>),
        work: &str,
    ) -> Result<Vec<String>, JobFailure> {
        let library = BindMount {
            from: PathBuf::from("/lib/libcuda.so.550.54.15"),
            to: PathBuf::from("/usr/local/nvidia/lib64/libcuda.so.1"),
            writable: false,
        };
        let image = Image { id: "abc".to_owned(), digest: "sha256:0".to_owned() };
        let spec = ContainerSpec {
            name: "job-1",
            image: &image,
            dir: Path::new("/a"),
            work: Path::new(work),
            uid: 600_007,
            network,
            devices: AttemptDevices { uuids: &["GPU-1"], nodes, driver: &[library] },
            rdma: &[PathBuf::from("/dev/infiniband/uverbs0")],
            secrets: Some(Path::new("/dev/shm/berth-job-1")),
            scratch_mib: 64,
            cgroup: "/berth/x",
            pids: 4_096,
            open_files: 65_536,
            locked_memory: network == SandboxNetwork::Host,
            volumes: &[BindMount { from: PathBuf::from("/v"), to: PathBuf::from("/data"), writable: false }],
            storage_group: (network == SandboxNetwork::None).then_some(700_003),
        };
        let command = ["sh".to_owned(), "--privileged".to_owned()];
        podman(Path::new("/d")).create_args(&spec, specified, &command)
    }

    fn has(words: &[String], wanted: &[&str]) -> bool {
        words.windows(wanted.len()).any(|w| w.iter().zip(wanted).all(|(a, b)| a == b))
    }

    #[test]
    fn a_container_gets_what_was_asked_and_nothing_more() {
        let nodes = ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30"].map(PathBuf::from);
        let argv = args(SandboxNetwork::Host, (&nodes, None), "/w").unwrap();
        for pair in [
            ["--user", "600007:600007"],
            ["--cgroup-parent", "/berth/x"],
            ["--mount", "type=bind,src=/w,dst=/home/job"],
            ["--tmpfs", "/tmp:rw,nosuid,nodev,mode=1777,size=64m"],
            ["--network", "host"],
            ["--ulimit", "nproc=4096:4096"],
            ["--device", "/dev/nvidia0"],
            ["--device", "/dev/nvidia-caps/nvidia-cap30"],
            ["--device", "/dev/infiniband/uverbs0"],
            ["--env-file", "/dev/stdin"],
            ["--mount", "type=bind,src=/dev/shm/berth-job-1,dst=/run/secrets,ro"],
            ["--mount", "type=bind,src=/v,dst=/data,ro"],
            [
                "--mount",
                "type=bind,src=/lib/libcuda.so.550.54.15,dst=/usr/local/nvidia/lib64/libcuda.so.1,ro",
            ],
            ["--ulimit", "nofile=65536:65536"],
            ["--ulimit", "core=0:0"],
            ["--ulimit", "memlock=-1:-1"],
        ] {
            assert!(has(&argv, &pair), "{pair:?}: {argv:?}");
        }
        for word in [
            "--read-only",
            "--read-only-tmpfs=false",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            "--pull=never",
        ] {
            assert!(has(&argv, &[word]), "{word}");
        }
        let other = args(SandboxNetwork::None, (&[], None), "/w").unwrap();
        assert!(has(&other, &["--network", "none"]) && !has(&other, &["memlock=-1:-1"]), "{other:?}");
        assert!(has(&other, &["--group-add", "700003", "--umask", "0002"]), "{other:?}");
        assert!(!has(&argv, &["--group-add"]) && !has(&argv, &["--umask"]), "{argv:?}");
        let namespace = NetworkNamespace {
            path: PathBuf::from("/run/netns/berth-x"),
            nsenter: PathBuf::from("/usr/bin/nsenter"),
            resolv_conf: Some(BindMount {
                from: PathBuf::from("/d/resolv.conf"),
                to: PathBuf::from("/run/resolv.conf"),
                writable: false,
            }),
            hosts: Some(BindMount {
                from: PathBuf::from("/d/hosts"),
                to: PathBuf::from("/somewhere/hosts"),
                writable: false,
            }),
        };
        let own = args(SandboxNetwork::Own(&namespace), (&[], None), "/w").unwrap();
        assert!(has(&own, &["--network", "ns:/run/netns/berth-x"]));
        assert!(has(&own, &["--mount", "type=bind,src=/d/resolv.conf,dst=/etc/resolv.conf,ro"]));
        assert!(has(&own, &["--mount", "type=bind,src=/d/hosts,dst=/etc/hosts,ro"]));
        // The tenant's arguments follow the image, where podman reads no options.
        let image = argv.iter().position(|w| w == "abc").unwrap();
        assert_eq!(argv[image + 1..], ["sh", "--privileged"]);
        assert!(
            !argv[..image]
                .iter()
                .any(|w| w.contains("privileged") && w != "--security-opt=no-new-privileges")
        );
    }

    #[test]
    fn a_directory_that_podman_would_misread_is_refused() {
        assert_eq!(args(SandboxNetwork::Host, (&[], None), "/w,dst=/etc").unwrap_err().0, "worker.io");
    }

    #[test]
    fn a_specification_stands_for_the_nodes_and_the_drivers_files() {
        let nodes = [PathBuf::from("/dev/nvidia0")];
        let argv = args(SandboxNetwork::Host, (&nodes, Some("berth.dev/gpu=job-1")), "/w").unwrap();
        let values = |option: &str| -> Vec<&str> {
            let pairs = argv.windows(2).filter(|pair| pair[0] == option);
            pairs.map(|pair| pair[1].as_str()).collect()
        };
        assert_eq!(values("--device"), ["berth.dev/gpu=job-1", "/dev/infiniband/uverbs0"]);
        let mounts = values("--mount");
        assert!(mounts.iter().any(|mount| mount.ends_with("dst=/data,ro")), "{mounts:?}");
        assert!(!mounts.iter().any(|mount| mount.contains("libcuda")), "{mounts:?}");
    }

    #[test]
    fn devices_without_a_specification_come_by_arguments() {
        let dir = tempfile::tempdir().unwrap();
        let podman = podman(dir.path());
        let image = Image { id: "abc".to_owned(), digest: "sha256:0".to_owned() };
        let specified = |name: &str, nodes: &[PathBuf]| {
            let spec = ContainerSpec {
                name,
                image: &image,
                dir: Path::new("/a"),
                work: Path::new("/w"),
                uid: 600_007,
                network: SandboxNetwork::None,
                devices: AttemptDevices { uuids: &["GPU-1"], nodes, driver: &[] },
                rdma: &[],
                secrets: None,
                scratch_mib: 64,
                cgroup: "/berth/x",
                pids: 4_096,
                open_files: 0,
                locked_memory: false,
                volumes: &[],
                storage_group: None,
            };
            podman.specify(&spec)
        };
        let null = [PathBuf::from("/dev/null")];
        assert_eq!(specified("job-1", &null).as_deref(), Some("berth.dev/gpu=job-1.1"));
        assert_eq!(specified("job-1", &[]), None, "simulated boards");
        assert_eq!(specified("1", &null), None);
        // A file in place of the directory.
        std::fs::remove_dir_all(dir.path().join("cdi")).unwrap();
        std::fs::write(dir.path().join("cdi"), "").unwrap();
        assert_eq!(specified("job-1", &null), None);
    }

    #[test]
    fn variables_stay_what_they_are() {
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        let text = environment_text(&[pair("A", "b c \"d\" # e=f"), pair("B", "")]).unwrap();
        assert_eq!(text, "A=b c \"d\" # e=f\nB=\n");
        for bad in ["a\nC=d", "a\r", &"x".repeat(MOST_LINE)] {
            assert_eq!(environment_text(&[pair("A", bad)]).unwrap_err().0, "image.environment");
        }
        // podman reads a name without a value as its own variable, and a star as many.
        for bad in ["", "A\nPATH", "#A", "LD_*", "A=B", "A B"] {
            assert_eq!(environment_text(&[pair(bad, "x")]).unwrap_err().0, "image.environment", "{bad:?}");
        }
    }

    #[test]
    fn limits_are_in_podmans_words() {
        let said = own_limit("nofile", Resource::RLIMIT_NOFILE);
        assert!(said.starts_with("nofile=") && said.contains(':'), "{said}");
    }
}
