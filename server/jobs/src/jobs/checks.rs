//! The price of a submission, and the checks of it against the stored state.

use berth_core::egress::{check_gang_rdma, job_egress};
use berth_core::rating::{share_rate, surcharged_rate, total_rate, worst_case_micros};
use berth_placement::quotas::Need;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{Condition, JobState, NewJob};
use berth_types::money::money_text;
use berth_types::problems::{FieldError, Problem};
use berth_types::time::{Timestamp, duration_text};

use berth_storage::secrets;
use berth_storage::volumes::uses;
use berth_store::offerings::{StoredOffering, StoredPrice};
use berth_store::{self as store, StoreError, Tx, WriteError};

/// The price of a submission, for all its devices.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobPrice {
    pub nano_per_second: i64,
    /// The price of a run up to the time limit.
    pub worst_micros: i64,
}

/// The price of one device of a submission. A job in a reservation is paid with the reservation.
fn device_price(spec: &NewJob, price: &StoredPrice) -> i64 {
    match (spec.reservation, spec.preemptible) {
        (Some(_), _) => 0,
        (None, true) => price.preemptible(),
        (None, false) => price.nano_per_second,
    }
}

/// The price of a submission. `surcharge` is the surcharge on the price of each device in basis points.
///
/// # Errors
/// The price is too high for the range of amounts.
pub(super) fn job_price(spec: &NewJob, price: &StoredPrice, surcharge: i64) -> Result<JobPrice, Problem> {
    let device = surcharged_rate(device_price(spec, price), surcharge);
    let rate = device.and_then(|device| match spec.gpu_milli {
        Some(milli) => share_rate(device, milli),
        None => total_rate(device, spec.count.saturating_mul(spec.nodes)),
    });
    let worst = rate.and_then(|rate| worst_case_micros(rate, spec.max_duration_s));
    let (Some(rate), Some(worst)) = (rate, worst) else {
        return Err(Problem::invalid_field(
            "/max_duration_s",
            "The price exceeds every possible balance. Enter a shorter time limit or fewer devices.",
        ));
    };
    Ok(JobPrice { nano_per_second: rate, worst_micros: worst })
}

/// The thousandths of whole boards that a submission takes.
pub(super) fn board_milli(spec: &NewJob, offering: &StoredOffering) -> i64 {
    let each = offering.cells * 1_000 / offering.board_cells.max(1);
    match spec.gpu_milli {
        Some(milli) => i64::from(milli),
        None => each.saturating_mul(i64::from(spec.count)).saturating_mul(i64::from(spec.nodes)),
    }
}

/// The demand of a submission against limits. The offering comes by its name, so its number here is 0.
pub(super) fn quota_need(spec: &NewJob, boards_milli: i64, nano_per_second: i64) -> Need {
    let devices = i64::from(spec.count) * i64::from(spec.nodes) * 1_000;
    let devices_milli = spec.gpu_milli.map_or(devices, i64::from);
    Need { boards_milli, offering: 0, devices_milli, nano_per_second }
}

pub fn no_such_offering() -> Problem {
    Problem::invalid_field(
        "/offering",
        "This offering does not exist. GET /api/v1/offerings lists all offerings.",
    )
}

/// Refuses a share of a slice, because a share is a part of a whole board, and several slices for one rank, because a
/// process of CUDA sees one slice only.
pub(super) fn check_slice(spec: &NewJob, mig_profile: Option<&str>) -> Result<(), Problem> {
    if mig_profile.is_none() {
        return Ok(());
    }
    if spec.gpu_milli.is_some() {
        return Err(Problem::invalid_field(
            "/gpu_milli",
            "A slice has no shares. Choose the offering of the whole board.",
        ));
    }
    if spec.count > 1 {
        return Err(Problem::invalid_field(
            "/count",
            "A process of CUDA uses one slice only. Set count to 1 and choose a larger slice or whole boards, or submit several jobs. Nothing was started or charged.",
        ));
    }
    Ok(())
}

/// Refuses RDMA without the grant of an operator, and for slices.
pub(super) fn check_rdma(spec: &NewJob, mig_profile: Option<&str>, is_granted: bool) -> Result<(), Problem> {
    if !spec.rdma {
        return Ok(());
    }
    if !is_granted {
        return Err(Problem::invalid_field(
            "/rdma",
            "The organization has no grant for RDMA. Ask the operator for it, or omit the field. Nothing was started or charged.",
        ));
    }
    if mig_profile.is_some() {
        return Err(Problem::invalid_field(
            "/rdma",
            "RDMA needs all boards of a node. Choose an offering of whole boards, or omit the field. Nothing was started or charged.",
        ));
    }
    Ok(())
}

/// True if the organization may have RDMA.
pub(super) async fn is_rdma_granted(tx: &mut Tx<'_>, org: OrgId) -> Result<bool, StoreError> {
    Ok(store::rdma::find_grant(tx, org).await?.unwrap_or(false))
}

pub fn no_price() -> Problem {
    Problem::invalid_field("/offering", "This offering has no price yet. Ask the operator to set a price.")
}

pub(super) fn insufficient_funds(missing: i64, worst: i64, currency: &str) -> Problem {
    Problem::new(
        402,
        "funds.insufficient",
        "Not enough credit",
        format!(
            "The job can cost up to {}, which is {} more than the available credit. Nothing was started or charged. Choose a shorter time limit or a smaller offering, or add credit.",
            money_text(worst, currency),
            money_text(missing, currency)
        ),
    )
}

/// Refuses a submission if an object that it names does not fit.
pub(super) async fn check_references(
    tx: &mut Tx<'_>,
    org: OrgId,
    spec: &NewJob,
    offering: &StoredOffering,
    now: Timestamp,
) -> Result<(), WriteError> {
    check_slice(spec, offering.mig_profile.as_deref())?;
    if spec.rdma {
        check_rdma(spec, offering.mig_profile.as_deref(), is_rdma_granted(tx, org).await?)?;
    }
    check_dependencies(tx, org, spec).await?;
    check_reservation(tx, org, spec, offering, now).await?;
    check_network(tx, org, spec).await?;
    secrets::check_secrets_exist(tx, org, spec).await?;
    uses::check_volumes_exist(tx, org, spec).await
}

/// Refuses a network that the egress policy of the organization does not allow.
async fn check_network(tx: &mut Tx<'_>, org: OrgId, spec: &NewJob) -> Result<(), WriteError> {
    let policy = store::egress::find_policy(tx, org).await?.ok_or_else(Problem::not_found)?;
    let (pointer, why) = match job_egress(spec.network, &policy) {
        Err(why) => ("/network", why),
        Ok(egress) => match check_gang_rdma(spec, &egress) {
            Err(why) => ("/rdma", why),
            Ok(()) => return Ok(()),
        },
    };
    let detail = format!("{why} Nothing was started or charged.");
    let errors = vec![FieldError::new(pointer, why)];
    let problem = Problem::new(403, "network.not_allowed", "Network not allowed", detail);
    Err(Problem { errors, ..problem }.into())
}

/// Refuses dependencies on unknown jobs, and on jobs whose end makes a start impossible.
async fn check_dependencies(tx: &mut Tx<'_>, org: OrgId, spec: &NewJob) -> Result<(), WriteError> {
    if spec.depends_on.is_empty() {
        return Ok(());
    }
    let ids: Vec<JobId> = spec.depends_on.iter().map(|dependency| dependency.job).collect();
    let rows = store::jobs::list_any(tx, &ids).await?;
    for (index, dependency) in spec.depends_on.iter().enumerate() {
        let refuse = |detail: &str| Problem::invalid_field(&format!("/depends_on/{index}/job"), detail);
        let Some(row) = rows.iter().find(|row| row.id == dependency.job && row.org_id == org) else {
            return Err(refuse("This job does not exist in the organization.").into());
        };
        let failed = row.phase.state.ended() && row.phase.state != JobState::Succeeded;
        if failed && dependency.condition == Condition::Succeeded {
            let detail = "This job ended without success, so the new job would never start.";
            return Err(refuse(detail).into());
        }
    }
    Ok(())
}

/// Refuses a reservation of another organization, one that is over, and one without the requested devices or
/// time.
async fn check_reservation(
    tx: &mut Tx<'_>,
    org: OrgId,
    spec: &NewJob,
    offering: &StoredOffering,
    now: Timestamp,
) -> Result<(), WriteError> {
    let Some(id) = spec.reservation else { return Ok(()) };
    let refuse = |pointer: &str, detail: String| Err(Problem::invalid_field(pointer, detail).into());
    let Some(row) = store::reservations::find(tx, org, id).await? else {
        return refuse("/reservation", "This reservation does not exist in the organization.".to_owned());
    };
    if !row.state.holds() {
        return refuse("/reservation", format!("The reservation is {}.", row.state.name()));
    }
    if spec.gpu_milli.is_some() {
        return refuse("/gpu_milli", "A job in a reservation uses whole devices. Omit the field.".to_owned());
    }
    let whole = row.mig_profile.is_none();
    let same = row.slug.as_deref() == Some(offering.slug.as_str());
    let part = whole && row.gpu_model.as_deref() == Some(offering.gpu_model.as_str());
    if !same && !part {
        let slug = row.slug.unwrap_or_default();
        return refuse(
            "/offering",
            format!("The reservation has the offering {slug}. Choose it for the job."),
        );
    }
    if i64::from(spec.nodes) > row.nodes || (same && i64::from(spec.count) > row.gpus_per_node) {
        let counted = |n: i64, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let detail = format!(
            "The reservation has {} per node on {}. Request at most these.",
            counted(row.gpus_per_node, "device"),
            counted(row.nodes, "node")
        );
        return refuse("/count", detail);
    }
    // The job starts after its submission and after the begin of the reservation, and must end before its
    // end.
    let most_s = (row.ends_at.micros() - row.starts_at.max(now).micros()) / 1_000_000;
    if i64::try_from(spec.max_duration_s).unwrap_or(i64::MAX) >= most_s {
        let left = duration_text(most_s.saturating_mul(1_000));
        let detail = format!("The reservation has {left} left for the job. Enter a shorter time limit.");
        return refuse("/max_duration_s", detail);
    }
    Ok(())
}
