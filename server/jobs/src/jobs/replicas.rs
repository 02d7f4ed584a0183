//! The check of the job of a replica before a service keeps it, its surcharge, and its waits for the organization itself.

use berth_types::ids::{JobId, OrgId, ServiceId};
use berth_types::jobs::NewJob;
use berth_types::problems::Problem;

use super::Jobs;
use super::checks::{check_references, no_price, no_such_offering};
use berth_store::{self as store, StoreError, Tx};

/// Refuses a job that could never start or that names unknown objects, as its submission would. Changes nothing.
///
/// # Errors
/// The refusal of the submission. The price and the limits are checked by each submission only.
pub async fn check_replica_job(jobs: &Jobs, org: OrgId, spec: &NewJob) -> Result<(), Problem> {
    let now = jobs.context.now();
    jobs.refuse_impossible(org, spec, now).await?;
    let mut conn = jobs.context.db.read().await?;
    let mut tx = conn.tx();
    let offering =
        store::offerings::find(&mut tx, &spec.offering, now).await?.ok_or_else(no_such_offering)?;
    offering.price.ok_or_else(no_price)?;
    Ok(check_references(&mut tx, org, spec, &offering, now).await?)
}

/// The surcharge of the promise that the service has now, in basis points; 0 without a promise, and for jobs that are no
/// replicas.
pub(super) async fn surcharge(tx: &mut Tx<'_>, service: Option<ServiceId>) -> Result<i64, StoreError> {
    let Some(service) = service else { return Ok(0) };
    let choice = store::services::promises::find_present(tx, service).await?;
    Ok(choice.map_or(0, |choice| choice.terms.surcharge_basis_points.into()))
}

/// True if all of these queued replicas wait for their own organization: for one of its limits, a volume, or its own nodes.
///
/// # Errors
/// The database cannot be read.
pub async fn is_own_wait(jobs: &Jobs, replicas: Vec<JobId>) -> Result<bool, StoreError> {
    jobs.planner.is_own_wait(replicas).await
}
