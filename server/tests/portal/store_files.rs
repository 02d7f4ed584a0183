//! Tests of stored files of attempts and of volume versions, on every engine.

use crate::common::engines;
use crate::fleet::{job, later, node, now, org, with_jobs, with_nodes, write};
use berth_store::files::StoredFile;
use berth_store::volumes::{StoredVolume, StoredVolumeFile, blobs::StoredBlob, uses::StoredVolumeUse};
use berth_store::{self as store, StoreError};
use berth_types::files::{FileKind, FileState};
use berth_types::ids::{FileId, VolumeId};
use berth_types::lists::ListOptions;
use berth_types::volumes::BlobKind;
use futures::FutureExt;

fn file_id(n: u128) -> FileId {
    FileId::from_uuid(uuid::Uuid::from_u128(n))
}

fn stored_volume() -> StoredVolume {
    StoredVolume {
        id: volume(),
        org_id: org(),
        name: "data".to_owned(),
        max_bytes: 100,
        class: None,
        version: 1,
        created_by: "a@b".to_owned(),
        created_at: now(),
        changed_at: now(),
    }
}

fn volume() -> VolumeId {
    VolumeId::from_uuid(uuid::Uuid::from_u128(1))
}

fn file(n: u128, attempt: i64, kind: FileKind, seq: i64, state: FileState) -> StoredFile {
    StoredFile {
        id: file_id(n),
        org_id: org(),
        job_id: job(1),
        attempt,
        rank: 0,
        kind,
        seq,
        path: format!("p{seq}"),
        bytes: 100,
        sha256: "00".to_owned(),
        files: 1,
        state,
        note: None,
        created_at: now(),
    }
}

#[tokio::test]
async fn files_are_counted_ordered_and_abandoned() {
    for (engine, db, _location) in engines("files").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        use FileKind::{Artifact, Checkpoint};
        use FileState::{Complete, Gone, Partial, Refused};
        write(&db, |tx| {
            async move {
                store::attempts::insert(tx, job(1), (2, 0), org(), node(1), 0, now()).await?;
                for row in [
                    file(1, 1, Checkpoint, 7, Complete),
                    file(2, 2, Checkpoint, 3, Complete),
                    file(3, 2, Checkpoint, 4, Partial),
                    file(4, 1, Checkpoint, 9, Partial),
                    file(5, 1, Artifact, 0, Refused),
                ] {
                    store::files::insert(tx, &row).await?;
                }
                Ok(())
            }
            .boxed()
        })
        .await;
        let twice = db.write(|tx| {
            async move { store::files::insert(tx, &file(6, 2, Checkpoint, 3, Partial)).await }.boxed()
        });
        assert!(matches!(twice.await, Err(StoreError::Duplicate)), "{engine}");
        assert_eq!(
            read!(db, store::storage::file_bytes, org()),
            (400, 0),
            "{engine}: what is refused takes no room"
        );
        assert_eq!(read!(db, store::files::count_for_job, job(1)), 5, "{engine}");
        let order = read!(db, store::files::list_checkpoints, job(1), 0);
        let order: Vec<(i64, i64)> = order.iter().map(|f| (f.attempt, f.seq)).collect();
        assert_eq!(order, [(2, 4), (2, 3), (1, 9), (1, 7)], "{engine}: a later attempt's are newer");
        let options = ListOptions::newest(2);
        let page = options.page(read!(db, store::files::list, org(), job(1), &options), |f| f.id);
        let ids: Vec<FileId> = page.items.iter().map(|f| f.id).collect();
        assert_eq!(ids, [file_id(5), file_id(4)], "{engine}");
        let same = read!(db, store::files::find_same, &file(9, 2, Checkpoint, 4, Complete)).unwrap();
        assert_eq!(same, file(3, 2, Checkpoint, 4, Partial), "{engine}");
        let artifacts = read!(db, store::files::list_artifacts, job(1), 1, 0);
        assert_eq!(artifacts, [file(5, 1, Artifact, 0, Refused)], "{engine}: of this attempt, and no notes");
        assert!(read!(db, store::files::list_artifacts, job(1), 2, 0).is_empty(), "{engine}");
        // The first attempt is not open, so its partial files are abandoned.
        let given_up = write(&db, |tx| async move { store::files::abandon(tx).await }.boxed()).await;
        assert_eq!(given_up, 1, "{engine}");
        let moved = write(&db, |tx| {
            async move {
                let id = file_id(3);
                let first = store::files::set_state(tx, id, Partial, Complete, Some("n")).await?;
                Ok((first, store::files::set_state(tx, id, Partial, Gone, None).await?))
            }
            .boxed()
        })
        .await;
        assert_eq!(moved, (true, false), "{engine}");
        let expired =
            write(&db, |tx| async move { store::files::expire(tx, Checkpoint, later(60)).await }.boxed());
        assert_eq!(expired.await, 0, "{engine}: the job has not ended");
        let gone = read!(db, store::files::list_gone, 10);
        assert_eq!(gone.len(), 1, "{engine}");
        write(&db, |tx| {
            async move {
                for n in 1..=5 {
                    store::files::remove(tx, file_id(n)).await?;
                }
                Ok(())
            }
            .boxed()
        })
        .await;
        assert_eq!(
            read!(db, store::files::count_for_job, job(1)),
            4,
            "{engine}: only what is gone is removed"
        );
    }
}

#[tokio::test]
async fn attempts_with_pending_hand_overs_are_listed() {
    for (engine, db, _location) in engines("files_saving").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        write(&db, |tx| {
            async move {
                store::attempts::insert(tx, job(1), (1, 0), org(), node(1), 0, now()).await?;
                let mut row =
                    store::attempts::find(tx, job(1), 1, node(1)).await?.ok_or(StoreError::Unknown)?;
                row.saving = true;
                store::attempts::update(tx, &row).await
            }
            .boxed()
        })
        .await;
        assert_eq!(read!(db, store::attempts::list_saving, job(1), 2).len(), 1, "{engine}");
        assert!(
            read!(db, store::attempts::list_saving, job(1), 1).is_empty(),
            "{engine}: only those before it"
        );
    }
}

/// Closes the attempt of the first job.
async fn close_first_attempt(db: &berth_store::Db) {
    let row = read!(db, store::attempts::find, job(1), 1, node(1)).unwrap();
    write(db, move |tx| {
        let row = store::attempts::StoredAttempt { is_open: false, ..row.clone() };
        async move { store::attempts::update(tx, &row).await }.boxed()
    })
    .await;
}

#[tokio::test]
async fn a_volume_version_is_kept_while_an_attempt_uses_it() {
    for (engine, db, _location) in engines("files_versions").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        let blob = |id: FileId| StoredBlob {
            id,
            org_id: org(),
            volume_id: volume(),
            kind: BlobKind::Upload,
            path: String::new(),
            job_id: String::new(),
            attempt: 0,
            bytes: 10,
            sha256: id.to_string(),
            tag: String::new(),
            state: FileState::Complete,
            touched_at: now(),
        };
        let file = |path: &str, blob: FileId, from_version: i64| StoredVolumeFile {
            volume_id: volume(),
            path: path.to_owned(),
            blob_id: blob,
            bytes: 10,
            sha256: blob.to_string(),
            executable: false,
            from_version,
            changed_at: now(),
        };
        let (old, new) = (file_id(1), file_id(2));
        let (blobs, files) =
            ([old, new].map(blob), [file("d/ä", old, 1), file("d/b", old, 1), file("d/ä", new, 2)]);
        write(&db, move |tx| {
            let (blobs, files) = (blobs.clone(), files.clone());
            async move {
                store::volumes::insert(tx, &stored_volume()).await?;
                for row in &blobs {
                    store::volumes::blobs::insert(tx, row).await?;
                }
                store::volumes::insert_file(tx, &files[0]).await?;
                store::volumes::insert_file(tx, &files[1]).await?;
                store::attempts::insert(tx, job(1), (1, 0), org(), node(1), 0, now()).await?;
                store::volumes::uses::insert_request(tx, job(1), 0, volume(), true).await?;
                let given = StoredVolumeUse {
                    job_id: job(1),
                    attempt: 1,
                    volume_id: volume(),
                    version: 1,
                    writable: true,
                    abandoned: false,
                    kept_version: None,
                    note: None,
                };
                store::volumes::uses::insert(tx, &given).await?;
                // The next version has another file at one of the paths.
                assert!(store::volumes::end_file(tx, volume(), "d/ä", 2).await?);
                assert!(!store::volumes::end_file(tx, volume(), "none", 2).await?);
                store::volumes::insert_file(tx, &files[2]).await?;
                store::volumes::set_version(tx, volume(), 2, now()).await
            }
            .boxed()
        })
        .await;
        let again =
            db.write(|tx| async move { store::volumes::set_version(tx, volume(), 2, now()).await }.boxed());
        assert!(matches!(again.await, Err(StoreError::Stale)), "{engine}: it is not the next any more");
        let blobs_of = async |version: i64| {
            let rows = read!(db, store::volumes::list_version, volume(), version, "", 10);
            let mut blobs: Vec<FileId> = rows.into_iter().map(|row| row.blob_id).collect();
            blobs.sort_unstable();
            blobs
        };
        assert_eq!(blobs_of(1).await, [old, old], "{engine}");
        assert_eq!(blobs_of(2).await, [old, new], "{engine}");
        assert_eq!(read!(db, store::volumes::list_version, volume(), 2, "d/b", 10).len(), 1, "{engine}");
        assert_eq!(read!(db, store::volumes::totals, volume(), 1), (20, 2), "{engine}");
        assert_eq!(read!(db, store::volumes::list_below, volume(), "d/ä", 9).len(), 1, "{engine}");
        assert_eq!(read!(db, store::volumes::list_below, volume(), "", 9).len(), 2, "{engine}");
        assert_eq!(read!(db, store::storage::file_bytes, org()), (0, 20), "{engine}");
        assert_eq!(read!(db, store::volumes::uses::list_writers, volume()).len(), 1, "{engine}");
        let waits = read!(db, store::volumes::uses::list_waiting_requests, None);
        assert_eq!(waits.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["data"], "{engine}");
        let behind = read!(db, store::volumes::uses::list_jobs_behind, job(1));
        assert_eq!(behind, [job(1)], "{engine}");
        assert_eq!(read!(db, store::volumes::uses::find_user, volume()), Some(job(1)), "{engine}");
        let tidy = async |removed: u64| {
            let forgotten = write(&db, |tx| {
                async move {
                    let forgotten = store::volumes::forget_old(tx).await?;
                    store::volumes::blobs::abandon(tx, now()).await?;
                    Ok(forgotten)
                }
                .boxed()
            });
            assert_eq!(forgotten.await, removed, "{engine}");
        };
        tidy(0).await;
        close_first_attempt(&db).await;
        tidy(1).await;
        assert_eq!(read!(db, store::volumes::uses::list_writers, volume()).len(), 0, "{engine}");
        assert!(read!(db, store::volumes::blobs::list_gone, 9).is_empty(), "{engine}: old is at d/b still");
        write(&db, |tx| async move { store::volumes::delete(tx, volume()).await }.boxed()).await;
        let gone = read!(db, store::volumes::blobs::list_gone, 9).len();
        assert_eq!((gone, read!(db, store::storage::file_bytes, org())), (2, (0, 0)), "{engine}");
    }
}

#[tokio::test]
async fn files_handed_over_to_a_volume_are_listed_until_removal() {
    for (engine, db, _location) in engines("files_handed").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        use BlobKind::{File, Listing};
        use FileState::{Complete, Gone, Partial};
        let blob = |n: u128, kind: BlobKind, attempt: i64, state: FileState| StoredBlob {
            id: file_id(n),
            org_id: org(),
            volume_id: volume(),
            kind,
            path: String::new(),
            job_id: job(1).to_string(),
            attempt,
            bytes: 10,
            sha256: file_id(n).to_string(),
            tag: String::new(),
            state,
            touched_at: now(),
        };
        let rows = [
            blob(1, File, 1, Partial),
            blob(2, File, 1, Complete),
            blob(3, File, 1, Gone),
            blob(4, File, 2, Partial),
            blob(5, Listing, 1, Partial),
        ];
        write(&db, move |tx| {
            let rows = rows.clone();
            async move {
                for row in &rows {
                    store::volumes::blobs::insert(tx, row).await?;
                }
                // Complete files and files marked for removal do not change.
                for n in 1..=3 {
                    store::volumes::blobs::mark_complete(tx, file_id(n)).await?;
                }
                Ok(())
            }
            .boxed()
        })
        .await;
        let mut handed = read!(db, store::volumes::blobs::list_handed_over, volume(), job(1), 1);
        handed.sort_by_key(|row| row.id);
        let whole = [blob(1, File, 1, Complete), blob(2, File, 1, Complete)];
        assert_eq!(handed, whole, "{engine}");
        let other = read!(db, store::volumes::blobs::list_handed_over, volume(), job(1), 2);
        assert_eq!(other, [blob(4, File, 2, Partial)], "{engine}");
    }
}
