//! The delivery of a request to a replica, with its tries and its wait for one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use berth_serving::balancer::Outcome;
use berth_serving::grpc::status_for_http;
use berth_serving::refusals::{Fault, Refusal};
use berth_serving::retries::{Progress, Try};
use http::{Request, Response, StatusCode};
use hyper::body::{Bytes, Incoming};
use hyper::upgrade::OnUpgrade;
use tokio::time::timeout_at;

use crate::answers::AnswerBody;
use crate::bodies::{CallerFault, RequestBody};
use crate::caller::Caller;
use crate::exchange::{Admission, Exchange, Metered};
use crate::grpc::{self, Terms};
use crate::headers;
use crate::passed::{AnswerKind, Answered};
use crate::service::{Demand, Entry, Place, ServiceState};
use crate::shared::Shared;
use crate::upgrade::{Upgrade, connect};
use crate::upstream::{Connection, Failure, Upstream, WorkerLink};

/// A request on its way to a replica.
pub struct Delivery<'a> {
    pub shared: &'a Arc<Shared>,
    pub service: Arc<ServiceState>,
    pub demand: Demand,
    pub request: Request<RequestBody>,
    pub admission: Admission,
    pub metered: Option<Metered>,
    /// The fault of the caller in a passed body, with the limit of that body.
    pub fault: Option<(Arc<CallerFault>, u64)>,
    /// The caller's side of another protocol.
    pub upgrade: Option<OnUpgrade>,
    pub caller: &'a Caller,
    pub terms: Terms,
}

/// The head of an answer.
struct Head {
    answer: Response<Incoming>,
    connection: Connection,
    upstream: Arc<Upstream>,
    exchange: Exchange,
}

/// A try without an answer.
struct Unanswered {
    failure: Failure,
    exchange: Exchange,
    /// Absent if the replica has left.
    worker: Option<Arc<WorkerLink>>,
}

/// The inputs for the rest of an answer.
struct Rest<'a> {
    caller: &'a Caller,
    terms: Terms,
    upgrade: Option<OnUpgrade>,
    fault: Option<Arc<CallerFault>>,
}

/// Delivers a request, and returns its answer with the body on its way.
///
/// # Errors
/// No replica could take it, one failed after its begin, or the time of the caller is over.
pub async fn deliver(delivery: Delivery<'_>) -> Result<Response<AnswerBody>, Refusal> {
    match delivery.terms.deadline {
        None => deliver_at_last(delivery).await,
        // The drop says nothing about the replica.
        Some(deadline) => {
            timeout_at(deadline, deliver_at_last(delivery)).await.unwrap_or(Err(Refusal::Deadline))
        }
    }
}

async fn deliver_at_last(delivery: Delivery<'_>) -> Result<Response<AnswerBody>, Refusal> {
    let Delivery { shared, service, mut demand, mut request, mut admission, .. } = delivery;
    let Delivery { metered, fault, upgrade, caller, terms, .. } = delivery;
    let mut tries = 0;
    loop {
        let place = enter(&service, &demand).await.map_err(|refusal| admission.refused(&service, refusal))?;
        let replica = place.replica();
        tries += 1;
        let exchange = Exchange::new(place, admission, metered);
        terms.limit(request.headers_mut());
        let Unanswered { failure, exchange, worker } = match send(shared, request, exchange).await {
            Ok(head) => {
                let fault = fault.map(|(fault, _)| fault);
                return Ok(answer(shared, head, Rest { caller, terms, upgrade, fault }));
            }
            Err(failed) => *failed,
        };
        tracing::debug!(
            job = %replica.job,
            reason = failure.reason,
            is_begun = !failure.progress.is_before_begin(),
            "a request got no answer of a replica"
        );
        let late = failure.is_late.then_some(shared.settings.limits.first_byte);
        let callers = fault.as_ref().and_then(|(fault, max_bytes)| fault.refusal(*max_bytes, late));
        let Some(unsent) = failure.request else {
            return Err(give_up(exchange, worker.as_ref(), callers, failure.is_late));
        };
        let outcome = if callers.is_some() { Outcome::Abandoned } else { Outcome::Failed };
        let returned = exchange.give_back(outcome).ok_or_else(|| service.no_replica())?;
        if let Some(refusal) = callers {
            return Err(refusal);
        }
        if !service.permits_retry(Try { progress: failure.progress, is_repeatable: true, tries }) {
            // The answer of a worker about a port depends on the program.
            let is_unreached = failure.progress == Progress::NotConnected;
            return Err(if is_unreached { returned.unreached(&service) } else { service.no_replica() });
        }
        shared.counters.retries.fetch_add(1, Ordering::Relaxed);
        demand.except.push(replica);
        (request, admission) = (*unsent, returned);
    }
}

async fn enter(service: &Arc<ServiceState>, demand: &Demand) -> Result<Place, Refusal> {
    match service.enter(demand.clone())? {
        Entry::Placed(place) => Ok(place),
        Entry::Waits(turn) => turn.place().await,
    }
}

/// Sends a request to the replica of its place.
async fn send(
    shared: &Shared,
    request: Request<RequestBody>,
    exchange: Exchange,
) -> Result<Head, Box<Unanswered>> {
    let upstream = exchange.replica().and_then(|replica| shared.view()?.upstream(replica).cloned());
    let Some(upstream) = upstream else {
        let failure = Failure {
            progress: Progress::NotDelivered,
            is_late: false,
            reason: "the replica has left".to_owned(),
            request: Some(Box::new(request)),
        };
        return Err(Box::new(Unanswered { failure, exchange, worker: None }));
    };
    match upstream.send(request, shared.settings.limits.first_byte, exchange.is_sent()).await {
        Ok((answer, connection)) => Ok(Head { answer, connection, upstream, exchange }),
        Err(failure) => {
            let worker = Some(upstream.worker().clone());
            Err(Box::new(Unanswered { failure, exchange, worker }))
        }
    }
}

/// Ends a request that a replica may have begun.
fn give_up(
    mut exchange: Exchange,
    worker: Option<&Arc<WorkerLink>>,
    callers: Option<Refusal>,
    is_late: bool,
) -> Refusal {
    if let Some(refusal) = callers {
        // Otherwise the drop says nothing about the replica.
        if let Some(worker) = worker.filter(|_| is_late) {
            exchange.abandon_late(worker);
        }
        return refusal;
    }
    // A replica that has left got no request.
    if let Some(worker) = worker {
        exchange.fail_unanswered(worker);
    }
    Refusal::Replica(if is_late { Fault::Silent } else { Fault::Broken })
}

/// The answer to a call of gRPC for one of plain HTTP, whose body no client of gRPC can read.
fn translated(http: StatusCode, mut exchange: Exchange) -> Response<AnswerBody> {
    let status = status_for_http(http.as_u16());
    // The status of HTTP has said what counts.
    exchange.end();
    let message =
        format!("The replica answered with the HTTP status {} and no message of gRPC.", http.as_u16());
    grpc::without_message(status, &message, AnswerBody::Whole(Bytes::new()))
}

/// The answer for the caller.
fn answer(shared: &Shared, head: Head, rest: Rest<'_>) -> Response<AnswerBody> {
    let Head { mut answer, connection, upstream, mut exchange } = head;
    let Rest { caller, terms, upgrade, fault } = rest;
    let is_stream = headers::is_event_stream(answer.headers());
    let kind = match (is_stream, terms.is_grpc && grpc::is_grpc(answer.headers())) {
        (true, _) => AnswerKind::Events,
        (false, true) => AnswerKind::Grpc,
        (false, false) => AnswerKind::Plain,
    };
    exchange.answered(answer.status(), is_stream);
    if kind == AnswerKind::Grpc {
        exchange.await_grpc_status();
        if let Some(status) = grpc::status(answer.headers()) {
            exchange.note_grpc_status(status);
        }
    }
    if terms.is_grpc && kind != AnswerKind::Grpc {
        return translated(answer.status(), exchange);
    }
    let idle = shared.settings.limits.idle;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(of_caller) = upgrade
    {
        let of_replica = hyper::upgrade::on(&mut answer);
        connect(Upgrade { of_caller, of_replica, connection, exchange, idle }, caller.clone());
        headers::prepare_answer(answer.headers_mut(), true, false);
        return answer.map(|_| AnswerBody::Whole(Bytes::new()));
    }
    headers::prepare_answer(answer.headers_mut(), false, is_stream);
    let answered = |body| Answered { body, connection, upstream, kind, terms, fault };
    answer.map(|body| AnswerBody::passed(answered(body), exchange, idle))
}
