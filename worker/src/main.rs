//! `berth-worker`: the daemon on a GPU host.

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_clearing::{ClearMemoryArgs, ClearingArgs, ClearingHelper, MemoryClearing};
use berth_doctor::DoctorArgs;
use berth_gpu::{Gpus, simulation};
use berth_images::{ImageLimits, Podman};
use berth_isolation::cgroups::Cgroups;
use berth_isolation::device_nodes::DeviceTree;
use berth_isolation::sandbox::Sandbox;
use berth_job_files::cache;
use berth_job_files::inputs::host_mounts::HostMounts;
use berth_network::preflight::{self, PREFLIGHT_COMMAND};
use berth_network::tunnel::{self, TUNNEL_COMMAND};
use berth_network::{JobNetwork, NetworkArgs};
use berth_session::identity::{self, DaemonStart};
use berth_session::link::{self, Link};
use berth_shim::forker::{self, Forker};
use berth_shim::{BoardLimits, LimitCeilings};
use berth_system::files::spread_directories;
use berth_system::pty::TerminalSize;
use berth_system::rdma::RdmaTree;
use berth_system::{capacity, processes, shutdown};
use berth_worker::attempt::{Host, HostMountArgs, id_range};
use berth_worker::devices::BoardSharers;
use berth_worker::exec::nsenter::{self, EntryTarget};
use berth_worker::reconcile::{self, NodeDescription};
use berth_worker::telemetry::{Telemetry, metrics_server};
use clap::{Parser, Subcommand};
use nix::fcntl::{Flock, FlockArg};
use tonic::transport::Endpoint;

/// The directory of attempts in the data directory.
const ATTEMPTS: &str = "attempts";
/// The directory of cached files in the data directory.
const CACHE: &str = "cache";
/// The program of this process, also after its replacement by a newer one.
const OWN_PROGRAM: &str = "/proc/self/exe";

#[derive(Parser)]
#[command(name = "berth-worker", version, about = "The Berth worker: runs jobs on this host's GPUs.")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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
    },
}

#[derive(clap::Args)]
struct Run {
    /// The URL of the portal for workers.
    #[arg(long, env = "BERTH_PORTAL", default_value = "https://127.0.0.1:8081")]
    portal: String,
    /// A join token from the page Nodes. The worker needs it for its first start, and after the expiry or
    /// revocation of its certificate.
    // A token may begin with a hyphen.
    #[arg(long, env = "BERTH_JOIN_TOKEN", hide_env_values = true, allow_hyphen_values = true)]
    join_token: Option<String>,
    /// The address of this host for jobs on several nodes. By default its address towards the portal.
    #[arg(long, env = "BERTH_ADDRESS")]
    address: Option<String>,
    /// The labels of this host, separated by commas. `switch` and `rack` are its place in the network for the
    /// topology of jobs.
    #[arg(long = "label", env = "BERTH_LABELS", value_name = "NAME=VALUE", value_delimiter = ',', value_parser = label)]
    labels: Vec<(String, String)>,
    /// The name of this host in the portal. By default its host name.
    #[arg(long, env = "BERTH_NODE_NAME")]
    name: Option<String>,
    /// The directory for all data of the worker.
    #[arg(long, env = "BERTH_WORKER_DATA", default_value = "./worker-data")]
    data: PathBuf,
    /// Simulated boards in place of the boards of the host, such as 2xH100-80GB,1xA30.
    #[arg(long, env = "BERTH_SIMULATE")]
    simulate: Option<String>,
    /// A directory with `sys` and `dev` in place of the RDMA ports of the host, beside simulated boards.
    #[arg(long, env = "BERTH_SIMULATE_RDMA", value_name = "DIR", requires = "simulate")]
    simulate_rdma: Option<PathBuf>,
    /// Permits jobs without isolation on a host without a working sandbox. The portal marks the node.
    #[arg(long, env = "BERTH_ALLOW_UNISOLATED")]
    allow_unisolated: bool,
    /// A directory that is hidden from jobs, in addition to the data of the worker. Repeatable.
    #[arg(long, value_name = "DIR")]
    hide: Vec<PathBuf>,
    /// The seconds between SIGTERM and SIGKILL of a stopped job.
    #[arg(long, env = "BERTH_STOP_GRACE_S", default_value_t = 10)]
    stop_grace_s: u32,
    /// The limit of processes and threads of one job, for each of its boards.
    #[arg(long, env = "BERTH_JOB_PIDS", default_value_t = 4_096, value_parser = clap::value_parser!(u64).range(16..))]
    job_pids: u64,
    /// The limit of open files of each process of a job, for each board of the job. The worker's own limit is the
    /// bound if the worker has no right to raise it.
    #[arg(long, env = "BERTH_JOB_OPEN_FILES", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1_024..=1_048_576))]
    job_open_files: u64,
    /// The limit of the directory of one job in MiB, for each of its boards.
    #[arg(long, env = "BERTH_JOB_DISK_MIB", default_value_t = 20_480, value_parser = clap::value_parser!(u64).range(1..))]
    job_disk_mib: u64,
    /// The limit of the cache of files of volumes in GiB. By default a tenth of the file system, at most 100; 0
    /// switches it off.
    #[arg(long, env = "BERTH_CACHE_GIB", value_parser = clap::value_parser!(u64).range(..=1_048_576))]
    cache_gib: Option<u64>,
    /// The free space in GiB that the cache leaves on the file system. By default a twentieth of it, at most 20.
    #[arg(long, env = "BERTH_CACHE_FREE_GIB", value_parser = clap::value_parser!(u64).range(..=1_048_576))]
    cache_free_gib: Option<u64>,
    /// The user ids for jobs of a worker that runs as root. They must be unused on the host.
    #[arg(long, env = "BERTH_JOB_USERS", value_name = "FIRST-LAST", default_value = "600000-699999", value_parser = id_range)]
    job_users: (u32, u32),
    #[command(flatten)]
    mounts: HostMountArgs,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    clearing: ClearingArgs,
    /// The parent cgroup of the cgroups of jobs, in each hierarchy.
    #[arg(long, env = "BERTH_CGROUP", default_value = "berth")]
    cgroup: String,
    /// The address of /metrics for Prometheus, such as 127.0.0.1:940. Without it there are no metrics.
    /// Requests need the token in the file metrics-token of the data directory. Jobs can take ports from 1024
    /// on.
    #[arg(long, env = "BERTH_METRICS_LISTEN")]
    metrics_listen: Option<SocketAddr>,
    /// Runs no jobs with images, even with podman.
    #[arg(long, env = "BERTH_NO_IMAGES")]
    no_images: bool,
    /// The limit of the pull of an image in seconds.
    #[arg(long, env = "BERTH_IMAGE_PULL_TIMEOUT_S", default_value_t = 1_800, value_parser = clap::value_parser!(u64).range(1..))]
    image_pull_timeout_s: u64,
    /// The limit of the packed size of one image in MiB.
    #[arg(long, env = "BERTH_IMAGE_MIB", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1..))]
    image_mib: u64,
    /// A file of `podman login` with the credentials of registries for all jobs.
    #[arg(long, env = "BERTH_REGISTRY_AUTH_FILE", value_name = "FILE")]
    registry_auth_file: Option<PathBuf>,
}

fn main() -> ExitCode {
    let close = || processes::close_inherited().map_err(|e| e.to_string());
    let result = match Args::parse().command {
        Command::NvidiaSmi { gpu_reset: true, id } => simulation::run_nvidia_smi(&id),
        Command::NvidiaSmi { .. } => Err("the one supported request is --gpu-reset -i UUID,…".to_owned()),
        Command::Shim { dir } => close().and_then(|()| berth_shim::run(&dir)),
        Command::Forker => close().and_then(|()| forker::run().map_err(|e| e.to_string())),
        Command::Tunnel { interface } => tunnel::run(&interface),
        Command::Preflight { namespace } => preflight::run(&namespace),
        Command::Enter { dir, cols, rows, port } => {
            let shell = || EntryTarget::Shell(TerminalSize::clamped(cols, rows));
            let target = port.map_or_else(shell, EntryTarget::Port);
            match close().and_then(|()| nsenter::run(&dir, target)) {
                // The exit code of the shell.
                Ok(code) => std::process::exit(code),
                Err(error) => Err(error),
            }
        }
        Command::Run(args) => run(*args),
        Command::Podman { data, words } => podman(&data, &words),
        Command::Doctor(args) => return berth_doctor::run(args),
        Command::ClearMemory(args) => return berth_clearing::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("berth-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Run) -> Result<(), String> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("BERTH_LOG").unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    let data = make_data_directory(&args.data)?;
    let library =
        args.simulate.as_deref().map(|fleet| simulation::restart_with_fleet(fleet, &data)).transpose()?;
    let _only = lock(&data)?;
    let name = args.name.clone().unwrap_or_else(host_name);
    let host = open_host(&args, &data, library.as_deref())?;
    let endpoint = identity::endpoint(&args.portal)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    runtime.block_on(serve(args, name, data, host, endpoint))?;
    // Attempts go on under their shims, and waiting threads do not delay the exit.
    runtime.shutdown_background();
    Ok(())
}

/// Creates the data directory with that of the attempts. Returns its canonical path.
fn make_data_directory(data: &Path) -> Result<PathBuf, String> {
    let root = data.join(ATTEMPTS);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&root)
        .map_err(|e| format!("{} cannot be created: {e}", root.display()))?;
    spread_directories(&root);
    data.canonicalize().map_err(|e| e.to_string())
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| "worker".to_owned())
}

/// Finds the means of this host for attempts. `library` is the simulated NVML.
fn open_host(args: &Run, data: &Path, library: Option<&Path>) -> Result<Host, String> {
    // Before the first thread.
    let ceilings = LimitCeilings::probe();
    let device_tree = DeviceTree::default();
    if library.is_none() {
        // NVML and the first job need them.
        for missing in device_tree.make_all(Instant::now()) {
            tracing::warn!("{missing}.");
        }
    }
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let forker = Forker::new(this.clone());
    forker.start().map_err(|e| format!("the helper process for starts of jobs cannot be started: {e}"))?;
    let gpus = Gpus::open(library).map_err(|e| {
        format!("NVML cannot be used: {e}. Install the driver of NVIDIA and check that nvidia-smi works, or simulate boards with --simulate 2xH100-80GB")
    })?;
    let gpus = match library {
        Some(_) => gpus.with_reset_program(simulation::reset_program(this)),
        None => gpus,
    };
    let (sandbox, mounts) = probe_sandbox(args, data)?;
    let root = data.join(ATTEMPTS);
    let network =
        Arc::new(JobNetwork::open(&args.network, (data, Path::new(OWN_PROGRAM)), sandbox.has_users())?);
    let cgroups = Cgroups::find(&args.cgroup, &root);
    cgroups.limit_all_jobs(capacity::memory_mib());
    let images = probe_images(args, data, &sandbox, &cgroups);
    // Without a sandbox a job could change the files of the cache, and with them the inputs of later jobs.
    let cache_gib = if sandbox.isolated() { args.cache_gib } else { Some(0) };
    let cache = cache::open_or_warn(&data.join(CACHE), data, cache_gib, args.cache_free_gib);
    let clearing = open_clearing(args, data, library.is_some())?;
    Ok(Host {
        root,
        forker,
        gpus: Arc::new(gpus),
        sharers: BoardSharers::default(),
        clearing,
        sandbox,
        cgroups,
        network,
        images,
        mounts,
        cache,
        device_tree,
        rdma: rdma_tree(args),
        limits: BoardLimits {
            pids: args.job_pids,
            open_files: args.job_open_files,
            disk_mib: args.job_disk_mib,
            ceilings,
        },
        simulated: library.is_some(),
        grace_ms: i64::from(args.stop_grace_s) * 1_000,
    })
}

/// Opens the clearing of the memory of GPUs. The memory of simulated boards is cleared on request only.
fn open_clearing(args: &Run, data: &Path, simulated: bool) -> Result<MemoryClearing, String> {
    let chosen = args.clearing.clear_memory;
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let helper = match (simulated, chosen) {
        (false, _) => Ok(ClearingHelper { program, library: None, variables: Vec::new() }),
        (true, None) => Err("the boards are simulated".to_owned()),
        (true, Some(_)) => simulation::find_cuda_library(data)
            .map(|(library, name)| ClearingHelper { program, library: Some(library), variables: vec![name] })
            .ok_or_else(|| "no CUDA driver library".to_owned()),
    };
    MemoryClearing::open(chosen, helper, data)
}

/// The RDMA devices of the host. Simulated boards have simulated devices or none.
fn rdma_tree(args: &Run) -> RdmaTree {
    match (&args.simulate, &args.simulate_rdma) {
        (None, _) => RdmaTree::default(),
        (Some(_), Some(root)) => RdmaTree::below(root),
        (Some(_), None) => RdmaTree::absent(),
    }
}

fn probe_sandbox(args: &Run, data: &Path) -> Result<(Sandbox, HostMounts), String> {
    let mut hidden = vec![data.to_owned()];
    for dir in &args.hide {
        hidden.push(dir.canonicalize().map_err(|e| format!("--hide {}: {e}", dir.display()))?);
    }
    let mounts = args.mounts.open(&hidden, args.job_users)?;
    hidden.extend(mounts.directories().into_iter().map(|(_, dir)| dir));
    match Sandbox::probe(hidden, args.job_users) {
        Ok(sandbox) => Ok((sandbox, mounts)),
        Err(why) if args.allow_unisolated => {
            tracing::warn!(why, "jobs run WITHOUT isolation");
            Ok((Sandbox::Process, mounts))
        }
        Err(why) => Err(format!("{why}. --allow-unisolated permits jobs without isolation")),
    }
}

/// Joins the portal and runs the daemon until a signal, or until the end of a shutdown of the host.
async fn serve(args: Run, name: String, data: PathBuf, host: Host, endpoint: Endpoint) -> Result<(), String> {
    let identity = identity::obtain(&data, &endpoint, args.join_token.as_deref(), &name).await?;
    println!("{name} is {}", identity.node);
    let (events, session) = tokio::sync::mpsc::channel(64);
    let start = DaemonStart::record(&data)?;
    let telemetry = Telemetry::new(&name, args.metrics_listen.is_some());
    let telemetry = Arc::new(telemetry.with_cache(host.cache.clone()));
    if let Some(cache) = host.cache.clone() {
        tokio::spawn(cache.watch_free_space());
    }
    if let Some(address) = args.metrics_listen {
        metrics_server::start(address, &data, telemetry.clone()).await?;
    }
    tokio::spawn(link::run(Link { portal: endpoint, identity, data, start }, events));
    let (cgroups, network) = (host.cgroups.clone(), host.network.clone());
    JobNetwork::watch_rules(&network);
    let node = NodeDescription {
        address: args.address.unwrap_or_else(|| capacity::address_towards(&args.portal)),
        labels: args.labels.into_iter().collect(),
    };
    let (shut_down, shutdown) = tokio::sync::oneshot::channel();
    let mut daemon = pin!(reconcile::run(host, node, telemetry, session, shutdown));
    let result = tokio::select! {
        result = &mut daemon => result,
        () = stopped() => {
            if shutdown::is_under_way().await && shut_down.send(()).is_ok() {
                tokio::select! {
                    result = daemon => result,
                    () = stopped() => Ok(()),
                }
            } else {
                Ok(())
            }
        }
    };
    cgroups.clear_pool();
    network.close();
    result
}

/// Runs podman in place of this program, with the worker's images.
fn podman(data: &Path, args: &[String]) -> Result<(), String> {
    let data = data.canonicalize().map_err(|e| format!("{}: {e}", data.display()))?;
    let limits = ImageLimits { longest: Duration::ZERO, most_mib: 0, auth_file: None };
    let podman = Podman::probe(&data, limits)?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let error = podman.command(&args).stdin(std::process::Stdio::inherit()).exec();
    Err(format!("podman cannot be started: {error}"))
}

/// The podman for images, or the reason why there is none.
fn probe_images(args: &Run, data: &Path, sandbox: &Sandbox, cgroups: &Cgroups) -> Result<Podman, String> {
    let found = if args.no_images {
        Err("the worker was started with --no-images".to_owned())
    } else if !sandbox.has_users() {
        Err("jobs have no users of their own on this node".to_owned())
    } else if cgroups.is_empty() {
        Err("cgroups cannot be created on this node".to_owned())
    } else {
        Podman::probe(
            data,
            ImageLimits {
                longest: Duration::from_secs(args.image_pull_timeout_s),
                most_mib: args.image_mib,
                auth_file: args.registry_auth_file.clone(),
            },
        )
    };
    match &found {
        Ok(podman) => tracing::info!(with = podman.name(), "jobs with images are possible"),
        Err(why) => tracing::info!(why, "jobs with images are impossible on this node"),
    }
    found
}

/// `NAME=VALUE`, both of 1 to 63 printable characters.
fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, such as rack=r12")?;
    let good = |part: &str| (1..=63).contains(&part.len()) && !part.chars().any(char::is_control);
    if good(name) && good(value) {
        Ok((name.to_owned(), value.to_owned()))
    } else {
        Err("the name and the value of a label have 1 to 63 printable characters".to_owned())
    }
}

/// Locks the data directory for one daemon.
fn lock(data: &Path) -> Result<Flock<std::fs::File>, String> {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(data.join("worker.lock"))
        .map_err(|e| e.to_string())?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| format!("another worker uses the data directory {}", data.display()))
}

/// Resolves on Ctrl-C or SIGTERM.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let (term, interrupt) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    match (term, interrupt) {
        (Ok(mut term), Ok(mut interrupt)) => {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        // Without handlers the signals end the process at once; attempts survive that.
        _ => std::future::pending().await,
    }
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

    #[test]
    fn labels_are_names_with_values() {
        assert_eq!(label("rack=r=1"), Ok(("rack".to_owned(), "r=1".to_owned())));
        for bad in ["rack", "=r1", "rack=", "a\nb=c"] {
            assert!(label(bad).is_err(), "{bad:?}");
        }
    }
}
