//! A sandbox without anything around it: starts the command of an attempt again and again, in so many loops at
//! once, for so many seconds. Prints `{"per_second": …}`.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_isolation::sandbox::open_files;
use berth_shim::Launch;
use berth_system::reaping::end_all;
use clap::Parser;
use nix::sys::prctl::set_child_subreaper;

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

/// Starts it until the time is over; how often.
fn one_loop(launch: &Launch, seconds: u64) -> io::Result<u64> {
    // What a sandbox leaves behind is this process's to collect, as it is a shim's.
    set_child_subreaper(true)?;
    // Once for all starts: what is compared with this has to do it anew for each.
    let (argv, mut files) = open_files(&launch.argv)?;
    let (program, args) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut done = 0;
    while Instant::now() < end {
        files.rewind()?;
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
        end_all();
        done += 1;
    }
    Ok(done)
}

/// So many loops at once, each in a process of its own; starts a second of all together.
fn all_loops(args: &Args) -> io::Result<f64> {
    let this = std::env::current_exe()?;
    let one = || {
        let mut command = Command::new(&this);
        command.arg("--launch").arg(&args.launch).args(["--loops", "1", "--seconds"]);
        command.arg(args.seconds.to_string()).stdout(Stdio::piped()).spawn()
    };
    let loops: Vec<Child> = (0..args.loops).map(|_| one()).collect::<io::Result<_>>()?;
    let mut all = 0.0;
    for child in loops {
        let output = child.wait_with_output()?;
        let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        all += said
            .get("per_second")
            .and_then(serde_json::Value::as_f64)
            .ok_or_else(|| io::Error::other("a loop said nothing"))?;
    }
    Ok(all)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let per_second = if args.loops > 1 {
        all_loops(&args)?
    } else {
        let launch: Launch = serde_json::from_slice(&std::fs::read(&args.launch)?)?;
        let began = Instant::now();
        one_loop(&launch, args.seconds)? as f64 / began.elapsed().as_secs_f64()
    };
    println!("{{\"per_second\": {per_second:.1}}}");
    Ok(())
}
