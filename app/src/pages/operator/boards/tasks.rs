//! Tasks of operators for boards as texts. Pure.

use berth_types::health::{GpuHealth, GpuTask, GpuTaskKind};

use super::super::super::text::counted;

/// Returns true if a reset of the board is requested and has no result.
pub fn awaits_reset(gpu: &GpuHealth) -> bool {
    gpu.task.as_ref().is_some_and(|task| task.kind == GpuTaskKind::Reset && task.good.is_none())
}

/// Lists the boards of the node that are reset with a board, with this board.
fn group<'a>(gpu: &'a GpuHealth, boards: &'a [GpuHealth]) -> impl Iterator<Item = &'a GpuHealth> {
    boards.iter().filter(|board| board.uuid == gpu.uuid || gpu.reset_group.contains(&board.uuid))
}

/// Returns the boards that are reset with a board: `2 boards: GPU 0, GPU 2`.
pub fn group_names(gpu: &GpuHealth, boards: &[GpuHealth]) -> String {
    let names: Vec<String> = group(gpu, boards).map(|board| format!("GPU {}", board.index)).collect();
    format!("{}: {}", counted(names.len(), "board", "boards"), names.join(", "))
}

/// Returns the result of a task. `held` is the number of held devices on the `count` boards of the task.
fn task_text(task: &GpuTask, held: u32, count: usize) -> String {
    let name = match task.kind {
        GpuTaskKind::Check => "Check",
        GpuTaskKind::MigOn => "Enable MIG",
        GpuTaskKind::MigOff => "Disable MIG",
        GpuTaskKind::Reset => "Reset",
    };
    let boards = if count > 1 { format!("{count} boards") } else { "the board".to_owned() };
    match (task.good, task.words.as_deref()) {
        (None, _) if held > 0 && task.kind != GpuTaskKind::Check => {
            format!(
                "{name}: waiting for {} on {boards}.",
                counted(held as usize, "device in use", "devices in use")
            )
        }
        (None, _) if task.kind == GpuTaskKind::Reset => format!("{name}: the worker resets {boards}."),
        (None, _) => format!("{name}: waiting for the worker."),
        (Some(_), Some(answer)) if !answer.is_empty() => format!("{name}: {answer}"),
        (Some(true), _) => format!("{name}: succeeded."),
        (Some(false), _) => format!("{name}: failed."),
    }
}

/// Returns the result of the latest task of a board; `None` without a task. `boards` are those of the node.
pub fn latest_task(gpu: &GpuHealth, boards: &[GpuHealth]) -> Option<String> {
    let task = gpu.task.as_ref()?;
    let of_task: Vec<&GpuHealth> = if awaits_reset(gpu) { group(gpu, boards).collect() } else { vec![gpu] };
    Some(task_text(task, of_task.iter().map(|board| board.held).sum(), of_task.len()))
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::gpu;
    use super::*;

    #[test]
    fn a_task_has_its_result() {
        let task = |good, words: Option<&str>| {
            task_text(&GpuTask { kind: GpuTaskKind::Check, good, words: words.map(str::to_owned) }, 0, 1)
        };
        assert_eq!(task(None, None), "Check: waiting for the worker.");
        assert_eq!(task(Some(false), Some("Processes are on it.")), "Check: Processes are on it.");
        assert_eq!(task(Some(true), None), "Check: succeeded.");
    }

    #[test]
    fn a_reset_waits_for_the_devices_of_all_its_boards() {
        let board = |index: u32, held: u32, group: &[&str]| {
            let task = serde_json::json!({"kind": "reset"});
            let uuid = format!("GPU-{index}");
            gpu(
                serde_json::json!({"uuid": uuid, "index": index, "held": held, "reset_group": group, "task": task}),
            )
        };
        let both = ["GPU-0", "GPU-2"];
        let boards = [board(0, 0, &both), board(1, 2, &[]), board(2, 1, &both)];
        let text = |index: usize| latest_task(&boards[index], &boards).unwrap();
        assert_eq!(text(0), "Reset: waiting for 1 device in use on 2 boards.");
        assert_eq!(text(1), "Reset: waiting for 2 devices in use on the board.");
        assert_eq!(latest_task(&boards[0], &boards[..2]).unwrap(), "Reset: the worker resets the board.");
        assert_eq!(
            latest_task(&boards[0], &[boards[0].clone(), board(2, 0, &both)]).unwrap(),
            "Reset: the worker resets 2 boards."
        );
    }
}
