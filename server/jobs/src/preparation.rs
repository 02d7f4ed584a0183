//! The progress of an attempt's preparation, and the digest of its image.

use berth_core::images::Reference;
use berth_types::jobs::{Job, JobState};

use crate::reports::{AttemptPhase, AttemptReport};
use berth_store::attempts::StoredAttempt;

/// The full name of an image for a worker; `None` without an image. The submission has checked the name
/// already.
pub fn full_image_name(name: Option<&str>) -> Option<String> {
    name.and_then(|name| Reference::parse(name).ok()).map(|image| image.full_name())
}

/// Brings the progress and the image of a rank up to a report. Returns true if one of them changed.
pub fn update_progress(row: &mut StoredAttempt, report: &AttemptReport) -> bool {
    let progress = match report.phase {
        // A repeated old report does not undo a newer one.
        AttemptPhase::Preparing if !row.running && !row.ended => report.progress.clone().unwrap_or_default(),
        _ => String::new(),
    };
    let image_digest = report.image_digest.clone().or_else(|| row.image_digest.clone());
    let changed = row.progress != progress || row.image_digest != image_digest;
    (row.progress, row.image_digest) = (progress, image_digest);
    changed
}

/// Adds the progress and the image digests of an attempt to a job.
pub fn add_progress(shown: &mut Job, ranks: Vec<StoredAttempt>) {
    let is_prepared = matches!(shown.state, JobState::Assigned | JobState::Starting);
    if !is_prepared && shown.image.is_none() {
        return;
    }
    let several = ranks.len() > 1;
    for rank in ranks.iter().filter(|r| is_prepared && !r.progress.is_empty()) {
        shown.reasons.push(match several {
            true => format!("Rank {}: {}", rank.rank, rank.progress),
            false => rank.progress.clone(),
        });
    }
    shown.image_digests = ranks.into_iter().filter_map(|r| r.image_digest).collect();
}

#[cfg(test)]
mod tests {
    use berth_types::ids::{JobId, NodeId, OrgId};
    use berth_types::time::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn row() -> StoredAttempt {
        StoredAttempt {
            job_id: JobId::from_uuid(Uuid::nil()),
            number: 1,
            rank: 0,
            org_id: OrgId::from_uuid(Uuid::nil()),
            node_id: NodeId::from_uuid(Uuid::nil()),
            known: false,
            running: false,
            ended: false,
            outcome: None,
            ended_at: None,
            clean: false,
            log_bytes: None,
            is_open: true,
            evidence: None,
            saving: false,
            progress: String::new(),
            image_digest: None,
            created_at: Timestamp::default(),
        }
    }

    #[test]
    fn the_last_progress_is_kept_until_the_run() {
        let mut row = row();
        let report = |phase: AttemptPhase, progress: Option<&str>, digest: Option<&String>| AttemptReport {
            progress: progress.map(str::to_owned),
            image_digest: digest.cloned(),
            ..AttemptReport::new(JobId::from_uuid(Uuid::nil()), 1, phase)
        };
        let preparing = report(AttemptPhase::Preparing, Some("Pulling x."), None);
        assert!(update_progress(&mut row, &preparing));
        assert_eq!(row.progress, "Pulling x.");
        assert!(!update_progress(&mut row, &preparing));
        assert_eq!(row.image_digest, None);
        let name = format!("sha256:{}", "0f".repeat(32));
        assert!(update_progress(&mut row, &report(AttemptPhase::Running, None, Some(&name))));
        row.running = true;
        assert_eq!((row.progress.as_str(), row.image_digest.as_ref()), ("", Some(&name)));
        assert!(!update_progress(&mut row, &preparing), "it comes late");
        assert_eq!((row.progress.as_str(), row.image_digest.as_ref()), ("", Some(&name)));
    }

    #[test]
    fn workers_get_full_image_names() {
        assert_eq!(full_image_name(Some("alpine:3.20")).unwrap(), "docker.io/library/alpine:3.20");
        assert_eq!(full_image_name(None), None);
        assert_eq!(full_image_name(Some("dir:/etc")), None);
    }
}
