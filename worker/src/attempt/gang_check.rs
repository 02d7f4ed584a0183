//! The check of the links between the ranks of a gang before any other step of an attempt: all workers get their rank
//! at the same time, but images and files take longer on one node than on another.

use std::path::Path;
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
use super::rdma::rdma_check_plan;

/// The network of the host, in which the daemon and its processes are.
const HOST_NETWORK: &str = "/proc/self/ns/net";
/// The time for the report of a rank with a bad link before the failure of the others.
const OTHER_FIRST: Duration = Duration::from_secs(5);
/// The time between two questions, whether the attempt is still wanted.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Measures the links of a rank: those of the network of its gang, which it makes, or with RDMA those between the nodes.
/// Blocking, for at most 120 seconds. `false`: the attempt has failed.
pub fn check_gang(
    attempt: &mut Attempt,
    spec: &proto::Spec,
    host: &Host,
    control: &PreparationControl<'_>,
) -> bool {
    let result = if let Some(plan) = spec.gang_network.as_ref().and_then(check_plan) {
        check_network(attempt, spec, host, control, &plan)
    } else if let Some(check) = &spec.rdma_check {
        rdma_check_plan(&attempt.record, spec, host, check)
            .and_then(|plan| measure(attempt, Path::new(HOST_NETWORK), control, &plan))
    } else {
        return true;
    };
    let failure = result.and_then(|()| (control.given_up)().map_or(Ok(()), Err)).err();
    let Some(failure) = failure else { return true };
    // A stop of the whole gang ends the check of each rank, and is the reason then.
    attempt.fail((control.given_up)().unwrap_or(failure));
    false
}

/// Makes the network of a rank and measures its links.
fn check_network(
    attempt: &mut Attempt,
    spec: &proto::Spec,
    host: &Host,
    control: &PreparationControl<'_>,
    plan: &Preflight,
) -> Result<(), JobFailure> {
    let namespace = create_network(&attempt.record, spec, host, (attempt.dir.as_path(), None))?;
    let Some(namespace) = namespace else { return Ok(()) };
    measure(attempt, &namespace.path, control, plan)
}

fn measure(
    attempt: &mut Attempt,
    namespace: &Path,
    control: &PreparationControl<'_>,
    plan: &Preflight,
) -> Result<(), JobFailure> {
    let by_rdma = plan.rdma.is_some();
    let links = if by_rdma { "RDMA links" } else { "network" };
    (control.progress)(format!("Measuring the {links} between the nodes."));
    let given_up = || (control.given_up)().is_some();
    let measured = preflight::measure_links(namespace, plan, &given_up);
    (control.progress)(String::new());
    let failed = |why: String| {
        start_failure("worker.isolation", format!("The network of the job cannot be checked: {why}"))
    };
    // A check that was given up has no result. The caller knows the reason.
    let Some(checked) = measured.map_err(failed)? else { return Ok(()) };
    attempt.record.links = checked.links.iter().map(MeasuredLink::new).collect();
    judge(&attempt.record.links, plan, checked.fault.as_deref())?;
    if checked.all_good {
        return Ok(());
    }
    // The rank with the bad link names it, and then the portal stops this one.
    let deadline = Instant::now() + OTHER_FIRST;
    while !given_up() && Instant::now() < deadline {
        thread::sleep(ASK_EVERY);
    }
    let place = if by_rdma { "by RDMA" } else { "in the network of the job" };
    let cause = format!("Another rank found a bad link {place}, or the all-reduce of the ranks failed");
    Err(start_failure("gang.check_failed", cause))
}
