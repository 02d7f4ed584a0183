//! The container of an attempt: what podman is told of it, and what its shim must know.
//!
//! Inside it is as in the sandbox of docs/isolation.md, with the image's system in place of the host's.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};

use super::{Failure, Image, Podman, failed};
use crate::sandbox::{Bind, Confined, HOME};
use crate::secrets;
use crate::shim::Container;

/// Where podman reads the job's variables: they are told to it, and are never its own.
const ENVIRONMENT: &str = "/dev/stdin";
/// Name of a file in the attempt's directory.
const SUPERVISOR: &str = "supervisor.pid";
/// What podman reads in one line at most, and a little less.
const MOST_LINE: usize = 60_000;
/// podman lowers its own limit of processes; a container that wants more is not started on every host.
const MOST_PIDS: u64 = 32_768;

/// What one container is made of.
#[derive(Debug, Clone)]
pub struct Terms<'a> {
    /// Its name on this host.
    pub name: &'a str,
    pub image: &'a Image,
    /// The attempt's own directory, which the job does not see.
    pub dir: &'a Path,
    /// Its home and directory.
    pub work: &'a Path,
    pub uid: u32,
    /// It shares the host's network; otherwise it has none.
    pub network: bool,
    /// Devices as podman is asked for them: names of the Container Device Interface, or nodes.
    pub devices: &'a [String],
    /// Its files with secrets.
    pub secrets: Option<&'a Path>,
    /// What `/tmp`, `/var/tmp` and `/dev/shm` hold at most, each.
    pub scratch_mib: u64,
    /// The cgroup below which the container's own is made.
    pub cgroup: &'a str,
    /// Processes and threads of its user, besides what a cgroup counts.
    pub pids: u64,
    /// Its volumes.
    pub volumes: &'a [Bind],
}

/// A resource limit of this process, which the container gets too: podman would ask for more, which not
/// every host lets it have.
fn own_limit(name: &str, resource: Resource) -> String {
    let (soft, hard) = getrlimit(resource).unwrap_or((1_024, 1_024));
    let text = |n: u64| i64::try_from(n).map_or_else(|_| "-1".to_owned(), |n| n.to_string());
    format!("{name}={}:{}", text(soft), text(hard))
}

/// A path in the words of `--mount`, which are parted by commas.
fn mountable(path: &Path) -> Result<String, Failure> {
    let text = path.display().to_string();
    if text.contains([',', '"', '\n']) {
        return Err(failed(
            "worker.io",
            "The worker's directory has a comma or a quote in its name, which podman cannot mount.",
        ));
    }
    Ok(text)
}

/// A volume's place in the same words.
fn mounted_at(path: &Path) -> Result<String, Failure> {
    let odd =
        "The place of a volume has a comma or a quote in it, which podman cannot mount; choose another.";
    mountable(path).map_err(|_| failed("worker.io", odd))
}

impl Podman {
    /// The words that make a container, without those before `create`.
    fn create_words(&self, terms: &Terms<'_>, command: &[String]) -> Result<Vec<String>, Failure> {
        let uid = terms.uid;
        let scratch = terms.scratch_mib;
        let mut words: Vec<String> = Vec::new();
        let mut add = |word: &str, value: String| words.extend([word.to_owned(), value]);
        add("--name", terms.name.to_owned());
        add("--cgroup-parent", terms.cgroup.to_owned());
        add("--user", format!("{uid}:{uid}"));
        add("--env-file", ENVIRONMENT.to_owned());
        add("--conmon-pidfile", terms.dir.join(SUPERVISOR).display().to_string());
        add("--mount", format!("type=bind,src={},dst={HOME}", mountable(terms.work)?));
        if let Some(place) = terms.secrets {
            add("--mount", format!("type=bind,src={},dst={},ro", mountable(place)?, secrets::INSIDE));
        }
        for Bind { from, to, writable } in terms.volumes {
            let how = if *writable { "" } else { ",ro" };
            add("--mount", format!("type=bind,src={},dst={}{how}", mountable(from)?, mounted_at(to)?));
        }
        add("--workdir", HOME.to_owned());
        // `/dev/shm` by the same words: podman 5 makes its own read-only with the image.
        for place in ["/tmp", "/var/tmp", "/dev/shm"] {
            add("--tmpfs", format!("{place}:rw,nosuid,nodev,mode=1777,size={scratch}m"));
        }
        add("--network", if terms.network { "host" } else { "none" }.to_owned());
        add("--ulimit", own_limit("nofile", Resource::RLIMIT_NOFILE));
        let pids = terms.pids.clamp(16, MOST_PIDS);
        add("--ulimit", format!("nproc={pids}:{pids}"));
        for device in terms.devices {
            add("--device", device.clone());
        }
        if let Some(init) = &self.init {
            add("--init-path", init.display().to_string());
            words.push("--init".to_owned());
        }
        let fixed = [
            "--pull=never",
            // What stands over it is the shim's, and is not limited by the job's limits.
            "--cgroups=no-conmon",
            "--pids-limit=-1",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            "--read-only",
            // The places that may be written are named above; podman would add a `/run` that is as large as memory.
            "--read-only-tmpfs=false",
            "--pid=private",
            "--ipc=private",
            "--uts=private",
            "--cgroupns=private",
            "--hostname=berth",
            // The command is all that runs: no init of the image's own, no probe, no entry point, no volume.
            "--systemd=false",
            "--no-healthcheck",
            "--image-volume=ignore",
            "--http-proxy=false",
            "--restart=no",
            "--stop-timeout=0",
            // What it writes goes where podman's own output goes: into the shim's file.
            "--log-driver=passthrough",
            "--entrypoint=",
        ];
        words.extend(fixed.map(str::to_owned));
        words.push(terms.image.id.clone());
        words.extend(command.iter().cloned());
        Ok(words)
    }

    /// Makes the container, which starts with its shim: the command to hold on to it, and what the shim must
    /// know. `env` is the job's, with its secrets; podman has an environment of its own.
    pub fn create(
        &self,
        terms: &Terms<'_>,
        env: &[(String, String)],
        command: &[String],
    ) -> Result<(Confined, Vec<(String, String)>, Container), Failure> {
        let text = environment(env)?;
        let words = self.create_words(terms, command)?;
        let mut all = vec!["create"];
        all.extend(words.iter().map(String::as_str));
        self.ask_with(&all, &text).map_err(|why| {
            failed("image.not_started", format!("No container could be made of the image: {why}."))
        })?;
        let words = |rest: &[&str]| {
            let mut words = self.base();
            words.extend(rest.iter().map(|w| (*w).to_owned()));
            words
        };
        let confined = Confined {
            argv: words(&["start", "--attach", terms.name]),
            cwd: PathBuf::from("/"),
            home: HOME.to_owned(),
            // What stands over it, and the container's init.
            sandbox_depth: if self.init.is_some() { 2 } else { 1 },
        };
        let container = Container {
            supervisor: terms.dir.join(SUPERVISOR),
            inspect: words(&["container", "inspect", "--format", "{{.State.Status}}", terms.name]),
        };
        Ok((confined, self.environment(), container))
    }
}

/// The job's variables as podman reads them: one on each line, as it is.
fn environment(env: &[(String, String)]) -> Result<String, Failure> {
    let mut text = String::new();
    for (name, value) in env {
        // Anything else podman would read as another variable, as a comment, or as one of its own.
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(failed("image.environment", "A variable has a name that an image cannot be given."));
        }
        if value.contains(['\n', '\r']) || name.len() + value.len() >= MOST_LINE {
            let detail = format!(
                "The variable {name} holds a line break or more than {MOST_LINE} bytes, which an image cannot be given; put it into a file."
            );
            return Err(failed("image.environment", detail));
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}={value}");
    }
    Ok(text)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    pub fn podman(data: &Path) -> Podman {
        Podman {
            program: PathBuf::from("/usr/bin/podman"),
            version: "4.3.1".to_owned(),
            storage: data.join("images"),
            volatile: PathBuf::from("/run/berth-1"),
            init: Some(PathBuf::from("/usr/bin/catatonit")),
            terms: crate::images::Terms { longest: Duration::from_secs(60), most_mib: 100, auth_file: None },
        }
    }

    fn words(network: bool, devices: &[String], work: &str) -> Result<Vec<String>, Failure> {
        let image = Image { id: "abc".to_owned(), digest: "sha256:0".to_owned() };
        let terms = Terms {
            name: "job-1",
            image: &image,
            dir: Path::new("/a"),
            work: Path::new(work),
            uid: 600_007,
            network,
            devices,
            secrets: Some(Path::new("/dev/shm/berth-job-1")),
            scratch_mib: 64,
            cgroup: "/berth/x",
            pids: 4_096,
            volumes: &[Bind { from: PathBuf::from("/v"), to: PathBuf::from("/data"), writable: false }],
        };
        podman(Path::new("/d")).create_words(&terms, &["sh".to_owned(), "--privileged".to_owned()])
    }

    fn has(words: &[String], wanted: &[&str]) -> bool {
        words.windows(wanted.len()).any(|w| w.iter().zip(wanted).all(|(a, b)| a == b))
    }

    #[test]
    fn a_container_gets_what_was_asked_and_nothing_more() {
        let devices = ["nvidia.com/gpu=GPU-1".to_owned(), "/dev/nvidia-caps/nvidia-cap30".to_owned()];
        let argv = words(true, &devices, "/w").unwrap();
        for pair in [
            ["--user", "600007:600007"],
            ["--cgroup-parent", "/berth/x"],
            ["--mount", "type=bind,src=/w,dst=/home/job"],
            ["--tmpfs", "/tmp:rw,nosuid,nodev,mode=1777,size=64m"],
            ["--network", "host"],
            ["--ulimit", "nproc=4096:4096"],
            ["--device", "nvidia.com/gpu=GPU-1"],
            ["--device", "/dev/nvidia-caps/nvidia-cap30"],
            ["--env-file", "/dev/stdin"],
            ["--mount", "type=bind,src=/dev/shm/berth-job-1,dst=/run/secrets,ro"],
            ["--mount", "type=bind,src=/v,dst=/data,ro"],
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
        assert!(has(&words(false, &[], "/w").unwrap(), &["--network", "none"]));
        // What the tenant says comes after the image, where podman takes no options.
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
        assert_eq!(words(true, &[], "/w,dst=/etc").unwrap_err().0, "worker.io");
    }

    #[test]
    fn variables_stay_what_they_are() {
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        let text = environment(&[pair("A", "b c \"d\" # e=f"), pair("B", "")]).unwrap();
        assert_eq!(text, "A=b c \"d\" # e=f\nB=\n");
        for bad in ["a\nC=d", "a\r", &"x".repeat(MOST_LINE)] {
            assert_eq!(environment(&[pair("A", bad)]).unwrap_err().0, "image.environment");
        }
        // podman takes a name alone for one of its own variables, and a star for many.
        for bad in ["", "A\nPATH", "#A", "LD_*", "A=B", "A B"] {
            assert_eq!(environment(&[pair(bad, "x")]).unwrap_err().0, "image.environment", "{bad:?}");
        }
    }

    #[test]
    fn limits_are_in_podmans_words() {
        let said = own_limit("nofile", Resource::RLIMIT_NOFILE);
        assert!(said.starts_with("nofile=") && said.contains(':'), "{said}");
    }
}
