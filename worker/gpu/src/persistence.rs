//! The persistence mode of the boards: with it the driver keeps a board without a process loaded.

use super::board::BoardInfo;
use super::error::GpuError;
use super::gpus::Gpus;
use super::requests::ReadPersistence;

/// True if the persistence mode of all boards is on. `None`: no board is known, or one does not answer.
pub fn find_persistence(gpus: &Gpus) -> Option<bool> {
    let mut boards = gpus.known_boards();
    if boards.is_empty() {
        // The daemon has just started.
        boards = gpus.inventory().ok()?;
    }
    let mode =
        |board: BoardInfo| gpus.calls.read(&board.uuid, ReadPersistence { gpu_uuid: board.uuid.clone() });
    let modes: Result<Vec<bool>, GpuError> = boards.into_iter().map(mode).collect();
    let modes = modes.ok().filter(|modes| !modes.is_empty())?;
    Some(modes.iter().all(|on| *on))
}
