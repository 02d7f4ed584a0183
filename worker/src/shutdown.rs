//! Whether the host is being shut down, as systemd says. Must not do anything about it.

use std::process::{Command, Stdio};
use std::time::Duration;

/// For a systemd that is busy with its own end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether the whole host is going down, not just this daemon. Without systemd nobody knows, and it is not.
pub async fn is_under_way() -> bool {
    let mut systemctl = Command::new("systemctl");
    systemctl.arg("is-system-running");
    says_so(systemctl).await
}

async fn says_so(mut ask: Command) -> bool {
    ask.stdin(Stdio::null()).stderr(Stdio::null());
    let said = tokio::task::spawn_blocking(move || ask.output());
    match tokio::time::timeout(PATIENCE, said).await {
        // It fails with every word but "running".
        Ok(Ok(Ok(said))) => said.stdout.trim_ascii() == b"stopping",
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
            assert_eq!(says_so(systemctl).await, expected, "{word}");
        }
        assert!(!says_so(Command::new("/nowhere/systemctl")).await, "there is none");
    }
}
