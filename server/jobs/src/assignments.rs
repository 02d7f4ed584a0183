//! The assignments of a node, as domain values. The session of its worker sends them as messages.

use std::collections::BTreeMap;
use std::fmt;

use berth_core::egress::JobEgress;
use berth_core::lease::LeaseLimits;
use berth_storage::start_inputs::{CheckpointDir, RankSecret, RankVolume, RegistryLogin, RestoredCheckpoint};
use berth_types::files::CheckpointSignal;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{Failure, Network};

use berth_gangs::networks::{RankGang, RankRdmaCheck};

/// The assignment of a rank to its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankAssignment {
    pub job: JobId,
    /// The number of the attempt.
    pub attempt: u32,
    pub org: OrgId,
    /// The rank must end.
    pub stop: bool,
    /// The signal of a stop; absent: the defaults of the worker.
    pub stop_signal: Option<StopSignal>,
    /// The worker ends the rank after this metered time, in milliseconds.
    pub limit_ms: i64,
    /// Absent: the rank has no lease.
    pub lease: Option<LeaseLimits>,
    pub devices: Vec<RankDevice>,
    /// The length of the log at the portal, in bytes.
    pub log_bytes: u64,
    /// Absent for a worker that has the rank already.
    pub start: Option<RankStart>,
}

/// The signal of a stop, and the grace until SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSignal {
    pub signal: CheckpointSignal,
    pub grace_ms: i64,
}

/// A device of a rank: a slice, a share or a whole board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankDevice {
    pub gpu_uuid: String,
    /// Absent: the board without MIG.
    pub slice: Option<RankSlice>,
    /// Thousandths of a shared board; absent: all of it.
    pub share_milli: Option<u32>,
}

/// A slice by its MIG profile and its memory slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankSlice {
    pub profile_id: u32,
    /// The first memory slice.
    pub start: u32,
    /// The number of memory slices.
    pub size: u32,
}

/// The start of a rank. The default has no process; a rank that is stopped before its start gets it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RankStart {
    pub command: Vec<String>,
    pub script: Option<String>,
    pub env: BTreeMap<String, String>,
    /// The texts of the files by path.
    pub files: BTreeMap<String, String>,
    /// Thousandths of a processor; 0: no limit.
    pub cpu_milli: u64,
    /// 0: no limit.
    pub memory_mib: u64,
    pub network: Network,
    /// The addresses that the rank may reach.
    pub egress: JobEgress,
    /// The job has ranks on several nodes.
    pub spans_nodes: bool,
    /// Its part in the network of its gang. Absent: it has the network of its node.
    pub gang: Option<Box<RankGang>>,
    /// The job has the RDMA devices of its nodes.
    pub rdma: bool,
    /// The check of its RDMA links before the start. Absent: no check.
    pub rdma_check: Option<RankRdmaCheck>,
    /// The full name of the image; absent: the system of the host.
    pub image: Option<String>,
    pub registry_login: Option<RegistryLogin>,
    pub checkpoint_dir: Option<CheckpointDir>,
    pub restored: Option<RestoredCheckpoint>,
    /// The patterns of the artifacts.
    pub artifacts: Vec<String>,
    pub volumes: Vec<RankVolume>,
    pub secrets: Vec<RankSecret>,
    /// Present for a replica of a service.
    pub replica: Option<RankReplica>,
    /// The reason why the inputs cannot be given: the rank ends with this failure.
    pub unusable: Option<Failure>,
}

/// The part of a replica that gateways reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankReplica {
    pub port: u16,
    /// True if the replica speaks HTTP/2.
    pub http2: bool,
    pub readiness_path: String,
    /// The hash of the token of the replica.
    pub token_sha256: [u8; 32],
    pub max_connections: u32,
}

/// The command, the script, the variables and the files may have secrets, which must not reach a log.
impl fmt::Debug for RankStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankStart")
            .field("image", &self.image)
            .field("env", &self.env.len())
            .field("files", &self.files.len())
            .field("volumes", &self.volumes)
            .field("secrets", &self.secrets)
            .field("unusable", &self.unusable)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debug_text_of_a_start_has_no_secrets() {
        let secret = "hunter2".to_owned();
        let texts = || [("NAME".to_owned(), secret.clone())].into();
        let start = RankStart {
            command: vec![secret.clone()],
            script: Some(secret.clone()),
            env: texts(),
            files: texts(),
            secrets: vec![RankSecret {
                name: "token".to_owned(),
                value: secret.clone(),
                env: Some("TOKEN".to_owned()),
                file: None,
            }],
            registry_login: Some(RegistryLogin {
                registry: "registry.example".to_owned(),
                username: secret.clone(),
                password: secret.clone(),
                secret: "login".to_owned(),
            }),
            ..RankStart::default()
        };
        let text = format!("{start:?} {:?} {:?}", start.secrets, start.registry_login);
        assert!(text.contains("token") && text.contains("login") && !text.contains("hunter2"), "{text}");
    }
}
