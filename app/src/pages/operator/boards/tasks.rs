//! Tasks of operators for boards as texts. Pure.

use berth_types::health::{GpuHealth, GpuTask, GpuTaskKind};

use super::super::super::text::counted;

/// Returns the result of the latest task. `held` is the number of held devices on the board.
fn task_text(task: &GpuTask, held: u32) -> String {
    let name = match task.kind {
        GpuTaskKind::Check => "Check",
        GpuTaskKind::MigOn => "Enable MIG",
        GpuTaskKind::MigOff => "Disable MIG",
        GpuTaskKind::Reset => "Reset",
    };
    match (task.good, task.words.as_deref()) {
        (None, _) if held > 0 && task.kind != GpuTaskKind::Check => {
            format!(
                "{name}: waiting for {} on the board.",
                counted(held as usize, "device in use", "devices in use")
            )
        }
        (None, _) if task.kind == GpuTaskKind::Reset => format!("{name}: the worker resets the board."),
        (None, _) => format!("{name}: waiting for the worker."),
        (Some(_), Some(answer)) if !answer.is_empty() => format!("{name}: {answer}"),
        (Some(true), _) => format!("{name}: succeeded."),
        (Some(false), _) => format!("{name}: failed."),
    }
}

/// Returns the result of the latest task of a board; `None` without a task.
pub fn latest_task(gpu: &GpuHealth) -> Option<String> {
    gpu.task.as_ref().map(|task| task_text(task, gpu.held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_its_result() {
        let task = |good, words: Option<&str>| {
            task_text(&GpuTask { kind: GpuTaskKind::Check, good, words: words.map(str::to_owned) }, 0)
        };
        assert_eq!(task(None, None), "Check: waiting for the worker.");
        let reset = GpuTask { kind: GpuTaskKind::Reset, good: None, words: None };
        assert_eq!(task_text(&reset, 2), "Reset: waiting for 2 devices in use on the board.");
        assert_eq!(task_text(&reset, 0), "Reset: the worker resets the board.");
        assert_eq!(task(Some(false), Some("Processes are on it.")), "Check: Processes are on it.");
        assert_eq!(task(Some(true), None), "Check: succeeded.");
    }
}
