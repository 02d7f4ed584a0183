//! The cleanup of an ended attempt, and the proof that nothing of it is left.

use std::io;

use berth_exec::entries;
use berth_images::registry;
use berth_isolation::secret_files;
use berth_shim::ATTEMPT_RECORD;

use super::directory::{Attempt, CLEAN};
use super::host::Host;
use crate::devices::{check_memory_free, remaining_processes};

/// Proves that no process of the attempt is left on its devices, and destroys its instances.
///
/// # Errors
/// The reason why that is not proved.
pub fn clean(attempt: &mut Attempt, host: &Host) -> Result<(), String> {
    let gpus = &host.gpus;
    berth_shim::wait_until_released(&attempt.dir).map_err(|e| e.to_string())?;
    // Removed first, so no later error leaves them.
    if let Some(dir) = &attempt.record.secrets {
        secret_files::remove(dir)
            .map_err(|e| format!("the secret files of the attempt cannot be removed: {e}"))?;
    }
    // A daemon that ended during a pull left them.
    registry::remove(&attempt.dir)
        .map_err(|e| format!("the registry credentials of the attempt cannot be removed: {e}"))?;
    entries::end_all(&attempt.dir).map_err(|e| e.to_string())?;
    // A shim leaves no process, except one that was killed.
    host.cgroups.end(&attempt.record.group)?;
    if attempt.record.contained {
        // All processes of the container have ended by now. podman may fail to end them: without a supervisor, or
        // under AppArmor, which blocks the signals of its runtime.
        let podman = host.images.as_ref().map_err(|why| format!("the container needs podman: {why}"))?;
        podman.remove(&attempt.record.container_name())?;
    }
    // The network may have to be removed although the daemon now gives jobs the host's.
    host.network
        .remove(&attempt.record.container_name())
        .map_err(|e| format!("the network of the attempt cannot be removed: {e}"))?;
    for device in &attempt.record.devices {
        let remaining = remaining_processes(gpus, device, &host.sharers, &attempt.dir)?;
        if !remaining.is_empty() {
            return Err(format!("processes still use the device: {remaining:?}"));
        }
        check_memory_free(gpus, device)?;
        if let Some((profile, start)) = device.instance.filter(|_| device.made) {
            let own = device.gpu_instance;
            gpus.destroy_slice(&device.gpu_uuid, profile, start, own).map_err(|e| e.to_string())?;
        }
    }
    // The log and pending outputs stay until the portal has them.
    if !attempt.has_pending_outputs() {
        attempt.remove_files();
    }
    attempt.record.clean = true;
    let saved = if attempt.record.made_devices() || !attempt.dir.join(ATTEMPT_RECORD).exists() {
        // Synced, so no instance is destroyed twice: a later one in the same place may be of another attempt.
        attempt.save()
    } else {
        // A file of its own and not synced, so the record is not at risk. A second proof after a crash of the host is
        // harmless.
        mark_clean(attempt)
    };
    saved.map_err(|e| e.to_string())
}

/// Marks a clean attempt by a rename of its launch file, which has no further use: a new file costs more.
fn mark_clean(attempt: &Attempt) -> io::Result<()> {
    let clean = attempt.dir.join(CLEAN);
    match std::fs::rename(attempt.dir.join(berth_shim::LAUNCH), &clean) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => std::fs::File::create(clean).map(|_| ()),
        renamed => renamed,
    }
}
