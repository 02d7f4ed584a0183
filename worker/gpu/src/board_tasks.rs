//! The work of operators' tasks for boards.

use berth_proto::{BoardTask, TaskKind};

use super::error::GpuError;
use super::gpus::Gpus;
use super::mig_mode::WaitingMode;
use super::requests::SetMig;
use super::reset::{reset, reset_group};

/// A task with its result: a sentence, or the reason for the failure.
pub type TaskEnd = (BoardTask, Result<String, String>);

/// Switches the MIG mode for an operator, who may let a mode wait for a reset.
fn request_mig(gpus: &Gpus, gpu_uuid: &str, on: bool) -> Result<(), GpuError> {
    let request = SetMig { gpu_uuid: gpu_uuid.to_owned(), on, waiting: WaitingMode::Keep };
    gpus.calls.change(gpu_uuid, request)
}

/// Runs a task. Blocking.
///
/// # Errors
/// The reason for the failure, as a sentence.
pub fn run_task(gpus: &Gpus, task: &BoardTask) -> Result<String, String> {
    let switch = |on: bool| match request_mig(gpus, &task.gpu_uuid, on) {
        Ok(()) => Ok(format!("MIG mode is {}.", if on { "on" } else { "off" })),
        Err(GpuError::ResetRequired) => {
            Err("The mode change needs a reset of the board. Reset the board, then check it again."
                .to_owned())
        }
        Err(GpuError::InUse) => {
            Err("The board or one of its instances is in use. The mode stays unchanged.".to_owned())
        }
        Err(error) => Err(format!("The mode cannot be changed: {error}.")),
    };
    match task.kind() {
        TaskKind::Check => gpus.check(&task.gpu_uuid).map(|()| "The board is free of faults.".to_owned()),
        TaskKind::MigOn => switch(true),
        TaskKind::MigOff => switch(false),
        TaskKind::Reset => reset(gpus, &task.gpu_uuid),
        TaskKind::Unspecified => Err("This worker is too old for the task. Update the worker.".to_owned()),
    }
}

/// The runs of tasks: the reset of a group is one run, and each other task is its own.
pub fn runs(tasks: Vec<BoardTask>) -> Vec<Vec<BoardTask>> {
    let mut runs: Vec<Vec<BoardTask>> = Vec::new();
    for task in tasks {
        let is_reset = |other: &BoardTask| other.kind() == TaskKind::Reset && !other.group.is_empty();
        let of_group = |run: &&mut Vec<BoardTask>| {
            is_reset(&task) && run.iter().all(|other| is_reset(other) && other.group == task.group)
        };
        match runs.iter_mut().find(of_group) {
            Some(run) => run.push(task),
            None => runs.push(vec![task]),
        }
    }
    runs
}

/// Does the work of a run. Blocking.
pub fn run_tasks(gpus: &Gpus, run: Vec<BoardTask>) -> Vec<TaskEnd> {
    let results = match run.as_slice() {
        [] => Vec::new(),
        [task] => vec![run_task(gpus, task)],
        group => {
            let gpu_uuids: Vec<&str> = group.iter().map(|task| task.gpu_uuid.as_str()).collect();
            reset_group(gpus, &gpu_uuids)
        }
    };
    run.into_iter().zip(results).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reset_of_a_group_is_one_run() {
        let task = |gpu: &str, kind: TaskKind, group: &[&str]| BoardTask {
            gpu_uuid: gpu.to_owned(),
            number: 1,
            kind: kind.into(),
            group: group.iter().map(|gpu| (*gpu).to_owned()).collect(),
        };
        let tasks = vec![
            task("a", TaskKind::Reset, &["a", "c"]),
            task("b", TaskKind::Reset, &[]),
            task("c", TaskKind::Reset, &["a", "c"]),
            task("d", TaskKind::Reset, &[]),
            task("e", TaskKind::Check, &[]),
            task("f", TaskKind::Reset, &["f", "g"]),
            task("g", TaskKind::Reset, &["f", "g"]),
        ];
        let found: Vec<Vec<String>> =
            runs(tasks).iter().map(|run| run.iter().map(|task| task.gpu_uuid.clone()).collect()).collect();
        let expected: [&[&str]; 5] = [&["a", "c"], &["b"], &["d"], &["e"], &["f", "g"]];
        assert_eq!(found, expected);
    }
}
