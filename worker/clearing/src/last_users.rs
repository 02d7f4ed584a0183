//! The organization of the last attempt on each part of a board, in a file that survives the daemon and the host.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use berth_system::files::{find_json, put_json};
use serde::{Deserialize, Serialize};

use super::device::Device;

/// The last users of one board.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct BoardUsers {
    /// The organization of the last attempt on the whole board or on a share of it. `None`: unknown.
    board: Option<String>,
    /// The organizations of later attempts on memory slices, by slice.
    slices: BTreeMap<u32, String>,
}

impl BoardUsers {
    /// True if the device was last used by this organization alone.
    fn are(&self, device: &Device<'_>, organization: &str) -> bool {
        let is_board = self.board.as_deref() == Some(organization);
        let is = |slice: u32| self.slices.get(&slice).map_or(is_board, |user| user == organization);
        match device.slices {
            Some((start, size)) => size > 0 && (start..start.saturating_add(size)).all(is),
            None => is_board && self.slices.values().all(|user| user == organization),
        }
    }

    fn set(&mut self, device: &Device<'_>, organization: &str) {
        match device.slices {
            Some((start, size)) => {
                let slices = start..start.saturating_add(size);
                self.slices.extend(slices.map(|slice| (slice, organization.to_owned())));
            }
            None => *self = Self { board: Some(organization.to_owned()), slices: BTreeMap::new() },
        }
    }
}

/// The last users of all boards. A board without an entry has unknown users.
#[derive(Debug)]
pub(crate) struct LastUsers {
    file: PathBuf,
    boards: BTreeMap<String, BoardUsers>,
}

impl LastUsers {
    /// Reads the file. All users are unknown without a readable one.
    pub fn open(file: PathBuf) -> Self {
        let boards = find_json(&file).unwrap_or_default();
        Self { file, boards }
    }

    /// True if the device was last used by this organization alone.
    pub fn are(&self, device: &Device<'_>, organization: &str) -> bool {
        self.boards.get(device.gpu_uuid).is_some_and(|users| users.are(device, organization))
    }

    /// True if a board has an entry.
    pub fn know(&self, gpu_uuid: &str) -> bool {
        self.boards.contains_key(gpu_uuid)
    }

    /// Records the organization of the next attempt on a device. The record is on disk, synced, after the return.
    ///
    /// # Errors
    /// The file cannot be written; then the attempt must not start.
    pub fn set(&mut self, device: &Device<'_>, organization: &str) -> io::Result<()> {
        if self.are(device, organization) {
            return Ok(());
        }
        let mut boards = self.boards.clone();
        boards.entry(device.gpu_uuid.to_owned()).or_default().set(device, organization);
        put_json(&self.file, &boards, true)?;
        self.boards = boards;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(slices: Option<(u32, u32)>) -> Device<'static> {
        Device { gpu_uuid: "GPU-1", visible_name: "GPU-1", slices, shared: false }
    }

    #[test]
    fn users_survive_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users.json");
        let mut users = LastUsers::open(file.clone());
        let board = device(None);
        assert!(!users.are(&board, "org_a"), "nobody is known");
        users.set(&board, "org_a").unwrap();
        let users = LastUsers::open(file.clone());
        assert!(users.are(&board, "org_a") && !users.are(&board, "org_b"));
        let other = Device { gpu_uuid: "GPU-2", ..board };
        assert!(!users.are(&other, "org_a"));
        std::fs::write(&file, "nonsense").unwrap();
        assert!(!LastUsers::open(file).are(&board, "org_a"), "an unreadable file proves nothing");
    }

    #[test]
    fn each_memory_slice_has_its_own_user() {
        let dir = tempfile::tempdir().unwrap();
        let mut users = LastUsers::open(dir.path().join("users.json"));
        let (board, low, high) = (device(None), device(Some((0, 4))), device(Some((4, 4))));
        users.set(&board, "org_a").unwrap();
        assert!(users.are(&low, "org_a"), "a slice of the board");
        users.set(&low, "org_b").unwrap();
        assert!(users.are(&low, "org_b") && users.are(&high, "org_a"));
        let across = device(Some((2, 4)));
        assert!(!users.are(&across, "org_a") && !users.are(&across, "org_b"));
        assert!(!users.are(&board, "org_a") && !users.are(&board, "org_b"));
        users.set(&low, "org_a").unwrap();
        assert!(users.are(&board, "org_a"), "all of it again");
        users.set(&board, "org_b").unwrap();
        assert!(users.are(&board, "org_b") && users.are(&low, "org_b"));
        assert!(!users.are(&device(Some((0, 0))), "org_b"), "no slice proves nothing");
    }

    #[test]
    fn a_record_that_cannot_be_written_is_none() {
        let mut users = LastUsers::open(PathBuf::from("/nowhere/users.json"));
        assert!(users.set(&device(None), "org_a").is_err());
        assert!(!users.are(&device(None), "org_a"));
    }
}
