//! The facts of organizations for the engine: limits, weights and, once, their past use.

use std::collections::{HashMap, HashSet};

use berth_engine::{Fact, OrgFacts};
use berth_types::ids::OrgId;
use berth_types::time::Timestamp;

use super::{Planner, lock};
use crate::limits::engine_limits;
use berth_store::{self as store, StoreError, Tx};

/// The oldest counted use in days: at that age it has decayed to a thirtieth.
const DAYS: i64 = 35;
/// The half-life of past use in days, as in the engine.
const HALF_LIFE_DAYS: f64 = 7.0;

impl Planner {
    /// The facts of the organizations that changed since the last call.
    pub(super) async fn orgs_as_facts(
        &self,
        tx: &mut Tx<'_>,
        now: Timestamp,
    ) -> Result<Vec<Fact>, StoreError> {
        let default_limits = store::quotas::find(tx, None).await?.unwrap_or_default();
        let mut used =
            if lock(&self.state.orgs).is_empty() { past_use(tx, now).await? } else { HashMap::new() };
        let orgs = store::quotas::list(tx).await?;
        let own_only: HashSet<OrgId> = store::dedicated::list_own_only(tx).await?.into_iter().collect();
        let differing: HashSet<OrgId> = store::egress::list_differing(tx).await?.into_iter().collect();
        let mut sent = lock(&self.state.orgs);
        let mut out = Vec::new();
        for (org, own) in orgs {
            let limits = own.unwrap_or_else(|| default_limits.clone());
            let facts = OrgFacts {
                org,
                weight: limits.weight_milli.unwrap_or(1_000) as f64 / 1_000.0,
                used: None,
                guaranteed_milli: limits.guaranteed_boards_milli.unwrap_or(0),
                own_nodes_only: own_only.contains(&org),
                egress_policy: differing.contains(&org),
                limits: engine_limits(&limits),
            };
            if sent.get(&org) != Some(&facts) {
                sent.insert(org, facts.clone());
                out.push(Fact::Org(OrgFacts { used: used.remove(&org), ..facts }));
            }
        }
        Ok(out)
    }
}

/// The past use of each organization, decayed to now: thousandths of boards × seconds.
async fn past_use(tx: &mut Tx<'_>, now: Timestamp) -> Result<HashMap<OrgId, f64>, StoreError> {
    const DAY_MICROS: i64 = 86_400_000_000;
    let mut out: HashMap<OrgId, f64> = HashMap::new();
    for (org, day, used) in store::jobs::use_by_day(tx, now.plus_seconds(-DAYS * 86_400), now).await? {
        let days = (now.micros() / DAY_MICROS - day).max(0) as f64;
        *out.entry(org).or_default() += used as f64 * (-days / HALF_LIFE_DAYS).exp2();
    }
    Ok(out)
}
