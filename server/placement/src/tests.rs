//! Properties of all policies, on nodes in any state.

use std::sync::Arc;

use proptest::prelude::*;

use crate::finder::{Finder, slots};
use crate::scoring::*;
use crate::small_cluster::{cluster, hold, shape};

proptest! {
    #[test]
    fn offers_are_free_places_and_cost_what_they_say(asked in prop::collection::vec((any::<u8>(), any::<u8>()), 1..60)) {
        let mut cluster = cluster(3);
        let mut finder = Finder::new(Reach);
        for (number, (kind, cpus)) in asked.into_iter().enumerate() {
            let shape = shape(kind, cpus);
            finder.observe(&shape, &cluster);
            finder.sync(&cluster, &shape);
            let cx = ScoringInput { models: cluster.models(), demand: finder.demand.tables() };
            let all: [&dyn Policy; 7] =
                [&Reach, &Fgd, &BestFit, &FirstFit, &Packing, &Completions, &Random];
            for node in cluster.nodes() {
                for policy in all {
                    let offer = policy.offer(node.view(), &shape, &cx);
                    // Either all policies place the shape, or none.
                    prop_assert_eq!(offer.is_some(), Reach.cost(node.view(), &shape, &cx).is_some());
                    prop_assert_eq!(offer.map(|o| o.cost), policy.cost(node.view(), &shape, &cx));
                }
            }
            // The cached costs agree with the costs of all nodes computed again.
            let costs = cluster.nodes().iter().filter_map(|n| Reach.cost(n.view(), &shape, &cx));
            let best = finder.best(&cluster, &shape, &|_| true);
            prop_assert_eq!(best.is_some(), costs.min().is_some());
            let Some(node) = best else { continue };
            let view = *cluster.node(node).unwrap().view();
            let offer = finder.offer(&cluster, &view, &shape).unwrap();
            let slots = slots(&cluster, node, &shape, &offer);
            prop_assert_eq!(slots.len(), shape.count as usize);
            let healthy: Vec<Arc<str>> = cluster.node(node).unwrap().facts.gpus.iter().map(|g| g.uuid.clone()).collect();
            prop_assert!(slots.iter().all(|s| healthy.contains(&s.gpu)));
            let before = cluster.node(node).unwrap().view().free_milli();
            hold(&mut cluster, node, number as u128, &shape, slots);
            let after = cluster.node(node).unwrap().view().free_milli();
            prop_assert!(after <= before);
            // The view after single additions equals a view that is derived again.
            let anew = cluster.view_of(cluster.node(node).unwrap(), |_| true);
            prop_assert_eq!(&anew, cluster.node(node).unwrap().view());
        }
    }
}
