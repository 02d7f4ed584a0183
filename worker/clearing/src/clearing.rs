//! The decision before each start: clear the memory of a device, or leave it to its last organization.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use berth_system::sync::lock;
use clap::{Args, ValueEnum};

use super::device::Device;
use super::helper::{ClearingHelper, HelperError};
use super::last_users::LastUsers;
use super::messages::{Cleared, Progress};

/// The file of the last users in the worker's data directory.
const USERS: &str = "device-users.json";

/// The starts before which the memory of a GPU is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClearMode {
    /// Every start on a whole board or a slice. Shares of a board: as between organizations.
    Always,
    /// A start after an attempt of another or of an unknown organization.
    BetweenOrganizations,
    /// No start.
    Never,
}

#[derive(Debug, Clone, Copy, Args)]
pub struct ClearingArgs {
    /// The starts of jobs before which the memory of a GPU is cleared. By default `between-organizations` on a host
    /// with libcuda.so.1, otherwise `never`. The worker does not start if it cannot do as stated.
    #[arg(long, env = "BERTH_CLEAR_MEMORY", value_enum)]
    pub clear_memory: Option<ClearMode>,
}

/// The reason why an attempt must not start.
#[derive(Debug)]
pub enum ClearFailure {
    /// The attempt is not wanted any more.
    GivenUp,
    /// The memory is not proved cleared, for a reason that is a part of a sentence.
    NotCleared(String),
    /// The organization cannot be recorded.
    Unwritable(io::Error),
}

/// The clearing of this host.
#[derive(Debug)]
pub struct MemoryClearing {
    /// The helper, or the reason why nothing is cleared, as a part of a sentence.
    helper: Result<ClearingHelper, String>,
    always: bool,
    users: Mutex<LastUsers>,
    /// A decision and its clearing exclude others of the same device.
    places: Mutex<HashMap<String, Arc<Mutex<()>>>>,
}

impl MemoryClearing {
    /// Decides by the choice of the operator and by the CUDA library. `helper` is an error on a host that can have
    /// none.
    ///
    /// # Errors
    /// The operator's choice cannot be kept.
    pub fn open(
        chosen: Option<ClearMode>,
        helper: Result<ClearingHelper, String>,
        data: &Path,
    ) -> Result<Self, String> {
        let file = data.join(USERS);
        let off = |why: String| -> Result<Self, String> {
            // The next starts are not recorded, so a later daemon must know nobody.
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(format!("{} cannot be removed: {error}", file.display()))
                }
                _ => Ok(Self::off(why)),
            }
        };
        if chosen == Some(ClearMode::Never) {
            return off("the operator has switched it off".to_owned());
        }
        match (helper.and_then(|helper| helper.check().map(|()| helper)), chosen) {
            (Ok(helper), _) => Ok(Self {
                helper: Ok(helper),
                always: chosen == Some(ClearMode::Always),
                users: Mutex::new(LastUsers::open(file)),
                places: Mutex::default(),
            }),
            (Err(why), None) => {
                tracing::warn!(
                    why,
                    "the memory of GPUs is NOT cleared between jobs of different organizations"
                );
                off(why)
            }
            (Err(why), Some(_)) => Err(format!(
                "The memory of GPUs cannot be cleared: {why}. Install libcuda.so.1 of the driver, or state --clear-memory never"
            )),
        }
    }

    /// No clearing, for a reason that is a part of a sentence.
    pub fn off(why: String) -> Self {
        Self {
            helper: Err(why),
            always: false,
            users: Mutex::new(LastUsers::open(PathBuf::new())),
            places: Mutex::default(),
        }
    }

    /// The state as text for the portal.
    pub fn description(&self) -> String {
        match &self.helper {
            Ok(_) if self.always => "cleared before every job".to_owned(),
            Ok(_) => "cleared between organizations".to_owned(),
            Err(why) => format!("not cleared: {why}"),
        }
    }

    /// Records the organization of a share that an earlier daemon without a record left. Without it the next share of
    /// the organization would be cleared beside this one, which has memory. The organization reaches the earlier data of
    /// the board already.
    pub fn adopt_share(&self, gpu_uuid: &str, organization: &str) {
        let mut users = lock(&self.users);
        if self.helper.is_err() || organization.is_empty() || users.know(gpu_uuid) {
            return;
        }
        let share = Device { gpu_uuid, visible_name: gpu_uuid, slices: None, shared: true };
        if let Err(error) = users.set(&share, organization) {
            tracing::warn!(gpu_uuid, %error, "the organization of a share cannot be recorded");
        }
    }

    /// Clears the memory of a device if its last user may be another organization, and records the organization.
    /// Blocking. `None`: nothing was cleared.
    ///
    /// # Errors
    /// The attempt must not start on the device.
    pub fn before_start(
        &self,
        device: &Device<'_>,
        organization: &str,
        given_up: &dyn Fn() -> bool,
        progress: &dyn Fn(Progress),
    ) -> Result<Option<Cleared>, ClearFailure> {
        let Ok(helper) = &self.helper else { return Ok(None) };
        let place = lock(&self.places).entry(device.place()).or_default().clone();
        let _only = lock(&place);
        // An assignment of an old portal has no organization.
        let known = !organization.is_empty() && lock(&self.users).are(device, organization);
        if known && (!self.always || device.shared) {
            return Ok(None);
        }
        let cleared = helper.clear(device.visible_name, given_up, progress);
        let cleared = cleared.map_err(|error| match error {
            HelperError::GivenUp => ClearFailure::GivenUp,
            HelperError::Failed(why) => ClearFailure::NotCleared(why),
        })?;
        tracing::info!(device = device.visible_name, ?cleared, "the memory of a device is cleared");
        // Recorded before the start: a daemon that ends in between clears again.
        lock(&self.users).set(device, organization).map_err(ClearFailure::Unwritable)?;
        Ok(Some(cleared))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use berth_test_programs::write_program;

    use super::*;

    const BOARD: Device<'static> =
        Device { gpu_uuid: "GPU-1", visible_name: "GPU-1", slices: None, shared: false };

    /// A helper that counts its clearings in a file, and fails beside a file `broken`.
    fn helper(dir: &Path) -> ClearingHelper {
        let program = dir.join("helper");
        let script = format!(
            "#!/bin/sh\ncd {}\n\
             [ -z \"$CUDA_VISIBLE_DEVICES\" ] && echo '\"ready\"' && exit 0\n\
             [ -e broken ] && echo '{{\"failed\":\"the memory is bad\"}}' && exit 1\n\
             echo x >> cleared\n\
             echo '{{\"cleared\":{{\"cleared_bytes\":5,\"total_bytes\":6,\"samples\":7,\"took_ms\":8}}}}'\n",
            dir.display()
        );
        write_program(&program, &script).unwrap();
        ClearingHelper { program, library: None, variables: Vec::new() }
    }

    fn open(dir: &Path, chosen: Option<ClearMode>) -> MemoryClearing {
        MemoryClearing::open(chosen, Ok(helper(dir)), dir).unwrap()
    }

    fn start(
        clearing: &MemoryClearing,
        device: &Device<'_>,
        organization: &str,
    ) -> Result<bool, ClearFailure> {
        let cleared = clearing.before_start(device, organization, &|| false, &|_| ())?;
        Ok(cleared.is_some())
    }

    #[test]
    fn only_another_organization_finds_cleared_memory() {
        let dir = tempfile::tempdir().unwrap();
        let clearing = open(dir.path(), None);
        assert_eq!(clearing.description(), "cleared between organizations");
        let starts = ["org_a", "org_a", "org_b", "org_a", "", ""];
        let cleared = starts.map(|organization| start(&clearing, &BOARD, organization).unwrap());
        assert_eq!(cleared, [true, false, true, true, true, true]);
        let clearing = open(dir.path(), None);
        assert!(start(&clearing, &BOARD, "org_a").unwrap(), "the last user has no name");
        let clearing = open(dir.path(), None);
        assert!(!start(&clearing, &BOARD, "org_a").unwrap(), "a restart knows the last user");
    }

    #[test]
    fn always_leaves_out_shares_with_neighbours() {
        let dir = tempfile::tempdir().unwrap();
        let clearing = open(dir.path(), Some(ClearMode::Always));
        let share = Device { shared: true, ..BOARD };
        assert!(start(&clearing, &BOARD, "org_a").unwrap() && start(&clearing, &BOARD, "org_a").unwrap());
        assert!(!start(&clearing, &share, "org_a").unwrap(), "a neighbour may run");
        assert!(start(&clearing, &share, "org_b").unwrap());
    }

    #[test]
    fn after_a_failure_the_last_user_stays() {
        let dir = tempfile::tempdir().unwrap();
        let clearing = open(dir.path(), None);
        start(&clearing, &BOARD, "org_a").unwrap();
        fs::write(dir.path().join("broken"), "").unwrap();
        let failure = start(&clearing, &BOARD, "org_b").unwrap_err();
        assert!(
            matches!(&failure, ClearFailure::NotCleared(why) if why == "the memory is bad"),
            "{failure:?}"
        );
        assert!(!start(&clearing, &BOARD, "org_a").unwrap(), "its own data");
        fs::remove_file(dir.path().join("broken")).unwrap();
        assert!(start(&clearing, &BOARD, "org_b").unwrap());
    }

    #[test]
    fn simultaneous_starts_of_an_organization_clear_once() {
        let dir = tempfile::tempdir().unwrap();
        let clearing = open(dir.path(), None);
        let share = Device { shared: true, ..BOARD };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| start(&clearing, &share, "org_a").unwrap());
            }
        });
        assert_eq!(fs::read_to_string(dir.path().join("cleared")).unwrap(), "x\n");
    }

    #[test]
    fn a_share_beside_one_of_an_earlier_daemon_is_not_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let clearing = open(dir.path(), None);
        let share = Device { shared: true, ..BOARD };
        clearing.adopt_share(share.gpu_uuid, "");
        clearing.adopt_share(share.gpu_uuid, "org_a");
        assert!(!start(&clearing, &share, "org_a").unwrap(), "its neighbour has memory");
        clearing.adopt_share(share.gpu_uuid, "org_b");
        assert!(start(&clearing, &share, "org_b").unwrap(), "a record stays");
    }

    #[test]
    fn a_daemon_without_clearing_leaves_no_record() {
        let dir = tempfile::tempdir().unwrap();
        start(&open(dir.path(), None), &BOARD, "org_a").unwrap();
        let off = open(dir.path(), Some(ClearMode::Never));
        assert_eq!(off.description(), "not cleared: the operator has switched it off");
        assert!(!start(&off, &BOARD, "org_b").unwrap());
        assert!(start(&open(dir.path(), None), &BOARD, "org_a").unwrap(), "the user between is unknown");
    }

    #[test]
    fn without_a_library_the_choice_decides() {
        let dir = tempfile::tempdir().unwrap();
        let absent = || Err("no CUDA driver library".to_owned());
        let clearing = MemoryClearing::open(None, absent(), dir.path()).unwrap();
        assert_eq!(clearing.description(), "not cleared: no CUDA driver library");
        let refused = MemoryClearing::open(Some(ClearMode::BetweenOrganizations), absent(), dir.path());
        assert!(refused.unwrap_err().contains("--clear-memory never"));
    }
}
