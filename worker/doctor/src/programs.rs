//! The programs that the worker uses.

use super::commands::CommandError;
use super::finding::Finding;
use super::host::Host;
use super::settings::Settings;

const BUBBLEWRAP: &str = "programs.bubblewrap";
const NETWORK: &str = "programs.network";
const PODMAN: &str = "programs.podman";
const TOOLKIT: &str = "programs.toolkit";

/// The checks of programs. The container toolkit is for the images of real boards.
pub(crate) fn findings(host: &Host) -> Vec<Finding> {
    let mut findings = vec![bubblewrap(host), network(host), podman(host)];
    if !host.simulated {
        findings.push(toolkit(host));
    }
    findings
}

/// The first line of a program's answer to `--version`.
fn version(host: &Host, name: &str) -> Result<String, CommandError> {
    let text = host.ask(name, &["--version"])?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

fn bubblewrap(host: &Host) -> Finding {
    match version(host, "bwrap") {
        Ok(version) => Finding::ok(BUBBLEWRAP, format!("{version} is installed.")),
        Err(CommandError::Missing) => Finding::problem(
            BUBBLEWRAP,
            "bubblewrap is not installed, so the worker does not start.",
            "apt-get install bubblewrap",
        ),
        Err(error) => Finding::problem(
            BUBBLEWRAP,
            format!("bwrap gives no version: {error}. The worker does not start without a sandbox."),
            "bwrap --version",
        ),
    }
}

/// The programs that give each job a network of its own.
fn network(host: &Host) -> Finding {
    if !host.is_root() {
        return Finding::ok(NETWORK, "A worker without root gives jobs the host's network.");
    }
    if Settings::read(&host.root).job_network.as_deref() == Some("host") {
        return Finding::ok(NETWORK, "BERTH_JOB_NETWORK=host gives jobs the host's network.");
    }
    let is_missing = |(program, _): &(&str, &str)| host.find_program(program).is_none();
    let missing: Vec<(&str, &str)> =
        [("ip", "iproute2"), ("nft", "nftables")].into_iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Finding::ok(NETWORK, "ip and nft are installed.");
    }
    let join = |names: Vec<&str>, by: &str| names.join(by);
    let programs = join(missing.iter().map(|(program, _)| *program).collect(), " and ");
    let packages = join(missing.iter().map(|(_, package)| *package).collect(), " ");
    Finding::problem(
        NETWORK,
        format!(
            "The programs for the networks of jobs are missing, so the worker does not start: {programs}."
        ),
        format!(
            "apt-get install {packages}. To share the host's network: add BERTH_JOB_NETWORK=host to /etc/berth/worker.env"
        ),
    )
}

fn podman(host: &Host) -> Finding {
    match version(host, "podman") {
        Ok(version) => Finding::ok(PODMAN, format!("{version} is installed.")),
        Err(CommandError::Missing) => Finding::warning(
            PODMAN,
            "podman is not installed, so the node takes no jobs with images.",
            "apt-get install podman, then: systemctl restart berth-worker",
        ),
        Err(error) => Finding::warning(
            PODMAN,
            format!("podman gives no version: {error}. The node can take no jobs with images."),
            "podman --version",
        ),
    }
}

fn toolkit(host: &Host) -> Finding {
    match version(host, "nvidia-ctk") {
        Ok(version) => Finding::ok(TOOLKIT, format!("{version} is installed.")),
        Err(CommandError::Missing) => Finding::ok(
            TOOLKIT,
            "The container toolkit of NVIDIA is not installed. Images get the driver's files of this host.",
        ),
        Err(error) => Finding::warning(
            TOOLKIT,
            format!("nvidia-ctk gives no version: {error}."),
            "nvidia-ctk --version",
        ),
    }
}
