//! The check of the network between the ranks of a gang before any other step of an attempt: all workers get their rank
//! at the same time, but images and files take longer on one node than on another.

use std::thread;
use std::time::{Duration, Instant};

use berth_network::preflight::{self, Preflight};
use berth_proto as proto;
use berth_shim::model::{JobFailure, start_failure};

use super::attempt_network::{check_plan, create_network};
use super::directory::Attempt;
use super::host::Host;
use super::links::{MeasuredLink, judge};
use super::preparation::PreparationControl;

/// The time for the report of a rank with a bad link before the failure of the others.
const OTHER_FIRST: Duration = Duration::from_secs(5);
/// The time between two questions, whether the attempt is still wanted.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Makes the network of a rank and measures its links. Blocking, for at most 120 seconds. `false`: the attempt has failed.
pub fn check_gang(
    attempt: &mut Attempt,
    spec: &proto::Spec,
    host: &Host,
    control: &PreparationControl<'_>,
) -> bool {
    let plan = |gang| Some((gang, check_plan(gang)?));
    let Some(check) = spec.gang_network.as_ref().and_then(plan) else { return true };
    let result = measure(attempt, spec, host, control, &check);
    let failure = result.and_then(|()| (control.given_up)().map_or(Ok(()), Err)).err();
    let Some(failure) = failure else { return true };
    // A stop of the whole gang ends the check of each rank, and is the reason then.
    attempt.fail((control.given_up)().unwrap_or(failure));
    false
}

fn measure(
    attempt: &mut Attempt,
    spec: &proto::Spec,
    host: &Host,
    control: &PreparationControl<'_>,
    (gang, plan): &(&proto::GangNetwork, Preflight),
) -> Result<(), JobFailure> {
    let namespace = create_network(&attempt.record, spec, host, (attempt.dir.as_path(), None))?;
    let Some(namespace) = namespace else { return Ok(()) };
    (control.progress)("Measuring the network between the nodes.".to_owned());
    let given_up = || (control.given_up)().is_some();
    let measured = preflight::measure_links(&namespace.path, plan, &given_up);
    (control.progress)(String::new());
    let failed = |why: String| {
        start_failure("worker.isolation", format!("The network of the job cannot be checked: {why}"))
    };
    // A check that was given up has no result. The caller knows the reason.
    let Some(checked) = measured.map_err(failed)? else { return Ok(()) };
    attempt.record.links = checked.links.iter().map(MeasuredLink::new).collect();
    judge(&attempt.record.links, gang)?;
    if checked.all_good {
        return Ok(());
    }
    // The rank with the bad link names it, and then the portal stops this one.
    let deadline = Instant::now() + OTHER_FIRST;
    while !given_up() && Instant::now() < deadline {
        thread::sleep(ASK_EVERY);
    }
    let cause =
        "Another rank found a bad link in the network of the job, or the all-reduce of its ranks failed";
    Err(start_failure("gang.check_failed", cause))
}
