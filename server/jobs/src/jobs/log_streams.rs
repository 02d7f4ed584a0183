//! The log of a rank: as a text, as a text with times, or as a stream of server-sent events.

use super::streams::{
    EventReceiver, Received, StreamEnd, heartbeat, resume_position, send, stream, wants_stream,
};
use super::{Jobs, LogEnd};
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_core::admission::MAX_NODES;
use berth_foundation::live::JobUpdate;
use berth_recordings::{LogPart, Recordings};
use berth_rest::operations::log;
use berth_rest::streams::{LOG, LOG_END};
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::events::{LogChunk, LogTimes};
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::Job;
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;
use serde::Deserialize;
use std::io;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Bytes of a log in one event.
const LOG_EVENT_BYTES: usize = 128 << 10;
/// Bytes of a log in one part of a text with times. A part of empty lines becomes 26 times as long.
const TIMED_PART_BYTES: usize = 16 << 10;

pub fn routes() -> ApiRouter<Jobs> {
    ApiRouter::new().api_route(
        "/orgs/{org}/jobs/{job}/logs",
        get_with(logs, log(ApiScope::JobsRead, "Gives the log of a rank from a byte on, or streams it.")),
    )
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogQuery {
    /// The number of the rank, below the number of nodes of the job; 0 when absent.
    #[serde(default)]
    #[schemars(range(max = 63))]
    rank: u32,
    /// The offset of the first wanted byte; 0 when absent.
    #[schemars(range(max = i64::MAX))]
    from: Option<u64>,
    /// The number of an attempt of the job; the present one when absent.
    attempt: Option<u32>,
    /// True for a text with a time and a space before each line, such as `2027-09-01T08:00:00.120Z `. The time is
    /// by the portal's clock and has a resolution of 100 ms, or of 10 s in a very long log. A line without a recorded
    /// time, and the rest of a line from its middle on, come without a prefix. A stream has the times in `times`.
    #[serde(default)]
    timestamps: bool,
}

impl LogQuery {
    /// Checks the numbers.
    ///
    /// # Errors
    /// No job has such a rank, or no file such an offset.
    fn check(&self) -> Result<(), Failed> {
        if self.rank >= MAX_NODES {
            return Err(Failed(Problem::malformed("`rank` is between 0 and 63.")));
        }
        if self.from.is_some_and(|from| i64::try_from(from).is_err()) {
            return Err(Failed(Problem::malformed("`from` is beyond the maximum length of a log.")));
        }
        Ok(())
    }

    /// Checks that a job has the rank and the attempt.
    ///
    /// # Errors
    /// The job has fewer ranks or attempts.
    fn check_job(&self, job: &Job) -> Result<(), Failed> {
        if self.rank >= job.nodes {
            let detail = match job.nodes {
                1 => "The job has only rank 0.".to_owned(),
                nodes => format!("The job has the ranks 0 to {}.", nodes.saturating_sub(1)),
            };
            return Err(Failed(Problem::invalid_field("/rank", detail)));
        }
        if self.attempt.is_some_and(|number| number > job.attempt || (number == 0 && job.attempt > 0)) {
            let detail = match job.attempt {
                0 => "The job has no attempt yet. Omit the field for the log of the first one.".to_owned(),
                1 => "The job has only attempt 1.".to_owned(),
                attempts => format!("The job has the attempts 1 to {attempts}."),
            };
            return Err(Failed(Problem::invalid_field("/attempt", detail)));
        }
        Ok(())
    }
}

/// The log of one rank of an attempt.
#[derive(Clone)]
struct RankLog {
    recordings: Recordings,
    job: JobId,
    number: u32,
    rank: u32,
}

impl RankLog {
    /// Reads a part in its own blocking task, so that a slow client holds no thread.
    async fn read(&self, offset: u64, limit: usize) -> io::Result<LogPart> {
        let log = self.clone();
        let read = move || log.recordings.read_log_part(log.job, log.number, log.rank, offset, limit);
        tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
    }

    /// The present length in bytes.
    async fn length(&self) -> io::Result<u64> {
        let log = self.clone();
        let length = move || log.recordings.log_length(log.job, log.number, log.rank);
        tokio::task::spawn_blocking(length).await.map_err(io::Error::other)
    }

    /// Returns true if a line starts at an offset.
    async fn starts_line(&self, offset: u64) -> bool {
        let Some(before) = offset.checked_sub(1) else { return true };
        self.read(before, 1).await.is_ok_and(|part| part.bytes == b"\n")
    }
}

/// A chunk of a log as an event, with the offset of the next chunk. Valid UTF-8 is sent as text and ends
/// before an incomplete character; other bytes are sent in base64.
fn log_event(from: u64, part: LogPart, more: bool) -> Option<(u64, Event)> {
    let LogPart { mut bytes, mut times, .. } = part;
    if let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
        && more
        && error.valid_up_to() > 0
    {
        bytes.truncate(error.valid_up_to());
    }
    let next = from + bytes.len() as u64;
    times.retain(|time| time.offset < next);
    let times = (!times.is_empty()).then(|| LogTimes {
        from: times.iter().map(|time| time.offset).collect(),
        at_ms: times.iter().map(|time| time.at.millis()).collect(),
    });
    let chunk = match String::from_utf8(bytes) {
        Ok(text) => LogChunk { from, text: Some(text), base64: None, times },
        Err(error) => LogChunk { from, text: None, base64: Some(STANDARD.encode(error.as_bytes())), times },
    };
    let data = serde_json::to_string(&chunk).ok()?;
    Some((next, Event::default().event(LOG.name).id(next.to_string()).data(data)))
}

async fn logs(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
    Query(query): Query<LogQuery>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    query.check()?;
    let ended = jobs.context.access_end(org, &caller);
    let now = jobs.get_job(&caller, org, job).await?;
    query.check_job(&now)?;
    let mut receiver = EventReceiver::new(jobs.context.live.listen_job(job));
    let from = resume_position(&headers, query.from).unwrap_or(0);
    let (rank, number) = (query.rank, query.attempt.unwrap_or(now.attempt));
    let mut log = RankLog { recordings: jobs.recordings.clone(), job, number, rank };
    if !wants_stream(&headers) {
        return Ok(whole_log(log, from, query.timestamps, ended));
    }
    Ok(stream(ended, move |events| async move {
        let mut offset = from;
        let mut is_first_read = true;
        loop {
            // Before the read of the log: if the log is complete now, the read has all of it.
            let end = jobs.log_end(job, log.number, rank).await.map_err(|_| StreamEnd)?;
            let complete = end == Some(LogEnd::Complete);
            loop {
                let part = log.read(offset, LOG_EVENT_BYTES).await.map_err(|_| StreamEnd)?;
                let more = part.more;
                if part.bytes.is_empty() {
                    break;
                }
                let (next, event) = log_event(offset, part, more || !complete).ok_or(StreamEnd)?;
                offset = next;
                send(&events, event).await?;
                if !more {
                    break;
                }
            }
            if let Some(end) = end {
                return send(&events, Event::default().event(LOG_END.name).data(end.text())).await;
            }
            // So the client of a silent log knows at once that there are no bytes yet.
            if std::mem::take(&mut is_first_read) && offset == from {
                send(&events, heartbeat()).await?;
            }
            match receiver.next().await {
                Received::HeartbeatDue => {
                    send(&events, heartbeat()).await?;
                    if log.number == 0 {
                        log.number = jobs.get_job(&caller, org, job).await.map_err(|_| StreamEnd)?.attempt;
                    }
                }
                Received::Update(JobUpdate::Change(_)) if log.number == 0 => {
                    log.number = jobs.get_job(&caller, org, job).await.map_err(|_| StreamEnd)?.attempt;
                }
                Received::Update(_) | Received::Missed => {}
            }
        }
    }))
}

/// Writes times before the lines of a log.
struct TimedLines {
    /// True if the next byte starts a line.
    at_start: bool,
}

impl TimedLines {
    /// Returns the part from `offset` on with the time of its first byte before each line. A line without a time
    /// stays unchanged.
    fn add_times(&mut self, offset: u64, part: &LogPart) -> Vec<u8> {
        let mut out = Vec::with_capacity(part.bytes.len());
        let mut times = part.times.iter().peekable();
        let mut time = String::new();
        let mut at = offset;
        for line in part.bytes.split_inclusive(|byte| *byte == b'\n') {
            while let Some(next) = times.next_if(|next| next.offset <= at) {
                time = format!("{} ", next.at.rfc3339_millis());
            }
            if self.at_start {
                out.extend_from_slice(time.as_bytes());
            }
            out.extend_from_slice(line);
            self.at_start = line.ends_with(b"\n");
            at = at.saturating_add(line.len() as u64);
        }
        out
    }
}

/// Sends the parts of a log from an offset to its present end. A log that grows faster than the client reads ends too.
async fn send_log(
    log: &RankLog,
    from: u64,
    timestamps: bool,
    chunks: &mpsc::Sender<io::Result<Vec<u8>>>,
) -> io::Result<()> {
    let most = if timestamps { TIMED_PART_BYTES } else { LOG_EVENT_BYTES };
    let end = log.length().await?;
    let mut lines = None;
    if timestamps {
        lines = Some(TimedLines { at_start: log.starts_line(from).await });
    }
    let mut offset = from;
    while offset < end {
        let left = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let part = log.read(offset, most.min(left)).await?;
        if part.bytes.is_empty() {
            break;
        }
        let next = offset.saturating_add(part.bytes.len() as u64);
        let bytes = match &mut lines {
            Some(lines) => lines.add_times(offset, &part),
            None => part.bytes,
        };
        if chunks.send(Ok(bytes)).await.is_err() {
            // The client has left.
            break;
        }
        offset = next;
    }
    Ok(())
}

/// The log from an offset to its present end. It breaks off when `ended` resolves.
fn whole_log(
    log: RankLog,
    from: u64,
    timestamps: bool,
    ended: impl Future<Output = ()> + Send + 'static,
) -> Response {
    let (sender, chunks) = mpsc::channel::<io::Result<Vec<u8>>>(4);
    tokio::spawn(async move {
        let sent = tokio::select! {
            sent = send_log(&log, from, timestamps, &sender) => sent,
            () = ended => Err(io::Error::other("the access to the log has ended")),
        };
        if let Err(error) = sent {
            // An error ends the answer. The client may have left.
            let _ = sender.send(Err(error)).await;
        }
    });
    let body = axum::body::Body::from_stream(ReceiverStream::new(chunks));
    let kind = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        // The log is not trusted: browsers must show it as plain text only.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'; frame-ancestors 'none'"),
    ];
    (kind, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_recordings::LogTime;
    use berth_types::time::Timestamp;

    /// A part with times as offsets and seconds.
    fn part(bytes: &[u8], times: &[(u64, i64)]) -> LogPart {
        let time =
            |(offset, s): &(u64, i64)| LogTime { offset: *offset, at: Timestamp::from_micros(s * 1_000_000) };
        LogPart { bytes: bytes.to_vec(), times: times.iter().map(time).collect(), more: false }
    }

    #[test]
    fn a_log_event_never_cuts_a_character() {
        let next = |from: u64, bytes: &[u8], more: bool| log_event(from, part(bytes, &[]), more).unwrap().0;
        let text = "a\u{1F6A2}".as_bytes();
        assert_eq!(next(10, &text[..3], true), 11, "the ship waits for its rest");
        assert_eq!(next(10, text, true), 15);
        assert_eq!(next(10, &text[..3], false), 13, "at the end every byte is told");
        assert_eq!(next(0, &[0xff, 0xfe, b'x'], true), 3, "what is not text goes in base 64");
        assert_eq!(next(0, &text[1..3], true), 2);
    }

    #[test]
    fn each_line_gets_the_time_of_its_first_byte() {
        let (zero, one) = ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:01.000Z");
        for (at_start, bytes, times, expected) in [
            (true, "a\nb\n", vec![(0, 0)], format!("{zero} a\n{zero} b\n")),
            (true, "a\nb\n", vec![(0, 0), (2, 1)], format!("{zero} a\n{one} b\n")),
            // The time changes within a line.
            (true, "ab\nc", vec![(0, 0), (1, 1)], format!("{zero} ab\n{one} c")),
            // The start of the line is in an earlier part.
            (false, "b\nc\n", vec![(0, 0)], format!("b\n{zero} c\n")),
            (true, "\n\n", vec![(0, 0)], format!("{zero} \n{zero} \n")),
            // The first line is from an earlier portal.
            (true, "a\nb\n", vec![(2, 1)], format!("a\n{one} b\n")),
            (true, "a\nb", vec![], "a\nb".to_owned()),
            (true, "", vec![], String::new()),
        ] {
            let mut lines = TimedLines { at_start };
            let timed = lines.add_times(0, &part(bytes.as_bytes(), &times));
            assert_eq!(String::from_utf8(timed).unwrap(), expected, "{bytes:?}");
            assert_eq!(lines.at_start, bytes.ends_with('\n') || bytes.is_empty(), "{bytes:?}");
        }
    }
}
