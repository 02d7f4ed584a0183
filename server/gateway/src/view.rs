//! The present snapshot, with its routes and the ways to its replicas.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use berth_serving::routes::Routes;
use berth_serving::snapshot::{ReplicaId, Snapshot, SnapshotFault};
use berth_types::ids::{NodeId, ServiceId};
use rustls::ClientConfig;

use crate::service::ServiceState;
use crate::trust::worker_tls;
use crate::upstream::{Upstream, WorkerLink};

/// A snapshot in use. It never changes.
pub struct View {
    pub routes: Routes,
    pub services: HashMap<ServiceId, Arc<ServiceState>>,
    upstreams: HashMap<ReplicaId, Arc<Upstream>>,
    workers: HashMap<(NodeId, SocketAddr), Arc<WorkerLink>>,
    tls: Option<Arc<ClientConfig>>,
}

impl View {
    /// A view of a snapshot. States of services and ways to replicas that stay are those of `last`. `state` makes that
    /// of a service.
    ///
    /// # Errors
    /// The snapshot has a fault.
    pub fn new(
        snapshot: Snapshot,
        last: Option<&Self>,
        mut state: impl FnMut(ServiceId) -> Arc<ServiceState>,
    ) -> Result<Self, SnapshotFault> {
        let routes = Routes::new(snapshot)?;
        let snapshot = routes.snapshot();
        let same = last.filter(|last| last.routes.snapshot().authority == snapshot.authority);
        let tls = match same {
            Some(last) => last.tls.clone(),
            None => worker_tls(&snapshot.authority)
                .inspect_err(|error| tracing::error!(error, "the authority of the workers is not readable"))
                .ok(),
        };
        let (mut upstreams, mut workers) = (HashMap::new(), HashMap::new());
        if let Some(tls) = &tls {
            let revisions = snapshot.services.iter().flat_map(|service| &service.revisions);
            let replicas = revisions.flat_map(|revision| {
                revision.replicas.iter().map(move |replica| (revision.replica_protocol, replica))
            });
            for (protocol, replica) in replicas {
                let place = (replica.node, replica.address);
                let worker = &*workers.entry(place).or_insert_with(|| {
                    let known = same.and_then(|last| last.workers.get(&place));
                    known.cloned().unwrap_or_else(|| Arc::new(WorkerLink::new(place, tls.clone())))
                });
                let known = last.and_then(|last| last.upstreams.get(&replica.id));
                let upstream = match known.filter(|known| known.leads_to(replica, worker)) {
                    Some(known) => known.clone(),
                    None => Arc::new(Upstream::new(replica, protocol, worker.clone())),
                };
                upstreams.insert(replica.id, upstream);
            }
        }
        let services = snapshot.services.iter().map(|service| (service.id, state(service.id))).collect();
        Ok(Self { services, upstreams, workers, tls, routes })
    }

    /// The way to a replica.
    pub fn upstream(&self, replica: ReplicaId) -> Option<&Arc<Upstream>> {
        self.upstreams.get(&replica)
    }

    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.upstreams.values()
    }
}
