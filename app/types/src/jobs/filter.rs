//! The filter of the list of an organization's jobs.

use serde::{Deserialize, Serialize};

use super::{Job, JobState};

/// A filter of an organization's jobs. A job matches if it matches each field; an absent field matches every
/// job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OrgJobFilter {
    /// The state of the job.
    pub state: Option<JobState>,
    /// True for ended jobs, false for jobs that have not ended.
    pub ended: Option<bool>,
    /// A part of the name without regard to the case of A to Z, 1 to 100 printable characters.
    pub name: Option<String>,
    /// A part of the name of the submitting user without regard to the case of A to Z, 1 to 100 printable characters.
    pub created_by: Option<String>,
    /// A label as `key=value`, at most 127 bytes.
    pub label: Option<String>,
}

impl OrgJobFilter {
    /// Returns true if a job matches.
    pub fn matches(&self, job: &Job) -> bool {
        let contains = |text: &str, part: &Option<String>| {
            part.as_ref().is_none_or(|part| text.to_ascii_lowercase().contains(&part.to_ascii_lowercase()))
        };
        let has_label = |label: &String| {
            label.split_once('=').is_some_and(|(key, value)| job.labels.get(key).is_some_and(|v| v == value))
        };
        self.state.is_none_or(|state| state == job.state)
            && self.ended.is_none_or(|ended| ended == job.state.ended())
            && contains(&job.name, &self.name)
            && contains(&job.created_by, &self.created_by)
            && self.label.as_ref().is_none_or(has_label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        serde_json::from_value(serde_json::json!({
            "id": "job_00000000000000000000000001", "org": "org_00000000000000000000000001", "name": "Train-7B",
            "state": "running", "reasons": [], "attempt": 1, "offering": "o", "simulated": false, "count": 1,
            "priority": "normal", "max_duration_s": 60, "devices": [], "created_at": "2026-03-01T09:00:00Z",
            "created_by": "Ada Byron", "metered_ms": 0, "cost_micros": 0, "held_micros": 0, "nano_per_second": 1,
            "currency": "USD", "price_version": 1, "generation": 1, "actions": [],
            "labels": {"project": "ocr=2"},
        }))
        .unwrap()
    }

    #[test]
    fn a_job_matches_each_field() {
        let text = |text: &str| Some(text.to_owned());
        let all = OrgJobFilter::default();
        let matching = [
            all.clone(),
            OrgJobFilter { state: Some(JobState::Running), ended: Some(false), ..all.clone() },
            OrgJobFilter { name: text("train"), created_by: text("byron"), ..all.clone() },
            OrgJobFilter { label: text("project=ocr=2"), ..all.clone() },
        ];
        for filter in matching {
            assert!(filter.matches(&job()), "{filter:?}");
        }
        let others = [
            OrgJobFilter { state: Some(JobState::Queued), ..all.clone() },
            OrgJobFilter { ended: Some(true), ..all.clone() },
            OrgJobFilter { name: text("train"), created_by: text("grace"), ..all.clone() },
            OrgJobFilter { label: text("project=ocr"), ..all.clone() },
            OrgJobFilter { label: text("project"), ..all },
        ];
        for filter in others {
            assert!(!filter.matches(&job()), "{filter:?}");
        }
    }
}
