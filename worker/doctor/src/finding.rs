//! The result of one check.

use serde::Serialize;

/// The longest text of a finding in characters, as the portal accepts it.
pub const MAX_TEXT_CHARS: usize = 300;

/// All codes in the order of the checks. docs/workers.md describes each.
pub const CODES: [&str; 31] = [
    "driver.module",
    "driver.nouveau",
    "driver.library",
    "driver.cuda",
    "driver.nodes",
    "driver.caps",
    "driver.modprobe",
    "boards.persistence",
    "boards.fabric",
    "boards.monitors",
    "programs.bubblewrap",
    "programs.network",
    "programs.podman",
    "programs.toolkit",
    "kernel.iommu",
    "kernel.cgroups",
    "kernel.devices",
    "kernel.namespaces",
    "kernel.apparmor",
    "kernel.hidepid",
    "kernel.clock",
    "limits.files",
    "limits.memlock",
    "disk.space",
    "disk.filesystem",
    "disk.mounts",
    "network.portal",
    "network.infiniband",
    "network.peermem",
    "network.perftest",
    "network.gangs",
];

/// The state of a finding, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingState {
    /// Jobs do not run, or not safely.
    Problem,
    /// Some jobs do not run, or run slowly.
    Warning,
    /// The check has no answer.
    Unknown,
    /// Nothing needs a change.
    Ok,
}

impl FindingState {
    /// The word for people and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Ok => "ok",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// One of [`CODES`].
    pub code: &'static str,
    pub state: FindingState,
    /// A sentence: at most [`MAX_TEXT_CHARS`] characters in one line.
    pub found: String,
    /// The next command, or the file to change, within the same limits. Absent for `ok`.
    pub next: Option<String>,
}

/// The text in one line, within the limit.
fn one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT_CHARS).collect()
}

impl Finding {
    pub(crate) fn ok(code: &'static str, found: impl AsRef<str>) -> Self {
        Self { code, state: FindingState::Ok, found: one_line(found.as_ref()), next: None }
    }

    pub(crate) fn warning(code: &'static str, found: impl AsRef<str>, next: impl AsRef<str>) -> Self {
        Self::with_next(code, FindingState::Warning, found.as_ref(), next.as_ref())
    }

    pub(crate) fn problem(code: &'static str, found: impl AsRef<str>, next: impl AsRef<str>) -> Self {
        Self::with_next(code, FindingState::Problem, found.as_ref(), next.as_ref())
    }

    pub(crate) fn unknown(code: &'static str, found: impl AsRef<str>, next: impl AsRef<str>) -> Self {
        Self::with_next(code, FindingState::Unknown, found.as_ref(), next.as_ref())
    }

    fn with_next(code: &'static str, state: FindingState, found: &str, next: &str) -> Self {
        Self { code, state, found: one_line(found), next: Some(one_line(next)) }
    }
}

/// True if a finding is a problem.
pub fn has_problem(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.state == FindingState::Problem)
}
