//! What a page hears while it is open: changes, cost, log and readings, as server-sent events.
//!
//! Every stream beats once a second, so that a listener knows a silent stream from a dead one, and
//! each can be taken up again where it broke off.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_types::Page;
use berth_types::events::JobEvent;
use berth_types::events::{JobChange, LogChunk};
use berth_types::ids::{JobId, OrgId};
use berth_types::metrics::Metrics;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::extract::{Failed, Path, Query, Signed};
use super::openapi::{self, events, log};
use crate::portal::Portal;
use berth_foundation::live::News;
use berth_jobs::jobs::LogEnd;

const BEAT: Duration = Duration::from_secs(1);
/// Log bytes in one event.
const LOG_EVENT: usize = 128 << 10;
/// Changes of an organization this much older than the asked time are told again, because
/// transactions do not commit in the order of their times.
const OVERLAP_MS: i64 = 5_000;

pub fn routes() -> ApiRouter<Portal> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/events",
            get_with(org_events, openapi::stream("Streams the changes of an organization's jobs.")),
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

type Feed = mpsc::Sender<Result<Event, Infallible>>;

/// Whether the listener is still there.
async fn put(feed: &Feed, event: Event) -> Result<(), Gone> {
    feed.send(Ok(event)).await.map_err(|_| Gone)
}

/// The listener has left, or there is no more to say.
struct Gone;

fn beat() -> Event {
    Event::default().event("beat").data("")
}

/// A stream that `work` fills, until it is done or `ended`: a listener may lose the right to it.
fn stream<F: Future<Output = Result<(), Gone>> + Send + 'static>(
    ended: impl Future<Output = ()> + Send + 'static,
    work: impl FnOnce(Feed) -> F,
) -> Response {
    let (feed, events) = mpsc::channel(16);
    let work = work(feed);
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

/// Where a listener broke off: what the browser says, else what the query says.
fn resume<T: std::str::FromStr>(headers: &HeaderMap, asked: Option<T>) -> Option<T> {
    let last = headers.get("last-event-id").and_then(|v| v.to_str().ok()).and_then(|v| v.trim().parse().ok());
    last.or(asked)
}

/// What a wait for news brought.
enum Heard {
    News(News),
    /// Some were missed: read up.
    Behind,
    Nothing,
}

/// Listens for news, and beats in between: by a clock of its own, so that news which a stream does not
/// pass on cannot silence it.
struct Ear {
    news: broadcast::Receiver<News>,
    beat_at: Instant,
}

impl Ear {
    fn new(news: broadcast::Receiver<News>) -> Self {
        Self { news, beat_at: Instant::now() + BEAT }
    }

    async fn hear(&mut self) -> Heard {
        match tokio::time::timeout_at(self.beat_at, self.news.recv()).await {
            Ok(Ok(news)) => Heard::News(news),
            Ok(Err(RecvError::Lagged(_))) => Heard::Behind,
            // The sender lives as long as anyone listens, so it closes only with the portal.
            Ok(Err(RecvError::Closed)) | Err(_) => {
                self.beat_at = Instant::now() + BEAT;
                Heard::Nothing
            }
        }
    }
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct After {
    after: Option<i64>,
}

async fn job_events(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
    Query(query): Query<After>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let after = resume(&headers, query.after).unwrap_or(0);
    if !wants_stream(&headers) {
        return Ok(Answer(portal.jobs.list_job_events(&caller, org, job, after).await?).into_response());
    }
    let ended = portal.context.live.streams_end(org, caller.user.id, caller.token.map(|t| t.id));
    portal.jobs.get_job(&caller, org, job).await?;
    // Listening starts before reading, so nothing falls between.
    let mut ear = Ear::new(portal.context.live.listen_job(job));
    Ok(stream(ended, move |feed| async move {
        let mut last = after;
        let read_up = async |last: &mut i64| {
            let page = portal.jobs.list_job_events(&caller, org, job, *last).await.map_err(|_| Gone)?;
            let now = portal.jobs.get_job(&caller, org, job).await.map_err(|_| Gone)?;
            for event in page.items {
                *last = event.seq;
                let data = JobChange { event: Some(event), job: now.clone() };
                let text = serde_json::to_string(&data).map_err(|_| Gone)?;
                put(&feed, Event::default().event("change").id(last.to_string()).data(text)).await?;
            }
            Ok::<(), Gone>(())
        };
        read_up(&mut last).await?;
        put(&feed, beat()).await?;
        loop {
            match ear.hear().await {
                Heard::News(News::Change(news)) => match news.event.as_ref().map(|event| event.seq) {
                    Some(seq) if seq <= last => {}
                    Some(seq) if seq > last + 1 => read_up(&mut last).await?,
                    seq => {
                        let text = portal.jobs.change_text(&news).await.map_err(|_| Gone)?;
                        let mut event = Event::default().event("change").data(text);
                        if let Some(seq) = seq {
                            last = seq;
                            event = event.id(seq.to_string());
                        }
                        put(&feed, event).await?;
                    }
                },
                Heard::Behind => read_up(&mut last).await?,
                Heard::News(News::Cost(text)) => {
                    put(&feed, Event::default().event("cost").data(text)).await?
                }
                Heard::News(News::Sample { .. } | News::Log) => {}
                Heard::Nothing => put(&feed, beat()).await?,
            }
        }
    }))
}

async fn org_events(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<After>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let after = resume(&headers, query.after);
    let ended = portal.context.live.streams_end(org, caller.user.id, caller.token.map(|t| t.id));
    // Authorises, and says now what could not be said inside the stream.
    portal.jobs.list_jobs(&caller, org, None, None, 1).await?;
    let mut ear = Ear::new(portal.context.live.listen_org(org));
    Ok(stream(ended, move |feed| async move {
        let mut last = after.map(Timestamp::from_micros);
        // Gives the time of the last change that was sent.
        let read_up = async |since: Timestamp| {
            let mut until = since;
            let changes = portal
                .jobs
                .org_changes(&caller, org, since.plus_millis(-OVERLAP_MS))
                .await
                .map_err(|_| Gone)?;
            for change in changes {
                until = change.event.as_ref().map_or(until, |e| e.at.max(until));
                let id = change.event.as_ref().map_or(0, |e| e.at.micros());
                let text = serde_json::to_string(&change).map_err(|_| Gone)?;
                put(&feed, Event::default().event("change").id(id.to_string()).data(text)).await?;
            }
            Ok::<Timestamp, Gone>(until)
        };
        if let Some(since) = last {
            last = Some(read_up(since).await?);
        }
        put(&feed, beat()).await?;
        loop {
            match ear.hear().await {
                Heard::News(News::Change(news)) => {
                    let text = portal.jobs.change_text(&news).await.map_err(|_| Gone)?;
                    let event = Event::default().event("change").data(text);
                    // A change of the presentation alone has no time at which a stream could go on.
                    let event = match &news.event {
                        Some(change) => {
                            last = last.max(Some(change.at));
                            event.id(change.at.micros().to_string())
                        }
                        None => event,
                    };
                    put(&feed, event).await?;
                }
                Heard::Behind => last = Some(read_up(last.unwrap_or_else(|| portal.context.now())).await?),
                Heard::News(_) => {}
                Heard::Nothing => put(&feed, beat()).await?,
            }
        }
    }))
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogQuery {
    #[serde(default)]
    rank: u32,
    from: Option<u64>,
    /// The present attempt when absent.
    attempt: Option<u32>,
}

/// A piece of a log as an event; text where it is text, cut before a character that is not complete.
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
    Some((next, Event::default().event("log").id(next.to_string()).data(data)))
}

async fn logs(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
    Query(query): Query<LogQuery>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let ended = portal.context.live.streams_end(org, caller.user.id, caller.token.map(|t| t.id));
    let now = portal.jobs.get_job(&caller, org, job).await?;
    let mut ear = Ear::new(portal.context.live.listen_job(job));
    let from = resume(&headers, query.from).unwrap_or(0);
    let rank = query.rank;
    if !wants_stream(&headers) {
        return Ok(whole_log(&portal, job, query.attempt.unwrap_or(now.attempt), rank, from).await?);
    }
    Ok(stream(ended, move |feed| async move {
        let mut offset = from;
        let mut number = query.attempt.unwrap_or(now.attempt);
        loop {
            // Asked before reading: what was complete then is complete in what is read.
            let end = portal.jobs.log_end(job, number, rank).await.map_err(|_| Gone)?;
            let complete = end == Some(LogEnd::Complete);
            loop {
                let (recordings, at) = (portal.recordings.clone(), offset);
                let read = tokio::task::spawn_blocking(move || {
                    recordings.read_log(job, number, rank, at, LOG_EVENT)
                });
                let bytes = read.await.map_err(|_| Gone)?.map_err(|_| Gone)?;
                let full = bytes.len() == LOG_EVENT;
                if bytes.is_empty() {
                    break;
                }
                let (next, event) = log_event(offset, bytes, full || !complete).ok_or(Gone)?;
                offset = next;
                put(&feed, event).await?;
                if !full {
                    break;
                }
            }
            if let Some(end) = end {
                return put(&feed, Event::default().event("end").data(end.words())).await;
            }
            match ear.hear().await {
                Heard::Nothing => {
                    put(&feed, beat()).await?;
                    if number == 0 {
                        number = portal.jobs.get_job(&caller, org, job).await.map_err(|_| Gone)?.attempt;
                    }
                }
                Heard::News(News::Change(_)) if number == 0 => {
                    number = portal.jobs.get_job(&caller, org, job).await.map_err(|_| Gone)?.attempt;
                }
                Heard::News(_) | Heard::Behind => {}
            }
        }
    }))
}

async fn whole_log(
    portal: &Portal,
    job: JobId,
    number: u32,
    rank: u32,
    from: u64,
) -> Result<Response, Problem> {
    let recordings = portal.recordings.clone();
    let (feed, pieces) = mpsc::channel::<Result<Vec<u8>, std::io::Error>>(4);
    // A thread is taken for each piece only: a slow reader keeps none.
    tokio::spawn(async move {
        let mut offset = from;
        loop {
            let recordings = recordings.clone();
            let read = move || recordings.read_log(job, number, rank, offset, LOG_EVENT);
            let Ok(piece) = tokio::task::spawn_blocking(read).await else { return };
            let length = piece.as_ref().map_or(0, Vec::len) as u64;
            if matches!(&piece, Ok(end) if end.is_empty()) || feed.send(piece).await.is_err() {
                return;
            }
            // After a failure there is nothing to go on from; its reader was told.
            if length == 0 {
                return;
            }
            offset += length;
        }
    });
    let body = axum::body::Body::from_stream(ReceiverStream::new(pieces));
    let kind = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        // A log is a stranger's text: it is never taken for anything else.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'"),
    ];
    Ok((kind, body).into_response())
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct MetricsQuery {
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    #[serde(default)]
    step_s: u64,
}

async fn metrics(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
    Query(query): Query<MetricsQuery>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let ended = portal.context.live.streams_end(org, caller.user.id, caller.token.map(|t| t.id));
    let now = portal.jobs.get_job(&caller, org, job).await?;
    if !wants_stream(&headers) {
        let recordings = portal.recordings.clone();
        let read = move || recordings.series(job, now.attempt, query.from, query.to, query.step_s);
        let read = tokio::task::spawn_blocking(read).await.map_err(|_| Problem::internal())?;
        let (step_s, series) = read.map_err(|_| Problem::internal())?;
        return Ok(Answer(Metrics { step_s, series }).into_response());
    }
    let mut ear = Ear::new(portal.context.live.listen_job(job));
    Ok(stream(ended, move |feed| async move {
        // Looked at again now that every change is heard.
        let mut ended = portal.jobs.get_job(&caller, org, job).await.map_err(|_| Gone)?.state.ended();
        put(&feed, beat()).await?;
        while !ended {
            match ear.hear().await {
                Heard::News(News::Sample { at, text }) => {
                    let id = at.micros().to_string();
                    put(&feed, Event::default().event("sample").id(id).data(text)).await?;
                }
                Heard::News(News::Change(_)) | Heard::Behind => {
                    ended = portal.jobs.get_job(&caller, org, job).await.map_err(|_| Gone)?.state.ended();
                }
                Heard::News(_) => {}
                Heard::Nothing => put(&feed, beat()).await?,
            }
        }
        put(&feed, Event::default().event("end").data("")).await
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
