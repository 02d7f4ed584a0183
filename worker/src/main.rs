//! `berth-worker`: the daemon on a GPU host.

mod options;

use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_clearing::{ClearingHelper, MemoryClearing};
use berth_exec::dialer;
use berth_exec::nsenter::{self, EntryTarget};
use berth_gpu::nvml_command;
use berth_gpu::{open_in_helper, simulation};
use berth_images::{ImageLimits, Podman};
use berth_isolation::cgroups::Cgroups;
use berth_isolation::device_nodes::DeviceTree;
use berth_isolation::sandbox::Sandbox;
use berth_job_files::cache;
use berth_job_files::inputs::host_mounts::HostMounts;
use berth_network::{JobNetwork, preflight, tunnel};
use berth_replicas::ReplicaListener;
use berth_session::ServedCertificate;
use berth_session::identity::{self, DaemonStart};
use berth_session::link::{self, Link};
use berth_shim::forker::{self, Forker};
use berth_shim::{BoardLimits, LimitCeilings};
use berth_system::files::spread_directories;
use berth_system::pty::TerminalSize;
use berth_system::rdma::RdmaTree;
use berth_system::{capacity, processes, shutdown};
use berth_worker::attempt::Host;
use berth_worker::devices::BoardSharers;
use berth_worker::reconcile::{self, NodeDescription};
use berth_worker::telemetry::{Telemetry, metrics_server};
use clap::Parser;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use options::{Args, Command, Run};
use tonic::transport::Endpoint;

/// The directory of attempts in the data directory.
const ATTEMPTS: &str = "attempts";
/// The directory of cached files in the data directory.
const CACHE: &str = "cache";
/// The program of this process, also after its replacement by a newer one.
const OWN_PROGRAM: &str = "/proc/self/exe";

fn main() -> ExitCode {
    let close = || processes::close_inherited().map_err(|e| e.to_string());
    let result = match Args::parse().command {
        Command::NvidiaSmi { gpu_reset: true, id } => simulation::run_nvidia_smi(&id),
        Command::NvidiaSmi { .. } => Err("the one supported request is --gpu-reset -i UUID,…".to_owned()),
        Command::Nvml { library } => close().and_then(|()| {
            start_log();
            nvml_command::run(library)
        }),
        Command::Shim { dir } => close().and_then(|()| berth_shim::run(&dir)),
        Command::Forker => close().and_then(|()| forker::run().map_err(|e| e.to_string())),
        Command::Tunnel { interface } => tunnel::run(&interface),
        Command::Preflight { namespace } => preflight::run(&namespace),
        Command::Enter { dir, cols, rows, port, dialer } => {
            let shell = || EntryTarget::Shell(TerminalSize::clamped(cols, rows));
            let target = port.map_or_else(shell, EntryTarget::Port);
            let enter = || if dialer { dialer::run(&dir) } else { nsenter::run(&dir, target) };
            match close().and_then(|()| enter()) {
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

fn start_log() {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("BERTH_LOG").unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .init();
}

fn run(args: Run) -> Result<(), String> {
    start_log();
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
    let forker = Forker::new(this);
    forker.start().map_err(|e| format!("the helper process for starts of jobs cannot be started: {e}"))?;
    let gpus = open_in_helper(Path::new(OWN_PROGRAM), library).map_err(|e| {
        format!("NVML cannot be used: {e}. Install the driver of NVIDIA and check that nvidia-smi works, or simulate boards with --simulate 2xH100-80GB")
    })?;
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
        rdma_program: rdma_program(args),
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

/// The program for the measurement of RDMA links. `None`: this worker does not measure them.
fn rdma_program(args: &Run) -> Option<PathBuf> {
    // The TCP ports of the measurement are for root only.
    let can_measure = args.rdma_check && geteuid().is_root() && rdma_tree(args).is_of_host();
    if can_measure { preflight::find_rdma_program() } else { None }
}

/// The RDMA devices of the host. Simulated boards have those of the given directory or none.
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
    let served = Arc::new(ServedCertificate::new(&identity)?);
    let gateways = ReplicaListener::open(args.replicas.inference_listen, &data, served.clone()).await?;
    tokio::spawn(link::run(Link { portal: endpoint, identity, served, data, start }, events));
    let (cgroups, network) = (host.cgroups.clone(), host.network.clone());
    JobNetwork::watch_rules(&network);
    let node = NodeDescription {
        address: args.address.unwrap_or_else(|| capacity::address_towards(&args.portal)),
        labels: args.labels.into_iter().collect(),
        inference_port: gateways.as_ref().map_or(0, ReplicaListener::port),
    };
    let (shut_down, shutdown) = tokio::sync::oneshot::channel();
    let mut daemon = pin!(reconcile::run(host, node, telemetry, gateways, session, shutdown));
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

/// The longest wait for the lock of a killed daemon.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Locks the data directory for one daemon. A child that a killed daemon had just forked keeps the lock until it runs its
/// own program.
fn lock(data: &Path) -> Result<Flock<std::fs::File>, String> {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(data.join("worker.lock"))
        .map_err(|e| e.to_string())?;
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => return Ok(lock),
        Err((file, _)) => file,
    };
    tracing::warn!(data = %data.display(), "another worker uses the data directory; waiting for its end");
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    // A thread that gets no lock ends with the process.
    std::thread::spawn(move || send.send(Flock::lock(file, FlockArg::LockExclusive)));
    match receive.recv_timeout(LOCK_WAIT) {
        Ok(Ok(lock)) => Ok(lock),
        Ok(Err((_, errno))) => {
            Err(format!("the data directory {} cannot be locked: {errno}", data.display()))
        }
        Err(_) => Err(format!("another worker uses the data directory {}", data.display())),
    }
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
