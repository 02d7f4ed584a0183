//! Attempts that run in an image: podman fetches it, makes a container of it, and removes both.
//!
//! The container runs under the same shim, cgroups and records as any other command; this only says what
//! podman is told. Every word for podman comes from here, never from a tenant, except the image's name and
//! the command. The images have a place of their own, apart from those that people of the host have.
//! Blocking. docs/images.md says what holds for them.

pub mod cdi;
pub mod container;
pub mod pull;
pub mod reference;
pub mod registry;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use berth_proto::Spec;
use serde::{Deserialize, Serialize};

use reference::Reference;

/// A code and a sentence.
pub type Failure = (String, String);

pub fn failed(code: &str, detail: impl Into<String>) -> Failure {
    (code.to_owned(), detail.into())
}

/// podman as this worker uses it. Cgroups are made where the worker's are; nothing is logged by it, since the
/// shim's file has everything; no hook of the host runs, since hooks take words of images as orders.
const SETTINGS: &str = "[containers]\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n\
    lock_type = \"file\"\nhooks_dir = []\n";
/// What podman calls the directory of its own records: what containers were made of, variables included. It is
/// kept in memory, since secrets are among them, and a container that podman does not know any more after a
/// restart of the host is removed all the same.
const RECORDS: &str = "libpod";
/// Where podman looks for an init, and where others put theirs.
const INITS: [&str; 4] =
    ["/usr/libexec/podman/catatonit", "/usr/bin/catatonit", "/usr/bin/tini", "/usr/bin/dumb-init"];
/// Annotations that runtimes of containers and podman read as orders: a filter of system calls in place of
/// podman's, a program to hand over to. Older versions of podman copy those of an image into its containers.
const ORDERS: [&str; 8] = [
    "io.containers.",
    "io.katacontainers.",
    "io.kubernetes.",
    "io.podman.",
    "module.wasm.",
    "org.criu.",
    "org.systemd.",
    "run.oci.",
];
/// The oldest version that has everything that is asked of it here.
const SINCE: (u32, u32) = (4, 1);
/// Seconds for podman's first answer: until then the daemon takes up no job.
const ANSWERS_WITHIN: u32 = 10;

/// What the operator says of images.
#[derive(Debug, Clone)]
pub struct Terms {
    /// A pull may take so long.
    pub longest: Duration,
    /// And an image be so large.
    pub most_mib: u64,
    /// Credentials for registries that hold for every job, in the form of `podman login`.
    pub auth_file: Option<PathBuf>,
}

/// A podman that works.
#[derive(Debug, Clone)]
pub struct Podman {
    program: PathBuf,
    version: String,
    /// Images and containers.
    storage: PathBuf,
    /// What is gone after a restart of the host, as podman must see.
    volatile: PathBuf,
    init: Option<PathBuf>,
    terms: Terms,
}

/// The image that an attempt has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// podman's own name for it.
    pub id: String,
    /// What its registry calls exactly this image, `sha256:…`.
    pub digest: String,
}

/// Makes a link to a directory, in place of whatever else is there.
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

/// What a podman that has ended printed; what it said of an error when it failed.
fn printed(words: &[&str], out: &Output) -> Result<String, String> {
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned());
    }
    let why = pull::last_words(&String::from_utf8_lossy(&out.stderr), None);
    Err(format!("podman {}: {why}", words.first().unwrap_or(&"")))
}

/// The first of an image's annotations, as podman prints them, that is an order; what cannot be read is one.
fn order_in(annotations: &str) -> Option<String> {
    let mut names = match serde_json::from_str::<Option<BTreeMap<String, serde_json::Value>>>(annotations) {
        Ok(found) => found.unwrap_or_default().into_keys(),
        Err(_) => return Some("without a name".to_owned()),
    };
    let order = |name: &String| ORDERS.iter().any(|begin| name.to_ascii_lowercase().starts_with(begin));
    names.find(order).map(|name| name.chars().filter(|c| !c.is_control()).take(100).collect())
}

/// The first two numbers of a version.
fn numbers(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

impl Podman {
    /// A podman that works here, or why there is none. `data` is the worker's own directory.
    pub fn probe(data: &Path, terms: Terms) -> Result<Self, String> {
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
        let mut podman = Self { program, version: String::new(), storage, volatile, init, terms };
        podman.set_up().map_err(|e| format!("{} cannot be made: {e}", podman.storage.display()))?;
        // Asked for the storage it finds out whether that works on this file system, and that there is a runtime.
        let asked = ["info", "--format", "{{.Version.Version}} {{.Store.GraphDriverName}}"];
        let said = podman.ask_within(&asked, ANSWERS_WITHIN)?;
        said.split(' ').next().unwrap_or_default().clone_into(&mut podman.version);
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

    /// Where it keeps what is gone after a restart of the host.
    pub fn volatile(&self) -> &Path {
        &self.volatile
    }

    /// In words.
    pub fn name(&self) -> String {
        format!("podman {}", self.version)
    }

    /// Its words before those that say what to do.
    fn base(&self) -> Vec<String> {
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

    /// All of its environment.
    fn environment(&self) -> Vec<(String, String)> {
        let home = self.storage.display().to_string();
        [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            // Nobody's credentials are there.
            ("HOME", home),
            ("XDG_RUNTIME_DIR", self.volatile.display().to_string()),
            ("CONTAINERS_CONF", self.settings().display().to_string()),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .to_vec()
    }

    /// podman as this worker uses it, with nothing of the worker's environment.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.base().into_iter().skip(1)).args(words).env_clear().envs(self.environment());
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    /// What it prints; what it says of an error when that fails.
    fn ask(&self, words: &[&str]) -> Result<String, String> {
        let out = self.command(words).output().map_err(|e| format!("podman cannot be started: {e}"))?;
        printed(words, &out)
    }

    /// As [`Self::ask`], for no longer than a number of seconds.
    fn ask_within(&self, words: &[&str], seconds: u32) -> Result<String, String> {
        let asked = self.command(words);
        let mut limited = Command::new("timeout");
        limited.args(["--signal=KILL", &seconds.to_string()]).arg(asked.get_program()).args(asked.get_args());
        limited.env_clear().envs(self.environment()).current_dir("/").stdin(Stdio::null());
        let out = limited.output().map_err(|e| format!("podman cannot be started: {e}"))?;
        match out.status.code() {
            // The signal ends what sends it too.
            None | Some(137) => Err(format!("podman did not answer within {seconds} seconds")),
            Some(_) => printed(words, &out),
        }
    }

    /// As [`Self::ask`], for what podman reads from its standard input: that is on no disk and in no argument.
    fn ask_with(&self, words: &[&str], input: &str) -> Result<String, String> {
        let broken = |e: io::Error| format!("podman cannot be started: {e}");
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(broken)?;
        // Closed when all is written, so that it ends there.
        let told = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
        let said = printed(words, &child.wait_with_output().map_err(broken)?)?;
        told.map_err(|e| format!("podman did not hear everything: {e}"))?;
        Ok(said)
    }

    /// Makes sure that the image is here, as its registry has it now. `dir` is the attempt's own, for what
    /// only this pull may see.
    pub fn fetch(
        &self,
        spec: &Spec,
        dir: &Path,
        given_up: &dyn Fn() -> Option<Failure>,
        tell: &dyn Fn(String),
    ) -> Result<Image, Failure> {
        let image = Reference::parse(&spec.image).ok_or_else(|| {
            failed("image.invalid", "That is not the name of an image in a registry, so nothing was pulled.")
        })?;
        if image.is_local() {
            return self.find(image.as_str()).map_err(|_| {
                let detail =
                    format!("{} is not among the images that the operator put on this node.", spec.image);
                failed("image.pull_failed", detail)
            });
        }
        let io = |e: io::Error| failed("worker.io", format!("The image cannot be pulled: {e}."));
        let scratch = dir.join("pull");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&scratch).map_err(io)?;
        let auth = registry::write(dir, self.terms.auth_file.as_deref(), spec.registry_auth.as_ref());
        let auth = auth.map_err(io)?;
        let mut command = self.command(&["pull", "--authfile"]);
        // Always asked for anew: who may not have it there does not get it because somebody else did.
        command.arg(&auth).arg(format!("docker://{}", image.as_str())).env("TMPDIR", &scratch);
        for proxy in ["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"] {
            if let Some(value) = std::env::var_os(proxy) {
                command.env(proxy, value);
            }
        }
        let terms = pull::Terms {
            image: &spec.image,
            scratch: &scratch,
            longest: self.terms.longest,
            most_mib: self.terms.most_mib,
            secret: spec.registry_auth.as_ref().map(|a| a.password.as_str()),
        };
        let done = pull::run(command, &terms, given_up, tell);
        for left in [registry::remove(dir), fs::remove_dir_all(&scratch)] {
            if let Err(error) = left {
                tracing::warn!(%error, dir = %dir.display(), "what a pull left behind cannot be removed");
            }
        }
        done?;
        let found = self
            .find(image.as_str())
            .map_err(|why| failed("image.pull_failed", format!("It is not there after the pull: {why}.")))?;
        self.check_annotations(&found)?;
        Ok(found)
    }

    /// An image that is here.
    pub fn find(&self, name: &str) -> Result<Image, String> {
        let said = self.ask(&["image", "inspect", "--format", "{{.Id}} {{.Digest}}", name])?;
        let (id, digest) = said.split_once(' ').ok_or("podman names no digest")?;
        Ok(Image { id: id.to_owned(), digest: digest.trim().to_owned() })
    }

    /// Refuses an image that gives orders to what makes its container.
    fn check_annotations(&self, image: &Image) -> Result<(), Failure> {
        let said = self.ask(&["image", "inspect", "--format", "{{json .Annotations}}", &image.id]);
        let said = said.map_err(|why| {
            failed("image.pull_failed", format!("Its annotations cannot be read after the pull: {why}."))
        })?;
        match order_in(&said) {
            None => Ok(()),
            Some(name) => {
                let detail = format!(
                    "The image has the annotation {name}, an order to the node's own programs for containers, so it was not started."
                );
                Err(failed("image.not_started", detail))
            }
        }
    }

    /// Ends and removes a container; one that is not there is what is wanted.
    pub fn remove(&self, name: &str) -> Result<(), String> {
        self.ask(&["rm", "--force", "--ignore", "--time", "0", name]).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(numbers("4.10.1") > SINCE && numbers("5.0.0-dev") > SINCE && numbers("3.4.4") < SINCE);
        assert_eq!(numbers(""), (0, 0));
    }

    #[test]
    fn an_image_gives_no_orders() {
        for plain in ["null", "{}", r#"{"org.opencontainers.image.title": "x", "com.example.run": "y"}"#] {
            assert_eq!(order_in(plain), None, "{plain}");
        }
        let order = r#"{"a": "b", "run.oci.seccomp_bpf_data": "AAAA"}"#;
        assert_eq!(order_in(order).as_deref(), Some("run.oci.seccomp_bpf_data"));
        assert!(order_in(r#"{"Io.Podman.x": ""}"#).is_some() && order_in("nonsense").is_some());
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
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let podman = Podman { program, ..container::tests::podman(Path::new("/d")) };
        assert_eq!(podman.ask_within(&["info"], 30).as_deref(), Ok("4.3.1 overlay"));
        assert!(podman.ask_within(&["bad"], 30).unwrap_err().starts_with("podman bad:"));
        let began = std::time::Instant::now();
        assert_eq!(podman.ask_within(&["hang"], 1).unwrap_err(), "podman did not answer within 1 seconds");
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }

    #[test]
    fn nothing_of_the_workers_environment_reaches_podman() {
        let podman = container::tests::podman(Path::new("/d"));
        let command = podman.command(&["rm", "x"]);
        let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        assert_eq!(words.last().map(String::as_str), Some("x"));
        assert!(words.windows(2).any(|w| w == ["--root", "/d/images/storage"]), "{words:?}");
        let names: Vec<_> = command.get_envs().map(|(k, _)| k.to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["CONTAINERS_CONF", "HOME", "PATH", "XDG_RUNTIME_DIR"]);
    }
}
