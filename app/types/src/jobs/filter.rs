//! The filter of the list of an organization's jobs.

use serde::{Deserialize, Serialize};

use super::{Job, JobState};

/// A filter of an organization's jobs. A job matches if it matches each field; an absent field matches every
/// job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OrgJobFilter {
    /// The state of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// True for ended jobs, false for jobs that have not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<bool>,
    /// A part of the name without regard to the case of A to Z, 1 to 100 printable characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::PRINTABLE)))]
    pub name: Option<String>,
    /// A part of the name of the submitting user without regard to the case of A to Z, 1 to 100 printable characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::PRINTABLE)))]
    pub created_by: Option<String>,
    /// A label as `key=value`, with a key of at least one character: at most 127 bytes without control
    /// characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 2, max = 127), regex(pattern = crate::patterns::LABEL)))]
    pub label: Option<String>,
}

/// The body of a bulk stop in an organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StopOrgJobs {
    /// The filter of the jobs; all jobs of the organization when absent.
    #[serde(default)]
    pub filter: OrgJobFilter,
    /// The number of jobs in the preview. A greater number of matching jobs refuses the stop. Not required
    /// for a preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u64>,
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

    /// Returns true if only ended jobs can match.
    pub fn is_of_ended_jobs(&self) -> bool {
        self.ended == Some(true) || self.state.is_some_and(JobState::ended)
    }

    /// The conditions in words, such as `state timed out, label “team=a”`; empty without a condition.
    pub fn text(&self) -> String {
        let part = |kind: &str, text: &Option<String>| text.as_ref().map(|text| format!("{kind} “{text}”"));
        let parts = [
            self.state.map(|state| format!("state {}", state.name().replace('_', " "))),
            self.ended.map(|ended| String::from(if ended { "ended" } else { "active" })),
            part("name with", &self.name),
            part("submitted by", &self.created_by),
            part("label", &self.label),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
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

    #[test]
    fn each_condition_is_in_the_text() {
        let none = OrgJobFilter::default();
        assert_eq!((none.text().as_str(), none.is_of_ended_jobs()), ("", false));
        let text = |text: &str| Some(text.to_owned());
        let all = OrgJobFilter {
            state: Some(JobState::TimedOut),
            ended: Some(true),
            name: text("ocr"),
            created_by: text("ada"),
            label: text("a=b"),
        };
        let words = "state timed out, ended, name with “ocr”, submitted by “ada”, label “a=b”";
        assert_eq!((all.text().as_str(), all.is_of_ended_jobs()), (words, true));
        let active = OrgJobFilter { ended: Some(false), ..none };
        assert_eq!((active.text().as_str(), active.is_of_ended_jobs()), ("active", false));
    }
}
