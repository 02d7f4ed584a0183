//! The cached costs of a large cluster while the demand model changes.

use crate::cluster::{Cluster, NodeIx};
use crate::demand::DemandTables;
use crate::scoring::{Reach, ScoringInput};
use crate::shape::Shape;
use crate::small_cluster::{cluster, hold, shape};

use super::{Finder, NO_FIT, REFRESHED, cost_on, slots};

/// The costs on all nodes by these tables, without a cache.
fn costs_by(cluster: &Cluster, shape: &Shape, demand: &DemandTables) -> Vec<(u64, NodeIx)> {
    let cx = ScoringInput { models: cluster.models(), demand };
    let costs = cluster.nodes().iter().map(|n| cost_on(&Reach, n.view(), shape, &cx));
    let nodes = (0..).map(NodeIx);
    costs.zip(nodes).filter(|(cost, _)| *cost != NO_FIT).collect()
}

/// Starts a shape on a node if it fits.
fn start(cluster: &mut Cluster, finder: &Finder<Reach>, node: NodeIx, number: u128, shape: &Shape) {
    let view = *cluster.node(node).unwrap().view();
    let Some(offer) = finder.offer(cluster, &view, shape) else { return };
    let slots = slots(cluster, node, shape, &offer);
    hold(cluster, node, number, shape, slots);
}

/// Costs by different tables cannot be compared: a request would go to the nodes whose costs happen to be from the
/// version that prices them lower.
#[test]
fn all_costs_of_a_shape_are_by_the_same_tables() {
    let nodes = u32::try_from(2 * REFRESHED + 100).unwrap();
    let mut cluster = cluster(nodes);
    let mut finder = Finder::new(Reach);
    // One board, which the two mixes below price differently: three boards with many processors, and shares.
    let (asked, mixes) = (shape(0, 1), [shape(16, 7), shape(2, 1)]);
    for node in (0..nodes).step_by(3) {
        let used = if node.is_multiple_of(2) { shape(0, 4) } else { shape(8, 2) };
        start(&mut cluster, &finder, NodeIx(node), u128::from(node), &used);
    }
    finder.observe(&asked, &cluster);
    finder.sync(&cluster, &asked);
    let mut versions = vec![std::sync::Arc::clone(finder.demand.tables())];
    let (mut older, mut number) = (0, u128::from(nodes));
    for (turn, mix) in mixes.iter().cycle().take(8).enumerate() {
        let known = finder.demand.tables().version();
        while finder.demand.tables().version() == known {
            finder.observe(mix, &cluster);
        }
        versions.push(std::sync::Arc::clone(finder.demand.tables()));
        // Later versions come before the costs by an earlier one are complete, or long after.
        for call in 0..1 + turn % 5 {
            finder.sync(&cluster, &asked);
            let cached = finder.all(&cluster, &asked);
            let by = versions.iter().rposition(|tables| costs_by(&cluster, &asked, tables) == cached);
            let by =
                by.unwrap_or_else(|| panic!("turn {turn}, call {call}: the costs are by several tables"));
            older += u32::from(by + 1 < versions.len());
            let best = finder.best(&cluster, &asked, &|_| true).unwrap();
            assert_eq!(Some(best), cached.iter().min().map(|(_, node)| *node));
            // The best node changes, and one in each part of the cluster.
            for node in [best, NodeIx(2), NodeIx(nodes / 2), NodeIx(nodes - 2)] {
                number += 1;
                start(&mut cluster, &finder, node, number, &asked);
            }
        }
    }
    assert!(older > 0, "the newest tables were always complete at once");
    for _ in 0..6 {
        finder.sync(&cluster, &asked);
    }
    let newest = costs_by(&cluster, &asked, finder.demand.tables());
    assert_eq!(finder.all(&cluster, &asked), newest);
}
