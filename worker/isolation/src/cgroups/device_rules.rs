//! The device nodes that processes of a cgroup may open, for both versions of cgroups.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::sys::stat::{major, minor};

/// The numbers of character devices that a cgroup may open for reading and writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceRule {
    pub major: u32,
    /// `None`: all minor numbers.
    pub minor: Option<u32>,
}

/// The rule in the form of version 1, such as `1:3` or `136:*`.
impl fmt::Display for DeviceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.minor {
            Some(minor) => write!(f, "{}:{minor}", self.major),
            None => write!(f, "{}:*", self.major),
        }
    }
}

/// Device nodes that every process may open: null, zero, full, random, urandom, tty, ptmx and pts.
const USUAL_NODES: [(u32, Option<u32>); 8] = [
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(2)),
    (136, None),
];

/// The rules for the usual nodes and for these.
///
/// # Errors
/// A node is gone.
pub(super) fn device_rules(nodes: &[PathBuf]) -> io::Result<Vec<DeviceRule>> {
    let mut rules: Vec<DeviceRule> =
        USUAL_NODES.into_iter().map(|(major, minor)| DeviceRule { major, minor }).collect();
    for node in nodes {
        let device = fs::metadata(node)?.rdev();
        let number = |value: u64| u32::try_from(value).map_err(io::Error::other);
        rules.push(DeviceRule { major: number(major(device))?, minor: Some(number(minor(device))?) });
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_added_to_the_usual_ones() {
        let texts = |nodes: &[PathBuf]| -> Vec<String> {
            device_rules(nodes).unwrap().iter().map(DeviceRule::to_string).collect()
        };
        let usual = ["1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:2", "136:*"];
        assert_eq!(texts(&[]), usual);
        assert_eq!(texts(&["/dev/null".into()]), [&usual[..], &["1:3"]].concat());
        assert!(device_rules(&["/nowhere/node".into()]).is_err());
    }
}
