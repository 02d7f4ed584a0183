//! What to do next: what must be and what is in, effects out.
//!
//! Pure: no clock, no IO, no async. It is asked again after every change, so an effect that was
//! lost or only half done is simply decided again.

use std::collections::BTreeMap;

/// One try of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub job: String,
    pub number: u32,
}

/// What the portal wants of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub stop: bool,
    pub limit_ms: i64,
    /// Its specification came along, so it may be started here.
    pub startable: bool,
}

/// How an attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Devices and directory are being made.
    Preparing,
    Running {
        stop_asked: bool,
        limit_ms: i64,
    },
    Ended(Cleaning),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleaning {
    Due,
    UnderWay,
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Make devices and directory, then start it.
    Prepare(Key),
    /// Record that it never ran here. `lost`: the portal believes that it did.
    Refuse {
        key: Key,
        lost: bool,
    },
    Stop(Key),
    Limit(Key, i64),
    /// Prove its devices clean.
    Clean(Key),
    /// Remove everything about it.
    Forget(Key),
}

/// The effects that bring `seen` closer to `wanted`.
pub fn converge(wanted: &BTreeMap<Key, Wanted>, seen: &BTreeMap<Key, Seen>) -> Vec<Effect> {
    let mut out = Vec::new();
    for (key, want) in wanted {
        if seen.contains_key(key) {
            continue;
        }
        out.push(if want.startable && !want.stop {
            Effect::Prepare(key.clone())
        } else {
            Effect::Refuse { key: key.clone(), lost: !want.startable }
        });
    }
    for (key, state) in seen {
        let want = wanted.get(key);
        match *state {
            Seen::Preparing | Seen::Ended(Cleaning::UnderWay) => {}
            Seen::Running { stop_asked, limit_ms } => {
                if !stop_asked && want.is_none_or(|w| w.stop) {
                    out.push(Effect::Stop(key.clone()));
                } else if let Some(w) = want.filter(|w| w.limit_ms != limit_ms) {
                    out.push(Effect::Limit(key.clone(), w.limit_ms));
                }
            }
            Seen::Ended(Cleaning::Due) => out.push(Effect::Clean(key.clone())),
            Seen::Ended(Cleaning::Done) => {
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

    fn key(number: u32) -> Key {
        Key { job: "job".to_owned(), number }
    }

    #[test]
    fn each_situation_has_its_effect() {
        let want = |stop, startable| Wanted { stop, limit_ms: 9, startable };
        let running = Seen::Running { stop_asked: false, limit_ms: 9 };
        let cases = [
            (Some(want(false, true)), None, vec![Effect::Prepare(key(1))]),
            (Some(want(true, true)), None, vec![Effect::Refuse { key: key(1), lost: false }]),
            (Some(want(false, false)), None, vec![Effect::Refuse { key: key(1), lost: true }]),
            (Some(want(false, false)), Some(running), vec![]),
            (Some(want(true, false)), Some(running), vec![Effect::Stop(key(1))]),
            (None, Some(running), vec![Effect::Stop(key(1))]),
            (
                Some(Wanted { limit_ms: 11, ..want(false, false) }),
                Some(running),
                vec![Effect::Limit(key(1), 11)],
            ),
            (Some(want(true, false)), Some(Seen::Preparing), vec![]),
            (None, Some(Seen::Ended(Cleaning::Due)), vec![Effect::Clean(key(1))]),
            (Some(want(false, false)), Some(Seen::Ended(Cleaning::Done)), vec![]),
            (None, Some(Seen::Ended(Cleaning::Done)), vec![Effect::Forget(key(1))]),
        ];
        for (want, seen, effects) in cases {
            let wanted = want.map(|w| (key(1), w)).into_iter().collect();
            let now = seen.map(|s| (key(1), s)).into_iter().collect();
            assert_eq!(converge(&wanted, &now), effects, "{want:?} {seen:?}");
        }
    }

    /// How an attempt is after an effect was carried out.
    fn after(seen: &mut BTreeMap<Key, Seen>, effect: Effect, wanted: &BTreeMap<Key, Wanted>) {
        match effect {
            Effect::Prepare(key) => {
                let limit_ms = wanted[&key].limit_ms;
                seen.insert(key, Seen::Running { stop_asked: false, limit_ms });
            }
            Effect::Refuse { key, .. } | Effect::Clean(key) => {
                seen.insert(key, Seen::Ended(Cleaning::Done));
            }
            Effect::Stop(key) => {
                seen.insert(key, Seen::Ended(Cleaning::Due));
            }
            Effect::Limit(key, limit_ms) => {
                seen.insert(key, Seen::Running { stop_asked: false, limit_ms });
            }
            Effect::Forget(key) => {
                seen.remove(&key);
            }
        }
    }

    proptest! {
        #[test]
        fn it_settles_on_what_is_wanted(wants in prop::collection::btree_map(0u32..6, (any::<bool>(), 1i64..4, any::<bool>()), 0..6),
                                        have in prop::collection::btree_map(0u32..6, 0u8..4, 0..6)) {
            let wanted: BTreeMap<Key, Wanted> = wants.into_iter()
                .map(|(n, (stop, limit_ms, startable))| (key(n), Wanted { stop, limit_ms, startable })).collect();
            let mut seen: BTreeMap<Key, Seen> = have.into_iter().map(|(n, kind)| (key(n), match kind {
                0 => Seen::Running { stop_asked: false, limit_ms: 2 },
                1 => Seen::Ended(Cleaning::Due),
                _ => Seen::Ended(Cleaning::Done),
            })).collect();
            for _ in 0..5 {
                for effect in converge(&wanted, &seen) {
                    after(&mut seen, effect, &wanted);
                }
            }
            prop_assert_eq!(converge(&wanted, &seen), vec![]);
            prop_assert!(seen.keys().eq(wanted.keys()), "nothing is left that is not wanted");
        }
    }
}
