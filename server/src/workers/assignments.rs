//! The messages to a worker about its assignments and the tasks of its boards.

use berth_fleet::reports::GpuTaskOrder;
use berth_gangs::networks::{RankGang, RankPeer, RankRdmaCheck, RdmaPeer};
use berth_jobs::assignments::{RankAssignment, RankDevice, RankReplica, RankStart};
use berth_proto as proto;
use berth_storage::start_inputs::{RankSecret, RankVolume, RegistryLogin};
use berth_types::health::GpuTaskKind;
use berth_types::jobs::Network;

fn to_slot(device: RankDevice) -> proto::Slot {
    proto::Slot {
        gpu_uuid: device.gpu_uuid,
        instance: device.slice.map(|slice| proto::Instance {
            profile_id: slice.profile_id,
            start: slice.start,
            size: slice.size,
        }),
        share_milli: device.share_milli.unwrap_or(0),
    }
}

fn to_mount(volume: RankVolume) -> proto::Mount {
    proto::Mount {
        volume: volume.volume.to_string(),
        name: volume.name,
        path: volume.path,
        writable: volume.writable,
        bytes: volume.bytes,
        class: volume.class.unwrap_or_default(),
        group: volume.group,
    }
}

fn to_secret(secret: RankSecret) -> proto::Secret {
    proto::Secret {
        name: secret.name,
        value: secret.value,
        env: secret.env.unwrap_or_default(),
        file: secret.file.unwrap_or_default(),
    }
}

fn to_registry_auth(login: RegistryLogin) -> proto::RegistryAuth {
    proto::RegistryAuth {
        registry: login.registry,
        username: login.username,
        password: login.password,
        secret: login.secret,
    }
}

fn to_gang_network(gang: RankGang) -> proto::GangNetwork {
    let to_peer = |peer: RankPeer| proto::GangPeer {
        rank: peer.rank,
        public_key: peer.public_key.to_vec(),
        address: peer.address,
        port: peer.port,
        min_mib_per_s: peer.min_mib_per_s,
    };
    proto::GangNetwork {
        rank: gang.rank,
        private_key: gang.private_key.to_vec(),
        port: gang.port,
        number: gang.number,
        plain: gang.plain,
        peers: gang.peers.into_iter().map(to_peer).collect(),
        check_token: gang.check_token.map(Vec::from).unwrap_or_default(),
    }
}

fn to_rdma_check(check: RankRdmaCheck) -> proto::RdmaCheck {
    let to_peer =
        |RdmaPeer { rank, address, min_mib_per_s }| proto::LinkPeer { rank, address, min_mib_per_s };
    proto::RdmaCheck {
        rank: check.rank,
        token: check.token.to_vec(),
        peers: check.peers.into_iter().map(to_peer).collect(),
    }
}

fn to_replica(replica: RankReplica) -> proto::ReplicaSpec {
    proto::ReplicaSpec {
        port: u32::from(replica.port),
        readiness_path: replica.readiness_path,
        token_sha256: replica.token_sha256.to_vec(),
        max_connections: replica.max_connections,
        http2: replica.http2,
    }
}

fn to_spec(start: RankStart) -> proto::Spec {
    let (checkpoint_dir, checkpoint_every_s) =
        start.checkpoint_dir.map(|dir| (dir.path, dir.every_s)).unwrap_or_default();
    proto::Spec {
        command: start.command,
        script: start.script,
        env: start.env.into_iter().collect(),
        files: start.files.into_iter().collect(),
        cpu_milli: start.cpu_milli,
        memory_mib: start.memory_mib,
        no_network: start.network == Network::None,
        spans_nodes: start.spans_nodes,
        gang_network: start.gang.map(|gang| to_gang_network(*gang)),
        rdma: start.rdma,
        rdma_check: start.rdma_check.map(to_rdma_check),
        no_internet: start.egress.no_internet,
        reach: start.egress.reach,
        host_network: start.egress.host_network,
        checkpoint_dir,
        checkpoint_every_s,
        artifacts: start.artifacts,
        restore: start.restored.map(|checkpoint| proto::Restore {
            file: checkpoint.file.to_string(),
            bytes: checkpoint.bytes,
            sha256: checkpoint.sha256,
        }),
        volumes: start.volumes.into_iter().map(to_mount).collect(),
        image: start.image.unwrap_or_default(),
        registry_auth: start.registry_login.map(to_registry_auth),
        secrets: start.secrets.into_iter().map(to_secret).collect(),
        replica: start.replica.map(to_replica),
        unusable: start.unusable.map(|failure| proto::Failure { code: failure.code, detail: failure.detail }),
    }
}

fn to_assignment(rank: RankAssignment) -> proto::Assignment {
    let (stop_signal, stop_grace_ms) =
        rank.stop_signal.map_or((0, 0), |stop| (stop.signal.number(), stop.grace_ms));
    let (lease_ms, lease_answer_ms, lease_grace_ms) =
        rank.lease.map_or((0, 0, 0), |lease| (lease.lease_ms, lease.answer_ms, lease.grace_ms));
    proto::Assignment {
        attempt: Some(proto::AttemptId::new(rank.job, rank.attempt)),
        stop: rank.stop,
        limit_ms: rank.limit_ms,
        slots: rank.devices.into_iter().map(to_slot).collect(),
        spec: rank.start.map(to_spec),
        log_offset: rank.log_bytes,
        stop_signal,
        stop_grace_ms,
        lease_ms,
        lease_answer_ms,
        lease_grace_ms,
        organization: rank.org.to_string(),
    }
}

/// The message of a task; `None` for a task without a valid number.
fn to_board_task(order: GpuTaskOrder) -> Option<proto::BoardTask> {
    let kind = match order.kind {
        GpuTaskKind::Check => proto::TaskKind::Check,
        GpuTaskKind::MigOn => proto::TaskKind::MigOn,
        GpuTaskKind::MigOff => proto::TaskKind::MigOff,
        GpuTaskKind::Reset => proto::TaskKind::Reset,
    };
    let number = u64::try_from(order.number).ok()?;
    Some(proto::BoardTask { gpu_uuid: order.gpu_uuid, number, kind: kind.into(), group: order.group })
}

/// The desired state of a node.
pub(super) fn to_desired(ranks: Vec<RankAssignment>, tasks: Vec<GpuTaskOrder>) -> proto::DesiredState {
    proto::DesiredState {
        attempts: ranks.into_iter().map(to_assignment).collect(),
        tasks: tasks.into_iter().filter_map(to_board_task).collect(),
    }
}

/// The fields of an assignment that are not compared with the last sent state: the log offset, which changes
/// all the time, and secrets and keys, which are not kept in the session.
#[derive(Default)]
pub(super) struct UncomparedFields {
    log_offset: u64,
    secrets: Vec<proto::Secret>,
    registry_auth: Option<proto::RegistryAuth>,
    /// The private key of the rank in the network of its gang, and the token of its check.
    gang_key: Vec<u8>,
    gang_token: Vec<u8>,
    /// The token of the check of its RDMA links.
    rdma_token: Vec<u8>,
}

impl UncomparedFields {
    pub(super) fn remove_from(assignment: &mut proto::Assignment) -> Self {
        let log_offset = std::mem::take(&mut assignment.log_offset);
        let Some(spec) = &mut assignment.spec else {
            return Self { log_offset, ..Self::default() };
        };
        let gang = spec.gang_network.as_mut();
        let taken =
            gang.map(|gang| (std::mem::take(&mut gang.private_key), std::mem::take(&mut gang.check_token)));
        let (gang_key, gang_token) = taken.unwrap_or_default();
        let rdma = spec.rdma_check.as_mut();
        let rdma_token = rdma.map(|check| std::mem::take(&mut check.token)).unwrap_or_default();
        Self {
            log_offset,
            secrets: std::mem::take(&mut spec.secrets),
            registry_auth: spec.registry_auth.take(),
            gang_key,
            gang_token,
            rdma_token,
        }
    }

    pub(super) fn secret_names(&self) -> impl Iterator<Item = &str> {
        let auth = self.registry_auth.iter().map(|auth| auth.secret.as_str());
        self.secrets.iter().map(|secret| secret.name.as_str()).chain(auth)
    }

    pub(super) fn restore_to(self, assignment: &mut proto::Assignment) {
        assignment.log_offset = self.log_offset;
        if let Some(spec) = &mut assignment.spec {
            (spec.secrets, spec.registry_auth) = (self.secrets, self.registry_auth);
            if let Some(gang) = &mut spec.gang_network {
                gang.private_key = self.gang_key;
                gang.check_token = self.gang_token;
            }
            if let Some(check) = &mut spec.rdma_check {
                check.token = self.rdma_token;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_core::lease::LeaseLimits;
    use berth_jobs::assignments::{RankSlice, StopSignal};
    use berth_types::files::CheckpointSignal;
    use berth_types::ids::{JobId, OrgId};

    use super::*;

    fn assignment() -> RankAssignment {
        RankAssignment {
            job: JobId::from_uuid(uuid::Uuid::from_u128(1)),
            attempt: 2,
            org: OrgId::from_uuid(uuid::Uuid::from_u128(3)),
            stop: false,
            stop_signal: None,
            limit_ms: 60_000,
            lease: None,
            devices: Vec::new(),
            log_bytes: 7,
            start: None,
        }
    }

    #[test]
    fn absent_values_are_zeros_and_empty_texts() {
        let rank = assignment();
        let expected = proto::Assignment {
            attempt: Some(proto::AttemptId::new(rank.job, 2)),
            limit_ms: 60_000,
            log_offset: 7,
            organization: rank.org.to_string(),
            ..proto::Assignment::default()
        };
        assert_eq!(to_assignment(rank), expected);
        assert_eq!(to_spec(RankStart::default()), proto::Spec::default());
    }

    #[test]
    fn a_stop_a_lease_and_devices_are_sent() {
        let slice = Some(RankSlice { profile_id: 19, start: 4, size: 1 });
        let device = |slice: Option<RankSlice>, share_milli: Option<u32>| RankDevice {
            gpu_uuid: "GPU-1".to_owned(),
            slice,
            share_milli,
        };
        let sent = to_assignment(RankAssignment {
            stop: true,
            stop_signal: Some(StopSignal { signal: CheckpointSignal::Usr1, grace_ms: 5_000 }),
            lease: Some(LeaseLimits::new(600_000)),
            devices: vec![device(slice, None), device(None, Some(250)), device(None, None)],
            ..assignment()
        });
        assert_eq!((sent.stop, sent.stop_signal, sent.stop_grace_ms), (true, 10, 5_000));
        assert_eq!((sent.lease_ms, sent.lease_answer_ms, sent.lease_grace_ms), (600_000, 15_000, 15_000));
        let slots: Vec<(bool, u32)> =
            sent.slots.iter().map(|slot| (slot.instance.is_some(), slot.share_milli)).collect();
        assert_eq!(slots, [(true, 0), (false, 250), (false, 0)]);
    }

    #[test]
    fn a_replica_has_its_port_and_the_hash_of_its_token() {
        let replica = RankReplica {
            port: 8_000,
            http2: true,
            readiness_path: "/health".to_owned(),
            token_sha256: [7; 32],
            max_connections: 32,
        };
        let sent = to_spec(RankStart { replica: Some(replica), ..RankStart::default() }).replica.unwrap();
        assert_eq!((sent.port, sent.readiness_path.as_str(), sent.max_connections), (8_000, "/health", 32));
        assert_eq!(sent.token_sha256, [7; 32]);
        assert!(sent.http2);
    }

    #[test]
    fn tasks_have_their_kind_and_no_negative_number() {
        let order = |number: i64| GpuTaskOrder {
            gpu_uuid: "GPU-1".to_owned(),
            number,
            kind: GpuTaskKind::MigOn,
            group: vec!["GPU-1".to_owned()],
        };
        let desired = to_desired(Vec::new(), vec![order(-1), order(4)]);
        assert_eq!(desired.tasks.len(), 1);
        assert_eq!((desired.tasks[0].number, desired.tasks[0].kind()), (4, proto::TaskKind::MigOn));
        assert_eq!(desired.tasks[0].group, ["GPU-1"]);
    }

    #[test]
    fn secrets_and_log_offsets_are_removed_and_restored() {
        let secret = proto::Secret { name: "token".to_owned(), value: "1".to_owned(), ..Default::default() };
        let auth = proto::RegistryAuth { secret: "login".to_owned(), ..Default::default() };
        let spec = proto::Spec {
            secrets: vec![secret],
            registry_auth: Some(auth),
            gang_network: Some(proto::GangNetwork {
                private_key: vec![7; 32],
                check_token: vec![8; 32],
                number: 4,
                ..Default::default()
            }),
            rdma_check: Some(proto::RdmaCheck { rank: 1, token: vec![9; 32], peers: Vec::new() }),
            memory_mib: 5,
            ..proto::Spec::default()
        };
        let whole = proto::Assignment { log_offset: 7, stop: true, spec: Some(spec), ..Default::default() };
        let mut assignment = whole.clone();
        let fields = UncomparedFields::remove_from(&mut assignment);
        let gang_network = Some(proto::GangNetwork { number: 4, ..Default::default() });
        let rdma_check = Some(proto::RdmaCheck { rank: 1, ..Default::default() });
        let spec = proto::Spec { memory_mib: 5, gang_network, rdma_check, ..proto::Spec::default() };
        assert_eq!(
            assignment,
            proto::Assignment { stop: true, spec: Some(spec), ..proto::Assignment::default() }
        );
        assert_eq!(fields.secret_names().collect::<Vec<_>>(), ["token", "login"]);
        fields.restore_to(&mut assignment);
        assert!(assignment == whole);

        let known = proto::Assignment { log_offset: 7, ..proto::Assignment::default() };
        let mut assignment = known.clone();
        let fields = UncomparedFields::remove_from(&mut assignment);
        assert_eq!((assignment.log_offset, fields.secret_names().count()), (0, 0));
        fields.restore_to(&mut assignment);
        assert_eq!(assignment, known);
    }
}
