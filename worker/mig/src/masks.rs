//! Lookup tables of a board by its occupied slices.
//!
//! A board has at most eight memory slices, so a table has 256 rows. The tables serve frequent lookups, such
//! as those of a scheduler. The rules are in `planner`.

use std::sync::OnceLock;

use crate::board::{Board, Profile, boards};
use crate::planner::completions_of;

/// Rows of a table: one for each set of occupied slices.
const ROWS: usize = 256;

/// The tables of one board.
#[derive(Debug)]
pub struct Masks {
    /// `starts[profile][mask]`: the free starts as bits.
    starts: Vec<[u8; ROWS]>,
    completions: [u32; ROWS],
    /// The exclusive group of each profile as a bit; 0 for none.
    groups: Vec<u8>,
}

fn span(start: u32, size: u32) -> u32 {
    ((1u32 << size.min(16)) - 1) << start.min(16)
}

/// The slices that an instance of this profile covers at this start.
pub fn cover(profile: &Profile, start: u32) -> u8 {
    u8::try_from(span(start, profile.size)).unwrap_or(u8::MAX)
}

impl Masks {
    fn new(board: &Board) -> Self {
        let row = |profile: &Profile| {
            let mut row = [0; ROWS];
            for (mask, free) in row.iter_mut().enumerate() {
                let fits = |s: &&u32| usize::from(cover(profile, **s)) & mask == 0;
                *free = profile.starts.iter().filter(fits).fold(0, |bits, s| bits | cover_bit(*s));
            }
            row
        };
        let mut completions = [0; ROWS];
        for (mask, count) in completions.iter_mut().enumerate() {
            let mask = u32::try_from(mask).unwrap_or(u32::MAX);
            *count = u32::try_from(completions_of(board, mask)).unwrap_or(u32::MAX);
        }
        let mut names: Vec<&String> = board.profiles.iter().filter_map(|p| p.group.as_ref()).collect();
        names.dedup();
        let bit = |group: &String| names.iter().position(|n| *n == group).map_or(0, |i| 1 << i.min(7));
        let groups = board.profiles.iter().map(|p| p.group.as_ref().map_or(0, bit)).collect();
        Self { groups, starts: board.profiles.iter().map(row).collect(), completions }
    }

    /// The starts at which a profile fits, as bits. `profile` is its index in the board's list.
    pub fn starts(&self, profile: usize, mask: u8) -> u8 {
        self.starts.get(profile).and_then(|row| row.get(usize::from(mask))).copied().unwrap_or(0)
    }

    /// The exclusive group of a profile as a bit; 0 for none.
    pub fn group(&self, profile: usize) -> u8 {
        self.groups.get(profile).copied().unwrap_or(0)
    }

    /// The number of sets of further instances that fit, the empty set included.
    pub fn completions(&self, mask: u8) -> u32 {
        self.completions.get(usize::from(mask)).copied().unwrap_or(0)
    }
}

fn cover_bit(start: u32) -> u8 {
    1u8.checked_shl(start).unwrap_or(0)
}

/// The tables of a board. `board` is its index in [`boards`].
pub fn masks(board: usize) -> Option<&'static Masks> {
    static MASKS: OnceLock<Vec<Masks>> = OnceLock::new();
    MASKS.get_or_init(|| boards().iter().map(Masks::new).collect()).get(board)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::{Instance, choose, completions, legal};
    use std::collections::{BTreeSet, HashSet};

    /// All sets of instances that single creations can reach.
    fn reachable(board: &Board) -> Vec<Vec<Instance>> {
        let mut seen: HashSet<BTreeSet<Instance>> = HashSet::new();
        let mut open = vec![BTreeSet::new()];
        while let Some(live) = open.pop() {
            if !seen.insert(live.clone()) {
                continue;
            }
            let now: Vec<Instance> = live.iter().copied().collect();
            for profile in &board.profiles {
                for start in &profile.starts {
                    let new = Instance { profile_id: profile.id, start: *start };
                    if legal(board, &now, new).is_ok() {
                        let mut next = live.clone();
                        next.insert(new);
                        open.push(next);
                    }
                }
            }
        }
        seen.into_iter().map(|live| live.into_iter().collect()).collect()
    }

    /// In each reachable state of each board the tables agree with the rules, and the planner's choice is the
    /// best of all starts.
    #[test]
    fn tables_and_planner_equal_brute_force_on_every_state() {
        for (index, board) in boards().iter().enumerate() {
            let tables = masks(index).unwrap();
            let states = reachable(board);
            if board.model == "H100-80GB" {
                assert_eq!(states.len(), 2_319);
            }
            for live in &states {
                let mask =
                    live.iter().fold(0, |m, i| m | cover(board.profile(i.profile_id).unwrap(), i.start));
                assert_eq!(u64::from(tables.completions(mask)), completions(board, live));
                let place = |i: &Instance| board.profiles.iter().position(|p| p.id == i.profile_id).unwrap();
                let taken = live.iter().fold(0, |bits, i| bits | tables.group(place(i)));
                for (place, profile) in board.profiles.iter().enumerate() {
                    let at = |start: &u32| Instance { profile_id: profile.id, start: *start };
                    let legal_starts: Vec<u32> = profile
                        .starts
                        .iter()
                        .copied()
                        .filter(|s| legal(board, live, at(s)).is_ok())
                        .collect();
                    let bits = legal_starts.iter().fold(0, |b, s| b | cover_bit(*s));
                    let free = if tables.group(place) & taken != 0 { 0 } else { tables.starts(place, mask) };
                    assert_eq!(free, bits, "{} {} beside {live:?}", board.model, profile.name);
                    let best = legal_starts.into_iter().map(|start| {
                        let mut after = live.clone();
                        after.push(at(&start));
                        (completions(board, &after), start)
                    });
                    let best = best.max().map(|(count, start)| (start, count));
                    assert_eq!(choose(board, live, profile.id), best);
                }
            }
        }
    }
}
