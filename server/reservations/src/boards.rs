//! The boards and the devices in use at one moment, and the failed devices of a reservation.

use std::collections::{HashMap, HashSet};

use berth_foundation::Context;
use berth_store::attempts::HeldDevice;
use berth_store::reservations::{StoredDevice, StoredReservation};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::NodeId;
use berth_types::time::Timestamp;

use crate::charges::MIN_LOST_S;

/// The boards of all nodes, with the devices in use on the boards of running reservations.
#[derive(Debug)]
pub(crate) struct Boards {
    /// The boards that can work, each with its node. The value is true on a cordoned node.
    working: HashMap<(NodeId, String), bool>,
    held: HashMap<String, Vec<HeldDevice>>,
}

impl Boards {
    /// Reads the boards, and the devices in use for the running ones of these reservations.
    pub(crate) async fn read(
        tx: &mut Tx<'_>,
        context: &Context,
        rows: &[StoredReservation],
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let connected = context.live.connected();
        // A node with a recent session is not lost yet. A time of the last session in the future comes
        // from a clock that was set back since, so it counts by its distance from now.
        let recent_micros = (MIN_LOST_S * 1_000_000).unsigned_abs();
        let is_recent = |at: Timestamp| at.micros().abs_diff(now.micros()) < recent_micros;
        let nodes = store::nodes::list(tx).await?;
        let recently_seen: HashSet<NodeId> =
            nodes.into_iter().filter(|n| n.last_seen_at.is_some_and(is_recent)).map(|n| n.id).collect();
        let is_reachable = |node: NodeId| recently_seen.contains(&node) || connected.contains(&node);
        let boards = store::nodes::list_gpus(tx).await?;
        let working = boards
            .into_iter()
            .filter(|g| g.present && g.quarantined.is_none() && is_reachable(g.node_id))
            .map(|g| ((g.node_id, g.uuid), g.cordoned))
            .collect();
        let running = rows.iter().filter(|row| row.org_id.is_some() && row.starts_at <= now);
        // A corrupt row stops no other reservation.
        let places = running.filter_map(|row| row.places().ok()).flatten();
        let reserved: Vec<String> =
            places.flat_map(|(_, devices)| devices).map(|device| device.gpu_uuid).collect();
        let mut held: HashMap<String, Vec<HeldDevice>> = HashMap::new();
        if !reserved.is_empty() {
            for device in store::attempts::list_held_devices(tx, &reserved).await? {
                held.entry(device.gpu_uuid.clone()).or_default().push(device);
            }
        }
        Ok(Self { working, held })
    }

    /// The failed devices of a reservation, in thousandths of all its devices.
    pub(crate) fn lost_milli(&self, row: &StoredReservation, now: Timestamp) -> Result<i64, StoreError> {
        let places = row.places()?;
        let devices = || places.iter().flat_map(|(node, devices)| devices.iter().map(move |d| (*node, d)));
        let all = i64::try_from(devices().count()).unwrap_or(i64::MAX).max(1);
        let lost = devices().filter(|(node, device)| self.is_lost(row, *node, device, now)).count();
        Ok(i64::try_from(lost).unwrap_or(0) * 1_000 / all)
    }

    /// True if the jobs of a reservation cannot use a device of it.
    fn is_lost(&self, row: &StoredReservation, node: NodeId, device: &StoredDevice, now: Timestamp) -> bool {
        let board = (node, device.gpu_uuid.clone());
        let Some(is_cordoned) = self.working.get(&board).copied() else { return true };
        // No job runs in maintenance.
        if row.org_id.is_none() {
            return false;
        }
        // Runs from before the begin have a minute to stop.
        let is_free_by_now = now.millis_since(row.starts_at) >= MIN_LOST_S * 1_000;
        let mut in_use = false;
        let held = self.held.get(&device.gpu_uuid).into_iter().flatten();
        for held in held.filter(|held| overlaps(device, held)) {
            let is_own = held.reservation_id == Some(row.id);
            if held.unclean || (is_free_by_now && !is_own) {
                return true;
            }
            in_use |= is_own;
        }
        is_cordoned && !in_use
    }
}

/// True if a reserved device and a device in use are at the same place of a board.
fn overlaps(reserved: &StoredDevice, held: &HeldDevice) -> bool {
    if reserved.gpu_uuid != held.gpu_uuid {
        return false;
    }
    if reserved.profile_id.is_none() || held.profile_id.is_none() {
        return true;
    }
    let (start, size) = (i64::from(reserved.start), i64::from(reserved.size));
    start < held.start + held.size && held.start < start + size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_boards_overlap_all_devices_and_slices_their_own_place() {
        let reserved = |profile_id: Option<u32>, start: u32, size: u32| StoredDevice {
            gpu_uuid: "GPU-1".to_owned(),
            profile_id,
            start,
            size,
        };
        let held = |gpu_uuid: &str, profile_id: Option<i64>, start: i64, size: i64| HeldDevice {
            gpu_uuid: gpu_uuid.to_owned(),
            profile_id,
            start,
            size,
            unclean: false,
            reservation_id: None,
        };
        let (board, slice) = (reserved(None, 0, 8), reserved(Some(9), 4, 4));
        for (device, other, expected) in [
            (&board, held("GPU-1", None, 0, 8), true),
            (&board, held("GPU-1", Some(19), 6, 1), true),
            (&board, held("GPU-2", None, 0, 8), false),
            (&slice, held("GPU-1", None, 0, 8), true),
            (&slice, held("GPU-1", Some(19), 3, 1), false),
            (&slice, held("GPU-1", Some(19), 4, 1), true),
            (&slice, held("GPU-1", Some(19), 7, 1), true),
            (&slice, held("GPU-1", Some(9), 0, 4), false),
            (&slice, held("GPU-2", Some(9), 4, 4), false),
        ] {
            assert_eq!(overlaps(device, &other), expected, "{device:?} {other:?}");
        }
    }
}
