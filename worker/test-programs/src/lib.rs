//! Programs that tests write and start.

use std::io;
use std::path::Path;
use std::process::Command;

/// Writes an executable script.
///
/// Linux refuses to start a file that any process has open for writing ("Text file busy"). A thread that starts a
/// process meanwhile passes the open file on to it. So another process writes the file.
///
/// # Errors
/// The file cannot be written.
pub fn write_program(path: &Path, text: &str) -> io::Result<()> {
    let writer = r#"printf '%s' "$1" > "$2" && chmod 755 "$2""#;
    let status = Command::new("/bin/sh").args(["-c", writer, "sh", text]).arg(path).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("the shell ended with {status}"))) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::write_program;

    #[test]
    fn a_program_starts_while_other_threads_write_and_start_programs() {
        let dir = std::env::temp_dir().join(format!("berth-programs-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        thread::scope(|scope| {
            for n in 0..8 {
                let path = dir.join(n.to_string());
                scope.spawn(move || {
                    for exit in 0..20 {
                        write_program(&path, &format!("#!/bin/sh\n# 'a' \"b\" $c\nexit {exit}\n")).unwrap();
                        assert_eq!(Command::new(&path).status().unwrap().code(), Some(exit));
                    }
                });
            }
        });
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
