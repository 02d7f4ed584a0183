//! The pools of nodes: the work that a node is for.

use serde::{Deserialize, Serialize};

/// The pool of a node: the work that an operator means it for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodePool {
    /// Replicas of services and all other jobs.
    #[default]
    Both,
    /// Replicas of services. Other jobs only if they are preemptible, and until a replica needs the devices.
    Inference,
    /// Jobs that are no replicas.
    Training,
}

impl NodePool {
    pub const ALL: [Self; 3] = [Self::Both, Self::Inference, Self::Training];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Inference => "inference",
            Self::Training => "training",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pool| pool.name() == name)
    }

    /// The pool as a short text; `None` for all work.
    pub const fn text(self) -> Option<&'static str> {
        match self {
            Self::Both => None,
            Self::Inference => Some("For inference"),
            Self::Training => Some("For training"),
        }
    }

    /// The work of the pool, for a choice.
    pub const fn work_text(self) -> &'static str {
        match self {
            Self::Both => "Training and inference",
            Self::Inference => "Inference: replicas, and preemptible jobs until a replica needs the boards",
            Self::Training => "Training: all jobs except replicas",
        }
    }

    pub const fn is_both(&self) -> bool {
        matches!(self, Self::Both)
    }
}

/// The settings of the pool for inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InferencePool {
    /// The boards of each board model that preemptible jobs leave free on the nodes of the pool, 0 to 10000.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 10_000)))]
    pub reserve_boards: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_pools_are_those_of_the_api() {
        for pool in NodePool::ALL {
            assert_eq!(serde_json::to_value(pool).unwrap(), pool.name());
            assert_eq!(NodePool::parse(pool.name()), Some(pool));
        }
        assert_eq!(NodePool::ALL.map(NodePool::text), [None, Some("For inference"), Some("For training")]);
        assert!(NodePool::ALL.iter().all(|pool| pool.work_text().to_lowercase().contains(match pool {
            NodePool::Training => "training",
            _ => "inference",
        })));
        assert_eq!((NodePool::parse("Both"), NodePool::default()), (None, NodePool::Both));
    }
}
