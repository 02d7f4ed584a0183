//! The present maintenance of nodes, and the boards that present windows keep from new work.

use std::collections::{HashMap, HashSet};

use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::NodeId;
use berth_types::nodes::NodeMaintenance;
use berth_types::time::Timestamp;

/// The UUIDs of the boards in present windows.
#[derive(Debug, Default)]
pub(super) struct BookedBoards {
    pub maintained: HashSet<String>,
    pub reserved: HashSet<String>,
}

/// Reads the boards of the windows at the time `now`.
pub(super) async fn read_booked(tx: &mut Tx<'_>, now: Timestamp) -> Result<BookedBoards, StoreError> {
    let just_after = Timestamp::from_micros(now.micros() + 1);
    let mut booked = BookedBoards::default();
    for row in store::reservations::list_windows_between(tx, now, just_after).await? {
        let boards = if row.org_id.is_none() { &mut booked.maintained } else { &mut booked.reserved };
        boards
            .extend(row.places()?.into_iter().flat_map(|(_, devices)| devices).map(|device| device.gpu_uuid));
    }
    Ok(booked)
}

/// Reads the maintenance at the time `now`, by node. Of several windows on a node the last end counts.
pub(super) async fn read_maintenance(
    tx: &mut Tx<'_>,
    now: Timestamp,
) -> Result<HashMap<NodeId, NodeMaintenance>, StoreError> {
    let just_after = Timestamp::from_micros(now.micros() + 1);
    let mut found: HashMap<NodeId, NodeMaintenance> = HashMap::new();
    let rows = store::reservations::list_between(tx, now, just_after).await?;
    for row in rows.into_iter().filter(|row| row.org_id.is_none()) {
        for (node, devices) in row.places()? {
            let boards = u32::try_from(devices.len()).unwrap_or(u32::MAX);
            let window = NodeMaintenance { until: row.ends_at, reason: row.name.clone(), boards };
            found
                .entry(node)
                .and_modify(|known| {
                    known.boards = known.boards.saturating_add(boards);
                    known.until = known.until.max(row.ends_at);
                })
                .or_insert(window);
        }
    }
    Ok(found)
}
