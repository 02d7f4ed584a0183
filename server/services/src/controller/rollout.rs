//! The rollout of the revisions of a service, from its rows and back.

use berth_autoscaling::rollout::{Plan, Revision, RevisionNumber, RevisionState, Rollout};
use berth_service_types::revisions::RevisionState as StoredState;
use berth_store::services::replicas::LoopRevision;

const fn to_state(state: StoredState) -> RevisionState {
    match state {
        StoredState::Staging => RevisionState::Staging,
        StoredState::Canary => RevisionState::Canary,
        StoredState::Live => RevisionState::Live,
        StoredState::Draining => RevisionState::Draining,
        StoredState::Retired => RevisionState::Retired,
        StoredState::RolledBack => RevisionState::RolledBack,
    }
}

const fn to_stored(state: RevisionState) -> StoredState {
    match state {
        RevisionState::Staging => StoredState::Staging,
        RevisionState::Canary => StoredState::Canary,
        RevisionState::Live => StoredState::Live,
        RevisionState::Draining => StoredState::Draining,
        RevisionState::Retired => StoredState::Retired,
        RevisionState::RolledBack => StoredState::RolledBack,
    }
}

fn percent(stored: i64) -> u8 {
    u8::try_from(stored.clamp(0, 100)).unwrap_or(0)
}

/// The number of a revision; `None` beyond the range of the rollout.
pub fn number(row: &LoopRevision) -> Option<RevisionNumber> {
    RevisionNumber::try_from(row.number).ok()
}

/// The rollout of these rows. `steps` has the percentages of the revision on its way to become live.
pub fn load(rows: &[LoopRevision], steps: &[u8]) -> Rollout {
    let revision = |row: &LoopRevision| Revision {
        state: to_state(row.state),
        // The weight of the live revision follows from that of the canary.
        percent: if row.state == StoredState::Canary { percent(row.weight_percent) } else { 0 },
        goal: percent(row.goal_percent),
        held: row.held,
        returns: row.returns,
        before: row.before_number.and_then(|number| RevisionNumber::try_from(number).ok()),
    };
    let revisions = rows.iter().filter_map(|row| Some((number(row)?, revision(row))));
    Rollout::restored(Plan::new(steps.to_vec()).unwrap_or_default(), revisions)
}

/// The row of a revision as the rollout has it now, with the reason for a changed state.
pub fn store(rollout: &Rollout, row: &LoopRevision, detail: Option<&str>) -> LoopRevision {
    let own = number(row);
    let Some((_, revision)) = rollout.revisions().find(|(number, _)| Some(*number) == own) else {
        return row.clone();
    };
    let weight = rollout.weights().into_iter().find(|(number, _)| Some(*number) == own);
    let state = to_stored(revision.state);
    let kept = if state == row.state { row.detail.clone() } else { String::new() };
    LoopRevision {
        state,
        detail: detail.map_or(kept, str::to_owned),
        weight_percent: i64::from(weight.map_or(0, |(_, percent)| percent)),
        goal_percent: i64::from(revision.goal),
        held: revision.held,
        returns: revision.returns,
        before_number: revision.before.map(i64::from),
        ..row.clone()
    }
}

#[cfg(test)]
mod tests {
    use berth_autoscaling::rollout::Event;
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
    fn a_reason_stays_until_the_state_changes() {
        let mut rollout = load(&[row(1)], &[]);
        let with_reason = store(&rollout, &row(1), Some("It is slow."));
        assert_eq!(store(&rollout, &with_reason, None).detail, "It is slow.");
        rollout.apply(Event::Ready(1)).unwrap();
        assert_eq!(store(&rollout, &with_reason, None).detail, "");
    }
}
