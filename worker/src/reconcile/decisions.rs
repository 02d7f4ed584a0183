//! The next effects from the desired and the present attempts.
//!
//! Pure: no clock, no IO, no async. The daemon calls this after every change, so a lost or partly done effect is
//! decided again.

use std::collections::BTreeMap;

use berth_shim::model::AttemptKey;

use crate::attempt::{AttemptState, CleaningState};

/// The desired state of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DesiredAttempt {
    pub stop: bool,
    pub limit_ms: i64,
    /// The portal sent the specification, so the attempt may start here.
    pub startable: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Make its devices and files, then start it.
    Prepare(AttemptKey),
    /// Record that it never ran here. `lost`: the portal assumes that it did.
    Refuse {
        key: AttemptKey,
        lost: bool,
    },
    Stop(AttemptKey),
    Limit(AttemptKey, i64),
    /// Prove its devices clean.
    Clean(AttemptKey),
    /// Remove its directory.
    Forget(AttemptKey),
}

/// The effects that bring the present state closer to the desired one.
pub fn converge(
    desired: &BTreeMap<AttemptKey, DesiredAttempt>,
    present: &BTreeMap<AttemptKey, AttemptState>,
) -> Vec<Effect> {
    let mut out = Vec::new();
    for (key, want) in desired {
        if present.contains_key(key) {
            continue;
        }
        out.push(if want.startable && !want.stop {
            Effect::Prepare(key.clone())
        } else {
            Effect::Refuse { key: key.clone(), lost: !want.startable }
        });
    }
    for (key, state) in present {
        let want = desired.get(key);
        match *state {
            AttemptState::Preparing | AttemptState::Ended(CleaningState::UnderWay) => {}
            AttemptState::Running { stop_asked, limit_ms } => {
                if !stop_asked && want.is_none_or(|w| w.stop) {
                    out.push(Effect::Stop(key.clone()));
                } else if let Some(w) = want.filter(|w| w.limit_ms != limit_ms) {
                    out.push(Effect::Limit(key.clone(), w.limit_ms));
                }
            }
            AttemptState::Ended(CleaningState::Due) => out.push(Effect::Clean(key.clone())),
            AttemptState::Ended(CleaningState::Done) => {
                if want.is_none() {
                    out.push(Effect::Forget(key.clone()));
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: u32) -> AttemptKey {
        AttemptKey { job: "job".to_owned(), number }
    }

    #[test]
    fn each_situation_has_its_effect() {
        let want = |stop, startable| DesiredAttempt { stop, limit_ms: 9, startable };
        let running = AttemptState::Running { stop_asked: false, limit_ms: 9 };
        let cases = [
            (Some(want(false, true)), None, vec![Effect::Prepare(key(1))]),
            (Some(want(true, true)), None, vec![Effect::Refuse { key: key(1), lost: false }]),
            (Some(want(false, false)), None, vec![Effect::Refuse { key: key(1), lost: true }]),
            (Some(want(false, false)), Some(running), vec![]),
            (Some(want(true, false)), Some(running), vec![Effect::Stop(key(1))]),
            (None, Some(running), vec![Effect::Stop(key(1))]),
            (
                Some(DesiredAttempt { limit_ms: 11, ..want(false, false) }),
                Some(running),
                vec![Effect::Limit(key(1), 11)],
            ),
            (Some(want(true, false)), Some(AttemptState::Preparing), vec![]),
            (None, Some(AttemptState::Ended(CleaningState::Due)), vec![Effect::Clean(key(1))]),
            (Some(want(false, false)), Some(AttemptState::Ended(CleaningState::Done)), vec![]),
            (None, Some(AttemptState::Ended(CleaningState::Done)), vec![Effect::Forget(key(1))]),
        ];
        for (want, state, effects) in cases {
            let desired = want.map(|w| (key(1), w)).into_iter().collect();
            let now = state.map(|s| (key(1), s)).into_iter().collect();
            assert_eq!(converge(&desired, &now), effects, "{want:?} {state:?}");
        }
    }

    /// The state after an effect.
    fn after(
        present: &mut BTreeMap<AttemptKey, AttemptState>,
        effect: Effect,
        desired: &BTreeMap<AttemptKey, DesiredAttempt>,
    ) {
        match effect {
            Effect::Prepare(key) => {
                let limit_ms = desired[&key].limit_ms;
                present.insert(key, AttemptState::Running { stop_asked: false, limit_ms });
            }
            Effect::Refuse { key, .. } | Effect::Clean(key) => {
                present.insert(key, AttemptState::Ended(CleaningState::Done));
            }
            Effect::Stop(key) => {
                present.insert(key, AttemptState::Ended(CleaningState::Due));
            }
            Effect::Limit(key, limit_ms) => {
                present.insert(key, AttemptState::Running { stop_asked: false, limit_ms });
            }
            Effect::Forget(key) => {
                present.remove(&key);
            }
        }
    }

    proptest! {
        #[test]
        fn it_settles_on_what_is_wanted(wants in prop::collection::btree_map(0u32..6, (any::<bool>(), 1i64..4, any::<bool>()), 0..6),
                                        have in prop::collection::btree_map(0u32..6, 0u8..4, 0..6)) {
            let desired: BTreeMap<AttemptKey, DesiredAttempt> = wants.into_iter()
                .map(|(n, (stop, limit_ms, startable))| (key(n), DesiredAttempt { stop, limit_ms, startable })).collect();
            let mut present: BTreeMap<AttemptKey, AttemptState> = have.into_iter().map(|(n, kind)| (key(n), match kind {
                0 => AttemptState::Running { stop_asked: false, limit_ms: 2 },
                1 => AttemptState::Ended(CleaningState::Due),
                _ => AttemptState::Ended(CleaningState::Done),
            })).collect();
            for _ in 0..5 {
                for effect in converge(&desired, &present) {
                    after(&mut present, effect, &desired);
                }
            }
            prop_assert_eq!(converge(&desired, &present), vec![]);
            prop_assert!(present.keys().eq(desired.keys()), "nothing is left that is not wanted");
        }
    }
}
