//! How a command is shut in: bubblewrap where it works, nothing where the operator said so.
//!
//! Inside, the system is read-only, `/tmp` and the home directory are the attempt's own, other
//! processes, other devices and the worker's data are not there, no privilege can be gained, and system
//! calls that no job needs are refused. A worker that runs as root gives each attempt a user of its own,
//! so that what only root, the portal or another attempt may read stays so; any other worker uses a user
//! namespace, in which a job has the worker's own rights to files. docs/isolation.md says what is not
//! kept apart.

mod mounts;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::seccomp;
use mounts::mounts;

/// The home directory inside the sandbox.
pub const HOME: &str = "/home/job";
/// What its user is called there.
pub const USER: &str = "job";
const PASSWD: &str = "/etc/passwd";
/// Inside, where the worker cannot choose users.
const OWN_USER: u32 = 1_000;

/// Ends the words for bubblewrap and begins the command.
const COMMAND: &str = "--";
/// Before the number of a file with a filter of system calls. Which number is known when it starts.
const FILTER: &str = "--add-seccomp-fd";

/// The users that attempts get from a worker that is root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Users {
    /// Changes the user.
    setpriv: PathBuf,
    first: u32,
    count: u32,
}

impl Users {
    /// A user that none of the `taken` is: the job's own place in the range, or the next that is free.
    fn pick(&self, job: &str, taken: &HashSet<u32>) -> Option<u32> {
        let hash = job.bytes().fold(2_166_136_261u32, |h, b| (h ^ u32::from(b)).wrapping_mul(16_777_619));
        let place = |n: u32| self.first + (hash % self.count + n) % self.count;
        (0..self.count).map(place).find(|uid| !taken.contains(uid))
    }
}

/// How this worker runs commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sandbox {
    Bubblewrap {
        program: PathBuf,
        version: (u32, u32),
        hidden: Vec<PathBuf>,
        /// `None` when the worker is not root.
        users: Option<Users>,
        /// A job can be kept from the network.
        cuts_network: bool,
    },
    /// No isolation at all.
    Process,
}

/// What one attempt is shut in with.
#[derive(Debug, Clone)]
pub struct Terms<'a> {
    /// Its home and directory.
    pub work: &'a Path,
    pub uid: u32,
    /// It shares the host's network; otherwise it has none.
    pub network: bool,
    /// Device nodes of the host that are its own.
    pub devices: &'a [PathBuf],
    /// Its files with secrets.
    pub secrets: Option<&'a Path>,
    /// What `/tmp`, `/var/tmp` and `/dev/shm` hold at most, each.
    pub scratch_mib: u64,
    /// What it sees as the list of users.
    pub passwd: Option<&'a Path>,
    /// Its volumes.
    pub volumes: &'a [Bind],
}

/// A directory of the host that a job sees at a place of its own: below its home, or directly at the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    pub from: PathBuf,
    pub to: PathBuf,
    pub writable: bool,
}

/// A command line with what the shim must know of it.
pub struct Confined {
    pub argv: Vec<String>,
    pub cwd: PathBuf,
    pub home: String,
    pub sandbox_depth: u32,
}

/// Variables that the C library and its loader read in whatever program starts. What makes the sandbox starts
/// with more rights than the job, so they are set only for the job's own command.
const LATE: [&str; 10] = [
    "GCONV_PATH",
    "GETCONF_DIR",
    "GLIBC_TUNABLES",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "LOCPATH",
    "NLSPATH",
    "RESOLV_HOST_CONF",
    "RES_OPTIONS",
    "TZDIR",
];

/// Whether a variable is set only for the job's own command.
pub fn is_late(name: &str) -> bool {
    name.starts_with("LD_") || LATE.contains(&name)
}

/// A command with those variables of the job that are set only for it.
pub fn with_late(env: &HashMap<String, String>, command: Vec<String>) -> Vec<String> {
    let mut late: Vec<String> =
        env.iter().filter(|(name, _)| is_late(name)).map(|(name, value)| format!("{name}={value}")).collect();
    if late.is_empty() {
        return command;
    }
    late.sort_unstable();
    std::iter::once("/usr/bin/env".to_owned()).chain(late).chain(command).collect()
}

fn find_program(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/usr/local/bin", "/bin"].iter().map(|dir| Path::new(dir).join(name)).find(|p| p.exists())
}

/// The first two numbers in what `bwrap --version` says; nothing of it is as good as the oldest.
fn version_in(said: &str) -> (u32, u32) {
    let mut numbers = said.split_whitespace().last().unwrap_or_default().split('.').map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    (next(), next())
}

/// Puts the filters of system calls into files that the command will inherit, and their numbers into its
/// words. The files must stay open until it has started.
pub fn open_filters(argv: &[String]) -> io::Result<(Vec<String>, Vec<OwnedFd>)> {
    let (mut argv, mut files) = (argv.to_vec(), Vec::new());
    let mut filters = seccomp::filters().map_err(io::Error::other)?.iter();
    let mut awaited = false;
    for word in &mut argv {
        if word.as_str() == COMMAND {
            break;
        }
        if awaited {
            let filter = filters.next().ok_or(io::ErrorKind::InvalidInput)?;
            // Without the flag that would close it in the command.
            let mut file = File::from(memfd_create(c"filter", MFdFlags::empty())?);
            file.write_all(filter)?;
            file.rewind()?;
            *word = file.as_raw_fd().to_string();
            files.push(OwnedFd::from(file));
        }
        awaited = word.as_str() == FILTER;
    }
    Ok((argv, files))
}

impl Sandbox {
    /// Bubblewrap if it can really run here. `hidden` are directories that no tenant may see; `users` is
    /// the range of users for attempts, first and number.
    pub fn probe(hidden: Vec<PathBuf>, users: (u32, u32)) -> Result<Self, String> {
        let program = find_program("bwrap").ok_or("bubblewrap (bwrap) is not installed")?;
        let users = if nix::unistd::geteuid().is_root() {
            let setpriv = find_program("setpriv").ok_or("setpriv (of util-linux) is not installed")?;
            Some(Users { setpriv, first: users.0, count: users.1.max(1) })
        } else {
            None
        };
        let said = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
        let said = said.map_err(|e| format!("bubblewrap cannot be started: {e}"))?;
        let version = version_in(&String::from_utf8_lossy(&said.stdout));
        let mut sandbox = Self::Bubblewrap { program, version, hidden, users, cuts_network: true };
        sandbox.try_out(true)?;
        if let Err(why) = sandbox.try_out(false) {
            tracing::warn!(why, "jobs cannot be kept from the network here");
            if let Self::Bubblewrap { cuts_network, .. } = &mut sandbox {
                *cuts_network = false;
            }
        }
        Ok(sandbox)
    }

    fn try_out(&self, network: bool) -> Result<(), String> {
        let uid = self.pick_user("", &HashSet::new()).unwrap_or(0);
        let work = Path::new("/");
        let terms = Terms {
            work,
            uid,
            network,
            devices: &[],
            secrets: None,
            scratch_mib: 1,
            passwd: None,
            volumes: &[],
        };
        let trial = self.confine(&terms, vec!["true".to_owned()]);
        let (argv, _files) = open_filters(&trial.argv).map_err(|e| e.to_string())?;
        let (first, rest) = argv.split_first().ok_or("no command")?;
        let out = Command::new(first)
            .args(rest)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("bubblewrap cannot be started: {e}"))?;
        if out.status.success() {
            Ok(())
        } else {
            let said = String::from_utf8_lossy(&out.stderr);
            // As on Ubuntu since 23.10.
            let restricted = fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
            let hint = if restricted.is_ok_and(|on| on.trim() == "1") && !nix::unistd::geteuid().is_root() {
                " (AppArmor keeps user namespaces from it: give it a profile with userns, or run the worker as root)"
            } else {
                ""
            };
            Err(format!("bubblewrap does not work here: {}{hint}", said.trim()))
        }
    }

    pub const fn isolated(&self) -> bool {
        matches!(self, Self::Bubblewrap { .. })
    }

    /// Whether each attempt has a user of its own.
    pub const fn has_users(&self) -> bool {
        matches!(self, Self::Bubblewrap { users: Some(_), .. })
    }

    /// Whether a job can be kept from the network.
    pub const fn cuts_network(&self) -> bool {
        matches!(self, Self::Bubblewrap { cuts_network: true, .. })
    }

    /// In words.
    pub fn name(&self) -> String {
        match self {
            Self::Bubblewrap { version: (major, minor), .. } => format!("bubblewrap {major}.{minor}"),
            Self::Process => "none".to_owned(),
        }
    }

    /// Whom the files of a job belong to, when that is not this worker. `taken` are users whose files
    /// are still there.
    pub fn pick_user(&self, job: &str, taken: &HashSet<u32>) -> Option<u32> {
        match self {
            Self::Bubblewrap { users: Some(users), .. } => users.pick(job, taken),
            _ => None,
        }
    }

    /// The list of users for a job: its own first, by the name of [`USER`], then the host's. Without an entry ssh does
    /// not start, and what asks for the user's name fails. `None` where a job sees the host's own.
    pub fn passwd(&self, uid: Option<u32>) -> Option<String> {
        let uid = match self {
            Self::Process => return None,
            Self::Bubblewrap { users: Some(_), .. } => uid?,
            Self::Bubblewrap { users: None, .. } => OWN_USER,
        };
        let host = std::fs::read_to_string(PASSWD).ok()?;
        Some(format!("{USER}:x:{uid}:{uid}::{HOME}:/bin/bash\n{host}"))
    }

    /// The command as it is really started.
    pub fn confine(&self, terms: &Terms<'_>, command: Vec<String>) -> Confined {
        match self {
            // The shim sees for itself when there is no such command.
            Self::Process => Confined {
                argv: command,
                cwd: terms.work.to_owned(),
                home: terms.work.display().to_string(),
                sandbox_depth: 0,
            },
            Self::Bubblewrap { program, version, hidden, users, .. } => {
                let mut argv: Vec<String> = vec![program.display().to_string()];
                let mut add = |words: &[&str]| argv.extend(words.iter().map(|w| (*w).to_owned()));
                namespaces(&mut add, terms, users.is_some());
                mounts(&mut add, terms, *version, hidden);
                for _ in 0..seccomp::PROGRAMS {
                    add(&[FILTER, "-"]);
                }
                add(&["--chdir", HOME, COMMAND]);
                if let Some(users) = users {
                    let id = terms.uid.to_string();
                    add(&[
                        &users.setpriv.display().to_string(),
                        "--reuid",
                        &id,
                        "--regid",
                        &id,
                        "--clear-groups",
                    ]);
                    add(&["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"]);
                }
                // The shell turns a command that is missing or not executable into 127 or 126, and says so.
                argv.extend(["/bin/sh", "-c", "exec \"$@\"", "berth"].map(str::to_owned));
                argv.extend(command);
                // bwrap itself and the first process of its namespace.
                Confined { argv, cwd: PathBuf::from("/"), home: HOME.to_owned(), sandbox_depth: 2 }
            }
        }
    }
}

/// What the attempt shares with nobody, and the rights that it loses.
fn namespaces(add: &mut impl FnMut(&[&str]), terms: &Terms<'_>, own_user: bool) {
    add(&["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
    if !terms.network {
        // With nothing in it but a loopback of its own.
        add(&["--unshare-net"]);
    }
    // It ends with its shim, which outlives the daemon.
    add(&["--die-with-parent", "--new-session", "--hostname", "berth", "--cap-drop", "ALL"]);
    if own_user {
        // Only to change the user; setpriv gives them up with everything else.
        add(&["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]);
    } else {
        let own = OWN_USER.to_string();
        add(&["--unshare-user", "--uid", &own, "--gid", &own]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(count: u32) -> Users {
        Users { setpriv: PathBuf::from("/usr/bin/setpriv"), first: 600_000, count }
    }

    fn boxed(network: bool, own_user: bool) -> Vec<String> {
        let sandbox = Sandbox::Bubblewrap {
            program: PathBuf::from("/usr/bin/bwrap"),
            version: (0, 8),
            hidden: ["/secret/worker", "/secret", "/tmp/worker", "/secret"].map(PathBuf::from).into(),
            users: own_user.then(|| users(10)),
            cuts_network: true,
        };
        let devices = [PathBuf::from("/dev/nvidia3")];
        let secrets = Some(Path::new("/dev/shm/berth-x"));
        let work = Path::new("/w");
        let bind = |to: &str, writable| Bind { from: PathBuf::from("/v"), to: PathBuf::from(to), writable };
        let volumes = [bind("/home/job/in", false), bind("/secret-not", true)];
        // One at the root only where a home of one's own is tried too.
        let volumes = if own_user { &volumes[..] } else { &volumes[..1] };
        let terms = Terms {
            work,
            uid: 600_007,
            network,
            devices: &devices,
            secrets,
            scratch_mib: 2,
            passwd: Some(Path::new("/w/../passwd")),
            volumes,
        };
        sandbox.confine(&terms, vec!["echo".to_owned(), "--add-seccomp-fd".to_owned(), "x".to_owned()]).argv
    }

    fn has(argv: &[String], words: &[&str]) -> bool {
        argv.windows(words.len()).any(|w| w.iter().zip(words).all(|(a, b)| a == b))
    }

    #[test]
    fn a_user_is_not_given_twice() {
        let (users, mut taken) = (users(3), HashSet::new());
        for _ in 0..3 {
            let uid = users.pick("job", &taken).unwrap();
            assert!((600_000..600_003).contains(&uid) && taken.insert(uid), "{uid}");
        }
        assert_eq!(users.pick("job", &taken), None, "the range is used up");
        taken.remove(&600_001);
        assert_eq!(users.pick("another", &taken), Some(600_001));
    }

    #[test]
    fn the_words_say_what_was_asked() {
        let open = boxed(true, true);
        assert!(!has(&open, &["--unshare-net"]) && has(&boxed(false, true), &["--unshare-net"]));
        assert!(has(&open, &["--dev-bind", "/dev/nvidia3", "/dev/nvidia3"]));
        assert!(has(&open, &["--ro-bind", "/w/../passwd", "/etc/passwd"]));
        assert!(has(&open, &["--tmpfs", "/secret"]) && has(&open, &["--bind", "/w", HOME]));
        assert!(has(&open, &["--ro-bind", "/dev/shm/berth-x", "/run/secrets"]));
        assert_eq!(open.iter().filter(|w| *w == "/secret").count(), 2, "mounted once, and made read-only");
        assert!(!has(&open, &["/tmp/worker"]) && !has(&open, &["/secret/worker"]), "they are hidden already");
        assert!(has(&open, &["--size", "2097152", "--perms", "1777", "--tmpfs", "/tmp"]));
        assert!(
            has(&open, &["--ro-bind", "/v", "/home/job/in"]) && has(&open, &["--bind", "/v", "/secret-not"])
        );
        assert!(!has(&open, &["--ro-bind", "/", "/"]) && has(&open, &["--remount-ro", "/"]));
        let plain = boxed(true, false);
        assert!(has(&plain, &["--ro-bind", "/", "/"]) && !has(&plain, &["--remount-ro", "/"]));
        assert!(has(&open, &["--reuid", "600007", "--regid", "600007", "--clear-groups"]));
        assert!(!has(&open, &["--unshare-user"]) && has(&boxed(true, false), &["--unshare-user"]));
        let seccomp = open.iter().position(|w| w == FILTER).unwrap();
        assert!(seccomp < open.iter().position(|w| w == COMMAND).unwrap());
    }

    #[test]
    fn without_a_sandbox_the_command_is_started_itself() {
        let (work, devices) = (Path::new("/w"), []);
        let terms = Terms {
            work,
            uid: 0,
            network: true,
            devices: &devices,
            secrets: None,
            volumes: &[],
            scratch_mib: 2,
            passwd: None,
        };
        assert_eq!(Sandbox::Process.passwd(Some(7)), None);
        let confined = Sandbox::Process.confine(&terms, vec!["echo".to_owned(), "x".to_owned()]);
        assert_eq!((confined.argv, confined.sandbox_depth), (vec!["echo".to_owned(), "x".to_owned()], 0));
        assert_eq!((confined.cwd.as_path(), confined.home.as_str()), (work, "/w"));
    }

    #[test]
    fn filters_are_for_bubblewrap_and_not_for_the_command() {
        let argv = boxed(true, true);
        let (with, files) = open_filters(&argv).unwrap();
        assert_eq!(files.len(), seccomp::PROGRAMS);
        let numbers = files.iter().map(|f| f.as_raw_fd().to_string());
        for number in numbers {
            assert!(has(&with, &[FILTER, &number]));
        }
        assert!(has(&with, &["echo", FILTER, "x"]), "what the job says stays as it is");
        let (plain, none) = open_filters(&["sh".to_owned()]).unwrap();
        assert_eq!((plain, none.len()), (vec!["sh".to_owned()], 0));
    }

    #[test]
    fn what_the_loader_reads_is_for_the_command_alone() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let env = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<HashMap<_, _>>()
        };
        assert_eq!(with_late(&env(&[("SEED", "7")]), words("python3 a.py")), words("python3 a.py"));
        let env = env(&[("LD_PRELOAD", "/w/x.so"), ("SEED", "7"), ("GCONV_PATH", "/w")]);
        assert_eq!(
            with_late(&env, words("python3 a.py")),
            words("/usr/bin/env GCONV_PATH=/w LD_PRELOAD=/w/x.so python3 a.py")
        );
        for name in env.keys() {
            assert_eq!(is_late(name), name != "SEED", "{name}");
        }
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(version_in("bubblewrap 0.8.0\n"), (0, 8));
        assert_eq!(version_in("bubblewrap 1.2"), (1, 2));
        assert_eq!(version_in(""), (0, 0));
    }
}
