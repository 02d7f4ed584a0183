//! Waits for the ends of shims that earlier daemons started.

use std::path::PathBuf;
use std::time::Duration;

use berth_shim::model::AttemptKey;
use berth_shim::waiter::wait_until_gone;

use super::step_result::{ResultSender, StepResult};

/// The pause before a second wait for a shim.
const AGAIN: Duration = Duration::from_millis(500);

/// Waits for the end of a shim.
pub(super) fn spawn(dir: PathBuf, key: AttemptKey, results: ResultSender) {
    tokio::spawn(async move {
        wait_until_gone(dir).await;
        let _ = results.send(StepResult::ShimGone(key));
    });
}

/// Waits again for a shim that seemed to be gone while its lock is held.
pub(super) fn spawn_again(dir: PathBuf, key: AttemptKey, results: ResultSender) {
    tokio::spawn(async move {
        // On an unreadable disk the wait below returns at once.
        tokio::time::sleep(AGAIN).await;
        wait_until_gone(dir).await;
        let _ = results.send(StepResult::ShimGone(key));
    });
}
