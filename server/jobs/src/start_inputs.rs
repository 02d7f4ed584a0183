//! The inputs of a start from the storage: secrets, volumes, artifacts and the checkpoint.

use berth_foundation::Context;
use berth_foundation::replica_tokens::{TokenRoot, replica_token_hash};
use berth_storage::start_inputs::{CheckpointDir, RestoredCheckpoint, StartCheckpoint, StartInputError};
use berth_storage::{Files, Secrets, VolumeUses};
use berth_store::attempts::StoredOpenRank;
use berth_store::services::replicas;
use berth_store::{StoreError, Tx};
use berth_types::jobs::NewJob;

use crate::assignments::{RankReplica, RankStart};

/// Connections to a replica beyond twice its concurrent requests.
const SPARE_CONNECTIONS: u32 = 16;

/// The sources of an attempt's inputs beside its submission.
#[derive(Clone)]
pub struct Inputs {
    pub secrets: Secrets,
    pub volumes: VolumeUses,
    pub files: Files,
}

/// Adds the inputs from the storage to a start. Returns false if the rank must wait for the hand-over of the
/// attempt before it. A start with an unusable secret has no secrets at all.
///
/// # Errors
/// The database cannot be read.
pub(crate) async fn add_inputs(
    tx: &mut Tx<'_>,
    inputs: &Inputs,
    row: &StoredOpenRank,
    submission: &NewJob,
    start: &mut RankStart,
) -> Result<bool, StoreError> {
    start.artifacts = submission.artifacts.clone();
    match inputs.files.find_start_checkpoint(tx, row, submission).await? {
        StartCheckpoint::Awaited => return Ok(false),
        StartCheckpoint::Unused => {}
        StartCheckpoint::Ready(dir, restored) => add_checkpoint_dir(start, dir, restored),
    }
    match add_secrets_and_volumes(tx, inputs, row, submission, start).await {
        Ok(()) => {}
        Err(StartInputError::Unusable(failure)) => start.unusable = Some(failure),
        Err(StartInputError::Store(error)) => return Err(error),
    }
    Ok(true)
}

/// Adds the part of a replica of a service that gateways reach, to its first rank. The others answer no request, so they
/// have no port.
///
/// # Errors
/// The database cannot be read, or the portal has no key.
pub(crate) async fn add_replica(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &StoredOpenRank,
    submission: &NewJob,
    start: &mut RankStart,
) -> Result<(), StoreError> {
    if row.rank != 0 || !submission.labels.contains_key(replicas::LABEL) {
        return Ok(());
    }
    let Some(terms) = replicas::find_start(tx, row.job_id).await? else { return Ok(()) };
    start.env.insert("PORT".to_owned(), terms.port.to_string());
    let keys = context.keys().map_err(StoreError::Engine)?;
    let attempt = u32::try_from(row.number).unwrap_or(0);
    let token = TokenRoot::find(tx, &keys).await?.token(row.job_id, attempt, 0);
    start.replica = Some(RankReplica {
        port: terms.port,
        http2: terms.http2,
        readiness_path: terms.readiness_path,
        token_sha256: replica_token_hash(&token),
        // Each gateway keeps some connections open between requests.
        max_connections: terms.concurrency.saturating_mul(2).saturating_add(SPARE_CONNECTIONS),
    });
    Ok(())
}

/// A variable of the submission overrides the one with the directory.
fn add_checkpoint_dir(start: &mut RankStart, dir: CheckpointDir, restored: Option<RestoredCheckpoint>) {
    start.env.entry("BERTH_CHECKPOINT_DIR".to_owned()).or_insert_with(|| dir.path.clone());
    start.checkpoint_dir = Some(dir);
    start.restored = restored;
}

async fn add_secrets_and_volumes(
    tx: &mut Tx<'_>,
    inputs: &Inputs,
    row: &StoredOpenRank,
    submission: &NewJob,
    start: &mut RankStart,
) -> Result<(), StartInputError> {
    let opened = inputs.secrets.open_start_secrets(tx, row.org_id, submission).await?;
    (start.secrets, start.registry_login) = (opened.secrets, opened.registry_login);
    start.volumes = inputs.volumes.list_start_volumes(tx, row, submission).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_of_the_submission_overrides_the_directory_of_checkpoints() {
        let dir = || CheckpointDir { path: "state".to_owned(), every_s: 0 };
        let mut start = RankStart::default();
        add_checkpoint_dir(&mut start, dir(), None);
        assert_eq!(
            (start.env["BERTH_CHECKPOINT_DIR"].as_str(), start.checkpoint_dir),
            ("state", Some(dir()))
        );
        let mut start = RankStart::default();
        start.env.insert("BERTH_CHECKPOINT_DIR".to_owned(), "own".to_owned());
        add_checkpoint_dir(&mut start, dir(), None);
        assert_eq!((start.env["BERTH_CHECKPOINT_DIR"].as_str(), start.checkpoint_dir), ("own", Some(dir())));
    }
}
