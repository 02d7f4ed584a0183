//! A request at a replica, from its begin to the end of its answer: what it holds, counts and costs.
//!
//! Each part returns what it has when it is dropped, so a caller that leaves at any moment keeps nothing.

use std::borrow::Cow;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use berth_autoscaling::credit::{Price, Usage as PricedUsage};
use berth_autoscaling::rollout::BOUNDS_MS;
use berth_serving::balancer::Outcome;
use berth_serving::grpc;
use berth_serving::rates::Rates;
use berth_serving::refusals::Refusal;
use berth_serving::snapshot::ReplicaId;
use berth_serving::usage::answer::AnswerMeter;
use berth_serving::usage::stream::StreamMeter;
use berth_serving::usage::{Tokens, Usage};
use berth_types::ids::InferenceKeyId;
use http::StatusCode;
use hyper::body::Bytes;
use tokio::time::Instant;

use crate::books::{FaultKind, Used};
use crate::clock::now_ms;
use crate::ledger::{Hold, Ledger};
use crate::service::{Place, ServiceState};
use crate::upstream::WorkerLink;

/// An admitted request: the tokens of its worst case in the rates of its key, and its hold.
pub struct Admission {
    pub ledger: Arc<Ledger>,
    pub rates: Arc<Mutex<Rates>>,
    pub key: Option<InferenceKeyId>,
    pub price: Price,
    /// The tokens that count in the rates.
    pub admitted_tokens: u64,
    pub hold: Option<Hold>,
}

impl Admission {
    /// Returns the tokens of the worst case that were not used.
    fn return_tokens(&mut self, used: u64) {
        let unused = std::mem::take(&mut self.admitted_tokens).saturating_sub(used);
        if let Some(key) = self.key.filter(|_| unused > 0) {
            self.rates.lock().unwrap_or_else(PoisonError::into_inner).settle(key, unused, now_ms());
        }
    }

    /// Counts the end of a wait if the service has no replica. With one, the service has too many requests, and a full
    /// queue says nothing about the time of a wake.
    pub fn refused(&self, service: &ServiceState, refusal: Refusal) -> Refusal {
        if matches!(refusal, Refusal::WaitedTooLong { .. }) && !service.has_replica() {
            self.ledger.count_fault(service.id(), FaultKind::Asleep);
        }
        refusal
    }

    /// Counts a request that reached the worker of no replica. Returns its refusal.
    pub fn unreached(&self, service: &ServiceState) -> Refusal {
        self.ledger.count_fault(service.id(), FaultKind::Unreached);
        service.no_replica()
    }

    /// Counts the request at its place. A request without a byte of an answer has no time to it.
    fn settle_for(self, place: &Place, tokens: Tokens, is_error: bool, first_byte_ms: Option<u64>) {
        let used = Used {
            service: place.service(),
            revision: place.revision(),
            key: self.key,
            is_error,
            prompt_tokens: tokens.prompt,
            completion_tokens: tokens.completion,
            token_nanos: 0,
            bucket: first_byte_ms.filter(|_| !is_error).map(bucket),
        };
        self.settle(used);
    }

    /// Records the use, and settles rates and hold by it.
    fn settle(mut self, mut used: Used) {
        let tokens = Tokens { prompt: used.prompt_tokens, completion: used.completion_tokens };
        self.return_tokens(tokens.total());
        let usage =
            PricedUsage { replica_ms: 0, prompt_tokens: tokens.prompt, completion_tokens: tokens.completion };
        let hold = self.hold.take();
        // Without a hold nobody pays. A charge above the hold is cut to it.
        let charge = self.price.charge_nanos(&usage).unwrap_or(u64::MAX);
        used.token_nanos = if hold.is_some() { charge } else { 0 };
        self.ledger.settle(hold, used);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.return_tokens(0);
    }
}

/// The request whose answer is metered.
#[derive(Debug, Clone, Copy)]
pub struct Metered {
    pub worst: Tokens,
    pub body_bytes: u64,
    /// The gateway alone asked for the usage of a stream.
    pub hides_usage: bool,
}

enum Meter {
    Unmetered,
    Stream(Box<StreamMeter>),
    Answer(Box<AnswerMeter>),
}

impl Meter {
    fn stream(metered: &Metered) -> Self {
        let Metered { worst, body_bytes, hides_usage } = *metered;
        Self::Stream(Box::new(StreamMeter::new(worst, body_bytes, hides_usage)))
    }

    /// Reads a part. Returns what the caller gets of it.
    fn push(&mut self, part: Bytes) -> Bytes {
        let changed = match self {
            Self::Unmetered => None,
            Self::Answer(meter) => {
                meter.push(&part);
                None
            }
            Self::Stream(meter) => match meter.push(&part) {
                Cow::Borrowed(_) => None,
                Cow::Owned(changed) => Some(changed),
            },
        };
        changed.map_or(part, Bytes::from)
    }

    fn finish(self, is_whole: bool) -> Option<Usage> {
        match self {
            Self::Unmetered => None,
            Self::Answer(meter) => Some(meter.finish(is_whole)),
            Self::Stream(meter) => Some(meter.finish()),
        }
    }
}

/// A request at a replica. Its drop counts the use so far, and says nothing about the replica. Before the request is sent
/// there is no use.
pub struct Exchange {
    /// Absent after the end.
    parts: Option<(Place, Admission)>,
    /// The request is on its way on a connection.
    is_sent: AtomicBool,
    meter: Meter,
    metered: Option<Metered>,
    began_ms: u64,
    first_byte_ms: Option<u64>,
    is_error: bool,
    /// The status of a call of gRPC is still to come.
    lacks_status: bool,
    outcome: Outcome,
}

impl Exchange {
    pub fn new(place: Place, admission: Admission, metered: Option<Metered>) -> Self {
        Self {
            parts: Some((place, admission)),
            is_sent: AtomicBool::new(false),
            // A caller that leaves before the answer has used its prompt.
            meter: metered.as_ref().map_or(Meter::Unmetered, Meter::stream),
            metered,
            began_ms: now_ms(),
            first_byte_ms: None,
            is_error: false,
            lacks_status: false,
            outcome: Outcome::Answered,
        }
    }

    /// The replica, before the end.
    pub fn replica(&self) -> Option<ReplicaId> {
        self.parts.as_ref().map(|(place, _)| place.replica())
    }

    /// The mark for a request that is sent on a connection.
    pub const fn is_sent(&self) -> &AtomicBool {
        &self.is_sent
    }

    /// Ends a try that no replica began, and returns the admission for the next one.
    pub fn give_back(mut self, outcome: Outcome) -> Option<Admission> {
        let (place, admission) = self.parts.take()?;
        place.finish(outcome);
        Some(admission)
    }

    /// The head of the answer has come. Only good answers have a usage.
    pub fn answered(&mut self, status: StatusCode, is_stream: bool) {
        self.is_error = status.is_server_error();
        if matches!(status.as_u16(), 502..=504) {
            self.outcome = Outcome::Failed;
        }
        let metered = self.metered.filter(|_| status.is_success());
        self.meter = match metered {
            None => Meter::Unmetered,
            Some(metered) if is_stream => Meter::stream(&metered),
            Some(Metered { worst, body_bytes, .. }) => {
                Meter::Answer(Box::new(AnswerMeter::new(worst, body_bytes)))
            }
        };
    }

    /// The answer is a call of gRPC, which ends with a status.
    pub const fn await_grpc_status(&mut self) {
        self.lacks_status = true;
    }

    /// The status of a call of gRPC has come, which counts like that of an answer.
    pub fn note_grpc_status(&mut self, status: u16) {
        self.lacks_status = false;
        self.is_error |= grpc::is_fault_of_server(status);
        if status == grpc::UNAVAILABLE {
            self.outcome = Outcome::Failed;
        }
    }

    /// The first byte of the answer has come, the head of one without a body, or the end of an empty one.
    pub fn note_first_byte(&mut self) {
        self.first_byte_ms.get_or_insert_with(now_ms);
    }

    /// Passes a part of the answer.
    pub fn pass(&mut self, part: Bytes) -> Bytes {
        if !part.is_empty() {
            self.note_first_byte();
        }
        self.meter.push(part)
    }

    /// Ends the request after the whole answer. A call of gRPC without a status is an unknown failure.
    pub fn end(&mut self) {
        if self.lacks_status {
            self.note_grpc_status(grpc::UNKNOWN);
        }
        self.finish(self.outcome, true);
    }

    /// Ends the request without evidence about the replica.
    pub fn abandon(&mut self) {
        self.finish(Outcome::Abandoned, false);
    }

    /// Ends the request as [`Exchange::abandon`], while the replica is silent too: its worker may be lost.
    pub fn abandon_late(&mut self, worker: &Arc<WorkerLink>) {
        self.count_lost(worker);
        self.abandon();
    }

    /// Ends the request after a fault of the replica.
    pub fn fail(&mut self, worker: &Arc<WorkerLink>) {
        self.count_lost(worker);
        self.is_error = true;
        self.finish(Outcome::Failed, false);
    }

    /// Ends a request that got no answer: it has no usage.
    pub fn fail_unanswered(mut self, worker: &Arc<WorkerLink>) {
        self.meter = Meter::Unmetered;
        self.fail(worker);
    }

    /// Counts the loss of the replica if its worker does not answer now: a program breaks and delays its own connections
    /// as it likes.
    fn count_lost(&self, worker: &Arc<WorkerLink>) {
        let Some((place, admission)) = &self.parts else { return };
        let (service, ledger) = (place.service(), admission.ledger.clone());
        let (worker, since) = (worker.clone(), Instant::now());
        tokio::spawn(async move {
            if !worker.answers(since).await {
                ledger.count_fault(service, FaultKind::Lost);
            }
        });
    }

    fn finish(&mut self, outcome: Outcome, is_whole: bool) {
        let Some((place, admission)) = self.parts.take() else { return };
        let usage = std::mem::replace(&mut self.meter, Meter::Unmetered).finish(is_whole);
        if let Some(fault) = usage.and_then(|usage| usage.fault) {
            tracing::debug!(?fault, service = %place.service(), "the usage of an answer has a fault");
        }
        let tokens = usage.map(|usage| usage.tokens).unwrap_or_default();
        let first_byte_ms = self.first_byte_ms.map(|at| at.saturating_sub(self.began_ms));
        admission.settle_for(&place, tokens, self.is_error, first_byte_ms);
        place.finish(outcome);
    }
}

/// The bucket of a time to the first byte.
fn bucket(millis: u64) -> usize {
    BOUNDS_MS.partition_point(|bound| u64::from(*bound) < millis)
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if *self.is_sent.get_mut() {
            self.finish(Outcome::Abandoned, false);
        } else if let Some((place, _admission)) = self.parts.take() {
            place.finish(Outcome::Abandoned);
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_serving::reports::BUCKETS;
    use berth_types::ids::ServiceId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn only_a_whole_wait_for_a_sleeping_service_counts_as_a_fault() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path()).unwrap();
        let service = ServiceState::new(ServiceId::from_uuid(Uuid::from_u128(1)), Arc::default());
        let price = Price { nano_per_second: 0, nano_per_prompt_token: 0, nano_per_completion_token: 0 };
        let rates = Arc::default();
        let admission =
            Admission { ledger: ledger.clone(), rates, key: None, price, admitted_tokens: 0, hold: None };
        for refusal in [
            Refusal::Busy { retry_after_s: 1 },
            Refusal::Deadline,
            Refusal::UnknownAddress,
            Refusal::WaitedTooLong { retry_after_s: 1 },
        ] {
            assert_eq!(admission.refused(&service, refusal.clone()), refusal);
        }
        let faults = ledger.report().unwrap().faults;
        let counted: Vec<(u64, u64, u64)> =
            faults.iter().map(|row| (row.asleep, row.unreached, row.lost)).collect();
        assert_eq!(counted, [(1, 0, 0)], "a flood at a wake fills the queue");
    }

    #[test]
    fn each_time_to_the_first_byte_has_its_bucket() {
        for (millis, expected) in
            [(0, 0), (1, 0), (2, 1), (4, 3), (120_000, 23), (120_001, 24), (u64::MAX, 24)]
        {
            assert_eq!(bucket(millis), expected, "{millis}");
        }
        assert_eq!(BOUNDS_MS.len() + 1, BUCKETS);
    }
}
