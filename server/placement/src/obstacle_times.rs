//! The times at which bookings and runs on some nodes begin and end: the only ones at which a window can become free.

use berth_types::time::Timestamp;

use crate::calendar::{Booking, Calendar};
use crate::cluster::{Cluster, NodeIx};

/// The times at which obstacles begin and end, each in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObstacleTimes {
    begins: Vec<Timestamp>,
    ends: Vec<Timestamp>,
}

impl ObstacleTimes {
    /// The times of the bookings and runs on some nodes. `nodes` is in ascending order.
    pub fn on(cluster: &Cluster, calendar: &Calendar, nodes: &[NodeIx]) -> Self {
        let is_here = |b: &&Booking| b.places.iter().any(|p| nodes.binary_search(&p.node).is_ok());
        let spans = calendar.iter().filter(is_here).map(|b| (b.from, b.until));
        let (mut begins, mut ends): (Vec<Timestamp>, Vec<Timestamp>) = spans.unzip();
        // The calendar does not contain runs, and none begins later.
        let ranks = nodes.iter().filter_map(|n| cluster.node(*n)).flat_map(|n| &n.ranks);
        ends.extend(ranks.filter_map(|r| r.ends_by));
        for times in [&mut begins, &mut ends] {
            times.sort_unstable();
            times.dedup();
        }
        Self { begins, ends }
    }

    /// The first end after a time.
    pub fn next_end(&self, after: Timestamp) -> Option<Timestamp> {
        self.ends.get(self.ends.partition_point(|end| *end <= after)).copied()
    }

    /// The last begin before a time.
    pub fn last_begin(&self, before: Timestamp) -> Option<Timestamp> {
        self.begins.get(..self.begins.partition_point(|begin| *begin < before))?.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_end_and_the_last_begin_leave_out_the_time_itself() {
        let at = Timestamp::from_micros;
        let times = ObstacleTimes { begins: vec![at(1), at(5)], ends: vec![at(3), at(7)] };
        assert_eq!([0, 3, 7].map(|t| times.next_end(at(t))), [Some(at(3)), Some(at(7)), None]);
        assert_eq!([1, 5, 9].map(|t| times.last_begin(at(t))), [None, Some(at(1)), Some(at(5))]);
    }
}
