//! The planner of MIG instances: the choice of the start of the next instance.
//!
//! The chosen start is the one after which the most sets of further instances are possible, and on a tie the
//! highest. Live instances are never moved.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::board::{Board, Profile};

/// A GPU instance on a board: a profile id at a start slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Instance {
    pub profile_id: u32,
    pub start: u32,
}

/// The reason for which an instance cannot be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Illegal {
    UnknownProfile,
    /// The profile may not start at that slice.
    Start,
    /// A live instance is in the way.
    Overlap,
    /// The board has its greatest number of instances of the profile.
    Count,
    /// The media extension of the board is in use.
    Group,
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownProfile => "the board has no such profile",
            Self::Start => "the profile cannot start at that slice",
            Self::Overlap => "a live instance occupies these slices",
            Self::Count => "the board allows no further instance of this profile",
            Self::Group => "the board's media engine is taken",
        })
    }
}

const fn bits(start: u32, size: u32) -> u32 {
    // Boards have at most eight slices, so the shifts stay inside 32 bits for every legal value.
    if start >= 16 || size > 16 { u32::MAX } else { ((1 << size) - 1) << start }
}

fn occupied(board: &Board, live: &[Instance]) -> u32 {
    live.iter()
        .map(|i| board.profile(i.profile_id).map_or(u32::MAX, |p| bits(i.start, p.size)))
        .fold(0, |mask, bits| mask | bits)
}

/// Checks the creation of `new` beside the instances `live`.
///
/// # Errors
/// [`Illegal`] with the reason.
pub fn legal(board: &Board, live: &[Instance], new: Instance) -> Result<(), Illegal> {
    let profile = board.profile(new.profile_id).ok_or(Illegal::UnknownProfile)?;
    if !profile.starts.contains(&new.start) {
        return Err(Illegal::Start);
    }
    if occupied(board, live) & bits(new.start, profile.size) != 0 {
        return Err(Illegal::Overlap);
    }
    let count = |test: &dyn Fn(&Profile) -> bool| {
        live.iter().filter(|i| board.profile(i.profile_id).is_some_and(test)).count()
    };
    if count(&|p| p.id == profile.id) >= profile.max as usize {
        return Err(Illegal::Count);
    }
    if profile.group.is_some() && count(&|p| p.group == profile.group) > 0 {
        return Err(Illegal::Group);
    }
    Ok(())
}

/// The number of sets of further instances that fit into the free slices beside `live`, the empty set
/// included.
///
/// Media variants do not count, because they have the geometry of their plain profile.
pub fn completions(board: &Board, live: &[Instance]) -> u64 {
    completions_of(board, occupied(board, live))
}

/// The same for the occupied slices `mask`.
pub(crate) fn completions_of(board: &Board, mask: u32) -> u64 {
    let plain: Vec<&Profile> = board
        .profiles
        .iter()
        .filter(|p| p.group.is_none() && !p.name.contains('+') && !p.name.ends_with("-me"))
        .collect();
    // ways[s] = sets of instances that start at slice s or later.
    let slices = board.memory_slices;
    let mut ways = vec![1u64; slices as usize + 1];
    for start in (0..slices).rev() {
        let mut sum = ways.get(start as usize + 1).copied().unwrap_or(1);
        for profile in &plain {
            if profile.starts.contains(&start) && mask & bits(start, profile.size) == 0 {
                sum += ways.get((start + profile.size) as usize).copied().unwrap_or(0);
            }
        }
        if let Some(slot) = ways.get_mut(start as usize) {
            *slot = sum;
        }
    }
    ways.first().copied().unwrap_or(1)
}

/// Chooses the start of one more instance of `profile_id`. Returns the start and the completions after it.
pub fn choose(board: &Board, live: &[Instance], profile_id: u32) -> Option<(u32, u64)> {
    let profile = board.profile(profile_id)?;
    let mask = occupied(board, live);
    profile
        .starts
        .iter()
        .filter(|start| legal(board, live, Instance { profile_id, start: **start }).is_ok())
        .map(|start| (completions_of(board, mask | bits(*start, profile.size)), *start))
        .max()
        .map(|(completions, start)| (start, completions))
}

/// The number of further instances of one profile that fit, if no other instance is created.
pub fn room_for(board: &Board, live: &[Instance], profile_id: u32) -> u32 {
    let mut live = live.to_vec();
    let mut room = 0;
    // Instances of one profile have one size, and its starts never overlap partially on known boards. So each
    // legal start is part of a maximum packing.
    while let Some(profile) = board.profile(profile_id) {
        let fits =
            profile.starts.iter().find(|s| legal(board, &live, Instance { profile_id, start: **s }).is_ok());
        let Some(start) = fits else { break };
        live.push(Instance { profile_id, start: *start });
        room += 1;
    }
    room
}

/// The free slices that no profile can use in the present state of the board.
pub fn blocked_slices(board: &Board, live: &[Instance]) -> Vec<u32> {
    let mask = occupied(board, live);
    let mut usable = 0;
    for profile in &board.profiles {
        for start in &profile.starts {
            if legal(board, live, Instance { profile_id: profile.id, start: *start }).is_ok() {
                usable |= bits(*start, profile.size);
            }
        }
    }
    (0..board.memory_slices).filter(|s| (mask | usable) & (1 << s) == 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{board_by_name, boards};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn h100() -> &'static Board {
        board_by_name("H100-80GB").unwrap()
    }

    fn id(board: &Board, name: &str) -> u32 {
        board.profile_by_name(name).unwrap().id
    }

    #[test]
    fn completions_equal_counting_every_set() {
        fn brute(board: &Board, live: &mut Vec<Instance>, from: usize, all: &[Instance]) -> u64 {
            let mut sum = 1;
            for (i, new) in all.iter().enumerate().skip(from) {
                if legal(board, live, *new).is_ok() {
                    live.push(*new);
                    sum += brute(board, live, i + 1, all);
                    live.pop();
                }
            }
            sum
        }
        let every = |board: &Board| -> Vec<Instance> {
            let starts = |p: &Profile| {
                p.starts.iter().map(|s| Instance { profile_id: p.id, start: *s }).collect::<Vec<_>>()
            };
            board.profiles.iter().flat_map(starts).collect()
        };
        // With the media variants, the number of placed states that NVIDIA's table allows.
        assert_eq!(brute(h100(), &mut vec![], 0, &every(h100())), 2_319);
        for board in ["H100-80GB", "A30"].map(|n| board_by_name(n).unwrap()) {
            let all: Vec<Instance> = board
                .profiles
                .iter()
                .filter(|p| p.group.is_none())
                .flat_map(|p| p.starts.iter().map(|s| Instance { profile_id: p.id, start: *s }))
                .collect();
            assert_eq!(brute(board, &mut vec![], 0, &all), completions(board, &[]));
            for first in &all {
                assert_eq!(
                    brute(board, &mut vec![*first], 0, &all),
                    completions(board, &[*first]),
                    "{first:?}"
                );
            }
        }
    }

    #[test]
    fn seven_small_ones_fit_and_leave_the_last_slice_blocked() {
        let board = h100();
        let small = id(board, "1g.10gb");
        let mut live = vec![];
        while let Some((start, _)) = choose(board, &live, small) {
            live.push(Instance { profile_id: small, start });
        }
        assert_eq!(live.iter().map(|i| i.start).collect::<BTreeSet<_>>(), (0..7).collect());
        assert_eq!(blocked_slices(board, &live), [7]);
        assert_eq!(legal(board, &live, Instance { profile_id: small, start: 3 }), Err(Illegal::Overlap));
    }

    #[test]
    fn the_first_small_one_leaves_room_for_the_largest_rest() {
        let board = h100();
        let small = id(board, "1g.10gb");
        let (start, _) = choose(board, &[], small).unwrap();
        assert_eq!(start, 6, "beside the slice that small ones cannot use");
        let live = [Instance { profile_id: small, start }];
        assert_eq!(choose(board, &live, id(board, "4g.40gb")).map(|c| c.0), Some(0));
    }

    #[test]
    fn one_media_extension_a_board() {
        let board = h100();
        let media = id(board, "1g.10gb+me");
        let live = [Instance { profile_id: media, start: 0 }];
        assert_eq!(legal(board, &live, Instance { profile_id: media, start: 1 }), Err(Illegal::Count));
        assert_eq!(legal(board, &live, Instance { profile_id: 999, start: 1 }), Err(Illegal::UnknownProfile));
        assert_eq!(legal(board, &live, Instance { profile_id: 9, start: 3 }), Err(Illegal::Start));
    }

    proptest! {
        #[test]
        fn what_is_chosen_is_legal_and_best(board in 0..boards().len(), picks in prop::collection::vec(0usize..16, 0..12)) {
            let board = &boards()[board];
            let mut live: Vec<Instance> = vec![];
            for pick in picks {
                let profile = &board.profiles[pick % board.profiles.len()];
                let legal_starts: Vec<u32> = profile.starts.iter().copied()
                    .filter(|s| legal(board, &live, Instance { profile_id: profile.id, start: *s }).is_ok()).collect();
                match choose(board, &live, profile.id) {
                    None => prop_assert!(legal_starts.is_empty() && room_for(board, &live, profile.id) == 0),
                    Some((start, after)) => {
                        prop_assert!(legal_starts.contains(&start));
                        live.push(Instance { profile_id: profile.id, start });
                        prop_assert_eq!(after, completions(board, &live));
                        for other in legal_starts {
                            let mut instead = live.clone();
                            instead.pop();
                            instead.push(Instance { profile_id: profile.id, start: other });
                            prop_assert!(completions(board, &instead) <= after);
                        }
                    }
                }
            }
        }

        #[test]
        fn no_input_panics(profile_id: u32, start: u32, more: u32) {
            let live = [Instance { profile_id, start }, Instance { profile_id: more, start: start.wrapping_add(more) }];
            for board in boards() {
                let _ = (legal(board, &live, Instance { profile_id, start }), choose(board, &live, profile_id), blocked_slices(board, &live));
            }
        }
    }
}
