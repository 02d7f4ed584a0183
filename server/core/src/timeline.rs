//! How much is taken at each time, in a tree that answers in logarithmic time.
//!
//! A treap by time: each point holds by how much the level changes there, and each subtree the sum of
//! its changes with the least and the greatest of its running sums. Fluxion's planner keeps resource
//! points for the same purpose. Must not know what is taken: it is numbers over time.

use berth_types::time::Timestamp;

/// No node.
const NIL: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Point {
    at: Timestamp,
    change: i64,
    rank: u64,
    left: u32,
    right: u32,
    /// Of the whole subtree.
    sum: i64,
    /// Of the running sums after each of its points, in order.
    least: i64,
    most: i64,
}

/// What is looked for in a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    AtMost(i64),
    Above(i64),
}

impl Level {
    const fn is(self, level: i64) -> bool {
        match self {
            Self::AtMost(x) => level <= x,
            Self::Above(x) => level > x,
        }
    }

    /// Whether some point of a subtree can have it.
    const fn within(self, before: i64, point: &Point) -> bool {
        match self {
            Self::AtMost(x) => before + point.least <= x,
            Self::Above(x) => before + point.most > x,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Timeline {
    points: Vec<Point>,
    free: Vec<u32>,
    root: u32,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { points: Vec::new(), free: Vec::new(), root: NIL }
    }
}

/// Spreads times evenly, so that the tree is balanced whatever they are.
fn rank(at: Timestamp) -> u64 {
    let mut x = at.micros().cast_unsigned().wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Timeline {
    /// Takes (or with a negative amount gives back) from one time until another.
    pub fn add(&mut self, from: Timestamp, until: Timestamp, amount: i64) {
        if from < until && amount != 0 {
            self.change(from, amount);
            self.change(until, -amount);
        }
    }

    /// What is taken at a time.
    pub fn level(&self, at: Timestamp) -> i64 {
        let (mut node, mut level) = (self.root, 0);
        while let Some(point) = self.get(node) {
            if point.at <= at {
                level += self.sum(point.left) + point.change;
                node = point.right;
            } else {
                node = point.left;
            }
        }
        level
    }

    /// The first time, `from` itself or a later point, at which the level is such.
    pub fn first(&self, from: Timestamp, such: Level) -> Option<Timestamp> {
        if such.is(self.level(from)) {
            return Some(from);
        }
        self.first_after(self.root, 0, from, such)
    }

    /// The last point before a time after which the level is such.
    pub fn last(&self, before: Timestamp, such: Level) -> Option<Timestamp> {
        self.last_before(self.root, 0, before, such)
    }

    /// The first point after a time.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.first_after(self.root, 0, after, Level::AtMost(i64::MAX))
    }

    /// Whether the level stays at or below `most` from one time until another.
    pub fn stays(&self, from: Timestamp, until: Timestamp, most: i64) -> bool {
        self.first(from, Level::Above(most)).is_none_or(|at| at >= until)
    }

    /// The first begin, at or after `from`, of a time of this length in which the level stays at or
    /// below `most`.
    pub fn earliest(&self, mut from: Timestamp, length_micros: i64, most: i64) -> Option<Timestamp> {
        loop {
            from = self.first(from, Level::AtMost(most))?;
            let until = Timestamp::from_micros(from.micros().saturating_add(length_micros));
            match self.first(from, Level::Above(most)) {
                Some(above) if above < until => from = above,
                _ => return Some(from),
            }
        }
    }

    /// The last begin of such a time that ends at or before `until` and does not begin before `least`.
    pub fn latest(
        &self,
        mut until: Timestamp,
        length_micros: i64,
        most: i64,
        least: Timestamp,
    ) -> Option<Timestamp> {
        loop {
            let from = Timestamp::from_micros(until.micros().saturating_sub(length_micros));
            if from < least {
                return None;
            }
            if self.stays(from, until, most) {
                return Some(from);
            }
            // It must end where the last stretch begins on which too much is taken.
            let above = self.last(until, Level::Above(most))?;
            let below = self.last(above, Level::AtMost(most));
            until = match below.and_then(|at| self.next(at)) {
                Some(begins) if begins < until => begins,
                // Too much is taken from the first point on.
                _ => self.next(Timestamp::from_micros(i64::MIN)).filter(|first| *first < until)?,
            };
        }
    }

    fn get(&self, node: u32) -> Option<&Point> {
        self.points.get(node as usize)
    }

    fn sum(&self, node: u32) -> i64 {
        self.get(node).map_or(0, |p| p.sum)
    }

    fn first_after(&self, node: u32, before: i64, after: Timestamp, such: Level) -> Option<Timestamp> {
        let point = self.get(node)?;
        if !such.within(before, point) {
            return None;
        }
        let here = before + self.sum(point.left) + point.change;
        if point.at > after {
            if let Some(found) = self.first_after(point.left, before, after, such) {
                return Some(found);
            }
            if such.is(here) {
                return Some(point.at);
            }
        }
        self.first_after(point.right, here, after, such)
    }

    fn last_before(&self, node: u32, before: i64, end: Timestamp, such: Level) -> Option<Timestamp> {
        let point = self.get(node)?;
        if !such.within(before, point) {
            return None;
        }
        let here = before + self.sum(point.left) + point.change;
        if point.at < end {
            if let Some(found) = self.last_before(point.right, here, end, such) {
                return Some(found);
            }
            if such.is(here) {
                return Some(point.at);
            }
        }
        self.last_before(point.left, before, end, such)
    }

    /// Computes a node anew from its children.
    fn renew(&mut self, node: u32) {
        let Some(point) = self.get(node).copied() else { return };
        let left = self.sum(point.left);
        let here = left + point.change;
        let (mut least, mut most) = (here, here);
        if let Some(l) = self.get(point.left) {
            (least, most) = (least.min(l.least), most.max(l.most));
        }
        if let Some(r) = self.get(point.right) {
            (least, most) = (least.min(here + r.least), most.max(here + r.most));
        }
        let sum = here + self.sum(point.right);
        if let Some(point) = self.points.get_mut(node as usize) {
            (point.sum, point.least, point.most) = (sum, least, most);
        }
    }

    fn change(&mut self, at: Timestamp, change: i64) {
        let (before, rest) = self.split(self.root, at, false);
        let (mut here, after) = self.split(rest, at, true);
        let sum = self.sum(here) + change;
        if sum == 0 {
            if here != NIL {
                self.free.push(here);
                here = NIL;
            }
        } else if let Some(point) = self.points.get_mut(here as usize) {
            point.change = sum;
            self.renew(here);
        } else {
            here = self.point(at, sum);
        }
        let first = self.merge(before, here);
        self.root = self.merge(first, after);
    }

    fn point(&mut self, at: Timestamp, change: i64) -> u32 {
        let (left, right, rank) = (NIL, NIL, rank(at));
        let point = Point { at, change, rank, left, right, sum: change, least: change, most: change };
        match self.free.pop() {
            Some(node) => {
                if let Some(slot) = self.points.get_mut(node as usize) {
                    *slot = point;
                }
                node
            }
            None => {
                self.points.push(point);
                u32::try_from(self.points.len() - 1).unwrap_or(NIL)
            }
        }
    }

    /// What comes before a time (or, `with`, up to it), and the rest.
    fn split(&mut self, node: u32, at: Timestamp, with: bool) -> (u32, u32) {
        let Some(point) = self.get(node).copied() else { return (NIL, NIL) };
        if point.at < at || with && point.at == at {
            let (left, right) = self.split(point.right, at, with);
            if let Some(p) = self.points.get_mut(node as usize) {
                p.right = left;
            }
            self.renew(node);
            (node, right)
        } else {
            let (left, right) = self.split(point.left, at, with);
            if let Some(p) = self.points.get_mut(node as usize) {
                p.left = right;
            }
            self.renew(node);
            (left, node)
        }
    }

    fn merge(&mut self, left: u32, right: u32) -> u32 {
        let (Some(l), Some(r)) = (self.get(left).copied(), self.get(right).copied()) else {
            return if left == NIL { right } else { left };
        };
        if l.rank > r.rank {
            let below = self.merge(l.right, right);
            if let Some(p) = self.points.get_mut(left as usize) {
                p.right = below;
            }
            self.renew(left);
            left
        } else {
            let below = self.merge(left, r.left);
            if let Some(p) = self.points.get_mut(right as usize) {
                p.left = below;
            }
            self.renew(right);
            right
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(n: i64) -> Timestamp {
        Timestamp::from_micros(n)
    }

    /// The same, found by looking at every time.
    struct Plain(Vec<(i64, i64, i64)>);

    impl Plain {
        fn level(&self, t: i64) -> i64 {
            self.0.iter().filter(|(from, until, _)| *from <= t && t < *until).map(|(.., n)| n).sum()
        }
        fn stays(&self, from: i64, until: i64, most: i64) -> bool {
            (from..until).all(|t| self.level(t) <= most)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn it_answers_as_a_look_at_every_time_does(
            spans in prop::collection::vec((0i64..40, 1i64..15, 1i64..4), 0..20),
            gone in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            from in 0i64..50, length in 1i64..12, most in 0i64..6,
        ) {
            let mut plain = Plain(Vec::new());
            let mut tree = Timeline::default();
            for (from, length, amount) in spans {
                plain.0.push((from, from + length, amount));
                tree.add(at(from), at(from + length), amount);
            }
            for index in gone {
                if !plain.0.is_empty() {
                    let (from, until, amount) = plain.0.remove(index.index(plain.0.len()));
                    tree.add(at(from), at(until), -amount);
                }
            }
            for t in 0..60 {
                prop_assert_eq!(tree.level(at(t)), plain.level(t), "at {}", t);
            }
            prop_assert_eq!(tree.stays(at(from), at(from + length), most), plain.stays(from, from + length, most));
            let first = (from..200).find(|t| plain.stays(*t, t + length, most));
            prop_assert_eq!(tree.earliest(at(from), length, most), first.map(at));
            let last = (0..=from - length).rev().find(|t| plain.stays(*t, t + length, most));
            prop_assert_eq!(tree.latest(at(from), length, most, at(0)), last.map(at));
            if plain.0.is_empty() {
                prop_assert_eq!(tree.root, NIL);
            }
        }
    }
}
