//! What a daemon says of its host when a session begins. Must not change anything: it only looks.

use std::collections::{BTreeMap, HashSet};

use berth_proto::{AttemptId, Board, Hello, Instance};

use crate::agent::Key;
use crate::attempts::Attempt;
use crate::capacity;
use crate::confinement::{self, MOST_CHARS};
use crate::daemon::Host;
use crate::gpu::{BoardInfo, Gpus};

/// Slices by their board and start.
pub type Slices = HashSet<(String, u32)>;

/// What a look at the boards found.
#[derive(Debug, Default)]
pub struct Listed {
    pub driver_version: String,
    pub boards: Vec<BoardInfo>,
    /// Why there are none, where they could not be listed.
    pub missing: Option<String>,
}

/// The boards with what is on them. Blocking, for a few seconds at most: boards that do not answer are told of
/// as they were.
pub fn list(gpus: &Gpus) -> Listed {
    match gpus.inventory() {
        // The driver's name is not worth a session.
        Ok(boards) => {
            let driver_version = gpus.driver_version().unwrap_or_default();
            Listed { driver_version, boards, missing: None }
        }
        Err(_) if !gpus.has_started() => Listed::without("NVML has not started; it is waited for"),
        Err(error) => Listed::without(&format!("they cannot be listed: {error}")),
    }
}

impl Listed {
    /// No boards, and why.
    pub fn without(why: &str) -> Self {
        tracing::error!(why, "the worker serves without boards until they answer");
        Self { missing: Some(why.to_owned()), ..Self::default() }
    }

    /// Those that answered.
    pub fn heard(&self) -> impl Iterator<Item = &str> {
        self.boards.iter().filter(|board| board.silent.is_none()).map(|board| board.uuid.as_str())
    }
}

/// The slices of attempts that are not clean yet.
pub fn own_slices(attempts: &BTreeMap<Key, Attempt>) -> Slices {
    attempts
        .values()
        .filter(|a| !a.record.clean)
        .flat_map(|a| &a.record.devices)
        .filter_map(|d| d.instance.map(|(_, start)| (d.gpu_uuid.clone(), start)))
        .collect()
}

/// The first message of a session. `ours` are the slices that are this worker's, now or when it looked.
pub fn hello(host: &Host, attempts: &BTreeMap<Key, Attempt>, listed: Listed, ours: &Slices) -> Hello {
    let boards = listed
        .boards
        .into_iter()
        .map(|b| Board {
            foreign: b
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
    let mut words = confinement::words(host);
    words.extend(
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
        address: host.address.clone(),
        labels: host.labels.clone(),
        isolation: words.into_iter().collect(),
        runs_images: host.images.is_ok(),
        leases: true,
        attempts: attempts.keys().map(|k| AttemptId::new(&k.job, k.number)).collect(),
        // Which daemon this is, whoever holds the session says.
        ..Hello::default()
    }
}
