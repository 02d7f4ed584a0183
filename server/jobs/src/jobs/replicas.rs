//! The check of the job of a replica before a service keeps it, and its waits for the organization itself.

use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::NewJob;
use berth_types::problems::Problem;

use super::Jobs;
use super::checks::{check_references, no_price, no_such_offering};
use berth_store::{self as store, StoreError};

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

/// True if one of these queued replicas waits for its own organization: for one of its limits, a volume, or its own nodes.
///
/// # Errors
/// The database cannot be read.
pub async fn is_own_wait(jobs: &Jobs, replicas: Vec<JobId>) -> Result<bool, StoreError> {
    jobs.planner.is_own_wait(replicas).await
}
