//! The places of PCI devices in sysfs, and the distance between two of them in the words of `nvidia-smi topo`. This
//! module changes nothing.

use std::fs;
use std::path::Path;

/// The distance of two PCI devices, the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PciDistance {
    /// One switch connects them.
    Pix,
    /// Several switches below one root port connect them.
    Pxb,
    /// One host bridge connects them.
    Phb,
    /// They have different host bridges on one NUMA node.
    Node,
    /// They are on different NUMA nodes, or their NUMA nodes are unknown.
    Sys,
}

impl PciDistance {
    /// The word of `nvidia-smi topo`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }
}

/// The place of a PCI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciPlace {
    /// The host bridge and the addresses down to the device, such as `pci0000:97`, `0000:97:01.0`, `0000:98:00.0`.
    path: Vec<String>,
    /// Absent if the kernel knows none.
    pub numa_node: Option<u32>,
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// True for a name such as `pci0000:97`.
fn is_host_bridge(name: &str) -> bool {
    let numbers = name.strip_prefix("pci").and_then(|rest| rest.split_once(':'));
    numbers.is_some_and(|(domain, bus)| is_hex(domain) && is_hex(bus))
}

/// True for a name such as `0000:98:00.0`.
fn is_address(name: &str) -> bool {
    let Some((numbers, function)) = name.rsplit_once('.') else { return false };
    is_hex(function) && numbers.split(':').count() == 3 && numbers.split(':').all(is_hex)
}

/// The address in the form of sysfs, from a form such as `00000000:1B:00.0` of NVML.
fn sysfs_address(address: &str) -> Option<String> {
    let (domain, rest) = address.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let name = format!("{domain:04x}:{}", rest.to_ascii_lowercase());
    is_address(&name).then_some(name)
}

impl PciPlace {
    /// Reads the place of the device behind a link of sysfs. `None` without a PCI device.
    pub fn read(link: &Path) -> Option<Self> {
        let dir = link.canonicalize().ok()?;
        let names = dir.components().filter_map(|part| part.as_os_str().to_str());
        let path: Vec<String> = names
            .skip_while(|name| !is_host_bridge(name))
            .take_while(|name| is_host_bridge(name) || is_address(name))
            .map(str::to_owned)
            .collect();
        if path.len() < 2 {
            return None;
        }
        // -1 is unknown.
        let numa_node = fs::read_to_string(dir.join("numa_node")).ok();
        let numa_node = numa_node.and_then(|text| text.trim().parse().ok());
        Some(Self { path, numa_node })
    }

    /// Finds the place of a device by its address, also in the form of NVML, below the root of sysfs.
    pub fn find(sys: &Path, address: &str) -> Option<Self> {
        Self::read(&sys.join("bus/pci/devices").join(sysfs_address(address)?))
    }

    /// The address of the device, such as `0000:98:00.0`.
    pub fn address(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    /// The distance to another device.
    pub fn distance(&self, other: &Self) -> PciDistance {
        let common = self.path.iter().zip(&other.path).take_while(|(own, their)| own == their).count();
        let below = self.path.len().max(other.path.len()).saturating_sub(common);
        match common {
            // Below the upstream port of a switch each device has its downstream port.
            2.. if below <= 2 => PciDistance::Pix,
            2.. => PciDistance::Pxb,
            1 => PciDistance::Phb,
            _ if self.numa_node.is_some() && self.numa_node == other.numa_node => PciDistance::Node,
            _ => PciDistance::Sys,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &[&str], numa_node: Option<u32>) -> PciPlace {
        PciPlace { path: path.iter().map(|name| (*name).to_owned()).collect(), numa_node }
    }

    #[test]
    fn a_distance_follows_from_the_common_bridges() {
        let switch = ["pci0000:97", "0000:97:01.0", "0000:98:00.0"];
        let board = place(&[&switch[..], &["0000:99:00.0", "0000:9a:00.0"]].concat(), Some(1));
        let beside = place(&[&switch[..], &["0000:99:01.0", "0000:9b:00.0"]].concat(), Some(1));
        assert_eq!(board.distance(&beside), PciDistance::Pix);
        let deeper = ["0000:99:02.0", "0000:9c:00.0", "0000:9d:00.0", "0000:9e:00.0"];
        let deeper = place(&[&switch[..], &deeper].concat(), Some(1));
        assert_eq!(board.distance(&deeper), PciDistance::Pxb);
        assert_eq!(deeper.distance(&board), PciDistance::Pxb, "both ways");
        let port = place(&["pci0000:97", "0000:97:03.0", "0000:a0:00.0"], Some(1));
        assert_eq!(board.distance(&port), PciDistance::Phb);
        let bridge = |numa| place(&["pci0000:b7", "0000:b7:01.0", "0000:b8:00.0"], numa);
        assert_eq!(board.distance(&bridge(Some(1))), PciDistance::Node);
        assert_eq!(board.distance(&bridge(Some(0))), PciDistance::Sys);
        assert_eq!(bridge(None).distance(&place(&["pci0000:c7"], None)), PciDistance::Sys);
        assert_eq!(board.address(), "0000:9a:00.0");
    }

    #[test]
    fn an_address_of_nvml_becomes_one_of_sysfs() {
        assert_eq!(sysfs_address("00000000:1B:00.0").as_deref(), Some("0000:1b:00.0"));
        assert_eq!(sysfs_address("00010000:03:00.0").as_deref(), Some("10000:03:00.0"));
        for bad in ["", "1b:00.0", "0000:../../x", "0000:1b:00", "0000:1b:/.0"] {
            assert_eq!(sysfs_address(bad), None, "{bad:?}");
        }
    }
}
