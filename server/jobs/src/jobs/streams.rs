//! Streams of server-sent events: changes of jobs, their cost, log and readings.
//!
//! Every stream sends a heartbeat once a second, so that its client can detect a broken connection. Every
//! stream can resume after its last event.

use super::{Jobs, LogEnd};
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_core::admission::{MAX_DURATION_S, MAX_NODES};
use berth_foundation::live::JobUpdate;
use berth_rest::operations::{events, log, stream as org_stream};
use berth_rest::streams::{
    BEAT, BEAT_DATA, COST, END_DATA, JOB_CHANGE, LOG, LOG_END, ORG_CHANGE, SAMPLE, SAMPLE_END,
};
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::Page;
use berth_types::events::{JobChange, JobEvent, LogChunk};
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::OrgJobFilter;
use berth_types::lists::ListOptions;
use berth_types::metrics::Metrics;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use serde::Deserialize;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);
/// Bytes of a log in one event.
const LOG_EVENT_BYTES: usize = 128 << 10;
/// A resumed stream of an organization repeats changes of so long before its time, because transactions do
/// not commit in the order of their times.
const OVERLAP_MS: i64 = 5_000;

pub fn routes() -> ApiRouter<Jobs> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/events",
            get_with(org_events, org_stream("Streams the changes of an organization's jobs.")),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/events",
            get_with(job_events, events::<Page<JobEvent>>("Lists the events of a job, or streams them.")),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/logs",
            get_with(logs, log("Gives the log of a rank from a byte on, or streams it.")),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/metrics",
            get_with(metrics, events::<Metrics>("Gives the readings of a job's devices, or streams them.")),
        )
}

type EventSender = mpsc::Sender<Result<Event, Infallible>>;

/// Sends an event to the client.
///
/// # Errors
/// The client has disconnected.
async fn send(events: &EventSender, event: Event) -> Result<(), StreamEnd> {
    events.send(Ok(event)).await.map_err(|_| StreamEnd)
}

/// The end of a stream: its client has disconnected, or a source failed.
struct StreamEnd;

fn heartbeat() -> Event {
    Event::default().event(BEAT.name).data(BEAT_DATA)
}

/// A stream with the events of `work`, until `work` is done or `ended` resolves, for example when the caller
/// loses the right to it.
fn stream<F: Future<Output = Result<(), StreamEnd>> + Send + 'static>(
    ended: impl Future<Output = ()> + Send + 'static,
    work: impl FnOnce(EventSender) -> F,
) -> Response {
    let (sender, events) = mpsc::channel(16);
    let work = work(sender);
    tokio::spawn(async move {
        tokio::select! {
            _ = work => {}
            () = ended => {}
        }
    });
    let mut response = Sse::new(ReceiverStream::new(events)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|t| t.trim().starts_with("text/event-stream"))
}

/// The position at which a stream resumes: `Last-Event-ID` of the browser, else the parameter of the query.
fn resume_position<T: std::str::FromStr>(headers: &HeaderMap, query: Option<T>) -> Option<T> {
    let last = headers.get("last-event-id").and_then(|v| v.to_str().ok()).and_then(|v| v.trim().parse().ok());
    last.or(query)
}

/// The next item for a stream.
enum Received {
    Update(JobUpdate),
    /// The stream has missed updates and must read the database.
    Missed,
    HeartbeatDue,
}

/// Receives updates and schedules heartbeats. The heartbeats have their own times, so that updates which a
/// stream ignores do not delay them.
struct EventReceiver {
    updates: broadcast::Receiver<JobUpdate>,
    heartbeat_at: Instant,
}

impl EventReceiver {
    fn new(updates: broadcast::Receiver<JobUpdate>) -> Self {
        Self { updates, heartbeat_at: Instant::now() + HEARTBEAT_EVERY }
    }

    async fn next(&mut self) -> Received {
        match tokio::time::timeout_at(self.heartbeat_at, self.updates.recv()).await {
            Ok(Ok(update)) => Received::Update(update),
            Ok(Err(RecvError::Lagged(_))) => Received::Missed,
            // The sender exists as long as its receivers, so it closes only with the portal.
            Ok(Err(RecvError::Closed)) | Err(_) => {
                self.heartbeat_at = Instant::now() + HEARTBEAT_EVERY;
                Received::HeartbeatDue
            }
        }
    }
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct After {
    /// The id of the last known event of the stream, not negative. When absent, a job has all its events, and
    /// an organization only new ones.
    #[schemars(range(min = 0))]
    after: Option<i64>,
}

impl After {
    /// The position at which a stream resumes.
    ///
    /// # Errors
    /// `after` is negative.
    fn position(&self, headers: &HeaderMap) -> Result<Option<i64>, Failed> {
        if self.after.is_some_and(i64::is_negative) {
            return Err(Failed(Problem::malformed("`after` cannot be negative.")));
        }
        Ok(resume_position(headers, self.after))
    }
}

async fn job_events(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
    Query(query): Query<After>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let after = query.position(&headers)?.unwrap_or(0);
    if !wants_stream(&headers) {
        return Ok(Answer(jobs.list_job_events(&caller, org, job, after).await?).into_response());
    }
    let ended = jobs.context.access_end(org, &caller);
    jobs.get_job(&caller, org, job).await?;
    // The subscription starts before the read, so that no change is missed.
    let mut receiver = EventReceiver::new(jobs.context.live.listen_job(job));
    Ok(stream(ended, move |events| async move {
        let mut last = after;
        let send_missed = async |last: &mut i64| {
            let page = jobs.list_job_events(&caller, org, job, *last).await.map_err(|_| StreamEnd)?;
            let now = jobs.get_job(&caller, org, job).await.map_err(|_| StreamEnd)?;
            for event in page.items {
                *last = event.seq;
                let data = JobChange { event: Some(event), job: now.clone() };
                let text = serde_json::to_string(&data).map_err(|_| StreamEnd)?;
                send(&events, Event::default().event(JOB_CHANGE.name).id(last.to_string()).data(text))
                    .await?;
            }
            Ok::<(), StreamEnd>(())
        };
        send_missed(&mut last).await?;
        send(&events, heartbeat()).await?;
        loop {
            match receiver.next().await {
                Received::Update(JobUpdate::Change(changed)) => {
                    match changed.event.as_ref().map(|event| event.seq) {
                        Some(seq) if seq <= last => {}
                        Some(seq) if seq > last + 1 => send_missed(&mut last).await?,
                        seq => {
                            let text = jobs.change_text(&changed).await.map_err(|_| StreamEnd)?;
                            let mut event = Event::default().event(JOB_CHANGE.name).data(text);
                            if let Some(seq) = seq {
                                last = seq;
                                event = event.id(seq.to_string());
                            }
                            send(&events, event).await?;
                        }
                    }
                }
                Received::Missed => send_missed(&mut last).await?,
                Received::Update(JobUpdate::Cost(text)) => {
                    send(&events, Event::default().event(COST.name).data(text)).await?
                }
                Received::Update(JobUpdate::Sample { .. } | JobUpdate::Log) => {}
                Received::HeartbeatDue => send(&events, heartbeat()).await?,
            }
        }
    }))
}

async fn org_events(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<After>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let after = query.position(&headers)?;
    let ended = jobs.context.access_end(org, &caller);
    // Authorises the caller while a refusal can still have a status.
    jobs.list_jobs(&caller, org, &OrgJobFilter::default(), &ListOptions::newest(1)).await?;
    let mut receiver = EventReceiver::new(jobs.context.live.listen_org(org));
    Ok(stream(ended, move |events| async move {
        let mut last = after.map(Timestamp::from_micros);
        // Sends the changes since a time and returns the time of the last one.
        let send_missed = async |since: Timestamp| {
            let mut until = since;
            let changes = jobs
                .org_changes(&caller, org, since.plus_millis(-OVERLAP_MS))
                .await
                .map_err(|_| StreamEnd)?;
            for change in changes {
                until = change.event.as_ref().map_or(until, |e| e.at.max(until));
                let id = change.event.as_ref().map_or(0, |e| e.at.micros());
                let text = serde_json::to_string(&change).map_err(|_| StreamEnd)?;
                send(&events, Event::default().event(ORG_CHANGE.name).id(id.to_string()).data(text)).await?;
            }
            Ok::<Timestamp, StreamEnd>(until)
        };
        if let Some(since) = last {
            last = Some(send_missed(since).await?);
        }
        send(&events, heartbeat()).await?;
        loop {
            match receiver.next().await {
                Received::Update(JobUpdate::Change(changed)) => {
                    let text = jobs.change_text(&changed).await.map_err(|_| StreamEnd)?;
                    let event = Event::default().event(ORG_CHANGE.name).data(text);
                    // A change of the presentation alone has no time, so no stream can resume at it.
                    let event = match &changed.event {
                        Some(change) => {
                            last = last.max(Some(change.at));
                            event.id(change.at.micros().to_string())
                        }
                        None => event,
                    };
                    send(&events, event).await?;
                }
                Received::Missed => {
                    last = Some(send_missed(last.unwrap_or_else(|| jobs.context.now())).await?)
                }
                Received::Update(_) => {}
                Received::HeartbeatDue => send(&events, heartbeat()).await?,
            }
        }
    }))
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogQuery {
    /// The number of the rank, 0 to 63; 0 when absent.
    #[serde(default)]
    #[schemars(range(max = 63))]
    rank: u32,
    /// The offset of the first wanted byte; 0 when absent.
    #[schemars(range(max = i64::MAX))]
    from: Option<u64>,
    /// The number of the attempt; the present one when absent.
    attempt: Option<u32>,
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
}

/// A chunk of a log as an event, with the offset of the next chunk. Valid UTF-8 is sent as text and ends
/// before an incomplete character; other bytes are sent in base64.
fn log_event(from: u64, mut bytes: Vec<u8>, more: bool) -> Option<(u64, Event)> {
    if let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
        && more
        && error.valid_up_to() > 0
    {
        bytes.truncate(error.valid_up_to());
    }
    let next = from + bytes.len() as u64;
    let chunk = match String::from_utf8(bytes) {
        Ok(text) => LogChunk { from, text: Some(text), base64: None },
        Err(error) => LogChunk { from, text: None, base64: Some(STANDARD.encode(error.as_bytes())) },
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
    let mut receiver = EventReceiver::new(jobs.context.live.listen_job(job));
    let from = resume_position(&headers, query.from).unwrap_or(0);
    let rank = query.rank;
    if !wants_stream(&headers) {
        return Ok(whole_log(&jobs, job, query.attempt.unwrap_or(now.attempt), rank, from).await?);
    }
    Ok(stream(ended, move |events| async move {
        let mut offset = from;
        let mut number = query.attempt.unwrap_or(now.attempt);
        loop {
            // Before the read of the log: if the log is complete now, the read has all of it.
            let end = jobs.log_end(job, number, rank).await.map_err(|_| StreamEnd)?;
            let complete = end == Some(LogEnd::Complete);
            loop {
                let (recordings, at) = (jobs.recordings.clone(), offset);
                let read = tokio::task::spawn_blocking(move || {
                    recordings.read_log(job, number, rank, at, LOG_EVENT_BYTES)
                });
                let bytes = read.await.map_err(|_| StreamEnd)?.map_err(|_| StreamEnd)?;
                let full = bytes.len() == LOG_EVENT_BYTES;
                if bytes.is_empty() {
                    break;
                }
                let (next, event) = log_event(offset, bytes, full || !complete).ok_or(StreamEnd)?;
                offset = next;
                send(&events, event).await?;
                if !full {
                    break;
                }
            }
            if let Some(end) = end {
                return send(&events, Event::default().event(LOG_END.name).data(end.text())).await;
            }
            match receiver.next().await {
                Received::HeartbeatDue => {
                    send(&events, heartbeat()).await?;
                    if number == 0 {
                        number = jobs.get_job(&caller, org, job).await.map_err(|_| StreamEnd)?.attempt;
                    }
                }
                Received::Update(JobUpdate::Change(_)) if number == 0 => {
                    number = jobs.get_job(&caller, org, job).await.map_err(|_| StreamEnd)?.attempt;
                }
                Received::Update(_) | Received::Missed => {}
            }
        }
    }))
}

async fn whole_log(jobs: &Jobs, job: JobId, number: u32, rank: u32, from: u64) -> Result<Response, Problem> {
    let recordings = jobs.recordings.clone();
    let (sender, chunks) = mpsc::channel::<Result<Vec<u8>, std::io::Error>>(4);
    // Each chunk has its own blocking task, so that a slow reader holds no thread.
    tokio::spawn(async move {
        let mut offset = from;
        loop {
            let recordings = recordings.clone();
            let read = move || recordings.read_log(job, number, rank, offset, LOG_EVENT_BYTES);
            let Ok(chunk) = tokio::task::spawn_blocking(read).await else { return };
            let length = chunk.as_ref().map_or(0, Vec::len) as u64;
            if matches!(&chunk, Ok(bytes) if bytes.is_empty()) || sender.send(chunk).await.is_err() {
                return;
            }
            // A failed read ends the answer: the error is already in the channel.
            if length == 0 {
                return;
            }
            offset += length;
        }
    });
    let body = axum::body::Body::from_stream(ReceiverStream::new(chunks));
    let kind = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        // The log is not trusted: browsers must show it as plain text only.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'"),
    ];
    Ok((kind, body).into_response())
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct MetricsQuery {
    /// The time of the first wanted reading.
    from: Option<Timestamp>,
    /// The time of the last wanted reading.
    to: Option<Timestamp>,
    /// Seconds between two readings, at most 2592000; 0 for a step that fits the time span.
    #[serde(default)]
    #[schemars(range(max = 2_592_000))]
    step_s: u64,
}

async fn metrics(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
    Query(query): Query<MetricsQuery>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    if query.step_s > MAX_DURATION_S {
        return Err(Failed(Problem::malformed("`step_s` is at most 2592000 seconds.")));
    }
    let ended = jobs.context.access_end(org, &caller);
    let now = jobs.get_job(&caller, org, job).await?;
    if !wants_stream(&headers) {
        let recordings = jobs.recordings.clone();
        let read = move || recordings.series(job, now.attempt, query.from, query.to, query.step_s);
        let read = tokio::task::spawn_blocking(read).await.map_err(|_| Problem::internal())?;
        let (step_s, series) = read.map_err(|_| Problem::internal())?;
        return Ok(Answer(Metrics { step_s, series }).into_response());
    }
    let mut receiver = EventReceiver::new(jobs.context.live.listen_job(job));
    Ok(stream(ended, move |events| async move {
        // Read again after the subscription, so that no change is missed.
        let mut ended = jobs.get_job(&caller, org, job).await.map_err(|_| StreamEnd)?.state.ended();
        send(&events, heartbeat()).await?;
        while !ended {
            match receiver.next().await {
                Received::Update(JobUpdate::Sample { at, text }) => {
                    let id = at.micros().to_string();
                    send(&events, Event::default().event(SAMPLE.name).id(id).data(text)).await?;
                }
                Received::Update(JobUpdate::Change(_)) | Received::Missed => {
                    ended = jobs.get_job(&caller, org, job).await.map_err(|_| StreamEnd)?.state.ended();
                }
                Received::Update(_) => {}
                Received::HeartbeatDue => send(&events, heartbeat()).await?,
            }
        }
        send(&events, Event::default().event(SAMPLE_END.name).data(END_DATA)).await
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_event_never_cuts_a_character() {
        let text = "a\u{1F6A2}".as_bytes();
        assert_eq!(log_event(10, text[..3].to_vec(), true).unwrap().0, 11, "the ship waits for its rest");
        assert_eq!(log_event(10, text.to_vec(), true).unwrap().0, 15);
        assert_eq!(log_event(10, text[..3].to_vec(), false).unwrap().0, 13, "at the end every byte is told");
        assert_eq!(
            log_event(0, vec![0xff, 0xfe, b'x'], true).unwrap().0,
            3,
            "what is not text goes in base 64"
        );
        assert_eq!(log_event(0, text[1..3].to_vec(), true).unwrap().0, 2);
    }
}
