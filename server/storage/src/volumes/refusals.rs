//! Refused hand-overs: the volume has none of the attempt's changes, and the history of the job says why.

use berth_foundation::{Change, Context};
use berth_store::volumes::uses::StoredVolumeUse;
use berth_store::{self as store, StoreError, Tx};
use berth_types::events::JobEvent;
use berth_types::ids::OrgId;
use berth_types::time::Timestamp;

/// The event of a refused hand-over, with the organization of its job.
pub(crate) type RefusedHandOver = (OrgId, JobEvent);

/// Refuses the hand-over of an attempt to a volume for the reason `note`. The event is for the publication after the
/// transaction; `None` for an attempt with a later one.
pub(super) async fn refuse(
    tx: &mut Tx<'_>,
    given: &StoredVolumeUse,
    volume: &str,
    note: &str,
    now: Timestamp,
) -> Result<Option<RefusedHandOver>, StoreError> {
    store::volumes::uses::set_result(tx, given, None, Some(note)).await?;
    let row = store::jobs::find_any(tx, given.job_id).await?;
    let Some(row) = row.filter(|row| row.attempt == given.attempt) else { return Ok(None) };
    store::jobs::raise_generation(tx, row.id, row.generation).await?;
    let event = JobEvent {
        job: row.id,
        seq: row.generation + 1,
        at: now,
        state: row.phase.state,
        attempt: u32::try_from(row.attempt).unwrap_or(0),
        detail: format!("The files for the volume {volume} were not kept. {note}").trim_end().to_owned(),
    };
    store::job_events::insert_event(tx, row.org_id, &event).await?;
    Ok(Some((row.org_id, event)))
}

/// Publishes the event of a refused hand-over.
pub(crate) fn publish(context: &Context, refused: Option<RefusedHandOver>) {
    if let Some((org, event)) = refused {
        context.publish(Change::Job { org, job: event.job, event: Some(event) });
    }
}
