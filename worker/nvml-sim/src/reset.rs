//! The reset of a board, as `nvidia-smi` does it in a process of its own.

use crate::boards::device_uuids;
use crate::clients;
use crate::fault::Fault;
use crate::load::fresh;
use crate::world::{change, look};

/// Resets a board that nobody uses. Returns the text of `nvidia-smi`.
///
/// # Errors
/// The text of `nvidia-smi` for its refusal.
pub fn reset_board(uuid: &str) -> Result<String, String> {
    let refused = |fault: Fault| match fault {
        Fault::InUse => format!(
            "GPU {uuid} is currently in use by another process.\n\
             1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, \
             graphics application such as an X server, or a monitoring application such as another instance of \
             nvidia-smi). Please first kill all processes using this device and all compute applications running in \
             the system."
        ),
        fault => format!("Unable to reset GPU {uuid}: {fault:?}"),
    };
    look(|_| Ok(())).map_err(refused)?;
    let _alone = clients::keep_out().map_err(refused)?;
    let scan = fresh();
    let done = change(|world| {
        world.may_administer()?;
        let faults = world.faults.clone();
        let board = world.boards.iter_mut().find(|board| board.uuid == uuid).ok_or(Fault::NotFound)?;
        let is_held = |uuid: &String| faults.holds(uuid) || !scan.pids(uuid).is_empty();
        if device_uuids(board, None).iter().any(is_held) {
            return Err(Fault::InUse);
        }
        board.reset(&faults, false);
        Ok(())
    });
    done.map_err(refused)?;
    Ok(format!("GPU {uuid} was successfully reset.\nAll done."))
}
