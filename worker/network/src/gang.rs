//! The network between the ranks of a job on several nodes: an interface inside the network namespace of each rank,
//! connected to the other ranks by encrypted packets (WireGuard), or by plain ones on a trusted network (VXLAN).
//!
//! The interface is made in the network of the host and then moved, so its packets leave by the host's network while
//! the rank sees only the inside.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_types::gangs::{GANG_INTERFACE, GANG_PORTS, rank_address, rank_name};
use ipnet::Ipv4Net;

use super::args::{GangNetworkKind, NetworkArgs};
use super::programs::{find_program, run};
use super::tunnel;

/// The first part of the name of an interface until it is moved. The rules for jobs do not cover this name.
const INTERFACE: &str = "bgang";
/// The bytes that the outer headers take from a packet at most.
const OVERHEAD: u32 = 80;
/// The fewest bytes of a packet inside, which version 6 of IP needs.
const LEAST_MTU: u32 = 1_280;
/// The most bytes of a packet in a tunnel of user space, which cuts packets to the limit of a new interface.
const PROCESS_MTU: u32 = 1_500;
/// The prefix of the addresses of ranks.
const PREFIX: u8 = 16;
/// The device file of tunnels of user space.
const TUN: &str = "/dev/net/tun";

/// A key of WireGuard.
#[derive(Clone, PartialEq, Eq)]
pub struct GangKey([u8; 32]);

impl GangKey {
    /// `None`: a key has 32 bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// A key for a trial without other ranks.
    pub(crate) const fn trial() -> Self {
        Self([0x40; 32])
    }

    fn base64(&self) -> String {
        STANDARD.encode(self.0)
    }

    fn hex(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, byte| {
            // A write to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// A private key must not reach a log.
impl fmt::Debug for GangKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GangKey")
    }
}

/// Another rank of the gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangPeer {
    pub rank: u32,
    pub public_key: GangKey,
    /// The address of its node and the UDP port of its network.
    pub endpoint: SocketAddr,
}

/// The part of a rank in the network of its gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangNetwork {
    pub rank: u32,
    /// True for plain packets on a trusted network.
    pub plain: bool,
    /// The UDP port on this host. 0: any free one.
    pub port: u16,
    /// A number that is unique among the networks of gangs on the nodes of this gang.
    pub number: u32,
    pub private_key: GangKey,
    pub peers: Vec<GangPeer>,
}

/// The means of this host for networks of gangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GangMeans {
    /// WireGuard of the kernel, with the program `wg`.
    Kernel { wg: PathBuf },
    /// WireGuard in a process of the worker.
    Process { program: PathBuf },
    /// VXLAN, with the program `bridge`.
    Vxlan { bridge: PathBuf },
}

/// True if the addresses of jobs in this range may be those of ranks.
pub(crate) fn has_rank_addresses(range: Ipv4Net) -> bool {
    Ipv4Net::new(rank_address(0), PREFIX).is_ok_and(|ranks| ranks.contains(&range.network()))
}

/// The address of a rank as the network card's, for networks without learning.
fn card_address(rank: u32) -> String {
    let [.., a, b] = rank.to_be_bytes();
    format!("02:62:65:72:{a:02x}:{b:02x}")
}

/// The text of `/etc/hosts` for a rank: the host name of the sandbox is its own.
pub fn hosts_text(gang: &GangNetwork) -> String {
    let mut ranks: Vec<u32> = gang.peers.iter().map(|peer| peer.rank).chain([gang.rank]).collect();
    ranks.sort_unstable();
    let mut text = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for rank in ranks {
        let own = if rank == gang.rank { " berth" } else { "" };
        // A write to a string does not fail.
        let _ = writeln!(text, "{} {}{own}", rank_address(rank), rank_name(rank));
    }
    text
}

/// The configuration for the program `wg`.
fn wg_text(gang: &GangNetwork) -> String {
    let mut text =
        format!("[Interface]\nPrivateKey = {}\nListenPort = {}\n", gang.private_key.base64(), gang.port);
    for GangPeer { rank, public_key, endpoint } in &gang.peers {
        // A write to a string does not fail.
        let _ = write!(
            text,
            "[Peer]\nPublicKey = {}\nEndpoint = {endpoint}\nAllowedIPs = {}/32\n",
            public_key.base64(),
            rank_address(*rank)
        );
    }
    text
}

/// The same in the lines of WireGuard's cross-platform interface (wireguard.com/xplatform).
fn uapi_text(gang: &GangNetwork) -> String {
    let mut text = format!("set=1\nprivate_key={}\nlisten_port={}\n", gang.private_key.hex(), gang.port);
    for GangPeer { rank, public_key, endpoint } in &gang.peers {
        // A write to a string does not fail.
        let _ = write!(
            text,
            "public_key={}\nendpoint={endpoint}\nallowed_ip={}/32\n",
            public_key.hex(),
            rank_address(*rank)
        );
    }
    text + "\n"
}

impl GangMeans {
    /// Finds the means that the operator chose. `None`: jobs on several nodes have the host's network.
    ///
    /// # Errors
    /// The reason, with the choices of the operator.
    pub fn choose(args: &NetworkArgs, ip: &Path, program: &Path) -> Result<Option<Self>, String> {
        let kind = args.gang_network.unwrap_or(GangNetworkKind::Wireguard);
        if kind != GangNetworkKind::Host && has_rank_addresses(args.job_subnet) {
            let range = args.job_subnet;
            return Err(format!(
                "--job-subnet {range} has addresses of the ranks of gangs, so choose another range"
            ));
        }
        Self::find(kind, ip, program).map_err(|why| {
            format!(
                "the ranks of jobs on several nodes cannot have networks of their own: {why}. Load the kernel module wireguard and install wireguard-tools, or set --gang-network host: then these jobs have the network of the host"
            )
        })
    }

    /// Finds the means of this host. `None`: jobs on several nodes have the host's network.
    ///
    /// # Errors
    /// The reason why this host has no means of the chosen kind.
    fn find(kind: GangNetworkKind, ip: &Path, program: &Path) -> Result<Option<Self>, String> {
        let probe = format!("{INTERFACE}-probe");
        match kind {
            GangNetworkKind::Host => Ok(None),
            GangNetworkKind::Vxlan => {
                let bridge = find_program("bridge");
                let bridge = bridge.ok_or("the program bridge is missing: install the package iproute2")?;
                Ok(Some(Self::Vxlan { bridge }))
            }
            GangNetworkKind::Wireguard => {
                if let Some(wg) = find_program("wg")
                    && run(ip, &["link", "add", &probe, "type", "wireguard"], "").is_ok()
                {
                    run(ip, &["link", "del", &probe], "")?;
                    return Ok(Some(Self::Kernel { wg }));
                }
                if Path::new(TUN).exists() {
                    return Ok(Some(Self::Process { program: program.to_owned() }));
                }
                Err(format!(
                    "this host has neither WireGuard in its kernel with the program wg nor the file {TUN}"
                ))
            }
        }
    }

    /// A description for the isolation report.
    pub fn description(&self, first_port: u16) -> String {
        let means = match self {
            Self::Kernel { .. } => "WireGuard in the kernel",
            Self::Process { .. } => "WireGuard in a process",
            Self::Vxlan { .. } => "VXLAN, not encrypted",
        };
        let last_port = first_port.saturating_add(GANG_PORTS - 1);
        format!("{means}, UDP ports {first_port} to {last_port}")
    }

    pub const fn is_plain(&self) -> bool {
        matches!(self, Self::Vxlan { .. })
    }

    /// The most bytes of a packet inside.
    fn mtu(&self, host_mtu: u32) -> u32 {
        let most = match self {
            Self::Process { .. } => PROCESS_MTU,
            Self::Kernel { .. } | Self::Vxlan { .. } => u32::MAX,
        };
        host_mtu.saturating_sub(OVERHEAD).clamp(LEAST_MTU, most)
    }

    /// Connects a namespace to the network of its gang. `place` is the number of its place on this host.
    ///
    /// # Errors
    /// The reason. The removal of the namespace removes the rest.
    pub fn connect(
        &self,
        ip: &Path,
        (namespace, place): (&str, u32),
        gang: &GangNetwork,
        host_mtu: u32,
    ) -> Result<(), String> {
        if gang.plain != self.is_plain() {
            return Err("this node has another kind of networks between ranks now".to_owned());
        }
        let interface = format!("{INTERFACE}{place}");
        // Of a daemon that ended on the way. The place is this attempt's.
        let _ = run(ip, &["link", "del", &interface], "");
        let moved = self.create(ip, &interface, gang).and_then(|()| {
            let args = ["link", "set", &interface, "netns", namespace, "name", GANG_INTERFACE];
            run(ip, &args, "").map(|_| ())
        });
        if let Err(why) = moved {
            let _ = run(ip, &["link", "del", &interface], "");
            return Err(why);
        }
        let mtu = self.mtu(host_mtu);
        let mut lines = format!(
            "address add {}/{PREFIX} dev {GANG_INTERFACE}\nlink set {GANG_INTERFACE} mtu {mtu} up\n",
            rank_address(gang.rank)
        );
        if self.is_plain() {
            for peer in &gang.peers {
                let (address, card) = (rank_address(peer.rank), card_address(peer.rank));
                // A write to a string does not fail.
                let _ =
                    writeln!(lines, "neigh add {address} lladdr {card} dev {GANG_INTERFACE} nud permanent");
            }
        }
        run(ip, &["-n", namespace, "-batch", "-"], &lines).map(|_| ())
    }

    /// Makes the interface in the network of the host.
    fn create(&self, ip: &Path, interface: &str, gang: &GangNetwork) -> Result<(), String> {
        match self {
            Self::Kernel { wg } => {
                run(ip, &["link", "add", interface, "type", "wireguard"], "")?;
                run(wg, &["setconf", interface, "/dev/stdin"], &wg_text(gang)).map(|_| ())
            }
            Self::Process { program } => tunnel::start(program, interface, &uapi_text(gang)),
            Self::Vxlan { bridge } => {
                let (number, port) = (gang.number.to_string(), gang.port.to_string());
                let card = card_address(gang.rank);
                let link = ["link", "add", interface, "address", &card, "type", "vxlan", "id", &number];
                run(ip, &[&link[..], &["dstport", &port, "nolearning"]].concat(), "")?;
                let mut lines = String::new();
                for GangPeer { rank, endpoint, .. } in &gang.peers {
                    // A write to a string does not fail.
                    let _ = writeln!(
                        lines,
                        "fdb add {} dev {interface} dst {} port {}",
                        card_address(*rank),
                        endpoint.ip(),
                        endpoint.port()
                    );
                }
                run(bridge, &["-batch", "-"], &lines).map(|_| ())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gang() -> GangNetwork {
        let peer = |rank, byte, endpoint: &str| GangPeer {
            rank,
            public_key: GangKey([byte; 32]),
            endpoint: endpoint.parse().unwrap(),
        };
        GangNetwork {
            rank: 1,
            plain: false,
            port: 51_830,
            number: 9,
            private_key: GangKey([1; 32]),
            peers: vec![peer(2, 2, "[2001:db8::2]:51821"), peer(0, 3, "192.0.2.7:51840")],
        }
    }

    #[test]
    fn both_configurations_say_the_same() {
        let key = |byte: u8| (STANDARD.encode([byte; 32]), format!("{byte:02x}").repeat(32));
        let ((own, own_hex), (second, second_hex), (first, first_hex)) = (key(1), key(2), key(3));
        assert_eq!(
            wg_text(&gang()),
            format!(
                "[Interface]\nPrivateKey = {own}\nListenPort = 51830\n\
                 [Peer]\nPublicKey = {second}\nEndpoint = [2001:db8::2]:51821\nAllowedIPs = 100.124.0.3/32\n\
                 [Peer]\nPublicKey = {first}\nEndpoint = 192.0.2.7:51840\nAllowedIPs = 100.124.0.1/32\n"
            )
        );
        assert_eq!(
            uapi_text(&gang()),
            format!(
                "set=1\nprivate_key={own_hex}\nlisten_port=51830\n\
                 public_key={second_hex}\nendpoint=[2001:db8::2]:51821\nallowed_ip=100.124.0.3/32\n\
                 public_key={first_hex}\nendpoint=192.0.2.7:51840\nallowed_ip=100.124.0.1/32\n\n"
            )
        );
    }

    #[test]
    fn a_tunnel_of_user_space_has_no_jumbo_frames() {
        let kernel = GangMeans::Kernel { wg: PathBuf::from("/usr/bin/wg") };
        let process = GangMeans::Process { program: PathBuf::new() };
        assert_eq!([1_000, 1_500, 9_000].map(|mtu| kernel.mtu(mtu)), [1_280, 1_420, 8_920]);
        assert_eq!([1_000, 1_500, 9_000].map(|mtu| process.mtu(mtu)), [1_280, 1_420, 1_500]);
    }

    #[test]
    fn the_addresses_of_jobs_are_not_those_of_ranks() {
        let has = |range: &str| has_rank_addresses(range.parse().unwrap());
        assert!(has("100.124.0.0/16") && has("100.124.8.0/24"));
        assert!(!has("100.125.0.0/16") && !has("100.123.255.0/24"));
    }

    #[test]
    fn names_of_all_ranks_resolve_and_keys_are_not_printed() {
        let text = hosts_text(&gang());
        let expected = "100.124.0.1 rank-0\n100.124.0.2 rank-1 berth\n100.124.0.3 rank-2\n";
        assert!(text.ends_with(expected), "{text}");
        assert!(!format!("{:?}", gang()).contains("[1, 1"), "{:?}", gang());
        assert_eq!(GangKey::new(&[0; 31]), None);
        assert_eq!(
            (card_address(0), card_address(300)),
            ("02:62:65:72:00:00".into(), "02:62:65:72:01:2c".into())
        );
    }
}
