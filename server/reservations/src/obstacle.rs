//! The obstacle of a planned maintenance, for operators.

use std::collections::HashMap;

use berth_foundation::Context;
use berth_store::nodes::StoredGpu;
use berth_store::{self as store, StoreError, Tx};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;

use crate::capacity::expected_end;

/// The refusal of maintenance of these boards, with an obstacle.
///
/// # Errors
/// The database cannot be read.
pub(crate) async fn refuse_maintenance(
    context: &Context,
    chosen: &[&StoredGpu],
    window: (Timestamp, Timestamp),
    now: Timestamp,
) -> Result<Problem, StoreError> {
    let mut conn = context.db.read().await?;
    let obstacle = find_obstacle(&mut conn.tx(), chosen, window, now).await?;
    let obstacle = obstacle.map_or_else(String::new, |text| format!(" {text}"));
    let detail = format!(
        "The boards are reserved or possibly in use at that time.{obstacle} Nothing was planned. Choose a later time, or wait for the end of the running jobs."
    );
    Ok(Problem::conflict("maintenance.in_use", "Boards not free", detail))
}

/// A window or run that may have one of these boards between `from` and `until`, as sentences with its end.
/// `None` if nothing has them any more.
async fn find_obstacle(
    tx: &mut Tx<'_>,
    chosen: &[&StoredGpu],
    (from, until): (Timestamp, Timestamp),
    now: Timestamp,
) -> Result<Option<String>, StoreError> {
    let boards: HashMap<&str, i64> = chosen.iter().map(|gpu| (gpu.uuid.as_str(), gpu.idx)).collect();
    for row in store::reservations::list_between(tx, from, until).await? {
        let places = row.places()?;
        let mut devices = places.iter().flat_map(|(_, devices)| devices);
        let Some(index) = devices.find_map(|device| boards.get(device.gpu_uuid.as_str())) else { continue };
        let window = match &row.org_name {
            Some(org) => format!("reserved by {org} as {}", row.name),
            None => format!("in maintenance ({})", row.name),
        };
        return Ok(Some(format!("GPU {index} is {window} until {}.", row.ends_at.minute())));
    }
    for row in store::attempts::list_held(tx).await? {
        let Some(index) = boards.get(row.allocation.gpu_uuid.as_str()) else { continue };
        let end = expected_end(&row, now);
        if end.is_some_and(|end| end <= from) {
            continue;
        }
        let (job, org) = (&row.job_name, &row.org_name);
        return Ok(Some(match end {
            Some(end) => format!(
                "GPU {index} is in use by the job {job} of {org}, which ends by {} at the latest.",
                end.minute()
            ),
            None => {
                format!("GPU {index} is held by the job {job} of {org} until its devices are proved clean.")
            }
        }));
    }
    Ok(None)
}
