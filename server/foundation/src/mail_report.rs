//! The loop that shows operators mails that were not sent. The parts send most mails without a later try.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::delivery::Transport;
use crate::loops::{Loops, Schedule};

/// The longest delay of the report.
const EVERY: Duration = Duration::from_secs(60);

/// Starts the loop. A run fails if a mail was not sent since the last run.
pub fn start(transport: Arc<Transport>, loops: &Loops) -> AbortHandle {
    loops.spawn("mail", Schedule::every(EVERY), None, move || {
        std::future::ready(transport.report_mail().map(|()| None))
    })
}
