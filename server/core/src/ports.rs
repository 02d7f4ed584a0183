//! Ports of jobs in the browser: which may be asked for, and under which host and path each is seen.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use berth_types::ids::JobId;

/// Ports that a job may name.
pub const MOST: usize = 8;

/// Every fault of the ports that a submission names.
pub fn check(ports: &[u32], refuse: &mut impl FnMut(&str, &str)) {
    if ports.len() > MOST {
        refuse("/ports", "At most 8 ports.");
        return;
    }
    for (index, port) in ports.iter().enumerate() {
        let pointer = format!("/ports/{index}");
        if *port == 0 || *port > u32::from(u16::MAX) {
            refuse(&pointer, "A port is a number from 1 to 65535.");
        } else if ports.iter().take(index).any(|earlier| earlier == port) {
            refuse(&pointer, "This port is named twice; once is enough.");
        }
    }
}

/// A port of one rank of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    pub job: JobId,
    pub rank: u32,
    pub port: u16,
}

/// The first part of a path, and what follows it with its slash.
fn cut(path: &str) -> Option<(&str, &str)> {
    let path = path.strip_prefix('/')?;
    Some(path.find('/').map_or((path, ""), |at| path.split_at(at)))
}

/// A number that is written in one way only, so that a place has one path only.
fn number<N: FromStr + ToString>(text: &str) -> Option<N> {
    text.parse().ok().filter(|number: &N| number.to_string() == text)
}

impl Place {
    /// The path below which it is seen, with a slash at both ends.
    pub fn prefix(&self) -> String {
        let Self { job, rank, port } = self;
        if *rank == 0 { format!("/{job}/{port}/") } else { format!("/{job}/r{rank}/{port}/") }
    }

    /// The place that a path leads to and the path within it; that is empty where the slash is missing after
    /// the port.
    pub fn of(path: &str) -> Option<(Self, &str)> {
        let (job, rest) = cut(path)?;
        let job: JobId = job.parse().ok()?;
        let (next, rest) = cut(rest)?;
        let (rank, port, rest) = match next.strip_prefix('r') {
            None => (0, next, rest),
            Some(rank) => {
                let (port, rest) = cut(rest)?;
                (number(rank).filter(|rank: &u32| *rank > 0)?, port, rest)
            }
        };
        let port = number(port).filter(|port: &u16| *port > 0)?;
        Some((Self { job, rank, port }, rest))
    }
}

/// Whose ports a host name shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Every,
    Of(JobId),
    /// It is one of those names, and no job's.
    Nobody,
}

impl Shown {
    pub fn has(self, job: JobId) -> bool {
        match self {
            Self::Every => true,
            Self::Of(own) => own == job,
            Self::Nobody => false,
        }
    }
}

/// Where ports of jobs are seen: `https://ports.example.org`, or `https://*.ports.example.org` with a name for
/// each job, so that their pages cannot reach each other either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    https: bool,
    /// In small letters; below it, when each job has its own.
    host: String,
    port: Option<u16>,
    each: bool,
}

/// A host's name in small letters, without its port.
fn name_of(host: &str) -> String {
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
            "give it as https://HOST or https://*.HOST, with a port where it has one and no path";
        let (https, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(FORM),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (each, rest) = rest.strip_prefix("*.").map_or((false, rest), |rest| (true, rest));
        let host = name_of(rest);
        let port = match rest.get(host.len()..) {
            Some("") => None,
            Some(port) => Some(port.strip_prefix(':').and_then(number).ok_or(FORM)?),
            None => return Err(FORM),
        };
        let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let plain = host.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
        let named = plain && !host.is_empty() && !host.split('.').any(str::is_empty);
        if each && address.is_some() {
            return Err("an address has no names below it; give a host name after the *.");
        }
        if !named && address.is_none() {
            return Err(FORM);
        }
        Ok(Self { https, host, port, each })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = if self.each { "*." } else { "" };
        write!(f, "{}://{each}{}", self.scheme(), self.authority())
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

    /// What a browser calls the origin of a job's pages.
    pub fn of_job(&self, job: JobId) -> String {
        // An underscore is no part of a host's name.
        let label = if self.each { format!("{}.", job.to_string().replace('_', "-")) } else { String::new() };
        format!("{}://{label}{}", self.scheme(), self.authority())
    }

    /// Whose ports are seen under this host, as a request names it; `None`: it is another host.
    pub fn recognise(&self, host: &str) -> Option<Shown> {
        let name = name_of(host);
        if !self.each {
            return (name == self.host).then_some(Shown::Every);
        }
        let label = name.strip_suffix(&self.host)?.strip_suffix('.')?;
        Some(label.replacen('-', "_", 1).parse().map_or(Shown::Nobody, Shown::Of))
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
        let place = |rank, port| Place { job: id, rank, port };
        let found =
            |rest: &str| Place::of(&format!("/{id}{rest}")).map(|(place, inside)| (place, inside.to_owned()));
        assert_eq!(found("/8888/a//b/../c"), Some((place(0, 8_888), "/a//b/../c".to_owned())));
        assert_eq!(found("/8888"), Some((place(0, 8_888), String::new())));
        assert_eq!(found("/r3/80/"), Some((place(3, 80), "/".to_owned())));
        for bad in ["", "/", "/08888/", "/0/", "/65536/", "/+1/", "/r0/80/", "/r01/80/", "/r1", "/r1/", "/x/"]
        {
            assert_eq!(found(bad), None, "{bad}");
        }
        for bad in ["", "/", "8888", "/job_x/80/", "//80/"] {
            assert!(Place::of(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_host_is_recognised_by_its_name() {
        let shared: Origin = "https://Ports.example.org".parse().unwrap();
        assert_eq!(shared.recognise("ports.example.org"), Some(Shown::Every));
        assert_eq!(shared.recognise("PORTS.example.org.:443"), Some(Shown::Every));
        for other in
            ["example.org", "x.ports.example.org", "ports.example.org.evil", "", "evilports.example.org"]
        {
            assert_eq!(shared.recognise(other), None, "{other}");
        }
        let each: Origin = "http://*.localhost:8080".parse().unwrap();
        let own = each.of_job(job(5));
        assert!(own.starts_with("http://job-0") && own.ends_with(".localhost:8080"), "{own}");
        assert_eq!(each.recognise(own.trim_start_matches("http://")), Some(Shown::Of(job(5))));
        assert_eq!(each.recognise("x.localhost"), Some(Shown::Nobody));
        assert_eq!((each.recognise("localhost:8080"), each.recognise("127.0.0.1")), (None, None));
        assert!(
            Shown::Of(job(5)).has(job(5)) && !Shown::Of(job(5)).has(job(6)) && !Shown::Nobody.has(job(5))
        );
        assert_eq!(each.to_string(), "http://*.localhost:8080");
        let six: Origin = "http://[::1]:90".parse().unwrap();
        assert_eq!((six.recognise("[::1]:90"), six.recognise("[::2]:90")), (Some(Shown::Every), None));
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
            let place = Place { job: job(n), rank, port };
            let (path, inside) = (format!("{}{rest}", place.prefix()), format!("/{rest}"));
            prop_assert_eq!(Place::of(&path), Some((place, inside.as_str())));
        }

        #[test]
        fn no_text_is_too_odd(text in ".{0,60}") {
            let _ = text.parse::<Origin>();
            let _ = Place::of(&text);
            let origin: Origin = "https://*.p.example".parse().unwrap();
            let _ = origin.recognise(&text);
        }
    }
}
