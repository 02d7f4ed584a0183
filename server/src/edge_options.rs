//! The options of the edge towards browsers and scripts.

use std::net::IpAddr;

use berth_foundation::proxies::{ForwardedHeader, TrustedProxies};
use ipnet::IpNet;

#[derive(clap::Args)]
/// The options of the edge towards browsers and scripts.
pub struct Edge {
    /// The networks of the reverse proxies in front of the portal, such as 10.0.0.0/8, separated by commas. The
    /// portal reads the address of a sender from the header of these proxies only.
    #[arg(long, env = "BERTH_TRUSTED_PROXIES", value_delimiter = ',', value_parser = network)]
    trusted_proxies: Vec<IpNet>,
    /// The header in which these proxies add addresses: x-forwarded-for or forwarded.
    #[arg(long, env = "BERTH_FORWARDED_HEADER", default_value = "x-forwarded-for")]
    forwarded_header: ForwardedHeader,
    /// The limit of open connections of browsers and scripts. The limit of open files lowers it.
    #[arg(long, env = "BERTH_MAX_CONNECTIONS", default_value_t = 8_192, value_parser = clap::value_parser!(u64).range(16..=1_000_000))]
    max_connections: u64,
}

/// Parses a network such as `10.0.0.0/8`, or one address.
fn network(text: &str) -> Result<IpNet, String> {
    let network = text.parse::<IpNet>().ok();
    let network = network.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    network.ok_or_else(|| "enter a network such as 10.0.0.0/8, or an address".to_owned())
}

impl Edge {
    /// The limit of connections that leaves descriptors for workers, for the database and for files.
    pub fn connections(&self) -> usize {
        let open_files = raise_open_files();
        let max = self.max_connections.min(open_files / 2).max(16);
        if max < self.max_connections {
            tracing::warn!(open_files, max, "the limit of open files lowers the limit of connections");
        }
        usize::try_from(max).unwrap_or(usize::MAX)
    }

    pub fn proxies(self) -> TrustedProxies {
        TrustedProxies { networks: self.trusted_proxies, header: self.forwarded_header }
    }
}

/// Raises the limit of open files of this process to the hard limit, and returns it.
fn raise_open_files() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 1_024 };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::network;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_network_is_read_again_from_its_text(
            text in prop_oneof![
                "[0-9]{1,3}([.][0-9]{1,3}){3}(/[0-9]{1,3})?",
                "[0-9a-f:.]{0,40}(/[0-9]{0,4})?",
                "::/[0-9]{1,3}",
                "(?s).{0,30}",
            ],
        ) {
            if let Ok(found) = network(&text) {
                prop_assert!(found.prefix_len() <= found.max_prefix_len());
                prop_assert_eq!(network(&found.to_string()), Ok(found));
            }
        }
    }
}
