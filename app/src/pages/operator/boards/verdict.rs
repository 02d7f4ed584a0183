//! Verdict about a board with its reason and the next step of the operator.

use berth_types::health::{GpuFacts, GpuHealth, GpuTaskKind};
use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::fault;
use crate::ui::When;

/// The quarantine code of a change of the MIG mode.
const MODE_CHANGE: &str = "gpu.mode";
/// The quarantine code of a reset of a board without a fault.
const BOARD_RESET: &str = "gpu.reset";
/// NVML's bits for clocks reduced by the hardware: a slowdown, its temperature, or the power brake.
const HARDWARE_LIMITS: u64 = 0x8 | 0x40 | 0x80;

const RESET: &str = "Reset the board. The reset waits for the end of its jobs; drain the node to move them. Replace the board if the fault returns.";
const REBOOT: &str = "Drain the node, reboot the host, then check the board.";
const REPLACE: &str = "Drain the node and replace the board.";
const SEARCH: &str = "Drain the node and run nvidia-smi on the host. Reboot the host if the board is missing there, and replace the board if it stays missing.";
const CHECK: &str = "Drain the node, then check the board. Reset the board if the check fails.";
const APPROVE: &str = "Approve the board if you know of it.";
const WAIT: &str = "Wait for the change of the MIG mode. The board returns to service after it.";
const MODE_FAILED: &str = "The change of the MIG mode failed. If it needs a reset, reset the board: the new mode comes into force with the reset. If a process holds the board, end this process, then release the board and change the mode again.";
const WAIT_FOR_RESET: &str = "Wait for the reset. The board returns to service after it.";
const RESET_FAILED: &str =
    "The reset failed. Stop the processes that hold the boards, such as monitors, and reset the board again.";
const FABRIC: &str = "Run systemctl status nvidia-fabricmanager on the host and start the service. The board returns to service with its registration. Slices need no fabric: enable MIG to use them.";

/// The condition of a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Healthy,
    /// In service, with signs of a fault.
    Suspect,
    Failed,
    /// Out of service for a change of the MIG mode or a reset.
    Changing,
}

/// A verdict about a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub condition: Condition,
    pub title: &'static str,
    /// Sentences.
    pub reason: String,
    /// The begin of this condition, if it is known.
    pub since: Option<Timestamp>,
    /// The next step; empty for a healthy board.
    pub next: &'static str,
}

/// Returns the next step for a board without placements. `code`: of its quarantine, `None` for a board without
/// an answer. `open`: its requested reset or change of the MIG mode.
fn next_step(code: Option<&str>, open: Option<GpuTaskKind>, facts: &GpuFacts) -> &'static str {
    if facts.replacement_failed == Some(true) {
        return REPLACE;
    }
    match (code, facts.recovery) {
        (None, _) if facts.awaits_fabric() => FABRIC,
        (None, _) => SEARCH,
        (Some(_), _) if open == Some(GpuTaskKind::Reset) => WAIT_FOR_RESET,
        (Some(_), _) if open.is_some() => WAIT,
        (Some(MODE_CHANGE), _) => MODE_FAILED,
        (Some(BOARD_RESET), _) => RESET_FAILED,
        (Some(_), Some(2)) => REBOOT,
        (Some("gpu.xid" | "gpu.ecc" | "gpu.memory" | "gpu.recovery"), _) => RESET,
        (Some(_), _) => CHECK,
    }
}

/// Returns the requested reset or change of the MIG mode of a board; `None` after its result.
fn open_change(gpu: &GpuHealth) -> Option<GpuTaskKind> {
    let task = gpu.task.as_ref().filter(|task| task.good.is_none())?;
    (task.kind != GpuTaskKind::Check).then_some(task.kind)
}

/// Lists the signs of a fault of a board in service, as sentences.
fn signs(gpu: &GpuHealth) -> Vec<String> {
    let facts = &gpu.facts;
    let is_pending = facts.replacement_pending == Some(true);
    let limited = gpu.reading.throttle_reasons.is_some_and(|bits| bits & HARDWARE_LIMITS != 0);
    let uncorrected = facts.ecc_uncorrected.filter(|count| *count > 0);
    let all = [
        (facts.replacement_failed == Some(true))
            .then(|| "The replacement of a memory row failed.".to_owned()),
        is_pending.then(|| "The replacement of a memory row waits for a reset.".to_owned()),
        facts.recovery.filter(|action| *action > 0).map(|_| "The driver requests a recovery.".to_owned()),
        uncorrected.map(|count| format!("Uncorrected ECC errors since driver load: {count}.")),
        limited.then(|| "The hardware reduces the clocks for temperature or power.".to_owned()),
    ];
    all.into_iter().flatten().collect()
}

impl Verdict {
    /// Returns the verdict about a board by its latest report.
    pub fn from_gpu(gpu: &GpuHealth) -> Self {
        let code = gpu.quarantine.as_ref().map(|quarantine| quarantine.code.as_str());
        if let Some((title, reason, since)) = fault(gpu) {
            let open = open_change(gpu);
            let is_changing = open.is_some() && matches!(code, Some(MODE_CHANGE | BOARD_RESET));
            let condition = if is_changing { Condition::Changing } else { Condition::Failed };
            let is_new = gpu.awaits_approval && code.is_none() && gpu.silent.is_none();
            let next = if is_new { APPROVE } else { next_step(code, open, &gpu.facts) };
            return Self { condition, title, reason, since, next };
        }
        let signs = signs(gpu);
        if signs.is_empty() {
            let (condition, title) = (Condition::Healthy, "Healthy");
            return Self { condition, title, reason: String::new(), since: None, next: "" };
        }
        let next = if gpu.facts.replacement_failed == Some(true) { REPLACE } else { CHECK };
        Self { condition: Condition::Suspect, title: "Suspect", reason: signs.join(" "), since: None, next }
    }

    /// Returns true for a board that takes new jobs.
    pub fn in_service(&self) -> bool {
        matches!(self.condition, Condition::Healthy | Condition::Suspect)
    }

    pub fn is_suspect(&self) -> bool {
        self.condition == Condition::Suspect
    }
}

/// Returns the banner of a verdict; `None` for a healthy board.
pub fn banner(verdict: &Verdict) -> Option<AnyView> {
    let class = match verdict.condition {
        Condition::Healthy => return None,
        Condition::Suspect | Condition::Changing => "banner banner--warn",
        Condition::Failed => "banner banner--error",
    };
    let Verdict { title, reason, since, next, .. } = verdict.clone();
    let since = since.map(|at| view! { " Since " <When at=at/> "." });
    let banner = view! {
        <div class=class role="status">
            <div class="banner__text">
                <strong class="banner__title">{title}</strong>
                {reason}
                {since}
                <p><strong>"Next step: "</strong>{next}</p>
            </div>
        </div>
    };
    Some(banner.into_any())
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::gpu;
    use super::*;

    #[test]
    fn a_board_is_healthy_suspect_or_failed() {
        let verdict = |more: serde_json::Value| {
            let verdict = Verdict::from_gpu(&gpu(more));
            (verdict.condition, verdict.next)
        };
        let facts = |more: serde_json::Value| {
            let mut facts = serde_json::json!({"nvlinks": 0});
            facts.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            facts
        };
        let changing = |code: &str, kind: &str, good: Option<bool>| {
            serde_json::json!({
                "quarantine": {"code": code, "reason": "x"}, "task": {"kind": kind, "good": good},
            })
        };
        for (more, condition, next) in [
            (serde_json::json!({}), Condition::Healthy, ""),
            (
                serde_json::json!({"facts": facts(serde_json::json!({"ecc_uncorrected": 2}))}),
                Condition::Suspect,
                CHECK,
            ),
            (serde_json::json!({"reading": {"throttle_reasons": 0x44}}), Condition::Suspect, CHECK),
            (serde_json::json!({"reading": {"throttle_reasons": 0x4}}), Condition::Healthy, ""),
            // A check fails while a job uses the board.
            (serde_json::json!({"task": {"kind": "check", "good": false}}), Condition::Healthy, ""),
            (serde_json::json!({"silent": "no answer"}), Condition::Failed, SEARCH),
            (serde_json::json!({"present": false}), Condition::Failed, SEARCH),
            (
                serde_json::json!({"quarantine": {"code": "gpu.xid", "reason": "XID 79"}}),
                Condition::Failed,
                RESET,
            ),
            (serde_json::json!({"awaits_approval": true}), Condition::Failed, APPROVE),
            (changing("gpu.mode", "mig_on", None), Condition::Changing, WAIT),
            (changing("gpu.mode", "mig_on", Some(false)), Condition::Failed, MODE_FAILED),
            (changing("gpu.mode", "check", None), Condition::Failed, MODE_FAILED),
            (changing("gpu.reset", "reset", None), Condition::Changing, WAIT_FOR_RESET),
            (changing("gpu.reset", "reset", Some(false)), Condition::Failed, RESET_FAILED),
            (changing("gpu.xid", "reset", None), Condition::Failed, WAIT_FOR_RESET),
            (changing("gpu.xid", "reset", Some(false)), Condition::Failed, RESET),
            (
                serde_json::json!({
                    "silent": "No fabric.",
                    "facts": facts(serde_json::json!({"fabric": {"state": "not_started", "status": 0, "clique": 0}})),
                }),
                Condition::Failed,
                FABRIC,
            ),
            (
                serde_json::json!({
                    "quarantine": {"code": "gpu.recovery", "reason": "x"},
                    "facts": facts(serde_json::json!({"recovery": 2})),
                }),
                Condition::Failed,
                REBOOT,
            ),
            (
                serde_json::json!({
                    "quarantine": {"code": "gpu.memory", "reason": "x"},
                    "facts": facts(serde_json::json!({"replacement_failed": true})),
                }),
                Condition::Failed,
                REPLACE,
            ),
        ] {
            assert_eq!(verdict(more.clone()), (condition, next), "{more}");
        }
        assert_eq!(next_step(Some("device.unavailable"), None, &gpu(serde_json::json!({})).facts), CHECK);
    }

    #[test]
    fn signs_are_sentences() {
        let facts = serde_json::json!({"nvlinks": 0, "ecc_uncorrected": 3, "replacement_pending": true});
        let verdict = Verdict::from_gpu(&gpu(serde_json::json!({"facts": facts})));
        assert_eq!(
            verdict.reason,
            "The replacement of a memory row waits for a reset. Uncorrected ECC errors since driver load: 3."
        );
        assert!(verdict.in_service() && verdict.is_suspect());
    }
}
