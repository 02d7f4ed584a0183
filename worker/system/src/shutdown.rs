//! The state of the host's shutdown according to systemd. This module reads and starts nothing.

use std::process::{Command, Stdio};
use std::time::Duration;

/// The time limit for systemd, which may be busy with its own shutdown.
const PATIENCE: Duration = Duration::from_secs(5);

/// True if the whole host is shutting down. Without systemd the answer is no.
pub async fn is_under_way() -> bool {
    let mut systemctl = Command::new("systemctl");
    systemctl.arg("is-system-running");
    reports_stopping(systemctl).await
}

async fn reports_stopping(mut systemctl: Command) -> bool {
    systemctl.stdin(Stdio::null()).stderr(Stdio::null());
    let output = tokio::task::spawn_blocking(move || systemctl.output());
    match tokio::time::timeout(PATIENCE, output).await {
        // The exit code is 0 for "running" only, so it is ignored.
        Ok(Ok(Ok(output))) => output.stdout.trim_ascii() == b"stopping",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_system_that_stops_is_shut_down() {
        for (word, expected) in [("stopping", true), ("running", false), ("degraded", false), ("", false)] {
            let mut systemctl = Command::new("sh");
            systemctl.args(["-c", &format!("echo {word}; exit 1")]);
            assert_eq!(reports_stopping(systemctl).await, expected, "{word}");
        }
        assert!(!reports_stopping(Command::new("/nowhere/systemctl")).await, "there is none");
    }
}
