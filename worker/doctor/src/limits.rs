//! The limits of the worker's process, which jobs inherit.

use super::finding::Finding;
use super::host::Host;

const FILES: &str = "limits.files";
const MEMLOCK: &str = "limits.memlock";

/// The name of the worker's process.
const WORKER: &str = "berth-worker";
/// The number of the right to raise limits (`CAP_SYS_RESOURCE`) in the sets of rights of a process.
const RAISES_LIMITS: u32 = 24;
/// The fewest open files for a busy node.
const MIN_FILES: u64 = 65_536;

/// The checks of limits: those of the running worker, else those of this process.
pub(crate) fn findings(host: &Host) -> Vec<Finding> {
    let worker = host.processes().into_iter().find(|(_, name)| name == WORKER);
    let limits = worker.and_then(|(id, _)| host.read(format!("/proc/{id}/limits")));
    let text = limits.or_else(|| host.read("/proc/self/limits")).unwrap_or_default();
    vec![files(hard_limit(&text, "Max open files")), memlock(host, hard_limit(&text, "Max locked memory"))]
}

/// A hard limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    Unlimited,
    Value(u64),
}

/// The hard limit with a name in the text of `/proc/ID/limits`.
fn hard_limit(text: &str, name: &str) -> Option<Limit> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().nth(1)? {
        "unlimited" => Some(Limit::Unlimited),
        value => value.parse().ok().map(Limit::Value),
    }
}

/// The step that sets a limit of the unit.
fn set_limit(line: &str) -> String {
    format!(
        "systemctl edit berth-worker, with the lines \"[Service]\" and \"{line}\", then: systemctl restart berth-worker"
    )
}

fn files(limit: Option<Limit>) -> Finding {
    let next = set_limit("LimitNOFILE=1048576");
    match limit {
        None => Finding::unknown(FILES, "The limit of open files is unknown.", next),
        Some(Limit::Value(value)) if value < MIN_FILES => Finding::warning(
            FILES,
            format!("The worker can have {value} open files, so a node with many jobs can fail."),
            next,
        ),
        Some(Limit::Value(value)) => Finding::ok(FILES, format!("The worker can have {value} open files.")),
        Some(Limit::Unlimited) => Finding::ok(FILES, "The open files of the worker have no limit."),
    }
}

/// True if this process can raise limits: the worker is the same user and raises them for jobs.
fn raises_limits(host: &Host) -> bool {
    let status = host.read("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
    rights.is_some_and(|rights| rights & (1 << RAISES_LIMITS) != 0)
}

fn memlock(host: &Host, limit: Option<Limit>) -> Finding {
    let next = set_limit("LimitMEMLOCK=infinity");
    let has_infiniband = !host.names("/sys/class/infiniband").is_empty();
    match limit {
        None => Finding::unknown(MEMLOCK, "The limit of locked memory is unknown.", next),
        Some(Limit::Unlimited) => Finding::ok(MEMLOCK, "The locked memory of jobs has no limit."),
        Some(Limit::Value(_)) if raises_limits(host) => {
            Finding::ok(MEMLOCK, "The worker gives jobs on whole boards locked memory without a limit.")
        }
        Some(Limit::Value(bytes)) if has_infiniband => Finding::warning(
            MEMLOCK,
            format!(
                "Jobs can lock {} KiB of memory, so InfiniBand (RDMA) does not work in them.",
                bytes >> 10
            ),
            next,
        ),
        Some(Limit::Value(bytes)) => Finding::ok(
            MEMLOCK,
            format!("Jobs can lock {} KiB of memory, enough without InfiniBand.", bytes >> 10),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_limits_are_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max locked memory         8388608              unlimited            bytes     \n\
            Max open files            1024                 1048576              files     \n";
        assert_eq!(hard_limit(text, "Max open files"), Some(Limit::Value(1_048_576)));
        assert_eq!(hard_limit(text, "Max locked memory"), Some(Limit::Unlimited));
        assert_eq!(hard_limit(text, "Max processes"), None);
    }
}
