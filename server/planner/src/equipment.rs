//! The nodes alone, for questions about requests that no node could ever hold.
//!
//! A submission asks such a question. An engine of its own, without jobs, claims and bookings, answers it, so
//! that a submission does not wait for a pass of the scheduler or for a full read of the database.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use berth_engine::{Engine, Fact, WaitReasons};
use berth_placement::request::{InvalidRequest, Request};
use berth_store::StoreError;
use berth_types::ids::OrgId;
use berth_types::time::Timestamp;

use super::nodes::{node_facts, read_nodes};
use super::{Planner, invalid, lock, on_blocking_thread};

/// The nodes that a question about impossible requests is answered from.
#[derive(Debug, Default)]
pub(super) struct Equipment {
    /// An engine that gets facts of nodes only.
    engine: Arc<Mutex<Engine>>,
    /// The number of committed changes of boards.
    changes: AtomicU64,
    /// The number of changes at the begin of the last read; absent before the first read. Locked during a read.
    read_at: tokio::sync::Mutex<Option<u64>>,
}

impl Equipment {
    pub(super) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Gives the facts of nodes to the engine. Facts of other kinds are left out.
    pub(super) fn put(&self, facts: &[Fact], now: Timestamp) {
        let mut engine = lock(&self.engine);
        for fact in facts.iter().filter(|fact| matches!(fact, Fact::Node { .. })) {
            engine.apply(fact.clone(), now);
        }
    }
}

impl Planner {
    /// Returns the reasons for which no node, open or not, could ever run a request. `None` if some node
    /// could.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(super) async fn why_impossible(
        &self,
        request: Request,
        org: OrgId,
    ) -> Result<Option<WaitReasons>, StoreError> {
        // Without the boards of a change, every request seems possible.
        self.read_equipment().await?;
        let engine = self.state.equipment.engine.clone();
        let why = move || lock(&engine).why_impossible(&request, org);
        Ok(on_blocking_thread(why).await.unwrap_or_else(|absurd: InvalidRequest| Some(invalid(absurd))))
    }

    /// Reads the nodes again, if boards changed since the last read.
    async fn read_equipment(&self) -> Result<(), StoreError> {
        let equipment = &self.state.equipment;
        let wanted = equipment.changes.load(Ordering::SeqCst);
        let mut read_at = equipment.read_at.lock().await;
        // Changes during the wait belong to later questions, so all that wait share one read.
        if read_at.is_some_and(|at| at >= wanted) {
            return Ok(());
        }
        let changes = equipment.changes.load(Ordering::SeqCst);
        let version = self.next_version();
        let mut conn = self.context.db.read().await?;
        let nodes = read_nodes(&mut conn.tx()).await?;
        drop(conn);
        // The connections of workers do not matter here.
        let (equipment, now) = (self.state.clone(), self.context.now());
        let facts = node_facts(nodes, (version, now), &Default::default(), &Default::default());
        on_blocking_thread(move || equipment.equipment.put(&facts, now)).await;
        *read_at = Some(changes);
        Ok(())
    }
}
