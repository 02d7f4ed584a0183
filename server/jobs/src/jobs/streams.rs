//! Streams of server-sent events: changes of jobs, their cost and readings. The module `log_streams` has the logs.
//!
//! Every stream sends a heartbeat once a second, so that its client can detect a broken connection. Every
//! stream can resume after its last event.

use super::Jobs;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use berth_core::admission::MAX_DURATION_S;
use berth_foundation::live::JobUpdate;
use berth_rest::operations::{events, stream as org_stream};
use berth_rest::streams::{BEAT, BEAT_DATA, COST, END_DATA, JOB_CHANGE, ORG_CHANGE, SAMPLE, SAMPLE_END};
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::Page;
use berth_types::events::{JobChange, JobEvent};
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::OrgJobFilter;
use berth_types::lists::ListOptions;
use berth_types::metrics::Metrics;
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;
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
/// A resumed stream of an organization repeats changes of so long before its time, because transactions do
/// not commit in the order of their times.
const OVERLAP_MS: i64 = 5_000;

pub fn routes() -> ApiRouter<Jobs> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/events",
            get_with(
                org_events,
                org_stream(ApiScope::JobsRead, "Streams the changes of an organization's jobs."),
            ),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/events",
            get_with(
                job_events,
                events::<Page<JobEvent>>(ApiScope::JobsRead, "Lists the events of a job, or streams them."),
            ),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/metrics",
            get_with(
                metrics,
                events::<Metrics>(
                    ApiScope::JobsRead,
                    "Gives the readings of a job's devices, or streams them.",
                ),
            ),
        )
}

pub(super) type EventSender = mpsc::Sender<Result<Event, Infallible>>;

/// Sends an event to the client.
///
/// # Errors
/// The client has disconnected.
pub(super) async fn send(events: &EventSender, event: Event) -> Result<(), StreamEnd> {
    events.send(Ok(event)).await.map_err(|_| StreamEnd)
}

/// The end of a stream: its client has disconnected, or a source failed.
pub(super) struct StreamEnd;

pub(super) fn heartbeat() -> Event {
    Event::default().event(BEAT.name).data(BEAT_DATA)
}

/// A stream with the events of `work`, until `work` is done or `ended` resolves, for example when the caller
/// loses the right to it.
pub(super) fn stream<F: Future<Output = Result<(), StreamEnd>> + Send + 'static>(
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

pub(super) fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|t| t.trim().starts_with("text/event-stream"))
}

/// The position at which a stream resumes: `Last-Event-ID` of the browser, else the parameter of the query.
pub(super) fn resume_position<T: std::str::FromStr>(headers: &HeaderMap, query: Option<T>) -> Option<T> {
    let last = headers.get("last-event-id").and_then(|v| v.to_str().ok()).and_then(|v| v.trim().parse().ok());
    last.or(query)
}

/// The next item for a stream.
pub(super) enum Received {
    Update(JobUpdate),
    /// The stream has missed updates and must read the database.
    Missed,
    HeartbeatDue,
}

/// Receives updates and schedules heartbeats. The heartbeats have their own times, so that updates which a
/// stream ignores do not delay them.
pub(super) struct EventReceiver {
    updates: broadcast::Receiver<JobUpdate>,
    heartbeat_at: Instant,
}

impl EventReceiver {
    pub(super) fn new(updates: broadcast::Receiver<JobUpdate>) -> Self {
        Self { updates, heartbeat_at: Instant::now() + HEARTBEAT_EVERY }
    }

    pub(super) async fn next(&mut self) -> Received {
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
