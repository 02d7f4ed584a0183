//! The reset of boards, as `nvidia-smi` does it in a process of its own.

use crate::boards::device_uuids;
use crate::clients;
use crate::fault::Fault;
use crate::load::fresh;
use crate::nvlink::joined;
use crate::world::{SimBoard, World, change, look};

/// The driver resets boards of this major CUDA capability and later one by one, and earlier ones with NVLink together.
const RESET_ALONE_FROM: u32 = 8;

/// True if the driver resets a board without those that NVLink joins with it.
fn is_reset_alone(board: &SimBoard) -> Result<bool, Fault> {
    let (major, _) = board.board()?.compute_capability.split_once('.').ok_or(Fault::Unknown)?;
    Ok(major.parse::<u32>().map_err(|_| Fault::Unknown)? >= RESET_ALONE_FROM)
}

/// The boards that a request must name too.
fn find_missing(world: &World, uuids: &[String]) -> Result<Vec<String>, Fault> {
    let mut missing: Vec<String> = Vec::new();
    for board in world.boards.iter().filter(|board| uuids.contains(&board.uuid)) {
        if is_reset_alone(board)? {
            continue;
        }
        for other in joined(world, board) {
            if !uuids.contains(&other.uuid) && !missing.contains(&other.uuid) {
                missing.push(other.uuid.clone());
            }
        }
    }
    Ok(missing)
}

/// The text for a refusal.
fn refusal(uuids: &[String], fault: Fault) -> String {
    let uuids = uuids.join(", ");
    match fault {
        Fault::InUse => format!(
            "GPU {uuids} is currently in use by another process.\n\
             1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, \
             graphics application such as an X server, or a monitoring application such as another instance of \
             nvidia-smi). Please first kill all processes using this device and all compute applications running in \
             the system."
        ),
        fault => format!("Unable to reset GPU {uuids}: {fault:?}"),
    }
}

/// Resets boards that nobody uses. Returns the text of `nvidia-smi`.
///
/// # Errors
/// The text of `nvidia-smi` for its refusal.
pub fn reset_boards(uuids: &[String]) -> Result<String, String> {
    let refused = |fault: Fault| refusal(uuids, fault);
    let missing = look(|world| find_missing(world, uuids)).map_err(refused)?;
    if !missing.is_empty() {
        // The driver documents that it names the missing boards, and not its words.
        return Err(format!(
            "Unable to reset GPU {}: NVLink connects it with GPUs that must be reset in the same command: {}",
            uuids.join(", "),
            missing.join(", ")
        ));
    }
    let _alone = clients::keep_out().map_err(refused)?;
    let scan = fresh();
    let done = change(|world| {
        world.may_administer()?;
        let faults = world.faults.clone();
        let is_held = |uuid: &String| faults.holds(uuid) || !scan.pids(uuid).is_empty();
        for uuid in uuids {
            let board = world.boards.iter().find(|board| board.uuid == *uuid).ok_or(Fault::NotFound)?;
            if device_uuids(board, None).iter().any(is_held) {
                return Err(Fault::InUse);
            }
        }
        for board in world.boards.iter_mut().filter(|board| uuids.contains(&board.uuid)) {
            board.reset(&faults, false);
        }
        Ok(())
    });
    done.map_err(refused)?;
    let lines: Vec<String> = uuids.iter().map(|uuid| format!("GPU {uuid} was successfully reset.")).collect();
    Ok(format!("{}\nAll done.", lines.join("\n")))
}
