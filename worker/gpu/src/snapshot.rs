//! One reading of a board and its slices in few calls, taken every second on every board.

use serde::{Deserialize, Serialize};

use super::board::{BoardInfo, Slice};
use super::error::GpuError;
use super::library::{Library, mig_enabled};
use super::readings::{Reading, board_reading, mib};

/// The reading of one slice. Power, temperature and clocks are of the board.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SliceSnapshot {
    pub slice: Slice,
    pub reading: Reading,
}

/// The readings of one board.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BoardSnapshot {
    pub board: Reading,
    pub slices: Vec<SliceSnapshot>,
    /// The board differs from the inventory: its mode is another, or a slice did not answer.
    pub changed: bool,
}

impl Library {
    /// Reads a board and its slices from an earlier inventory.
    pub fn snapshot(&self, info: &BoardInfo) -> Result<BoardSnapshot, GpuError> {
        let board = self.device(&info.uuid)?;
        let monitored = board.gpm_support().unwrap_or(false);
        let mut whole = board_reading(&board)?;
        // Read each time: the utilization of a board in MIG mode means nothing.
        let under_mig = mig_enabled(&board)?;
        if !under_mig {
            whole.utilization_percent = board.utilization_rates().ok().map(|u| f64::from(u.gpu));
            let percent = if monitored { self.busy_percent(&board, &info.uuid, None) } else { None };
            whole.engine_active = percent.map(|p| p / 100.0);
        }
        let usable = info.slices.iter().filter(|slice| slice.mig_uuid.is_some());
        let changed = under_mig != info.mig_enabled;
        let mut snapshot = BoardSnapshot { board: whole, slices: Vec::new(), changed };
        for slice in usable {
            let Some(memory) = self.slice_memory(slice) else {
                snapshot.changed = true;
                continue;
            };
            let percent =
                if monitored { self.busy_percent(&board, &info.uuid, Some(slice.gi)) } else { None };
            let reading = Reading {
                utilization_percent: percent,
                memory_used_mib: Some(memory.0),
                memory_total_mib: memory.1,
                engine_active: percent.map(|p| p / 100.0),
                ..whole
            };
            snapshot.slices.push(SliceSnapshot { slice: slice.clone(), reading });
        }
        // Slices have no part in these values.
        self.add_board_values(&board, &info.uuid, &mut snapshot.board);
        Ok(snapshot)
    }

    /// MiB used and in total. `None`: the slice is gone.
    fn slice_memory(&self, slice: &Slice) -> Option<(f64, f64)> {
        let memory = self.device(slice.mig_uuid.as_deref()?).ok()?.memory_info().ok()?;
        Some((mib(memory.used), mib(memory.total)))
    }
}
