//! The proof that no process and no memory of an attempt is left on a device.

use std::path::Path;

use berth_gpu::{GpuError, Gpus, is_memory_free};

use super::device::AttemptDevice;
use super::sharers::BoardSharers;

/// The processes on a device of the attempt in `dir`, without those of attempts that share its board.
pub fn remaining_processes(
    gpus: &Gpus,
    device: &AttemptDevice,
    sharers: &BoardSharers,
    dir: &Path,
) -> Result<Vec<u32>, String> {
    if device.visible_name().is_none() {
        // Nothing starts on an instance without a MIG device.
        return Ok(Vec::new());
    }
    let holders = || gpus.holders(&device.gpu_uuid, device.mig_uuid.as_deref());
    match device.share_milli {
        Some(_) => remaining_on_shared(sharers, &device.gpu_uuid, dir, holders),
        None => none_if_absent(holders()),
    }
}

/// A device that was never created has no processes.
fn none_if_absent<T>(found: Result<Vec<T>, GpuError>) -> Result<Vec<T>, String> {
    match found {
        Err(GpuError::NotFound(_)) => Ok(Vec::new()),
        found => found.map_err(|error| error.to_string()),
    }
}

/// The processes on a shared board that belong to the attempt in `dir`, or to no known attempt.
fn remaining_on_shared(
    sharers: &BoardSharers,
    gpu_uuid: &str,
    dir: &Path,
    holders: impl Fn() -> Result<Vec<u32>, GpuError>,
) -> Result<Vec<u32>, String> {
    let find = || {
        let processes = none_if_absent(sharers.processes_on_board(gpu_uuid, &holders))?.into_iter();
        let remaining = processes.filter(|(_, owner)| owner.as_deref().is_none_or(|owner| owner == dir));
        Ok::<Vec<u32>, String>(remaining.map(|(pid, _)| pid).collect())
    };
    let remaining = find()?;
    // A process of a neighbour seems to have no owner if its parents end during the search. A second search decides.
    if remaining.is_empty() { Ok(remaining) } else { find() }
}

/// Checks that the memory of a whole board without processes is free.
///
/// # Errors
/// The reason why it is not.
pub fn check_memory_free(gpus: &Gpus, device: &AttemptDevice) -> Result<(), String> {
    // The memory of an instance ends with the instance; that of a share is indistinguishable from the memory of
    // others.
    if device.instance.is_some() || device.share_milli.is_some() {
        return Ok(());
    }
    match gpus.used_mib(&device.gpu_uuid) {
        Ok(used) if is_memory_free(used, device.idle_mib) => Ok(()),
        Ok(used) => Err(format!("{used} MiB of device memory are in use without a process")),
        Err(GpuError::NotFound(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_process_without_an_owner_is_found_twice() {
        let (sharers, dir) = (BoardSharers::default(), tempfile::tempdir().unwrap());
        let this = std::process::id();
        let after = |answers: Vec<Result<Vec<u32>, GpuError>>| {
            let answers = RefCell::new(answers);
            let found = remaining_on_shared(&sharers, "GPU-1", dir.path(), || answers.borrow_mut().remove(0));
            (found, answers.into_inner().len())
        };
        assert_eq!(after(vec![Ok(vec![])]), (Ok(vec![]), 0), "nobody is looked for once");
        assert_eq!(after(vec![Ok(vec![this]), Ok(vec![])]), (Ok(vec![]), 0), "it only seemed so");
        assert_eq!(after(vec![Ok(vec![this]), Ok(vec![this])]), (Ok(vec![this]), 0));
        let gone = Err(GpuError::NotFound("GPU-1".to_owned()));
        assert_eq!(after(vec![gone]), (Ok(vec![]), 0), "there is no such device");
        assert!(after(vec![Ok(vec![this]), Err(GpuError::Lost)]).0.is_err(), "nothing is proved");
    }
}
