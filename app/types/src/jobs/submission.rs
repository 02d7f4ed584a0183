//! Types of the bodies for jobs: the submission and the extension.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Checkpoint, DependsOn, Network, Priority, Retry, StopWhenIdle, Topology, one};
use crate::ids::ReservationId;
use crate::secrets::{RegistryUse, SecretUse};
use crate::volumes::VolumeUse;

/// The body of a submission. Exactly one of `command` and `script` is required.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    /// 1 to 100 printable characters on one line, not only white space.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
    /// The slug of an offering, such as `h100-80gb.1g.10gb`; at most 100 bytes.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub offering: String,
    /// The number of devices on each node, 1 to 64; 1 with an offering of slices, because a process of CUDA uses one
    /// slice only.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 64)))]
    pub count: u32,
    /// The number of nodes, 1 to 64; each node runs one rank of the job.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 64)))]
    pub nodes: u32,
    /// A program and its arguments, without a shell; 1 to 1024 items, at most 512 KiB in all, without NUL.
    /// The program is not blank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024), inner(length(max = 524_288))))]
    pub command: Option<Vec<String>>,
    /// The text of a script, at most 1 MiB (bytes), not blank and without NUL. It runs by its `#!` line, or
    /// by `/bin/sh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 1_048_576), regex(pattern = crate::patterns::NOT_BLANK))
    )]
    pub script: Option<String>,
    /// The container image, such as `docker.io/library/alpine:3.20`, in at most 400 ASCII characters; the
    /// node's own system when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 400), regex(pattern = "^[!-~]+$")))]
    pub image: Option<String>,
    /// The credentials for a private image; only with `image`, and not for an image of `localhost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistryUse>,
    /// Environment variables: name → value; at most 256, each value at most 128 KiB (bytes) without NUL. With
    /// `image`, name and value have at most 48 KiB in all and no line breaks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(extend(
            "maxProperties" = 256,
            "propertyNames" = {
                "type": "string",
                "minLength": 1,
                "maxLength": 256,
                "pattern": crate::patterns::VARIABLE
            },
            "additionalProperties" = { "type": "string", "maxLength": 131_072 }
        ))
    )]
    pub env: BTreeMap<String, String>,
    /// Secrets of the organization for the job, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32)))]
    pub secrets: Vec<SecretUse>,
    /// Files for the job's directory before its first start: relative path of at most 512 bytes → text. At
    /// most 256 files and 8 MiB (bytes) in all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(extend(
            "maxProperties" = 256,
            "propertyNames" = { "type": "string", "minLength": 1, "maxLength": 512 },
            "additionalProperties" = { "type": "string", "maxLength": 8_388_608 }
        ))
    )]
    pub files: BTreeMap<String, String>,
    /// The time limit in seconds, 1 to 2592000 (30 days); 3600 when absent. It determines the worst-case
    /// price.
    #[serde(default = "default_duration")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 2_592_000)))]
    pub max_duration_s: u64,
    /// The class of the job in the queue; `normal` when absent.
    #[serde(default)]
    pub priority: Priority,
    /// True for a job that the portal may stop for a job of a higher class and retry later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preemptible: bool,
    /// The number of processors for the job on each of its nodes, 1 to 65536.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65_536)))]
    pub cpus: Option<u32>,
    /// Memory for the job on each of its nodes in MiB, 1 to 2^30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_073_741_824)))]
    pub memory_mib: Option<u64>,
    /// The share of one board in thousandths, 1 to 999, next to shares of the same organization; the whole
    /// board when absent. A share needs an offering of whole boards and one device on one node. It is a right in the
    /// schedule and limits neither memory nor compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 999)))]
    pub gpu_milli: Option<u32>,
    /// The required nearness of the devices; not `same_node` for several nodes.
    #[serde(default, skip_serializing_if = "Topology::is_any")]
    pub topology: Topology,
    /// The network access of the job, within the egress policy of the organization; not `none` for several nodes.
    #[serde(default, skip_serializing_if = "Network::is_outbound")]
    pub network: Network,
    /// True for access to the RDMA devices of the nodes (InfiniBand or RoCE). The organization needs the grant of an
    /// operator. The job gets all boards of each of its nodes; not with `gpu_milli`, an offering of slices, or the
    /// network `none`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rdma: bool,
    /// The numbers of TCP ports of the job, 1 to 65535, that the browser can open while it runs; at most 8,
    /// each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(max = 8), inner(range(min = 1, max = 65_535)), extend("uniqueItems" = true))
    )]
    pub ports: Vec<u32>,
    /// True to send requests to a port with the whole path of the browser; false to send only the part after
    /// the port.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ports_keep_path: bool,
    /// The rules for retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// The checkpoint rules: signal, grace and directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Patterns of the files to keep when an attempt ends, such as `out/**`; at most 32, each at most 512
    /// bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32), inner(length(min = 1, max = 512))))]
    pub artifacts: Vec<String>,
    /// Volumes of the organization for the job, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub volumes: Vec<VolumeUse>,
    /// The rule for a stop of the job when its devices are idle; not with `gpu_milli`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_when_idle: Option<StopWhenIdle>,
    /// The lease in seconds, 60 to 86400: the longest run on a disconnected node before the worker ends the
    /// attempt. The portal's setting when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 60, max = 86_400)))]
    pub lease_s: Option<u32>,
    /// The reservation of the job's devices; a job inside a reservation has no further charge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// Jobs of the same organization that must end before the start; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32)))]
    pub depends_on: Vec<DependsOn>,
    /// Labels: key → value, at most 32, each text at most 63 bytes and printable; a key is not empty and has no `=`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(extend(
            "maxProperties" = 32,
            "propertyNames" = {
                "type": "string",
                "minLength": 1,
                "maxLength": 63,
                "pattern": crate::patterns::LABEL_KEY
            },
            "additionalProperties" = {
                "type": "string",
                "maxLength": 63,
                "pattern": crate::patterns::PRINTABLE
            }
        ))
    )]
    pub labels: BTreeMap<String, String>,
}

fn default_duration() -> u64 {
    3_600
}

/// The body of an extension of the time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExtendJob {
    /// The new time limit in seconds from the start of the run: more than the present one, at most 2592000.
    #[cfg_attr(feature = "schema", schemars(range(min = 2, max = 2_592_000), example = 7_200))]
    pub max_duration_s: u64,
}
