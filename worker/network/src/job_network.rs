//! The network namespaces of attempts and their connection to the host.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use berth_isolation::sandbox::{BindMount, NetworkNamespace};
use ipnet::Ipv4Net;

use super::args::{GangNetworkKind, JobNetworkKind, NetworkArgs};
use super::egress::{Egress, PlaceRules};
use super::gang::{GangKey, GangMeans, GangNetwork};
use super::places::{self, INTERFACE, Place};
use super::programs::{find_program, run};
use super::resolvers::{Resolvers, resolv_conf_target};
use super::rule_table::RuleTable;
use super::rules::Rules;

/// The directory in which `ip` keeps namespaces.
const NAMESPACES: &str = "/run/netns";
/// The name of the interface inside.
const INNER: &str = "eth0";
/// The file with the resolvers for jobs, in the worker's data directory.
const RESOLVERS: &str = "resolv.conf";
/// The directory with the records of rules for single attempts, in the worker's data directory.
const EGRESS: &str = "egress";
/// The switches of the kernel for the forwarding of packets.
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
const FORWARDING_V6: &str = "/proc/sys/net/ipv6/conf/all/forwarding";
const INTERFACES: &str = "/proc/self/net/dev";
/// The most bytes of a packet where the host has no way out.
const USUAL_MTU: u32 = 1_500;
/// The most places that are tried for one attempt: other workers take places too.
const MOST_TRIES: u32 = 64;
/// The name of the namespace for a trial.
const TRIAL: &str = "trial";
/// The number of the gang of a trial, which no other one has.
const TRIAL_NUMBER: u32 = 0xff_ffff;
/// The time between two checks of the rules.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// The networks of jobs on this host.
#[derive(Debug)]
pub struct JobNetwork {
    /// The mark of this worker in names, because a host may have several.
    tag: String,
    ip: Option<PathBuf>,
    /// `None`: jobs have the host's network.
    own: Option<OwnNetwork>,
}

/// The values for namespaces of jobs.
#[derive(Debug)]
struct OwnNetwork {
    nsenter: PathBuf,
    subnet: Ipv4Net,
    has_ipv6: bool,
    mtu: u32,
    resolv_conf: Option<BindMount>,
    rules: RuleTable,
    /// The means for the networks of gangs. `None`: ranks on several nodes have the host's network.
    gangs: Option<GangMeans>,
    first_gang_port: u16,
    /// The number of the place that was given last.
    last: AtomicU32,
}

/// The table of the rules of the worker with this mark.
fn table(tag: &str) -> String {
    format!("berth_{tag}")
}

/// A mark for the names of a worker with this data directory.
fn tag(data: &Path) -> String {
    let bytes = data.as_os_str().as_encoded_bytes();
    let hash = bytes.iter().fold(2_166_136_261u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(16_777_619));
    format!("{hash:08x}")
}

/// The first part of the names of all namespaces of the worker with this mark.
fn prefix(tag: &str) -> String {
    format!("berth-{tag}-")
}

fn find(program: &str, package: &str) -> Result<PathBuf, String> {
    find_program(program)
        .ok_or_else(|| format!("the program {program} is missing: install the package {package}"))
}

/// Allows the host to pass packets on.
fn enable_forwarding() -> Result<(), String> {
    if is_on(FORWARDING) {
        return Ok(());
    }
    fs::write(FORWARDING, "1").map_err(|error| format!("{FORWARDING} cannot be set: {error}"))
}

fn is_on(switch: &str) -> bool {
    fs::read_to_string(switch).is_ok_and(|text| text.trim() == "1")
}

/// The word after this one.
fn word_after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.split_whitespace().skip_while(|other| *other != word).nth(1)
}

/// The largest packet of the interface towards the internet.
fn uplink_mtu(ip: &Path) -> u32 {
    let routes = run(ip, &["-o", "route", "show", "default"], "").unwrap_or_default();
    let link = word_after(&routes, "dev")
        .and_then(|interface| run(ip, &["-o", "link", "show", "dev", interface], "").ok());
    link.and_then(|text| word_after(&text, "mtu")?.parse().ok()).unwrap_or(USUAL_MTU)
}

/// True if the host passes packets of version 6 on and has a way out for them. The worker does not switch this on,
/// because a host that does so may lose its own default route.
fn has_ipv6(ip: &Path) -> bool {
    let routes = run(ip, &["-6", "-o", "route", "show", "default"], "");
    is_on(FORWARDING_V6) && routes.is_ok_and(|text| !text.trim().is_empty())
}

impl JobNetwork {
    /// Jobs have the host's network.
    pub fn host(data: &Path) -> Self {
        Self { tag: tag(data), ip: find_program("ip"), own: None }
    }

    /// The networks of jobs as the operator chooses them. By default jobs have networks of their own if they have
    /// users of their own, because other jobs can leave a network. `data` is the worker's data directory, and
    /// `program` the worker's own program.
    ///
    /// # Errors
    /// The reason why this host has no networks for jobs, and the choices of the operator.
    pub fn open(
        args: &NetworkArgs,
        (data, program): (&Path, &Path),
        has_users: bool,
    ) -> Result<Self, String> {
        let by_default = if has_users { JobNetworkKind::Own } else { JobNetworkKind::Host };
        match args.job_network.unwrap_or(by_default) {
            JobNetworkKind::Host
                if args.gang_network.is_some_and(|kind| kind != GangNetworkKind::Host) =>
            {
                Err("--gang-network needs --job-network own".to_owned())
            }
            JobNetworkKind::Host => {
                tracing::warn!("jobs with a network have the network of this host");
                Ok(Self::host(data))
            }
            JobNetworkKind::Own if !has_users => {
                Err("--job-network own needs a worker that is root and has a sandbox".to_owned())
            }
            JobNetworkKind::Own => Self::open_own(args, data, program).map_err(|why| {
                format!(
                    "jobs cannot have networks of their own on this host: {why}. Install nftables and iproute2, or set --job-network host: then jobs reach all that this host reaches"
                )
            }),
        }
    }

    /// Writes the rules, enables the forwarding of packets and makes a namespace for a trial.
    fn open_own(args: &NetworkArgs, data: &Path, program: &Path) -> Result<Self, String> {
        args.check()?;
        let ip = find("ip", "iproute2")?;
        let nft = find("nft", "nftables")?;
        let nsenter = find("nsenter", "util-linux")?;
        let has_ipv6 = has_ipv6(&ip);
        let resolvers = Resolvers::find(&args.job_resolver, has_ipv6)?;
        let file = data.join(RESOLVERS);
        fs::write(&file, resolvers.text())
            .and_then(|()| fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)))
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
        let gangs = GangMeans::choose(args, &ip, program)?;
        let tag = tag(data);
        let common = Rules {
            table: &table(&tag),
            range: args.job_subnet,
            resolvers: &resolvers.addresses,
            reach: &args.job_reach,
            has_ipv6,
        };
        let prefix = prefix(&tag);
        let exists = |attempt: &str| Path::new(NAMESPACES).join(format!("{prefix}{attempt}")).exists();
        let rules = RuleTable::open(nft, table(&tag), common.text(), data.join(EGRESS), exists)?;
        rules.write()?;
        let own = OwnNetwork {
            nsenter,
            subnet: args.job_subnet,
            has_ipv6,
            rules,
            gangs,
            first_gang_port: args.gang_port,
            mtu: uplink_mtu(&ip),
            resolv_conf: resolv_conf_target().map(|to| BindMount { from: file, to, writable: false }),
            last: AtomicU32::new(0),
        };
        let network = Self { tag, ip: Some(ip), own: Some(own) };
        enable_forwarding()?;
        network.try_namespace()?;
        Ok(network)
    }

    /// The description for the isolation report: `host`, or `own` with its addresses.
    pub fn description(&self) -> String {
        let Some(own) = &self.own else { return "host".to_owned() };
        let ipv6 = if own.has_ipv6 { ", IPv6" } else { "" };
        format!("own ({}{ipv6}, ip_forward on)", own.subnet)
    }

    /// The description of the networks of gangs for the isolation report.
    pub fn gang_description(&self) -> String {
        let own =
            self.own.as_ref().and_then(|own| Some(own.gangs.as_ref()?.description(own.first_gang_port)));
        own.unwrap_or_else(|| "host".to_owned())
    }

    /// The first UDP port of the networks of gangs, and true if they are plain. `None`: ranks on several nodes have the
    /// host's network.
    pub fn gang_ports(&self) -> Option<(u16, bool)> {
        let own = self.own.as_ref()?;
        own.gangs.as_ref().map(|means| (own.first_gang_port, means.is_plain()))
    }

    fn namespace(&self, attempt: &str) -> String {
        format!("{}{attempt}", prefix(&self.tag))
    }

    /// True if jobs have networks of their own, with egress policies.
    pub const fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Writes the rules again if they are gone. A restart of the host's firewall removes the rules of all programs,
    /// and without rules a job reaches the host and its networks. `true`: the rules were gone.
    ///
    /// # Errors
    /// The rules cannot be read or written.
    pub fn restore_rules(&self) -> Result<bool, String> {
        self.own.as_ref().map_or(Ok(false), |own| own.rules.restore())
    }

    /// Restores lost rules in a thread of its own, until nothing else uses the networks.
    pub fn watch_rules(network: &Arc<Self>) {
        if network.own.is_none() {
            return;
        }
        let network = Arc::downgrade(network);
        let check = move || {
            while let Some(network) = network.upgrade() {
                match network.restore_rules() {
                    Ok(false) => {}
                    Ok(true) => tracing::error!(
                        "another program removed the rules for networks of jobs; they are written again"
                    ),
                    Err(error) => tracing::error!(error, "the rules for networks of jobs cannot be restored"),
                }
                drop(network);
                thread::sleep(CHECK_EVERY);
            }
        };
        if let Err(error) = thread::Builder::new().name("network rules".to_owned()).spawn(check) {
            tracing::error!(%error, "the rules for networks of jobs are not watched");
        }
    }

    /// Makes a namespace, enters it, and removes it.
    fn try_namespace(&self) -> Result<(), String> {
        let alone = self.gang_ports().map(|(first, plain)| GangNetwork {
            rank: 0,
            plain,
            // WireGuard finds a free port.
            port: if plain { first } else { 0 },
            number: TRIAL_NUMBER,
            private_key: GangKey::trial(),
            peers: Vec::new(),
        });
        let entered =
            self.create_with(TRIAL, &Egress::INTERNET, alone.as_ref()).and_then(|made| match made {
                Some(namespace) => {
                    let net = format!("--net={}", namespace.path.display());
                    run(&namespace.nsenter, &[&net, "/bin/true"], "").map(|_| ())
                }
                None => Ok(()),
            });
        entered.and(self.remove(TRIAL))
    }

    /// True if jobs have the network of the host, so two jobs cannot listen at one port.
    pub const fn is_of_host(&self) -> bool {
        self.own.is_none()
    }

    /// Makes the namespace of an attempt with access to the internet only.
    ///
    /// # Errors
    /// As of [`Self::create_with`].
    pub fn create(&self, attempt: &str) -> Result<Option<NetworkNamespace>, String> {
        self.create_with(attempt, &Egress::INTERNET, None)
    }

    /// Makes the namespace of an attempt with the rules of its policy, and with an interface to the other ranks of its
    /// gang. Its name follows from the attempt's, so nothing else has to be recorded before. `None`: jobs have the
    /// host's network.
    ///
    /// # Errors
    /// The reason as a sentence without its full stop. Nothing is left, or `remove` removes it.
    pub fn create_with(
        &self,
        attempt: &str,
        egress: &Egress,
        gang: Option<&GangNetwork>,
    ) -> Result<Option<NetworkNamespace>, String> {
        let (Some(ip), Some(own)) = (&self.ip, &self.own) else {
            let why = "this node gives jobs its own network, which no policy limits and no gang shares";
            let suits = egress.is_default() && gang.is_none();
            return if suits { Ok(None) } else { Err(why.to_owned()) };
        };
        own.rules.restore()?;
        self.remove(attempt)?;
        let name = self.namespace(attempt);
        let made = run(ip, &["netns", "add", &name], "")
            .and_then(|_| own.connect(ip, &name, attempt, egress))
            .and_then(|place| own.configure(ip, &name, &place).map(|()| place.number))
            .and_then(|place| gang.map_or(Ok(()), |gang| own.join_gang(ip, (&name, place), gang)));
        if let Err(why) = made {
            if let Err(error) = self.remove(attempt) {
                tracing::warn!(error, attempt, "a network namespace cannot be removed");
            }
            return Err(why);
        }
        let path = Path::new(NAMESPACES).join(name);
        let (nsenter, resolv_conf) = (own.nsenter.clone(), own.resolv_conf.clone());
        Ok(Some(NetworkNamespace { path, nsenter, resolv_conf, hosts: None }))
    }

    /// Finds the namespace of an attempt that [`Self::create_with`] made.
    ///
    /// # Errors
    /// The rules of the networks of jobs are gone and cannot be written.
    pub fn find(&self, attempt: &str) -> Result<Option<NetworkNamespace>, String> {
        let Some(own) = &self.own else { return Ok(None) };
        own.rules.restore()?;
        let path = Path::new(NAMESPACES).join(self.namespace(attempt));
        let (nsenter, resolv_conf) = (own.nsenter.clone(), own.resolv_conf.clone());
        Ok(path.exists().then_some(NetworkNamespace { path, nsenter, resolv_conf, hosts: None }))
    }

    /// Removes the namespace of an attempt with its interfaces, if there is one.
    ///
    /// # Errors
    /// The namespace still exists.
    pub fn remove(&self, attempt: &str) -> Result<(), String> {
        let name = self.namespace(attempt);
        let path = Path::new(NAMESPACES).join(&name);
        if !path.exists() {
            return self.own.as_ref().map_or(Ok(()), |own| own.rules.remove(attempt));
        }
        let ip = self.ip.as_deref().ok_or("the program ip is missing: install the package iproute2")?;
        if let Some(own) = &self.own {
            own.remove_policy(ip, attempt)?;
        }
        // A namespace may have no interface yet. Both ends vanish together, at once.
        if let Err(error) = run(ip, &["-n", &name, "link", "del", INNER], "") {
            tracing::debug!(error, attempt, "a network namespace has no interface");
        }
        let removed = run(ip, &["netns", "del", &name], "");
        if path.exists() { removed.map(|_| ()) } else { Ok(()) }
    }

    /// The attempts with a namespace of this worker, by the names of files.
    fn attempts(&self) -> Vec<String> {
        let prefix = prefix(&self.tag);
        let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix(&prefix).map(str::to_owned)).collect()
    }

    /// Removes the namespaces that earlier daemons left and that no known attempt has.
    pub fn sweep(&self, known: &HashSet<String>) {
        for attempt in self.attempts().iter().filter(|attempt| !known.contains(*attempt)) {
            if let Err(error) = self.remove(attempt) {
                tracing::warn!(error, attempt, "an unknown network namespace cannot be removed");
            }
        }
    }

    /// Removes the rules at the end of the daemon if no namespace of this worker needs them.
    pub fn close(&self) {
        if let Some(own) = &self.own
            && self.attempts().is_empty()
            && let Err(error) = own.rules.delete()
        {
            tracing::warn!(error, "the rules for networks of jobs cannot be removed");
        }
    }
}

impl OwnNetwork {
    /// Connects a namespace with a free place of the range. The rules of the attempt's policy exist before the
    /// interface is up, and so does the address of the host's end.
    fn connect(&self, ip: &Path, namespace: &str, attempt: &str, egress: &Egress) -> Result<Place, String> {
        for _ in 0..MOST_TRIES {
            let interfaces = fs::read_to_string(INTERFACES)
                .map_err(|error| format!("the interfaces of the host cannot be read: {error}"))?;
            let taken = places::taken_places(&interfaces);
            let last = self.last.load(Ordering::Relaxed);
            let place = places::next_place(self.subnet, last, &taken).ok_or_else(|| {
                format!("all addresses of {} are in use: set a larger --job-subnet", self.subnet)
            })?;
            self.last.store(place.number, Ordering::Relaxed);
            let (interface, mtu) = (place.interface(), self.mtu);
            let link = format!(
                "link add {interface} mtu {mtu} type veth peer name {INNER} mtu {mtu} netns {namespace}\n"
            );
            match run(ip, &["-batch", "-"], &link) {
                Ok(_) => {
                    self.rules.free_place(place.number)?;
                    if !egress.is_default() {
                        let rules = PlaceRules { place: place.number, egress: egress.clone() };
                        self.rules.add(attempt, rules)?;
                    }
                    let mut lines = format!("address add {}/31 dev {interface}\n", place.host);
                    if self.has_ipv6 {
                        lines += &format!("address add {}/127 dev {interface} nodad\n", place.host_v6);
                    }
                    lines += &format!("link set {interface} up\n");
                    return run(ip, &["-batch", "-"], &lines).map(|_| place);
                }
                // Another attempt or another worker has taken the place meanwhile.
                Err(error) if error.contains("File exists") => {}
                Err(error) => return Err(error),
            }
        }
        Err("other workers take all addresses for jobs".to_owned())
    }

    fn join_gang(&self, ip: &Path, at: (&str, u32), gang: &GangNetwork) -> Result<(), String> {
        let means = self.gangs.as_ref().ok_or("this node has no networks between ranks now")?;
        means.connect(ip, at, gang, self.mtu)
    }

    /// Removes the rules of an attempt with a policy of its own, after its interface is down.
    fn remove_policy(&self, ip: &Path, attempt: &str) -> Result<(), String> {
        let Some(number) = self.rules.find_place(attempt) else { return Ok(()) };
        let interface = format!("{INTERFACE}{number}");
        if let Err(error) = run(ip, &["link", "set", "dev", &interface, "down"], "") {
            tracing::debug!(error, attempt, "the interface of an attempt is gone already");
        }
        self.rules.remove(attempt)
    }

    /// Sets up the interfaces inside.
    fn configure(&self, ip: &Path, namespace: &str, place: &Place) -> Result<(), String> {
        let mut lines = format!(
            "link set lo up\naddress add {}/31 dev {INNER}\nlink set {INNER} up\nroute add default via {}\n",
            place.job, place.host
        );
        if self.has_ipv6 {
            lines += &format!(
                "address add {}/127 dev {INNER} nodad\nroute add default via {}\n",
                place.job_v6, place.host_v6
            );
        }
        run(ip, &["-n", namespace, "-batch", "-"], &lines).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_ip_are_found() {
        let route = "default via 198.51.100.1 dev uplink0 proto dhcp \n";
        assert_eq!(word_after(route, "dev"), Some("uplink0"));
        assert_eq!(word_after("", "dev"), None);
        assert_eq!(word_after("2: eth0: <UP> mtu 1450 qdisc", "mtu"), Some("1450"));
    }

    #[test]
    fn a_worker_without_networks_of_jobs_makes_and_removes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let network = JobNetwork::host(dir.path());
        assert_eq!(network.create("job-1").unwrap(), None);
        assert_eq!(network.find("job-1"), Ok(None));
        assert_eq!((network.remove("job-1"), network.description().as_str()), (Ok(()), "host"));
        let closed = Egress::parse(false, &[]).unwrap();
        assert!(network.create_with("job-1", &closed, None).is_err(), "no attempt runs without its policy");
        assert_eq!(network.restore_rules(), Ok(false));
        assert_ne!(network.tag, JobNetwork::host(Path::new("/other")).tag);
    }
}
