//! The sandbox of a command: bubblewrap, or none if the operator allows that.
//!
//! Inside, the system is read-only, `/tmp` and the home directory belong to the attempt, other processes, other
//! devices and the worker's data are absent, no privilege can be gained, and system calls that no job needs are
//! refused. A worker with root rights gives each attempt its own user, so files of root and of other attempts stay
//! unreadable. Any other worker uses a user namespace, in which a job has the worker's rights to files.
//! docs/isolation.md lists the gaps.

mod files;
mod mounts;
mod network;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use self::files::{FILTER, STATUS};
use self::mounts::mounts;
use super::seccomp;

pub use self::files::{SandboxFiles, open_files};
pub use self::network::{NetworkNamespace, SandboxNetwork};

/// The home directory inside the sandbox.
pub const HOME: &str = "/home/job";
/// The name of the job's user inside.
pub const USER: &str = "job";
/// The directory of the secret files inside.
pub const SECRETS_DIR: &str = "/run/secrets";
const PASSWD: &str = "/etc/passwd";
/// The number of starts of a command whose sandbox is incomplete. bubblewrap fails if another process unmounts
/// something on the host while it copies the mounts (containers/bubblewrap, number 650).
pub const MAX_STARTS: u32 = 5;
/// The user inside if the worker cannot choose users.
const OWN_USER: u32 = 1_000;

/// The argument between the options of bubblewrap and the command.
const COMMAND: &str = "--";

/// The range of users for attempts, for a worker with root rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobUsers {
    /// The program that changes the user.
    setpriv: PathBuf,
    first: u32,
    count: u32,
}

impl JobUsers {
    /// A user that is not `taken`: the job's own place in the range, or the next free one.
    fn pick(&self, job: &str, taken: &HashSet<u32>) -> Option<u32> {
        let hash = job.bytes().fold(2_166_136_261u32, |h, b| (h ^ u32::from(b)).wrapping_mul(16_777_619));
        let place = |n: u32| self.first + (hash % self.count + n) % self.count;
        (0..self.count).map(place).find(|uid| !taken.contains(uid))
    }
}

/// The way in which this worker runs commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sandbox {
    Bubblewrap {
        program: PathBuf,
        version: (u32, u32),
        hidden: Vec<PathBuf>,
        /// `None`: the worker has no root rights.
        users: Option<JobUsers>,
        /// Jobs without network are possible.
        cuts_network: bool,
    },
    /// No isolation at all.
    Process,
}

/// The sandbox of one attempt.
#[derive(Debug, Clone)]
pub struct SandboxSpec<'a> {
    /// The job's directory, which is its home inside.
    pub work: &'a Path,
    pub uid: u32,
    pub network: SandboxNetwork<'a>,
    /// Device nodes of the host for this attempt.
    pub devices: &'a [PathBuf],
    /// The directory of the secret files.
    pub secrets: Option<&'a Path>,
    /// The limit of each of `/tmp`, `/var/tmp` and `/dev/shm`.
    pub scratch_mib: u64,
    /// The file that is `/etc/passwd` inside.
    pub passwd: Option<&'a Path>,
    pub volumes: &'a [BindMount],
    /// The group of its organization for volumes on host mounts, in addition to its own. Only with a user of its own.
    pub storage_group: Option<u32>,
}

/// A directory or file of the host with its path in a job: a directory is below the home, or directly at the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindMount {
    pub from: PathBuf,
    pub to: PathBuf,
    pub writable: bool,
}

/// A command line in its sandbox, as the shim starts it.
pub struct ConfinedCommand {
    pub argv: Vec<String>,
    pub cwd: PathBuf,
    pub home: String,
    /// The number of outermost processes that belong to the sandbox.
    pub sandbox_depth: u32,
}

/// Variables that the C library and its loader read in every program. The programs of the sandbox have more rights
/// than the job, so these variables are set only for the job's own command.
const DEFERRED: [&str; 10] = [
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

/// True if a variable is set only for the job's own command.
pub fn is_deferred(name: &str) -> bool {
    name.starts_with("LD_") || DEFERRED.contains(&name)
}

/// The command with an `env` before it that sets the deferred variables.
pub fn with_deferred_variables(env: &HashMap<String, String>, command: Vec<String>) -> Vec<String> {
    let deferred = env.iter().filter(|(name, _)| is_deferred(name));
    let mut settings: Vec<String> = deferred.map(|(name, value)| format!("{name}={value}")).collect();
    if settings.is_empty() {
        return command;
    }
    settings.sort_unstable();
    std::iter::once("/usr/bin/env".to_owned()).chain(settings).chain(command).collect()
}

fn find_program(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/usr/local/bin", "/bin"].iter().map(|dir| Path::new(dir).join(name)).find(|p| p.exists())
}

/// The first two numbers of the output of `bwrap --version`; 0 for a missing number.
fn parse_version(output: &str) -> (u32, u32) {
    let mut numbers = output.split_whitespace().last().unwrap_or_default().split('.').map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    (next(), next())
}

impl Sandbox {
    /// Bubblewrap, after a trial run. `hidden` are directories that no tenant may see. `users` is the range of users
    /// for attempts: first and number.
    ///
    /// # Errors
    /// The reason why bubblewrap does not work.
    pub fn probe(hidden: Vec<PathBuf>, users: (u32, u32)) -> Result<Self, String> {
        let program = find_program("bwrap").ok_or("bubblewrap (bwrap) is not installed")?;
        let users = if nix::unistd::geteuid().is_root() {
            let setpriv = find_program("setpriv").ok_or("setpriv (of util-linux) is not installed")?;
            Some(JobUsers { setpriv, first: users.0, count: users.1.max(1) })
        } else {
            None
        };
        let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(|e| format!("bubblewrap cannot be started: {e}"))?;
        let version = parse_version(&String::from_utf8_lossy(&output.stdout));
        let mut sandbox = Self::Bubblewrap { program, version, hidden, users, cuts_network: true };
        sandbox.retry_run(SandboxNetwork::Host)?;
        if let Err(why) = sandbox.retry_run(SandboxNetwork::None) {
            tracing::warn!(why, "jobs on this host cannot be separated from the network");
            if let Self::Bubblewrap { cuts_network, .. } = &mut sandbox {
                *cuts_network = false;
            }
        }
        Ok(sandbox)
    }

    /// A trial run, repeated after a failure: bubblewrap may fail while the host's mounts change.
    fn retry_run(&self, network: SandboxNetwork<'_>) -> Result<(), String> {
        let again = |result: Result<(), String>, _| result.or_else(|_| self.try_run(network));
        (1..MAX_STARTS).fold(self.try_run(network), again)
    }

    fn try_run(&self, network: SandboxNetwork<'_>) -> Result<(), String> {
        let uid = self.pick_user("", &HashSet::new()).unwrap_or(0);
        let work = Path::new("/");
        let spec = SandboxSpec {
            work,
            uid,
            network,
            devices: &[],
            secrets: None,
            scratch_mib: 1,
            passwd: None,
            volumes: &[],
            storage_group: None,
        };
        let trial = self.confine(&spec, vec!["true".to_owned()]);
        let (argv, _files) = open_files(&trial.argv).map_err(|e| e.to_string())?;
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
            let message = String::from_utf8_lossy(&out.stderr);
            // Ubuntu since 23.10.
            let restricted = fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
            let hint = if restricted.is_ok_and(|on| on.trim() == "1") && !nix::unistd::geteuid().is_root() {
                " (AppArmor blocks user namespaces: add a profile with userns, or run the worker as root)"
            } else {
                ""
            };
            Err(format!("bubblewrap does not work on this host: {}{hint}", message.trim()))
        }
    }

    pub const fn isolated(&self) -> bool {
        matches!(self, Self::Bubblewrap { .. })
    }

    /// True if each attempt has a user of its own.
    pub const fn has_users(&self) -> bool {
        matches!(self, Self::Bubblewrap { users: Some(_), .. })
    }

    /// True if jobs without network are possible.
    pub const fn cuts_network(&self) -> bool {
        matches!(self, Self::Bubblewrap { cuts_network: true, .. })
    }

    /// The name for the isolation report.
    pub fn name(&self) -> String {
        match self {
            Self::Bubblewrap { version: (major, minor), .. } => format!("bubblewrap {major}.{minor}"),
            Self::Process => "none".to_owned(),
        }
    }

    /// A user for a job. `None`: jobs have the worker's user. `taken` are users with files on the host.
    pub fn pick_user(&self, job: &str, taken: &HashSet<u32>) -> Option<u32> {
        match self {
            Self::Bubblewrap { users: Some(users), .. } => users.pick(job, taken),
            _ => None,
        }
    }

    /// The text of `/etc/passwd` for a job: its own user [`USER`] first, then the host's. Without an entry ssh does
    /// not start, and a query of the user's name fails. `None`: the job sees the host's file.
    pub fn passwd(&self, uid: Option<u32>) -> Option<String> {
        let uid = match self {
            Self::Process => return None,
            Self::Bubblewrap { users: Some(_), .. } => uid?,
            Self::Bubblewrap { users: None, .. } => OWN_USER,
        };
        let host = std::fs::read_to_string(PASSWD).ok()?;
        Some(format!("{USER}:x:{uid}:{uid}::{HOME}:/bin/bash\n{host}"))
    }

    /// The command line that starts the command in its sandbox.
    pub fn confine(&self, spec: &SandboxSpec<'_>, command: Vec<String>) -> ConfinedCommand {
        match self {
            // The shim finds out if the command does not exist.
            Self::Process => ConfinedCommand {
                argv: command,
                cwd: spec.work.to_owned(),
                home: spec.work.display().to_string(),
                sandbox_depth: 0,
            },
            Self::Bubblewrap { program, version, hidden, users, .. } => {
                let mut argv: Vec<String> = Vec::new();
                if let SandboxNetwork::Own(namespace) = spec.network {
                    // nsenter becomes bubblewrap and is no process of its own.
                    let net = format!("--net={}", namespace.path.display());
                    argv.extend([namespace.nsenter.display().to_string(), net]);
                }
                argv.push(program.display().to_string());
                let mut add = |args: &[&str]| argv.extend(args.iter().map(|w| (*w).to_owned()));
                namespaces(&mut add, spec, users.is_some());
                mounts(&mut add, spec, *version, hidden);
                for _ in 0..seccomp::PROGRAMS {
                    add(&[FILTER, "-"]);
                }
                add(&[STATUS, "-"]);
                add(&["--chdir", HOME, COMMAND]);
                let storage_group = spec.storage_group.filter(|_| users.is_some());
                if let Some(users) = users {
                    let id = spec.uid.to_string();
                    add(&[&users.setpriv.display().to_string(), "--reuid", &id, "--regid", &id]);
                    match storage_group {
                        Some(group) => add(&["--groups", &group.to_string()]),
                        None => add(&["--clear-groups"]),
                    }
                    add(&["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"]);
                }
                // The shell reports a command that is missing (127) or not executable (126).
                // Other jobs of the organization, each with another user, change its files by the common group.
                let start = if storage_group.is_some() { "umask 002; exec \"$@\"" } else { "exec \"$@\"" };
                argv.extend(["/bin/sh", "-c", start, "berth"].map(str::to_owned));
                argv.extend(command);
                // bwrap and the first process of its namespace.
                ConfinedCommand { argv, cwd: PathBuf::from("/"), home: HOME.to_owned(), sandbox_depth: 2 }
            }
        }
    }
}

/// The options for the attempt's own namespaces and for the rights that it loses.
fn namespaces(add: &mut impl FnMut(&[&str]), spec: &SandboxSpec<'_>, own_user: bool) {
    add(&["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
    if spec.network == SandboxNetwork::None {
        // The namespace has only a loopback interface.
        add(&["--unshare-net"]);
    }
    // The sandbox ends with its shim, which outlives the daemon.
    add(&["--die-with-parent", "--new-session", "--hostname", "berth", "--cap-drop", "ALL"]);
    if own_user {
        // setpriv needs these to change the user, and drops them with all others.
        add(&["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]);
    } else {
        let own = OWN_USER.to_string();
        add(&["--unshare-user", "--uid", &own, "--gid", &own]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(count: u32) -> JobUsers {
        JobUsers { setpriv: PathBuf::from("/usr/bin/setpriv"), first: 600_000, count }
    }

    fn boxed(network: SandboxNetwork<'_>, own_user: bool) -> Vec<String> {
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
        let bind =
            |to: &str, writable| BindMount { from: PathBuf::from("/v"), to: PathBuf::from(to), writable };
        let volumes = [bind("/home/job/in", false), bind("/secret-not", true)];
        // A volume at the root only in the case with users.
        let volumes = if own_user { &volumes[..] } else { &volumes[..1] };
        let spec = SandboxSpec {
            work,
            uid: 600_007,
            network,
            devices: &devices,
            secrets,
            scratch_mib: 2,
            passwd: Some(Path::new("/w/../passwd")),
            volumes,
            storage_group: (network == SandboxNetwork::None).then_some(700_003),
        };
        sandbox.confine(&spec, vec!["echo".to_owned(), "--add-seccomp-fd".to_owned(), "x".to_owned()]).argv
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
        let open = boxed(SandboxNetwork::Host, true);
        let alone = boxed(SandboxNetwork::None, true);
        assert!(!has(&open, &["--unshare-net"]) && has(&alone, &["--unshare-net"]));
        assert!(has(&open, &["--ro-bind-try", "/run/systemd/resolve"]));
        assert!(!has(&alone, &["--ro-bind-try", "/run/systemd/resolve"]), "its sockets resolve names");
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
        let plain = boxed(SandboxNetwork::Host, false);
        assert!(has(&plain, &["--ro-bind", "/", "/"]) && !has(&plain, &["--remount-ro", "/"]));
        assert!(has(&open, &["--reuid", "600007", "--regid", "600007", "--clear-groups"]));
        assert!(
            has(&alone, &["--regid", "600007", "--groups", "700003"]) && !has(&alone, &["--clear-groups"])
        );
        let umask = "umask 002; exec \"$@\"";
        assert!(has(&alone, &[umask]) && !has(&open, &[umask]));
        assert!(!has(&boxed(SandboxNetwork::None, false), &[umask]), "without users all jobs have the same");
        assert!(!has(&open, &["--unshare-user"]) && has(&plain, &["--unshare-user"]));
        let seccomp = open.iter().position(|w| w == FILTER).unwrap();
        assert!(seccomp < open.iter().position(|w| w == COMMAND).unwrap());
    }

    #[test]
    fn a_network_of_its_own_is_entered_before_the_sandbox() {
        let from = PathBuf::from("/data/resolv.conf");
        let namespace = NetworkNamespace {
            path: PathBuf::from("/run/netns/berth-x"),
            nsenter: PathBuf::from("/usr/bin/nsenter"),
            resolv_conf: Some(BindMount { from, to: PathBuf::from("/run/resolv.conf"), writable: false }),
            hosts: Some(BindMount {
                from: PathBuf::from("/data/hosts"),
                to: PathBuf::from("/etc/hosts"),
                writable: false,
            }),
        };
        let argv = boxed(SandboxNetwork::Own(&namespace), true);
        assert_eq!(argv[..3], ["/usr/bin/nsenter", "--net=/run/netns/berth-x", "/usr/bin/bwrap"]);
        assert!(!has(&argv, &["--unshare-net"]) && !has(&argv, &["/run/systemd/resolve"]));
        assert!(has(&argv, &["--ro-bind", "/data/resolv.conf", "/run/resolv.conf"]));
        assert!(has(&argv, &["--ro-bind", "/data/hosts", "/etc/hosts"]));
        let place = |words: &[&str]| argv.windows(words.len()).position(|w| w == words).unwrap();
        let resolvers = place(&["/data/resolv.conf", "/run/resolv.conf"]);
        assert!(place(&["--tmpfs", "/run"]) < resolvers && resolvers < place(&["--remount-ro", "/run"]));
    }

    #[test]
    fn without_a_sandbox_the_command_is_started_itself() {
        let (work, devices) = (Path::new("/w"), []);
        let spec = SandboxSpec {
            work,
            uid: 0,
            network: SandboxNetwork::Host,
            devices: &devices,
            secrets: None,
            volumes: &[],
            scratch_mib: 2,
            passwd: None,
            storage_group: None,
        };
        assert_eq!(Sandbox::Process.passwd(Some(7)), None);
        let confined = Sandbox::Process.confine(&spec, vec!["echo".to_owned(), "x".to_owned()]);
        assert_eq!((confined.argv, confined.sandbox_depth), (vec!["echo".to_owned(), "x".to_owned()], 0));
        assert_eq!((confined.cwd.as_path(), confined.home.as_str()), (work, "/w"));
    }

    #[test]
    fn what_the_loader_reads_is_for_the_command_alone() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let env = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<HashMap<_, _>>()
        };
        assert_eq!(
            with_deferred_variables(&env(&[("SEED", "7")]), words("python3 a.py")),
            words("python3 a.py")
        );
        let env = env(&[("LD_PRELOAD", "/w/x.so"), ("SEED", "7"), ("GCONV_PATH", "/w")]);
        assert_eq!(
            with_deferred_variables(&env, words("python3 a.py")),
            words("/usr/bin/env GCONV_PATH=/w LD_PRELOAD=/w/x.so python3 a.py")
        );
        for name in env.keys() {
            assert_eq!(is_deferred(name), name != "SEED", "{name}");
        }
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(parse_version("bubblewrap 0.8.0\n"), (0, 8));
        assert_eq!(parse_version("bubblewrap 1.2"), (1, 2));
        assert_eq!(parse_version(""), (0, 0));
    }
}
