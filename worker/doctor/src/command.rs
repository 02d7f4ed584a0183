//! The command `berth-worker doctor`.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use berth_gpu::Gpus;

use super::finding::{Finding, has_problem};
use super::host::{Host, NvmlStart};
use super::report::report_text;
use super::settings::Settings;
use super::{count_unregistered, examine, nvml_start};

/// The options of the command. The settings of an installed worker are the defaults.
#[derive(Debug, Clone, clap::Args)]
pub struct DoctorArgs {
    /// Prints the findings as a JSON array with `code`, `state`, `found` and `next` of each.
    #[arg(long)]
    json: bool,
    /// The URL of the portal for workers.
    #[arg(long, env = "BERTH_PORTAL")]
    portal: Option<String>,
    /// The directory for all data of the worker.
    #[arg(long, env = "BERTH_WORKER_DATA")]
    data: Option<PathBuf>,
    /// Simulated boards, which need no driver.
    #[arg(long, env = "BERTH_SIMULATE")]
    simulate: Option<String>,
}

/// Examines this host and prints the findings. The exit code is 1 with a problem, or without a result.
pub fn run(args: DoctorArgs) -> ExitCode {
    let printed = findings(args).and_then(|(findings, json)| {
        print(&findings, json)?;
        Ok(has_problem(&findings))
    });
    match printed {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("berth-worker: the host cannot be examined: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The findings, and true for JSON.
fn findings(args: DoctorArgs) -> std::io::Result<(Vec<Finding>, bool)> {
    let DoctorArgs { json, portal, data, simulate } = args;
    let settings = Settings::read(Path::new("/"));
    let data = data.or(settings.data).unwrap_or_else(|| PathBuf::from("worker-data"));
    let simulated = simulate.or(settings.simulate).is_some();
    let (nvml, unregistered_boards) = if simulated {
        (NvmlStart::Untried, 0)
    } else {
        let gpus = Gpus::open(None);
        let unregistered_boards = gpus.as_ref().map_or(0, count_unregistered);
        (nvml_start(gpus.as_ref().map_err(Clone::clone)), unregistered_boards)
    };
    let portal = portal.or(settings.portal);
    let host_mounts = settings.host_mounts;
    let local = Host::local(std::path::absolute(data)?, nvml);
    let host = Host { portal, simulated, host_mounts, unregistered_boards, ..local };
    Ok((examine(&host), json))
}

fn print(findings: &[Finding], json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, findings)?;
        return writeln!(out);
    }
    let coloured = out.is_terminal();
    out.write_all(report_text(findings, coloured).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        doctor: DoctorArgs,
    }

    #[test]
    fn wrong_use_has_the_exit_code_2() {
        let good = Line::try_parse_from(["doctor", "--json", "--data", "/d"]).unwrap().doctor;
        assert!(good.json && good.data == Some(PathBuf::from("/d")), "{good:?}");
        assert_eq!(Line::try_parse_from(["doctor", "--yaml"]).unwrap_err().exit_code(), 2);
    }
}
