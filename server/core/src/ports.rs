//! Ports of jobs in the browser: the check of a submission's ports, and the host and path of each port.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use berth_types::ids::JobId;

/// Number of ports of one job.
pub const MAX_PORTS: usize = 8;

/// Reports all faults of the ports of a submission.
pub fn check(ports: &[u32], refuse: &mut impl FnMut(&str, &str)) {
    if ports.len() > MAX_PORTS {
        refuse("/ports", "A job has at most 8 ports.");
        return;
    }
    for (index, port) in ports.iter().enumerate() {
        let pointer = format!("/ports/{index}");
        if *port == 0 || *port > u32::from(u16::MAX) {
            refuse(&pointer, "A port is a number from 1 to 65535.");
        } else if ports.iter().take(index).any(|earlier| earlier == port) {
            refuse(&pointer, "This port is a duplicate. Remove one of them.");
        }
    }
}

/// A port of one rank of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortAddress {
    pub job: JobId,
    pub rank: u32,
    pub port: u16,
}

/// Splits a path into its first segment and the rest, which begins with a slash or is empty.
fn split_first_segment(path: &str) -> Option<(&str, &str)> {
    let path = path.strip_prefix('/')?;
    Some(path.find('/').map_or((path, ""), |at| path.split_at(at)))
}

/// Parses a number in its canonical form only, so that each port has one path.
fn parse_canonical<N: FromStr + ToString>(text: &str) -> Option<N> {
    text.parse().ok().filter(|number: &N| number.to_string() == text)
}

impl PortAddress {
    /// The path of the port, with a slash at both ends.
    pub fn prefix(&self) -> String {
        let Self { job, rank, port } = self;
        if *rank == 0 { format!("/{job}/{port}/") } else { format!("/{job}/r{rank}/{port}/") }
    }

    /// Splits a path into a port and the path within it. The latter is empty if the path has no slash after
    /// the port.
    pub fn from_path(path: &str) -> Option<(Self, &str)> {
        let (job, rest) = split_first_segment(path)?;
        let job: JobId = job.parse().ok()?;
        let (next, rest) = split_first_segment(rest)?;
        let (rank, port, rest) = match next.strip_prefix('r') {
            None => (0, next, rest),
            Some(rank) => {
                let (port, rest) = split_first_segment(rest)?;
                (parse_canonical(rank).filter(|rank: &u32| *rank > 0)?, port, rest)
            }
        };
        let port = parse_canonical(port).filter(|port: &u16| *port > 0)?;
        Some((Self { job, rank, port }, rest))
    }
}

/// The jobs whose ports are reachable under a host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostScope {
    AllJobs,
    Job(JobId),
    /// The name is below the host of the ports, and names no job.
    NoJob,
}

impl HostScope {
    pub fn includes(self, job: JobId) -> bool {
        match self {
            Self::AllJobs => true,
            Self::Job(own) => own == job,
            Self::NoJob => false,
        }
    }
}

/// The web origin of the ports of jobs: `https://ports.example.org`, or `https://*.ports.example.org` with a
/// host name for each job. With a name for each job, the browser also separates the pages of jobs from each
/// other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    https: bool,
    /// In lower case, without the `*.`.
    host: String,
    port: Option<u16>,
    /// True if each job has a host name of its own below `host`.
    per_job: bool,
}

/// The name of a host in lower case, without its port.
fn host_name(host: &str) -> String {
    let name = match host.find(']') {
        Some(end) => host.get(..=end).unwrap_or(host),
        None => host.split(':').next().unwrap_or(host),
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

impl FromStr for Origin {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str =
            "expected https://HOST or https://*.HOST, with an optional port and without a path";
        let (https, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(FORM),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (per_job, rest) = rest.strip_prefix("*.").map_or((false, rest), |rest| (true, rest));
        let host = host_name(rest);
        let port = match rest.get(host.len()..) {
            Some("") => None,
            Some(port) => Some(port.strip_prefix(':').and_then(parse_canonical).ok_or(FORM)?),
            None => return Err(FORM),
        };
        let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let plain = host.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
        let named = plain && !host.is_empty() && !host.split('.').any(str::is_empty);
        if per_job && address.is_some() {
            return Err("a wildcard needs a host name, not an IP address");
        }
        if !named && address.is_none() {
            return Err(FORM);
        }
        Ok(Self { https, host, port, per_job })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wildcard = if self.per_job { "*." } else { "" };
        write!(f, "{}://{wildcard}{}", self.scheme(), self.authority())
    }
}

impl Origin {
    pub const fn is_https(&self) -> bool {
        self.https
    }

    pub const fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }

    fn authority(&self) -> String {
        self.port.map_or_else(|| self.host.clone(), |port| format!("{}:{port}", self.host))
    }

    /// The origin of a job's pages, as a browser sends it.
    pub fn job_origin(&self, job: JobId) -> String {
        // Host names have no underscores.
        let label =
            if self.per_job { format!("{}.", job.to_string().replace('_', "-")) } else { String::new() };
        format!("{}://{label}{}", self.scheme(), self.authority())
    }

    /// The jobs of a request's host. `None` if the host is not part of this origin.
    pub fn find_scope(&self, host: &str) -> Option<HostScope> {
        let name = host_name(host);
        if !self.per_job {
            return (name == self.host).then_some(HostScope::AllJobs);
        }
        let label = name.strip_suffix(&self.host)?.strip_suffix('.')?;
        Some(label.replacen('-', "_", 1).parse().map_or(HostScope::NoJob, HostScope::Job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(n: u128) -> JobId {
        JobId::from_uuid(uuid::Uuid::from_u128(n))
    }

    #[test]
    fn each_wrong_port_is_named() {
        let pointers = |ports: &[u32]| {
            let mut out = Vec::new();
            check(ports, &mut |pointer: &str, _: &str| out.push(pointer.to_owned()));
            out
        };
        assert_eq!(pointers(&[1, 8_888, 65_535]), [""; 0]);
        assert_eq!(pointers(&[0, 65_536, 80, 80]), ["/ports/0", "/ports/1", "/ports/3"]);
        assert_eq!(pointers(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), ["/ports"]);
    }

    #[test]
    fn a_path_leads_to_one_place() {
        let id = job(7);
        let place = |rank, port| PortAddress { job: id, rank, port };
        let found = |rest: &str| {
            PortAddress::from_path(&format!("/{id}{rest}")).map(|(place, inside)| (place, inside.to_owned()))
        };
        assert_eq!(found("/8888/a//b/../c"), Some((place(0, 8_888), "/a//b/../c".to_owned())));
        assert_eq!(found("/8888"), Some((place(0, 8_888), String::new())));
        assert_eq!(found("/r3/80/"), Some((place(3, 80), "/".to_owned())));
        for bad in ["", "/", "/08888/", "/0/", "/65536/", "/+1/", "/r0/80/", "/r01/80/", "/r1", "/r1/", "/x/"]
        {
            assert_eq!(found(bad), None, "{bad}");
        }
        for bad in ["", "/", "8888", "/job_x/80/", "//80/"] {
            assert!(PortAddress::from_path(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_host_is_recognised_by_its_name() {
        let shared: Origin = "https://Ports.example.org".parse().unwrap();
        assert_eq!(shared.find_scope("ports.example.org"), Some(HostScope::AllJobs));
        assert_eq!(shared.find_scope("PORTS.example.org.:443"), Some(HostScope::AllJobs));
        for other in
            ["example.org", "x.ports.example.org", "ports.example.org.evil", "", "evilports.example.org"]
        {
            assert_eq!(shared.find_scope(other), None, "{other}");
        }
        let per_job: Origin = "http://*.localhost:8080".parse().unwrap();
        let own = per_job.job_origin(job(5));
        assert!(own.starts_with("http://job-0") && own.ends_with(".localhost:8080"), "{own}");
        assert_eq!(per_job.find_scope(own.trim_start_matches("http://")), Some(HostScope::Job(job(5))));
        assert_eq!(per_job.find_scope("x.localhost"), Some(HostScope::NoJob));
        assert_eq!((per_job.find_scope("localhost:8080"), per_job.find_scope("127.0.0.1")), (None, None));
        assert!(
            HostScope::Job(job(5)).includes(job(5))
                && !HostScope::Job(job(5)).includes(job(6))
                && !HostScope::NoJob.includes(job(5))
        );
        assert_eq!(per_job.to_string(), "http://*.localhost:8080");
        let six: Origin = "http://[::1]:90".parse().unwrap();
        assert_eq!(
            (six.find_scope("[::1]:90"), six.find_scope("[::2]:90")),
            (Some(HostScope::AllJobs), None)
        );
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for bad in [
            "ports.example.org",
            "ftp://x",
            "https://",
            "https://a/b",
            "https://a..b",
            "https://a:x",
            "https://u@a",
            "https://*.10.0.0.1",
            "https://a b",
        ] {
            assert!(bad.parse::<Origin>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_place_is_found_again_by_its_path(n in any::<u128>(), rank in 0u32..1_000, port in 1u16..=65_535, rest in "[a-z/.%0-9]{0,20}") {
            let place = PortAddress { job: job(n), rank, port };
            let (path, inside) = (format!("{}{rest}", place.prefix()), format!("/{rest}"));
            prop_assert_eq!(PortAddress::from_path(&path), Some((place, inside.as_str())));
        }

        #[test]
        fn no_text_is_too_odd(text in ".{0,60}") {
            let _ = text.parse::<Origin>();
            let _ = PortAddress::from_path(&text);
            let origin: Origin = "https://*.p.example".parse().unwrap();
            let _ = origin.find_scope(&text);
        }
    }
}
