//! The progress of an attempt's preparation, and the digest of its image.

use berth_core::images::Reference;
use berth_proto::{Phase, Status};
use berth_types::jobs::{Job, JobState};

use berth_store::attempts::AttemptRow;

/// The most characters of a worker's progress text that are stored.
const MAX_CHARS: usize = 500;

/// The full name of an image for a worker; empty without an image. The submission has checked the name
/// already.
pub fn full_image_name(name: Option<&str>) -> String {
    name.and_then(|name| Reference::parse(name).ok()).map_or_else(String::new, |image| image.full_name())
}

fn clean_text(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect()
}

/// A valid SHA-256 digest of an image; `None` for any other text.
fn parse_digest(text: &str) -> Option<String> {
    let hex = text.strip_prefix("sha256:")?;
    (hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())).then(|| text.to_owned())
}

/// Brings the progress and the image of a rank up to a report. Returns true if one of them changed.
pub fn update_progress(row: &mut AttemptRow, status: &Status) -> bool {
    let progress = match status.phase() {
        // A repeated old report does not undo a newer one.
        Phase::Preparing if !row.running && !row.ended => clean_text(&status.progress),
        _ => String::new(),
    };
    let image_digest = parse_digest(&status.image_digest).or_else(|| row.image_digest.clone());
    let changed = row.progress != progress || row.image_digest != image_digest;
    (row.progress, row.image_digest) = (progress, image_digest);
    changed
}

/// Adds the progress and the image digests of an attempt to a job.
pub fn add_progress(shown: &mut Job, ranks: Vec<AttemptRow>) {
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
    use uuid::Uuid;

    use super::*;

    fn row() -> AttemptRow {
        AttemptRow {
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
        }
    }

    #[test]
    fn the_last_progress_is_kept_until_the_run() {
        let mut row = row();
        let report = |phase: Phase, progress: &str, digest: &str| Status {
            phase: phase.into(),
            progress: progress.to_owned(),
            image_digest: digest.to_owned(),
            ..Status::default()
        };
        assert!(update_progress(&mut row, &report(Phase::Preparing, "Pulling\n x.", "")));
        assert_eq!(row.progress, "Pulling x.");
        assert!(!update_progress(&mut row, &report(Phase::Preparing, "Pulling\n x.", "not one")));
        assert_eq!(row.image_digest, None);
        let name = format!("sha256:{}", "0f".repeat(32));
        assert!(update_progress(&mut row, &report(Phase::Running, "", &name)));
        row.running = true;
        assert_eq!((row.progress.as_str(), row.image_digest.as_ref()), ("", Some(&name)));
        assert!(!update_progress(&mut row, &report(Phase::Preparing, "Pulling x.", "")), "it comes late");
        assert_eq!((row.progress.as_str(), row.image_digest.as_ref()), ("", Some(&name)));
        update_progress(&mut self::row(), &report(Phase::Preparing, &"x".repeat(9_000), ""));
    }

    #[test]
    fn workers_get_full_image_names() {
        assert_eq!(full_image_name(Some("alpine:3.20")), "docker.io/library/alpine:3.20");
        assert_eq!(full_image_name(None), "");
        assert_eq!(full_image_name(Some("dir:/etc")), "");
    }
}
