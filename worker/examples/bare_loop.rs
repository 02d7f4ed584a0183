//! A sandbox without anything around it: starts the command of an attempt again and again, in so many loops at
//! once, for so many seconds. Prints `{"per_second": …}`.

use std::fs::File;
use std::io::{self, Seek};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use berth_worker::sandbox::open_filters;
use berth_worker::shim::Launch;
use clap::Parser;

#[derive(Parser)]
struct Args {
    /// What to run, as a worker writes it down for a shim.
    #[arg(long)]
    launch: PathBuf,
    #[arg(long, default_value_t = 32)]
    loops: usize,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

fn one_loop(launch: &Launch, stop: &AtomicBool, done: &AtomicU64) -> io::Result<()> {
    // Once for all starts: what is compared with this has to do it anew for each.
    let (argv, filters) = open_filters(&launch.argv)?;
    let mut filters: Vec<File> = filters.into_iter().map(File::from).collect();
    let (program, args) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    while !stop.load(Ordering::Relaxed) {
        for filter in &mut filters {
            filter.rewind()?;
        }
        let status = Command::new(program)
            .args(args)
            .env_clear()
            .envs(launch.env.iter().map(|(k, v)| (k, v)))
            .current_dir(&launch.cwd)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()?;
        if !status.success() {
            return Err(io::Error::other(format!("it ended with {status}")));
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let launch: Launch = serde_json::from_slice(&std::fs::read(&args.launch)?)?;
    let launch = Arc::new(launch);
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    let loops: Vec<_> = (0..args.loops)
        .map(|_| {
            let (launch, stop, done) = (launch.clone(), stop.clone(), done.clone());
            std::thread::spawn(move || one_loop(&launch, &stop, &done))
        })
        .collect();
    std::thread::sleep(Duration::from_secs(args.seconds));
    stop.store(true, Ordering::Relaxed);
    for one in loops {
        one.join().map_err(|_| "a loop panicked")??;
    }
    let rate = done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    println!("{{\"per_second\": {rate:.1}}}");
    Ok(())
}
