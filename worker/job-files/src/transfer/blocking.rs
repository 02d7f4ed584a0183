//! Blocking steps beside the async threads.

use std::io;

/// Runs a blocking step.
pub async fn blocking<T: Send + 'static>(
    step: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(step).await.map_err(|e| e.to_string())?
}

/// The text of an error of a job's files.
pub fn unreadable(error: &io::Error) -> String {
    format!("the files of a job are not readable: {error}")
}
