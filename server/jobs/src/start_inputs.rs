//! The inputs of a start from the storage: secrets, volumes, artifacts and the checkpoint.
//!
//! The storage writes them into the worker's message, so this module alone in the crate reads a message.

use berth_proto as proto;
use berth_storage::{Files, Secrets, VolumeUses};
use berth_store::attempts::OpenRankRow;
use berth_store::{StoreError, Tx};
use berth_types::jobs::{Failure, NewJob};

use crate::assignments::{
    CheckpointDir, RankSecret, RankStart, RankVolume, RegistryLogin, RestoredCheckpoint,
};

/// The sources of an attempt's inputs beside its submission.
#[derive(Clone)]
pub struct Inputs {
    pub secrets: Secrets,
    pub volumes: VolumeUses,
    pub files: Files,
}

/// An empty text of a message is an absent value.
fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn to_volume(mount: proto::Mount) -> Option<RankVolume> {
    Some(RankVolume {
        volume: mount.volume.parse().ok()?,
        name: mount.name,
        path: mount.path,
        writable: mount.writable,
        bytes: mount.bytes,
    })
}

fn to_restored(restore: proto::Restore) -> Option<RestoredCheckpoint> {
    Some(RestoredCheckpoint {
        file: restore.file.parse().ok()?,
        bytes: restore.bytes,
        sha256: restore.sha256,
    })
}

fn to_login(auth: proto::RegistryAuth) -> RegistryLogin {
    RegistryLogin {
        registry: auth.registry,
        username: auth.username,
        password: auth.password,
        secret: auth.secret,
    }
}

fn to_secret(secret: proto::Secret) -> RankSecret {
    RankSecret {
        name: secret.name,
        value: secret.value,
        env: non_empty(secret.env),
        file: non_empty(secret.file),
    }
}

/// Moves the inputs of a message into a start. `None` for an id that does not parse.
fn move_inputs(spec: proto::Spec, start: &mut RankStart) -> Option<()> {
    start.volumes = spec.volumes.into_iter().map(to_volume).collect::<Option<Vec<_>>>()?;
    start.restored = match spec.restore {
        Some(restore) => Some(to_restored(restore)?),
        None => None,
    };
    start.registry_login = spec.registry_auth.map(to_login);
    start.secrets = spec.secrets.into_iter().map(to_secret).collect();
    start.artifacts = spec.artifacts;
    let every_s = spec.checkpoint_every_s;
    start.checkpoint_dir = non_empty(spec.checkpoint_dir).map(|path| CheckpointDir { path, every_s });
    start.unusable = spec.unusable.map(|failure| Failure { code: failure.code, detail: failure.detail });
    for (name, value) in spec.env {
        // The variables of the start override those of the storage.
        start.env.entry(name).or_insert(value);
    }
    Some(())
}

/// Adds the inputs from the storage to a start. Returns false if the rank must wait for the hand-over of the
/// attempt before it.
///
/// # Errors
/// The database cannot be read, or a stored id does not parse.
pub(crate) async fn add_inputs(
    tx: &mut Tx<'_>,
    inputs: &Inputs,
    row: &OpenRankRow,
    submission: &NewJob,
    start: &mut RankStart,
) -> Result<bool, StoreError> {
    let mut spec = proto::Spec::default();
    inputs.secrets.add_secrets(tx, row.org_id, submission, &mut spec).await?;
    inputs.volumes.add_volumes(tx, row, submission, &mut spec).await?;
    if !inputs.files.add_checkpoint(tx, row, submission, &mut spec).await? {
        return Ok(false);
    }
    move_inputs(spec, start).ok_or_else(|| StoreError::Corrupt(row.job_id.to_string()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_of_the_storage_become_parts_of_a_start() {
        let spec = proto::Spec {
            env: [("A".to_owned(), "storage".to_owned()), ("B".to_owned(), "storage".to_owned())].into(),
            checkpoint_dir: "state".to_owned(),
            secrets: vec![proto::Secret { name: "token".to_owned(), ..proto::Secret::default() }],
            ..proto::Spec::default()
        };
        let mut start = RankStart::default();
        start.env.insert("A".to_owned(), "own".to_owned());
        assert!(move_inputs(spec, &mut start).is_some());
        assert_eq!((start.env["A"].as_str(), start.env["B"].as_str()), ("own", "storage"));
        let dir = CheckpointDir { path: "state".to_owned(), every_s: 0 };
        assert_eq!(start.checkpoint_dir, Some(dir));
        assert_eq!((start.secrets[0].env.as_ref(), start.secrets[0].file.as_ref()), (None, None));
        let mount = proto::Mount { volume: "no id".to_owned(), ..proto::Mount::default() };
        let bad = proto::Spec { volumes: vec![mount], ..proto::Spec::default() };
        assert!(move_inputs(bad, &mut RankStart::default()).is_none());
    }
}
