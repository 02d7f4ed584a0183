//! The settings of operators in a small world.

use berth_engine::put_burst_reserve;
use berth_types::node_pools::NodePool;

use super::World;

impl World {
    pub(super) fn set_pool(&mut self, host: usize, pool: NodePool) {
        self.pools[host] = pool;
        self.send_host(host);
    }

    pub(super) fn restrict(&mut self, org: u8, own_only: bool) {
        self.own_only[usize::from(org)] = own_only;
        self.send_org(org, None);
    }

    pub(super) fn set_reserve(&mut self, boards: u32) {
        self.reserve = boards;
        put_burst_reserve(&mut self.engine, boards);
    }

    pub(super) fn set_budget(&mut self, watts: Option<i64>) {
        self.budget = watts;
        self.send_racks();
    }
}
