//! Retention of the checkpoints of a rank.

use berth_types::files::FileState;

/// The indices of the checkpoints to remove, in a list with the newest first.
///
/// Removed are whole checkpoints beyond the `keep` newest, partial ones older than a whole one, and refused
/// ones older than all that stay.
pub fn outdated(newest_first: &[FileState], keep: usize) -> Vec<usize> {
    let (mut whole, mut out) = (0, Vec::new());
    for (index, state) in newest_first.iter().enumerate() {
        match state {
            FileState::Complete => {
                whole += 1;
                if whole > keep {
                    out.push(index);
                }
            }
            FileState::Partial if whole > 0 => out.push(index),
            FileState::Refused if whole >= keep => out.push(index),
            FileState::Partial | FileState::Refused | FileState::Gone => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use FileState::{Complete as C, Gone as G, Partial as P, Refused as R};
    use proptest::prelude::*;

    #[test]
    fn the_newest_whole_ones_stay() {
        assert_eq!(outdated(&[C, C, C], 2), [2]);
        assert_eq!(outdated(&[P, C, P, C, R, C], 2), [2, 4, 5], "what is under way now stays");
        assert!(
            outdated(&[C, R, C, G], 2).is_empty(),
            "why the older one was restored stays as long as that"
        );
        assert!(outdated(&[R, P], 2).is_empty(), "nothing newer is whole");
        assert!(outdated(&[G, C], 2).is_empty());
    }

    proptest! {
        #[test]
        fn the_newest_whole_one_is_never_given_up(kinds in prop::collection::vec(0u8..4, 0..12), keep in 1usize..5) {
            let states: Vec<FileState> = kinds.iter().map(|k| [C, P, R, G][usize::from(*k)]).collect();
            let out = outdated(&states, keep);
            let whole: Vec<usize> = (0..states.len()).filter(|i| states[*i] == C).collect();
            prop_assert!(whole.iter().take(keep).all(|i| !out.contains(i)));
            prop_assert!(whole.iter().skip(keep).all(|i| out.contains(i)));
        }
    }
}
