//! The confirmation of a release, an approval, a mode change or a reset, with the boards of a reset.

use berth_types::health::{GpuHealth, PatchGpuMode};
use leptos::prelude::*;

use super::super::super::confirm::ConfirmDialog;
use super::super::super::parts::Call;
use super::tasks::{awaits_reset, group_names};
use super::{BoardAction, BoardsState};
use crate::api;

const RELEASE: &str = "New jobs are placed on this board at once, without a check. The fault may persist; the next fault puts the board out of service again.";
const APPROVE: &str = "New jobs are placed on this board at once. The node reported it after its approval, so approve it only if you know of it.";
const SET_MIG: &str = "No new jobs are placed on this board; running jobs continue to their end. Then the worker changes the mode. Boards older than Hopper also need a GPU reset.";
const RESET: &str = "No new jobs are placed on this board; running jobs continue to their end. Then nvidia-smi resets the board and removes its MIG instances. The readings of all boards of the node pause meanwhile. A board without a fault returns to service.";
const RESET_GROUP: &str = "The driver resets these boards only together, because NVLink connects them. No new jobs are placed on them; running jobs continue to their end. Then one call of nvidia-smi resets all of them. The readings of all boards of the node pause meanwhile. Each board without a fault returns to service.";

/// Returns the consequences of an action as sentences. `boards` are those of the node.
fn consequences(action: BoardAction, gpu_uuid: &str, boards: &[GpuHealth]) -> String {
    let gpu = boards.iter().find(|gpu| gpu.uuid == gpu_uuid);
    let group = gpu.filter(|gpu| gpu.reset_group.len() > 1);
    match (action, group) {
        (BoardAction::Release, Some(gpu)) if awaits_reset(gpu) => {
            format!("Cancels the reset of {}. {RELEASE}", group_names(gpu, boards))
        }
        (BoardAction::Release, _) => RELEASE.to_owned(),
        (BoardAction::Approve, _) => APPROVE.to_owned(),
        (BoardAction::SetMig(_), _) => SET_MIG.to_owned(),
        (BoardAction::Reset, Some(gpu)) => format!("Resets {}. {RESET_GROUP}", group_names(gpu, boards)),
        (BoardAction::Reset, None) => RESET.to_owned(),
    }
}

/// The confirmation of an action on a board.
#[component]
pub(super) fn Confirm(
    /// The signals of the page.
    state: BoardsState,
) -> impl IntoView {
    let BoardsState { chosen, open, .. } = state;
    let call = Call::idle();
    let title = Signal::derive(move || {
        chosen.get().map_or_else(String::new, |(_, index, action)| format!("{}?", action.label(index)))
    });
    let text = Memo::new(move |_| match chosen.get() {
        Some((uuid, _, action)) => state.gpus.with(|gpus| consequences(action, &uuid, gpus)),
        None => String::new(),
    });
    let verb = Signal::derive(move || {
        chosen.get().map_or(BoardAction::Release, |(.., action)| action).verb().to_owned()
    });
    let confirm = move |()| {
        let Some(asked) = chosen.get_untracked() else { return };
        let (uuid, _, action) = asked.clone();
        let is_shown = move || chosen.try_get_untracked() == Some(Some(asked));
        let done = move |fresh: GpuHealth, shown: bool| {
            state.replace(fresh);
            if shown {
                open.set(false);
            }
        };
        match action {
            BoardAction::Approve => call.run_for(is_shown, api::health::approve(&uuid), done),
            BoardAction::Release => call.run_for(is_shown, api::health::release(&uuid), done),
            BoardAction::Reset => call.run_for(is_shown, api::health::reset(&uuid), done),
            BoardAction::SetMig(mig) => {
                call.run_for(is_shown, api::health::set_mode(&uuid, &PatchGpuMode { mig }), done);
            }
        }
    };
    view! {
        <ConfirmDialog
            id="board-confirm"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb=verb
            confirm=Callback::new(confirm)
        >
            <p>{move || text.get()}</p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::gpu;
    use super::*;

    #[test]
    fn the_reset_of_a_group_names_its_boards_before_it_begins() {
        let board = |index: u32, more: serde_json::Value| {
            let mut board = gpu(more);
            (board.uuid, board.index) = (format!("GPU-{index}"), index);
            board
        };
        let linked = serde_json::json!({"reset_group": ["GPU-0", "GPU-2"]});
        let mut boards = [board(0, linked.clone()), board(1, serde_json::json!({})), board(2, linked)];
        let text = consequences(BoardAction::Reset, "GPU-2", &boards);
        assert!(text.starts_with("Resets 2 boards: GPU 0, GPU 2. The driver"), "{text}");
        assert_eq!(consequences(BoardAction::Reset, "GPU-1", &boards), RESET);
        assert_eq!(consequences(BoardAction::Release, "GPU-2", &boards), RELEASE, "no reset is requested");
        boards[2].task = serde_json::from_value(serde_json::json!({"kind": "reset"})).unwrap();
        let text = consequences(BoardAction::Release, "GPU-2", &boards);
        assert!(text.starts_with("Cancels the reset of 2 boards: GPU 0, GPU 2. New jobs"), "{text}");
    }
}
