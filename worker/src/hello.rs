//! What a daemon says of its host when a session begins. Must not change anything: it only looks.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use berth_proto::{AttemptId, Board, Hello, Instance};

use crate::agent::Key;
use crate::attempts::Attempt;
use crate::capacity;
use crate::confinement;
use crate::daemon::Host;

/// The first message of a session.
pub async fn hello(host: &Arc<Host>, attempts: &BTreeMap<Key, Attempt>) -> Result<Hello, String> {
    let looking = host.clone();
    let ours: HashSet<(String, u32)> = attempts
        .values()
        .filter(|a| !a.record.clean)
        .flat_map(|a| &a.record.devices)
        .filter_map(|d| d.instance.map(|(_, start)| (d.gpu_uuid.clone(), start)))
        .collect();
    let look = move || {
        // Boards that do not answer are told of as they were; the driver's name is not worth a session.
        let driver = looking.gpus.driver_version().unwrap_or_default();
        Ok::<_, crate::gpu::GpuError>((driver, looking.gpus.inventory()?))
    };
    let (driver_version, boards) = tokio::task::spawn_blocking(look)
        .await
        .map_err(|e| e.to_string())?
        .map_err(|e| format!("the GPUs cannot be listed: {e}"))?;
    let boards = boards
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
    Ok(Hello {
        worker_version: env!("CARGO_PKG_VERSION").to_owned(),
        driver_version,
        simulated: host.simulated,
        unisolated: !host.sandbox.isolated(),
        boards,
        cpu_milli: capacity::cpu_milli(),
        memory_mib: capacity::memory_mib(),
        address: host.address.clone(),
        labels: host.labels.clone(),
        isolation: confinement::words(host).into_iter().collect(),
        runs_images: host.images.is_ok(),
        leases: true,
        attempts: attempts.keys().map(|k| AttemptId::new(&k.job, k.number)).collect(),
        // Which daemon this is, whoever holds the session says.
        ..Hello::default()
    })
}
