//! The resolvers of names for jobs, from the files of the host.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The file with the resolvers for programs.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The file of systemd-resolved with the resolvers that it asks itself.
const UPSTREAM: &str = "/run/systemd/resolve/resolv.conf";
/// The C library uses no more than this.
const MOST_RESOLVERS: usize = 3;
/// The largest read part of a file in bytes.
const MOST_BYTES: u64 = 64 << 10;

/// The resolvers with the other settings of their file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolvers {
    pub addresses: Vec<IpAddr>,
    settings: Vec<String>,
}

impl Resolvers {
    /// The stated resolvers, or those of the host. None if the host has none.
    ///
    /// # Errors
    /// All resolvers are on the host itself, out of reach for jobs.
    pub fn find(stated: &[IpAddr], has_ipv6: bool) -> Result<Self, String> {
        Self::choose(stated, &[read(RESOLV_CONF), read(UPSTREAM)], has_ipv6)
    }

    fn choose(stated: &[IpAddr], files: &[String], has_ipv6: bool) -> Result<Self, String> {
        let settings = files.first().map(|text| settings(text)).unwrap_or_default();
        let usable = |address: &IpAddr| is_reachable(address) && (has_ipv6 || address.is_ipv4());
        let found = files.iter().map(|text| nameservers(text));
        let lists: Vec<Vec<IpAddr>> = std::iter::once(stated.to_vec()).chain(found).collect();
        let mut reachable = lists
            .iter()
            .map(|list| list.iter().copied().filter(usable).take(MOST_RESOLVERS).collect::<Vec<IpAddr>>());
        match reachable.find(|list| !list.is_empty()) {
            Some(addresses) => Ok(Self { addresses, settings }),
            None if lists.iter().all(Vec::is_empty) => Ok(Self { addresses: Vec::new(), settings }),
            None => Err(format!(
                "{RESOLV_CONF} names no resolver that jobs can reach. Set --job-resolver to the address of one"
            )),
        }
    }

    /// The text of the file for jobs.
    pub fn text(&self) -> String {
        let names = self.addresses.iter().map(|address| format!("nameserver {address}\n"));
        names.chain(self.settings.iter().map(|line| format!("{line}\n"))).collect()
    }
}

/// The begin of a file; empty without one.
fn read(path: &str) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
    if let Err(error) = read {
        tracing::debug!(%error, path, "no resolvers are read");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// False for an address that has another meaning in a namespace.
fn is_reachable(address: &IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

fn nameservers(text: &str) -> Vec<IpAddr> {
    let address = |line: &str| line.trim().strip_prefix("nameserver")?.trim().parse().ok();
    text.lines().filter_map(address).collect()
}

/// The lines with search domains and options.
fn settings(text: &str) -> Vec<String> {
    let kept = |line: &&str| matches!(line.split_whitespace().next(), Some("search" | "domain" | "options"));
    text.lines().filter(kept).map(str::to_owned).collect()
}

/// The place of the file with the resolvers, without links: a mount must not go through one. `None`: the host has no
/// such file.
pub(crate) fn resolv_conf_target() -> Option<PathBuf> {
    Path::new(RESOLV_CONF).canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUB: &str = "# systemd\nnameserver 127.0.0.53\noptions edns0\nsearch example.org\n";
    const OTHERS: &str =
        "nameserver 10.0.0.53\nnameserver 2001:db8::53\nnameserver fe80::1%eth0\nnameserver x\n";

    fn choose(stated: &[&str], files: [&str; 2], has_ipv6: bool) -> Result<String, String> {
        let stated: Vec<IpAddr> = stated.iter().map(|text| text.parse().unwrap()).collect();
        Resolvers::choose(&stated, &files.map(str::to_owned), has_ipv6).map(|found| found.text())
    }

    #[test]
    fn resolvers_on_the_host_are_replaced_by_theirs() {
        let text = "nameserver 10.0.0.53\noptions edns0\nsearch example.org\n";
        assert_eq!(choose(&[], [STUB, OTHERS], false).unwrap(), text);
        let both = choose(&[], [OTHERS, ""], true).unwrap();
        assert_eq!(both, "nameserver 10.0.0.53\nnameserver 2001:db8::53\n");
        let stated = choose(&["192.0.2.53"], [STUB, OTHERS], false).unwrap();
        assert!(stated.starts_with("nameserver 192.0.2.53\noptions"), "{stated}");
    }

    #[test]
    fn a_host_without_a_resolver_for_jobs_is_refused() {
        for files in [[STUB, ""], ["nameserver ::1\nnameserver 2001:db8::53\n", ""]] {
            let why = choose(&[], files, false).unwrap_err();
            assert!(why.contains("--job-resolver"), "{why}");
        }
        assert_eq!(
            choose(&[], ["search x\n", ""], false).unwrap(),
            "search x\n",
            "names do not matter there"
        );
    }
}
