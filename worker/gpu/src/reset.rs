//! The reset of boards by `nvidia-smi`: NVML has no call for it.
//!
//! NVML is closed for the time of the reset, because it holds the boards: its helper process ends before the reset, and
//! another one starts afterwards.

use std::time::Duration;

use berth_system::sync::lock;

use super::error::{GpuError, silence_reason};
use super::gpus::Gpus;
use super::requests::ListAllHolders;

/// The wait for the end of the present calls: more than a change of a board has.
const CLOSE_LIMIT: Duration = Duration::from_secs(40);
/// The wait for NVML after the reset.
const OPEN_LIMIT: Duration = Duration::from_secs(60);

/// Checks that no process is on a board.
fn check_unused(gpus: &Gpus, gpu_uuid: &str) -> Result<(), String> {
    judge_holders(gpus.calls.change(gpu_uuid, ListAllHolders { gpu_uuid: gpu_uuid.to_owned() }))
}

/// Refuses the reset of a board with these processes.
fn judge_holders(found: Result<Vec<u32>, GpuError>) -> Result<(), String> {
    match found {
        Ok(pids) if pids.is_empty() => Ok(()),
        Ok(pids) => Err(format!("Processes use the board: {pids:?}. The board was not reset.")),
        // A board off the bus, or one that waits for its reset, lists no process. nvidia-smi refuses a board in use too.
        Err(GpuError::Lost | GpuError::ResetRequired) => Ok(()),
        Err(error) => Err(format!("{} The board was not reset.", silence_reason(&error))),
    }
}

/// Resets boards without processes by one call of the program. Blocking, for some minutes at most. Meanwhile all calls
/// of NVML are refused, because the reset needs the boards of the host without it. The caller has the turn.
///
/// # Errors
/// The reason, as sentences.
fn reset_boards(gpus: &Gpus, gpu_uuids: &[&str]) -> Result<(), String> {
    let Some(program) = &gpus.reset_program else {
        return Err("nvidia-smi is not installed on the host. Install it, then reset the board.".to_owned());
    };
    // A result of a group names the board that it is about.
    let named = |gpu_uuid: &str, why: String| match gpu_uuids {
        [_] => why,
        _ => format!("{gpu_uuid}: {why}"),
    };
    let known = gpus.known_boards();
    for gpu_uuid in gpu_uuids.iter().copied() {
        if !known.iter().any(|board| board.uuid == gpu_uuid) {
            return Err(named(gpu_uuid, "The worker does not know the board.".to_owned()));
        }
        check_unused(gpus, gpu_uuid).map_err(|why| named(gpu_uuid, why))?;
    }
    let session = gpus.calls.session().clone();
    let busy =
        || "NVML cannot be closed for the reset: a call does not end. The board was not reset.".to_owned();
    let nvml = gpus.calls.access().ok_or_else(busy)?;
    let closed = session.close(CLOSE_LIMIT).ok_or_else(busy)?;
    nvml.close()
        .map_err(|error| format!("NVML cannot be closed for the reset: {error}. The board was not reset."))?;
    tracing::info!(?gpu_uuids, "the reset of boards begins; NVML is closed");
    let done = program.run(gpu_uuids);
    let is_open = nvml.open_again(OPEN_LIMIT);
    drop(closed);
    if !is_open {
        let text = done.err().unwrap_or_else(|| "The board was reset.".to_owned());
        return Err(format!("{text} NVML does not start again. Read the kernel's log of the host."));
    }
    done
}

/// Proves a board fit for work after its reset.
fn prove_fit(gpus: &Gpus, gpu_uuid: &str) -> Result<String, String> {
    gpus.check(gpu_uuid).map_err(|why| format!("The board was reset, and is not fit for work. {why}"))?;
    Ok("The board was reset and is free of faults.".to_owned())
}

/// Resets a board, and proves it fit for work. Blocking, for some minutes at most.
///
/// # Errors
/// The reason, as sentences.
pub(super) fn reset(gpus: &Gpus, gpu_uuid: &str) -> Result<String, String> {
    let session = gpus.calls.session().clone();
    let _turn = lock(&session.turn);
    reset_boards(gpus, &[gpu_uuid])?;
    prove_fit(gpus, gpu_uuid)
}

/// Resets boards together, and proves each of them fit for work. The results have the order of the boards.
pub(super) fn reset_group(gpus: &Gpus, gpu_uuids: &[&str]) -> Vec<Result<String, String>> {
    let session = gpus.calls.session().clone();
    let _turn = lock(&session.turn);
    let done = reset_boards(gpus, gpu_uuids);
    gpu_uuids.iter().map(|gpu_uuid| done.clone().and_then(|()| prove_fit(gpus, gpu_uuid))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_that_waits_for_its_reset_is_reset() {
        assert_eq!(judge_holders(Ok(Vec::new())), Ok(()));
        for fault in [GpuError::Lost, GpuError::ResetRequired] {
            assert_eq!(judge_holders(Err(fault)), Ok(()));
        }
        for found in [Ok(vec![7]), Err(GpuError::Unresponsive), Err(GpuError::Resetting)] {
            assert!(judge_holders(found).unwrap_err().ends_with("The board was not reset."));
        }
    }
}
