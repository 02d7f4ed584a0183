//! A timeline: the taken amount at each time, in a tree with logarithmic queries.
//!
//! The tree is a treap by time. Each point holds the change of the level at its time. Each subtree holds the
//! sum of its changes and the least and greatest of its running sums. The planner of Fluxion has resource
//! points for the same purpose. The timeline must not know the kind of the amounts.

use berth_types::time::Timestamp;

/// The index of no node.
const NIL: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Point {
    at: Timestamp,
    change: i64,
    rank: u64,
    left: u32,
    right: u32,
    /// The sum of the changes of the whole subtree.
    sum: i64,
    /// The least and greatest of the running sums after each point of the subtree, in order.
    least: i64,
    most: i64,
}

/// A condition on a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LevelBound {
    AtMost(i64),
    Above(i64),
}

impl LevelBound {
    const fn matches(self, level: i64) -> bool {
        match self {
            Self::AtMost(x) => level <= x,
            Self::Above(x) => level > x,
        }
    }

    /// Returns false if no point of a subtree can match, for a level of `before` ahead of the subtree.
    const fn may_match(self, before: i64, point: &Point) -> bool {
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

/// A pseudorandom rank from a time, so that the tree is balanced for any times.
fn rank(at: Timestamp) -> u64 {
    let mut x = at.micros().cast_unsigned().wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Timeline {
    /// Takes an amount during a span; a negative amount is released.
    pub fn add(&mut self, from: Timestamp, until: Timestamp, amount: i64) {
        if from < until && amount != 0 {
            self.change(from, amount);
            self.change(until, -amount);
        }
    }

    /// The taken amount at a time.
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

    /// The first time, `from` itself or a later point, whose level matches.
    pub fn first(&self, from: Timestamp, bound: LevelBound) -> Option<Timestamp> {
        if bound.matches(self.level(from)) {
            return Some(from);
        }
        self.first_after(self.root, 0, from, bound)
    }

    /// The last point before a time whose level matches.
    pub fn last(&self, before: Timestamp, bound: LevelBound) -> Option<Timestamp> {
        self.last_before(self.root, 0, before, bound)
    }

    /// The first point after a time.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.first_after(self.root, 0, after, LevelBound::AtMost(i64::MAX))
    }

    /// Returns true if the level never exceeds `limit` during a span.
    pub fn stays(&self, from: Timestamp, until: Timestamp, limit: i64) -> bool {
        self.first(from, LevelBound::Above(limit)).is_none_or(|at| at >= until)
    }

    /// The first begin, at or after `from`, of a span of this length whose level never exceeds `limit`.
    pub fn earliest(&self, mut from: Timestamp, length_micros: i64, limit: i64) -> Option<Timestamp> {
        loop {
            from = self.first(from, LevelBound::AtMost(limit))?;
            let until = Timestamp::from_micros(from.micros().saturating_add(length_micros));
            match self.first(from, LevelBound::Above(limit)) {
                Some(above) if above < until => from = above,
                _ => return Some(from),
            }
        }
    }

    /// The last begin of such a span that ends at or before `until` and begins at or after `least`.
    pub fn latest(
        &self,
        mut until: Timestamp,
        length_micros: i64,
        limit: i64,
        least: Timestamp,
    ) -> Option<Timestamp> {
        loop {
            let from = Timestamp::from_micros(until.micros().saturating_sub(length_micros));
            if from < least {
                return None;
            }
            if self.stays(from, until, limit) {
                return Some(from);
            }
            // The span must end at the begin of the last stretch with too high a level.
            let above = self.last(until, LevelBound::Above(limit))?;
            let below = self.last(above, LevelBound::AtMost(limit));
            until = match below.and_then(|at| self.next(at)) {
                Some(begins) if begins < until => begins,
                // The level is too high from the first point on.
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

    fn first_after(&self, node: u32, before: i64, after: Timestamp, bound: LevelBound) -> Option<Timestamp> {
        let point = self.get(node)?;
        if !bound.may_match(before, point) {
            return None;
        }
        let here = before + self.sum(point.left) + point.change;
        if point.at > after {
            if let Some(found) = self.first_after(point.left, before, after, bound) {
                return Some(found);
            }
            if bound.matches(here) {
                return Some(point.at);
            }
        }
        self.first_after(point.right, here, after, bound)
    }

    fn last_before(&self, node: u32, before: i64, end: Timestamp, bound: LevelBound) -> Option<Timestamp> {
        let point = self.get(node)?;
        if !bound.may_match(before, point) {
            return None;
        }
        let here = before + self.sum(point.left) + point.change;
        if point.at < end {
            if let Some(found) = self.last_before(point.right, here, end, bound) {
                return Some(found);
            }
            if bound.matches(here) {
                return Some(point.at);
            }
        }
        self.last_before(point.left, before, end, bound)
    }

    /// Recomputes the sums of a node from its children.
    fn recompute(&mut self, node: u32) {
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
            self.recompute(here);
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

    /// Splits a subtree into the points before a time (`inclusive`: up to that time) and the rest.
    fn split(&mut self, node: u32, at: Timestamp, inclusive: bool) -> (u32, u32) {
        let Some(point) = self.get(node).copied() else { return (NIL, NIL) };
        if point.at < at || inclusive && point.at == at {
            let (left, right) = self.split(point.right, at, inclusive);
            if let Some(p) = self.points.get_mut(node as usize) {
                p.right = left;
            }
            self.recompute(node);
            (node, right)
        } else {
            let (left, right) = self.split(point.left, at, inclusive);
            if let Some(p) = self.points.get_mut(node as usize) {
                p.left = right;
            }
            self.recompute(node);
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
            self.recompute(left);
            left
        } else {
            let below = self.merge(left, r.left);
            if let Some(p) = self.points.get_mut(right as usize) {
                p.left = below;
            }
            self.recompute(right);
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

    /// The same amounts in a list, searched at every time.
    struct LinearTimeline(Vec<(i64, i64, i64)>);

    impl LinearTimeline {
        fn level(&self, t: i64) -> i64 {
            self.0.iter().filter(|(from, until, _)| *from <= t && t < *until).map(|(.., n)| n).sum()
        }
        fn stays(&self, from: i64, until: i64, limit: i64) -> bool {
            (from..until).all(|t| self.level(t) <= limit)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn answers_equal_those_of_a_linear_scan(
            spans in prop::collection::vec((0i64..40, 1i64..15, 1i64..4), 0..20),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            from in 0i64..50, length in 1i64..12, limit in 0i64..6,
        ) {
            let mut linear = LinearTimeline(Vec::new());
            let mut tree = Timeline::default();
            for (from, length, amount) in spans {
                linear.0.push((from, from + length, amount));
                tree.add(at(from), at(from + length), amount);
            }
            for index in removed {
                if !linear.0.is_empty() {
                    let (from, until, amount) = linear.0.remove(index.index(linear.0.len()));
                    tree.add(at(from), at(until), -amount);
                }
            }
            for t in 0..60 {
                prop_assert_eq!(tree.level(at(t)), linear.level(t), "at {}", t);
            }
            let until = from + length;
            prop_assert_eq!(tree.stays(at(from), at(until), limit), linear.stays(from, until, limit));
            let first = (from..200).find(|t| linear.stays(*t, t + length, limit));
            prop_assert_eq!(tree.earliest(at(from), length, limit), first.map(at));
            let last = (0..=from - length).rev().find(|t| linear.stays(*t, t + length, limit));
            prop_assert_eq!(tree.latest(at(from), length, limit, at(0)), last.map(at));
            if linear.0.is_empty() {
                prop_assert_eq!(tree.root, NIL);
            }
        }
    }
}
