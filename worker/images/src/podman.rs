//! The podman of this worker.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_isolation::sandbox::BindMount;
use berth_proto::Spec;
use berth_shim::model::{JobFailure, job_failure};
use serde::{Deserialize, Serialize};

use super::cdi::{SPECIFICATION_DIR, Specifications};
use super::driver_files;
use super::pull::{self, PullSpec};
use super::reference::ImageReference;
use super::registry;
use super::toolkit::Toolkit;

/// The settings of podman. Its cgroups are below the worker's; it logs nothing, because the shim's log has all
/// output; no hook of the host runs, because hooks obey annotations of images. podman from 5.5 reads specifications of
/// devices in the stated directory only; older ones read it always, and `/etc/cdi`.
const SETTINGS: &str = "[containers]\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n\
    lock_type = \"file\"\nhooks_dir = []\ncdi_spec_dirs = [\"/var/run/cdi\"]\n";
/// The name of podman's directory of records about containers, with their variables. It is in memory because of
/// secrets. A container that podman does not know after a restart of the host is removed all the same.
const RECORDS: &str = "libpod";
/// The paths of init programs: podman's own, and common others.
const INITS: [&str; 4] =
    ["/usr/libexec/podman/catatonit", "/usr/bin/catatonit", "/usr/bin/tini", "/usr/bin/dumb-init"];
/// The prefixes of annotations that runtimes and podman obey, such as another system call filter or another program.
/// Older versions of podman copy the annotations of an image to its containers.
const OBEYED_ANNOTATIONS: [&str; 9] = [
    "cdi.k8s.io",
    "io.containers.",
    "io.katacontainers.",
    "io.kubernetes.",
    "io.podman.",
    "module.wasm.",
    "org.criu.",
    "org.systemd.",
    "run.oci.",
];
/// The oldest version with all needed options.
const SINCE: (u32, u32) = (4, 1);
/// The time limit in seconds for podman's first answer. The daemon takes no job before that.
const ANSWERS_WITHIN: u32 = 10;

/// The operator's settings for images.
#[derive(Debug, Clone)]
pub struct ImageLimits {
    /// The longest pull.
    pub longest: Duration,
    /// The largest image.
    pub most_mib: u64,
    /// Credentials for registries for every job, in the form of `podman login`.
    pub auth_file: Option<PathBuf>,
}

/// A working podman.
#[derive(Debug, Clone)]
pub struct Podman {
    pub(super) program: PathBuf,
    version: String,
    /// The directory of images and containers.
    storage: PathBuf,
    /// The directory of state that ends with a boot of the host.
    volatile: PathBuf,
    pub(super) init: Option<PathBuf>,
    limits: ImageLimits,
    /// The specifications of the devices of attempts.
    pub(super) specifications: Specifications,
    toolkit: Option<Arc<Toolkit>>,
}

/// The image of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The id of podman.
    pub id: String,
    /// The digest of the registry, `sha256:…`.
    pub digest: String,
}

/// Creates a link to a directory, in place of any existing file or directory.
fn link(at: &Path, to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(at) {
        Ok(found) if found.is_symlink() && fs::read_link(at)? == to => return Ok(()),
        Ok(found) if found.is_dir() => fs::remove_dir_all(at)?,
        Ok(_) => fs::remove_file(at)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    symlink(to, at)
}

/// The output of an ended podman.
///
/// # Errors
/// The error text of podman.
fn output_text(args: &[&str], out: &Output) -> Result<String, String> {
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned());
    }
    let why = pull::last_error(&String::from_utf8_lossy(&out.stderr), None);
    Err(format!("podman {}: {why}", args.first().unwrap_or(&"")))
}

/// The first annotation of an image that a runtime would obey, from the output of podman. An unreadable output counts
/// as one.
fn obeyed_annotation(annotations: &str) -> Option<String> {
    let mut names = match serde_json::from_str::<Option<BTreeMap<String, serde_json::Value>>>(annotations) {
        Ok(found) => found.unwrap_or_default().into_keys(),
        Err(_) => return Some("without a name".to_owned()),
    };
    let obeyed =
        |name: &String| OBEYED_ANNOTATIONS.iter().any(|prefix| name.to_ascii_lowercase().starts_with(prefix));
    names.find(obeyed).map(|name| name.chars().filter(|c| !c.is_control()).take(100).collect())
}

/// The first two numbers of a version.
fn numbers(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

impl Podman {
    /// A working podman. `data` is the worker's data directory.
    ///
    /// # Errors
    /// The reason why images do not work here.
    pub fn probe(data: &Path, limits: ImageLimits) -> Result<Self, String> {
        let program = ["/usr/bin/podman", "/usr/local/bin/podman"].map(PathBuf::from);
        let program = program.into_iter().find(|p| p.exists()).ok_or("podman is not installed")?;
        if !nix::unistd::geteuid().is_root() {
            return Err("the worker is not root".to_owned());
        }
        let hash = data
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .fold(2_166_136_261u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(16_777_619));
        let init = INITS.map(PathBuf::from).into_iter().find(|p| p.exists());
        let (storage, volatile) = (data.join("images"), PathBuf::from(format!("/run/berth-{hash:08x}")));
        let mut podman = Self {
            program,
            version: String::new(),
            storage,
            volatile,
            init,
            limits,
            specifications: Specifications::new(SPECIFICATION_DIR.into(), &format!("{hash:08x}")),
            toolkit: Toolkit::find().map(Arc::new),
        };
        podman.set_up().map_err(|e| format!("{} cannot be created: {e}", podman.storage.display()))?;
        // The query of the storage driver checks the file system and the runtime too.
        let query = ["info", "--format", "{{.Version.Version}} {{.Store.GraphDriverName}}"];
        let answer = podman.run_within(&query, ANSWERS_WITHIN)?;
        answer.split(' ').next().unwrap_or_default().clone_into(&mut podman.version);
        if numbers(&podman.version) < SINCE {
            return Err(format!("podman {} is older than {}.{}", podman.version, SINCE.0, SINCE.1));
        }
        Ok(podman)
    }

    fn set_up(&self) -> io::Result<()> {
        let (root, records) = (self.storage.join("storage"), self.volatile.join(RECORDS));
        for dir in [&self.storage, &root, &self.volatile, &records] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        }
        link(&root.join(RECORDS), &records)?;
        fs::write(self.settings(), SETTINGS)
    }

    fn settings(&self) -> PathBuf {
        self.storage.join("containers.conf")
    }

    /// The directory of state that ends with a boot of the host.
    pub fn volatile(&self) -> &Path {
        &self.volatile
    }

    /// The name for the isolation report.
    pub fn name(&self) -> String {
        format!("podman {}", self.version)
    }

    /// The program with its arguments before those of a command.
    pub(super) fn base_args(&self) -> Vec<String> {
        let at = |dir: &Path, name: &str| dir.join(name).display().to_string();
        [
            self.program.display().to_string(),
            "--root".to_owned(),
            at(&self.storage, "storage"),
            "--runroot".to_owned(),
            at(&self.volatile, "run"),
            "--tmpdir".to_owned(),
            at(&self.volatile, "tmp"),
        ]
        .to_vec()
    }

    /// The complete environment of podman.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let home = self.storage.display().to_string();
        [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            // A home without credentials.
            ("HOME", home),
            ("XDG_RUNTIME_DIR", self.volatile.display().to_string()),
            ("CONTAINERS_CONF", self.settings().display().to_string()),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .to_vec()
    }

    /// A command of podman, without the worker's environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.base_args().into_iter().skip(1)).args(args).env_clear().envs(self.environment());
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    /// Runs a command and returns its output.
    ///
    /// # Errors
    /// The error text of podman.
    fn run(&self, args: &[&str]) -> Result<String, String> {
        let out = self.command(args).output().map_err(|e| format!("podman cannot be started: {e}"))?;
        output_text(args, &out)
    }

    /// As [`Self::run`], with a time limit in seconds.
    fn run_within(&self, args: &[&str], seconds: u32) -> Result<String, String> {
        let command = self.command(args);
        let mut limited = Command::new("timeout");
        limited.args(["--signal=KILL", &seconds.to_string()]).arg(command.get_program());
        limited.args(command.get_args());
        limited.env_clear().envs(self.environment()).current_dir("/").stdin(Stdio::null());
        let out = limited.output().map_err(|e| format!("podman cannot be started: {e}"))?;
        match out.status.code() {
            // `timeout` ends by its own signal too.
            None | Some(137) => Err(format!("podman did not answer within {seconds} seconds")),
            Some(_) => output_text(args, &out),
        }
    }

    /// As [`Self::run`], with a standard input, which is on no disk and in no argument.
    pub(super) fn run_with_input(&self, args: &[&str], input: &str) -> Result<String, String> {
        let broken = |e: io::Error| format!("podman cannot be started: {e}");
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(broken)?;
        // The pipe closes after the input, so podman sees its end.
        let sent = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
        let output = output_text(args, &child.wait_with_output().map_err(broken)?)?;
        sent.map_err(|e| format!("podman did not read its whole input: {e}"))?;
        Ok(output)
    }

    /// Pulls the image as its registry has it now. `dir` is the attempt's directory, for files of this pull only.
    pub fn pull(
        &self,
        spec: &Spec,
        dir: &Path,
        given_up: &dyn Fn() -> Option<JobFailure>,
        progress: &dyn Fn(String),
    ) -> Result<Image, JobFailure> {
        let image = ImageReference::parse(&spec.image).ok_or_else(|| {
            job_failure("image.invalid", "The name of the image is invalid. Nothing was pulled or charged.")
        })?;
        if image.is_local() {
            return self.find(image.as_str()).map_err(|_| {
                let detail = format!(
                    "The image {} is not among the local images of this node. Nothing was charged.",
                    spec.image
                );
                job_failure("image.pull_failed", detail)
            });
        }
        let io = |e: io::Error| job_failure("worker.io", format!("The image cannot be pulled: {e}."));
        let scratch = dir.join("pull");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&scratch).map_err(io)?;
        let auth = registry::write(dir, self.limits.auth_file.as_deref(), spec.registry_auth.as_ref());
        let auth = auth.map_err(io)?;
        let mut command = self.command(&["pull", "--authfile"]);
        // A pull for every attempt: a tenant without access must not get an image that another tenant pulled.
        command.arg(&auth).arg(format!("docker://{}", image.as_str())).env("TMPDIR", &scratch);
        for proxy in ["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"] {
            if let Some(value) = std::env::var_os(proxy) {
                command.env(proxy, value);
            }
        }
        let pull_spec = PullSpec {
            image: &spec.image,
            scratch: &scratch,
            longest: self.limits.longest,
            most_mib: self.limits.most_mib,
            secret: spec.registry_auth.as_ref().map(|a| a.password.as_str()),
        };
        let pulled = pull::run(command, &pull_spec, given_up, progress);
        for left in [registry::remove(dir), fs::remove_dir_all(&scratch)] {
            if let Err(error) = left {
                tracing::warn!(%error, dir = %dir.display(), "files of a pull cannot be removed");
            }
        }
        pulled?;
        let found = self.find(image.as_str()).map_err(|why| {
            job_failure("image.pull_failed", format!("The image is missing after its pull: {why}."))
        })?;
        self.check_annotations(&found)?;
        Ok(found)
    }

    /// An image in the storage.
    pub fn find(&self, name: &str) -> Result<Image, String> {
        let answer = self.run(&["image", "inspect", "--format", "{{.Id}} {{.Digest}}", name])?;
        let (id, digest) = answer.split_once(' ').ok_or("podman returned no digest")?;
        Ok(Image { id: id.to_owned(), digest: digest.trim().to_owned() })
    }

    /// A variable of an image.
    ///
    /// # Errors
    /// The error text of podman.
    pub fn variable(&self, image: &Image, name: &str) -> Result<Option<String>, String> {
        let all = self.run(&["image", "inspect", "--format", "{{json .Config.Env}}", &image.id])?;
        let all: Option<Vec<String>> = serde_json::from_str(&all).map_err(|e| e.to_string())?;
        let value = |entry: &String| {
            let (key, value) = entry.split_once('=')?;
            (key == name).then(|| value.to_owned())
        };
        Ok(all.unwrap_or_default().iter().find_map(value))
    }

    /// Refuses an image with annotations that a runtime would obey.
    fn check_annotations(&self, image: &Image) -> Result<(), JobFailure> {
        let annotations = self.run(&["image", "inspect", "--format", "{{json .Annotations}}", &image.id]);
        let annotations = annotations.map_err(|why| {
            job_failure("image.pull_failed", format!("The annotations of the image are not readable: {why}."))
        })?;
        match obeyed_annotation(&annotations) {
            None => Ok(()),
            Some(name) => {
                let detail = format!(
                    "The image has the annotation {name}, which controls the container programs of the node. The job was not started."
                );
                Err(job_failure("image.not_started", detail))
            }
        }
    }

    /// True if the list of the driver's files comes from NVIDIA's container toolkit, which opens all boards of the host.
    pub fn has_toolkit(&self) -> bool {
        self.toolkit.is_some()
    }

    /// The driver's files of this host for the boards and slices with these UUIDs.
    pub fn driver_files(&self, uuids: &[&str], now: Instant) -> Vec<BindMount> {
        let listed = self.toolkit.as_ref().and_then(|toolkit| toolkit.files(uuids, now));
        listed.unwrap_or_else(driver_files::list_or_warn)
    }

    /// Ends and removes a container with the specification of its devices. An absent one is no error.
    pub fn remove(&self, name: &str) -> Result<(), String> {
        self.run(&["rm", "--force", "--ignore", "--time", "0", name])?;
        self.specifications
            .remove(name)
            .map_err(|e| format!("the specification of its devices cannot be removed: {e}"))
    }

    /// Removes the specifications of devices that earlier daemons left and that no known container has.
    pub fn sweep(&self, known: &HashSet<String>) {
        self.specifications.sweep(known);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use berth_test_programs::write_program;

    use super::*;

    pub fn podman(data: &Path) -> Podman {
        Podman {
            program: PathBuf::from("/usr/bin/podman"),
            version: "4.3.1".to_owned(),
            storage: data.join("images"),
            volatile: PathBuf::from("/run/berth-1"),
            init: Some(PathBuf::from("/usr/bin/catatonit")),
            limits: ImageLimits { longest: Duration::from_secs(60), most_mib: 100, auth_file: None },
            specifications: Specifications::new(data.join("cdi"), "1"),
            toolkit: None,
        }
    }

    #[test]
    fn podman_reads_the_directory_of_the_specifications() {
        assert!(SETTINGS.contains(&format!("cdi_spec_dirs = [{SPECIFICATION_DIR:?}]\n")), "{SETTINGS}");
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(numbers("4.10.1") > SINCE && numbers("5.0.0-dev") > SINCE && numbers("3.4.4") < SINCE);
        assert_eq!(numbers(""), (0, 0));
    }

    #[test]
    fn an_image_has_no_obeyed_annotations() {
        for plain in ["null", "{}", r#"{"org.opencontainers.image.title": "x", "com.example.run": "y"}"#] {
            assert_eq!(obeyed_annotation(plain), None, "{plain}");
        }
        let obeyed = r#"{"a": "b", "run.oci.seccomp_bpf_data": "AAAA"}"#;
        assert_eq!(obeyed_annotation(obeyed).as_deref(), Some("run.oci.seccomp_bpf_data"));
        assert!(
            obeyed_annotation(r#"{"Io.Podman.x": ""}"#).is_some() && obeyed_annotation("nonsense").is_some()
        );
    }

    #[test]
    fn a_link_takes_the_place_of_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let (at, to, other) = (dir.path().join("at"), dir.path().join("to"), dir.path().join("other"));
        fs::create_dir_all(at.join("within")).unwrap();
        fs::create_dir_all(&to).unwrap();
        for target in [&to, &to, &other, &to] {
            link(&at, target).unwrap();
            assert_eq!(&fs::read_link(&at).unwrap(), target);
        }
        fs::write(at.join("file"), "").unwrap();
        link(&at, &other).unwrap();
        assert!(to.join("file").exists(), "what it led to stays");
    }

    #[test]
    fn a_podman_that_does_not_answer_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("podman");
        let script = "#!/bin/sh\ncase \"$*\" in *info*) echo \"4.3.1 overlay\";; *bad*) exit 3;; *) exec sleep 60;; esac\n";
        write_program(&program, script).unwrap();
        let podman = Podman { program, ..podman(Path::new("/d")) };
        assert_eq!(podman.run_within(&["info"], 30).as_deref(), Ok("4.3.1 overlay"));
        assert!(podman.run_within(&["bad"], 30).unwrap_err().starts_with("podman bad:"));
        let began = std::time::Instant::now();
        assert_eq!(podman.run_within(&["hang"], 1).unwrap_err(), "podman did not answer within 1 seconds");
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }

    #[test]
    fn nothing_of_the_workers_environment_reaches_podman() {
        let podman = podman(Path::new("/d"));
        let command = podman.command(&["rm", "x"]);
        let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        assert_eq!(words.last().map(String::as_str), Some("x"));
        assert!(words.windows(2).any(|w| w == ["--root", "/d/images/storage"]), "{words:?}");
        let names: Vec<_> = command.get_envs().map(|(k, _)| k.to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["CONTAINERS_CONF", "HOME", "PATH", "XDG_RUNTIME_DIR"]);
    }
}
