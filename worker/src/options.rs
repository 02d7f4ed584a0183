//! The commands of the program and their options.

use std::net::SocketAddr;
use std::path::PathBuf;

use berth_clearing::{ClearMemoryArgs, ClearingArgs};
use berth_doctor::DoctorArgs;
use berth_gpu::nvml_command::NVML_COMMAND;
use berth_network::NetworkArgs;
use berth_network::preflight::PREFLIGHT_COMMAND;
use berth_network::tunnel::TUNNEL_COMMAND;
use berth_replicas::ReplicaArgs;
use berth_worker::attempt::{HostMountArgs, id_range};
use berth_worker::reconcile::parse_label;
use clap::{ArgAction, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "berth-worker", version, about = "The Berth worker: runs jobs on this host's GPUs.")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Joins the portal and runs its jobs.
    Run(Box<Run>),
    /// Checks this host for a worker, and names the next command for each fault. Run it as the worker's user. The exit
    /// code is 0 without a problem and 1 with one.
    Doctor(DoctorArgs),
    /// Runs podman with the images of this worker, such as `berth-worker podman -- load -i image.tar`.
    Podman {
        /// The directory for all data of the worker.
        #[arg(long, env = "BERTH_WORKER_DATA", default_value = "./worker-data")]
        data: PathBuf,
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Resets simulated boards in place of the driver's program, for the daemon only.
    #[command(hide = true, name = "nvidia-smi")]
    NvidiaSmi {
        #[arg(long)]
        gpu_reset: bool,
        #[arg(short, value_name = "UUID", value_delimiter = ',', required = true)]
        id: Vec<String>,
    },
    /// Calls NVML, for the daemon only.
    #[command(hide = true, name = NVML_COMMAND)]
    Nvml {
        #[arg(long)]
        library: Option<PathBuf>,
    },
    /// Runs the shim of one attempt, for the daemon only.
    #[command(hide = true)]
    Shim { dir: PathBuf },
    /// Forks the shims of attempts, for the daemon only.
    #[command(hide = true)]
    Forker,
    /// Runs an interface of an attempt towards other nodes, for the daemon only.
    #[command(hide = true, name = TUNNEL_COMMAND)]
    Tunnel { interface: String },
    /// Measures the network of a rank towards other ranks, for the daemon only.
    #[command(hide = true, name = PREFLIGHT_COMMAND)]
    Preflight { namespace: PathBuf },
    /// Clears the memory of one GPU, for the daemon only.
    #[command(hide = true)]
    ClearMemory(ClearMemoryArgs),
    /// Opens a shell or a connection inside an attempt, for the daemon only.
    #[command(hide = true)]
    Enter {
        dir: PathBuf,
        #[arg(long, default_value_t = 80)]
        cols: u32,
        #[arg(long, default_value_t = 24)]
        rows: u32,
        /// A port of the attempt in place of a shell.
        #[arg(long)]
        port: Option<u16>,
        /// Opens connections to ports on request, in place of a shell.
        #[arg(long, conflicts_with = "port")]
        dialer: bool,
    },
}

#[derive(clap::Args)]
pub struct Run {
    /// The URL of the portal for workers.
    #[arg(long, env = "BERTH_PORTAL", default_value = "https://127.0.0.1:8081")]
    pub portal: String,
    /// A join token from the page Nodes. The worker needs it for its first start, and after the expiry or
    /// revocation of its certificate.
    // A token may begin with a hyphen.
    #[arg(long, env = "BERTH_JOIN_TOKEN", hide_env_values = true, allow_hyphen_values = true)]
    pub join_token: Option<String>,
    /// The address of this host for jobs on several nodes. By default its address towards the portal.
    #[arg(long, env = "BERTH_ADDRESS")]
    pub address: Option<String>,
    /// The labels of this host, separated by commas. `switch` and `rack` are its place in the network for the
    /// topology of jobs.
    #[arg(long = "label", env = "BERTH_LABELS", value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// The name of this host in the portal. By default its host name.
    #[arg(long, env = "BERTH_NODE_NAME")]
    pub name: Option<String>,
    /// The directory for all data of the worker.
    #[arg(long, env = "BERTH_WORKER_DATA", default_value = "./worker-data")]
    pub data: PathBuf,
    /// Simulated boards in place of the boards of the host, such as 2xH100-80GB,1xA30.
    #[arg(long, env = "BERTH_SIMULATE")]
    pub simulate: Option<String>,
    /// A directory with `sys` in place of the RDMA ports of the host, beside simulated boards. `/`: the host's own.
    #[arg(long, env = "BERTH_SIMULATE_RDMA", value_name = "DIR", requires = "simulate")]
    pub simulate_rdma: Option<PathBuf>,
    /// Measures the RDMA links of the node before a job on several nodes, by ib_write_bw of perftest. It needs the TCP
    /// ports 288 to 352 between the nodes.
    #[arg(long, env = "BERTH_RDMA_CHECK", default_value_t = true, action = ArgAction::Set)]
    pub rdma_check: bool,
    /// Permits jobs without isolation on a host without a working sandbox. The portal marks the node.
    #[arg(long, env = "BERTH_ALLOW_UNISOLATED")]
    pub allow_unisolated: bool,
    /// A directory that is hidden from jobs, in addition to the data of the worker. Repeatable.
    #[arg(long, value_name = "DIR")]
    pub hide: Vec<PathBuf>,
    /// The seconds between SIGTERM and SIGKILL of a stopped job.
    #[arg(long, env = "BERTH_STOP_GRACE_S", default_value_t = 10)]
    pub stop_grace_s: u32,
    /// The limit of processes and threads of one job, for each of its boards.
    #[arg(long, env = "BERTH_JOB_PIDS", default_value_t = 4_096, value_parser = clap::value_parser!(u64).range(16..))]
    pub job_pids: u64,
    /// The limit of open files of each process of a job, for each board of the job. The worker's own limit is the
    /// bound if the worker has no right to raise it.
    #[arg(long, env = "BERTH_JOB_OPEN_FILES", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1_024..=1_048_576))]
    pub job_open_files: u64,
    /// The limit of the directory of one job in MiB, for each of its boards.
    #[arg(long, env = "BERTH_JOB_DISK_MIB", default_value_t = 20_480, value_parser = clap::value_parser!(u64).range(1..))]
    pub job_disk_mib: u64,
    /// The limit of the cache of files of volumes in GiB. By default a tenth of the file system, at most 100; 0
    /// switches it off.
    #[arg(long, env = "BERTH_CACHE_GIB", value_parser = clap::value_parser!(u64).range(..=1_048_576))]
    pub cache_gib: Option<u64>,
    /// The free space in GiB that the cache leaves on the file system. By default a twentieth of it, at most 20.
    #[arg(long, env = "BERTH_CACHE_FREE_GIB", value_parser = clap::value_parser!(u64).range(..=1_048_576))]
    pub cache_free_gib: Option<u64>,
    /// The user ids for jobs of a worker that runs as root. They must be unused on the host.
    #[arg(long, env = "BERTH_JOB_USERS", value_name = "FIRST-LAST", default_value = "600000-699999", value_parser = id_range)]
    pub job_users: (u32, u32),
    #[command(flatten)]
    pub mounts: HostMountArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub clearing: ClearingArgs,
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// The parent cgroup of the cgroups of jobs, in each hierarchy.
    #[arg(long, env = "BERTH_CGROUP", default_value = "berth")]
    pub cgroup: String,
    /// The address of /metrics for Prometheus, such as 127.0.0.1:940. Without it there are no metrics.
    /// Requests need the token in the file metrics-token of the data directory. Jobs can take ports from 1024
    /// on.
    #[arg(long, env = "BERTH_METRICS_LISTEN")]
    pub metrics_listen: Option<SocketAddr>,
    /// Runs no jobs with images, even with podman.
    #[arg(long, env = "BERTH_NO_IMAGES")]
    pub no_images: bool,
    /// The limit of the pull of an image in seconds.
    #[arg(long, env = "BERTH_IMAGE_PULL_TIMEOUT_S", default_value_t = 1_800, value_parser = clap::value_parser!(u64).range(1..))]
    pub image_pull_timeout_s: u64,
    /// The limit of the packed size of one image in MiB.
    #[arg(long, env = "BERTH_IMAGE_MIB", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1..))]
    pub image_mib: u64,
    /// A file of `podman login` with the credentials of registries for all jobs.
    #[arg(long, env = "BERTH_REGISTRY_AUTH_FILE", value_name = "FILE")]
    pub registry_auth_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_token_may_begin_with_a_hyphen() {
        for token in ["-Oabc", "--abc", "abc"] {
            let line =
                ["berth-worker", "run", "--portal", "https://p", "--data", "/d", "--join-token", token];
            assert!(Args::try_parse_from(line).is_ok(), "{token}");
        }
    }
}
