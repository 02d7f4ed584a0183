//! The input of the form from the submission of an earlier job. Pure.

use berth_types::jobs::{DependsOn, NewJob, Retry, StopWhenIdle, SubmissionChange};
use berth_types::secrets::SecretUse;
use berth_types::volumes::{VolumeMode, VolumeUse};

use super::super::{shell_words, text};
use super::advanced::AdvancedDraft;
use super::checkpoint::CheckpointDraft;
use super::draft::rows::{DependencyRow, SecretRow, VolumeRow};
use super::draft::{Draft, RETRY_ON};
use super::units::LimitUnit;

/// Returns a time limit with the unit of its shortest text.
pub fn limit_text(seconds: u64) -> (String, LimitUnit) {
    if seconds.is_multiple_of(3_600) {
        return ((seconds / 3_600).to_string(), LimitUnit::Hours);
    }
    // Rounded up, because the form rounds down to whole seconds.
    let millionths = (seconds % 60 * 1_000_000).div_ceil(60);
    let text = format!("{}.{millionths:06}", seconds / 60);
    (text.trim_end_matches('0').trim_end_matches('.').to_owned(), LimitUnit::Minutes)
}

/// Returns the changed fields of a submission as text.
pub fn change_text(change: &SubmissionChange) -> String {
    let count = |n: u32, one, many| text::counted(n as usize, one, many);
    let preemptible = |yes| if yes { "preemptible" } else { "not preemptible" };
    let parts = [
        change.offering.clone(),
        change.count.map(|n| count(n, "device per node", "devices per node")),
        change.nodes.map(|n| count(n, "node", "nodes")),
        change.max_duration_s.map(|seconds| format!("time limit {}", text::limit_text(seconds))),
        change.topology.map(|topology| format!("topology {}", text::topology_text(topology))),
        change.preemptible.map(|yes| preemptible(yes).to_owned()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns a share in percent.
fn share_text(milli: u32) -> String {
    if milli.is_multiple_of(10) { (milli / 10).to_string() } else { format!("{}.{}", milli / 10, milli % 10) }
}

fn secret_row(secret: &SecretUse) -> SecretRow {
    let target = secret.file.clone().or_else(|| secret.env.clone()).unwrap_or_default();
    SecretRow { name: secret.name.clone(), as_file: secret.file.is_some(), target }
}

fn volume_row(volume: &VolumeUse) -> VolumeRow {
    let writable = volume.mode == VolumeMode::Rw;
    VolumeRow { name: volume.name.clone(), path: volume.path.clone(), writable }
}

fn dependency_row(dependency: &DependsOn) -> DependencyRow {
    DependencyRow { job: dependency.job.to_string(), condition: dependency.condition }
}

fn checkpoint(job: &NewJob) -> CheckpointDraft {
    let artifacts = job.artifacts.join("\n");
    let Some(checkpoint) = job.checkpoint.clone() else {
        return CheckpointDraft { artifacts, ..CheckpointDraft::default() };
    };
    CheckpointDraft {
        grace: checkpoint.grace_s.to_string(),
        signal: checkpoint.signal,
        dir: checkpoint.dir.unwrap_or_default(),
        every: number(checkpoint.every_s),
        keep: number(checkpoint.keep),
        artifacts,
    }
}

/// Returns a number as text; empty when absent.
fn number<T: ToString>(number: Option<T>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

impl Draft {
    /// Returns the input that makes the same submission, and the parts that the form cannot have.
    pub fn from_submission(job: &NewJob) -> (Self, Vec<&'static str>) {
        let mut absent = Vec::new();
        if job.retry.as_ref().is_some_and(|Retry { on, .. }| RETRY_ON.iter().any(|end| !on.contains(end))) {
            absent.push(
                "which ends are retried. The new job is retried after node loss, preemption and failure",
            );
        }
        let (limit, unit) = limit_text(job.max_duration_s);
        let idle = job.stop_when_idle.unwrap_or_default();
        let StopWhenIdle { below_percent, for_s } = idle;
        let draft = Self {
            name: job.name.clone(),
            count: job.count.to_string(),
            nodes: job.nodes.to_string(),
            as_script: job.script.is_some(),
            command: shell_words::join(job.command.as_deref().unwrap_or_default()),
            script: job.script.clone().unwrap_or_default(),
            image: job.image.clone().unwrap_or_default(),
            registry: job.registry.as_ref().map(|registry| registry.secret.clone()).unwrap_or_default(),
            files: job.files.clone().into_iter().collect(),
            env: job.env.clone().into_iter().collect(),
            limit,
            unit,
            priority: job.priority,
            preemptible: job.preemptible,
            after: job.depends_on.iter().map(dependency_row).collect(),
            share: job.gpu_milli.map(share_text).unwrap_or_default(),
            topology: job.topology,
            retries: job.retry.as_ref().map_or(0, |retry| retry.max).to_string(),
            checkpoint: checkpoint(job),
            advanced: AdvancedDraft {
                network: job.network,
                rdma: job.rdma,
                lease: number(job.lease_s),
                cpus: number(job.cpus),
                memory: number(job.memory_mib),
            },
            reservation: job.reservation,
            secrets: job.secrets.iter().map(secret_row).collect(),
            volumes: job.volumes.iter().map(volume_row).collect(),
            labels: job.labels.clone().into_iter().collect(),
            ports: job.ports.iter().map(u32::to_string).collect(),
            ports_keep_path: job.ports_keep_path,
            idle: job.stop_when_idle.is_some(),
            idle_percent: below_percent.to_string(),
            idle_minutes: for_s.div_ceil(60).to_string(),
            ..Self::new(job.offering.clone())
        };
        (draft, absent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn submission(changes: serde_json::Value) -> NewJob {
        let mut body = json!({
            "name": "train", "offering": "h100-80gb", "count": 2, "nodes": 2, "command": ["sh", "-c", "it's"],
            "image": "alpine:3.20", "registry": {"secret": "pull"}, "env": {"LR": "0.1"},
            "secrets": [{"name": "hf", "env": "HF_TOKEN"}, {"name": "key", "file": "key.pem"}],
            "files": {"a.py": "print(1)"}, "max_duration_s": 5_400, "priority": "high", "preemptible": true,
            "cpus": 8, "memory_mib": 1_024, "topology": "same_rack", "ports": [8_888, 80],
            "ports_keep_path": true, "retry": {"max": 3, "on": ["node_lost", "preempted", "exit"]},
            "checkpoint": {"signal": "SIGUSR1", "grace_s": 60, "dir": "ckpt", "every_s": 300, "keep": 3},
            "artifacts": ["out/**", "*.log"], "lease_s": 600, "labels": {"project": "ocr", "team": ""},
            "volumes": [{"name": "set", "path": "/data", "mode": "ro"}, {"name": "runs", "path": "out", "mode": "rw"}],
            "stop_when_idle": {"below_percent": 30, "for_s": 1_200},
            "reservation": "res_00000000000000000000000001",
            "depends_on": [
                {"job": "job_00000000000000000000000001"},
                {"job": "job_00000000000000000000000002", "condition": "finished"},
            ],
        });
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn a_submission_survives_the_form() {
        let full = submission(json!({}));
        let script =
            submission(json!({"command": null, "script": "echo\n", "checkpoint": null, "retry": null}));
        let shared = submission(json!({"gpu_milli": 125, "network": "none", "stop_when_idle": null}));
        let remote = submission(json!({"rdma": true}));
        for job in [full, script, shared, remote] {
            let (draft, absent) = Draft::from_submission(&job);
            assert_eq!((draft.request(), absent), (Ok(job), Vec::new()));
        }
    }

    #[test]
    fn each_limit_survives_the_form() {
        for seconds in [1, 59, 60, 100, 3_599, 3_600, 5_400, 86_400, 2_591_999, 2_592_000] {
            let job = submission(json!({"max_duration_s": seconds}));
            let draft = Draft::from_submission(&job).0;
            assert_eq!(draft.request().map(|job| job.max_duration_s), Ok(seconds), "{}", draft.limit);
        }
        assert_eq!(limit_text(7_200), ("2".to_owned(), LimitUnit::Hours));
        assert_eq!(limit_text(5_400), ("90".to_owned(), LimitUnit::Minutes));
    }

    #[test]
    fn a_change_is_named() {
        let change = SubmissionChange {
            offering: Some("a30-24gb.2g.12gb".to_owned()),
            count: Some(1),
            max_duration_s: Some(5_400),
            preemptible: Some(true),
            ..SubmissionChange::default()
        };
        assert_eq!(
            change_text(&change),
            "a30-24gb.2g.12gb, 1 device per node, time limit 1 h 30 min, preemptible"
        );
    }

    #[test]
    fn parts_without_a_field_are_named() {
        let absent =
            |on: &[&str]| Draft::from_submission(&submission(json!({"retry": {"max": 1, "on": on}}))).1;
        assert_eq!(absent(&["preempted", "exit", "node_lost"]), [""; 0]);
        assert!(absent(&["exit"]).iter().any(|part| part.starts_with("which ends are retried.")));
    }
}
