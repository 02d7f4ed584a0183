//! The rollout of a service between its rows and the state machine. Requests of persons and the loop of services use
//! it, each in the transaction of its other writes.

use std::collections::BTreeMap;

use berth_autoscaling::rollout::{self, Event, Plan, PlanError, Refusal, RevisionNumber, Rollout};
use berth_service_types::revisions::{NewRevision, RevisionState};
use berth_store::services::revisions::{self as rows, StoredProgress, StoredRevision};
use berth_store::{StoreError, Tx, WriteError};
use berth_types::ids::ServiceId;
use berth_types::problems::Problem;

/// The state of a revision in the state machine.
const fn machine_state(state: RevisionState) -> rollout::RevisionState {
    match state {
        RevisionState::Staging => rollout::RevisionState::Staging,
        RevisionState::Canary => rollout::RevisionState::Canary,
        RevisionState::Live => rollout::RevisionState::Live,
        RevisionState::Draining => rollout::RevisionState::Draining,
        RevisionState::Retired => rollout::RevisionState::Retired,
        RevisionState::RolledBack => rollout::RevisionState::RolledBack,
    }
}

/// The state of a revision in the store.
const fn stored_state(state: rollout::RevisionState) -> RevisionState {
    match state {
        rollout::RevisionState::Staging => RevisionState::Staging,
        rollout::RevisionState::Canary => RevisionState::Canary,
        rollout::RevisionState::Live => RevisionState::Live,
        rollout::RevisionState::Draining => RevisionState::Draining,
        rollout::RevisionState::Retired => RevisionState::Retired,
        rollout::RevisionState::RolledBack => RevisionState::RolledBack,
    }
}

/// A revision of the state machine from its row.
pub fn restored(row: &StoredProgress) -> Option<(RevisionNumber, rollout::Revision)> {
    // The weight of the live revision is the rest, which the state machine computes.
    let percent = if row.state == RevisionState::Canary { row.weight_percent } else { 0 };
    let revision = rollout::Revision {
        state: machine_state(row.state),
        percent: u8::try_from(percent).ok()?,
        goal: u8::try_from(row.goal_percent).ok()?,
        held: row.held,
        returns: row.returns,
        before: row.before_number.map(RevisionNumber::try_from).transpose().ok()?,
    };
    Some((RevisionNumber::try_from(row.number).ok()?, revision))
}

/// The rows of a rollout by the numbers of its revisions.
pub fn stored(rollout: &Rollout) -> BTreeMap<RevisionNumber, StoredProgress> {
    let weights: BTreeMap<RevisionNumber, u8> = rollout.weights().into_iter().collect();
    let row = |(number, revision): (RevisionNumber, &rollout::Revision)| {
        let row = StoredProgress {
            number: number.into(),
            state: stored_state(revision.state),
            weight_percent: weights.get(&number).copied().unwrap_or(0).into(),
            goal_percent: revision.goal.into(),
            held: revision.held,
            returns: revision.returns,
            before_number: revision.before.map(i64::from),
        };
        (number, row)
    };
    rollout.revisions().map(row).collect()
}

/// The steps of a revision.
///
/// # Errors
/// Too many steps, or steps that do not rise.
pub fn plan(spec: &NewRevision) -> Result<Plan, PlanError> {
    Plan::new(spec.canary_percent.clone())
}

/// Reads the rollout of a service. Its plan has the steps of the revision on its way.
///
/// # Errors
/// The database cannot be read, or a row is corrupt.
pub async fn load(tx: &mut Tx<'_>, service: ServiceId) -> Result<Rollout, StoreError> {
    let stored = rows::list_progress(tx, service).await?;
    let is_candidate =
        |row: &&StoredProgress| matches!(row.state, RevisionState::Staging | RevisionState::Canary);
    let candidate = match stored.iter().find(is_candidate) {
        Some(row) => rows::find(tx, service, row.number).await?,
        None => None,
    };
    let corrupt = |column, cause: &str| StoreError::corrupt("service_revisions", service, column, cause);
    let plan = match candidate {
        Some(row) => plan(&row.spec).map_err(|error| corrupt("spec", &error.to_string()))?,
        None => Plan::new(Vec::new()).map_err(|error| corrupt("spec", &error.to_string()))?,
    };
    let revisions: Option<Vec<_>> = stored.iter().map(restored).collect();
    let revisions = revisions.ok_or_else(|| corrupt("number", "a number is out of range"))?;
    Ok(Rollout::restored(plan, revisions))
}

/// Writes what a rollout changed: all changed rows, and the deletion of forgotten revisions.
///
/// # Errors
/// The database cannot be written.
pub async fn store(
    tx: &mut Tx<'_>,
    service: ServiceId,
    before: &Rollout,
    after: &Rollout,
) -> Result<(), StoreError> {
    let (before, after) = (stored(before), stored(after));
    for (number, row) in &after {
        if before.get(number) != Some(row) {
            rows::set_progress(tx, service, row).await?;
        }
    }
    for number in before.keys().filter(|number| !after.contains_key(*number)) {
        rows::delete_unused(tx, service, i64::from(*number)).await?;
    }
    Ok(())
}

/// Adds a revision and begins its rollout. It ends the way of a revision that comes back.
///
/// # Errors
/// Another revision is on its way.
pub async fn submit(tx: &mut Tx<'_>, row: &StoredRevision) -> Result<(), WriteError> {
    let before = load(tx, row.service_id).await?;
    let mut after = before.clone();
    let corrupt = |cause: &str| StoreError::corrupt("service_revisions", row.id, "spec", cause);
    after.set_plan(plan(&row.spec).map_err(|error| corrupt(&error.to_string()))?);
    let number = RevisionNumber::try_from(row.number).map_err(|error| corrupt(&error.to_string()))?;
    after.apply(Event::Submit(number)).map_err(refusal)?;
    rows::insert(tx, row).await?;
    store(tx, row.service_id, &before, &after).await?;
    if let Some(live) = before.live().filter(|_| before.revisions().any(|(_, revision)| revision.returns)) {
        // It stays until the new one is ready, so it has no reason to go any more.
        rows::set_detail(tx, row.service_id, i64::from(live), "").await?;
    }
    Ok(())
}

/// The problem of a refused event.
pub(crate) fn refusal(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::Known => Problem::internal(),
        Refusal::Percent => Problem::invalid_field("/percent", "Enter 0 to 100 percent."),
        Refusal::Underway => Problem::conflict(
            "revision.underway",
            "Another revision on its way",
            "Another revision of the service is on its way to become live. Nothing was changed. Roll it back, or wait for its end.",
        ),
        Refusal::NotCandidate => Problem::conflict(
            "revision.not_candidate",
            "Revision not on its way",
            "Only a revision in staging or canary has a percentage to set. Nothing was changed.",
        ),
        Refusal::NothingBefore => Problem::conflict(
            "revision.nothing_before",
            "No revision to go back to",
            "No revision is on its way, and none was live before the present one. Nothing was changed.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const EVENTS: [Event; 16] = [
        Event::Submit(1),
        Event::Submit(2),
        Event::Submit(3),
        Event::Ready(1),
        Event::Ready(2),
        Event::Ready(3),
        Event::Good(2),
        Event::Good(3),
        Event::Bad(2),
        Event::Bad(3),
        Event::Traffic(2, 60),
        Event::Traffic(2, 5),
        Event::Rollback,
        Event::Drained(1),
        Event::Drained(2),
        Event::Drained(3),
    ];

    #[test]
    fn each_reachable_rollout_comes_back_from_its_rows() {
        let plan = Plan::new(vec![0, 10, 50]).unwrap();
        let mut seen: BTreeSet<Rollout> = [Rollout::new(plan.clone())].into();
        let mut open: Vec<Rollout> = seen.iter().cloned().collect();
        while let Some(rollout) = open.pop() {
            let rows = stored(&rollout);
            let sum: i64 = rows.values().map(|row| row.weight_percent).sum();
            assert_eq!(sum, if rollout.live().is_some() { 100 } else { 0 }, "{rollout:?}");
            let revisions: Option<Vec<_>> = rows.values().map(restored).collect();
            assert_eq!(Rollout::restored(plan.clone(), revisions.unwrap()), rollout);
            for event in EVENTS {
                let mut next = rollout.clone();
                if next.apply(event).is_ok() && seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        assert!(seen.len() > 100, "{}", seen.len());
    }

    #[test]
    fn a_row_beyond_the_range_is_corrupt() {
        let row = StoredProgress {
            number: 1,
            state: RevisionState::Canary,
            weight_percent: 10,
            goal_percent: 10,
            held: false,
            returns: false,
            before_number: None,
        };
        assert!(restored(&row).is_some());
        for row in [
            StoredProgress { number: -1, ..row.clone() },
            StoredProgress { weight_percent: 256, ..row.clone() },
            StoredProgress { goal_percent: -1, ..row.clone() },
            StoredProgress { before_number: Some(1 << 32), ..row.clone() },
        ] {
            assert_eq!(restored(&row), None);
        }
    }
}
