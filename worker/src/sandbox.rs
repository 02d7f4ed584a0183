//! How a command is shut in: bubblewrap where it works, nothing where the operator said so.
//!
//! Inside, the system is read-only, `/tmp` and the home directory are the attempt's own, other
//! processes and the worker's data are not there, and no privilege can be gained. A worker that runs as
//! root gives each attempt a user of its own, so that what only root or the portal may read stays so;
//! any other worker uses a user namespace, in which a job has the worker's own rights to files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The home directory inside the sandbox.
pub const HOME: &str = "/home/job";

/// The users that attempts get from a worker that is root; no host gives these to people.
const FIRST_UID: u32 = 600_000;
const UIDS: u32 = 100_000;

/// How this worker runs commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sandbox {
    Bubblewrap {
        program: PathBuf,
        hidden: Vec<PathBuf>,
        /// Drops root for the attempt's own user; `None` when the worker is not root.
        setpriv: Option<PathBuf>,
    },
    /// No isolation at all.
    Process,
}

/// A command line with what the shim must know of it.
pub struct Confined {
    pub argv: Vec<String>,
    pub cwd: PathBuf,
    pub home: String,
    pub sandbox_depth: u32,
}

fn find_program(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/usr/local/bin", "/bin"].iter().map(|dir| Path::new(dir).join(name)).find(|p| p.exists())
}

impl Sandbox {
    /// Bubblewrap if it can really run here. `hidden` are directories that no tenant may see.
    pub fn probe(hidden: Vec<PathBuf>) -> Result<Self, String> {
        let program = find_program("bwrap").ok_or("bubblewrap (bwrap) is not installed")?;
        let setpriv = if nix::unistd::geteuid().is_root() {
            Some(find_program("setpriv").ok_or("setpriv (of util-linux) is not installed")?)
        } else {
            None
        };
        let sandbox = Self::Bubblewrap { program, hidden, setpriv };
        let trial = sandbox.confine(Path::new("/"), vec!["true".to_owned()], FIRST_UID);
        let (first, rest) = trial.argv.split_first().ok_or("no command")?;
        let out = Command::new(first)
            .args(rest)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("bubblewrap cannot be started: {e}"))?;
        if out.status.success() {
            Ok(sandbox)
        } else {
            Err(format!("bubblewrap does not work here: {}", String::from_utf8_lossy(&out.stderr).trim()))
        }
    }

    pub const fn isolated(&self) -> bool {
        matches!(self, Self::Bubblewrap { .. })
    }

    /// Whom the files of a job belong to, when that is not this worker.
    pub fn owner(&self, job: &str) -> Option<u32> {
        let hash = job.bytes().fold(2_166_136_261u32, |h, b| (h ^ u32::from(b)).wrapping_mul(16_777_619));
        match self {
            Self::Bubblewrap { setpriv: Some(_), .. } => Some(FIRST_UID + hash % UIDS),
            _ => None,
        }
    }

    /// The command as it is really started, with `work` as its home and directory, for the user `uid`.
    pub fn confine(&self, work: &Path, command: Vec<String>, uid: u32) -> Confined {
        // The shell turns a command that is missing or not executable into 127 or 126, and says so.
        let run = ["/bin/sh", "-c", "exec \"$@\"", "berth"].map(str::to_owned).into_iter().chain(command);
        match self {
            Self::Process => Confined {
                argv: run.collect(),
                cwd: work.to_owned(),
                home: work.display().to_string(),
                sandbox_depth: 0,
            },
            Self::Bubblewrap { program, hidden, setpriv } => {
                let mut argv: Vec<String> = vec![program.display().to_string()];
                let mut add = |words: &[&str]| argv.extend(words.iter().map(|w| (*w).to_owned()));
                add(&["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]);
                add(&["--hostname", "berth", "--cap-drop", "ALL"]);
                if setpriv.is_some() {
                    // Only to change the user; setpriv gives them up with everything else.
                    add(&["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]);
                } else {
                    add(&["--unshare-user", "--uid", "1000", "--gid", "1000"]);
                }
                add(&["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]);
                add(&["--perms", "1777", "--tmpfs", "/tmp", "--perms", "1777", "--tmpfs", "/var/tmp"]);
                // Sockets of the host's services are in /run; only the resolver's file is needed there.
                add(&["--tmpfs", "/home", "--tmpfs", "/root", "--tmpfs", "/run"]);
                add(&["--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve"]);
                for dir in hidden {
                    add(&["--tmpfs", &dir.display().to_string()]);
                }
                add(&["--bind", &work.display().to_string(), HOME, "--chdir", HOME, "--"]);
                if let Some(setpriv) = setpriv {
                    let id = uid.to_string();
                    add(&[&setpriv.display().to_string(), "--reuid", &id, "--regid", &id, "--clear-groups"]);
                    add(&["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"]);
                }
                argv.extend(run);
                // bwrap itself and the first process of its namespace.
                Confined { argv, cwd: PathBuf::from("/"), home: HOME.to_owned(), sandbox_depth: 2 }
            }
        }
    }
}
