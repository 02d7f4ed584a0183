//! The wakes of a service, for its promise: from the first waiting request of the sleeping service until a replica has its
//! devices. The start of the program is the organization's part.

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
    /// The submission of a replica is refused: the organization lacks credit or quota, or the job can never start. Or the
    /// replicas wait for the organization itself.
    pub refused: bool,
    /// A replica has its devices.
    pub placed: bool,
}

/// The change of a wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin(Timestamp),
    End(Timestamp),
    /// The organization stopped the service, its replicas are refused, or they wait for it: that is no wake.
    Drop,
}

/// The step at this moment. A service that is asleep again without a replica ends its wake too: its callers are gone. It
/// is late only if the promised time has passed.
fn step(moment: &Moment, now: Timestamp) -> Option<Step> {
    let asleep = ServiceState::Asleep;
    let wakes = matches!(moment.before, ServiceState::Waking | ServiceState::Failed);
    if moment.halted {
        return (moment.before != asleep).then_some(Step::Drop);
    }
    let may_wake = wakes || moment.before == asleep;
    if moment.placed {
        return may_wake.then_some(Step::End(now));
    }
    if moment.refused {
        return may_wake.then_some(Step::Drop);
    }
    if moment.before == asleep {
        // Without a revision that can get requests the service stays asleep.
        return (moment.waiting && moment.after != asleep).then_some(Step::Begin(now));
    }
    (wakes && moment.after == asleep).then_some(Step::End(now))
}

/// Records the begin or the end of a wake. It comes before the plan is written, so a stop between them loses none, and a
/// repeated step changes nothing.
///
/// # Errors
/// The database cannot be written.
pub async fn follow(context: &Context, service: ServiceId, moment: &Moment) -> Result<(), StoreError> {
    let Some(step) = step(moment, context.now()) else { return Ok(()) };
    if !matches!(step, Step::Begin(_)) {
        let mut conn = context.db.read().await?;
        if !rows::has_open_wake(&mut conn.tx(), service).await? {
            return Ok(());
        }
    }
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
    fn a_wake_goes_from_the_first_waiting_request_to_the_first_replica_with_devices() {
        let now = Timestamp::from_micros(9);
        for before in ServiceState::ALL {
            for after in ServiceState::ALL {
                for bits in 0..16_u8 {
                    let [halted, waiting, refused, placed] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
                    let moment = Moment { halted, before, after, waiting, refused, placed };
                    let expected = match (halted, before.name(), placed, refused, after.name()) {
                        (true, "asleep", ..) | (false, "degraded" | "ready", ..) => None,
                        (true, ..) => Some(Step::Drop),
                        (false, _, true, ..) => Some(Step::End(now)),
                        (false, _, false, true, _) => Some(Step::Drop),
                        (false, "asleep", false, false, "asleep") => None,
                        (false, "asleep", false, false, _) => waiting.then_some(Step::Begin(now)),
                        (false, _, false, false, "asleep") => Some(Step::End(now)),
                        _ => None,
                    };
                    assert_eq!(step(&moment, now), expected, "{moment:?}");
                }
            }
        }
    }
}
