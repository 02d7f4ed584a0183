//! What is told of an attempt's preparation: how far it is, and which image it got.

use berth_core::images::Reference;
use berth_proto::{Phase, Status};
use berth_types::jobs::{Job, JobState};

use berth_store::attempts::AttemptRow;
use berth_store::{self as store, StoreError, Tx};

/// Of a worker's sentence, so many characters are kept.
const MOST: usize = 500;

/// An image as a worker is told it; empty: none. What was refused at its submission is never stored.
pub fn image(name: Option<&str>) -> String {
    name.and_then(|name| Reference::parse(name).ok()).map_or_else(String::new, |image| image.in_full())
}

fn sentence(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MOST).collect()
}

/// Only what registries call images.
fn digest(text: &str) -> Option<String> {
    let hex = text.strip_prefix("sha256:")?;
    (hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())).then(|| text.to_owned())
}

/// Takes in what a report says of it; whether something is new to those who look.
pub fn keep(row: &mut AttemptRow, status: &Status) -> bool {
    let progress = match status.phase() {
        // An old word, told again, does not undo a newer one.
        Phase::Preparing if !row.running && !row.ended => sentence(&status.progress),
        _ => String::new(),
    };
    let image_digest = digest(&status.image_digest).or_else(|| row.image_digest.clone());
    let changed = row.progress != progress || row.image_digest != image_digest;
    (row.progress, row.image_digest) = (progress, image_digest);
    changed
}

/// Adds it to a job that is shown.
pub async fn add(tx: &mut Tx<'_>, shown: &mut Job, id: &str, attempt: i64) -> Result<(), StoreError> {
    let is_prepared = matches!(shown.state, JobState::Assigned | JobState::Starting);
    if !is_prepared && shown.image.is_none() {
        return Ok(());
    }
    let ranks = store::attempts::list_ranks(tx, id, attempt).await?;
    let several = ranks.len() > 1;
    for rank in ranks.iter().filter(|r| is_prepared && !r.progress.is_empty()) {
        shown.reasons.push(match several {
            true => format!("Rank {}: {}", rank.rank, rank.progress),
            false => rank.progress.clone(),
        });
    }
    shown.image_digests = ranks.into_iter().filter_map(|r| r.image_digest).collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> AttemptRow {
        AttemptRow {
            job_id: String::new(),
            number: 1,
            rank: 0,
            org_id: String::new(),
            node_id: String::new(),
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
    fn the_last_word_stands_until_it_runs() {
        let mut row = row();
        let word = |phase: Phase, progress: &str, digest: &str| Status {
            phase: phase.into(),
            progress: progress.to_owned(),
            image_digest: digest.to_owned(),
            ..Status::default()
        };
        assert!(keep(&mut row, &word(Phase::Preparing, "Pulling\n x.", "")));
        assert_eq!(row.progress, "Pulling x.");
        assert!(!keep(&mut row, &word(Phase::Preparing, "Pulling\n x.", "not one")));
        assert_eq!(row.image_digest, None);
        let name = format!("sha256:{}", "0f".repeat(32));
        assert!(keep(&mut row, &word(Phase::Running, "", &name)));
        row.running = true;
        assert_eq!((row.progress.as_str(), row.image_digest.as_ref()), ("", Some(&name)));
        assert!(!keep(&mut row, &word(Phase::Preparing, "Pulling x.", "")), "it comes late");
        assert_eq!((row.progress.as_str(), row.image_digest.as_ref()), ("", Some(&name)));
        keep(&mut self::row(), &word(Phase::Preparing, &"x".repeat(9_000), ""));
    }

    #[test]
    fn images_are_told_in_full() {
        assert_eq!(image(Some("alpine:3.20")), "docker.io/library/alpine:3.20");
        assert_eq!((image(None), image(Some("dir:/etc"))), (String::new(), String::new()));
    }
}
