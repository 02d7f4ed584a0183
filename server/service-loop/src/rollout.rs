//! The rollout of the revisions of a service, from the rows of the loop and back. [`berth_services::rollouts`] has the mapping.

use berth_autoscaling::rollout::{Plan, RevisionNumber, Rollout};
use berth_service_types::revisions::RevisionState;
use berth_store::services::replicas::LoopRevision;
use berth_store::services::revisions::StoredProgress;

use berth_services::rollouts::{restored, stored};

fn progress(row: &LoopRevision) -> StoredProgress {
    StoredProgress {
        number: row.number,
        state: row.state,
        weight_percent: row.weight_percent,
        goal_percent: row.goal_percent,
        held: row.held,
        returns: row.returns,
        before_number: row.before_number,
    }
}

/// The number of a revision; `None` beyond the range of the rollout.
pub fn number(row: &LoopRevision) -> Option<RevisionNumber> {
    RevisionNumber::try_from(row.number).ok()
}

/// The rollout of these rows. `steps` has the percentages of the revision on its way to become live.
pub fn load(rows: &[LoopRevision], steps: &[u8]) -> Rollout {
    let revisions = rows.iter().filter_map(|row| restored(&progress(row)));
    Rollout::restored(Plan::new(steps.to_vec()).unwrap_or_default(), revisions)
}

/// The row of a revision as the rollout has it now, with the reason for a changed state.
pub fn store(rollout: &Rollout, row: &LoopRevision, detail: Option<&str>) -> LoopRevision {
    let Some(new) = number(row).and_then(|own| stored(rollout).remove(&own)) else { return row.clone() };
    // A person who went back has written the reason before the former revision is ready.
    let has_gone_back = (row.state, new.state) == (RevisionState::Live, RevisionState::RolledBack);
    let kept = if new.state == row.state || has_gone_back { row.detail.clone() } else { String::new() };
    LoopRevision {
        state: new.state,
        detail: detail.map_or(kept, str::to_owned),
        weight_percent: new.weight_percent,
        goal_percent: new.goal_percent,
        held: new.held,
        returns: new.returns,
        before_number: new.before_number,
        ..row.clone()
    }
}

#[cfg(test)]
mod tests {
    use berth_autoscaling::rollout::Event;
    use berth_service_types::revisions::RevisionState as StoredState;
    use berth_types::ids::{RevisionId, ServiceId};
    use uuid::Uuid;

    use super::*;

    fn row(number: i64) -> LoopRevision {
        LoopRevision {
            id: RevisionId::from_uuid(Uuid::from_u128(7)),
            service_id: ServiceId::from_uuid(Uuid::from_u128(1)),
            number,
            state: StoredState::Staging,
            detail: String::new(),
            weight_percent: 0,
            goal_percent: 100,
            held: false,
            returns: false,
            before_number: None,
        }
    }

    #[test]
    fn every_state_of_a_rollout_comes_back_from_its_rows() {
        let steps = [10, 50];
        let mut rollout = load(&[row(1)], &steps);
        let events = [
            Event::Ready(1),
            Event::Submit(2),
            Event::Ready(2),
            Event::Good(2),
            Event::Ready(2),
            Event::Traffic(2, 30),
            Event::Traffic(2, 100),
            Event::Ready(2),
            Event::Rollback,
            Event::Ready(1),
            Event::Drained(2),
        ];
        let mut rows = vec![row(1), row(2)];
        for event in events {
            rollout.apply(event).unwrap();
            rows = rows.iter().map(|row| store(&rollout, row, None)).collect();
            let known = rollout.revisions().count();
            let back = load(&rows[..known], &steps);
            assert_eq!(back, rollout, "{event:?}");
            let sum: i64 = rows[..known].iter().map(|row| row.weight_percent).sum();
            assert_eq!(sum, 100, "{event:?}");
        }
    }

    #[test]
    fn the_reason_of_a_way_back_goes_with_the_live_revision() {
        let mut rollout = load(&[row(1)], &[]);
        for event in [Event::Ready(1), Event::Submit(2), Event::Ready(2)] {
            rollout.apply(event).unwrap();
        }
        let live = store(&rollout, &row(2), Some("Ada went back to revision 1."));
        rollout.apply(Event::Rollback).unwrap();
        assert_eq!(store(&rollout, &live, None), live, "the former one is not ready yet");
        rollout.apply(Event::Ready(1)).unwrap();
        let gone = store(&rollout, &live, None);
        assert_eq!(
            (gone.state, gone.detail.as_str()),
            (StoredState::RolledBack, "Ada went back to revision 1.")
        );
    }

    #[test]
    fn a_reason_stays_until_the_state_changes() {
        let mut rollout = load(&[row(1)], &[]);
        let with_reason = store(&rollout, &row(1), Some("It is slow."));
        assert_eq!(store(&rollout, &with_reason, None).detail, "It is slow.");
        rollout.apply(Event::Ready(1)).unwrap();
        assert_eq!(store(&rollout, &with_reason, None).detail, "");
    }
}
