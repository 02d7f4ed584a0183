//! One reading of a board and all that is on it, in as few calls as it takes: every second, on every board.

use super::library::{Library, mig_enabled};
use super::readings::{Reading, board_reading, mib};
use super::{BoardInfo, GpuError, Slice};

/// What was read of one slice. Power, temperature and clocks are the board's.
#[derive(Debug, Clone, PartialEq)]
pub struct SliceRead {
    pub slice: Slice,
    pub reading: Reading,
}

/// What was read of one board.
#[derive(Debug, Clone, PartialEq)]
pub struct BoardRead {
    pub board: Reading,
    pub slices: Vec<SliceRead>,
    /// The board is not as it was thought to be: its mode is another, or a slice did not answer.
    pub changed: bool,
}

impl Library {
    /// Reads a board and its slices as they were found earlier.
    pub fn read_whole(&self, info: &BoardInfo) -> Result<BoardRead, GpuError> {
        let board = self.device(&info.uuid)?;
        let monitored = board.gpm_support().unwrap_or(false);
        let mut whole = board_reading(&board)?;
        // Asked each time: a share of time that the driver tells under MIG means nothing.
        let under_mig = mig_enabled(&board)?;
        if !under_mig {
            whole.utilization_percent = board.utilization_rates().ok().map(|u| f64::from(u.gpu));
            let percent = if monitored { self.busy_percent(&board, &info.uuid, None) } else { None };
            whole.engine_active = percent.map(|p| p / 100.0);
        }
        let usable = info.slices.iter().filter(|slice| slice.mig_uuid.is_some());
        let mut read = BoardRead { board: whole, slices: Vec::new(), changed: under_mig != info.mig_enabled };
        for slice in usable {
            let Some(memory) = self.slice_memory(slice) else {
                read.changed = true;
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
            read.slices.push(SliceRead { slice: slice.clone(), reading });
        }
        // No slice has a part of this.
        self.read_rest(&board, &info.uuid, &mut read.board);
        Ok(read)
    }

    /// MiB used and in all; `None` when the slice is gone.
    fn slice_memory(&self, slice: &Slice) -> Option<(f64, f64)> {
        let memory = self.device(slice.mig_uuid.as_deref()?).ok()?.memory_info().ok()?;
        Some((mib(memory.used), mib(memory.total)))
    }
}
