//! The RDMA devices of the host (InfiniBand and RoCE) as the kernel lists them in sysfs, and their device nodes. This
//! module changes nothing.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

use super::pci::PciPlace;

/// The most devices of a host.
pub const MAX_DEVICES: usize = 64;
/// The most ports of a device.
pub const MAX_PORTS: usize = 8;
/// The most network interfaces of a device.
const MAX_INTERFACES: usize = 8;
/// The most entries of a directory that are looked at.
const MAX_ENTRIES: usize = 1_024;
/// The most characters of a name.
const MAX_NAME_CHARS: usize = 64;
/// The most addresses (GIDs) of a port.
const MAX_ADDRESSES: u32 = 256;
/// The begin of an address of IP version 4 among them.
const MAPPED_IP4: &str = "0000:0000:0000:0000:0000:ffff:";
/// The name of the link layer of InfiniBand.
const INFINIBAND: &str = "InfiniBand";

/// The directories with the devices and with their nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaTree {
    /// In place of `/sys`.
    pub sys: PathBuf,
    /// In place of `/dev`.
    pub dev: PathBuf,
}

impl Default for RdmaTree {
    fn default() -> Self {
        Self::below(Path::new("/"))
    }
}

/// An RDMA device of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaDevice {
    /// Such as `mlx5_0`.
    pub name: String,
    /// Absent for a device that is not on PCI.
    pub place: Option<PciPlace>,
    /// The names of its network interfaces, such as `ib0`.
    pub interfaces: Vec<String>,
    /// The name of its device node for jobs, such as `uverbs0`.
    pub uverbs: Option<String>,
    /// By number.
    pub ports: Vec<RdmaPort>,
}

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaPort {
    /// From 1.
    pub number: u32,
    /// In the words of the kernel, such as `ACTIVE`, `INIT` or `DOWN`.
    pub state: String,
    /// 0 if unknown.
    pub rate_mbps: u64,
    /// `InfiniBand`, or `Ethernet` for RoCE.
    pub link_layer: String,
    /// The local identifier that the subnet manager gave; 0 without one.
    pub lid: u32,
}

impl RdmaPort {
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// True for a name that is safe in a path and in a list for NCCL.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (1..=MAX_NAME_CHARS).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(fits)
}

/// The order of names in which `mlx5_2` comes before `mlx5_10`.
fn compare_names(one: &str, other: &str) -> Ordering {
    (one.len(), one).cmp(&(other.len(), other))
}

/// The sorted names in a directory, at most `limit`; none if it cannot be read.
fn names(dir: &Path, limit: usize) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let entries = entries.take(MAX_ENTRIES).flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| is_name(name));
    names.sort_by(|one, other| compare_names(one, other));
    names.truncate(limit);
    names
}

/// The text of a file without the space around it; empty if it cannot be read.
fn text(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().chars().take(MAX_NAME_CHARS).collect()
}

/// The rate in a text such as `400 Gb/sec (4X NDR)` or `2.5 Gb/sec (1X SDR)`.
fn rate_mbps(text: &str) -> u64 {
    let number = text.split_whitespace().next().unwrap_or_default();
    let (whole, tenths) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().unwrap_or(0);
    let tenths: u64 = tenths.get(..1).and_then(|digit| digit.parse().ok()).unwrap_or(0);
    whole.saturating_mul(1_000).saturating_add(tenths * 100)
}

/// The number in a text such as `0x2a`.
fn hex(text: &str) -> u32 {
    text.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

fn read_port(dir: &Path, name: &str) -> Option<RdmaPort> {
    let port = dir.join(name);
    let state = text(&port.join("state"));
    // Such as "4: ACTIVE".
    let state = state.split_once(": ").map_or("UNKNOWN", |(_, name)| name);
    Some(RdmaPort {
        number: name.parse().ok()?,
        state: state.to_owned(),
        rate_mbps: rate_mbps(&text(&port.join("rate"))),
        link_layer: text(&port.join("link_layer")),
        lid: hex(&text(&port.join("lid"))),
    })
}

impl RdmaTree {
    /// The directories below another root than `/`.
    pub fn below(root: &Path) -> Self {
        Self { sys: root.join("sys"), dev: root.join("dev") }
    }

    /// A host without RDMA devices, whatever this one has.
    pub fn absent() -> Self {
        // A path below a file never exists.
        Self::below(Path::new("/dev/null"))
    }

    /// True for the devices of this host. Those of another directory have no nodes that a job could open.
    pub fn is_of_host(&self) -> bool {
        *self == Self::default()
    }

    /// The RDMA devices by name.
    pub fn devices(&self) -> Vec<RdmaDevice> {
        let class = self.sys.join("class/infiniband");
        let verbs = self.sys.join("class/infiniband_verbs");
        let nodes: Vec<(String, String)> = names(&verbs, MAX_ENTRIES)
            .into_iter()
            .filter(|node| node.starts_with("uverbs"))
            .map(|node| (text(&verbs.join(&node).join("ibdev")), node))
            .collect();
        let device = |name: String| {
            let (dir, link) = (class.join(&name), class.join(&name).join("device"));
            let ports = dir.join("ports");
            RdmaDevice {
                place: PciPlace::read(&link),
                interfaces: names(&link.join("net"), MAX_INTERFACES),
                uverbs: nodes.iter().find(|(device, _)| *device == name).map(|(_, node)| node.clone()),
                ports: names(&ports, MAX_PORTS).iter().filter_map(|port| read_port(&ports, port)).collect(),
                name,
            }
        };
        names(&class, MAX_DEVICES).into_iter().map(device).collect()
    }

    /// The RDMA devices for a job, by name, each with its active ports only. With active ports of InfiniBand these are
    /// the devices of that fabric alone: NCCL would try to connect ports of InfiniBand and of Ethernet.
    pub fn job_devices(&self) -> Vec<RdmaDevice> {
        let mut devices = self.devices();
        let is_used = |port: &RdmaPort| port.is_active() && port.link_layer == INFINIBAND;
        let has_infiniband = devices.iter().flat_map(|device| &device.ports).any(is_used);
        for device in &mut devices {
            device.ports.retain(|port| if has_infiniband { is_used(port) } else { port.is_active() });
        }
        devices.retain(|device| !device.ports.is_empty());
        devices
    }

    /// The device nodes of RDMA devices for a job: `uverbs` of each device, and `rdma_cm` if the host has it. The
    /// nodes `umad` and `issm`, which change the fabric, are never among them.
    ///
    /// # Errors
    /// The sentence about a missing node, without its full stop.
    pub fn nodes(&self, devices: &[RdmaDevice]) -> Result<Vec<PathBuf>, String> {
        let dir = self.dev.join("infiniband");
        let mut nodes = Vec::new();
        for device in devices {
            let node = device.uverbs.as_ref().map(|name| dir.join(name)).filter(|node| node.exists());
            let missing = || {
                format!(
                    "The RDMA device {} has no device node, a fault of the host. Its operator loads the kernel module with modprobe ib_uverbs",
                    device.name
                )
            };
            nodes.push(node.ok_or_else(missing)?);
        }
        nodes.extend(Some(dir.join("rdma_cm")).filter(|node| node.exists()));
        Ok(nodes)
    }

    /// The index of the address of a RoCE port in the network of IP version 4. `None`: it has none, as a port of
    /// InfiniBand.
    pub fn roce_address_index(&self, device: &str, port: u32) -> Option<u32> {
        let dir = self.sys.join("class/infiniband").join(device).join("ports").join(port.to_string());
        let is_ip4 = |index: &u32| {
            let index = index.to_string();
            text(&dir.join("gid_attrs/types").join(&index)) == "RoCE v2"
                && text(&dir.join("gids").join(&index)).starts_with(MAPPED_IP4)
        };
        (0..MAX_ADDRESSES).find(is_ip4)
    }

    /// True if a job needs the host's network for these devices. The addresses of RoCE ports are those of the host's
    /// interfaces. In the kernel's mode `exclusive` a device belongs to one network namespace.
    pub fn needs_host_network(&self, devices: &[RdmaDevice]) -> bool {
        let is_exclusive = text(&self.sys.join("module/ib_core/parameters/netns_mode")) == "N";
        let mut ports = devices.iter().flat_map(|device| &device.ports);
        is_exclusive || ports.any(|port| port.link_layer != INFINIBAND)
    }
}

/// The ports in NCCL's form for an exact choice, such as `=mlx5_0:1,mlx5_1:1`. The nearest device of each PCI place
/// comes first, in the order of the places.
pub fn nccl_ports(devices: &[RdmaDevice], places: &[PciPlace]) -> String {
    let mut order: Vec<usize> = Vec::new();
    for place in places {
        let distance = |device: &RdmaDevice| device.place.as_ref().map(|own| own.distance(place));
        let near = devices.iter().enumerate().filter_map(|(at, device)| Some((distance(device)?, at)));
        // Places with equally near devices get different ones.
        let nearest = near.min_by_key(|(distance, at)| (*distance, order.contains(at), *at));
        let next = nearest.map(|(_, at)| at).filter(|at| !order.contains(at));
        order.extend(next);
    }
    let rest: Vec<usize> = (0..devices.len()).filter(|at| !order.contains(at)).collect();
    order.extend(rest);
    let ordered = order.into_iter().filter_map(|at| devices.get(at));
    let ports = ordered
        .flat_map(|device| device.ports.iter().map(move |port| format!("{}:{}", device.name, port.number)));
    format!("={}", ports.collect::<Vec<String>>().join(","))
}

#[cfg(test)]
mod tests;
