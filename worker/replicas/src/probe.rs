//! The probe of a replica: a GET of its readiness path by HTTP/1.1, or as in `probe/http2.rs`.

mod http2;

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::dial::Dial;
use super::settings::ReplicaSettings;

/// The time limit for an answer, with the connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// The bytes that are read from an answer. Most answers are shorter, so the close of the connection resets none.
const MOST_BYTES: usize = 4_096;
/// The length of a status line up to the end of its code, as in `HTTP/1.1 200`.
const CODE_END: usize = 12;

/// The meaning of the begin of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusLine {
    Incomplete,
    Code(u16),
    Invalid,
}

/// Reads the status line at the begin of an answer.
fn status_line(answer: &[u8]) -> StatusLine {
    let Some((head, rest)) = answer.split_at_checked(CODE_END) else { return StatusLine::Incomplete };
    let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1', b' ', code @ ..] = head else {
        return StatusLine::Invalid;
    };
    // The code ends there too.
    match rest.first() {
        None => return StatusLine::Incomplete,
        Some(b' ' | b'\r' | b'\n') => {}
        Some(_) => return StatusLine::Invalid,
    }
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u16::from(byte - b'0'));
    let code = code.iter().try_fold(0u16, |code, byte| Some(code * 10 + digit(byte)?));
    code.map_or(StatusLine::Invalid, StatusLine::Code)
}

/// Asks a server for a path. `true`: it answers 200.
async fn is_answered(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str) -> io::Result<bool> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: berth-worker\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::with_capacity(MOST_BYTES);
    loop {
        match status_line(&answer) {
            StatusLine::Code(code) => return Ok(code == 200),
            StatusLine::Invalid => return Ok(false),
            StatusLine::Incomplete => {}
        }
        let room = MOST_BYTES.saturating_sub(answer.len()) as u64;
        if (&mut *stream).take(room).read_buf(&mut answer).await? == 0 {
            return Ok(false);
        }
    }
}

/// Probes a replica once. `true`: it is ready.
pub(crate) async fn probe(dial: &Dial, settings: &ReplicaSettings) -> bool {
    let asked = async {
        let mut stream = dial(settings.port).await.ok()?;
        if settings.http2 {
            return http2::is_answered(stream, &settings.readiness_path).await;
        }
        is_answered(&mut stream, &settings.readiness_path).await.ok()
    };
    matches!(timeout(ANSWER_WITHIN, asked).await, Ok(Some(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by the words of the line.
    fn expected(answer: &[u8]) -> StatusLine {
        if answer.len() < 13 {
            return StatusLine::Incomplete;
        }
        let line: String = answer[..13].iter().map(|byte| char::from(*byte)).collect();
        let words: Vec<&str> = line.split([' ', '\r', '\n']).collect();
        match words.as_slice() {
            ["HTTP/1.0" | "HTTP/1.1", code, ""] if line.as_bytes()[8] == b' ' => {
                let digits = code.len() == 3 && code.chars().all(|digit| digit.is_ascii_digit());
                if digits { StatusLine::Code(code.parse().unwrap()) } else { StatusLine::Invalid }
            }
            _ => StatusLine::Invalid,
        }
    }

    #[test]
    fn a_status_line_is_read_as_its_words_say() {
        let answers =
            ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 503\r\n", "HTTP/1.1 999\n", "HTTP/1.1 007 Bond\r\n"];
        for answer in answers.map(str::as_bytes) {
            for length in 0..=answer.len() {
                let piece = &answer[..length];
                // The oracle waits for the whole line, so a wrong begin is noticed later.
                assert_eq!(status_line(piece), expected(piece), "{piece:?}");
            }
            for at in 0..13 {
                for byte in 0..=u8::MAX {
                    let mut changed = answer.to_vec();
                    changed[at] = byte;
                    assert_eq!(status_line(&changed), expected(&changed), "{changed:?}");
                }
            }
        }
        assert_eq!(status_line(b"HTTP/1.1 200 OK\r\n"), StatusLine::Code(200));
    }

    /// Runs a server that sends these pieces, then closes the connection or keeps it. Returns the result of the probe
    /// and the request.
    async fn ask(pieces: &'static [&'static str], keeps: bool) -> (Option<bool>, String) {
        let (mut ours, mut theirs) = tokio::io::duplex(64);
        let server = async move {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(theirs.read_u8().await.unwrap());
            }
            for piece in pieces {
                // The other end may have read enough.
                let _ = theirs.write_all(piece.as_bytes()).await;
            }
            let kept = keeps.then_some(theirs);
            (String::from_utf8(request).unwrap(), kept)
        };
        let (answered, (request, _kept)) = tokio::join!(
            timeout(Duration::from_millis(500), async {
                let answered = is_answered(&mut ours, "/ready").await;
                drop(ours);
                answered
            }),
            server
        );
        (answered.ok().map(|answered| answered.unwrap()), request)
    }

    #[tokio::test]
    async fn only_an_answer_of_200_counts() {
        let (answered, request) = ask(&["HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], true).await;
        assert_eq!(answered, Some(true));
        let mut lines = request.split("\r\n");
        assert_eq!((lines.next(), lines.next()), (Some("GET /ready HTTP/1.1"), Some("Host: localhost")));
        let split = ask(&["HT", "TP/1.1 2", "00", " OK\r\n\r\n"], true).await;
        assert_eq!(split.0, Some(true), "in pieces");
        let others: [&'static [&'static str]; 7] = [
            &["HTTP/1.1 503 Service Unavailable\r\n\r\n"],
            &["HTTP/1.1 204 No Content\r\n\r\n"],
            &["HTTP/1.1 301 Moved\r\n\r\n"],
            &["HTTP/2 200\r\n\r\n      "],
            &["SSH-2.0-OpenSSH_9.2\r\n"],
            &["HTTP/1.1"],
            &[],
        ];
        for other in others {
            assert_eq!(ask(other, false).await.0, Some(false), "{other:?}");
        }
        assert_eq!(ask(&["HTTP/1.1 2"], true).await.0, None, "it waits for the rest, for its time only");
    }
}
