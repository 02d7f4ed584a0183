//! The options of the edge towards browsers and scripts.

use berth_core::gang_links::LinkMinimum;
use berth_foundation::Settings;
use berth_foundation::addresses::parse_network;
use berth_foundation::proxies::{ForwardedHeader, TrustedProxies};
use ipnet::IpNet;

#[derive(clap::Args)]
/// The options of the edge towards browsers and scripts.
pub struct Edge {
    /// The networks of the reverse proxies in front of the portal, such as 10.0.0.0/8, separated by commas. The
    /// portal reads the address of a sender from the header of these proxies only.
    #[arg(long, env = "BERTH_TRUSTED_PROXIES", value_delimiter = ',', value_parser = parse_network)]
    trusted_proxies: Vec<IpNet>,
    /// The header in which these proxies add addresses: x-forwarded-for or forwarded.
    #[arg(long, env = "BERTH_FORWARDED_HEADER", default_value = "x-forwarded-for")]
    forwarded_header: ForwardedHeader,
    /// The limit of open connections of browsers and scripts. The limit of open files lowers it.
    #[arg(long, env = "BERTH_MAX_CONNECTIONS", default_value_t = 8_192, value_parser = clap::value_parser!(u64).range(16..=1_000_000))]
    max_connections: u64,
    /// The requests a second of one person or API token, after twenty times as many at once; 0: no limit. Beyond it
    /// the answer is 429.
    #[arg(long, env = "BERTH_CALLER_REQUESTS_PER_S", default_value_t = 500)]
    caller_requests_per_s: u32,
    /// The least throughput between two nodes of a job on several nodes in MiB a second; 0: no such limit. A job on nodes
    /// with a slower link is not started.
    #[arg(long, env = "BERTH_GANG_MIN_MIBPS", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..=1_000_000))]
    gang_min_mibps: i64,
    /// The least throughput between two nodes in percent of the median of their former measurements; 0: no such limit.
    /// A lower value suits nodes that are busy with other work during the measurement.
    #[arg(long, env = "BERTH_GANG_MIN_PERCENT", default_value_t = 50, value_parser = clap::value_parser!(i64).range(0..=100))]
    gang_min_percent: i64,
    /// Operators have the page /operator/gallery with all components of the pages, for changes of Berth.
    #[arg(long, env = "BERTH_GALLERY")]
    gallery: bool,
}

impl Edge {
    /// The limit of connections that leaves descriptors for workers, for the database and for files.
    fn connections(&self) -> usize {
        let open_files = raise_open_files();
        let max = self.max_connections.min(open_files / 2).max(16);
        if max < self.max_connections {
            tracing::warn!(open_files, max, "the limit of open files lowers the limit of connections");
        }
        usize::try_from(max).unwrap_or(usize::MAX)
    }

    /// Adds the options to the settings.
    pub fn apply(self, settings: Settings) -> Settings {
        Settings {
            max_connections: self.connections(),
            caller_requests_per_s: self.caller_requests_per_s,
            trusted_proxies: TrustedProxies { networks: self.trusted_proxies, header: self.forwarded_header },
            gallery: self.gallery,
            gang_minimum: LinkMinimum { mib_per_s: self.gang_min_mibps, percent: self.gang_min_percent },
            ..settings
        }
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
