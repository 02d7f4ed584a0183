//! One line for each event of the log, whatever text of others it quotes.

use std::io::{self, Write};

/// A writer of whole events. A line break inside an event is written as `\n` or `\r`, so that no quoted text begins a
/// line of its own.
pub struct LogLine<W>(pub W);

impl<W: Write> Write for LogLine<W> {
    /// Writes one event: the library passes each one at once.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(&escaped(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The event without line breaks before its end.
fn escaped(event: &[u8]) -> Vec<u8> {
    let text = event.strip_suffix(b"\n");
    let mut out = Vec::with_capacity(event.len());
    for byte in text.unwrap_or(event) {
        match byte {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            other => out.push(*other),
        }
    }
    if text.is_some() {
        out.push(b'\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_of_the_log_is_one_line() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || LogLine(writer.clone()));
        let quoted = "no such host\r\n2026-01-01 ERROR forged";
        tracing::subscriber::with_default(log.finish(), || {
            tracing::error!(error = %quoted, "a request failed");
            tracing::error!("{quoted}");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.ends_with('\n') && text.lines().all(|line| line.contains("ERROR forged")), "{text}");
        assert!(text.contains("\\n2026-01-01 ERROR forged"), "{text}");
    }
}
