//! The wakes of a service, for its promise: from the first waiting request of the sleeping service until a replica is
//! ready.

use berth_foundation::Context;
use berth_service_types::services::ServiceState;
use berth_store::StoreError;
use berth_store::services::promise_evidence as rows;
use berth_types::ids::ServiceId;
use berth_types::time::Timestamp;
use futures::FutureExt;

/// A service before and after a plan.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub halted: bool,
    pub before: ServiceState,
    pub after: ServiceState,
    /// Requests wait at a gateway.
    pub waiting: bool,
    /// The time since which a replica is ready.
    pub ready_since: Option<Timestamp>,
}

/// The change of a wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin(Timestamp),
    End(Timestamp),
    /// The service was stopped: that is no wake.
    Drop,
}

/// The step at this moment. A service that is asleep again without a ready replica ends its wake too: its callers are gone.
fn step(moment: &Moment, now: Timestamp) -> Option<Step> {
    let asleep = ServiceState::Asleep;
    let wakes = matches!(moment.before, ServiceState::Waking | ServiceState::Failed);
    if moment.halted {
        return (moment.before != asleep).then_some(Step::Drop);
    }
    match moment.ready_since {
        Some(since) => (wakes || moment.before == asleep).then_some(Step::End(since)),
        None if moment.before == asleep => moment.waiting.then_some(Step::Begin(now)),
        None => (wakes && moment.after == asleep).then_some(Step::End(now)),
    }
}

/// Records the begin or the end of a wake. It comes before the plan is written, so a stop between them loses none, and a
/// repeated step changes nothing.
///
/// # Errors
/// The database cannot be written.
pub async fn follow(context: &Context, service: ServiceId, moment: &Moment) -> Result<(), StoreError> {
    let Some(step) = step(moment, context.now()) else { return Ok(()) };
    let done = context.db.write(move |tx| {
        async move {
            match step {
                Step::Begin(at) => rows::begin_wake(tx, service, at).await,
                Step::End(at) => rows::end_wake(tx, service, at).await,
                Step::Drop => rows::drop_wake(tx, service).await,
            }
        }
        .boxed()
    });
    done.await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All moments agree with the rule in words.
    #[test]
    fn a_wake_goes_from_the_first_waiting_request_to_the_first_ready_replica() {
        let (now, since) = (Timestamp::from_micros(9), Timestamp::from_micros(7));
        let bools = [false, true];
        for before in ServiceState::ALL {
            for after in ServiceState::ALL {
                for (halted, waiting, ready) in
                    bools.into_iter().flat_map(|a| bools.map(|b| [(a, b, false), (a, b, true)])).flatten()
                {
                    let ready_since = ready.then_some(since);
                    let moment = Moment { halted, before, after, waiting, ready_since };
                    let expected = match (halted, before.name(), ready, after.name()) {
                        (true, "asleep", ..) => None,
                        (true, ..) => Some(Step::Drop),
                        (false, "asleep" | "waking" | "failed", true, _) => Some(Step::End(since)),
                        (false, "asleep", false, _) if waiting => Some(Step::Begin(now)),
                        (false, "waking" | "failed", false, "asleep") => Some(Step::End(now)),
                        _ => None,
                    };
                    assert_eq!(step(&moment, now), expected, "{moment:?}");
                }
            }
        }
    }
}
