//! The hello: the description of this host at the begin of a session.

use std::collections::{HashMap, HashSet};

use berth_proto::{Board, Hello, Instance};

use crate::attempt::{AttemptMap, Host, MOST_CHARS, isolation_report};
use crate::gpu::{BoardInfo, Gpus};
use crate::model::AttemptKey;
use crate::system::capacity;

/// The operator's description of this node.
pub struct NodeDescription {
    /// The address for other nodes.
    pub address: String,
    /// Labels such as the rack.
    pub labels: HashMap<String, String>,
}

/// Slices of this worker's attempts, by board and start.
pub(super) type OwnSlices = HashSet<(String, u32)>;

/// The boards for a hello.
#[derive(Debug, Default)]
pub(super) struct ListedBoards {
    pub driver_version: String,
    pub boards: Vec<BoardInfo>,
    /// The reason for missing boards, if they could not be listed.
    pub missing: Option<String>,
}

/// Lists the boards with their slices. Blocking, for a few seconds at most; silent boards have their last answer.
pub(super) fn list_boards(gpus: &Gpus) -> ListedBoards {
    match gpus.inventory() {
        // A missing driver version does not stop a session.
        Ok(boards) => {
            let driver_version = gpus.driver_version().unwrap_or_default();
            ListedBoards { driver_version, boards, missing: None }
        }
        Err(_) if !gpus.has_started() => ListedBoards::without("NVML has not started yet"),
        Err(error) => ListedBoards::without(&format!("the boards cannot be listed: {error}")),
    }
}

impl ListedBoards {
    /// No boards, for a reason.
    pub fn without(why: &str) -> Self {
        tracing::error!(why, "the worker continues without boards until they answer");
        Self { missing: Some(why.to_owned()), ..Self::default() }
    }

    /// The UUIDs of the boards that answered.
    pub fn answered(&self) -> impl Iterator<Item = &str> {
        self.boards.iter().filter(|board| board.silent.is_none()).map(|board| board.uuid.as_str())
    }
}

/// The slices of attempts that are not clean yet.
pub(super) fn own_slices(attempts: &AttemptMap) -> OwnSlices {
    attempts
        .values()
        .filter(|a| !a.record.clean)
        .flat_map(|a| &a.record.devices)
        .filter_map(|d| d.instance.map(|(_, start)| (d.gpu_uuid.clone(), start)))
        .collect()
}

/// The first message of a session, without the names of daemon and connection. `ours` are the slices of this worker,
/// now or at the time of the listing.
pub(super) fn hello(
    host: &Host,
    node: &NodeDescription,
    attempts: &AttemptMap,
    listed: ListedBoards,
    ours: &OwnSlices,
) -> Hello {
    let boards = listed
        .boards
        .into_iter()
        .map(|b| Board {
            foreign_instances: b
                .slices
                .iter()
                .filter(|s| !ours.contains(&(b.uuid.clone(), s.start)))
                .map(|s| Instance { profile_id: s.profile_id, start: s.start, size: s.size })
                .collect(),
            index: b.index,
            uuid: b.uuid,
            name: b.name,
            memory_mib: b.memory_mib,
            mig_enabled: b.mig_enabled,
            nvlink_island: b.nvlink_island,
        })
        .collect();
    let mut isolation = isolation_report(host);
    isolation.extend(
        listed.missing.map(|why| ("boards".to_owned(), why.chars().take(MOST_CHARS).collect::<String>())),
    );
    Hello {
        worker_version: env!("CARGO_PKG_VERSION").to_owned(),
        driver_version: listed.driver_version,
        simulated: host.simulated,
        unisolated: !host.sandbox.isolated(),
        boards,
        cpu_milli: capacity::cpu_milli(),
        memory_mib: capacity::memory_mib(),
        address: node.address.clone(),
        labels: node.labels.clone(),
        isolation: isolation.into_iter().collect(),
        supports_images: host.images.is_ok(),
        supports_leases: true,
        attempts: attempts.keys().map(AttemptKey::id).collect(),
        ..Hello::default()
    }
}
