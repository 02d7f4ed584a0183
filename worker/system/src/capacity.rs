//! The processors, memory and address of the host. This module reads and limits nothing.

use std::sync::LazyLock;

/// Thousandths of a processor that this process may use: a worker in a container counts its own.
pub fn cpu_milli() -> u64 {
    std::thread::available_parallelism().map_or(0, |n| u64::try_from(n.get()).unwrap_or(0) * 1_000)
}

/// Memory of the host in MiB, read once.
pub fn memory_mib() -> u64 {
    static MIB: LazyLock<u64> =
        LazyLock::new(|| std::fs::read_to_string("/proc/meminfo").map_or(0, |text| total_mib(&text)));
    *MIB
}

fn total_mib(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or(0) / 1_024
}

/// The address of this host on its route to a URL. The system picks a route, and no packet is sent.
pub fn address_towards(url: &str) -> String {
    let authority = url.split("://").nth(1).unwrap_or(url).split('/').next().unwrap_or_default();
    let target = if authority.rsplit(':').next().is_some_and(|p| p.parse::<u16>().is_ok()) {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    let route = || {
        let bind = if target.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = std::net::UdpSocket::bind(bind).ok()?;
        socket.connect(&target).ok()?;
        Some(socket.local_addr().ok()?.ip().to_string())
    };
    route().unwrap_or_else(|| "127.0.0.1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_processors_and_memory() {
        assert!(cpu_milli() >= 1_000 && memory_mib() > 0);
        assert_eq!(total_mib("MemFree: 1 kB\nMemTotal:       2097152 kB\n"), 2_048);
        assert_eq!(total_mib("nonsense"), 0);
        assert_eq!(address_towards("http://127.0.0.1:8081"), "127.0.0.1");
        assert_eq!(address_towards("http://127.0.0.1"), "127.0.0.1");
        assert_eq!(address_towards("not a place"), "127.0.0.1");
    }
}
