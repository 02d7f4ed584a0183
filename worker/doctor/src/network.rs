//! The network: the address of the portal, InfiniBand with the memory of boards for it, and the means for networks
//! between the ranks of jobs.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::finding::Finding;
use super::host::Host;
use super::settings::Settings;

const PORTAL: &str = "network.portal";
const INFINIBAND: &str = "network.infiniband";
const PEERMEM: &str = "network.peermem";
const PERFTEST: &str = "network.perftest";
const GANGS: &str = "network.gangs";

/// The time for the addresses of a name, and for a connection to one of them.
const LONGEST: Duration = Duration::from_secs(2);
/// The most addresses that are tried.
const MAX_ADDRESSES: usize = 4;
const DEVICES: &str = "/sys/class/infiniband";
/// The kernel module that gives network adapters access to the memory of boards.
const PEERMEM_MODULE: &str = "/sys/module/nvidia_peermem";
/// The loaded kernel module of WireGuard, also one inside the kernel's own file.
const WIREGUARD_MODULE: &str = "/sys/module/wireguard";
/// The device file of tunnels of user space.
const TUN: &str = "/dev/net/tun";

/// The checks of the network.
pub(crate) fn findings(host: &Host) -> Vec<Finding> {
    let portal = host.portal.as_deref().map(portal);
    portal.into_iter().chain([infiniband(host), peermem(host), perftest(host), gangs(host)]).collect()
}

/// The host and port of a URL.
fn authority(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let default = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let (host, port) = match authority.rsplit_once(':') {
        // A colon inside brackets belongs to an IPv6 address.
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, default),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// The addresses of a host. A resolver without an answer keeps its thread.
fn addresses(host: String, port: u16) -> Vec<SocketAddr> {
    let (sender, receiver) = mpsc::channel();
    let resolve = move || {
        let found = (host.as_str(), port).to_socket_addrs();
        let found: Vec<SocketAddr> = found.into_iter().flatten().take(MAX_ADDRESSES).collect();
        // The caller may have given up.
        let _ = sender.send(found);
    };
    match thread::Builder::new().name("doctor names".to_owned()).spawn(resolve) {
        Ok(_) => receiver.recv_timeout(LONGEST).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

fn portal(url: &str) -> Finding {
    let Some((host, port)) = authority(url) else {
        return Finding::problem(
            PORTAL,
            "The address of the portal is not a URL.",
            "Set BERTH_PORTAL in /etc/berth/worker.env to a URL such as https://portal.example.org:8081",
        );
    };
    let found = addresses(host.clone(), port);
    if found.is_empty() {
        return Finding::problem(
            PORTAL,
            format!("The name {host} of the portal has no address here, so the worker cannot connect."),
            format!(
                "getent hosts {host}. Correct the name in /etc/berth/worker.env or the name servers in /etc/resolv.conf"
            ),
        );
    }
    match found.iter().find(|address| TcpStream::connect_timeout(address, LONGEST).is_ok()) {
        Some(address) => Finding::ok(PORTAL, format!("The portal accepts connections at {address}.")),
        None => Finding::problem(
            PORTAL,
            format!("The portal accepts no connection at {host}, port {port}, so the worker cannot connect."),
            format!(
                "Permit TCP from this host to {host}, port {port}, in the firewalls, and check --worker-listen of the portal"
            ),
        ),
    }
}

/// The ports of InfiniBand that are not active, with their states, and the number of all.
fn inactive_ports(host: &Host) -> (Vec<String>, usize) {
    let (mut inactive, mut count) = (Vec::new(), 0);
    for device in host.names(DEVICES) {
        for port in host.names(format!("{DEVICES}/{device}/ports")) {
            count += 1;
            // Such as "4: ACTIVE".
            let state = host.read_line(format!("{DEVICES}/{device}/ports/{port}/state")).unwrap_or_default();
            let state = state.split_once(": ").map_or("unknown", |(_, name)| name);
            if state != "ACTIVE" {
                inactive.push(format!("{device} port {port} {state}"));
            }
        }
    }
    (inactive, count)
}

fn infiniband(host: &Host) -> Finding {
    let (inactive, count) = inactive_ports(host);
    if count == 0 {
        return Finding::ok(INFINIBAND, "The host has no InfiniBand.");
    }
    if inactive.is_empty() {
        return Finding::ok(INFINIBAND, format!("InfiniBand: {count} of {count} ports are active."));
    }
    Finding::warning(
        INFINIBAND,
        format!("InfiniBand: {} of {count} ports are not active: {}.", inactive.len(), inactive.join(", ")),
        "ibstat. A port in INIT waits for a subnet manager (opensm), a port in DOWN for a cable",
    )
}

fn peermem(host: &Host) -> Finding {
    if host.names(DEVICES).is_empty() {
        return Finding::ok(PEERMEM, "Without InfiniBand no adapter needs access to the memory of boards.");
    }
    if host.simulated {
        return Finding::ok(PEERMEM, "Simulated boards have no memory for adapters.");
    }
    if host.exists(PEERMEM_MODULE) {
        return Finding::ok(
            PEERMEM,
            "Adapters have access to the memory of boards: nvidia_peermem is loaded.",
        );
    }
    Finding::warning(
        PEERMEM,
        "The kernel module nvidia_peermem is not loaded. Without it, and without DMA-BUF in kernel and driver, InfiniBand copies through the host's memory.",
        "modprobe nvidia_peermem, and a line nvidia_peermem in /etc/modules-load.d/nvidia_peermem.conf",
    )
}

/// The program that measures RDMA links before the start of a job on several nodes.
fn perftest(host: &Host) -> Finding {
    if host.names(DEVICES).is_empty() {
        return Finding::ok(PERFTEST, "Without InfiniBand or RoCE there are no RDMA links to measure.");
    }
    if !host.is_root() {
        return Finding::ok(PERFTEST, "A worker without root does not measure RDMA links.");
    }
    if host.find_program("ib_write_bw").is_some() {
        return Finding::ok(PERFTEST, "The worker measures RDMA links before a job by ib_write_bw.");
    }
    Finding::warning(
        PERFTEST,
        "The program ib_write_bw is absent: a slow or broken RDMA link is not found before a job on several nodes.",
        "apt-get install perftest, then systemctl restart berth-worker",
    )
}

/// The means for networks between the ranks of a job on several nodes. The worker tries the same at its start.
fn gangs(host: &Host) -> Finding {
    if !host.is_root() {
        return Finding::ok(GANGS, "A worker without root gives jobs on several nodes the host's network.");
    }
    let settings = Settings::read(&host.root);
    for (name, value) in
        [("BERTH_JOB_NETWORK", &settings.job_network), ("BERTH_GANG_NETWORK", &settings.gang_network)]
    {
        if value.as_deref() == Some("host") {
            return Finding::ok(
                GANGS,
                format!("{name}=host: jobs on several nodes have the host's network."),
            );
        }
    }
    if settings.gang_network.as_deref() == Some("vxlan") {
        return vxlan(host);
    }
    let has_module = host.exists(WIREGUARD_MODULE) || host.ask("modinfo", &["wireguard"]).is_ok();
    let has_program = host.find_program("wg").is_some();
    if has_module && has_program {
        return Finding::ok(GANGS, "WireGuard in the kernel encrypts the packets between ranks.");
    }
    if host.exists(TUN) {
        return Finding::ok(
            GANGS,
            "A process of the worker encrypts the packets between ranks. WireGuard in the kernel with the program wg (wireguard-tools) is faster.",
        );
    }
    let next = match (has_module, has_program) {
        (true, _) => "apt-get install wireguard-tools, then: systemctl restart berth-worker",
        (false, true) => "modprobe wireguard, then: systemctl restart berth-worker",
        (false, false) => {
            "modprobe wireguard; apt-get install wireguard-tools, then: systemctl restart berth-worker"
        }
    };
    Finding::problem(
        GANGS,
        format!(
            "The host has neither WireGuard in the kernel with the program wg nor {TUN} for the networks between ranks, so the worker does not start."
        ),
        format!("{next}. To share the host's network: add BERTH_GANG_NETWORK=host to /etc/berth/worker.env"),
    )
}

fn vxlan(host: &Host) -> Finding {
    if host.find_program("bridge").is_some() {
        return Finding::ok(GANGS, "VXLAN carries the packets between ranks: bridge is installed.");
    }
    Finding::problem(
        GANGS,
        "The program bridge for the networks between ranks is missing, so the worker does not start.",
        "apt-get install iproute2",
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingState;
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        let pair = |host: &str, port: u16| Some((host.to_owned(), port));
        assert_eq!(authority("https://portal.example.org:8081"), pair("portal.example.org", 8_081));
        assert_eq!(authority("https://portal.example.org/x:1"), pair("portal.example.org", 443));
        assert_eq!(authority("http://[::1]:80"), pair("::1", 80));
        assert_eq!(authority("http://[::1]"), pair("::1", 80));
        for bad in ["", "portal", "ftp://portal", "https://:1", "https://portal:x"] {
            assert_eq!(authority(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_portal_accepts_connections_or_not() {
        let listener = std::net::TcpListener::bind("127.83.7.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        assert_eq!(portal(&url).state, FindingState::Ok);
        // Port 1 has no listener. The port of a dropped listener can stay open for a moment: a
        // process that another test starts holds the socket between its fork and its exec.
        let closed = portal("https://127.83.7.1:1");
        assert!(closed.state == FindingState::Problem && closed.next.is_some(), "{closed:?}");
        assert_eq!(portal("portal").state, FindingState::Problem);
    }
}
