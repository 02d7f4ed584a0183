//! The check of the job of a replica before a service keeps it.

use berth_types::ids::OrgId;
use berth_types::jobs::NewJob;
use berth_types::problems::Problem;

use super::Jobs;
use super::checks::{check_references, no_price, no_such_offering};
use berth_store as store;

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
